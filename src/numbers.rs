//! The numbers of a tensor, from the bytes of its storage.

use std::borrow::Cow;

use crate::checkpoint::{ByteOrder, Checkpoint, Storage, StorageData, Tensor};
use crate::format::{self, FormatError};
use crate::source::Source;
use crate::tensor::DType;

/// A number, or one part of a complex one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    /// Of a floating dtype.
    Float(f64),
    /// Of an integer dtype.
    Int(i128),
}

impl Number {
    /// The value, rounded where it has more than 53 bits.
    pub(crate) fn value(self) -> f64 {
        match self {
            Number::Float(value) => value,
            Number::Int(value) => value as f64,
        }
    }
}

/// How a dtype's items are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoder {
    /// Bytes of one part: an item, or half of a complex one.
    part_bytes: usize,
    /// Parts of an item: 2 in complex numbers.
    parts: usize,
    read: fn(u64) -> Number,
}

/// A floating type of at most 16 bits: sign, exponent, mantissa.
#[derive(Clone, Copy)]
struct Small {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    /// Whether the largest exponent holds infinities and NaN, as in IEEE 754.
    ieee: bool,
    /// Without infinities: the one pattern of magnitude that is NaN; none where NaN is minus zero.
    nan_magnitude: Option<u64>,
}

impl Small {
    const F16: Small = Small {
        exponent_bits: 5,
        mantissa_bits: 10,
        bias: 15,
        ieee: true,
        nan_magnitude: None,
    };
    const E5M2: Small = Small {
        exponent_bits: 5,
        mantissa_bits: 2,
        bias: 15,
        ieee: true,
        nan_magnitude: None,
    };
    const E4M3FN: Small = Small {
        exponent_bits: 4,
        mantissa_bits: 3,
        bias: 7,
        ieee: false,
        nan_magnitude: Some(0x7f),
    };
    const E5M2FNUZ: Small = Small {
        exponent_bits: 5,
        mantissa_bits: 2,
        bias: 16,
        ieee: false,
        nan_magnitude: None,
    };
    const E4M3FNUZ: Small = Small {
        exponent_bits: 4,
        mantissa_bits: 3,
        bias: 8,
        ieee: false,
        nan_magnitude: None,
    };

    fn read(self, bits: u64) -> Number {
        let sign_at = self.exponent_bits + self.mantissa_bits;
        let magnitude = bits & ((1 << sign_at) - 1);
        let negative = bits >> sign_at & 1 == 1;
        let exponent = magnitude >> self.mantissa_bits;
        let mantissa = (magnitude & ((1 << self.mantissa_bits) - 1)) as f64;
        let one = f64::from(1_u32 << self.mantissa_bits);
        let special = self.ieee && exponent == (1 << self.exponent_bits) - 1;
        let minus_zero = negative && magnitude == 0;
        let nan = match self.nan_magnitude {
            Some(pattern) => magnitude == pattern,
            None => !self.ieee && minus_zero,
        };
        let value = if nan || (special && mantissa > 0.0) {
            f64::NAN
        } else if special {
            f64::INFINITY
        } else if exponent == 0 {
            mantissa / one * 2_f64.powi(1 - self.bias)
        } else {
            let exponent = i32::try_from(exponent).unwrap_or(0);
            (1.0 + mantissa / one) * 2_f64.powi(exponent - self.bias)
        };
        Number::Float(if negative { -value } else { value })
    }
}

fn f32_of(bits: u64) -> Number {
    let bits = u32::try_from(bits & 0xffff_ffff).unwrap_or(0);
    Number::Float(f64::from(f32::from_bits(bits)))
}

/// An integer of `bytes` bytes in two's complement.
fn signed(bits: u64, bytes: u32) -> Number {
    let shift = 64 - 8 * bytes;
    Number::Int(i128::from((bits << shift).cast_signed() >> shift))
}

