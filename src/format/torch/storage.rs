//! The storages that a pickle refers to, each registered once.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::error::TensorFault;
use super::super::pickle::{Node, NodeId, Pickle, cut};
use super::super::zip::{Member, canonical_number};
use super::rebuild::View;
use crate::checkpoint::{Storage, StorageData, StorageId, StorageParts};
use crate::tensor::DType;

/// Keys below this are looked up by number; the table of 4 bytes a number stays small.
const NUMBERED_KEYS: usize = 1 << 20;

/// What a pickle says about a storage.
#[derive(Debug, Clone)]
pub(crate) struct Declared<'p> {
    /// The key that names it.
    pub(crate) key: Cow<'p, str>,
    /// Its dtype; `None` for untyped storages.
    pub(crate) dtype: Option<DType>,
    /// Its size.
    pub(crate) bytes: u64,
    /// The device it was saved from.
    pub(crate) device: Option<&'p str>,
    /// The part of the storage that is meant, in elements: offset and length. Legacy files only.
    pub(crate) view: Option<(u64, u64)>,
}

impl Declared<'_> {
    /// The storage, where it is a record of a zip; `member` is what the record is called.
    pub(crate) fn in_record(
        &self,
        record: &Member<'_>,
        member: &str,
    ) -> Result<StorageParts, TensorFault> {
        if record.bytes < self.bytes {
            return Err(TensorFault::ShortRecord {
                member: cut(member),
                needed_bytes: self.bytes,
                record_bytes: record.bytes,
            });
        }
        let offset = record.data_offset;
        Ok(StorageParts {
            dtype: self.dtype,
            bytes: record.bytes,
            file_bytes: record.stored_bytes,
            device: self.device.map(Into::into),
            member: member.into(),
            data: if record.deflated {
                StorageData::Deflated { offset }
            } else {
                StorageData::Raw { offset }
            },
            crc32: Some(record.crc32),
        })
    }
}

/// Where the storages of a file are.
pub(crate) trait Records {
    /// Where the storage is, or why it cannot be there. A record larger than declared is fine; a smaller one is not.
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault>;

    /// The tensor that is kept outside the pickle under this key; only tars have such.
    fn tensor(&self, _key: &str) -> Option<View> {
        None
    }
}

/// Storages in order of first appearance. Registered by key: names, devices and dtypes of one key are one memory.
#[derive(Debug, Default)]
pub(crate) struct StorageTable {
    storages: Vec<Storage>,
    by_key: HashMap<String, StorageId, foldhash::fast::RandomState>,
    /// Keys that are small numbers, as in every zip: place plus one, 0 for none.
    by_number: Vec<u32>,
    /// Storages whose record is larger than the pickle says: id, declared bytes.
    pub(crate) larger_records: Vec<(StorageId, u64)>,
    /// Storages that two tensors declare with different dtypes.
    pub(crate) several_dtypes: Vec<StorageId>,
}

impl StorageTable {
    /// The storage that a pickle declares, registered when it is new.
    pub(crate) fn get(
        &mut self,
        declared: &Declared<'_>,
        records: &dyn Records,
    ) -> Result<(StorageId, u64), TensorFault> {
        let number = canonical_number(&declared.key).filter(|n| *n < NUMBERED_KEYS);
        let known = match number {
            Some(number) => self.numbered(number),
            None => self.by_key.get(&*declared.key).copied(),
        };
        if let Some(id) = known {
            return self.known(id, declared);
        }
        let parts = records.locate(declared)?;
        let id = StorageId::new(u32::try_from(self.storages.len()).unwrap_or(u32::MAX));
        let bytes = parts.bytes;
        if bytes > declared.bytes {
            self.larger_records.push((id, declared.bytes));
        }
        self.storages.push(Storage::new(parts));
        match number {
            Some(number) => {
                if number >= self.by_number.len() {
                    self.by_number.resize(number.saturating_add(1), 0);
                }
                if let Some(slot) = self.by_number.get_mut(number) {
                    *slot = id.number().saturating_add(1);
                }
            }
            None => {
                self.by_key.insert(declared.key.clone().into_owned(), id);
            }
        }
        Ok((id, bytes))
    }

