//! `.metadata`: what a distributed checkpoint holds, and which file has which piece of it.
//!
//! | object | what it says |
//! |---|---|
//! | `Metadata` | `state_dict_metadata`: name → tensor or bytes; `storage_data`: `MetadataIndex` → `_StorageInfo` |
//! | `TensorStorageMetadata` | `properties`, `size` (of the whole), `chunks` |
//! | `TensorProperties` | a tuple: dtype, layout, `requires_grad`, memory format, `pin_memory` |
//! | `ChunkStorageMetadata` | `offsets` and `sizes` of a piece |
//! | `BytesStorageMetadata` | an object that is no tensor |
//! | `MetadataIndex` | `fqn`, `offset` of the piece (`None` for bytes), `index` (a hint for searching) |
//! | `_StorageInfo` | `relative_path`, `offset`, `length`, `transform_descriptors` where the bytes are packed |
//!
//! `planner_data` and `storage_meta` say how the `state_dict` was flattened and who saved it: they are not needed.
//! (PyTorch 2.11, `torch/distributed/checkpoint/metadata.py` and `filesystem.py`.)

use super::super::super::error::{FormatError, TensorFault};
use super::super::super::pickle::{Node, NodeId, Pickle, cut};
use super::super::super::torch::rebuild::Graph;
use crate::limits;
use crate::tensor::{DType, Dims};

/// What the file is called in messages.
pub(super) const STREAM: &str = ".metadata";

/// What the metadata says.
#[derive(Debug)]
pub(super) struct Metadata<'p> {
    /// Everything by name, in order.
    pub(super) items: Vec<Item<'p>>,
    /// Where the pieces are, in order.
    pub(super) stored: Vec<Stored<'p>>,
    /// The version of the layout, where it says.
    pub(super) version: Option<String>,
}

/// A name of the checkpoint.
#[derive(Debug)]
pub(super) struct Item<'p> {
    pub(super) name: &'p str,
    /// `None` for an object that is no tensor.
    pub(super) tensor: Option<TensorFacts>,
}

/// A tensor as a whole.
#[derive(Debug)]
pub(super) struct TensorFacts {
    pub(super) dtype: DType,
    pub(super) shape: Dims,
    pub(super) requires_grad: Option<bool>,
    pub(super) chunks: Vec<ChunkFacts>,
}

/// A piece of a tensor, inside the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChunkFacts {
    pub(super) offsets: Dims,
    pub(super) sizes: Dims,
}

/// Where a piece, or an object, is.
#[derive(Debug)]
pub(super) struct Stored<'p> {
    pub(super) name: &'p str,
    /// `None` for objects that are no tensors.
    pub(super) offsets: Option<Dims>,
    pub(super) file: &'p str,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// What the bytes were sent through; empty where they are as `torch.save` wrote them.
    pub(super) transforms: Vec<String>,
}

/// How much may still be read: a pickle can refer to one list a million times.
struct Reader<'p, 'a> {
    graph: &'p Graph<'p, 'a>,
    entries_left: usize,
    name_bytes_left: u64,
}

impl<'p> Metadata<'p> {
    /// Reads the pickle. `graph` is that of the whole pickle.
    pub(super) fn of(graph: &'p Graph<'p, '_>) -> Result<Metadata<'p>, FormatError> {
        let bytes = graph.pickle.consumed();
        let mut reader = Reader {
            graph,
            entries_left: limits::DCP_ENTRIES.saturating_add(bytes / limits::DCP_BYTES_PER_ENTRY),
            name_bytes_left: limits::NAME_BYTES
                .saturating_add((bytes as u64).saturating_mul(limits::NAME_BYTES_PER_BYTE)),
        };
        let pickle = graph.pickle;
        let state = reader.state(pickle.root(), "Metadata", "the object")?;
        let names = reader.field(state, "state_dict_metadata", "the object")?;
        let mut items = Vec::new();
        for (key, value) in reader.dictionary(names, "`state_dict_metadata`")? {
            items.push(reader.item(key, value)?);
        }
        let places = reader.field(state, "storage_data", "the object")?;
        let mut stored = Vec::new();
        for (key, value) in reader.dictionary(places, "`storage_data`")? {
            stored.push(reader.stored(key, value)?);
        }
        let version = pickle.get(state, "version");
        Ok(Metadata {
            items,
            stored,
            version: version.and_then(|v| pickle.text(v)).map(|text| cut(&text)),
        })
    }
}

/// Fields of one object: its dictionary is searched one by one.
const MAX_FIELDS: usize = 32;

impl<'p, 'a> Reader<'p, 'a> {
    fn pickle(&self) -> &'p Pickle<'a> {
        self.graph.pickle
    }

