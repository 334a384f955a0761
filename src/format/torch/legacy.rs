//! `torch.save` from 0.1.10 to 1.5: a stream of pickles, then the storages.
//!
//! | part | what it is |
//! |---|---|
//! | pickle | the magic number 0x1950a86a20f9469cfc6c |
//! | pickle | the protocol version, 1001 |
//! | pickle | a dictionary: byte order, sizes of C types |
//! | pickle | the object; persistent ids are `('storage', class, key, device, numel, view)` |
//! | pickle | the list of keys, in the order of the storages |
//! | for each key | the number of elements (8 bytes), then the elements |

use std::collections::HashMap;

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::{Node, Pickle, cut, parse};
use super::embedded::{STREAM, storage_of_root};
use super::rebuild::Graph;
use super::rows::{Place, Rows};
use super::security::{Reach, Watch};
use super::storage::{Declared, Records, StorageClass, StorageTable, declared_storage};
use super::value::{Inputs, convert};
use super::walk::{Context, walk};
use crate::checkpoint::{
    ByteOrder, Checkpoint, CheckpointParts, Format, Severity, StorageData, StorageParts, Verdict,
};
use crate::tensor::DType;

/// Where each storage's elements are.
struct Stream {
    by_key: HashMap<String, Place64>,
}

/// A storage's elements in the file.
#[derive(Debug, Clone, Copy)]
struct Place64 {
    offset: u64,
    bytes: u64,
}

impl Records for Stream {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        let place = self
            .by_key
            .get(&*declared.key)
            .ok_or_else(|| TensorFault::NoRecord(cut(&declared.key)))?;
        if place.bytes != declared.bytes {
            return Err(TensorFault::ShortRecord {
                member: cut(&declared.key),
                needed_bytes: declared.bytes,
                record_bytes: place.bytes,
            });
        }
        Ok(StorageParts {
            dtype: declared.dtype,
            bytes: place.bytes,
            file_bytes: place.bytes,
            device: declared.device.map(Into::into),
            member: (&*declared.key).into(),
            data: StorageData::Raw {
                offset: place.offset,
            },
            crc32: None,
        })
    }
}

/// A position in the stream of pickles.
pub(crate) struct Cursor<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) position: usize,
}

impl<'a> Cursor<'a> {
    /// The next pickle of the stream; what it names is looked at.
    pub(crate) fn pickle(
        &mut self,
        what: &str,
        watch: &mut Watch,
    ) -> Result<Pickle<'a>, FormatError> {
        let pickle = self.parse(what)?;
        watch.look(&pickle, what, Reach::Loaded);
        Ok(pickle)
    }

    /// The next pickle of the stream.
    pub(super) fn parse(&mut self, what: &str) -> Result<Pickle<'a>, FormatError> {
        let rest = self.data.get(self.position..).unwrap_or(&[]);
        if rest.is_empty() {
            return Err(FormatError::Truncated {
                what: what.to_owned(),
                needed_bytes: (self.data.len() as u64).saturating_add(1),
                file_bytes: self.data.len() as u64,
            });
        }
        let pickle = parse(rest).map_err(|source| {
            super::pickle_error(&format!("{what}, at byte {}", self.position), source)
        })?;
        self.position = self.position.saturating_add(pickle.consumed());
        Ok(pickle)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], FormatError> {
        let rest = self.data.get(self.position..).unwrap_or(&[]);
        let Some((bytes, _)) = rest.split_first_chunk::<N>() else {
            return Err(FormatError::Truncated {
                what: what.to_owned(),
                needed_bytes: (self.position as u64).saturating_add(N as u64),
                file_bytes: self.data.len() as u64,
            });
        };
        self.position = self.position.saturating_add(N);
        Ok(*bytes)
    }

    /// Passes over `bytes` bytes of data.
    pub(super) fn skip(&mut self, bytes: u64, what: &str) -> Result<(), FormatError> {
        let end = (self.position as u64).saturating_add(bytes);
        if end > self.data.len() as u64 {
            return Err(FormatError::Truncated {
                what: what.to_owned(),
                needed_bytes: end,
                file_bytes: self.data.len() as u64,
            });
        }
        self.position = usize::try_from(end).unwrap_or(usize::MAX);
        Ok(())
    }
}

