//! Tensors of a file, made for libtorch: compressed and big-endian data as well.

use std::borrow::Cow;
use std::cell::RefCell;

use inspect_checkpoint::checkpoint::{ByteOrder, Storage};
use inspect_checkpoint::format;
use inspect_checkpoint::source::Source;
use inspect_checkpoint::tensor::{DType, extent};
use tch::{Kind, Tensor};

use crate::dtype;
use crate::failure::Failure;
use crate::ffi::{Value, call_op};

/// A view of a storage of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// Its element type.
    pub(crate) dtype: DType,
    /// Its shape.
    pub(crate) shape: &'a [u64],
    /// Its strides in elements.
    pub(crate) strides: &'a [u64],
    /// Where in the storage it starts, in elements.
    pub(crate) offset: u64,
    /// The storage.
    pub(crate) storage: &'a Storage,
}

/// The storages of a file.
pub(crate) struct Data<'a> {
    source: &'a Source,
    byte_order: Option<ByteOrder>,
    /// The last storage that had to be inflated, by its place in the file: tensors that share one come in a row.
    inflated: RefCell<Option<(String, Vec<u8>)>>,
}

/// Why a tensor cannot be made.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// What is wrong with it in the file.
    Stored(String),
    /// libtorch's own trouble.
    Torch(Failure),
}

impl<E: Into<Failure>> From<E> for Unusable {
    fn from(error: E) -> Self {
        Unusable::Torch(error.into())
    }
}

impl<'a> Data<'a> {
    /// The storages of an open file.
    pub(crate) fn new(source: &'a Source, byte_order: Option<ByteOrder>) -> Self {
        Data {
            source,
            byte_order,
            inflated: RefCell::new(None),
        }
    }

    /// A tensor on the CPU; without `fill` its values are left out.
    pub(crate) fn tensor(&self, view: View<'_>, fill: bool) -> Result<Tensor, Unusable> {
        let refuse = |why: String| Unusable::Stored(why);
        let name = view.dtype.name();
        let scalar_type = dtype::scalar_type(name)
            .filter(|_| view.dtype.values_per_byte().is_none())
            .ok_or_else(|| refuse(format!("libtorch makes no tensors of dtype `{name}`")))?;
        let signed = |sizes: &[u64]| -> Option<Vec<i64>> {
            sizes.iter().map(|size| i64::try_from(*size).ok()).collect()
        };
        let (Some(shape), Some(strides)) = (signed(view.shape), signed(view.strides)) else {
            return Err(refuse("a size is above 2^63 - 1".to_owned()));
        };
        let (start, length) = span(view)
            .ok_or_else(|| refuse("it is larger than this machine's memory".to_owned()))?;
        let sizes = [i64::try_from(length).unwrap_or(i64::MAX)];
        let raw = if fill && length > 0 {
            self.with_bytes(view, start, length, |bytes| {
                Tensor::f_from_data_size(bytes, &sizes, Kind::Uint8)
            })??
        } else {
            Tensor::f_empty(sizes, (Kind::Uint8, tch::Device::Cpu))?
        };
        let number = Value::Int(i64::from(scalar_type));
        let typed = call_op("aten::view", "dtype", &[Value::Tensor(&raw), number])?
            .pop()
            .ok_or_else(|| refuse("libtorch made no view of its bytes".to_owned()))?;
        Ok(typed.f_as_strided(&shape, &strides, None)?)
    }

    /// Hands out a part of the view's storage as it is in this machine's memory.
    fn with_bytes<T>(
        &self,
        view: View<'_>,
        start: usize,
        length: usize,
        make: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Unusable> {
        let member = view.storage.member();
        let mut inflated = self.inflated.borrow_mut();
        if inflated.as_ref().is_none_or(|(known, _)| known != member) {
            let bytes = format::storage_bytes(self.source, view.storage)
                .map_err(|error| Unusable::Stored(with_causes(&error)))?;
            match bytes {
                Cow::Borrowed(bytes) => return self.part(bytes, view, start, length, make),
                Cow::Owned(bytes) => *inflated = Some((member.to_owned(), bytes)),
            }
        }
        let bytes = inflated.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        self.part(bytes, view, start, length, make)
    }

    fn part<T>(
        &self,
        bytes: &[u8],
        view: View<'_>,
        start: usize,
        length: usize,
        make: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Unusable> {
        let part = start
            .checked_add(length)
            .and_then(|end| bytes.get(start..end))
            .ok_or_else(|| Unusable::Stored("its data ends before it does".to_owned()))?;
        if self.byte_order != Some(ByteOrder::Big) {
            return Ok(make(part));
        }
        let mut swapped = part.to_vec();
        for number in swapped.chunks_exact_mut(number_bytes(view.dtype)) {
            number.reverse();
        }
        Ok(make(&swapped))
    }
}

/// First byte of a view in its storage, and how many bytes it reaches over.
fn span(view: View<'_>) -> Option<(usize, usize)> {
    if view.shape.contains(&0) {
        return Some((0, 0));
    }
    let item = view.dtype.item_bytes();
    let start = view.offset.checked_mul(item)?;
    let length = extent(view.shape, view.strides, 0)?.checked_mul(item)?;
    Some((usize::try_from(start).ok()?, usize::try_from(length).ok()?))
}

/// Bytes of one number: a complex element is two.
fn number_bytes(dtype: DType) -> usize {
    let item = usize::try_from(dtype.item_bytes()).unwrap_or(1).max(1);
    if dtype::is_complex(dtype.name()) {
        (item / 2).max(1)
    } else {
        item
    }
}

/// An error with its causes, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // An error that quotes its cause has said it already.
        if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    message
}
