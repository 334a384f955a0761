//! The bytes of storages: for statistics, checks, hashes and running. Listing never comes here.
//!
//! * [`storage_bytes`]: all bytes of one storage
//! * [`hash`]: a hash of every storage's contents
//! * [`verify`]: checksums of everything that has one
//! * [`stream`]: the bytes of a part of the file, piece by piece

mod hash;
mod stream;
mod verify;

use std::borrow::Cow;

pub use hash::hash;
pub(crate) use stream::on_all_cores;
pub use verify::verify;

use super::error::{FormatError, MemberFault};
use super::pickle::cut;
use crate::checkpoint::{Storage, StorageData};
use crate::source::Source;
use stream::Extent;

/// The bytes of a storage as they are in memory, in the file's byte order; borrowed unless compressed.
pub fn storage_bytes<'s>(
    source: &'s Source,
    storage: &Storage,
) -> Result<Cow<'s, [u8]>, FormatError> {
    if storage.data() == StorageData::Text {
        return Err(FormatError::Unsupported {
            what: "data that a pickle of protocol 0 to 2 keeps as text".to_owned(),
            hint: Some("save it with `torch.save`"),
        });
    }
    let missing = || FormatError::Member {
        member: cut(storage.member()),
        offset: None,
        fault: MemberFault::Missing,
    };
    let extent = Extent::of_storage(storage).ok_or_else(missing)?;
    let source = source.part(storage.file()).ok_or_else(missing)?;
    if matches!(storage.data(), StorageData::Raw { .. }) {
        return extent.mapped(source).map(Cow::Borrowed);
    }
    let mut contents = Vec::new();
    extent.stream(source, |chunk| contents.extend_from_slice(chunk))?;
    Ok(Cow::Owned(contents))
}
