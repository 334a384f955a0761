//! `torch.save` before 0.1.10: a tar.
//!
//! | member | what it is |
//! |---|---|
//! | `sys_info` | a pickle: byte order, sizes of C types; PyTorch does not read it |
//! | `storages` | the number of storages; for each a pickle `(key, device, class)`, the number of elements (8 bytes) and the elements; then a pickle of views `(key, root key, offset, numel)` |
//! | `tensors` | the number of tensors; for each a pickle `(key, storage key, class)`, the number of dimensions (8 bytes), sizes, strides and offset (8 bytes each) |
//! | `pickle` | the object; persistent ids are keys of tensors |

use std::collections::HashMap;

use super::super::error::{FormatError, MemberFault, TensorFault};
use super::super::pickle::{Node, NodeId, Pickle, cut, parse};
use super::legacy::{Cursor, trailing};
use super::rebuild::{Graph, View};
use super::rows::{Place, Rows};
use super::security::{Reach, Watch};
use super::storage::{Declared, Records, StorageTable, storage_dtype};
use super::walk::{Context, walk};
use crate::checkpoint::{
    ByteOrder, Checkpoint, CheckpointParts, Format, Layout, StorageData, StorageId, StorageParts,
};
use crate::limits;
use crate::tensor::{DType, Dims};

/// A storage, or a view of one.
#[derive(Debug, Clone, Copy)]
struct Root {
    id: StorageId,
    dtype: DType,
    /// Where the view starts, in elements.
    offset: u64,
    /// Elements in the view.
    numel: u64,
    storage_bytes: u64,
}

/// Tensors by key.
#[derive(Debug, Default)]
struct Tensors {
    by_key: HashMap<String, View>,
}

impl Records for Tensors {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        Err(TensorFault::NoRecord(cut(&declared.key)))
    }

    fn tensor(&self, key: &str) -> Option<View> {
        self.by_key.get(key).cloned()
    }
}

/// A storage whose place is known already.
struct Known(StorageParts);

impl Records for Known {
    fn locate(&self, _declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        Ok(self.0.clone())
    }
}

/// Reads a tar.
pub(crate) fn read(data: &[u8]) -> Result<Checkpoint, FormatError> {
    let members = Members::open(data)?;
    let mut parts = CheckpointParts::new(Format::TorchTar, data.len() as u64);
    let mut watch = Watch::default();
    parts.byte_order = byte_order(&members, &mut watch);
    let mut table = StorageTable::default();
    let (start, mut cursor) = members.needed("storages")?;
    let roots = read_storages(&mut cursor, start, &mut table, &mut watch)?;
    trailing(&cursor, &mut watch);
    let (_, mut cursor) = members.needed("tensors")?;
    let tensors = read_tensors(&mut cursor, &roots, &mut watch)?;
    trailing(&cursor, &mut watch);
    let (_, mut cursor) = members.needed("pickle")?;
    let object = cursor.pickle("pickle", &mut watch)?;
    trailing(&cursor, &mut watch);
    let graph = Graph::new(&object);
    let mut rows = Rows::new(cursor.data.len() as u64);
    let context = Context {
        member: "pickle",
        records: &tensors,
        table: &mut table,
        rows: &mut rows,
        classes: None,
    };
    parts.object = walk(&graph, context, "", Place::Plain)?;
    let all: u64 = members
        .by_name
        .values()
        .fold(0, |sum, (_, len)| sum.saturating_add(*len as u64));
    let listed = table
        .storages()
        .iter()
        .fold(0_u64, |sum, s| sum.saturating_add(s.file_bytes()));
    parts.pickle_bytes = all.saturating_sub(listed);
    let (security, findings) = watch.finish();
    super::finish_parts(&mut parts, table, rows, security, findings);
    Ok(Checkpoint::new(parts)?)
}

