//! Hostile and damaged files, written as byte recipes: one for each way of being refused, and for each trick that must
//! not change what is listed.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::archive::{Record, plain, tensor, zip};
use inspect_checkpoint::checkpoint::{Checkpoint, ModelError, Verdict};
use inspect_checkpoint::format::pickle::PickleErrorKind;
use inspect_checkpoint::format::{
    FormatError, MemberFault, ReadOptions, TensorFault, Value, read_inputs, read_source,
    storage_bytes, verify,
};
use inspect_checkpoint::source::Source;

/// `{"w": value}` as a pickle.
fn dict_of(value: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x02}U\x01w".to_vec();
    out.extend(value);
    out.extend(b"s.");
    out
}

/// A `torch.save` archive around a pickle, with one storage of 16 bytes.
fn records(pickle: &[u8]) -> Vec<Record> {
    vec![
        Record::new("a/data.pkl", pickle),
        Record::new("a/data/0", &[0; 16]),
        Record::new("a/version", b"3\n"),
    ]
}

fn archive(pickle: &[u8]) -> Vec<u8> {
    zip(&records(pickle))
}

/// Reads bytes, within the bounds that hold for every file.
fn read(bytes: Vec<u8>) -> Result<Checkpoint, FormatError> {
    let source = Source::from_bytes(Path::new("test"), bytes);
    let start = Instant::now();
    let result = read_source(&source, &ReadOptions::default());
    // Generous: other tests run at the same time.
    assert!(start.elapsed() < Duration::from_secs(20));
    result
}

