//! Detection by content and one reader per format.

#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod data;
mod detect;
mod error;
pub mod pickle;
pub mod recording;
mod safetensors;
pub mod snapshot;
mod torch;
mod zip;

use std::path::Path;

pub(crate) use data::on_all_cores;
pub use data::{hash, storage_bytes, verify};
pub use error::{FormatError, MemberFault, TensorFault};
pub use torch::value::{Inputs, TensorRef, Value};

use crate::checkpoint::Checkpoint;
use crate::source::{Source, SourceError};
use detect::Detected;
use torch::archive::{Kind, TorchArchive};

/// How a file is read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {}

/// Reads the checkpoint at `path` without running anything in it.
pub fn read(path: &Path, options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    match Source::open(path) {
        Ok(source) => read_source(&source, options),
        Err(SourceError::Directory(path)) => Err(folder(&path)),
        Err(error) => Err(error.into()),
    }
}

/// Reads a checkpoint that is open already.
pub fn read_source(source: &Source, _options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    let data = source.bytes();
    match detect::detect(data)? {
        Detected::Zip => read_zip(source),
        Detected::Safetensors => safetensors::read(data),
        Detected::Legacy => torch::legacy::read(data),
        Detected::Tar => torch::tar::read(data),
        Detected::Pickle => torch::plain::read(data),
    }
}

fn read_zip(source: &Source) -> Result<Checkpoint, FormatError> {
    let data = source.bytes();
    if zip::is_dense(data) {
        source.map_all();
    }
    let archive = TorchArchive::open(data)?;
    match archive.kind() {
        Kind::Pickle => archive.read_pickle(),
        Kind::Script => archive.read_script(),
        Kind::Package => Err(FormatError::Unsupported {
            what: "a torch.package archive".to_owned(),
            hint: Some("its members can be looked at after unpacking it"),
        }),
        Kind::ExportedProgram => Err(FormatError::Unsupported {
            what: "an exported program (`torch.export.save`, .pt2)".to_owned(),
            hint: None,
        }),
        Kind::Other => Err(detect::other_zip(archive.names())),
    }
}

/// Reads a file of inputs (`--inputs`): a tensor, tuple, list or dictionary saved with `torch.save`, or safetensors.
pub fn read_inputs(source: &Source) -> Result<Inputs, FormatError> {
    let data = source.bytes();
    let not_inputs = |what: &str| FormatError::Unsupported {
        what: format!("inputs from {what}"),
        hint: Some("save them with `torch.save`"),
    };
    match detect::detect(data)? {
        Detected::Zip => {
            let archive = TorchArchive::open(data)?;
            match archive.kind() {
                Kind::Pickle => archive.read_inputs(),
                _ => Err(not_inputs("this kind of archive")),
            }
        }
        Detected::Legacy => torch::legacy::read_inputs(data),
        Detected::Safetensors => Ok(torch::value::of_tensors(&safetensors::read(data)?)),
        Detected::Tar => Err(not_inputs("a tar")),
        Detected::Pickle => Err(not_inputs("a pickle that is not a torch file")),
    }
}

/// A folder, by what is in it.
fn folder(path: &Path) -> FormatError {
    let has = |name: &str| path.join(name).exists();
    let (what, hint) = if has(".metadata") {
        ("a torch.distributed checkpoint (a folder)", None)
    } else if has("saved_model.pb") {
        ("a TensorFlow SavedModel (a folder)", None)
    } else {
        ("a folder", Some("name a file in it"))
    };
    FormatError::Unsupported {
        what: what.to_owned(),
        hint,
    }
}