/// The byte order that `sys_info` gives, where there is one.
fn byte_order(members: &Members<'_>, watch: &mut Watch) -> Option<ByteOrder> {
    let (start, len) = members.by_name.get("sys_info").copied()?;
    let system = parse(members.contents(start, len)).ok()?;
    watch.look(&system, "sys_info", Reach::Hidden);
    let little = system
        .get(system.root(), "little_endian")
        .and_then(|id| system.bool(id))?;
    Some(if little {
        ByteOrder::Little
    } else {
        ByteOrder::Big
    })
}

/// The members that matter: name, place.
struct Members<'a> {
    data: &'a [u8],
    by_name: HashMap<String, (usize, usize)>,
}

impl<'a> Members<'a> {
    fn open(data: &'a [u8]) -> Result<Members<'a>, FormatError> {
        let mut members = Members {
            data,
            by_name: HashMap::new(),
        };
        let damaged = |error: std::io::Error| FormatError::Archive {
            what: format!("the tar is damaged: {error}"),
            offset: 0,
        };
        let mut archive = ::tar::Archive::new(data);
        for (count, entry) in archive.entries().map_err(damaged)?.enumerate() {
            if count as u64 > limits::ARCHIVE_MEMBERS {
                return Err(FormatError::Limit {
                    what: "the archive's members".to_owned(),
                    limit: limits::ARCHIVE_MEMBERS,
                });
            }
            let entry = entry.map_err(damaged)?;
            if entry.header().entry_type().is_dir() {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            members
                .add(&name, &entry)
                .map_err(|fault| FormatError::Member {
                    member: cut(&name),
                    offset: Some(entry.raw_file_position()),
                    fault,
                })?;
        }
        if !members.by_name.contains_key("pickle") && !members.by_name.contains_key("storages") {
            return Err(FormatError::NotACheckpoint {
                what: format!("a tar archive of {} files", members.by_name.len()),
                hint: Some("unpack it first"),
            });
        }
        Ok(members)
    }

    fn add(&mut self, name: &str, entry: &::tar::Entry<'_, &[u8]>) -> Result<(), MemberFault> {
        if !entry.header().entry_type().is_file() {
            let what = "it is a link or device, not a file";
            return Err(MemberFault::Unsafe(what.to_owned()));
        }
        if name.starts_with('/') || name.split('/').any(|part| part == "..") {
            let what = "its name leaves the archive's folder";
            return Err(MemberFault::Unsafe(what.to_owned()));
        }
        let offset = entry.raw_file_position();
        let end = offset.saturating_add(entry.size());
        let place = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(entry.size()).ok())
            .filter(|_| end <= self.data.len() as u64)
            .ok_or(MemberFault::OutOfFile {
                end,
                file_bytes: self.data.len() as u64,
            })?;
        match self.by_name.insert(name.to_owned(), place) {
            Some(_) => Err(MemberFault::Duplicate),
            None => Ok(()),
        }
    }

    fn contents(&self, start: usize, len: usize) -> &'a [u8] {
        start
            .checked_add(len)
            .and_then(|end| self.data.get(start..end))
            .unwrap_or(&[])
    }

    /// Where a member starts, and a cursor at its start.
    fn needed(&self, name: &str) -> Result<(u64, Cursor<'a>), FormatError> {
        match self.by_name.get(name) {
            Some(&(start, len)) => {
                let data = self.contents(start, len);
                Ok((start as u64, Cursor { data, position: 0 }))
            }
            None => Err(FormatError::Member {
                member: name.to_owned(),
                offset: None,
                fault: MemberFault::Missing,
            }),
        }
    }
}

fn structure(part: &str, expected: &str, pickle: &Pickle<'_>, id: NodeId) -> FormatError {
    FormatError::Structure {
        part: part.to_owned(),
        expected: expected.to_owned(),
        found: cut(&pickle.repr(id)),
    }
}