    fn unexpected(&self, part: &str, expected: &str, found: NodeId) -> FormatError {
        FormatError::Structure {
            part: format!("in `{STREAM}`: {}", cut(part)),
            expected: expected.to_owned(),
            found: cut(&self.graph.pickle.kind(found)),
        }
    }

    fn count_entry(&mut self) -> Result<(), FormatError> {
        self.entries_left = self.entries_left.checked_sub(1).ok_or(FormatError::Limit {
            what: format!("in `{STREAM}`: the names, chunks and places"),
            limit: limits::DCP_ENTRIES as u64,
        })?;
        Ok(())
    }

    /// Whether a value is an object of one of the classes that the metadata is made of.
    fn is_a(&self, node: NodeId, class_name: &str) -> bool {
        let class = match self.graph.pickle.node(node) {
            Node::New { class, .. } | Node::NewEx { class, .. } => class,
            Node::Reduce { callable, .. } => callable,
            _ => return false,
        };
        let named = self.graph.pickle.global(class);
        named.is_some_and(|(module, name)| {
            let ours = [
                "torch.distributed.checkpoint.",
                "torch.distributed._shard.checkpoint.",
            ];
            name == class_name && ours.iter().any(|package| module.starts_with(package))
        })
    }

    /// The attributes of an object of this class.
    fn state(&self, node: NodeId, class: &str, part: &str) -> Result<NodeId, FormatError> {
        if !self.is_a(node, class) {
            let expected = format!("an object of torch.distributed.checkpoint's `{class}`");
            return Err(self.unexpected(part, &expected, node));
        }
        let state = self.graph.pickle.state(node);
        state.ok_or_else(|| self.unexpected(part, &format!("the attributes of a `{class}`"), node))
    }

    fn field(&self, state: NodeId, name: &str, part: &str) -> Result<NodeId, FormatError> {
        let pickle = self.graph.pickle;
        let expected = format!("an attribute `{name}`");
        if pickle.pairs(state).len() > MAX_FIELDS * 2 {
            return Err(self.unexpected(part, &format!("at most {MAX_FIELDS} attributes"), state));
        }
        let found = pickle.get(state, name);
        found.ok_or_else(|| self.unexpected(part, &expected, state))
    }

    fn dictionary(&self, node: NodeId, part: &str) -> Result<Vec<(NodeId, NodeId)>, FormatError> {
        let pickle = self.graph.pickle;
        match pickle.node(node) {
            Node::Dict(_) => Ok(pickle.entries(pickle.pairs(node))),
            _ => Err(self.unexpected(part, "a dictionary", node)),
        }
    }

