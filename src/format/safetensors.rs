//! safetensors.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `n`, the header's length, little-endian |
//! | 8..8+n | JSON: name → `{"dtype", "shape", "data_offsets": [begin, end]}`, and `__metadata__` |
//! | 8+n.. | the data; tensors cover it without gap or overlap |

use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};

use super::error::FormatError;
use super::pickle::cut;
use super::torch::rebuild::View;
use super::torch::rows::{Place, Rows};
use crate::checkpoint::{
    ByteOrder, Checkpoint, CheckpointParts, Format, Layout, ObjectKind, Storage, StorageData,
    StorageId, StorageParts,
};
use crate::limits;
use crate::tensor::{self, DType, Dims};

/// One tensor as the header describes it.
#[derive(Debug, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header, in its own order.
#[derive(Debug, Default)]
struct Header {
    entries: Vec<(String, Entry)>,
    metadata: Vec<(String, String)>,
}

/// Reads a safetensors file.
pub(crate) fn read(data: &[u8]) -> Result<Checkpoint, FormatError> {
    let file_bytes = data.len() as u64;
    let (text, data_start) = header_text(data)?;
    let header = parse(text)?;
    let data_bytes = file_bytes.saturating_sub(data_start);
    check_cover(&header, data_bytes, file_bytes)?;
    let mut parts = CheckpointParts::new(Format::Safetensors, file_bytes);
    parts.byte_order = Some(ByteOrder::Little);
    parts.object = ObjectKind::StateDict;
    parts.pickle_bytes = data_start;
    let mut rows = Rows::new(data_start);
    for (index, (name, entry)) in header.entries.into_iter().enumerate() {
        let (dtype, shape) = meaning(&name, &entry)?;
        let (begin, end) = entry.data_offsets;
        let bytes = end.saturating_sub(begin);
        let strides = tensor::contiguous_strides(&shape).ok_or_else(|| overflow(&name))?;
        let id = StorageId::new(u32::try_from(index).unwrap_or(u32::MAX));
        parts.storages.push(Storage::new(StorageParts {
            dtype: Some(dtype),
            bytes,
            file_bytes: bytes,
            device: None,
            member: compact_str::format_compact!("{begin}:{end}"),
            data: StorageData::Raw {
                offset: data_start.saturating_add(begin),
            },
            crc32: None,
        }));
        let view = View {
            quantizer: None,
            dtype,
            shape,
            strides,
            storage: Some(id),
            storage_bytes: Some(bytes),
            offset: 0,
            requires_grad: None,
            layout: Layout::Strided,
        };
        rows.add("the header", &name, view, Place::StateDict, Layout::Strided)?;
    }
    parts.tensors = rows.tensors;
    parts.producer = header
        .metadata
        .iter()
        .find(|(key, _)| key == "format")
        .map(|(_, value)| cut(value));
    parts.metadata = header.metadata;
    Ok(Checkpoint::new(parts)?)
}

fn structure(part: &str, expected: impl Into<String>, found: impl Into<String>) -> FormatError {
    FormatError::Structure {
        part: part.to_owned(),
        expected: expected.into(),
        found: found.into(),
    }
}

fn header_text(data: &[u8]) -> Result<(&str, u64), FormatError> {
    let file_bytes = data.len() as u64;
    let Some((length, rest)) = data.split_first_chunk::<8>() else {
        return Err(structure(
            "the header's length",
            "8 bytes",
            format!("{file_bytes}"),
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > limits::SAFETENSORS_HEADER_BYTES {
        return Err(structure(
            "the header's length, at byte 0",
            format!("at most {}", limits::SAFETENSORS_HEADER_BYTES),
            length.to_string(),
        ));
    }
    let needed_bytes = length.saturating_add(8);
    let header = usize::try_from(length).ok().and_then(|n| rest.get(..n));
    let Some(header) = header else {
        return Err(FormatError::Truncated {
            what: "the safetensors header".to_owned(),
            needed_bytes,
            file_bytes,
        });
    };
    let text = std::str::from_utf8(header).map_err(|error| {
        structure(
            "the header",
            "UTF-8",
            format!(
                "other bytes at byte {}",
                error.valid_up_to().saturating_add(8)
            ),
        )
    })?;
    Ok((text, needed_bytes))
}

fn parse(text: &str) -> Result<Header, FormatError> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let visitor = HeaderVisitor {
        tensor: RefCell::new(None),
    };
    let fail = |error: serde_json::Error, tensor: Option<String>| {
        let part = tensor.map_or_else(
            || "the header".to_owned(),
            |name| format!("the header, tensor `{}`", cut(&name)),
        );
        structure(&part, "valid JSON of the format", cut(&error.to_string()))
    };
    let header = DeserializeSeed::deserialize(&visitor, &mut parser)
        .map_err(|error| fail(error, visitor.tensor.take()))?;
    // The header may be padded with spaces.
    parser.end().map_err(|error| fail(error, None))?;
    Ok(header)
}

struct HeaderVisitor {
    /// The tensor being read, for messages.
    tensor: RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for &HeaderVisitor {
    type Value = Header;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header::default();
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!(
                    "the name `{}` occurs twice",
                    cut(&key)
                )));
            }
            if key == "__metadata__" {
                header.metadata = map.next_value::<Metadata>()?.0;
                continue;
            }
            self.tensor.replace(Some(key.clone()));
            header.entries.push((key, map.next_value()?));
            self.tensor.replace(None);
        }
        Ok(header)
    }
}

