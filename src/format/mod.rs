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
mod export;
mod loading;
pub mod pickle;
pub mod recording;
mod safetensors;
mod several;
pub mod snapshot;
mod torch;
mod zip;

use std::path::{Path, PathBuf};

pub(crate) use data::on_all_cores;
pub use data::{hash, storage_bytes, verify};
pub use error::{FormatError, MemberFault, TensorFault};
pub use loading::{Loadable, Piece, loadable};
pub use several::dcp::check as check_dcp;
pub use several::index::check_index;
pub(crate) use several::is_incomplete;
pub use several::members::{Member, Members, members};
pub use several::open_data;
pub(crate) use several::sharded::MISSING_SHARD;
pub use torch::value::{Inputs, TensorRef, Value};

use crate::checkpoint::Checkpoint;
use crate::source::{Source, SourceError};
use detect::Detected;
use torch::archive::{Kind, TorchArchive};

/// How a file is read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {}

/// Reads the checkpoint at `path`, all of its files where it is several, without running anything in it.
pub fn read(path: &Path, options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    match Source::open(path) {
        Ok(source) if detect::detect(source.bytes())? == Detected::Index => {
            several::sharded::read_index(path, &source)
        }
        Ok(_) if path.ends_with(several::dcp::METADATA) && several::dcp::is_metadata(path) => {
            several::dcp::read(path.parent().unwrap_or(Path::new(".")))
        }
        Ok(source) => read_source(&source, options)
            .map_err(|error| several::dcp::part_alone(path).unwrap_or(error)),
        Err(SourceError::Directory(path)) => read_folder(&path, options),
        Err(error) => Err(error.into()),
    }
}

/// Reads several files as one model, in the order given.
pub fn read_merged(paths: &[PathBuf]) -> Result<Checkpoint, FormatError> {
    several::sharded::merge(paths)
}

/// Reads a folder that is one checkpoint.
fn read_folder(path: &Path, options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    match Whole::of(path) {
        Some(Whole::Dcp) => return several::dcp::read(path),
        Some(Whole::DeepSpeed(path)) => return several::deepspeed::read(&path),
        Some(Whole::Unsupported(error)) => return Err(error),
        None => {}
    }
    let members = members(path)?;
    if let Some(index) = several::members::sole_index(&members) {
        return read(index, options);
    }
    let none = members.checkpoints.is_empty() && members.refused.is_empty();
    Err(if none {
        FormatError::NotACheckpoint {
            what: "a folder without checkpoints".to_owned(),
            hint: Some("subfolders are not looked through: name one"),
        }
    } else {
        FormatError::NotACheckpoint {
            what: "a folder of several checkpoints".to_owned(),
            hint: Some("name one of them; `inspect` with the folder alone sums all of them up"),
        }
    })
}

/// The checkpoints of a folder that is not one checkpoint itself; `None` where it is, or is no folder.
pub fn several_checkpoints(path: &Path) -> Result<Option<Members>, FormatError> {
    if !path.is_dir() || Whole::of(path).is_some() {
        return Ok(None);
    }
    let members = members(path)?;
    let none = members.checkpoints.is_empty() && members.refused.is_empty();
    let one = none || several::members::sole_index(&members).is_some();
    Ok((!one).then_some(members))
}

/// Reads a checkpoint of one file that is open already.
pub fn read_source(source: &Source, _options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    let data = source.bytes();
    match detect::detect(data)? {
        Detected::Zip => read_zip(source),
        Detected::Safetensors => safetensors::read(data),
        Detected::Legacy => torch::legacy::read(data),
        Detected::Tar => torch::tar::read(data),
        Detected::Pickle => torch::plain::read(data),
        Detected::Index => Err(FormatError::Unsupported {
            what: "the index of a sharded checkpoint, where one file is needed,".to_owned(),
            hint: Some("name one of its shards"),
        }),
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
        Kind::Package => archive.read_package(),
        Kind::ExportedProgram => export::read(&archive),
        Kind::Other => Err(detect::other_zip(archive.names())),
    }
}

/// Reads a file of inputs (`--inputs`): a tensor, tuple, list or dictionary saved with `torch.save`, safetensors, or an
/// exported program, for the inputs that it was exported with.
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
                Kind::ExportedProgram => export::sample_inputs(&archive)?
                    .ok_or_else(|| not_inputs("an exported program that keeps none")),
                _ => Err(not_inputs("this kind of archive")),
            }
        }
        Detected::Legacy => torch::legacy::read_inputs(data),
        Detected::Safetensors => Ok(torch::value::of_tensors(&safetensors::read(data)?)),
        Detected::Tar => Err(not_inputs("a tar")),
        Detected::Pickle => Err(not_inputs("a pickle that is not a torch file")),
        Detected::Index => Err(not_inputs("a sharded checkpoint")),
    }
}

/// A folder that is one thing.
enum Whole {
    /// A distributed checkpoint.
    Dcp,
    /// What DeepSpeed saved, in this folder.
    DeepSpeed(PathBuf),
    /// Something that cannot be read.
    Unsupported(FormatError),
}

impl Whole {
    fn of(path: &Path) -> Option<Whole> {
        if several::dcp::is_dcp(path) {
            return Some(Whole::Dcp);
        }
        match several::deepspeed::folder_of(path) {
            Some(Ok(folder)) => return Some(Whole::DeepSpeed(folder)),
            Some(Err(error)) => return Some(Whole::Unsupported(error)),
            None => {}
        }
        path.join("saved_model.pb").exists().then(|| {
            Whole::Unsupported(FormatError::Unsupported {
                what: "a TensorFlow SavedModel (a folder)".to_owned(),
                hint: None,
            })
        })
    }
}
