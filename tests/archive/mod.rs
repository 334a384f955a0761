//! Archives written as byte recipes.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and a test fails by panic"
)]

use std::io::Write as _;

/// `torch._utils._rebuild_tensor_v2` of a float32 storage of 4 elements, of this size, stride and offset.
pub fn tensor(offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
    let mut out = b"ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ"
        .to_vec();
    out.extend(offset);
    out.extend(size);
    out.extend(stride);
    out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    out
}

/// A file of torch 0.1.10 to 1.5 holding an object, whose one storage has 4 elements of `data`.
pub fn legacy(object: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    out.extend(b"\x80\x02}(U\x10protocol_versionM\xe9\x03U\x0dlittle_endian\x88u.");
    out.extend(object);
    out.extend(b"\x80\x02]U\x010a.");
    out.extend(4_i64.to_le_bytes());
    out.extend(data);
    out
}

/// A tensor of 4 elements.
pub fn plain() -> Vec<u8> {
    tensor(b"K\x00", b"K\x04\x85", b"K\x01\x85")
}

/// One record of an archive, and what its headers say about it.
pub struct Record {
    pub local_name: String,
    pub name: String,
    pub stored: Vec<u8>,
    pub bytes: u32,
    pub method: u16,
    pub flags: u16,
    pub crc: u32,
}

impl Record {
    pub fn new(name: &str, contents: &[u8]) -> Record {
        Record {
            local_name: name.to_owned(),
            name: name.to_owned(),
            stored: contents.to_vec(),
            bytes: u32::try_from(contents.len()).unwrap(),
            method: 0,
            flags: 0,
            crc: crc32fast::hash(contents),
        }
    }

    pub fn deflated(name: &str, contents: &[u8]) -> Record {
        let mut encoder =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(contents).unwrap();
        let mut record = Record::new(name, contents);
        record.stored = encoder.finish().unwrap();
        record.method = 8;
        record
    }

    pub fn header(&self, signature: &[u8], name: &str, central: bool) -> Vec<u8> {
        let mut out = signature.to_vec();
        if central {
            out.extend(20_u16.to_le_bytes());
        }
        out.extend(20_u16.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.method.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.crc.to_le_bytes());
        out.extend(u32::try_from(self.stored.len()).unwrap().to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        out.extend(0_u16.to_le_bytes());
        out
    }
}

/// An archive of these records, with the directory's offsets shifted where a record asks for it.
pub fn zip(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    for record in records {
        let offset = u32::try_from(out.len()).unwrap();
        out.extend(record.header(b"PK\x03\x04", &record.local_name, false));
        out.extend(record.local_name.as_bytes());
        out.extend(&record.stored);
        directory.extend(record.header(b"PK\x01\x02", &record.name, true));
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(record.name.as_bytes());
    }
    let start = u32::try_from(out.len()).unwrap();
    let count = u16::try_from(records.len()).unwrap();
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count.to_le_bytes());
    out.extend(count.to_le_bytes());
    out.extend(u32::try_from(directory.len()).unwrap().to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// A TorchScript archive of one class with these attributes (pickled, keys and values) and this code in its body.
pub fn script(attributes: &[u8], body: &str) -> Vec<Record> {
    let mut pickle = b"\x80\x02c__torch__\nM\n)\x81}(X\x08\0\0\0training\x88".to_vec();
    pickle.extend(attributes);
    pickle.extend(b"ub.");
    let code = format!("class M(Module):\n  training : bool\n{body}\n");
    vec![
        Record::new("m/data.pkl", &pickle),
        Record::new("m/code/__torch__.py", code.as_bytes()),
        Record::new("m/constants.pkl", b"\x80\x02)."),
        Record::new("m/version", b"3\n"),
        Record::new("m/byteorder", b"little"),
    ]
}

/// A copy of an archive of stored records, with the text of some of them changed: those whose name ends like this.
pub fn changed(
    path: &str,
    record: &str,
    change: impl Fn(String) -> String,
) -> tempfile::NamedTempFile {
    let bytes = std::fs::read(path).unwrap();
    let read = rawzip::ZipArchive::from_slice(&bytes).unwrap();
    let mut records = Vec::new();
    for entry in read.entries() {
        let entry = entry.unwrap();
        let path = entry.file_path();
        let path = std::str::from_utf8(path.as_bytes()).unwrap();
        let data = read.get_entry(entry.wayfinder()).unwrap().data();
        records.push(if path.ends_with(record) {
            let text = String::from_utf8(data.to_vec()).unwrap();
            Record::new(path, change(text).as_bytes())
        } else {
            Record::new(path, data)
        });
    }
    let mut out = tempfile::Builder::new().suffix(".pt2").tempfile().unwrap();
    out.write_all(&zip(&records)).unwrap();
    out
}
