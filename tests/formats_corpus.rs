//! The fuzzers' corpus: every file goes through its target.

#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests, which clippy does not see as tests"
)]

use std::fs;
use std::path::Path;

#[path = "fuzz/entry.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::redundant_closure_for_method_calls,
    reason = "written for the fuzzers"
)]
mod entry;

#[test]
fn every_file_of_the_corpus_is_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus");
    let mut files = 0;
    for folder in fs::read_dir(&corpus).unwrap() {
        let folder = folder.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        let target = entry::target(name).unwrap_or_else(|| panic!("no target `{name}`"));
        for file in fs::read_dir(&folder).unwrap() {
            target(&fs::read(file.unwrap().path()).unwrap());
            files += 1;
        }
    }
    assert!(files >= 40, "only {files} files");
}