impl Decoder {
    /// How items of this dtype are read; none for packed and quantized ones, whose bytes alone can be compared.
    pub(crate) fn of(dtype: DType) -> Option<Decoder> {
        let (part_bytes, parts, read): (usize, usize, fn(u64) -> Number) = match dtype {
            DType::Float64 => (8, 1, |bits| Number::Float(f64::from_bits(bits))),
            DType::Float32 => (4, 1, f32_of),
            DType::Float16 => (2, 1, |bits| Small::F16.read(bits)),
            DType::BFloat16 => (2, 1, |bits| f32_of(bits << 16)),
            DType::Float8E5M2 => (1, 1, |bits| Small::E5M2.read(bits)),
            DType::Float8E4M3Fn => (1, 1, |bits| Small::E4M3FN.read(bits)),
            DType::Float8E5M2Fnuz => (1, 1, |bits| Small::E5M2FNUZ.read(bits)),
            DType::Float8E4M3Fnuz => (1, 1, |bits| Small::E4M3FNUZ.read(bits)),
            DType::Complex128 => (8, 2, |bits| Number::Float(f64::from_bits(bits))),
            DType::Complex64 => (4, 2, f32_of),
            DType::Complex32 => (2, 2, |bits| Small::F16.read(bits)),
            DType::Bool => (1, 1, |bits| Number::Int(i128::from(bits != 0))),
            DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => {
                let bytes = usize::try_from(dtype.item_bytes()).ok()?;
                (bytes, 1, |bits| Number::Int(i128::from(bits)))
            }
            DType::Int8 => (1, 1, |bits| signed(bits, 1)),
            DType::Int16 => (2, 1, |bits| signed(bits, 2)),
            DType::Int32 => (4, 1, |bits| signed(bits, 4)),
            DType::Int64 => (8, 1, |bits| signed(bits, 8)),
            _ => return None,
        };
        Some(Decoder {
            part_bytes,
            parts,
            read,
        })
    }

    /// Parts of a plain dtype's or a quantized one's items: its numbers, or the integers that stand for them.
    pub(crate) fn of_integers_behind(dtype: DType) -> Option<Decoder> {
        Decoder::of(match dtype {
            DType::QInt8 => DType::Int8,
            DType::QUInt8 => DType::UInt8,
            DType::QInt32 => DType::Int32,
            other => other,
        })
    }

    /// Bytes of an item.
    pub(crate) fn item_bytes(self) -> usize {
        self.part_bytes * self.parts
    }

    /// The value of an item of one part.
    pub(crate) fn value(self, item: &[u8], big_endian: bool) -> Option<Number> {
        self.part(item, 0, big_endian)
    }

    /// Parts of an item.
    pub(crate) fn parts(self) -> usize {
        self.parts
    }

    fn part(self, item: &[u8], index: usize, big_endian: bool) -> Option<Number> {
        let start = index * self.part_bytes;
        let bytes = item.get(start..start + self.part_bytes)?;
        let add = |bits: u64, byte: &u8| bits << 8 | u64::from(*byte);
        let bits = if big_endian {
            bytes.iter().fold(0, add)
        } else {
            bytes.iter().rev().fold(0, add)
        };
        Some((self.read)(bits))
    }
}

/// A tensor's items in memory.
pub(crate) struct Items<'a> {
    bytes: Cow<'a, [u8]>,
    tensor: &'a Tensor,
    item_bytes: usize,
    big_endian: bool,
}

/// Why the items of a tensor are not at hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoItems {
    /// The file does not hold them.
    NotInFile,
    /// They are not what they should be.
    Unreadable(String),
}

