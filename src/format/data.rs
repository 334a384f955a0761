//! The bytes of storages: for statistics, checks and running. Listing never comes here.

use std::borrow::Cow;
use std::io::Read;

use super::error::{FormatError, MemberFault};
use super::pickle::cut;
use crate::checkpoint::{Checkpoint, Finding, Severity, Storage, StorageData};
use crate::source::Source;

/// How much is inflated at a time when nothing is kept.
const CHUNK_BYTES: usize = 1 << 16;

/// The bytes of a storage as they are in memory, in the file's byte order; borrowed unless compressed.
pub fn storage_bytes<'s>(
    source: &'s Source,
    storage: &Storage,
) -> Result<Cow<'s, [u8]>, FormatError> {
    match storage.data() {
        StorageData::Raw { .. } => Ok(Cow::Borrowed(stored(source, storage)?)),
        StorageData::Deflated { .. } => {
            let mut contents = Vec::new();
            inflate(source, storage, |chunk| contents.extend_from_slice(chunk))?;
            Ok(Cow::Owned(contents))
        }
        StorageData::Absent => Err(fault(storage, MemberFault::Missing)),
    }
}

/// Compares a storage's bytes with their checksum; `Ok(None)` when they agree or there is none.
pub fn verify_storage(source: &Source, storage: &Storage) -> Result<Option<Finding>, FormatError> {
    let Some(expected) = storage.crc32() else {
        return Ok(None);
    };
    let mut hasher = crc32fast::Hasher::new();
    match storage.data() {
        StorageData::Raw { .. } => hasher.update(stored(source, storage)?),
        StorageData::Deflated { .. } => inflate(source, storage, |chunk| hasher.update(chunk))?,
        StorageData::Absent => return Ok(None),
    }
    let found = hasher.finalize();
    // Records made by `torch.serialization.skip_data` carry 0.
    if found == expected || expected == 0 {
        return Ok(None);
    }
    Ok(Some(Finding {
        severity: Severity::Error,
        code: "bad-crc",
        location: storage.member().to_owned(),
        message: format!(
            "the CRC-32 of its data is {found:08x}, expected {expected:08x}: the weights are damaged"
        ),
    }))
}

/// Compares the bytes of all storages with their checksums, as far as the format has any.
pub fn verify(source: &Source, checkpoint: &Checkpoint) -> Result<Vec<Finding>, FormatError> {
    let mut findings = Vec::new();
    for storage in checkpoint.storages() {
        findings.extend(verify_storage(source, storage)?);
    }
    Ok(findings)
}

fn fault(storage: &Storage, fault: MemberFault) -> FormatError {
    FormatError::Member {
        member: cut(storage.member()),
        offset: None,
        fault,
    }
}

/// The storage's part of the file.
fn stored<'s>(source: &'s Source, storage: &Storage) -> Result<&'s [u8], FormatError> {
    let (StorageData::Raw { offset } | StorageData::Deflated { offset }) = storage.data() else {
        return Err(fault(storage, MemberFault::Missing));
    };
    let range = usize::try_from(offset)
        .ok()
        .zip(usize::try_from(storage.file_bytes()).ok());
    range
        .and_then(|(start, len)| source.bytes().get(start..start.checked_add(len)?))
        .ok_or_else(|| {
            fault(
                storage,
                MemberFault::OutOfFile {
                    end: offset.saturating_add(storage.file_bytes()),
                    file_bytes: source.len(),
                },
            )
        })
}

/// Hands out the storage's bytes piece by piece, and checks that there are as many as there should be.
fn inflate(
    source: &Source,
    storage: &Storage,
    mut each: impl FnMut(&[u8]),
) -> Result<(), FormatError> {
    let mut reader = flate2::read::DeflateDecoder::new(stored(source, storage)?);
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let mut total = 0_u64;
    loop {
        let count = reader
            .read(&mut chunk)
            .map_err(|error| fault(storage, MemberFault::Inflate(error.to_string())))?;
        total = total.saturating_add(count as u64);
        if total > storage.bytes() {
            break;
        }
        if count == 0 {
            break;
        }
        each(chunk.get(..count).unwrap_or(&[]));
    }
    if total == storage.bytes() {
        return Ok(());
    }
    Err(fault(
        storage,
        MemberFault::Inflate(format!(
            "{total} bytes came out, expected {}",
            storage.bytes()
        )),
    ))
}
