//! What `inspect FILE` says about every fixture, compared with what Python's torch says about it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::common::run;
use serde_json::Value;

fn read_json(path: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(path);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Fixtures of one group with their truth.
fn fixtures(group: &str) -> Vec<(String, Value)> {
    let manifest = read_json("MANIFEST.json");
    let rows = manifest["files"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .filter(|row| row["group"] == group && row["truth"].is_string())
        .map(|row| {
            (
                row["path"].as_str().unwrap().to_owned(),
                read_json(row["truth"].as_str().unwrap()),
            )
        })
        .collect();
    assert!(!found.is_empty(), "no fixtures in `{group}`");
    found
}

fn list(path: &str) -> Value {
    let file = format!("fixtures/{path}");
    let said = run(&[&file, "--no-run", "--format", "json"]);
    assert_eq!(said.code, Some(0), "{path}: {}", said.stderr);
    serde_json::from_str(&said.stdout).unwrap()
}

fn name(row: &Value) -> &str {
    row["name"].as_str().unwrap()
}

/// Names that share memory, as sets: the numbers of storages are not compared, only what is equal to what.
fn sharing(rows: &[&Value]) -> BTreeSet<BTreeSet<String>> {
    let mut groups: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        if let Some(storage) = row["storage"].as_u64() {
            groups
                .entry(storage)
                .or_default()
                .insert(name(row).to_owned());
        }
    }
    groups.into_values().collect()
}

/// Every row of the truth is in the report with the same facts; returns the report's rows that the truth has not.
fn compare<'a>(path: &str, truth: &Value, report: &'a Value) -> Vec<&'a Value> {
    let rows = report["tensors"].as_array().unwrap();
    let by_name: BTreeMap<&str, &Value> = rows.iter().map(|row| (name(row), row)).collect();
    assert_eq!(by_name.len(), rows.len(), "{path}: two tensors of one name");
    let expected = truth["tensors"].as_array().unwrap();
    let mut common_rows = Vec::new();
    for wanted in expected {
        let Some(found) = by_name.get(name(wanted)) else {
            panic!(
                "{path}: `{}` is missing; there are {:?}",
                name(wanted),
                by_name.keys()
            );
        };
        if !wanted["role"].is_null() {
            assert_eq!(found["role"], wanted["role"], "{path}: `{}`", name(wanted));
        }
        for key in ["dtype", "shape", "numel", "bytes"] {
            assert_eq!(
                found[key],
                wanted[key],
                "{path}: {key} of `{}`",
                name(wanted)
            );
        }
        if !wanted["storage"].is_null() {
            for key in ["strides", "storage_offset"] {
                assert_eq!(
                    found[key],
                    wanted[key],
                    "{path}: {key} of `{}`",
                    name(wanted)
                );
            }
        }
        if !found["requires_grad"].is_null() && !wanted["requires_grad"].is_null() {
            assert_eq!(
                found["requires_grad"],
                wanted["requires_grad"],
                "{path}: `{}`",
                name(wanted)
            );
        }
        common_rows.push(*found);
    }
    let wanted: Vec<&Value> = expected
        .iter()
        .filter(|row| !row["storage"].is_null())
        .collect();
    let wanted_names: BTreeSet<&str> = wanted.iter().map(|row| name(row)).collect();
    common_rows.retain(|row| wanted_names.contains(name(row)));
    assert_eq!(
        sharing(&common_rows),
        sharing(&wanted),
        "{path}: what shares memory"
    );
    let known: BTreeSet<&str> = expected.iter().map(name).collect();
    rows.iter()
        .filter(|row| !known.contains(name(row)))
        .collect()
}

/// The sums of a report agree with its rows and with the file.
fn adds_up(path: &str, report: &Value) {
    let bytes = |key: &str, table: &str| -> u64 {
        let rows = report[table].as_array().unwrap();
        rows.iter().filter_map(|row| row[key].as_u64()).sum()
    };
    let totals = &report["totals"];
    assert_eq!(
        totals["tensor_bytes"],
        bytes("bytes", "tensors"),
        "{path}: tensors"
    );
    assert_eq!(
        totals["storage_bytes"],
        bytes("bytes", "storages"),
        "{path}: storages"
    );
    let overhead = totals["overhead_bytes"].as_u64().unwrap();
    assert_eq!(
        report["file"]["bytes"],
        bytes("file_bytes", "storages") + overhead,
        "{path}: the file"
    );
    let classes = totals["by_class"].as_object().unwrap();
    let sum: u64 = classes.values().filter_map(Value::as_u64).sum();
    assert_eq!(report["file"]["bytes"], sum, "{path}: by_class");
}

#[test]
fn files_are_listed_as_torch_loads_them() {
    for (path, truth) in fixtures("files") {
        let report = list(&path);
        let others = compare(&path, &truth, &report);
        assert!(
            others.is_empty() || path == "numpy.pt",
            "{path}: {others:?}"
        );
        for key in ["tensors", "numel", "tensor_bytes", "storage_bytes"] {
            assert_eq!(report["totals"][key], truth["totals"][key], "{path}: {key}");
        }
        assert_eq!(
            report["totals"]["by_dtype"], truth["totals"]["by_dtype"],
            "{path}"
        );
        if !truth["totals"]["by_role"].is_null() {
            assert_eq!(
                report["totals"]["by_role"], truth["totals"]["by_role"],
                "{path}"
            );
        }
        adds_up(&path, &report);
    }
}

#[test]
fn modules_are_listed_as_libtorch_names_their_parameters_and_buffers() {
    for group in ["networks", "models", "train", "exported"] {
        for (path, truth) in fixtures(group) {
            let report = list(&path);
            adds_up(&path, &report);
            if truth["tensors"].is_null() {
                continue; // constants or packed weights alone: nothing that named_parameters names
            }
            for other in compare(&path, &truth, &report) {
                let role = other["role"].as_str().unwrap();
                assert!(
                    matches!(role, "tensor" | "constant"),
                    "{path}: `{}` is no {role}",
                    name(other)
                );
            }
            for role in ["parameter", "buffer"] {
                assert_eq!(
                    report["totals"]["by_role"][role], truth["totals"]["by_role"][role],
                    "{path}: {role}"
                );
            }
        }
    }
}

#[test]
fn hostile_files_end_in_the_exit_code_and_verdict_that_they_deserve() {
    for (path, truth) in fixtures("hostile") {
        let file = format!("fixtures/{path}");
        let said = run(&[&file, "--format", "json"]);
        let code = i64::from(said.code.unwrap_or(-1));
        let allowed: Vec<i64> = match &truth["exit"] {
            Value::Array(codes) => codes.iter().filter_map(Value::as_i64).collect(),
            code => code.as_i64().into_iter().collect(),
        };
        assert!(
            allowed.contains(&code),
            "{path}: {code}, not {allowed:?}; {}",
            said.stderr
        );
        if code != 0 {
            assert!(
                said.stderr.starts_with("error: "),
                "{path}: {}",
                said.stderr
            );
        }
        if let Some(verdict) = truth["verdict"].as_str() {
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            assert_eq!(report["security"]["verdict"], verdict, "{path}");
        }
        if let Some(word) = truth["named"].as_str() {
            assert!(
                said.stderr.to_lowercase().contains(word),
                "{path} is {word}: {}",
                said.stderr
            );
        }
    }
}