    fn numbered(&self, number: usize) -> Option<StorageId> {
        let place = self.by_number.get(number)?.checked_sub(1)?;
        Some(StorageId::new(place))
    }

    fn known(
        &mut self,
        id: StorageId,
        declared: &Declared<'_>,
    ) -> Result<(StorageId, u64), TensorFault> {
        let Some(storage) = self.storages.get(id.index()) else {
            return Err(TensorFault::NoRecord(cut(&declared.key)));
        };
        if declared.bytes > storage.bytes() {
            return Err(TensorFault::ShortRecord {
                member: cut(storage.member()),
                needed_bytes: declared.bytes,
                record_bytes: storage.bytes(),
            });
        }
        if declared.dtype != storage.dtype() && !self.several_dtypes.contains(&id) {
            self.several_dtypes.push(id);
        }
        Ok((id, storage.bytes()))
    }

    /// Makes room for the storages of an archive with this many records.
    pub(crate) fn reserve(&mut self, records: usize) {
        self.storages.reserve(records);
        self.by_number.reserve(records);
    }

    /// From here on keys mean the records of another folder.
    pub(crate) fn enter_folder(&mut self) {
        self.by_key.clear();
        self.by_number.clear();
    }

    /// The storages registered so far.
    pub(crate) fn storages(&self) -> &[Storage] {
        &self.storages
    }

    /// All of them.
    pub(crate) fn into_storages(self) -> Vec<Storage> {
        self.storages
    }
}

/// Reads the tuple that stands for a storage: `('storage', class, key, device, numel)`. `class_of` says what a value is
/// as a class of storages.
pub(crate) fn declared_storage<'p>(
    pickle: &'p Pickle<'_>,
    persistent: NodeId,
    class_of: impl Fn(NodeId) -> StorageClass,
) -> Result<Declared<'p>, TensorFault> {
    let argument = |what, expected, id| TensorFault::Argument {
        what,
        expected,
        found: pickle.kind(id),
    };
    let Node::Persistent(id) = pickle.node(persistent) else {
        return Err(argument("its storage", "a persistent id", persistent));
    };
    if let Some(text) = pickle.str_bytes(id) {
        // Protocol 0 can write ids only as text, and writes the tuple's repr. PyTorch itself cannot read that back.
        return declared_in_text(text)
            .ok_or_else(|| argument("its storage", "a tuple of 5, or its repr", id))?;
    }
    let [tag, class, key, device, numel, ..] = *pickle.items(id) else {
        return Err(argument("its storage", "a tuple of 5", id));
    };
    if pickle.str_bytes(tag) != Some(b"storage") {
        return Err(argument("its storage's tag", "'storage'", tag));
    }
    let dtype = class_of(class).dtype(pickle, class)?;
    let key_text = match (pickle.node(key), pickle.str_bytes(key)) {
        // A package counts its storages, and calls their records so.
        (Node::Int(number), _) => Cow::Owned(format!("{number}.storage")),
        (_, Some(bytes)) => Cow::Borrowed(
            std::str::from_utf8(bytes).map_err(|_| argument("its storage's key", "UTF-8", key))?,
        ),
        (_, None) => return Err(argument("its storage's key", "a string", key)),
    };
    let device = pickle
        .str_bytes(device)
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    let numel = pickle
        .int(numel)
        .ok_or_else(|| argument("its storage's size", "an integer", numel))?;
    let count = u64::try_from(numel).map_err(|_| TensorFault::Negative {
        what: "its storage's size",
        value: numel,
    })?;
    // Packed types count bytes here, not values; untyped storages too.
    let item = dtype.map_or(1, DType::item_bytes);
    Ok(Declared {
        key: key_text,
        dtype,
        bytes: count.checked_mul(item).ok_or(TensorFault::TooLarge)?,
        device,
        view: view_of(pickle, pickle.items(id).get(5).copied())?,
    })
}