fn member_fault(bytes: Vec<u8>) -> MemberFault {
    match read(bytes) {
        Err(FormatError::Member { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

fn tensor_fault(bytes: Vec<u8>) -> TensorFault {
    match read(bytes) {
        Err(FormatError::Tensor { fault, name, .. }) => {
            assert_eq!(name, "w");
            fault
        }
        other => panic!("{other:?}"),
    }
}

fn pickle_fault(bytes: Vec<u8>) -> PickleErrorKind {
    match read(bytes) {
        Err(FormatError::Pickle { source, .. }) => source.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_recipe_itself_is_fine() {
    let checkpoint = read(archive(&dict_of(&plain()))).unwrap();
    assert_eq!(checkpoint.tensors().len(), 1);
    assert_eq!(checkpoint.tensors()[0].name(), "w");
    assert_eq!(checkpoint.security().verdict, Verdict::Clean);
    assert!(
        checkpoint.findings().is_empty(),
        "{:?}",
        checkpoint.findings()
    );
}

#[test]
fn records_that_readers_see_differently() {
    let pickle = dict_of(&plain());
    let with = |change: &dyn Fn(&mut Vec<Record>)| {
        let mut all = records(&pickle);
        change(&mut all);
        zip(&all)
    };
    let local_name = with(&|all| all[1].local_name = "a/data/1".to_owned());
    assert!(matches!(
        member_fault(local_name),
        MemberFault::Mismatch { what: "name", .. }
    ));
    let twice = with(&|all| all.push(Record::new("a/data.pkl", b"\x80\x02N.")));
    assert_eq!(member_fault(twice), MemberFault::Duplicate);
    let twice_numbered = with(&|all| all.push(Record::new("a/data/0", &[1; 16])));
    assert_eq!(member_fault(twice_numbered), MemberFault::Duplicate);
    let by_case = with(&|all| all.push(Record::new("a/DATA.pkl", b"\x80\x02N.")));
    assert_eq!(member_fault(by_case), MemberFault::Duplicate);
    let folder_by_case = with(&|all| all.push(Record::new("a/Data/0", &[1; 16])));
    assert_eq!(member_fault(folder_by_case), MemberFault::Duplicate);
    let encrypted = with(&|all| all[0].flags = 1);
    assert_eq!(member_fault(encrypted), MemberFault::Encrypted);
    let method = with(&|all| all[1].method = 99);
    assert_eq!(member_fault(method), MemberFault::Compression(99));
    let sizes = with(&|all| all[1].bytes = 12);
    assert!(matches!(
        member_fault(sizes),
        MemberFault::StoredSizes { .. }
    ));
    let crc = with(&|all| all[0].crc ^= 1);
    assert!(matches!(member_fault(crc), MemberFault::Crc { .. }));
    let version_crc = with(&|all| all[2].crc ^= 1);
    assert!(matches!(member_fault(version_crc), MemberFault::Crc { .. }));
    let leaves = with(&|all| all.push(Record::new("a/../../etc/passwd", b"x")));
    assert!(matches!(member_fault(leaves), MemberFault::Unsafe(_)));
    let absolute = with(&|all| all.push(Record::new("/etc/passwd", b"x")));
    assert!(matches!(member_fault(absolute), MemberFault::Unsafe(_)));
}

#[test]
fn a_directory_whose_records_overlap() {
    let mut bytes = archive(&dict_of(&plain()));
    // Both records of the directory point at the first one; its name is made to fit.
    let pickle = bytes.windows(8).rposition(|w| w == b"a/data/0").unwrap();
    bytes[pickle - 4..pickle].copy_from_slice(&0_u32.to_le_bytes());
    assert!(matches!(read(bytes), Err(FormatError::Member { .. })));
}

#[test]
fn compressed_records() {
    let pickle = dict_of(&plain());
    let mut all = records(&pickle);
    all[0] = Record::deflated("a/data.pkl", &pickle);
    all[1] = Record::deflated("a/data/0", &[7; 16]);
    let source = Source::from_bytes(Path::new("test"), zip(&all));
    let checkpoint = read_source(&source, &ReadOptions::default()).unwrap();
    let storage = &checkpoint.storages()[0];
    assert_eq!(storage.bytes(), 16);
    assert!(storage.file_bytes() < 16);
    assert_eq!(&*storage_bytes(&source, storage).unwrap(), [7; 16]);
    let (verified, findings) = verify(&source, &checkpoint).unwrap();
    assert!(findings.is_empty());
    assert_eq!((verified.damaged, verified.unchecked), (0, 0));
    assert_eq!(verified.records, all.len() as u64);

    all[0].bytes = 4000 * u32::try_from(all[0].stored.len()).unwrap();
    assert!(matches!(
        member_fault(zip(&all)),
        MemberFault::ForgedSize { .. }
    ));
    all[0] = Record::deflated("a/data.pkl", &pickle);
    all[0].bytes += 1;
    assert!(matches!(member_fault(zip(&all)), MemberFault::Inflate(_)));
    all[0] = Record::deflated("a/data.pkl", &vec![b'N'; 100 << 20]);
    assert!(matches!(member_fault(zip(&all)), MemberFault::Bomb { .. }));
}

#[test]
fn damaged_weights_are_found_by_verify() {
    let mut all = records(&dict_of(&plain()));
    all[1].crc ^= 1;
    let source = Source::from_bytes(Path::new("test"), zip(&all));
    let checkpoint = read_source(&source, &ReadOptions::default()).unwrap();
    let (verified, findings) = verify(&source, &checkpoint).unwrap();
    assert_eq!((verified.damaged, findings.len()), (1, 1));
    assert_eq!(findings[0].code, "bad-crc");
    assert_eq!(findings[0].location, "data/0");
}

#[test]
fn cut_anywhere() {
    let whole = archive(&dict_of(&plain()));
    for length in 0..whole.len() {
        assert!(read(whole[..length].to_vec()).is_err(), "cut at {length}");
    }
    let mut more = whole;
    more.extend(b"\x80\x02cos\nsystem\n.");
    assert_eq!(read(more).unwrap().security().verdict, Verdict::Suspicious);
}

#[test]
fn an_archive_behind_something_else() {
    let mut bytes = b"PK\x03\x04junk".to_vec();
    bytes.extend(archive(&dict_of(&plain())));
    assert!(matches!(
        read(bytes),
        Err(FormatError::Archive { offset: 0, .. })
    ));
}

/// Six gigabytes that are not on the disk: offsets beyond 32 bits, and nothing of the data is read.
#[test]
fn a_large_sparse_archive() {
    let bytes: u64 = 6 << 30;
    let mut pickle = b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nByteStorage\nU\x010U\x03cpu".to_vec();
    let size = [b"\x8a\x05".as_slice(), &bytes.to_le_bytes()[..5]].concat();
    pickle.extend([&size[..], b"tQK\x00", &size[..], b"\x85K\x01\x85\x89N"].concat());
    pickle.extend(b"tRs.");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt");
    let mut file = std::fs::File::create(&path).unwrap();
    let data = Record::new("a/data/0", b"");
    let version = Record::new("a/version", b"3\n");
    let first = Record::new("a/data.pkl", &pickle);
    let mut start = first.header(b"PK\x03\x04", &first.name, false);
    start.extend(first.name.as_bytes());
    start.extend(&pickle);
    let data_at = start.len() as u64;
    // The sizes of the large record are in a zip64 field; the local header has a descriptor instead.
    let mut header = data.header(b"PK\x03\x04", &data.name, false);
    header[6] = 8;
    start.extend(header);
    start.extend(data.name.as_bytes());
    file.write_all(&start).unwrap();
    file.seek(SeekFrom::Current(i64::try_from(bytes).unwrap()))
        .unwrap();
    let version_at = start.len() as u64 + bytes;
    let mut end = version.header(b"PK\x03\x04", &version.name, false);
    end.extend(version.name.as_bytes());
    end.extend(b"3\n");
    let directory_at = version_at + end.len() as u64;
    let mut directory = Vec::new();
    for (record, sizes, offset) in [
        (&first, None, 0),
        (&data, Some(bytes), data_at),
        (&version, None, version_at),
    ] {
        directory.extend(central64(record, sizes, offset));
    }
    let eocd_at = directory_at + directory.len() as u64;
    end.extend(&directory);
    end.extend(b"PK\x06\x06");
    end.extend(44_u64.to_le_bytes());
    end.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for number in [3, 3, directory.len() as u64, directory_at] {
        end.extend(number.to_le_bytes());
    }
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend(eocd_at.to_le_bytes());
    end.extend([1, 0, 0, 0]);
    end.extend(b"PK\x05\x06\0\0\0\0");
    end.extend([0xff; 12]);
    end.extend([0, 0]);
    file.write_all(&end).unwrap();
    drop(file);

    let clock = Instant::now();
    let checkpoint = read_source(&Source::open(&path).unwrap(), &ReadOptions::default()).unwrap();
    assert!(clock.elapsed() < Duration::from_secs(5));
    assert_eq!(checkpoint.tensors()[0].bytes(), bytes);
    assert_eq!(checkpoint.storages()[0].file_bytes(), bytes);
    assert!(checkpoint.totals().overhead_bytes < 1000);
}

/// A directory entry with its offset, and maybe its sizes, in a zip64 field.
fn central64(record: &Record, sizes: Option<u64>, offset: u64) -> Vec<u8> {
    let mut extra = Vec::new();
    for size in sizes.into_iter().flat_map(|size| [size, size]) {
        extra.extend(size.to_le_bytes());
    }
    extra.extend(offset.to_le_bytes());
    let mut out = record.header(b"PK\x01\x02", &record.name, true);
    if sizes.is_some() {
        out[8] = 8;
        out[20..28].fill(0xff);
    }
    out[30..32].copy_from_slice(&u16::try_from(extra.len() + 4).unwrap().to_le_bytes());
    out.extend([0; 10]);
    out.extend([0xff; 4]);
    out.extend(record.name.as_bytes());
    out.extend([1, 0]);
    out.extend(u16::try_from(extra.len()).unwrap().to_le_bytes());
    out.extend(extra);
    out
}

#[test]
fn one_bit_flipped_never_changes_the_list_silently() {
    let whole = archive(&dict_of(&plain()));
    let truth = read(whole.clone()).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(checkpoint) = read(bytes) else {
            continue;
        };
        let same = checkpoint.tensors() == truth.tensors();
        assert!(same || !checkpoint.findings().is_empty(), "bit {bit}");
    }
}

#[test]
fn tensors_that_cannot_be() {
    let w = |offset: &[u8], size: &[u8], stride: &[u8]| {
        archive(&dict_of(&tensor(offset, size, stride)))
    };
    let negative = |fault| matches!(fault, TensorFault::Negative { .. });
    assert!(negative(tensor_fault(w(
        b"J\xff\xff\xff\xff",
        b"K\x04\x85",
        b"K\x01\x85"
    ))));
    assert!(negative(tensor_fault(w(
        b"K\x00",
        b"J\xff\xff\xff\xff\x85",
        b"K\x01\x85"
    ))));
    assert!(negative(tensor_fault(w(
        b"K\x00",
        b"K\x04\x85",
        b"J\xff\xff\xff\xff\x85"
    ))));
    let outside = w(b"K\x01", b"K\x04\x85", b"K\x01\x85");
    assert!(matches!(
        tensor_fault(outside),
        TensorFault::OutOfStorage {
            needed_bytes: 20,
            storage_bytes: 16
        }
    ));
    let huge = b"\x8a\x08\0\0\0\0\0\0\0\x40".as_slice();
    let mut size = b"(".to_vec();
    size.extend(huge.repeat(4));
    size.push(b't');
    assert_eq!(
        tensor_fault(w(b"K\x00", &size, b"(K\x01K\x01K\x01K\x01t")),
        TensorFault::TooLarge
    );
    let long = b"\x8a\x09\0\0\0\0\0\0\0\0\x01\x85";
    assert_eq!(
        tensor_fault(w(b"K\x00", long, b"K\x01\x85")),
        TensorFault::TooLarge
    );
    let strides = w(b"K\x00", b"K\x04\x85", b"K\x01K\x01\x86");
    assert!(matches!(
        read(strides),
        Err(FormatError::Model(ModelError::StrideCount { .. }))
    ));
    let mut many = b"(".to_vec();
    many.extend(b"K\x01".repeat(65));
    many.push(b't');
    assert_eq!(
        tensor_fault(w(b"K\x00", &many, &many)),
        TensorFault::Dimensions(65)
    );
    let text = w(b"K\x00", b"U\x014\x85", b"K\x01\x85");
    assert!(matches!(tensor_fault(text), TensorFault::Argument { .. }));
}

#[test]
fn storages_that_cannot_be() {
    let change = |from: &[u8], to: &[u8]| {
        let pickle = dict_of(&plain());
        let at = pickle.windows(from.len()).position(|w| w == from).unwrap();
        let mut changed = pickle[..at].to_vec();
        changed.extend(to);
        changed.extend(&pickle[at + from.len()..]);
        archive(&changed)
    };
    assert_eq!(
        tensor_fault(change(b"ctorch\nFloatStorage", b"ctorch\nFloat128Storage")),
        TensorFault::UnknownDType("torch.Float128Storage".to_owned())
    );
    assert_eq!(
        tensor_fault(change(b"ctorch\nFloatStorage", b"cevil\nFloatStorage")),
        TensorFault::UnknownDType("evil.FloatStorage".to_owned())
    );
    assert_eq!(
        tensor_fault(change(b"U\x010", b"U\x011")),
        TensorFault::NoRecord("data/1".to_owned())
    );
    assert!(matches!(
        tensor_fault(change(b"cpuK\x04", b"cpuK\x05")),
        TensorFault::ShortRecord {
            needed_bytes: 20,
            record_bytes: 16,
            ..
        }
    ));
    assert!(matches!(
        tensor_fault(change(b"cpuK\x04", b"cpuJ\xff\xff\xff\xff")),
        TensorFault::Negative { .. }
    ));
    assert_eq!(
        tensor_fault(change(
            b"cpuK\x04",
            b"cpu\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"
        )),
        TensorFault::TooLarge
    );
}

#[test]
fn pickles_that_cannot_be() {
    let fault = |pickle: &[u8]| pickle_fault(archive(pickle));
    assert!(matches!(
        fault(b"\x80\x02}"),
        PickleErrorKind::Truncated { .. }
    ));
    assert!(matches!(
        fault(b"\x80\x63N."),
        PickleErrorKind::Protocol(0x63)
    ));
    assert!(matches!(
        fault(b"\x80\x02\xff."),
        PickleErrorKind::UnknownOpcode(0xff)
    ));
    assert!(matches!(
        fault(b"\x80\x02h\x05."),
        PickleErrorKind::NoMemo(5)
    ));
    let mut globals = b"\x80\x02".to_vec();
    for i in 0..70_000 {
        globals.extend(format!("cm{i}\nn\n0").as_bytes());
    }
    globals.extend(b"N.");
    assert!(matches!(fault(&globals), PickleErrorKind::Globals(_)));
}

#[test]
fn an_error_says_what_dangerous_things_come_before_it() {
    let error = read(archive(b"\x80\x02cposix\nsystem\nh\x63.")).unwrap_err();
    assert!(error.hint().unwrap().contains("`posix.system`"));
}

#[test]
fn references_that_multiply() {
    // 2^60 tuples of nothing cost nothing.
    let mut empty = b"\x80\x02)\x85q\x00".to_vec();
    let mut full = b"\x80\x02".to_vec();
    full.extend(plain());
    full.extend(b"q\x00");
    for i in 0..60 {
        for pickle in [&mut empty, &mut full] {
            pickle.extend([b'h', i, b'h', i, 0x86, b'q', i + 1]);
        }
    }
    empty.push(b'.');
    full.push(b'.');
    assert!(read(archive(&empty)).unwrap().tensors().is_empty());
    assert!(matches!(
        read(archive(&full)),
        Err(FormatError::Limit { .. })
    ));
    // Every list holds every list.
    let mut graph = b"\x80\x02".to_vec();
    for i in 0..30 {
        graph.extend([b']', b'q', i, b'0']);
    }
    for i in 0..30 {
        graph.extend([b'h', i, b'(']);
        graph.extend((0..30).flat_map(|j| [b'h', j]));
        graph.extend(b"e0");
    }
    graph.extend(b"h\x00.");
    assert!(matches!(
        read(archive(&graph)),
        Err(FormatError::Limit { .. })
    ));
}

#[test]
fn names_that_multiply() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(plain());
    deep.extend(b"q\x000");
    for _ in 0..6000 {
        deep.extend(b"}U\x01wh\x00sU\xc8");
        deep.extend([b'k'; 200]);
    }
    deep.push(b'N');
    deep.extend([b's'; 6000]);
    deep.push(b'.');
    assert!(matches!(
        read(archive(&deep)),
        Err(FormatError::Limit { .. })
    ));
}

#[test]
fn verdicts() {
    let verdict = |pickle: &[u8]| read(archive(pickle)).unwrap().security().verdict;
    assert_eq!(verdict(b"\x80\x02}."), Verdict::Clean);
    assert_eq!(verdict(b"\x80\x02cos\nsystem\n."), Verdict::Dangerous);
    assert_eq!(
        verdict(b"\x80\x02cos\nsystem\n(U\x02lstR."),
        Verdict::Dangerous
    );
    assert_eq!(
        verdict(b"\x80\x02(U\x02lsios\nsystem\n."),
        Verdict::Dangerous
    );
    assert_eq!(verdict(b"\x80\x02\x82\x01."), Verdict::Dangerous);
    assert_eq!(
        verdict(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93."),
        Verdict::Dangerous
    );
    assert_eq!(verdict(b"\x80\x02cmine\nNet\n)\x81."), Verdict::Suspicious);
    // Attributes of an allowed class itself are set.
    assert_eq!(
        verdict(b"\x80\x02ccollections\nOrderedDict\n}b."),
        Verdict::Dangerous
    );
    // A second pickle behind the first, and one in a record of its own.
    assert_eq!(
        verdict(b"\x80\x02}.\x80\x02cos\nsystem\n."),
        Verdict::Suspicious
    );
    let mut all = records(b"\x80\x02}.");
    all.push(Record::new("a/extra.pkl", b"\x80\x02cos\nsystem\n."));
    assert_eq!(
        read(zip(&all)).unwrap().security().verdict,
        Verdict::Suspicious
    );
    // Weights that look like a pickle are weights.
    let mut all = records(&dict_of(&plain()));
    all[1] = Record::new("a/data/0", b"cos\nsystem\n(U\x02ls");
    assert_eq!(read(zip(&all)).unwrap().security().verdict, Verdict::Clean);
}

#[test]
fn names_reach_nobody_raw() {
    let error = read(archive(b"\x80\x02}U\x0a\x1b[2J\x1b[31mXNs\x80\x63.")).unwrap_err();
    assert!(!error.to_string().contains('\u{1b}'));
}

#[test]
fn legacy_files_that_cannot_be() {
    let magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.".to_vec();
    let system = b"\x80\x02}(U\x10protocol_versionM\xe9\x03U\x0dlittle_endian\x88u.";
    let with = |count: i64, data: &[u8], keys: &[u8]| {
        let mut out = magic.clone();
        out.extend(system);
        out.extend(dict_of(&plain()));
        out.extend(keys);
        out.extend(count.to_le_bytes());
        out.extend(data);
        out
    };
    let keys = b"\x80\x02]U\x010a.";
    assert_eq!(read(with(4, &[0; 16], keys)).unwrap().tensors().len(), 1);
    assert!(matches!(
        read(with(5, &[0; 20], keys)),
        Err(FormatError::Structure { .. })
    ));
    assert!(matches!(
        read(with(-4, &[0; 16], keys)),
        Err(FormatError::Structure { .. })
    ));
    assert!(matches!(
        read(with(1 << 40, &[0; 16], keys)),
        Err(FormatError::Structure { .. })
    ));
    assert!(matches!(
        read(with(4, &[0; 15], keys)),
        Err(FormatError::Truncated { .. })
    ));
    assert!(matches!(
        read(with(4, &[0; 16], b"\x80\x02]U\x011a.")),
        Err(FormatError::Structure { .. })
    ));
    assert!(read(with(4, &[0; 16], b"\x80\x02].")).is_err());
    let trailing = with(4, b"0123456789abcdef\x80\x02cos\nsystem\n.", keys);
    assert_eq!(
        read(trailing).unwrap().security().verdict,
        Verdict::Suspicious
    );
    let whole = with(4, &[0; 16], keys);
    for length in 0..whole.len() {
        assert!(read(whole[..length].to_vec()).is_err(), "cut at {length}");
    }
}

#[test]
fn safetensors_that_cannot_be() {
    let file = |header: &str, data: &[u8]| {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(data);
        out
    };
    let one = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_eq!(read(file(one, &[0; 4])).unwrap().tensors().len(), 1);
    let structure = |bytes| matches!(read(bytes), Err(FormatError::Structure { .. }));
    assert!(structure(file(one, &[0; 5])));
    assert!(matches!(
        read(file(one, &[0; 3])),
        Err(FormatError::Truncated { .. })
    ));
    for (from, to) in [
        ("F32", "F31"),
        ("[1]", "[2]"),
        ("[1]", "[-1]"),
        ("[1]", "[1.0]"),
        ("[1]", "[4294967296,4294967296]"),
        ("[0,4]", "[4,0]"),
        ("[0,4]", "[1,5]"),
        ("\"shape\":[1],", ""),
    ] {
        let header = one.replace(from, to);
        assert!(read(file(&header, &[0; 4])).is_err(), "{header}");
    }
    let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert!(structure(file(twice, &[0; 4])));
    let overlap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert!(structure(file(overlap, &[0; 4])));
    assert!(structure(b"\xff\xff\xff\xff\xff\xff\xff\xff{}".to_vec()));
    assert!(read(b"\xff\0\0\0\0\0\0\0{}".to_vec()).is_err());
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(structure(file(&deep, &[])));
    // A header of 0x2078 bytes starts like a zlib stream.
    let padded = format!("{one}{}", " ".repeat(0x2078 - one.len()));
    assert!(read(file(&padded, &[0; 4])).is_ok());
}

#[test]
fn inputs_are_plain_values() {
    let mut pickle = b"\x80\x02(".to_vec();
    pickle.extend(plain());
    pickle.extend(b"K\x03}U\x01aNst.");
    let source = Source::from_bytes(Path::new("test"), archive(&pickle));
    let inputs = read_inputs(&source).unwrap();
    let Value::Tuple(items) = &inputs.value else {
        panic!("{:?}", inputs.value);
    };
    let Value::Tensor(tensor) = &items[0] else {
        panic!("{:?}", items[0]);
    };
    assert_eq!(tensor.shape.as_slice(), [4]);
    assert_eq!(items[1], Value::Int(3));
    let entry = (Value::Str("a".to_owned()), Value::None);
    assert_eq!(items[2], Value::Dict(vec![entry]));
    let storage = &inputs.storages[tensor.storage.index()];
    assert_eq!(storage_bytes(&source, storage).unwrap().len(), 16);
    let call = Source::from_bytes(Path::new("test"), archive(b"\x80\x02cos\nsystem\n)R."));
    assert!(matches!(
        read_inputs(&call),
        Err(FormatError::Structure { .. })
    ));
}

/// What `torch.save` wrote for one float32 storage of 4 elements before 1.6, with the pickle of the object given.
fn storage_stream(object: &[u8]) -> Vec<u8> {
    let mut out = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    out.extend(b"\x80\x02M\xe9\x03.");
    out.extend(b"\x80\x02}U\x0dlittle_endian\x88s.");
    out.extend(object);
    out.extend(b"\x80\x02]U\x010a.");
    out.extend(4_u64.to_le_bytes());
    out.extend([7; 16]);
    out
}

/// `{"w": tensor}` as `pickle.dump` writes it: the storage loads itself from bytes that `argument` makes.
fn dumped(argument: &[u8]) -> Vec<u8> {
    let mut out =
        b"\x80\x03}U\x01wctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\n"
            .to_vec();
    out.extend(argument);
    out.extend(b"\x85RK\x00K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs.");
    out
}

const STORAGE: &[u8] = b"\x80\x02(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04NtQ.";

/// Bytes as protocol 3 and later write them.
fn bin_bytes(contents: &[u8]) -> Vec<u8> {
    let mut out = b"B".to_vec();
    out.extend(u32::try_from(contents.len()).unwrap().to_le_bytes());
    out.extend(contents);
    out
}

#[test]
fn a_dumped_state_dict_holds_its_storages_as_bytes() {
    let bytes = dumped(&bin_bytes(&storage_stream(STORAGE)));
    let source = Source::from_bytes(Path::new("test"), bytes.clone());
    let checkpoint = read_source(&source, &ReadOptions::default()).unwrap();
    assert_eq!(checkpoint.security().verdict, Verdict::Clean);
    assert_eq!(checkpoint.tensors()[0].name(), "w");
    let storage = &checkpoint.storages()[0];
    assert_eq!((storage.bytes(), storage.file_bytes()), (16, 16));
    assert_eq!(&*storage_bytes(&source, storage).unwrap(), [7; 16]);

    // Protocols 0 to 2 write bytes as text.
    let stream = storage_stream(STORAGE);
    let text: String = stream.iter().map(|byte| char::from(*byte)).collect();
    let mut argument = b"c_codecs\nencode\nX".to_vec();
    argument.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    argument.extend(text.as_bytes());
    argument.extend(b"U\x06latin1\x86R");
    let checkpoint = read(dumped(&argument)).unwrap();
    assert_eq!(checkpoint.storages()[0].bytes(), 16);
    assert_eq!(checkpoint.security().verdict, Verdict::Clean);
}

#[test]
fn bytes_that_load_themselves_are_looked_into() {
    // What such bytes name counts in full.
    let evil = b"\x80\x02cos\nsystem\nU\x02ls\x85R0(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04NtQ.";
    let checkpoint = read(dumped(&bin_bytes(&storage_stream(evil)))).unwrap();
    assert_eq!(checkpoint.security().verdict, Verdict::Dangerous);
    assert!(
        checkpoint
            .security()
            .unexpected_globals
            .contains(&"os system".to_owned())
    );
    // Bytes that are no storage, and bytes that only exist when the pickle runs.
    assert!(read(dumped(&bin_bytes(b"cos\nsystem\n."))).is_err());
    assert!(read(dumped(b"cbuiltins\nbytes\n)R")).is_err());
    // The function itself, handed to something else.
    let mut other = b"\x80\x02}(U\x01wctorch.storage\n_load_from_bytes\nU\x01v".to_vec();
    other.extend(b"cfunctools\npartial\nctorch.storage\n_load_from_bytes\n\x85Ru.");
    let checkpoint = read(other).unwrap();
    assert_eq!(checkpoint.security().verdict, Verdict::Dangerous);
}

/// An archive in which what is said twice is said differently: PyTorch and Python believe another place than rawzip.
#[test]
fn an_archive_that_contradicts_itself() {
    let pickle = dict_of(&plain());
    let whole = archive(&pickle);
    let end = whole.len() - 22;

    // A second directory behind the first, which only the end record of large archives points at.
    let other = archive(b"\x80\x02cos\nsystem\n.");
    let mut two = whole[..end].to_vec();
    let base = two.len() as u64;
    two.extend(&other[..other.len() - 22]);
    let field = |place: usize| {
        u64::from(u32::from_le_bytes(
            other[place..place + 4].try_into().unwrap(),
        ))
    };
    let (size, offset) = (field(other.len() - 10), field(other.len() - 6) + base);
    let record = two.len() as u64;
    two.extend(b"PK\x06\x06");
    two.extend(44_u64.to_le_bytes());
    two.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for number in [3, 3, size, offset] {
        two.extend(number.to_le_bytes());
    }
    two.extend(b"PK\x06\x07\0\0\0\0");
    two.extend(record.to_le_bytes());
    two.extend([1, 0, 0, 0]);
    two.extend(&whole[end..]);
    assert!(matches!(read(two), Err(FormatError::Archive { .. })));

    let mut size = whole.clone();
    size[end + 12] ^= 4;
    assert!(matches!(read(size), Err(FormatError::Archive { .. })));

    let at =
        |bytes: &[u8], signature: &[u8]| bytes.windows(4).position(|w| w == signature).unwrap();
    let mut flags = whole.clone();
    flags[at(&whole, b"PK\x03\x04") + 6] ^= 8;
    assert!(matches!(
        member_fault(flags),
        MemberFault::Mismatch { what: "flags", .. }
    ));

    // Both headers say that sizes follow the data; the local one has some that are others.
    let mut sizes = whole.clone();
    let (local, central) = (at(&whole, b"PK\x03\x04"), at(&whole, b"PK\x01\x02"));
    sizes[local + 6] ^= 8;
    sizes[central + 8] ^= 8;
    sizes[local + 18] ^= 1;
    assert!(matches!(
        member_fault(sizes),
        MemberFault::Mismatch {
            what: "compressed size",
            ..
        }
    ));

    // Another name in an extra field, for readers that know Unicode.
    let mut field = vec![0x75, 0x70, 14, 0, 1];
    field.extend(crc32fast::hash(b"a/data.pkl").to_le_bytes());
    field.extend(b"a/evil.pk");
    let mut named = whole.clone();
    let name_end = central + 46 + "a/data.pkl".len();
    named.splice(name_end..name_end, field.iter().copied());
    named[central + 30] = u8::try_from(field.len()).unwrap();
    let end = end + field.len();
    named[end + 12] += u8::try_from(field.len()).unwrap();
    assert!(matches!(
        member_fault(named),
        MemberFault::Mismatch { what: "name", .. }
    ));
}

#[test]
fn bombs_in_code() {
    let script = |code: &[&[u8]]| {
        let mut all = vec![
            Record::new("a/data.pkl", b"\x80\x02}."),
            Record::new("a/constants.pkl", b"\x80\x02)."),
        ];
        for (index, code) in code.iter().enumerate() {
            all.push(Record::deflated(&format!("a/code/{index}.py"), code));
        }
        read(zip(&all))
    };
    let methods = [
        b"class A(Module):\n".as_slice(),
        &b"  def f(self) -> int:\n".repeat(1 << 20),
    ]
    .concat();
    assert!(matches!(
        script(&[&methods]),
        Err(FormatError::Limit { .. })
    ));
    let names = [
        b"class A(Module):\n  __parameters__ = [".as_slice(),
        &br#""a","#.repeat(1 << 20),
    ]
    .concat();
    assert!(matches!(script(&[&names]), Err(FormatError::Limit { .. })));
    // Each is within the bound of one record, but not all of them together.
    let blank = vec![b'\n'; 15 << 20];
    let fault = script(&[&blank, &blank, &blank]);
    assert!(matches!(
        fault,
        Err(FormatError::Member {
            fault: MemberFault::Bomb { .. },
            ..
        })
    ));
}

/// Six gigabytes in the format of before 1.6, of which nothing is on the disk.
#[test]
fn a_large_sparse_stream() {
    let bytes: u64 = 6 << 30;
    let size = [b"\x8a\x05".as_slice(), &bytes.to_le_bytes()[..5]].concat();
    let mut object = b"\x80\x02}U\x01wctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nByteStorage\nU\x010U\x03cpu".to_vec();
    object.extend([&size[..], b"NtQK\x00", &size[..], b"\x85K\x01\x85\x89N"].concat());
    object.extend(b"tRs.");
    let mut start = storage_stream(&object);
    start.truncate(start.len() - 24);
    start.extend(bytes.to_le_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.pt");
    std::fs::write(&path, &start).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(start.len() as u64 + bytes).unwrap();
    let checkpoint = read_source(&Source::open(&path).unwrap(), &ReadOptions::default()).unwrap();
    assert_eq!(checkpoint.tensors()[0].bytes(), bytes);
    assert_eq!(
        checkpoint.storages()[0].data_offset(),
        Some(start.len() as u64)
    );
}

/// Rows of different lengths and what protocol 5 does with numpy's arrays, as PyTorch 2.11 and numpy 2 write them.
#[test]
fn jagged_tensors_and_buffers_of_numpy() {
    let mut value = b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch.nested._internal.nested_tensor\n_rebuild_njt\nctorch.nested._internal.nested_tensor\nNestedTensor\n}(U\x06values".to_vec();
    value.extend(plain());
    value.extend(b"q\x09U\x07offsets");
    value.extend(tensor(b"K\x00", b"K\x02\x85", b"K\x01\x85"));
    value.extend(b"U\x07lengthsNu\x85}U\x07_valuesh\x09stR");
    let checkpoint = read(archive(&dict_of(&value))).unwrap();
    assert_eq!(checkpoint.security().verdict, Verdict::Clean);
    let tensors = checkpoint.tensors().iter();
    let names: Vec<&str> = tensors
        .map(inspect_checkpoint::checkpoint::Tensor::name)
        .collect();
    assert_eq!(names, ["w.values", "w.offsets"]);
    assert_eq!(checkpoint.composites()[0].parts, names);

    let array = b"cnumpy._core.numeric\n_frombuffer\n(C\x0812345678cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbK\x02\x85U\x01CtR";
    let checkpoint = read(archive(&dict_of(array))).unwrap();
    let array = &checkpoint.numpy_arrays()[0];
    assert_eq!(
        (array.name.as_str(), array.dtype.as_str()),
        ("w", "float32")
    );
    assert_eq!((array.shape.as_slice(), array.bytes), (&[2][..], 8));
}
