//! Every file of `../shared/cases` against its truth: outcome, tensors, totals, roles, time and memory.
//!
//! The files are not part of this repository; the test says so and passes where they are absent.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which clippy does not see as tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use inspect_checkpoint::checkpoint::{Checkpoint, Layout, Role, Verdict};
use inspect_checkpoint::format::{FormatError, ReadOptions, read};
use serde_json::Value;

fn cases() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/cases");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: {} is not here", folder.display());
    None
}

fn truth(folder: &Path) -> BTreeMap<String, Value> {
    serde_json::from_slice(&fs::read(folder.join("truth.json")).unwrap()).unwrap()
}

/// Highest memory in use since [`reset_peak`], where the system says.
fn peak_megabytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1024)
}

fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// A row as the truth has it: name, dtype, shape, bytes, storage, storage bytes.
type Row = (String, String, Vec<u64>, u64, String, u64);

fn rows_of(checkpoint: &Checkpoint) -> Vec<Row> {
    checkpoint
        .tensors()
        .iter()
        .map(|t| {
            let storage = t.storage().and_then(|id| checkpoint.storage(id)).unwrap();
            (
                t.name().to_owned(),
                t.dtype().unwrap().name().to_owned(),
                t.shape().unwrap().to_vec(),
                t.bytes(),
                storage.member().to_owned(),
                storage.bytes(),
            )
        })
        .collect()
}

fn rows_of_truth(rows: &Value) -> Vec<Row> {
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let shape = row[2].as_array().unwrap();
            (
                our_name(row[0].as_str().unwrap()),
                row[1].as_str().unwrap().to_owned(),
                shape.iter().map(|s| s.as_u64().unwrap()).collect(),
                row[3].as_u64().unwrap(),
                row[4].as_str().unwrap_or_default().to_owned(),
                row[5].as_u64().unwrap_or_default(),
            )
        })
        .collect()
}

/// A name of the program that made the truth, as the command line's contract spells it.
fn our_name(name: &str) -> String {
    let mut name = name
        .replace("constants::", "constants.")
        .replace(".__state__", "");
    if let Some((start, rest)) = name.clone().split_once(".<sparse:") {
        let (layout, part) = rest.split_once(">.").unwrap();
        let by_column = layout.ends_with("csc") || layout.ends_with("bsc");
        let part = match (part, by_column) {
            ("compressed_indices", false) => "crow_indices",
            ("compressed_indices", true) => "ccol_indices",
            ("plain_indices", false) => "col_indices",
            ("plain_indices", true) => "row_indices",
            (other, _) => other,
        };
        name = format!("{start}.{part}");
    }
    for (ours, theirs) in [
        ("buffer", "__arg0"),
        ("sizes", "__arg1"),
        ("strides", "__arg2"),
        ("storage_offsets", "__arg3"),
    ] {
        name = name.replace(theirs, ours);
    }
    name
}

/// Compares rows; what a per-channel quantized tensor has beside its values is not in the truth's list.
fn check_rows(file: &str, checkpoint: &Checkpoint, truth: &Value, faults: &mut Vec<String>) {
    let beside = |name: &str| name.ends_with(".scales") || name.ends_with(".zero_points");
    let mut ours = rows_of(checkpoint);
    ours.retain(|row| !beside(&row.0));
    let mut expected = rows_of_truth(truth);
    if ours != expected {
        // The truth keeps another order where a module's state does.
        ours.sort();
        expected.sort();
    }
    if ours != expected {
        faults.push(format!(
            "{file}: tensors\n  got  {ours:?}\n  want {expected:?}"
        ));
    }
}

fn check_totals(file: &str, checkpoint: &Checkpoint, truth: &Value, faults: &mut Vec<String>) {
    let totals = checkpoint.totals();
    let quantized = checkpoint
        .tensors()
        .iter()
        .any(|t| t.layout() == Layout::Quantized);
    let mut same = |what: &str, got: u64, want: &Value| {
        if let Some(want) = want.as_u64()
            && got != want
        {
            faults.push(format!("{file}: {what} is {got}, expected {want}"));
        }
    };
    same(
        "storage_bytes",
        totals.storage_bytes,
        &truth["unique_storage_bytes"],
    );
    if !quantized {
        same("tensors", totals.tensors, &truth["tensors"]);
        same("numel", totals.numel, &truth["elements"]);
        same("tensor_bytes", totals.tensor_bytes, &truth["logical_bytes"]);
        same(
            "storages",
            checkpoint.storages().len() as u64,
            &truth["unique_storages"],
        );
    }
    let class = totals.by_class;
    let sum = class.parameters
        + class.buffers
        + class.optimizer
        + class.other_tensors
        + class.slack
        + class.code
        + class.pickle
        + class.padding;
    same("the sum of by_class", sum, &checkpoint.file_bytes().into());
    let in_file: u64 = checkpoint
        .storages()
        .iter()
        .map(inspect_checkpoint::checkpoint::Storage::file_bytes)
        .sum();
    same(
        "storages and overhead",
        in_file + totals.overhead_bytes,
        &checkpoint.file_bytes().into(),
    );
}