/// The parts of a legacy file before the storages.
struct Opening<'a> {
    cursor: Cursor<'a>,
    byte_order: Option<ByteOrder>,
    object_start: usize,
    object: Pickle<'a>,
    stream: Stream,
}

fn open<'a>(data: &'a [u8], watch: &mut Watch) -> Result<Opening<'a>, FormatError> {
    let mut cursor = Cursor { data, position: 0 };
    cursor.pickle("the magic number", watch)?;
    let version = cursor.pickle("the protocol version", watch)?;
    if version.int(version.root()) != Some(1001) {
        return Err(FormatError::Structure {
            part: "the protocol version".to_owned(),
            expected: "1001".to_owned(),
            found: cut(&version.repr(version.root())),
        });
    }
    let system = cursor.pickle("the system information", watch)?;
    let byte_order = system
        .get(system.root(), "little_endian")
        .and_then(|id| system.bool(id))
        .map(|little| {
            if little {
                ByteOrder::Little
            } else {
                ByteOrder::Big
            }
        });
    let object_start = cursor.position;
    let object = cursor.pickle("the object", watch)?;
    let keys = cursor.pickle("the list of storages", watch)?;
    let stream = locate(&object, &keys, &mut cursor, byte_order)?;
    Ok(Opening {
        cursor,
        byte_order,
        object_start,
        object,
        stream,
    })
}

/// Reads the object of a legacy file as plain values.
pub(crate) fn read_inputs(data: &[u8]) -> Result<Inputs, FormatError> {
    let mut watch = Watch::default();
    let opening = open(data, &mut watch)?;
    let graph = Graph::new(&opening.object);
    let (value, storages) = convert(&graph, "the object", &opening.stream)?;
    Ok(Inputs {
        value,
        storages,
        byte_order: opening.byte_order,
        security: watch.finish().0,
    })
}

/// Reads a legacy stream whose object is one storage.
pub(super) fn read_storage(
    data: &[u8],
    watch: &mut Watch,
) -> Result<(StorageParts, Option<ByteOrder>), FormatError> {
    let opening = open(data, watch)?;
    trailing(&opening.cursor, watch);
    let storage = storage_of_root(&opening.object, &opening.stream, STREAM)?;
    Ok((storage, opening.byte_order))
}

/// Reads a legacy file.
pub(crate) fn read(data: &[u8]) -> Result<Checkpoint, FormatError> {
    let mut parts = CheckpointParts::new(Format::TorchLegacy, data.len() as u64);
    let mut watch = Watch::default();
    let Opening {
        cursor,
        byte_order,
        object_start,
        object,
        stream,
    } = open(data, &mut watch)?;
    parts.byte_order = byte_order;
    let stored = cursor.position.saturating_sub(object_start);
    let graph = Graph::new(&object);
    let mut rows = Rows::new(object.consumed() as u64);
    let mut table = StorageTable::default();
    let context = Context {
        member: "the object",
        records: &stream,
        table: &mut table,
        rows: &mut rows,
        classes: None,
    };
    parts.object = walk(&graph, context, "", Place::Plain)?;
    let in_storages: u64 = stream
        .by_key
        .values()
        .fold(0, |sum, place| sum.saturating_add(place.bytes));
    parts.pickle_bytes = (object_start as u64)
        .saturating_add(stored as u64)
        .saturating_sub(in_storages);
    let listed: u64 = table
        .storages()
        .iter()
        .fold(0, |sum, s| sum.saturating_add(s.file_bytes()));
    parts.unreferenced_bytes = in_storages.saturating_sub(listed);
    trailing(&cursor, &mut watch);
    let (security, findings) = watch.finish();
    super::finish_parts(&mut parts, table, rows, security, findings);
    Ok(Checkpoint::new(parts)?)
}

/// A storage as the object declares it.
#[derive(Debug, Clone, Copy)]
struct Size {
    /// Bytes of an element.
    item_bytes: u64,
    /// Bytes of all.
    bytes: u64,
}

