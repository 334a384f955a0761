//! The archive that libtorch loads: a zip whose large records are pieces of the exported program's file.

use std::collections::HashMap;

use super::super::super::error::FormatError;
use super::super::super::loading::{Loadable, Piece};
use super::super::super::torch::archive::TorchArchive;
use super::super::super::torch::storage::class_name;
use super::tree::Tree;
use super::unsupported;
use crate::checkpoint::{Checkpoint, Layout, Storage, StorageData, Tensor};

/// Puts classes, tensors and weights together.
pub(super) fn assemble(
    checkpoint: &Checkpoint,
    tree: &Tree<'_>,
    classes: &[(String, String)],
    archive: &TorchArchive<'_>,
) -> Result<Loadable, FormatError> {
    let mut zip = Zip::default();
    for (class, source) in classes {
        let (module, _) = class.rsplit_once('.').unwrap_or((class, ""));
        let name = format!("program/code/{}.py", module.replace('.', "/"));
        zip.add(&name, source.as_bytes());
    }
    zip.add("program/data.pkl", &pickled(checkpoint, tree)?);
    // A tuple of nothing: there are no constants.
    zip.add("program/constants.pkl", b"\x80\x02).");
    zip.add("program/version", b"3\n");
    if let Some(order) = archive.line("byteorder")? {
        zip.add("program/byteorder", order.as_bytes());
    }
    for (index, storage) in checkpoint.storages().iter().enumerate() {
        zip.add_storage(&format!("program/data/{index}"), storage)?;
    }
    Ok(zip.finish())
}

/// `data.pkl`: the root module with all that it holds.
fn pickled(checkpoint: &Checkpoint, tree: &Tree<'_>) -> Result<Vec<u8>, FormatError> {
    let mut pickle = Pickle {
        checkpoint,
        tree,
        out: vec![0x80, 2],
        memo: HashMap::new(),
    };
    pickle.module(0, 0)?;
    pickle.out.push(b'.');
    Ok(pickle.out)
}

struct Pickle<'p, 't> {
    checkpoint: &'p Checkpoint,
    tree: &'p Tree<'t>,
    out: Vec<u8>,
    /// Tensors that were written: of these, further names are the same object.
    memo: HashMap<TensorKey, u32>,
}

/// What makes two names one tensor: the storage, and how it is looked at.
#[derive(PartialEq, Eq, Hash)]
struct TensorKey {
    storage: usize,
    offset: u64,
    shape: Vec<u64>,
    strides: Vec<u64>,
    dtype: &'static str,
}

/// Modules within modules: deeper than any path that a file's names make.
const DEPTH: usize = 256;

impl Pickle<'_, '_> {
    fn module(&mut self, place: usize, depth: usize) -> Result<(), FormatError> {
        let Some(module) = self.tree.modules.get(place).filter(|_| depth < DEPTH) else {
            return Err(unsupported("modules nested this deep"));
        };
        let (package, class) = module
            .class
            .rsplit_once('.')
            .unwrap_or(("__torch__", &module.class));
        self.global(package, class);
        // NEWOBJ with no arguments, then the attributes as a dictionary.
        self.out.extend(b")\x81}(");
        for (name, tensor) in &module.tensors {
            self.text(name);
            self.tensor(tensor)?;
        }
        for (name, child) in &module.children {
            self.text(name);
            self.module(*child, depth.saturating_add(1))?;
        }
        self.out.extend(b"ub");
        Ok(())
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<(), FormatError> {
        let parts = tensor
            .storage()
            .zip(tensor.dtype())
            .zip(tensor.shape())
            .zip(tensor.strides());
        let Some((((id, dtype), shape), strides)) =
            parts.filter(|_| tensor.layout() == Layout::Strided)
        else {
            return Err(unsupported(&format!(
                "tensor `{}`, which is not strided",
                tensor.name()
            )));
        };
        let key = TensorKey {
            storage: id.index(),
            offset: tensor.storage_offset(),
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            dtype: dtype.name(),
        };
        if let Some(slot) = self.memo.get(&key) {
            self.out.push(b'j');
            self.out.extend(slot.to_le_bytes());
            return Ok(());
        }
        let class = class_name(dtype).ok_or_else(|| {
            unsupported(&format!(
                "tensor `{}`, whose dtype {dtype} TorchScript archives do not hold",
                tensor.name()
            ))
        })?;
        let storage_bytes = self.checkpoint.storage(id).map_or(0, Storage::bytes);
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.out.extend(b"((");
        self.text("storage");
        self.global("torch", &class);
        self.text(&id.index().to_string());
        self.text("cpu");
        self.int(storage_bytes.checked_div(dtype.item_bytes()).unwrap_or(0));
        self.out.extend(b"tQ");
        self.int(tensor.storage_offset());
        for numbers in [shape, strides] {
            self.out.push(b'(');
            for number in numbers {
                self.int(*number);
            }
            self.out.push(b't');
        }
        let wants = tensor.requires_grad().unwrap_or(false)
            && (dtype.is_floating_point() || dtype.is_complex());
        self.out.push(if wants { 0x88 } else { 0x89 });
        self.global("collections", "OrderedDict");
        self.out.extend(b")RtR");
        let slot = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
        self.out.push(b'r');
        self.out.extend(slot.to_le_bytes());
        self.memo.insert(key, slot);
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) {
        self.out.push(b'c');
        self.out.extend(module.as_bytes());
        self.out.push(b'\n');
        self.out.extend(name.as_bytes());
        self.out.push(b'\n');
    }

    fn text(&mut self, text: &str) {
        self.out.push(b'X');
        self.out
            .extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.out.extend(text.as_bytes());
    }

    /// An integer of any size that a tensor has: LONG1 with 9 bytes, the last of which is the sign.
    fn int(&mut self, number: u64) {
        if let Ok(small) = i32::try_from(number) {
            self.out.push(b'J');
            self.out.extend(small.to_le_bytes());
        } else {
            self.out.extend([0x8a, 8]);
            self.out.extend(number.to_le_bytes());
        }
    }
}

/// A record of the archive.
struct Entry {
    name: String,
    deflated: bool,
    crc32: u32,
    stored_bytes: u64,
    bytes: u64,
    offset: u64,
}

/// A zip in the making.
#[derive(Default)]
struct Zip {
    head: Vec<u8>,
    pieces: Vec<Piece>,
    entries: Vec<Entry>,
    position: u64,
}

/// Sizes and offsets from here on stand in the zip64 extra field.
const LARGE: u64 = 0xffff_ffff;

impl Zip {
    /// Bytes of the head are the next of the archive.
    fn write(&mut self, bytes: &[u8]) {
        let offset = self.head.len() as u64;
        let length = bytes.len() as u64;
        self.head.extend(bytes);
        self.position = self.position.saturating_add(length);
        match self.pieces.last_mut() {
            Some(last) if last.in_head => last.bytes = last.bytes.saturating_add(length),
            _ => self.pieces.push(Piece {
                in_head: true,
                is_data: false,
                offset,
                bytes: length,
            }),
        }
    }