/// String to string, in order, no name twice.
struct Metadata(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut pairs = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!(
                            "the metadata `{}` occurs twice",
                            cut(&key)
                        )));
                    }
                    pairs.push((key, value));
                }
                Ok(Metadata(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

fn overflow(name: &str) -> FormatError {
    structure(
        &format!("tensor `{}`", cut(name)),
        "a size of at most 64 bits",
        "a larger one",
    )
}

/// dtype and shape as PyTorch has them, checked against the data's length.
fn meaning(name: &str, entry: &Entry) -> Result<(DType, Dims), FormatError> {
    let part = || format!("tensor `{}`", cut(name));
    if entry.shape.len() > limits::TENSOR_DIMENSIONS {
        return Err(structure(
            &part(),
            format!("at most {} dimensions", limits::TENSOR_DIMENSIONS),
            entry.shape.len().to_string(),
        ));
    }
    let mut shape = Dims::from_slice(&entry.shape);
    let dtype = if entry.dtype == "F4" {
        // Two values a byte: the header counts values, PyTorch pairs.
        let Some(last) = shape.last_mut().filter(|last| last.is_multiple_of(2)) else {
            return Err(structure(
                &part(),
                "an even last dimension for F4",
                format!("{:?}", entry.shape),
            ));
        };
        *last /= 2;
        DType::Float4E2M1FnX2
    } else {
        DType::from_safetensors(&entry.dtype).ok_or_else(|| {
            structure(
                &part(),
                "a dtype of PyTorch 2.11",
                format!("`{}`", cut(&entry.dtype)),
            )
        })?
    };
    let (begin, end) = entry.data_offsets;
    let length = end.checked_sub(begin).ok_or_else(|| {
        structure(
            &part(),
            "data that ends after it begins",
            format!("{begin} to {end}"),
        )
    })?;
    let bytes = dtype.tensor_bytes(&shape).ok_or_else(|| overflow(name))?;
    if bytes != length {
        return Err(structure(
            &part(),
            format!("{bytes} bytes of data for shape {:?}", entry.shape),
            format!("{length}"),
        ));
    }
    Ok((dtype, shape))
}

/// Tensors must cover the data exactly: a hole could hold anything, an overlap would be read twice.
fn check_cover(header: &Header, data_bytes: u64, file_bytes: u64) -> Result<(), FormatError> {
    let mut spans: Vec<(u64, u64, &str)> = header
        .entries
        .iter()
        .map(|(name, entry)| (entry.data_offsets.0, entry.data_offsets.1, name.as_str()))
        .collect();
    spans.sort_unstable();
    let mut covered = 0_u64;
    for (begin, end, name) in spans {
        if end > data_bytes {
            return Err(FormatError::Truncated {
                what: format!("the data of tensor `{}`", cut(name)),
                needed_bytes: file_bytes.saturating_sub(data_bytes).saturating_add(end),
                file_bytes,
            });
        }
        if begin != covered || end < begin {
            return Err(structure(
                &format!("tensor `{}`", cut(name)),
                format!("data from byte {covered} on, where the one before ends"),
                format!("{begin} to {end}"),
            ));
        }
        covered = end;
    }
    if covered != data_bytes {
        return Err(structure(
            "the end of the file",
            format!("{covered} bytes of data"),
            format!("{data_bytes}"),
        ));
    }
    Ok(())
}
