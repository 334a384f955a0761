//! Writing an archive that is no file: small records from memory, large ones as pieces of another file.

use super::super::loading::{Loadable, Piece};

/// A record of the archive.
struct Entry {
    name: String,
    deflated: bool,
    crc32: u32,
    stored_bytes: u64,
    bytes: u64,
    offset: u64,
}

/// What the directory says of a record.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Compressed with deflate.
    pub(crate) deflated: bool,
    /// Checksum of its content.
    pub(crate) crc32: u32,
    /// Bytes in the archive.
    pub(crate) stored_bytes: u64,
    /// Bytes of its content.
    pub(crate) bytes: u64,
}

/// A zip in the making.
#[derive(Default)]
pub(crate) struct Zip {
    head: Vec<u8>,
    pieces: Vec<Piece>,
    entries: Vec<Entry>,
    position: u64,
}

/// Sizes and offsets from here on stand in the zip64 extra field.
const LARGE: u64 = 0xffff_ffff;

impl Zip {
    /// Bytes of the head are the next of the archive.
    fn write(&mut self, bytes: &[u8]) {
        let offset = self.head.len() as u64;
        let length = bytes.len() as u64;
        self.head.extend(bytes);
        self.position = self.position.saturating_add(length);
        match self.pieces.last_mut() {
            Some(last) if last.in_head => last.bytes = last.bytes.saturating_add(length),
            _ => self.pieces.push(Piece {
                in_head: true,
                is_data: false,
                offset,
                bytes: length,
            }),
        }
    }

    /// A record from memory.
    pub(crate) fn add(&mut self, name: &str, data: &[u8]) {
        self.begin(Entry {
            name: name.to_owned(),
            deflated: false,
            crc32: crc32fast::hash(data),
            stored_bytes: data.len() as u64,
            bytes: data.len() as u64,
            offset: self.position,
        });
        self.write(data);
    }

    /// A record whose bytes are in the file, as they are stored there.
    pub(crate) fn add_piece(&mut self, record: Record<'_>, in_file: u64, is_data: bool) {
        self.begin(Entry {
            name: record.name.to_owned(),
            deflated: record.deflated,
            crc32: record.crc32,
            stored_bytes: record.stored_bytes,
            bytes: record.bytes,
            offset: self.position,
        });
        if record.stored_bytes > 0 {
            self.pieces.push(Piece {
                in_head: false,
                is_data,
                offset: in_file,
                bytes: record.stored_bytes,
            });
            self.position = self.position.saturating_add(record.stored_bytes);
        }
    }

    fn begin(&mut self, entry: Entry) {
        let mut header = b"PK\x03\x04".to_vec();
        let extra = common(&mut header, &entry, false);
        header.extend(entry.name.as_bytes());
        header.extend(extra);
        self.write(&header);
        self.entries.push(entry);
    }

    /// The archive.
    pub(crate) fn finish(mut self) -> Loadable {
        let start = self.position;
        let mut directory = Vec::new();
        for entry in &self.entries {
            directory.extend(b"PK\x01\x02\x2d\x00");
            let extra = common(&mut directory, entry, true);
            directory.extend([0; 10]); // comment, disk, attributes
            directory.extend(low(entry.offset));
            directory.extend(entry.name.as_bytes());
            directory.extend(extra);
        }
        let count = self.entries.len() as u64;
        let length = directory.len() as u64;
        let end = start.saturating_add(length);
        // The large form always: it is read wherever the small one is.
        directory.extend(b"PK\x06\x06");
        directory.extend(44_u64.to_le_bytes());
        directory.extend([0x2d, 0, 0x2d, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for number in [count, count, length, start] {
            directory.extend(number.to_le_bytes());
        }
        directory.extend(b"PK\x06\x07\0\0\0\0");
        directory.extend(end.to_le_bytes());
        directory.extend(1_u32.to_le_bytes());
        directory.extend(b"PK\x05\x06\0\0\0\0");
        let small = u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
        directory.extend(small);
        directory.extend(small);
        directory.extend(low(length));
        directory.extend(low(start));
        directory.extend([0, 0]);
        self.write(&directory);
        Loadable {
            head: self.head,
            pieces: self.pieces,
        }
    }
}

/// The fields that local header and directory share, from the version needed to the length of the extra field, which
/// is returned.
fn common(out: &mut Vec<u8>, entry: &Entry, with_offset: bool) -> Vec<u8> {
    let mut large = Vec::new();
    if entry.bytes >= LARGE || entry.stored_bytes >= LARGE {
        large.extend(entry.bytes.to_le_bytes());
        large.extend(entry.stored_bytes.to_le_bytes());
    }
    let sizes_are_large = !large.is_empty();
    if with_offset && entry.offset >= LARGE {
        large.extend(entry.offset.to_le_bytes());
    }
    let mut extra = Vec::new();
    if !large.is_empty() {
        extra.extend([1, 0]);
        extra.extend(u16::try_from(large.len()).unwrap_or(0).to_le_bytes());
        extra.extend(large);
    }
    out.extend([
        0x2d,
        0,
        0,
        0,
        if entry.deflated { 8 } else { 0 },
        0,
        0,
        0,
        0,
        0,
    ]);
    out.extend(entry.crc32.to_le_bytes());
    for size in [entry.stored_bytes, entry.bytes] {
        out.extend(if sizes_are_large {
            [0xff; 4]
        } else {
            low(size)
        });
    }
    out.extend(
        u16::try_from(entry.name.len())
            .unwrap_or(u16::MAX)
            .to_le_bytes(),
    );
    out.extend(u16::try_from(extra.len()).unwrap_or(0).to_le_bytes());
    extra
}

/// Four bytes of a number, all ones where it needs more.
fn low(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}
