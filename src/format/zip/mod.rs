//! Zip archives as PyTorch reads them, and no others.
//!
//! The directory is read with rawzip; PyTorch reads it with miniz. Both take the directory's word over the local
//! headers'. Everything on which zip readers are known to differ is refused here, so that what is listed is what
//! PyTorch loads: members of one name (also in another case: miniz compares without case), local headers that
//! contradict the directory ([`agree`]), overlapping members, encryption.
//!
//! Nothing is allocated from a declared size, and members are inflated only when their contents are metadata.

mod agree;
pub(crate) mod write;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::Read;

use rawzip::{CompressionMethod, ZipArchive};

use super::error::{FormatError, MemberFault};
use super::pickle::cut;
use crate::limits;

/// The most that deflate can expand: 1032 to 1.
const DEFLATE_RATIO: u64 = 1032;

/// A member, as the directory and its local header agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member<'a> {
    /// The whole name.
    pub(crate) name: &'a str,
    /// Whether it is compressed with deflate.
    pub(crate) deflated: bool,
    /// Size in memory, as declared.
    pub(crate) bytes: u64,
    /// Size in the file.
    pub(crate) stored_bytes: u64,
    /// Where the local header starts.
    pub(crate) header_offset: u64,
    /// Where the data starts.
    pub(crate) data_offset: u64,
    /// CRC-32 of the data in memory.
    pub(crate) crc32: u32,
}

/// A checked directory.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    data: &'a [u8],
    members: Vec<Member<'a>>,
    by_name: HashMap<&'a str, usize, foldhash::fast::RandomState>,
    /// The folder of the first record with a number for a name, and the places of its records by number: an archive
    /// has few other members, and 50,000 of these.
    numbered: Numbered<'a>,
    /// Members whose flag bits are unusual but harmless.
    pub(crate) odd_flags: Vec<(String, u16)>,
    /// Where the archive ends; what follows is no part of it.
    pub(crate) end: u64,
    /// Bytes that metadata records may still inflate to, all together.
    inflatable: Cell<u64>,
}

