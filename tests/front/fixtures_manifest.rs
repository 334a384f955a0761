//! Every fixture is the file that its truth was computed from, every file has its line in the manifest, and all of
//! them together stay small.

#![allow(
    clippy::unwrap_used,
    reason = "clippy excuses functions marked #[test], and not their helpers"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

/// What all committed fixtures may weigh together.
const LIMIT_BYTES: u64 = 3_000_000;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn sha256(path: &Path) -> String {
    let data = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    format!("{:x}", Sha256::digest(data))
}

fn manifest() -> Value {
    serde_json::from_slice(&fs::read(fixtures().join("MANIFEST.json")).unwrap()).unwrap()
}

/// Every file below `folder`, as paths relative to the fixtures; the fuzzers' corpus has no manifest.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path.strip_prefix(fixtures()).unwrap().to_path_buf());
        }
    }
}

#[test]
fn every_fixture_is_the_one_described() {
    let manifest = manifest();
    let rows = manifest["files"].as_array().unwrap();
    assert!(rows.len() > 5, "the manifest lists {} files", rows.len());
    for row in rows {
        let path = fixtures().join(row["path"].as_str().unwrap());
        assert_eq!(
            fs::metadata(&path).unwrap().len(),
            row["bytes"].as_u64().unwrap(),
            "{}",
            path.display()
        );
        assert_eq!(
            sha256(&path),
            row["sha256"].as_str().unwrap(),
            "{}",
            path.display()
        );
        if let Some(truth) = row["truth"].as_str() {
            let truth = fixtures().join(truth);
            assert_eq!(
                sha256(&truth),
                row["truth_sha256"].as_str().unwrap(),
                "{}",
                truth.display()
            );
            serde_json::from_slice::<Value>(&fs::read(&truth).unwrap()).unwrap();
        }
    }
}

#[test]
fn nothing_lies_about_undescribed() {
    let manifest = manifest();
    let described: BTreeSet<PathBuf> = manifest["files"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| [row["path"].as_str(), row["truth"].as_str()])
        .flatten()
        .map(PathBuf::from)
        .collect();
    let mut found = Vec::new();
    files(&fixtures(), &mut found);
    let undescribed: Vec<_> = found
        .iter()
        .filter(|path| !path.starts_with("corpus"))
        .filter(|path| !matches!(path.to_str(), Some("MANIFEST.json" | "README.md")))
        .filter(|path| !described.contains(*path))
        .collect();
    assert!(
        undescribed.is_empty(),
        "not in the manifest: {undescribed:?}"
    );
}

#[test]
fn all_fixtures_together_stay_small() {
    let mut found = Vec::new();
    files(&fixtures(), &mut found);
    let bytes: u64 = found
        .iter()
        .map(|path| fs::metadata(fixtures().join(path)).unwrap().len())
        .sum();
    assert!(
        bytes < LIMIT_BYTES,
        "{bytes} bytes of fixtures, {LIMIT_BYTES} are the limit"
    );
}

/// The published figures of the real networks: a truth made anew must not drift from them.
#[test]
fn the_truths_hold_the_published_figures() {
    let truth = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(fixtures().join(name)).unwrap()).unwrap()
    };
    let parameters = |value: &Value| value["totals"]["by_role"]["parameter"]["numel"].as_u64();
    let resnet18 = truth("resnet18.pt.truth.json");
    assert_eq!(resnet18["totals"]["tensors"], 122);
    assert_eq!(
        resnet18["totals"]["by_role"]["parameter"],
        serde_json::json!({"tensors": 62, "numel": 11_689_512, "bytes": 46_758_048})
    );
    assert_eq!(resnet18["totals"]["by_role"]["buffer"]["bytes"], 38_560);
    assert_eq!(resnet18["run"]["flops"], 3_628_146_688_u64);
    let vgg16 = truth("vgg16.pt.truth.json");
    assert_eq!(parameters(&vgg16), Some(138_357_544));
    assert_eq!(vgg16["run"]["flops"], 30_940_528_640_u64);
    let vit = truth("vit_b_16.pt.truth.json");
    assert_eq!(parameters(&vit), Some(86_567_656));
    assert_eq!(vit["run"]["flops"], 35_127_656_448_u64);
}
