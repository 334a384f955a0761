//! The archive that libtorch loads: a zip whose large records are pieces of the exported program's file.

use std::collections::HashMap;

use super::super::super::error::FormatError;
use super::super::super::loading::Loadable;
use super::super::super::torch::archive::TorchArchive;
use super::super::super::torch::storage::class_name;
use super::super::super::zip::write::{Record, Zip};
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
        add_storage(&mut zip, &format!("program/data/{index}"), storage)?;
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

fn add_storage(zip: &mut Zip, name: &str, storage: &Storage) -> Result<(), FormatError> {
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
    let record = Record {
        name,
        deflated,
        crc32: storage.crc32().unwrap_or(0),
        stored_bytes: storage.file_bytes(),
        bytes: storage.bytes(),
    };
    zip.add_piece(record, offset, !deflated);
    Ok(())
}