impl<'a> Archive<'a> {
    /// Reads and checks the directory of an archive that starts at byte 0.
    pub(crate) fn open(data: &'a [u8]) -> Result<Archive<'a>, FormatError> {
        let file_bytes = data.len() as u64;
        let zip = ZipArchive::from_slice(data).map_err(|error| match error.kind() {
            rawzip::ErrorKind::MissingEndOfCentralDirectory | rawzip::ErrorKind::Eof => {
                FormatError::NoDirectory { file_bytes }
            }
            _ => directory_fault(&error, file_bytes),
        })?;
        if zip.entries_hint() > limits::ARCHIVE_MEMBERS {
            return Err(FormatError::Limit {
                what: "the archive's members".to_owned(),
                limit: limits::ARCHIVE_MEMBERS,
            });
        }
        let mut archive = Archive {
            data,
            members: Vec::new(),
            by_name: HashMap::default(),
            numbered: Numbered::default(),
            odd_flags: Vec::new(),
            end: zip.end_offset(),
            inflatable: Cell::new(
                limits::INFLATED_BYTES.max(file_bytes.saturating_mul(limits::INFLATED_PER_BYTE)),
            ),
        };
        // An entry takes up at least 46 bytes of directory: no more room than that is made for a forged count.
        let possible = file_bytes / 46;
        let count = usize::try_from(zip.entries_hint().min(possible)).unwrap_or(0);
        archive.members.reserve(count);
        archive.numbered.limit = count.saturating_mul(2).saturating_add(64);
        let mut directory_end = zip.directory_offset();
        let mut entries = zip.entries();
        while let Some(entry) = entries
            .next_entry()
            .map_err(|error| directory_fault(&error, zip.directory_offset()))?
        {
            directory_end = agree::end_of_entry(&entry);
            archive.add(&zip, &entry)?;
        }
        if archive.members.len() as u64 != zip.entries_hint() {
            return Err(FormatError::Archive {
                what: format!(
                    "the directory has {} members, but says {}",
                    archive.members.len(),
                    zip.entries_hint()
                ),
                offset: zip.directory_offset(),
            });
        }
        agree::check_end(data, &zip, directory_end)?;
        archive.check_overlap(zip.directory_offset())?;
        archive.check_case()?;
        Ok(archive)
    }

    fn add(
        &mut self,
        zip: &rawzip::ZipSliceArchive<&'a [u8]>,
        entry: &rawzip::ZipFileHeaderRecord<'_>,
    ) -> Result<(), FormatError> {
        let path = entry.file_path();
        let raw: &[u8] = path.as_ref();
        let offset = entry.local_header_offset();
        let fault = |fault| FormatError::Member {
            member: cut(&String::from_utf8_lossy(raw)),
            offset: Some(offset),
            fault,
        };
        let deflated = is_deflated(entry).map_err(fault)?;
        let (stored_bytes, bytes) = (entry.compressed_size_hint(), entry.uncompressed_size_hint());
        let local = zip
            .get_entry(entry.wayfinder())
            .map_err(|error| match error.kind() {
                rawzip::ErrorKind::Eof => fault(MemberFault::OutOfFile {
                    end: offset.saturating_add(stored_bytes).saturating_add(30),
                    file_bytes: self.data.len() as u64,
                }),
                _ => fault(MemberFault::NoRecord),
            })?;
        let header = local.local_header();
        let local_path = header.file_path();
        agree::compare(entry, &header, raw, local_path.as_ref()).map_err(fault)?;
        let odd = entry.flags().bits() & !0x080e;
        if odd != 0 {
            self.odd_flags
                .push((cut(&String::from_utf8_lossy(raw)), odd));
        }
        // The name is taken from the directory's own bytes, which live as long as the file's.
        let name = self.name_in_directory(entry, raw).map_err(fault)?;
        let member = Member {
            name,
            deflated,
            bytes,
            stored_bytes,
            header_offset: offset,
            data_offset: local.compressed_data_range().0,
            crc32: entry.crc32(),
        };
        let place = self.members.len();
        let known = match self.numbered.insert(name, place) {
            Some(known) => known,
            None => self.by_name.insert(name, place).is_some(),
        };
        if known {
            return Err(fault(MemberFault::Duplicate));
        }
        self.members.push(member);
        Ok(())
    }

    fn name_in_directory(
        &self,
        entry: &rawzip::ZipFileHeaderRecord<'_>,
        raw: &[u8],
    ) -> Result<&'a str, MemberFault> {
        let start = usize::try_from(entry.central_directory_offset())
            .ok()
            .and_then(|start| start.checked_add(46));
        let bytes = start
            .and_then(|start| self.data.get(start..start.checked_add(raw.len())?))
            .ok_or(MemberFault::NoRecord)?;
        let name = std::str::from_utf8(bytes)
            .map_err(|_| MemberFault::Unsafe("its name is not UTF-8".to_owned()))?;
        if name.contains('\0') {
            return Err(MemberFault::Unsafe("its name contains a NUL".to_owned()));
        }
        let dots = name.as_bytes().windows(2).any(|pair| pair == b"..");
        if name.starts_with('/') || dots && name.split('/').any(|part| part == "..") {
            return Err(MemberFault::Unsafe(
                "its name leaves the archive's folder".to_owned(),
            ));
        }
        Ok(name)
    }

    /// Members must not share bytes, and must lie before the directory.
    fn check_overlap(&self, directory: u64) -> Result<(), FormatError> {
        let mut order: Vec<&Member<'_>> = self.members.iter().collect();
        if !order.is_sorted_by_key(|m| m.header_offset) {
            order.sort_by_key(|m| m.header_offset);
        }
        // Readers that allow something before the archive shift all offsets by it; PyTorch does not.
        if let Some(first) = order.first()
            && first.header_offset != 0
        {
            return Err(FormatError::Archive {
                what: format!(
                    "the directory's first record is at byte {}, but the file starts with another",
                    first.header_offset
                ),
                offset: 0,
            });
        }
        let mut previous: Option<&Member<'_>> = None;
        for member in order {
            let fault = |fault| FormatError::Member {
                member: cut(member.name),
                offset: Some(member.header_offset),
                fault,
            };
            if let Some(before) = previous
                && before.end() > member.header_offset
            {
                return Err(fault(MemberFault::Overlap(cut(before.name))));
            }
            if member.end() > directory {
                return Err(fault(MemberFault::Overlap("the directory".to_owned())));
            }
            previous = Some(member);
        }
        Ok(())
    }

