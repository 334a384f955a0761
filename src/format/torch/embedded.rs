//! Storages inside a pickle that Python's own `pickle.dump` wrote.
//!
//! A storage pickles itself as `torch.storage._load_from_bytes(BYTES)`, where BYTES is what `torch.save` writes for one
//! storage: a legacy stream, or a zip. Loading runs `torch.load` on them, so whatever such bytes name counts in full;
//! only where they are understood is the call nothing to worry about.

use std::collections::HashMap;

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::{GlobalId, Node, NodeId, Pickle, cut};
use super::archive::TorchArchive;
use super::globals::{Known, known};
use super::legacy;
use super::security::Watch;
use super::storage::{Declared, Records, StorageClass, declared_storage};
use crate::checkpoint::{ByteOrder, StorageData, StorageParts};

/// A storage that a call in the pickle would load.
#[derive(Debug)]
struct Entry {
    /// What the storage table knows it by.
    key: String,
    parts: StorageParts,
}

/// The storages inside one pickle.
#[derive(Debug, Default)]
pub(crate) struct Embedded {
    entries: Vec<Entry>,
    /// Which entry a call makes.
    by_call: HashMap<NodeId, usize, foldhash::fast::RandomState>,
    by_key: HashMap<String, usize, foldhash::fast::RandomState>,
    /// The byte order that all of them have.
    pub(super) byte_order: Option<ByteOrder>,
    /// The function, where every mention of it is a call that was understood.
    pub(super) vouched: Option<GlobalId>,
}

impl Embedded {
    /// The storage that a call makes, as a pickle of `torch.save` would declare it.
    pub(super) fn declared(&self, call: NodeId) -> Option<Declared<'_>> {
        let entry = self.entries.get(*self.by_call.get(&call)?)?;
        Some(Declared {
            key: entry.key.as_str().into(),
            dtype: entry.parts.dtype,
            bytes: entry.parts.bytes,
            device: entry.parts.device.as_deref(),
            view: None,
        })
    }

    /// Bytes that all of them take up in the file.
    pub(super) fn file_bytes(&self) -> u64 {
        let sizes = self.entries.iter().map(|entry| entry.parts.file_bytes);
        sizes.fold(0, u64::saturating_add)
    }

    /// Finds and opens every storage in a pickle.
    pub(super) fn find(pickle: &Pickle<'_>, watch: &mut Watch) -> Result<Embedded, FormatError> {
        let mut embedded = Embedded::default();
        let Some(function) = pickle.globals().find(|id| {
            pickle
                .global_name(*id)
                .is_some_and(|(module, name)| known(&module, &name) == Known::LoadFromBytes)
        }) else {
            return Ok(embedded);
        };
        // Bytes that several calls share are one storage.
        let mut opened: HashMap<NodeId, usize, foldhash::fast::RandomState> = HashMap::default();
        for id in pickle.ids() {
            let Node::Reduce { callable, args } = pickle.node(id) else {
                continue;
            };
            if pickle.node(callable) != Node::Global(function) {
                continue;
            }
            let [argument] = *pickle.items(args) else {
                continue;
            };
            let place = match opened.get(&argument) {
                Some(place) => *place,
                None => match Bytes::of(pickle, argument) {
                    Some(bytes) => {
                        let place = embedded.open(&bytes, watch)?;
                        opened.insert(argument, place);
                        place
                    }
                    None => continue,
                },
            };
            embedded.by_call.insert(id, place);
        }
        let only_called = pickle
            .ids()
            .all(|id| embedded.is_call_of(pickle, id, function));
        embedded.vouched = only_called.then_some(function);
        Ok(embedded)
    }

    /// Whether a value does nothing with the function but call it as understood.
    fn is_call_of(&self, pickle: &Pickle<'_>, id: NodeId, function: GlobalId) -> bool {
        let names = |id: NodeId| pickle.node(id) == Node::Global(function);
        let inside = [
            pickle.items(id),
            pickle.pairs(id),
            pickle.appended_items(id),
            pickle.assigned_pairs(id),
        ];
        if inside.iter().any(|list| list.iter().any(|id| names(*id)))
            || pickle.state(id).is_some_and(names)
        {
            return false;
        }
        match pickle.node(id) {
            Node::Reduce { callable, args } => {
                !names(args) && (!names(callable) || self.by_call.contains_key(&id))
            }
            Node::New { class, args: other } | Node::NewEx { class, both: other } => {
                !names(class) && !names(other)
            }
            Node::Persistent(id) => !names(id),
            _ => id != pickle.root() || !names(id),
        }
    }

    /// Opens what `torch.save` wrote for one storage.
    fn open(&mut self, bytes: &Bytes<'_>, watch: &mut Watch) -> Result<usize, FormatError> {
        let inner = bytes.contents();
        let (mut parts, byte_order) = if inner.starts_with(b"PK") {
            TorchArchive::open(inner)?.read_storage(watch)?
        } else {
            legacy::read_storage(inner, watch)?
        };
        let data = match parts.data {
            StorageData::Raw { offset } | StorageData::Deflated { offset } => offset,
            StorageData::Absent | StorageData::Text => 0,
        };
        parts.member = match bytes {
            Bytes::Raw { offset, .. } => {
                let start = offset.saturating_add(data);
                parts.data = match parts.data {
                    StorageData::Raw { .. } => StorageData::Raw { offset: start },
                    StorageData::Deflated { .. } => StorageData::Deflated { offset: start },
                    other => other,
                };
                let end = start.saturating_add(parts.file_bytes);
                compact_str::format_compact!("{start}:{end}")
            }
            Bytes::Text { encoding, .. } => {
                let range = usize::try_from(data)
                    .ok()
                    .zip(usize::try_from(parts.file_bytes).ok());
                let stored = range.and_then(|(start, len)| inner.get(start..)?.get(..len));
                parts.file_bytes = encoding.length(stored.unwrap_or(&[]));
                parts.data = StorageData::Text;
                compact_str::format_compact!("text {}", self.entries.len())
            }
        };
        self.byte_order = match (self.entries.len(), self.byte_order) {
            (0, _) => byte_order,
            (_, known) => known.filter(|known| Some(*known) == byte_order),
        };
        let place = self.entries.len();
        let key = parts.member.to_string();
        self.by_key.insert(key.clone(), place);
        self.entries.push(Entry { key, parts });
        Ok(place)
    }
}