impl<'a> Items<'a> {
    /// The items of a tensor of this checkpoint.
    pub(crate) fn of(
        source: &'a Source,
        checkpoint: &'a Checkpoint,
        tensor: &'a Tensor,
    ) -> Result<Items<'a>, NoItems> {
        let storages = checkpoint.storages();
        let storage = tensor.storage().and_then(|id| storages.get(id.index()));
        let Some(dtype) = tensor.dtype() else {
            return Err(NoItems::NotInFile);
        };
        if storage.is_none() && !tensor.chunks().is_empty() {
            return Items::put_together(source, checkpoint, tensor, dtype);
        }
        let storage = storage.ok_or(NoItems::NotInFile)?;
        let absent = matches!(storage.data(), StorageData::Absent);
        if absent || storage.is_skipped() {
            return Err(NoItems::NotInFile);
        }
        Ok(Items {
            bytes: storage_bytes(source, storage)?,
            tensor,
            item_bytes: usize::try_from(dtype.item_bytes()).unwrap_or(usize::MAX),
            big_endian: checkpoint.byte_order() == Some(ByteOrder::Big),
        })
    }

    /// The items of a tensor that is stored in pieces, in memory of their own: no more than the pieces take up in the
    /// file, which cover every element once.
    fn put_together(
        source: &'a Source,
        checkpoint: &'a Checkpoint,
        tensor: &'a Tensor,
        dtype: DType,
    ) -> Result<Items<'a>, NoItems> {
        if !tensor.is_complete() {
            let why = "its chunks do not make it up".to_owned();
            return Err(NoItems::Unreadable(why));
        }
        let whole = || NoItems::Unreadable("its chunks do not fit into it".to_owned());
        let item_bytes = usize::try_from(dtype.item_bytes()).map_err(|_| whole())?;
        if dtype.values_per_byte().is_some() {
            return Err(NoItems::Unreadable(
                "it is packed, and in pieces".to_owned(),
            ));
        }
        // Views can repeat a few bytes without end: what is put together is no more than what is there.
        let held = tensor.storages().filter_map(|id| checkpoint.storage(id));
        let held = held.filter(|storage| storage.data() != StorageData::Absent);
        if held.map(Storage::bytes).fold(0, u64::saturating_add) < tensor.bytes() {
            return Err(NoItems::NotInFile);
        }
        let strides = tensor.strides().unwrap_or_default();
        let mut bytes = vec![0_u8; usize::try_from(tensor.bytes()).map_err(|_| whole())?];
        for chunk in tensor.chunks() {
            let view = chunk.view.as_ref().ok_or(NoItems::NotInFile)?;
            if view.numel() == 0 {
                continue;
            }
            let piece = Items::of(source, checkpoint, view)?;
            let steps = chunk.offsets.iter().zip(strides);
            let start = steps.fold(0_u64, |sum, (offset, stride)| {
                sum.saturating_add(offset.saturating_mul(*stride))
            });
            piece
                .copy_into(&mut bytes, (&chunk.sizes, strides, start), item_bytes)
                .ok_or_else(whole)?;
        }
        Ok(Items {
            bytes: Cow::Owned(bytes),
            tensor,
            item_bytes,
            big_endian: checkpoint.byte_order() == Some(ByteOrder::Big),
        })
    }

    /// Copies all items to their places in a larger tensor: whole rows where they are beside each other.
    fn copy_into(
        &self,
        bytes: &mut [u8],
        (sizes, strides, start): (&[u64], &[u64], u64),
        item_bytes: usize,
    ) -> Option<()> {
        let mut put = |at: u64, items: &[u8]| -> Option<()> {
            let at = usize::try_from(at).ok()?.checked_mul(item_bytes)?;
            let place = bytes.get_mut(at..at.checked_add(items.len())?)?;
            place.copy_from_slice(items);
            Some(())
        };
        if let (true, Some(run), Some((last, outer))) =
            (self.is_contiguous(), self.run(), sizes.split_last())
        {
            let row = usize::try_from(*last).ok()?.checked_mul(item_bytes)?;
            let steps = strides.get(..outer.len())?;
            let rows = Offsets::new(outer, steps, start);
            let mut sources = run.chunks_exact(row.max(1));
            for at in rows {
                put(at, sources.next()?)?;
            }
            return Some(());
        }
        for (from, to) in self.offsets().zip(Offsets::new(sizes, strides, start)) {
            put(to, self.item(from)?)?;
        }
        Some(())
    }

    /// Whether all items are beside each other, in order: then [`Items::run`] is all of them.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.tensor.is_contiguous()
    }

    /// The bytes of a contiguous tensor's items; `None` where there are none, or they are elsewhere.
    pub(crate) fn run(&self) -> Option<&[u8]> {
        let dtype = self.tensor.dtype()?;
        // Packed types count values, not items, in their offset.
        let offset = match dtype.values_per_byte() {
            Some(values) => self.tensor.storage_offset() / values,
            None => self
                .tensor
                .storage_offset()
                .checked_mul(dtype.item_bytes())?,
        };
        let start = usize::try_from(offset).ok()?;
        let length = usize::try_from(self.tensor.bytes()).ok()?;
        self.bytes.get(start..start.checked_add(length)?)
    }

    /// The bytes of the item at an offset from the storage's start, in elements.
    pub(crate) fn item(&self, offset: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?.checked_mul(self.item_bytes)?;
        self.bytes.get(start..start.checked_add(self.item_bytes)?)
    }

    /// One part of an item.
    pub(crate) fn number(&self, decoder: Decoder, item: &[u8], part: usize) -> Option<Number> {
        decoder.part(item, part, self.big_endian)
    }

    /// Whether the most significant byte comes first.
    pub(crate) fn big_endian(&self) -> bool {
        self.big_endian
    }

    /// Bytes of an item.
    pub(crate) fn item_bytes(&self) -> usize {
        self.item_bytes
    }

    /// The offsets of all items, in the order of their indices.
    pub(crate) fn offsets(&self) -> Offsets<'_> {
        Offsets::new(
            self.tensor.shape().unwrap_or_default(),
            self.tensor.strides().unwrap_or_default(),
            self.tensor.storage_offset(),
        )
    }
}