    /// miniz finds members without regard to case: two that differ only in case are one name to it.
    fn check_case(&self) -> Result<(), FormatError> {
        let upper = |name: &str| name.bytes().any(|b| b.is_ascii_uppercase());
        let folder = self.numbered.folder.unwrap_or("");
        // Numbers have no case: the numbered records differ from each other, and only their folder could be spelled
        // in two ways.
        if !upper(folder) && !self.by_name.keys().any(|name| upper(name)) {
            return Ok(());
        }
        let folder = folder.to_ascii_lowercase();
        let mut seen: HashSet<String> = HashSet::with_capacity(self.by_name.len());
        for (name, place) in &self.by_name {
            let lower = name.to_ascii_lowercase();
            let number = lower
                .rsplit_once('/')
                .filter(|(f, _)| *f == folder)
                .and_then(|(_, number)| canonical_number(number));
            let twin = number.is_some_and(|n| self.numbered.place(n).is_some());
            if twin || !seen.insert(lower) {
                return Err(FormatError::Member {
                    member: cut(name),
                    offset: self.members.get(*place).map(|m| m.header_offset),
                    fault: MemberFault::Duplicate,
                });
            }
        }
        Ok(())
    }

    /// All members, in the directory's order.
    pub(crate) fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The member of this name.
    pub(crate) fn member(&self, name: &str) -> Option<&Member<'a>> {
        let place = match self.numbered.find(name) {
            Some(place) => Some(place),
            None => self.by_name.get(name).copied(),
        };
        place.and_then(|place| self.members.get(place))
    }

    /// The folder of the records with numbers for names.
    pub(crate) fn numbered_folder(&self) -> Option<&'a str> {
        self.numbered.folder
    }

    /// The record with this number in [`Archive::numbered_folder`].
    pub(crate) fn numbered_member(&self, number: usize) -> Option<&Member<'a>> {
        self.numbered
            .place(number)
            .and_then(|place| self.members.get(place))
    }

    /// The bytes of a member as they are in the file.
    pub(crate) fn stored(&self, member: &Member<'_>) -> &'a [u8] {
        let range = usize::try_from(member.data_offset)
            .ok()
            .zip(usize::try_from(member.stored_bytes).ok());
        range
            .and_then(|(start, len)| self.data.get(start..start.checked_add(len)?))
            .unwrap_or(&[])
    }

    /// The contents of a metadata record, checked against its CRC.
    pub(crate) fn read(&self, member: &Member<'_>) -> Result<Cow<'a, [u8]>, FormatError> {
        let fault = |fault| FormatError::Member {
            member: cut(member.name),
            offset: Some(member.header_offset),
            fault,
        };
        let stored = self.stored(member);
        let contents = if member.deflated {
            Cow::Owned(self.inflate(stored, member).map_err(fault)?)
        } else {
            Cow::Borrowed(stored)
        };
        let found = crc32fast::hash(&contents);
        if found != member.crc32 {
            return Err(fault(MemberFault::Crc {
                expected: member.crc32,
                found,
            }));
        }
        Ok(contents)
    }

    /// Inflates a metadata record, within bounds for it and for all of them.
    fn inflate(&self, stored: &[u8], member: &Member<'_>) -> Result<Vec<u8>, MemberFault> {
        let own = limits::INFLATED_BYTES.max(
            member
                .stored_bytes
                .saturating_mul(limits::INFLATED_PER_BYTE),
        );
        let limit = own.min(self.inflatable.get());
        if member.bytes > limit {
            return Err(MemberFault::Bomb {
                stored: member.stored_bytes,
                bytes: member.bytes,
                limit,
            });
        }
        self.inflatable
            .set(self.inflatable.get().saturating_sub(member.bytes));
        let mut contents = Vec::new();
        let mut reader =
            flate2::read::DeflateDecoder::new(stored).take(member.bytes.saturating_add(1));
        reader
            .read_to_end(&mut contents)
            .map_err(|error| MemberFault::Inflate(error.to_string()))?;
        if contents.len() as u64 != member.bytes {
            return Err(MemberFault::Inflate(format!(
                "{} bytes came out, expected {}",
                contents.len(),
                member.bytes
            )));
        }
        Ok(contents)
    }
}

/// Whether a member is compressed, in the one way there is; its sizes must be possible.
fn is_deflated(entry: &rawzip::ZipFileHeaderRecord<'_>) -> Result<bool, MemberFault> {
    if entry.flags().is_encrypted() {
        return Err(MemberFault::Encrypted);
    }
    let (stored, bytes) = (entry.compressed_size_hint(), entry.uncompressed_size_hint());
    match entry.compression_method() {
        CompressionMethod::STORE if stored == bytes => Ok(false),
        CompressionMethod::STORE => Err(MemberFault::StoredSizes { stored, bytes }),
        CompressionMethod::DEFLATE
            if bytes > stored.saturating_mul(DEFLATE_RATIO).saturating_add(64) =>
        {
            Err(MemberFault::ForgedSize { stored, bytes })
        }
        CompressionMethod::DEFLATE => Ok(true),
        other => Err(MemberFault::Compression(other.as_u16())),
    }
}

/// Whether the records of an archive are so small that reading their headers reaches nearly every page of the file,
/// and the file is not so large that this would be a burden.
pub(crate) fn is_dense(data: &[u8]) -> bool {
    let bytes = data.len() as u64;
    let ends_here = |end: &[u8]| {
        let rest = end.strip_prefix(b"PK\x05\x06")?;
        let count = rest.get(6..8)?.first_chunk::<2>()?;
        Some(u64::from(u16::from_le_bytes(*count)))
    };
    let end = data.len().checked_sub(END_RECORD_BYTES);
    let members = end.and_then(|end| ends_here(data.get(end..)?));
    let pages = members.map(|members| members.saturating_mul(READ_AROUND_BYTES));
    bytes <= MAPPED_AT_ONCE_BYTES && pages.is_some_and(|reached| reached >= bytes)
}

/// Size of the record at the end of an archive without a comment.
const END_RECORD_BYTES: usize = 22;

/// What the system maps around a byte that is read: 16 pages.
const READ_AROUND_BYTES: u64 = 64 << 10;

/// The largest file that is mapped at once.
const MAPPED_AT_ONCE_BYTES: u64 = 256 << 20;

/// Places of members whose names are numbers in one folder.
#[derive(Debug, Default)]
struct Numbered<'a> {
    folder: Option<&'a str>,
    /// Place plus one; 0 for none.
    places: Vec<usize>,
    /// Numbers from here on are kept by name.
    limit: usize,
}

