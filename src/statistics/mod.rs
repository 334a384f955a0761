//! `--stats`: what the numbers of every tensor are like.
//!
//! Done here and not by the engine, as comparing numbers is: the bytes are mapped already, so nothing is copied into
//! another process and no libtorch has to be started (0.2 s, more than reading 100 MB takes); every format that can be
//! listed has statistics, files that must not be loaded among them; and mean and deviation are of float64, where
//! libtorch's reductions of float16 are not.
//!
//! Tensors are read on all cores, large ones in pieces. Results do not depend on how many cores there are: pieces have a
//! fixed size and are joined in order.

mod moments;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checkpoint::{Checkpoint, Finding, Severity, Statistics, Storage, StorageData, Tensor};
use crate::format::on_all_cores;
use crate::limits;
use crate::numbers::{Decoder, Items, NoItems, Number};
use crate::source::Source;
use crate::tensor::DType;
use moments::{CHUNK, Moments};

/// Items of a piece of a large tensor.
const PIECE_ITEMS: u64 = 1 << 22;

/// A part of a tensor that one thread reads.
struct Piece<'a> {
    index: usize,
    tensor: &'a Tensor,
    decoder: Decoder,
    /// Items from the first to before the last, where they are beside each other; `None` for all of any tensor.
    range: Option<(u64, u64)>,
    bytes: u64,
}

/// What is known of one piece.
#[derive(Default)]
struct Part {
    moments: Moments,
    /// The exact extremes of 64-bit integers.
    exact: Option<(i128, i128)>,
}

/// The statistics of every tensor of a checkpoint in order, and findings about those whose numbers are not known.
/// `progress` hears how many bytes of how many are done, from any thread.
#[must_use]
pub fn statistics(
    source: &Source,
    checkpoint: &Checkpoint,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> (Vec<Option<Statistics>>, Vec<Finding>) {
    let mut failed = incomplete(checkpoint);
    let pieces = pieces(checkpoint, &mut failed);
    let total = pieces.iter().map(|piece| piece.bytes);
    let total = total.fold(0, u64::saturating_add);
    let done = AtomicU64::new(0);
    let parts = on_all_cores(&pieces, |piece| {
        let part = piece.read(source, checkpoint);
        let before = done.fetch_add(piece.bytes, Ordering::Relaxed);
        progress(before.saturating_add(piece.bytes), total);
        part
    });
    let mut joined: HashMap<usize, Part> = HashMap::new();
    for (piece, part) in pieces.iter().zip(parts) {
        match part {
            Ok(part) => joined.entry(piece.index).or_default().join(&part),
            Err(why) => {
                failed.insert(piece.index, why);
            }
        }
    }
    let tensors = checkpoint.tensors().iter().enumerate();
    let statistics = tensors.map(|(index, tensor)| {
        let part = joined
            .get(&index)
            .filter(|_| !failed.contains_key(&index))?;
        let dtype = tensor.dtype()?;
        let integer = !dtype.is_floating_point() && !dtype.is_quantized();
        let mut found = part.moments.statistics(integer, part.exact);
        if dtype.is_complex() {
            (found.min, found.max, found.mean, found.std) = (None, None, None, None);
        }
        Some(found)
    });
    (statistics.collect(), findings(checkpoint, &failed))
}

/// The work, within bounds: a tensor that is left out is named in `failed`.
fn pieces<'a>(checkpoint: &'a Checkpoint, failed: &mut HashMap<usize, String>) -> Vec<Piece<'a>> {
    let storages = checkpoint.storages().iter().map(Storage::bytes);
    let storages = storages.fold(0, u64::saturating_add);
    let mut left = storages
        .saturating_mul(limits::STATISTICS_PER_BYTE)
        .saturating_add(limits::STATISTICS_BYTES);
    let mut pieces = Vec::new();
    let tensors = checkpoint.tensors().iter().enumerate();
    let views = tensors.flat_map(|(index, tensor)| tensor.stored().map(move |view| (index, view)));
    for (index, tensor) in views {
        let decoder = match decoder(checkpoint, tensor) {
            Ok(decoder) => decoder,
            Err(why) => {
                failed.insert(index, why);
                continue;
            }
        };
        let storage = tensor.storage().and_then(|id| checkpoint.storage(id));
        let raw = storage.is_some_and(|s| matches!(s.data(), StorageData::Raw { .. }));
        // What is compressed is inflated as a whole for every tensor in it.
        let inflated = storage.filter(|_| !raw).map_or(0, Storage::bytes);
        let work = tensor.bytes().saturating_add(inflated);
        if work > left || inflated > limits::STATISTICS_INFLATED_BYTES {
            failed.insert(
                index,
                "that would be more work than the file's size".to_owned(),
            );
            continue;
        }
        left = left.saturating_sub(work);
        let whole = Piece {
            index,
            tensor,
            decoder,
            range: None,
            bytes: tensor.bytes(),
        };
        if !raw || !tensor.is_contiguous() {
            pieces.push(whole);
            continue;
        }
        let item = tensor.dtype().map_or(1, DType::item_bytes);
        let mut begin = 0;
        while begin < tensor.numel() {
            let end = begin.saturating_add(PIECE_ITEMS).min(tensor.numel());
            pieces.push(Piece {
                range: Some((begin, end)),
                bytes: (end - begin).saturating_mul(item),
                ..whole
            });
            begin = end;
        }
        if tensor.numel() == 0 {
            pieces.push(whole);
        }
    }
    pieces
}

