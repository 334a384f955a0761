//! A hash of every storage's contents.

use super::super::error::{FormatError, MemberFault};
use super::super::pickle::cut;
use super::stream::{Extent, on_all_cores};
use crate::checkpoint::{Checkpoint, ContentHash, Storage};
use crate::source::Source;

/// BLAKE3 of every storage's bytes as they are in memory, in the order of the storages; `None` where the file does not
/// hold them. Reads the whole file, in bounded memory.
pub fn hash(
    source: &Source,
    checkpoint: &Checkpoint,
) -> Result<Vec<Option<ContentHash>>, FormatError> {
    let hashes = on_all_cores(checkpoint.storages(), |storage| hash_one(source, storage));
    hashes.into_iter().collect()
}

fn hash_one(source: &Source, storage: &Storage) -> Result<Option<ContentHash>, FormatError> {
    let Some(extent) = Extent::of_storage(storage).filter(|_| !storage.is_skipped()) else {
        return Ok(None);
    };
    let source = source
        .part(storage.file())
        .ok_or_else(|| FormatError::Member {
            member: cut(storage.member()),
            offset: None,
            fault: MemberFault::Missing,
        })?;
    let mut hasher = blake3::Hasher::new();
    extent.stream(source, |chunk| {
        hasher.update(chunk);
    })?;
    Ok(Some(ContentHash(*hasher.finalize().as_bytes())))
}