/// Reads `('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4)`; `None` when it is nothing like that.
fn declared_in_text(text: &[u8]) -> Option<Result<Declared<'_>, TensorFault>> {
    let text = std::str::from_utf8(text).ok()?;
    let rest = text.strip_prefix("('storage', <class '")?;
    let (class, rest) = rest.split_once("'>, '")?;
    let (key, rest) = rest.split_once("', '")?;
    let (device, rest) = rest.split_once("', ")?;
    let numel: i64 = rest.trim_end_matches(')').split(',').next()?.parse().ok()?;
    let (module, name) = class.rsplit_once('.')?;
    let dtype = match StorageClass::of(module, name) {
        StorageClass::Typed(dtype) => Some(dtype),
        StorageClass::Untyped => None,
        StorageClass::No => return Some(Err(TensorFault::UnknownDType(cut(class)))),
    };
    let Ok(count) = u64::try_from(numel) else {
        return Some(Err(TensorFault::Negative {
            what: "its storage's size",
            value: numel,
        }));
    };
    let bytes = count.checked_mul(dtype.map_or(1, DType::item_bytes));
    Some(bytes.ok_or(TensorFault::TooLarge).map(|bytes| Declared {
        key: key.into(),
        dtype,
        bytes,
        device: Some(device),
        view: None,
    }))
}

/// The view that a legacy file adds to a storage: `(key, offset, numel)`, or `None`.
fn view_of(pickle: &Pickle<'_>, view: Option<NodeId>) -> Result<Option<(u64, u64)>, TensorFault> {
    let Some(view) = view.filter(|v| !matches!(pickle.node(*v), Node::None)) else {
        return Ok(None);
    };
    let natural = |id| pickle.int(id).and_then(|n| u64::try_from(n).ok());
    let parts = match *pickle.items(view) {
        [_key, offset, numel] => natural(offset).zip(natural(numel)),
        _ => None,
    };
    parts.map(Some).ok_or_else(|| TensorFault::Argument {
        what: "its storage's view",
        expected: "(key, offset, numel)",
        found: pickle.repr(view),
    })
}

/// The dtype of a storage class; `None` for untyped ones.
pub(crate) fn storage_dtype(
    pickle: &Pickle<'_>,
    class: NodeId,
) -> Result<Option<DType>, TensorFault> {
    StorageClass::named(pickle, class).dtype(pickle, class)
}

/// What a global is as a class of storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StorageClass {
    /// Not one.
    #[default]
    No,
    /// One without a dtype.
    Untyped,
    /// One of values of this dtype.
    Typed(DType),
}

impl StorageClass {
    /// By module and name.
    pub(crate) fn of(module: &str, name: &str) -> StorageClass {
        if matches!(module, "torch.storage" | "torch")
            && matches!(name, "UntypedStorage" | "_UntypedStorage")
        {
            return StorageClass::Untyped;
        }
        if !matches!(module, "torch" | "torch.cuda" | "torch.storage") {
            return StorageClass::No;
        }
        name.strip_suffix("Storage")
            .and_then(class_dtype)
            .map_or(StorageClass::No, StorageClass::Typed)
    }

    /// What a value of a pickle is.
    pub(crate) fn named(pickle: &Pickle<'_>, class: NodeId) -> StorageClass {
        let names = pickle.global(class);
        names.map_or(StorageClass::No, |(module, name)| {
            StorageClass::of(&module, &name)
        })
    }