/// A number of things that follow: not below zero, and not more than the bytes left could be.
fn count(cursor: &mut Cursor<'_>, part: &str, watch: &mut Watch) -> Result<u64, FormatError> {
    let pickle = cursor.pickle(part, watch)?;
    let root = pickle.root();
    let left = cursor.data.len().saturating_sub(cursor.position) as u64;
    pickle
        .int(root)
        .and_then(|n| u64::try_from(n).ok())
        .filter(|n| *n <= left)
        .ok_or_else(|| {
            structure(
                part,
                "a number of parts that the file can hold",
                &pickle,
                root,
            )
        })
}

fn three(pickle: &Pickle<'_>, part: &str) -> Result<[NodeId; 3], FormatError> {
    match *pickle.items(pickle.root()) {
        [a, b, c] => Ok([a, b, c]),
        _ => Err(structure(part, "a tuple of 3", pickle, pickle.root())),
    }
}

fn read_storages(
    cursor: &mut Cursor<'_>,
    start: u64,
    table: &mut StorageTable,
    watch: &mut Watch,
) -> Result<HashMap<String, Root>, FormatError> {
    let mut roots = HashMap::new();
    for index in 0..count(cursor, "storages", watch)? {
        let part = format!("storages, storage {index}");
        let (key, root) = read_storage(cursor, start, &part, table, watch)?;
        if roots.insert(key.clone(), root).is_some() {
            return Err(FormatError::Structure {
                part,
                expected: "each storage once".to_owned(),
                found: format!("`{}` twice", cut(&key)),
            });
        }
    }
    read_views(cursor, &mut roots, watch)?;
    Ok(roots)
}

/// Reads the next storage: its key, and where it is.
fn read_storage(
    cursor: &mut Cursor<'_>,
    start: u64,
    part: &str,
    table: &mut StorageTable,
    watch: &mut Watch,
) -> Result<(String, Root), FormatError> {
    let pickle = cursor.pickle(part, watch)?;
    let [key, device, class] = three(&pickle, part)?;
    let key = pickle.key_text(key);
    let tensor = |fault| FormatError::Tensor {
        member: part.to_owned(),
        name: cut(&key),
        fault,
    };
    let dtype = storage_dtype(&pickle, class)
        .map_err(tensor)?
        .ok_or_else(|| tensor(TensorFault::UnknownDType("UntypedStorage".to_owned())))?;
    let numel = natural("its storage's size", cursor.array::<8>(part)?).map_err(tensor)?;
    let bytes = numel
        .checked_mul(dtype.item_bytes())
        .ok_or_else(|| tensor(TensorFault::TooLarge))?;
    let offset = start.saturating_add(cursor.position as u64);
    cursor.skip(bytes, part)?;
    let device = pickle.text(device).map(std::borrow::Cow::into_owned);
    let declared = Declared {
        key: key.as_str().into(),
        dtype: Some(dtype),
        bytes,
        device: device.as_deref(),
        view: None,
    };
    let known = Known(StorageParts {
        dtype: Some(dtype),
        bytes,
        file_bytes: bytes,
        device: device.as_deref().map(Into::into),
        member: key.as_str().into(),
        data: StorageData::Raw { offset },
        crc32: None,
    });
    let (id, storage_bytes) = table.get(&declared, &known).map_err(tensor)?;
    let root = Root {
        id,
        dtype,
        offset: 0,
        numel,
        storage_bytes,
    };
    Ok((key, root))
}

/// A number that must not be below zero.
fn natural(what: &'static str, bytes: [u8; 8]) -> Result<u64, TensorFault> {
    let value = i64::from_le_bytes(bytes);
    u64::try_from(value).map_err(|_| TensorFault::Negative { what, value })
}