fn check_roles(file: &str, checkpoint: &Checkpoint, truth: &Value, faults: &mut Vec<String>) {
    for (key, role) in [("parameters", Role::Parameter), ("buffers", Role::Buffer)] {
        let Some(expected) = truth.get(key).and_then(Value::as_array) else {
            continue;
        };
        let names: Vec<&str> = checkpoint
            .tensors()
            .iter()
            .filter(|t| t.role() == role)
            .map(inspect_checkpoint::checkpoint::Tensor::name)
            .collect();
        let expected: Vec<&str> = expected
            .iter()
            .map(|row| row[0].as_str().unwrap())
            .collect();
        if names != expected {
            faults.push(format!(
                "{file}: {key} are {names:?}, expected {expected:?}"
            ));
        }
    }
}

/// Offsets and strides that differ from those of a tensor alone in its storage.
fn check_views(file: &str, checkpoint: &Checkpoint, truth: &Value, faults: &mut Vec<String>) {
    let Some(views) = truth.get("non_default").and_then(Value::as_object) else {
        return;
    };
    for (name, view) in views {
        let name = our_name(name);
        let Some(tensor) = checkpoint.tensors().iter().find(|t| t.name() == name) else {
            faults.push(format!("{file}: no tensor `{name}`"));
            continue;
        };
        let offset = view.get("offset").and_then(Value::as_u64);
        if offset.is_some_and(|offset| offset != tensor.storage_offset()) {
            faults.push(format!(
                "{file}: `{name}` starts at {}",
                tensor.storage_offset()
            ));
        }
        if let Some(strides) = view.get("stride").and_then(Value::as_array) {
            let strides: Vec<u64> = strides.iter().map(|s| s.as_u64().unwrap()).collect();
            if tensor.strides() != Some(&strides) {
                faults.push(format!(
                    "{file}: `{name}` has strides {:?}",
                    tensor.strides()
                ));
            }
        }
    }
}

/// The outcome of reading one file, and everything wrong with it.
fn check(
    file: &str,
    result: &Result<Checkpoint, FormatError>,
    truth: &Value,
    faults: &mut Vec<String>,
) {
    let expected = truth["expected"].as_str().unwrap();
    match result {
        Err(error) => {
            let text = error.to_string();
            if text.len() > 600 || text.contains(['\n', '\u{1b}']) {
                faults.push(format!("{file}: the error is not one short line: {text}"));
            }
            if expected == "ok" {
                faults.push(format!("{file}: refused: {error}"));
            }
        }
        Ok(checkpoint) => {
            let dangerous = checkpoint.security().verdict == Verdict::Dangerous;
            let accepted = truth.get("accept").is_some()
                && checkpoint.security().verdict >= Verdict::Suspicious;
            if expected == "refuse" && !dangerous && !accepted {
                faults.push(format!("{file}: listed, but should be refused"));
            }
            if expected == "ok" && dangerous {
                faults.push(format!("{file}: {:?}", checkpoint.findings()));
            }
            for key in ["tensors", "all_archive_tensors", "truth_if_ok"] {
                if let Some(rows) = truth.get(key).filter(|rows| rows.is_array()) {
                    check_rows(file, checkpoint, rows, faults);
                }
            }
            check_totals(
                file,
                checkpoint,
                truth.get("totals").unwrap_or(&Value::Null),
                faults,
            );
            check_roles(file, checkpoint, truth, faults);
            check_views(file, checkpoint, truth, faults);
        }
    }
}

#[test]
fn every_case_comes_out_right() {
    let Some(folder) = cases() else { return };
    let mut faults = Vec::new();
    let mut files = 0;
    for (file, truth) in truth(&folder) {
        files += 1;
        reset_peak();
        let start = Instant::now();
        let result = read(&folder.join(&file), &ReadOptions::default());
        let elapsed = start.elapsed();
        check(&file, &result, &truth, &mut faults);
        drop(result);
        if elapsed.as_secs_f64() > 2.0 {
            faults.push(format!("{file}: took {elapsed:?}"));
        }
        if let Some(megabytes) = peak_megabytes()
            && megabytes > truth["limits"]["rss_mb"].as_u64().unwrap_or(200)
        {
            faults.push(format!("{file}: used {megabytes} MB"));
        }
        if let Some(marker) = truth.get("marker").and_then(Value::as_str) {
            assert!(
                !std::env::temp_dir().join(marker).exists(),
                "{file} ran code"
            );
        }
    }
    assert!(files > 100, "only {files} cases");
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}