/// Tensors of which pieces are missing.
fn incomplete(checkpoint: &Checkpoint) -> HashMap<usize, String> {
    let tensors = checkpoint.tensors().iter().enumerate();
    let broken = tensors.filter(|(_, tensor)| !tensor.is_complete());
    broken
        .map(|(index, _)| (index, "its chunks do not make it up".to_owned()))
        .collect()
}

/// How the items of a tensor are read, or why there are no numbers.
fn decoder(checkpoint: &Checkpoint, tensor: &Tensor) -> Result<Decoder, String> {
    let dtype = tensor.dtype().ok_or("it has no shape yet")?;
    if tensor.storage().is_none() {
        return Err("its numbers are not in the file".to_owned());
    }
    if dtype.is_quantized() && tensor.quantizer().is_none() {
        return Err("it is quantized by channel".to_owned());
    }
    let decoder = Decoder::of_integers_behind(dtype);
    let decoder = decoder.ok_or_else(|| format!("numbers of {} are not read", dtype.name()))?;
    let storage = tensor.storage().and_then(|id| checkpoint.storage(id));
    let here = storage.is_some_and(|s| s.data() != StorageData::Absent && !s.is_skipped());
    if here || tensor.numel() == 0 {
        Ok(decoder)
    } else {
        Err("its numbers are not in the file".to_owned())
    }
}

impl Piece<'_> {
    fn read(&self, source: &Source, checkpoint: &Checkpoint) -> Result<Part, String> {
        if self.tensor.numel() == 0 {
            return Ok(Part::default());
        }
        let items = Items::of(source, checkpoint, self.tensor).map_err(|why| match why {
            NoItems::NotInFile => "its numbers are not in the file".to_owned(),
            NoItems::Unreadable(error) => error,
        })?;
        let mut reading = Reading {
            part: Part::default(),
            numbers: Vec::with_capacity(CHUNK),
            piece: self,
            big_endian: items.big_endian(),
        };
        let beyond = || "its view is larger than its storage".to_owned();
        if let Some((begin, end)) = self.range {
            let size = items.item_bytes() as u64;
            let at = |item: u64| usize::try_from(item.checked_mul(size)?).ok();
            let bytes = items.run().and_then(|run| run.get(at(begin)?..at(end)?));
            reading.run(bytes.ok_or_else(beyond)?);
        } else {
            for offset in items.offsets() {
                reading.item(items.item(offset).ok_or_else(beyond)?);
            }
        }
        reading.flush();
        Ok(reading.part)
    }
}

/// The bytes of an item of at most 16 bits as a place in a table.
fn pattern(item: &[u8]) -> usize {
    let low_last = item.iter().rev();
    low_last.fold(0, |pattern, byte| pattern << 8 | usize::from(*byte))
}

/// Numbers on their way from bytes to sums.
struct Reading<'a> {
    part: Part,
    numbers: Vec<f64>,
    piece: &'a Piece<'a>,
    big_endian: bool,
}

