//! `torch.package` archives: what is in them is listed, and nothing of it runs.

use std::fs;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use crate::archive::{Record, tensor, zip};
use crate::common::{Said, report, run};
use serde_json::{Value, json};

const TOY: &str = "fixtures/package/toy.pt";

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|f| f["code"].as_str().unwrap()).collect()
}

/// The fixture with records put in, or in place of others.
fn changed(records: &[(&str, &[u8])]) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TOY);
    let mut old = zip_reader(&fs::read(path).unwrap());
    for (name, contents) in records {
        old.retain(|(known, _)| known != name);
        old.push(((*name).to_owned(), contents.to_vec()));
    }
    zip_writer(&old)
}

/// Records of an archive that stores them one behind the other, by their local headers.
fn zip_reader(data: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut records = Vec::new();
    let mut cursor = Cursor::new(data);
    loop {
        let mut header = [0_u8; 30];
        if cursor.read_exact(&mut header).is_err() || &header[..4] != b"PK\x03\x04" {
            return records;
        }
        let number = |at: usize, len: usize| -> usize {
            let bytes = header[at..at + len].iter().rev();
            bytes.fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let mut name = vec![0; number(26, 2)];
        cursor.read_exact(&mut name).unwrap();
        let mut extra = vec![0; number(28, 2)];
        cursor.read_exact(&mut extra).unwrap();
        let mut contents = vec![0; number(18, 4)];
        cursor.read_exact(&mut contents).unwrap();
        records.push((String::from_utf8(name).unwrap(), contents));
    }
}

fn zip_writer(records: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, contents) in records {
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        common.extend(crc32fast::hash(contents).to_le_bytes());
        let length = u32::try_from(contents.len()).unwrap().to_le_bytes();
        common.extend([length, length].concat());
        common.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        common.extend([0, 0]);
        directory.extend([b"PK\x01\x02\x14\0" as &[u8], &common, &[0; 10]].concat());
        directory.extend(u32::try_from(out.len()).unwrap().to_le_bytes());
        directory.extend(name.as_bytes());
        out.extend([b"PK\x03\x04" as &[u8], &common, name.as_bytes(), contents].concat());
    }
    let start = u32::try_from(out.len()).unwrap().to_le_bytes();
    let size = u32::try_from(directory.len()).unwrap().to_le_bytes();
    let count = u16::try_from(records.len()).unwrap().to_le_bytes();
    out.extend(&directory);
    out.extend(
        [
            b"PK\x05\x06\0\0\0\0" as &[u8],
            &count,
            &count,
            &size,
            &start,
            &[0, 0],
        ]
        .concat(),
    );
    out
}

fn said_of(data: &[u8], args: &[&str]) -> Said {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(data).unwrap();
    run(&[&[file.path().to_str().unwrap()], args].concat())
}