    fn add(&mut self, name: &str, data: &[u8]) {
        self.begin(Entry {
            name: name.to_owned(),
            deflated: false,
            crc32: crc32fast::hash(data),
            stored_bytes: data.len() as u64,
            bytes: data.len() as u64,
            offset: self.position,
        });
        self.write(data);
    }

    fn add_storage(&mut self, name: &str, storage: &Storage) -> Result<(), FormatError> {
        let (offset, deflated) = match storage.data() {
            StorageData::Raw { offset } => (offset, false),
            StorageData::Deflated { offset } => (offset, true),
            StorageData::Text | StorageData::Absent => {
                return Err(unsupported(&format!(
                    "storage `{}`, which is not in the file",
                    storage.member()
                )));
            }
        };
        self.begin(Entry {
            name: name.to_owned(),
            deflated,
            crc32: storage.crc32().unwrap_or(0),
            stored_bytes: storage.file_bytes(),
            bytes: storage.bytes(),
            offset: self.position,
        });
        if storage.file_bytes() > 0 {
            self.pieces.push(Piece {
                in_head: false,
                is_data: !deflated,
                offset,
                bytes: storage.file_bytes(),
            });
            self.position = self.position.saturating_add(storage.file_bytes());
        }
        Ok(())
    }

    fn begin(&mut self, entry: Entry) {
        let mut header = b"PK\x03\x04".to_vec();
        let extra = common(&mut header, &entry, false);
        header.extend(entry.name.as_bytes());
        header.extend(extra);
        self.write(&header);
        self.entries.push(entry);
    }

    fn finish(mut self) -> Loadable {
        let start = self.position;
        let mut directory = Vec::new();
        for entry in &self.entries {
            directory.extend(b"PK\x01\x02\x2d\x00");
            let extra = common(&mut directory, entry, true);
            directory.extend([0; 10]); // comment, disk, attributes
            directory.extend(low(entry.offset));
            directory.extend(entry.name.as_bytes());
            directory.extend(extra);
        }
        let count = self.entries.len() as u64;
        let length = directory.len() as u64;
        let end = start.saturating_add(length);
        // The large form always: it is read wherever the small one is.
        directory.extend(b"PK\x06\x06");
        directory.extend(44_u64.to_le_bytes());
        directory.extend([0x2d, 0, 0x2d, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [count, count, length, start] {
            directory.extend(number.to_le_bytes());
        }
        directory.extend(b"PK\x06\x07\0\0\0\0");
        directory.extend(end.to_le_bytes());
        directory.extend(1_u32.to_le_bytes());
        directory.extend(b"PK\x05\x06\0\0\0\0");
        let small = u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
        directory.extend(small);
        directory.extend(small);
        directory.extend(low(length));
        directory.extend(low(start));
        directory.extend([0, 0]);
        self.write(&directory);
        Loadable {
            head: self.head,
            pieces: self.pieces,
        }
    }
}

/// The fields that local header and directory share, from the version needed to the length of the extra field, which
/// is returned.
fn common(out: &mut Vec<u8>, entry: &Entry, with_offset: bool) -> Vec<u8> {
    let mut large = Vec::new();
    if entry.bytes >= LARGE || entry.stored_bytes >= LARGE {
        large.extend(entry.bytes.to_le_bytes());
        large.extend(entry.stored_bytes.to_le_bytes());
    }
    let sizes_are_large = !large.is_empty();
    if with_offset && entry.offset >= LARGE {
        large.extend(entry.offset.to_le_bytes());
    }
    let mut extra = Vec::new();
    if !large.is_empty() {
        extra.extend([1, 0]);
        extra.extend(u16::try_from(large.len()).unwrap_or(0).to_le_bytes());
        extra.extend(large);
    }
    out.extend([
        0x2d,
        0,
        0,
        0,
        if entry.deflated { 8 } else { 0 },
        0,
        0,
        0,
        0,
        0,
    ]);
    out.extend(entry.crc32.to_le_bytes());
    for size in [entry.stored_bytes, entry.bytes] {
        out.extend(if sizes_are_large {
            [0xff; 4]
        } else {
            low(size)
        });
    }
    out.extend(
        u16::try_from(entry.name.len())
            .unwrap_or(u16::MAX)
            .to_le_bytes(),
    );
    out.extend(u16::try_from(extra.len()).unwrap_or(0).to_le_bytes());
    extra
}

/// Four bytes of a number, all ones where it needs more.
fn low(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}