impl<'a> Numbered<'a> {
    /// Whether the name was there already; `None` when it is not one of these.
    fn insert(&mut self, name: &'a str, place: usize) -> Option<bool> {
        if self.folder.is_none() {
            let (folder, number) = name.rsplit_once('/')?;
            self.folder = canonical_number(number)
                .filter(|n| *n < self.limit)
                .map(|_| folder);
        }
        let number = self.number(name).filter(|n| *n < self.limit)?;
        if number >= self.places.len() {
            self.places.resize(number.saturating_add(1), 0);
        }
        let slot = self.places.get_mut(number)?;
        let known = *slot != 0;
        *slot = place.saturating_add(1);
        Some(known)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.place(self.number(name)?)
    }

    /// The number of a record of the folder.
    fn number(&self, name: &str) -> Option<usize> {
        canonical_number(name.strip_prefix(self.folder?)?.strip_prefix('/')?)
    }

    fn place(&self, number: usize) -> Option<usize> {
        self.places.get(number)?.checked_sub(1)
    }
}

/// The number that a name is, written as numbers are: no sign, no leading zeros.
pub(crate) fn canonical_number(name: &str) -> Option<usize> {
    let digits = name.as_bytes();
    let canonical = match digits {
        [b'0'] => true,
        [b'1'..=b'9', rest @ ..] => rest.len() < 9 && rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    canonical.then(|| {
        digits.iter().fold(0, |number: usize, digit| {
            number
                .saturating_mul(10)
                .saturating_add(usize::from(digit & 0x0f))
        })
    })
}

impl Member<'_> {
    /// One past the last byte of its data.
    pub(crate) fn end(&self) -> u64 {
        self.data_offset.saturating_add(self.stored_bytes)
    }
}

fn directory_fault(error: &rawzip::Error, offset: u64) -> FormatError {
    FormatError::Archive {
        what: format!("the zip directory is damaged: {error}"),
        offset,
    }
}
