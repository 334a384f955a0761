//! Checksums of everything that has one.

use super::super::error::FormatError;
use super::super::torch::archive::TorchArchive;
use super::stream::{Extent, on_all_cores};
use crate::checkpoint::several::located;
use crate::checkpoint::{Checkpoint, Finding, Format, Severity, Storage, Verified};
use crate::source::Source;

/// A part of the file with a checksum.
struct Record<'n> {
    extent: Extent<'n>,
    crc32: u32,
    /// Whether `torch.serialization.skip_data` may have left its data out, and 0 as the checksum.
    may_be_skipped: bool,
}

/// Compares all records of an archive with their checksums, tensor data and everything else; reads the whole file, in
/// bounded memory. Every damaged record has a finding. Files of other formats hold no checksums: what can be checked in them (every tensor inside its
/// storage, every storage inside the file) was checked when they were read.
pub fn verify(
    source: &Source,
    checkpoint: &Checkpoint,
) -> Result<(Verified, Vec<Finding>), FormatError> {
    let (mut verified, mut findings) = (Verified::default(), Vec::new());
    if checkpoint.files().is_empty() {
        let storages: Vec<&Storage> = checkpoint.storages().iter().collect();
        let format = checkpoint.format();
        verify_file(source, format, &storages, (&mut verified, &mut findings))?;
        return Ok((verified, findings));
    }
    let mut by_file: Vec<Vec<&Storage>> = vec![Vec::new(); checkpoint.files().len()];
    for storage in checkpoint.storages() {
        if let Some(group) = storage.file().and_then(|file| by_file.get_mut(file)) {
            group.push(storage);
        }
    }
    for (index, (file, storages)) in checkpoint.files().iter().zip(by_file).enumerate() {
        let (Some(format), Some(part)) = (file.format, source.part(Some(index))) else {
            continue;
        };
        let before = findings.len();
        if format == Format::Dcp {
            let records = records_of_storages(&storages);
            check_all(part, &records, (&mut verified, &mut findings))?;
            continue;
        }
        verify_file(part, format, &storages, (&mut verified, &mut findings))?;
        for finding in findings.iter_mut().skip(before) {
            finding.location = located(&finding.location, &file.name);
        }
    }
    Ok((verified, findings))
}

/// Compares the records of one file.
fn verify_file(
    source: &Source,
    format: Format,
    storages: &[&Storage],
    (verified, findings): (&mut Verified, &mut Vec<Finding>),
) -> Result<(), FormatError> {
    let in_zip = matches!(
        format,
        Format::TorchZip | Format::TorchScript | Format::TorchPackage | Format::ExportedProgram
    );
    if !in_zip {
        verified.unchecked = verified.unchecked.saturating_add(storages.len() as u64);
        return Ok(());
    }
    let archive = TorchArchive::open(source.bytes())?;
    let records = records(&archive, storages);
    check_all(source, &records, (verified, findings))
}

/// Storages with a checksum, where they alone are compared: what lies beside them was when the file was read.
fn records_of_storages<'n>(storages: &[&'n Storage]) -> Vec<Record<'n>> {
    let known = storages.iter().filter_map(|storage| {
        Some(Record {
            extent: Extent::of_storage(storage)?,
            crc32: storage.crc32()?,
            may_be_skipped: storage.is_skipped(),
        })
    });
    known.collect()
}

/// Compares records, with a finding for each that is damaged.
fn check_all(
    source: &Source,
    records: &[Record<'_>],
    (verified, findings): (&mut Verified, &mut Vec<Finding>),
) -> Result<(), FormatError> {
    let outcomes = on_all_cores(records, |record| check(source, record));
    for (record, outcome) in records.iter().zip(outcomes) {
        let outcome = outcome?;
        if outcome == Outcome::Skipped {
            verified.unchecked = verified.unchecked.saturating_add(1);
            continue;
        }
        verified.records = verified.records.saturating_add(1);
        verified.bytes = verified.bytes.saturating_add(record.extent.bytes);
        let message = match outcome {
            Outcome::Right | Outcome::Skipped => continue,
            Outcome::Wrong { found } => format!(
                "the CRC-32 of its data is {found:08x}, expected {:08x}: it is damaged",
                record.crc32
            ),
            Outcome::Unreadable(error) => error,
        };
        verified.damaged = verified.damaged.saturating_add(1);
        findings.push(Finding {
            severity: Severity::Error,
            code: "bad-crc",
            location: record.extent.member.to_owned(),
            message,
        });
    }
    Ok(())
}

/// All records of an archive.
fn records<'n>(archive: &'n TorchArchive<'_>, storages: &[&Storage]) -> Vec<Record<'n>> {
    let mut skipped: Vec<u64> = storages
        .iter()
        .filter(|storage| storage.is_skipped())
        .filter_map(|storage| storage.data_offset())
        .collect();
    skipped.sort_unstable();
    archive
        .members()
        .iter()
        .map(|member| Record {
            extent: Extent {
                member: archive.inside(member).unwrap_or(member.name),
                offset: member.data_offset,
                stored_bytes: member.stored_bytes,
                bytes: member.bytes,
                deflated: member.deflated,
            },
            crc32: member.crc32,
            may_be_skipped: skipped.binary_search(&member.data_offset).is_ok(),
        })
        .collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Right,
    Wrong { found: u32 },
    Unreadable(String),
    Skipped,
}

fn check(source: &Source, record: &Record<'_>) -> Result<Outcome, FormatError> {
    let mut hasher = crc32fast::Hasher::new();
    let mut zeros = record.may_be_skipped;
    let streamed = record.extent.stream(source, |chunk| {
        hasher.update(chunk);
        zeros = zeros && chunk.iter().all(|byte| *byte == 0);
    });
    match streamed {
        Ok(()) => {}
        Err(FormatError::Member { fault, .. }) => {
            return Ok(Outcome::Unreadable(fault.to_string()));
        }
        Err(other) => return Err(other),
    }
    let found = hasher.finalize();
    Ok(if found == record.crc32 {
        Outcome::Right
    } else if zeros {
        Outcome::Skipped
    } else {
        Outcome::Wrong { found }
    })
}