impl Reading<'_> {
    fn flush(&mut self) {
        self.part.moments.add(&self.numbers);
        self.numbers.clear();
    }

    /// Items beside each other.
    fn run(&mut self, bytes: &[u8]) {
        let size = self.piece.decoder.item_bytes().max(1);
        let plain = self.piece.tensor.dtype().filter(|_| !self.big_endian);
        let table = self.table(bytes.len() / size);
        for chunk in bytes.chunks(CHUNK.saturating_mul(size)) {
            match plain {
                // By far the most frequent, in code that the compiler turns into vectors.
                Some(DType::Float32) => {
                    let (items, _) = chunk.as_chunks::<4>();
                    let numbers = items
                        .iter()
                        .map(|item| f64::from(f32::from_le_bytes(*item)));
                    self.numbers.extend(numbers);
                }
                Some(DType::BFloat16) => {
                    let (items, _) = chunk.as_chunks::<2>();
                    let wide = |item: &[u8; 2]| f32::from_le_bytes([0, 0, item[0], item[1]]);
                    self.numbers
                        .extend(items.iter().map(|item| f64::from(wide(item))));
                }
                Some(DType::Float64) => {
                    let (items, _) = chunk.as_chunks::<8>();
                    self.numbers
                        .extend(items.iter().map(|item| f64::from_le_bytes(*item)));
                }
                _ if !table.is_empty() => {
                    let number = |item: &[u8]| table.get(pattern(item)).copied();
                    self.numbers.extend(chunk.chunks(size).filter_map(number));
                }
                _ => chunk.chunks(size).for_each(|item| self.push(item)),
            }
            self.flush();
        }
    }

    /// The numbers of all patterns of a dtype of at most 16 bits, where there are more items than patterns.
    fn table(&self, items: usize) -> Vec<f64> {
        let (decoder, quantizer) = (self.piece.decoder, self.piece.tensor.quantizer());
        let patterns: u32 = match (decoder.parts(), decoder.item_bytes()) {
            (1, 1) => 1 << 8,
            (1, 2) => 1 << 16,
            _ => return Vec::new(),
        };
        if items < usize::try_from(patterns).unwrap_or(usize::MAX) {
            return Vec::new();
        }
        let number = |pattern: u32| {
            let bytes = pattern.to_le_bytes();
            // Patterns are looked up by the bytes as they are in the file, first byte lowest.
            let item = bytes.get(..decoder.item_bytes())?;
            let value = decoder.value(item, self.big_endian)?.value();
            Some(quantizer.map_or(value, |quantizer| quantizer.value(value)))
        };
        (0..patterns)
            .map(|pattern| number(pattern).unwrap_or(f64::NAN))
            .collect()
    }

    fn item(&mut self, item: &[u8]) {
        self.push(item);
        if self.numbers.len() >= CHUNK {
            self.flush();
        }
    }

    fn push(&mut self, item: &[u8]) {
        let decoder = self.piece.decoder;
        if decoder.parts() > 1 {
            self.numbers.extend(self.complex(item));
            return;
        }
        let Some(number) = decoder.value(item, self.big_endian) else {
            return;
        };
        if let Number::Int(value) = number
            && decoder.item_bytes() == 8
        {
            let (min, max) = self.part.exact.unwrap_or((value, value));
            self.part.exact = Some((min.min(value), max.max(value)));
        }
        let quantizer = self.piece.tensor.quantizer();
        let value = number.value();
        self.numbers
            .push(quantizer.map_or(value, |quantizer| quantizer.value(value)));
    }

    /// A complex number as one that is NaN, infinite, 0 or neither, as the number is: only that is counted.
    fn complex(&self, item: &[u8]) -> Option<f64> {
        let decoder = self.piece.decoder;
        let size = decoder.item_bytes() / 2;
        let (real, imaginary) = item.split_at_checked(size)?;
        let value = |part| Some(decoder.value(part, self.big_endian)?.value());
        let (real, imaginary): (f64, f64) = (value(real)?, value(imaginary)?);
        Some(if real.is_nan() || imaginary.is_nan() {
            f64::NAN
        } else if real.is_infinite() || imaginary.is_infinite() {
            f64::INFINITY
        } else {
            f64::from(u8::from(real != 0.0 || imaginary != 0.0))
        })
    }
}

impl Part {
    fn join(&mut self, other: &Part) {
        self.moments.join(&other.moments);
        self.exact = match (self.exact, other.exact) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
    }
}

/// The tensors without statistics, as far as there is room; the rest in one sentence.
fn findings(checkpoint: &Checkpoint, failed: &HashMap<usize, String>) -> Vec<Finding> {
    let finding = |location: &str, message: String| Finding {
        severity: Severity::Info,
        code: "no-statistics",
        location: location.to_owned(),
        message,
    };
    let tensors = checkpoint.tensors().iter().enumerate();
    let mut without = tensors.filter_map(|(index, tensor)| Some((tensor, failed.get(&index)?)));
    let mut findings: Vec<Finding> = without
        .by_ref()
        .take(limits::FINDINGS_PER_KIND)
        .map(|(tensor, why)| finding(tensor.name(), why.clone()))
        .collect();
    let rest = without.count();
    if rest > 0 {
        findings.push(finding(
            "",
            format!("{rest} more tensors have no statistics"),
        ));
    }
    findings
}
