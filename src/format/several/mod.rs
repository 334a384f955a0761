//! Checkpoints that are several files.
//!
//! * [`folder`]: the files of a folder, and no others
//! * [`index`]: `*.index.json`, which says what tensor is in what shard
//! * [`sharded`]: an index with its shards; several files as one
//! * [`dcp`]: folders of `torch.distributed.checkpoint`
//! * [`deepspeed`]: folders that DeepSpeed saved
//! * [`members`]: what a folder is

pub(crate) mod dcp;
pub(crate) mod deepspeed;
pub(crate) mod folder;
pub(crate) mod index;
pub(crate) mod members;
pub(crate) mod sharded;

use std::path::Path;

use super::error::FormatError;
use crate::checkpoint::{Checkpoint, FilePart};
use crate::source::Source;

/// Names of findings that say that a checkpoint is not whole: what they are about is not there, or is there twice.
const INCOMPLETE: [&str; 3] = [
    sharded::MISSING_SHARD,
    dcp::MISSING_CHUNK,
    dcp::OVERLAPPING_CHUNKS,
];

/// Whether a finding of this code says that the checkpoint is not whole.
pub(crate) fn is_incomplete(code: &str) -> bool {
    INCOMPLETE.contains(&code)
}

/// An error in one of the files.
pub(crate) fn in_file(name: &str, error: FormatError) -> FormatError {
    FormatError::Part {
        file: super::pickle::cut(name),
        source: Box::new(error),
    }
}

/// The bytes of a checkpoint that was read from `path`: its file, or all of its files.
pub fn open_data(path: &Path, checkpoint: &Checkpoint) -> Result<Source, FormatError> {
    if checkpoint.files().is_empty() {
        return Ok(Source::open(path)?);
    }
    let open = |file: &FilePart| {
        let source = Source::open(&file.path).map_err(FormatError::from);
        source.map_err(|error| in_file(&file.name, error))
    };
    let parts: Result<Vec<Source>, FormatError> = checkpoint.files().iter().map(open).collect();
    Ok(Source::several(path, parts?))
}