#[test]
fn every_pickle_of_a_package_is_listed() {
    let (report, said) = report(&[TOY, "--verify", "--hash", "--stats"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    assert_eq!(report["file"]["format"], "torch-package");
    assert_eq!(report["verified"]["damaged"], 0);
    let truth = fs::read(format!("{TOY}.truth.json")).unwrap();
    let truth: Value = serde_json::from_slice(&truth).unwrap();
    let own = report["tensors"].as_array().unwrap();
    assert_eq!(own.len(), truth["tensors"].as_array().unwrap().len());
    for tensor in truth["tensors"].as_array().unwrap() {
        let row = own.iter().find(|row| row["name"] == tensor["name"]);
        let row = row.unwrap_or_else(|| panic!("{}", tensor["name"]));
        for key in ["dtype", "shape", "strides", "requires_grad"] {
            assert_eq!(row[key], tensor[key], "{} {key}", tensor["name"]);
        }
        if !tensor["role"].is_null() {
            assert_eq!(row["role"], tensor["role"], "{}", tensor["name"]);
        }
    }
    assert_eq!(
        report["totals"]["storage_bytes"],
        truth["totals"]["storage_bytes"]
    );
    assert_eq!(report["security"]["verdict"], "suspicious");
    assert_eq!(
        report["security"]["unexpected_globals"],
        json!(["toy_net Toy"])
    );
    let found = codes(&report);
    for code in ["package-code", "extern-modules", "mocked-modules"] {
        assert!(found.contains(&code), "{found:?}");
    }
    let objects = report["objects"].as_array().unwrap().iter();
    let objects: Vec<(&str, &str)> = objects
        .map(|o| (o["name"].as_str().unwrap(), o["value"].as_str().unwrap()))
        .collect();
    assert_eq!(
        objects,
        [
            ("models/epoch.pkl", "3"),
            ("scripted/linear.pkl", "TorchScript in .data/ts_code/0"),
            ("assets/labels.txt", "text or bytes"),
            ("assets/blob.bin", "text or bytes"),
        ]
    );
}

#[test]
fn a_package_without_source_is_clean() {
    let (report, said) = report(&["fixtures/package/plain.pt"]);
    assert_eq!(said.code, Some(0));
    assert_eq!(report["security"]["verdict"], "clean");
    assert_eq!(codes(&report), ["extern-modules"]);
    assert_eq!(report["tensors"][0]["name"], "weights/w.pkl::w");
}

#[test]
fn what_a_package_hides_is_found() {
    let system = b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.";
    for name in [
        "toy/models/evil.pkl",
        "toy/models/no_ending",
        "toy/.data/ts_code/1/data.pkl",
    ] {
        let said = said_of(&changed(&[(name, system)]), &[]);
        assert_eq!(said.code, Some(2), "{name}: {}", said.snapshot());
        assert!(
            said.stderr.contains("dangerous to load"),
            "{name}: {}",
            said.stderr
        );
        assert!(said.stdout.contains("os.system"), "{name}: {}", said.stdout);
    }
    // Who packs itself gives a function and arguments: both are looked at.
    let packed =
        b"\x80\x02(X\x0e\x00\x00\x00reduce_packageK\x07cos\nsystem\nX\x02\x00\x00\x00ls\x85tQ.";
    let said = said_of(&changed(&[("toy/models/evil.pkl", packed)]), &[]);
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
    assert!(said.stdout.contains("os.system"), "{}", said.stdout);
}

#[test]
fn a_broken_package_is_refused() {
    let lost = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nK\x63X\x03\x00\x00\x00cpuK\x04tQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89}tR.";
    let large = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nK\x00X\x03\x00\x00\x00cpu\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7ftQK\x00K\x02K\x02\x86K\x02K\x01\x86\x89}tR.";
    let cases: [(&str, &[u8], &str); 5] = [
        (
            "toy/models/lost.pkl",
            lost,
            "`.data/99.storage` is not in the file",
        ),
        ("toy/models/large.pkl", large, "64 bits"),
        ("toy/models/broken.pkl", b"\x80\x02}", "models/broken.pkl"),
        (
            "toy/../../evil.pkl",
            b"\x80\x02}.",
            "leaves the archive's folder",
        ),
        ("toy/.data/version", b"99", "version"),
    ];
    for (name, contents, expected) in cases {
        let said = said_of(&changed(&[(name, contents)]), &[]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{name}");
        assert!(said.stderr.contains(expected), "{name}: {}", said.stderr);
    }
    // Nothing that runs for long, or panics, wherever the file ends.
    let whole = changed(&[]);
    for length in (0..whole.len()).step_by(97) {
        let said = said_of(&whole[..length], &[]);
        assert_eq!(said.code, Some(2), "{length}: {}", said.snapshot());
    }
}

#[test]
fn names_are_split_behind_the_member() {
    let said = run(&["fixtures/package/toy.pt"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    let labels: Vec<&str> = said
        .stdout
        .lines()
        .filter_map(|line| line.split("  ").next())
        .collect();
    for label in ["models/toy.pkl::scale", "models/toy.pkl::fc"] {
        assert!(labels.contains(&label), "{labels:?}");
    }
    // A tensor that is all of a member has the member's name.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tensor.pt");
    let mut pickle = b"\x80\x02".to_vec();
    pickle.extend(tensor(b"K\x00", b"K\x04\x85", b"K\x01\x85"));
    pickle.push(b'.');
    let key = pickle
        .windows(3)
        .position(|bytes| bytes == b"U\x010")
        .unwrap();
    pickle.splice(key..key + 3, *b"U\x090.storage");
    let records = [
        Record::new("p/.data/version", b"6\n"),
        Record::new("p/.data/extern_modules", b""),
        Record::new("p/w/all.pkl", &pickle),
        Record::new("p/.data/0.storage", &[0; 16]),
    ];
    fs::write(&path, zip(&records)).unwrap();
    let (report, said) = report(&[path.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert_eq!(report["tensors"][0]["name"], "w/all.pkl");
}