/// The storages that the object refers to, by key.
fn declared_sizes(object: &Pickle<'_>) -> Result<HashMap<String, Size>, FormatError> {
    let mut declared = HashMap::new();
    for id in object.ids() {
        let Node::Persistent(tuple) = object.node(id) else {
            continue;
        };
        let in_text = object
            .str_bytes(tuple)
            .is_some_and(|text| text.starts_with(b"('storage'"));
        let is_storage = in_text
            || object
                .items(tuple)
                .first()
                .is_some_and(|tag| object.str_bytes(*tag) == Some(b"storage"));
        if !is_storage {
            continue;
        }
        let class_of = |class| StorageClass::named(object, class);
        let storage =
            declared_storage(object, id, class_of).map_err(|fault| FormatError::Tensor {
                member: "the object".to_owned(),
                name: String::new(),
                fault,
            })?;
        declared
            .entry(storage.key.clone().into_owned())
            .or_insert(Size {
                item_bytes: storage.dtype.map_or(1, DType::item_bytes),
                bytes: storage.bytes,
            });
    }
    Ok(declared)
}

/// Reads the number of elements in front of a storage, which must be what the object says.
fn check_count(
    cursor: &mut Cursor<'_>,
    size: Size,
    byte_order: Option<ByteOrder>,
    part: &str,
) -> Result<(), FormatError> {
    let stored = cursor.array::<8>(part)?;
    let fits = |count: i64| {
        let bytes = u64::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(size.item_bytes));
        bytes == Some(size.bytes)
    };
    // Files of big-endian machines exist with the count in either order: the one that fits the pickle is right.
    let big = byte_order == Some(ByteOrder::Big) && fits(i64::from_be_bytes(stored));
    if fits(i64::from_le_bytes(stored)) || big {
        return Ok(());
    }
    Err(FormatError::Structure {
        part: part.to_owned(),
        expected: format!(
            "{} elements, as the pickle says",
            size.bytes.checked_div(size.item_bytes).unwrap_or(0)
        ),
        found: i64::from_le_bytes(stored).to_string(),
    })
}

/// Finds every storage behind the list of keys.
fn locate(
    object: &Pickle<'_>,
    keys: &Pickle<'_>,
    cursor: &mut Cursor<'_>,
    byte_order: Option<ByteOrder>,
) -> Result<Stream, FormatError> {
    let declared = declared_sizes(object)?;
    let mut by_key = HashMap::new();
    for key in keys.items(keys.root()) {
        let name = keys.key_text(*key);
        let part = format!("storage `{}`", cut(&name));
        let Some(&size) = declared.get(&name) else {
            return Err(FormatError::Structure {
                part,
                expected: "a storage that the object refers to".to_owned(),
                found: "none".to_owned(),
            });
        };
        check_count(cursor, size, byte_order, &part)?;
        let place = Place64 {
            offset: cursor.position as u64,
            bytes: size.bytes,
        };
        cursor.skip(place.bytes, &part)?;
        if by_key.insert(name, place).is_some() {
            return Err(FormatError::Structure {
                part,
                expected: "each storage once".to_owned(),
                found: "it twice".to_owned(),
            });
        }
    }
    Ok(Stream { by_key })
}

/// What follows the last storage.
pub(crate) fn trailing(cursor: &Cursor<'_>, watch: &mut Watch) {
    let rest = cursor.data.get(cursor.position..).unwrap_or(&[]);
    if rest.is_empty() {
        return;
    }
    watch.raise(Verdict::Suspicious);
    watch.find(
        Severity::Warning,
        "trailing-data",
        &format!("byte {}", cursor.position),
        format!("{} bytes follow; PyTorch ignores them", rest.len()),
    );
    hidden_pickles(rest, "after the end", watch);
}

/// Looks at pickles in bytes that PyTorch does not read.
pub(super) fn hidden_pickles(rest: &[u8], stream: &str, watch: &mut Watch) {
    let mut rest = rest;
    for _ in 0..crate::limits::HIDDEN_PICKLES {
        match parse(rest) {
            Ok(pickle) if pickle.consumed() > 0 => {
                watch.look(&pickle, stream, Reach::Hidden);
                rest = rest.get(pickle.consumed()..).unwrap_or(&[]);
            }
            _ => return,
        }
    }
}