fn storage_bytes<'a>(source: &'a Source, storage: &Storage) -> Result<Cow<'a, [u8]>, NoItems> {
    let unreadable = |error: FormatError| NoItems::Unreadable(error.to_string());
    format::storage_bytes(source, storage).map_err(unreadable)
}

/// Where the items of a strided tensor are, in elements from the storage's start.
pub(crate) struct Offsets<'a> {
    shape: &'a [u64],
    strides: &'a [u64],
    index: Vec<u64>,
    next: Option<u64>,
}

impl<'a> Offsets<'a> {
    fn new(shape: &'a [u64], strides: &'a [u64], offset: u64) -> Self {
        let some = !shape.contains(&0);
        Offsets {
            shape,
            strides,
            index: vec![0; shape.len()],
            next: some.then_some(offset),
        }
    }
}

impl Iterator for Offsets<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let now = self.next?;
        let mut at = now;
        self.next = None;
        let dims = self.index.iter_mut().zip(self.shape).zip(self.strides);
        for ((index, size), stride) in dims.rev() {
            *index += 1;
            if *index < *size {
                self.next = at.checked_add(*stride);
                break;
            }
            at = at.saturating_sub(stride.saturating_mul(*size - 1));
            *index = 0;
        }
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dtype: DType, bytes: &[u8]) -> f64 {
        let decoder = Decoder::of(dtype).unwrap();
        decoder.part(bytes, 0, false).unwrap().value()
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "decoding is exact")]
    fn every_floating_type() {
        assert_eq!(read(DType::Float32, &1.5_f32.to_le_bytes()), 1.5);
        assert_eq!(read(DType::BFloat16, &[0xc0, 0x3f]), 1.5);
        assert_eq!(read(DType::Float16, &[0x00, 0x3e]), 1.5);
        assert_eq!(read(DType::Float16, &[0x01, 0x00]), 2_f64.powi(-24));
        assert_eq!(read(DType::Float16, &[0xff, 0xfb]), -65504.0);
        assert_eq!(read(DType::Float16, &[0x00, 0x7c]), f64::INFINITY);
        assert!(read(DType::Float16, &[0x01, 0x7c]).is_nan());
        // The largest numbers of the OCP and the Graphcore formats.
        assert_eq!(read(DType::Float8E4M3Fn, &[0x7e]), 448.0);
        assert!(read(DType::Float8E4M3Fn, &[0x7f]).is_nan());
        assert_eq!(read(DType::Float8E5M2, &[0x7b]), 57344.0);
        assert_eq!(read(DType::Float8E5M2, &[0x7c]), f64::INFINITY);
        assert_eq!(read(DType::Float8E4M3Fnuz, &[0x7f]), 240.0);
        assert!(read(DType::Float8E4M3Fnuz, &[0x80]).is_nan());
        assert_eq!(read(DType::Float8E5M2Fnuz, &[0x7f]), 57344.0);
        assert!(read(DType::Float8E5M2Fnuz, &[0x80]).is_nan());
    }

    #[test]
    fn integers_keep_every_bit() {
        let of = |dtype: DType, bytes: &[u8]| Decoder::of(dtype).unwrap().part(bytes, 0, false);
        assert_eq!(of(DType::Int8, &[0xff]), Some(Number::Int(-1)));
        let largest = i64::MAX.to_le_bytes();
        let expected = Number::Int(i128::from(i64::MAX));
        assert_eq!(of(DType::Int64, &largest), Some(expected));
        assert_eq!(of(DType::UInt8, &[0xff]), Some(Number::Int(255)));
        assert_eq!(of(DType::Int16, &[0xff]), None, "too short");
    }

    #[test]
    fn offsets_follow_the_strides() {
        let all = |shape: &[u64], strides: &[u64], offset| -> Vec<u64> {
            Offsets::new(shape, strides, offset).collect()
        };
        assert_eq!(all(&[2, 3], &[3, 1], 1), [1, 2, 3, 4, 5, 6]);
        assert_eq!(all(&[3, 2], &[1, 3], 0), [0, 3, 1, 4, 2, 5]);
        assert_eq!(all(&[2, 2], &[0, 0], 7), [7, 7, 7, 7]);
        assert_eq!(all(&[], &[], 4), [4]);
        assert!(all(&[2, 0], &[1, 1], 4).is_empty());
    }
}
