//! Files of more than 4 GiB, nearly all of it a hole that takes up no room on the disk.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use inspect_checkpoint::checkpoint::{Format, Verdict};
use inspect_checkpoint::format::{self, ReadOptions};

const HOLE_BYTES: u64 = (1 << 32) + 4096;

/// Writes `before`, a hole, and `after`; gives the size of the file.
fn write(file: &mut File, before: &[u8], after: &[u8]) -> u64 {
    file.write_all(before).unwrap();
    file.seek(SeekFrom::Current(i64::try_from(HOLE_BYTES).unwrap()))
        .unwrap();
    file.write_all(after).unwrap();
    file.metadata().unwrap().len()
}

#[test]
fn what_a_pickle_names_behind_4_gib_is_seen() {
    // PROTO 4, BINBYTES8 with the hole as its bytes; then a global, and a tuple of both.
    let before = [b"\x80\x04\x8e".as_slice(), &HOLE_BYTES.to_le_bytes()].concat();
    let after = b"\x8c\x08builtins\x8c\x04eval\x93\x86.";
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let bytes = write(file.as_file_mut(), &before, after);
    let checkpoint = format::read(file.path(), &ReadOptions::default()).unwrap();
    assert_eq!(checkpoint.format(), Format::Pickle);
    assert_eq!(checkpoint.security().verdict, Verdict::Dangerous);
    assert_eq!(checkpoint.security().globals, ["builtins eval"]);
    assert_eq!(checkpoint.totals().by_class.pickle, bytes);
    assert!(
        checkpoint
            .findings()
            .iter()
            .all(|f| f.code != "trailing-data"),
        "{:?}",
        checkpoint.findings()
    );
}

#[test]
fn a_fault_behind_4_gib_is_where_it_says() {
    let before = [b"\x80\x04\x8e".as_slice(), &HOLE_BYTES.to_le_bytes()].concat();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write(file.as_file_mut(), &before, b"\xff");
    let error = format::read(file.path(), &ReadOptions::default()).unwrap_err();
    let text = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ");
    let place = (before.len() as u64 + HOLE_BYTES).to_string();
    assert!(text.contains(&place), "{text} does not name byte {place}");
}