    /// A string, which counts towards the bytes of all names.
    fn name(&mut self, node: NodeId, part: &str) -> Result<&'p str, FormatError> {
        let pickle = self.pickle();
        let bytes = pickle.str_bytes(node);
        let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| self.unexpected(part, "a string", node))?;
        let left = self.name_bytes_left.checked_sub(text.len() as u64);
        self.name_bytes_left = left.ok_or(FormatError::Limit {
            what: format!("in `{STREAM}`: the names of all tensors, in bytes,"),
            limit: limits::NAME_BYTES,
        })?;
        Ok(text)
    }

    fn item(&mut self, key: NodeId, value: NodeId) -> Result<Item<'p>, FormatError> {
        self.count_entry()?;
        let name = self.name(key, "a name in `state_dict_metadata`")?;
        if self.is_a(value, "BytesStorageMetadata") {
            return Ok(Item { name, tensor: None });
        }
        let part = format!("`{}`", cut(name));
        let state = self.state(value, "TensorStorageMetadata", &part)?;
        let fault = |fault| tensor_fault(name, fault);
        let size = self.field(state, "size", &part)?;
        let shape = self.graph.dims("its size", size).map_err(fault)?;
        let (dtype, requires_grad) = self.properties(state, name, &part)?;
        let list = self.field(state, "chunks", &part)?;
        if !matches!(self.pickle().node(list), Node::List(_) | Node::Tuple(_)) {
            return Err(self.unexpected(&format!("the chunks of {part}"), "a list", list));
        }
        let mut chunks = Vec::new();
        let pickle = self.pickle();
        for chunk in pickle.items(list) {
            self.count_entry()?;
            chunks.push(self.chunk(*chunk, name, &shape)?);
        }
        let tensor = TensorFacts {
            dtype,
            shape,
            requires_grad,
            chunks,
        };
        Ok(Item {
            name,
            tensor: Some(tensor),
        })
    }

    fn properties(
        &self,
        state: NodeId,
        name: &str,
        part: &str,
    ) -> Result<(DType, Option<bool>), FormatError> {
        let properties = self.field(state, "properties", part)?;
        let tuple = self.state(properties, "TensorProperties", part)?;
        let [dtype, _layout, requires_grad, ..] = *self.pickle().items(tuple) else {
            return Err(self.unexpected(part, "a tuple of 5 properties", tuple));
        };
        let dtype = self.graph.dtype(dtype);
        let dtype = dtype.map_err(|fault| tensor_fault(name, fault))?;
        Ok((dtype, self.pickle().bool(requires_grad)))
    }

    fn chunk(&self, node: NodeId, name: &str, shape: &[u64]) -> Result<ChunkFacts, FormatError> {
        let part = format!("a chunk of `{}`", cut(name));
        let state = self.state(node, "ChunkStorageMetadata", &part)?;
        let dims = |field: &'static str, what: &'static str| {
            let node = self.field(state, field, &part)?;
            let dims = self.graph.dims(what, node);
            dims.map_err(|fault| tensor_fault(name, fault))
        };
        let chunk = ChunkFacts {
            offsets: dims("offsets", "the offsets of a chunk")?,
            sizes: dims("sizes", "the sizes of a chunk")?,
        };
        let inside = chunk.offsets.len() == shape.len()
            && chunk.sizes.len() == shape.len()
            && chunk
                .ends()
                .zip(shape)
                .all(|(end, size)| end.is_some_and(|end| end <= *size));
        if inside {
            return Ok(chunk);
        }
        Err(FormatError::Structure {
            part: format!("in `{STREAM}`: {part}"),
            expected: format!("a part of the shape {}", sizes_text(shape)),
            found: chunk.to_string(),
        })
    }

    fn stored(&mut self, key: NodeId, value: NodeId) -> Result<Stored<'p>, FormatError> {
        self.count_entry()?;
        let part = "a key of `storage_data`";
        let index = self.state(key, "MetadataIndex", part)?;
        let fqn = self.field(index, "fqn", part)?;
        let name = self.name(fqn, part)?;
        let part = format!("where `{}` is", cut(name));
        // A class attribute where it is not set: the dictionary lacks it then.
        let offsets = match self.pickle().get(index, "offset") {
            None => None,
            Some(none) if self.pickle().node(none) == Node::None => None,
            Some(offsets) => {
                let dims = self.graph.dims("the offset of a chunk", offsets);
                Some(dims.map_err(|fault| tensor_fault(name, fault))?)
            }
        };
        let info = self.state(value, "_StorageInfo", &part)?;
        let file = self.field(info, "relative_path", &part)?;
        let file = self.name(file, &part)?;
        let number = |field: &str| {
            let node = self.field(info, field, &part)?;
            let value = self.pickle().int(node).and_then(|n| u64::try_from(n).ok());
            value.ok_or_else(|| {
                let what = format!("`{field}` of the place of `{}`", cut(name));
                FormatError::Structure {
                    part: format!("in `{STREAM}`: {what}"),
                    expected: "a natural number of 64 bits".to_owned(),
                    found: cut(&self.pickle().repr(node)),
                }
            })
        };
        Ok(Stored {
            name,
            offsets,
            file,
            offset: number("offset")?,
            bytes: number("length")?,
            transforms: self.transforms(info),
        })
    }

    fn transforms(&self, info: NodeId) -> Vec<String> {
        let Some(list) = self.pickle().get(info, "transform_descriptors") else {
            return Vec::new();
        };
        let names = self.pickle().items(list).iter().take(MAX_FIELDS);
        let names: Vec<String> = names
            .map(|name| cut(&self.pickle().key_text(*name)))
            .collect();
        match self.pickle().node(list) {
            Node::None => names,
            Node::List(_) | Node::Tuple(_) if self.pickle().items(list).is_empty() => names,
            // Something, though it is no list of names.
            _ if names.is_empty() => vec![cut(&self.pickle().kind(list))],
            _ => names,
        }
    }
}

impl ChunkFacts {
    /// One past the last place in every dimension; `None` where that exceeds 64 bits.
    pub(super) fn ends(&self) -> impl Iterator<Item = Option<u64>> {
        let pairs = self.offsets.iter().zip(&self.sizes);
        pairs.map(|(offset, size)| offset.checked_add(*size))
    }
}

impl std::fmt::Display for ChunkFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (sizes, offsets) = (sizes_text(&self.sizes), sizes_text(&self.offsets));
        write!(f, "{sizes} at {offsets}")
    }
}

/// `[4, 3]`.
pub(super) fn sizes_text(sizes: &[u64]) -> String {
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

fn tensor_fault(name: &str, fault: TensorFault) -> FormatError {
    FormatError::Tensor {
        member: STREAM.to_owned(),
        name: cut(name),
        fault,
    }
}
