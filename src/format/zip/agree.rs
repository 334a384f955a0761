//! What readers of an archive would see differently: refused.
//!
//! An archive says most things twice, and some three times: in the record at its end, in a second one for large
//! archives, in the directory, before each record, and in extra fields. PyTorch, Python and unpackers each believe
//! another place.

use rawzip::{CompressionMethod, ZipFileHeaderRecord, ZipLocalFileHeader, ZipSliceArchive};

use super::super::error::{FormatError, MemberFault};
use super::super::pickle::cut;

/// Bits of the general purpose flags that change how a record is read: encrypted, sizes behind the data, strongly
/// encrypted, masked header.
const READING_FLAGS: u16 = 0x0001 | 0x0008 | 0x0040 | 0x2000;

/// An extra field with another name of the record, for readers that know Unicode: version, CRC-32, name.
const UNICODE_PATH: u16 = 0x7075;

/// Size of an entry of the directory without name, extra fields and comment.
const ENTRY_BYTES: u64 = 46;

/// Size of the record that points at the end record of large archives, which lies before the end record.
const LOCATOR_BYTES: u64 = 20;

/// One past the last byte of an entry of the directory.
pub(super) fn end_of_entry(entry: &ZipFileHeaderRecord<'_>) -> u64 {
    let path = entry.file_path();
    let name: &[u8] = path.as_ref();
    let comment = entry.comment();
    [
        ENTRY_BYTES,
        name.len() as u64,
        entry.extra_fields().remaining_bytes().len() as u64,
        comment.as_bytes().len() as u64,
    ]
    .into_iter()
    .fold(entry.central_directory_offset(), u64::saturating_add)
}

/// Checks that the records at the end agree with each other and with the directory, which ends at `directory_end`.
pub(super) fn check_end(
    data: &[u8],
    zip: &ZipSliceArchive<&[u8]>,
    directory_end: u64,
) -> Result<(), FormatError> {
    let end = zip.eocd_offset();
    let fault = |what: String| FormatError::Archive { what, offset: end };
    let begin = zip.directory_offset();
    let classic = number::<4>(data, end.saturating_add(12));
    let declared = match large_archive(data, end) {
        Some(large) => {
            if (large.members, large.offset) != (zip.entries_hint(), begin) {
                return Err(fault(format!(
                    "the archive has two directories, at byte {begin} and at byte {}: readers differ in which one they take",
                    large.offset
                )));
            }
            Some(large.size)
        }
        None => classic,
    };
    let size = directory_end.saturating_sub(begin);
    if declared.is_some_and(|declared| declared != size) {
        return Err(fault(format!(
            "the directory has {size} bytes, but the archive says {}",
            declared.unwrap_or(0)
        )));
    }
    Ok(())
}

/// What the end record of large archives says.
struct LargeArchive {
    members: u64,
    size: u64,
    offset: u64,
}

/// The end record of large archives, which PyTorch and Python believe wherever there is one.
fn large_archive(data: &[u8], end: u64) -> Option<LargeArchive> {
    let locator = end.checked_sub(LOCATOR_BYTES)?;
    if slice(data, locator, 4)? != b"PK\x06\x07" {
        return None;
    }
    let record = number::<8>(data, locator.checked_add(8)?)?;
    if slice(data, record, 4)? != b"PK\x06\x06" {
        return None;
    }
    let field = |place: u64| number::<8>(data, record.checked_add(place)?);
    Some(LargeArchive {
        members: field(32)?,
        size: field(40)?,
        offset: field(48)?,
    })
}

fn slice(data: &[u8], offset: u64, length: usize) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    data.get(start..start.checked_add(length)?)
}

/// A little-endian number of `N` bytes, at most 8.
fn number<const N: usize>(data: &[u8], offset: u64) -> Option<u64> {
    let bytes = slice(data, offset, N)?.iter().rev();
    Some(bytes.fold(0, |number: u64, byte| {
        number.wrapping_shl(8) | u64::from(*byte)
    }))
}

/// Refuses what a reader of local headers would see differently.
pub(super) fn compare(
    entry: &ZipFileHeaderRecord<'_>,
    header: &ZipLocalFileHeader<'_>,
    central_name: &[u8],
    local_name: &[u8],
) -> Result<(), MemberFault> {
    let mismatch = |what, local: String, central: String| {
        Err(MemberFault::Mismatch {
            what,
            local,
            central,
        })
    };
    if local_name != central_name {
        let text = |bytes| cut(&String::from_utf8_lossy(bytes));
        return mismatch("name", text(local_name), text(central_name));
    }
    let method = (header.compression_method(), entry.compression_method());
    if method.0 != method.1 {
        let text = |m: CompressionMethod| m.as_u16().to_string();
        return mismatch("compression method", text(method.0), text(method.1));
    }
    let flags = [header.flags(), entry.flags()].map(|flags| flags.bits() & READING_FLAGS);
    if flags[0] != flags[1] {
        let [local, central] = flags.map(|bits| format!("0x{bits:04x}"));
        return mismatch("flags", local, central);
    }
    if let Some(name) = other_name(entry, central_name) {
        let text = |bytes| cut(&String::from_utf8_lossy(bytes));
        return mismatch("name", text(name), text(central_name));
    }
    // Where sizes and CRC follow the data, the local header may hold zeros.
    let behind = header.flags().has_data_descriptor();
    let pairs = [
        (
            "compressed size",
            header.compressed_size_hint(),
            entry.compressed_size_hint(),
        ),
        (
            "size",
            header.uncompressed_size_hint(),
            entry.uncompressed_size_hint(),
        ),
        (
            "CRC-32",
            u64::from(header.crc32()),
            u64::from(entry.crc32()),
        ),
    ];
    for (what, local, central) in pairs {
        if local != central && !(behind && local == 0) {
            return mismatch(what, local.to_string(), central.to_string());
        }
    }
    Ok(())
}

/// Another name than the directory's that an extra field gives a record.
fn other_name<'e>(entry: &'e ZipFileHeaderRecord<'_>, name: &[u8]) -> Option<&'e [u8]> {
    entry
        .extra_fields()
        .filter(|(id, _)| id.as_u16() == UNICODE_PATH)
        .filter_map(|(_, field)| field.get(5..))
        .find(|other| *other != name)
}