/// Storages that are parts of others.
fn read_views(
    cursor: &mut Cursor<'_>,
    roots: &mut HashMap<String, Root>,
    watch: &mut Watch,
) -> Result<(), FormatError> {
    let part = "storages, the list of views";
    let views = cursor.pickle(part, watch)?;
    if !matches!(views.node(views.root()), Node::List(_)) {
        return Err(structure(part, "a list", &views, views.root()));
    }
    for view in views.items(views.root()) {
        let wrong = || structure(part, "(key, root key, offset, numel)", &views, *view);
        let [target, root, offset, numel] = *views.items(*view) else {
            return Err(wrong());
        };
        let natural = |id| views.int(id).and_then(|n| u64::try_from(n).ok());
        let (Some(offset), Some(numel)) = (natural(offset), natural(numel)) else {
            return Err(wrong());
        };
        let base = *roots.get(&views.key_text(root)).ok_or_else(wrong)?;
        let end = offset.checked_add(numel).ok_or_else(wrong)?;
        if end > base.numel {
            return Err(wrong());
        }
        let root = Root {
            offset: base.offset.saturating_add(offset),
            numel,
            ..base
        };
        roots.insert(views.key_text(target), root);
    }
    Ok(())
}

fn read_tensors(
    cursor: &mut Cursor<'_>,
    roots: &HashMap<String, Root>,
    watch: &mut Watch,
) -> Result<Tensors, FormatError> {
    let mut tensors = Tensors::default();
    for index in 0..count(cursor, "tensors", watch)? {
        let part = format!("tensors, tensor {index}");
        let (key, view) = read_tensor(cursor, roots, &part, watch)?;
        if tensors.by_key.insert(key.clone(), view).is_some() {
            return Err(FormatError::Structure {
                part,
                expected: "each tensor once".to_owned(),
                found: format!("`{}` twice", cut(&key)),
            });
        }
    }
    Ok(tensors)
}

/// Reads the next tensor: its key, and the view that it is.
fn read_tensor(
    cursor: &mut Cursor<'_>,
    roots: &HashMap<String, Root>,
    part: &str,
    watch: &mut Watch,
) -> Result<(String, View), FormatError> {
    let pickle = cursor.pickle(part, watch)?;
    let [key, storage, _class] = three(&pickle, part)?;
    let key = pickle.key_text(key);
    let tensor = |fault| FormatError::Tensor {
        member: part.to_owned(),
        name: cut(&key),
        fault,
    };
    let root = roots
        .get(&pickle.key_text(storage))
        .ok_or_else(|| tensor(TensorFault::NoRecord(cut(&pickle.key_text(storage)))))?;
    // Four bytes; older files had eight.
    let dimensions = i32::from_le_bytes(cursor.array::<4>(part)?);
    cursor.array::<4>(part)?;
    let dimensions = usize::try_from(dimensions)
        .map_err(|_| usize::MAX)
        .and_then(|n| (n <= limits::TENSOR_DIMENSIONS).then_some(n).ok_or(n))
        .map_err(|n| tensor(TensorFault::Dimensions(n)))?;
    let mut number = |what| natural(what, cursor.array::<8>(part)?).map_err(tensor);
    let mut dims =
        |what| -> Result<Dims, FormatError> { (0..dimensions).map(|_| number(what)).collect() };
    let shape = dims("its size")?;
    let strides = dims("its stride")?;
    let offset = number("its storage offset")?;
    let needed = crate::tensor::extent(&shape, &strides, offset)
        .ok_or_else(|| tensor(TensorFault::TooLarge))?;
    if needed > root.numel {
        let item = root.dtype.item_bytes();
        return Err(tensor(TensorFault::OutOfStorage {
            needed_bytes: needed.saturating_mul(item),
            storage_bytes: root.numel.saturating_mul(item),
        }));
    }
    let view = View {
        quantizer: None,
        dtype: root.dtype,
        shape,
        strides,
        storage: Some(root.id),
        storage_bytes: Some(root.storage_bytes),
        offset: root.offset.saturating_add(offset),
        requires_grad: None,
        layout: Layout::Strided,
    };
    Ok((key, view))
}