    /// The dtype, or why `class` has none.
    fn dtype(self, pickle: &Pickle<'_>, class: NodeId) -> Result<Option<DType>, TensorFault> {
        match self {
            StorageClass::Typed(dtype) => Ok(Some(dtype)),
            StorageClass::Untyped => Ok(None),
            StorageClass::No => Err(match pickle.global(class) {
                Some((module, name)) => {
                    TensorFault::UnknownDType(format!("{}.{}", cut(&module), cut(&name)))
                }
                None => TensorFault::Argument {
                    what: "its storage's class",
                    expected: "a class of torch",
                    found: pickle.kind(class),
                },
            }),
        }
    }
}

/// The classes of storages with a dtype, without `Storage`: those that Python has, then what only TorchScript writes
/// (`c10::toString` of the scalar type).
const CLASSES: [(&str, DType); 46] = [
    ("Float", DType::Float32),
    ("Double", DType::Float64),
    ("Half", DType::Float16),
    ("BFloat16", DType::BFloat16),
    ("Byte", DType::UInt8),
    ("Char", DType::Int8),
    ("Short", DType::Int16),
    ("Int", DType::Int32),
    ("Long", DType::Int64),
    ("Bool", DType::Bool),
    ("ComplexHalf", DType::Complex32),
    ("ComplexFloat", DType::Complex64),
    ("ComplexDouble", DType::Complex128),
    ("QInt8", DType::QInt8),
    ("QUInt8", DType::QUInt8),
    ("QInt32", DType::QInt32),
    ("QUInt4x2", DType::QUInt4x2),
    ("QUInt2x4", DType::QUInt2x4),
    ("Float8_e4m3fn", DType::Float8E4M3Fn),
    ("Float8_e5m2", DType::Float8E5M2),
    ("Float8_e4m3fnuz", DType::Float8E4M3Fnuz),
    ("Float8_e5m2fnuz", DType::Float8E5M2Fnuz),
    ("Float8_e8m0fnu", DType::Float8E8M0Fnu),
    ("Float4_e2m1fn_x2", DType::Float4E2M1FnX2),
    ("UInt16", DType::UInt16),
    ("UInt32", DType::UInt32),
    ("UInt64", DType::UInt64),
    ("Bits1x8", DType::Bits1x8),
    ("Bits2x4", DType::Bits2x4),
    ("Bits4x2", DType::Bits4x2),
    ("Bits8", DType::Bits8),
    ("Bits16", DType::Bits16),
    ("UInt1", DType::UInt1),
    ("UInt2", DType::UInt2),
    ("UInt3", DType::UInt3),
    ("UInt4", DType::UInt4),
    ("UInt5", DType::UInt5),
    ("UInt6", DType::UInt6),
    ("UInt7", DType::UInt7),
    ("Int1", DType::Int1),
    ("Int2", DType::Int2),
    ("Int3", DType::Int3),
    ("Int4", DType::Int4),
    ("Int5", DType::Int5),
    ("Int6", DType::Int6),
    ("Int7", DType::Int7),
];

fn class_dtype(prefix: &str) -> Option<DType> {
    let found = CLASSES.iter().find(|(class, _)| *class == prefix);
    found.map(|(_, dtype)| *dtype)
}

/// The class of the storages of a dtype, `FloatStorage`, where there is one.
pub(crate) fn class_name(dtype: DType) -> Option<String> {
    let found = CLASSES.iter().find(|(_, of)| *of == dtype);
    found.map(|(class, _)| format!("{class}Storage"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_class_of_storages() {
        for dtype in DType::ALL {
            let class = class_name(*dtype).unwrap();
            let read = StorageClass::of("torch", &class);
            assert_eq!(read, StorageClass::Typed(*dtype), "{class}");
        }
        let float8 = StorageClass::of("torch", "Float8_e4m3fnStorage");
        assert_eq!(float8, StorageClass::Typed(DType::Float8E4M3Fn));
        assert_eq!(StorageClass::of("torch", "Float9Storage"), StorageClass::No);
    }
}