impl Records for Embedded {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        let place = self.by_key.get(&*declared.key);
        let entry = place.and_then(|place| self.entries.get(*place));
        entry
            .map(|entry| entry.parts.clone())
            .ok_or_else(|| TensorFault::NoRecord(cut(&declared.key)))
    }
}

/// An argument that is bytes, as Python 2 and 3 pickle them.
enum Bytes<'p> {
    /// As they are, from this byte of the pickle on.
    Raw { offset: u64, contents: &'p [u8] },
    /// As text of as many characters: protocols 0 to 2 have no bytes.
    Text {
        contents: Vec<u8>,
        encoding: Encoding,
    },
}

/// How a pickle writes the text that bytes are kept as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// Protocols 1 and 2.
    Utf8,
    /// Protocol 0: a line, with what would end it or mean something as `\u000a`.
    Line,
}

impl Encoding {
    /// Bytes that this text takes up.
    fn length(self, contents: &[u8]) -> u64 {
        let one = |byte: &u8| match (self, byte) {
            (Encoding::Utf8, 0x80..) => 2,
            (Encoding::Line, b'\\' | b'\0' | b'\n' | b'\r' | 0x1a) => 6,
            _ => 1,
        };
        contents.iter().map(one).fold(0, u64::saturating_add)
    }
}

impl<'p> Bytes<'p> {
    fn of(pickle: &'p Pickle<'_>, id: NodeId) -> Option<Bytes<'p>> {
        // Bytes, or the string of Python 2.
        if let Some((offset, contents)) = pickle.span_of(id) {
            return Some(Bytes::Raw { offset, contents });
        }
        let Node::Reduce { callable, args } = pickle.node(id) else {
            return None;
        };
        let [text, encoding] = *pickle.items(args) else {
            return None;
        };
        let by_codecs = pickle.is_global(callable, "_codecs", "encode");
        if !by_codecs || pickle.str_bytes(encoding) != Some(b"latin1") {
            return None;
        }
        let line = matches!(pickle.node(text), Node::Decoded(_));
        let contents: Option<Vec<u8>> = std::str::from_utf8(pickle.str_bytes(text)?)
            .ok()?
            .chars()
            .map(|c| u8::try_from(u32::from(c)).ok())
            .collect();
        Some(Bytes::Text {
            contents: contents?,
            encoding: if line { Encoding::Line } else { Encoding::Utf8 },
        })
    }

    fn contents(&self) -> &[u8] {
        match self {
            Bytes::Raw { contents, .. } => contents,
            Bytes::Text { contents, .. } => contents,
        }
    }
}

/// The storage that the root of a stream is.
pub(super) fn storage_of_root(
    pickle: &Pickle<'_>,
    records: &dyn Records,
    stream: &str,
) -> Result<StorageParts, FormatError> {
    let class_of = |class| StorageClass::named(pickle, class);
    let declared = declared_storage(pickle, pickle.root(), class_of);
    let parts = declared.and_then(|declared| {
        let mut parts = records.locate(&declared)?;
        // What the outer pickle sees is as long as the storage says it is.
        if let StorageData::Raw { .. } = parts.data {
            parts.file_bytes = declared.bytes;
            parts.bytes = declared.bytes;
        }
        parts.crc32 = None;
        Ok(parts)
    });
    parts.map_err(|fault| FormatError::Tensor {
        member: stream.to_owned(),
        name: String::new(),
        fault,
    })
}

/// What messages call a stream inside the pickle.
pub(super) const STREAM: &str = "a storage in the pickle";
