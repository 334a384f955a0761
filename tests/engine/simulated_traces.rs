//! Traces of the simulated CUDA device, where PyTorch's own allocator ran: the allocator model makes the same of them,
//! to the byte, phase by phase, and saved they replay without a difference.
//!
//! Skipped, and said so, where this build has no simulated device (no engine, or a libtorch without CUDA).
#![cfg(feature = "torch")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::common::{has_simulated_device, run_with_engine};
use inspect_checkpoint::simulate::{AllocConf, Allocator, BlockId, DeviceLimits, Placement, Stats};
use inspect_checkpoint::trace::{Event, Trace, TraceReader};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    let said = run_with_engine(args);
    assert_eq!(said.code, Some(0), "{args:?}: {}", said.stderr);
    serde_json::from_str(&said.stdout).unwrap()
}

/// A run on the simulated device that keeps its trace and its snapshot.
struct Run {
    report: Value,
    trace: PathBuf,
    snapshot: PathBuf,
}

fn run(folder: &Path, file: &str, input: &str, args: &[&str]) -> Run {
    let name = format!("{file}{}", args.join("")).replace(['/', ':'], "_");
    let (trace, snapshot) = (
        folder.join(format!("{name}.jsonl")),
        folder.join(format!("{name}.pickle")),
    );
    let path = format!("fixtures/{file}");
    let all = [
        &[path.as_str(), "--input", input, "--device", "cuda-sim"][..],
        &["--save-trace", trace.to_str().unwrap()],
        &["--save-snapshot", snapshot.to_str().unwrap()],
        &["--format", "json"],
        args,
    ]
    .concat();
    Run {
        report: json(&all),
        trace,
        snapshot,
    }
}

fn read(path: &Path) -> Trace {
    let mut reader = TraceReader::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        reader.line(line).unwrap();
    }
    reader.finish().unwrap()
}

/// The genuine allocator's figures at the end of each phase, and the model's.
fn compare_phases(trace: &Trace, what: &str) -> usize {
    let conf = trace.header.alloc_conf.as_deref().unwrap_or_default();
    let conf = AllocConf::parse(conf).unwrap();
    let mut allocator = Allocator::new(conf, DeviceLimits::UNLIMITED, Placement::Upward);
    let mut blocks: HashMap<u32, BlockId> = HashMap::new();
    let (mut phases, mut started) = (0, Stats::default());
    for event in &trace.events {
        match event {
            Event::Phase { .. } => {
                allocator.stats_mut().reset_peak();
                started = *allocator.stats();
            }
            Event::PhaseEnd { stats, .. } => {
                let genuine = stats.expect("a CUDA phase has figures");
                assert_eq!(allocator.stats().since(&started), genuine, "{what}");
                phases += 1;
            }
            Event::Alloc {
                id,
                bytes,
                block,
                stream,
                ..
            } => {
                if let Some(got) = allocator.alloc(*bytes, *stream).unwrap() {
                    let view = allocator.block(got).unwrap();
                    assert_eq!(Some(view.size_bytes), *block, "{what}: allocation {id}");
                    blocks.insert(*id, got);
                }
            }
            Event::Free { id, .. } => {
                if let Some(block) = blocks.remove(id) {
                    allocator.free(block).unwrap();
                }
            }
            _ => {}
        }
    }
    phases
}

/// A saved recording, replayed by the program: nothing differs, and the peaks are the run's.
fn compare_replay(path: &Path, report: &Value, what: &str) {
    let replay = json(&["replay", path.to_str().unwrap(), "--format", "json"]);
    let device = &replay["devices"][0];
    assert_eq!(
        device["mismatches"], 0,
        "{what}: {}",
        device["first_mismatch"]
    );
    assert_ne!(device["final"]["blocks_equal"], false, "{what}");
    for key in [
        "peak_requested_bytes",
        "peak_allocated_bytes",
        "peak_active_bytes",
        "peak_reserved_bytes",
    ] {
        assert_eq!(device[key], report["estimate"][key], "{what}: {key}");
    }
}

const NETWORKS: [(&str, &str); 7] = [
    ("mlp.pt", "4x16"),
    ("tiny_cnn.pt", "2x3x32x32"),
    ("transformer_encoder.pt", "2x8x16"),
    ("mobilenet_v3_small.pt", "2x3x64x64"),
    ("resnet18.pt", "2x3x224x224"),
    ("vit_b_16.pt", "1x3x224x224"),
    ("vgg16.pt", "1x3x224x224"),
];

const OPTIMIZERS: [&str; 7] = [
    "sgd",
    "sgd-momentum",
    "nesterov",
    "adam",
    "adamw",
    "rmsprop",
    "adagrad",
];

#[test]
fn the_model_makes_of_a_run_what_pytorchs_allocator_did() {
    if !has_simulated_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut phases = 0;
    for (file, input) in NETWORKS {
        let mut ways: Vec<Vec<&str>> = vec![Vec::new()];
        let large = matches!(file, "vit_b_16.pt" | "vgg16.pt");
        let optimizers: &[&str] = if large { &["adamw"] } else { &OPTIMIZERS };
        ways.extend(
            optimizers
                .iter()
                .map(|optimizer| vec!["--train", "--optimizer", *optimizer]),
        );
        for args in ways {
            let what = format!("{file} {args:?}");
            let run = run(folder.path(), file, input, &args);
            let trace = read(&run.trace);
            phases += compare_phases(&trace, &what);
            if !large {
                crate::common::assert_categories_add_up(&what, &trace);
            }
            compare_replay(&run.trace, &run.report, &what);
            compare_replay(&run.snapshot, &run.report, &what);
        }
    }
    println!("{phases} phases equal");
    assert!(phases > 250, "{phases}");
}

#[test]
fn settings_of_the_allocator_are_saved_with_the_run() {
    if !has_simulated_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for conf in [
        "max_split_size_mb:32",
        "roundup_power2_divisions:4",
        "expandable_segments:True",
        "garbage_collection_threshold:0.6,large_segment_size_mb:40",
    ] {
        let args = ["--alloc-conf", conf, "--train", "--optimizer", "adam"];
        let run = run(folder.path(), "resnet18.pt", "2x3x224x224", &args);
        let trace = read(&run.trace);
        assert_eq!(trace.header.alloc_conf.as_deref(), Some(conf));
        compare_phases(&trace, conf);
        compare_replay(&run.trace, &run.report, conf);
        compare_replay(&run.snapshot, &run.report, conf);
    }
}

#[test]
fn what_cannot_be_saved_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none").join("t.jsonl");
    let path = path.to_str().unwrap();
    let said = run_with_engine(&["fixtures/mlp.pt", "--input", "4x16", "--save-trace", path]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("cannot be written"), "{}", said.stderr);
    let path = folder.path().join("s.pickle");
    let path = path.to_str().unwrap();
    let args = ["fixtures/mlp.pt", "--input", "4x16", "--no-sim"];
    let said = run_with_engine(&[&args[..], &["--save-snapshot", path]].concat());
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("has no CUDA allocator"),
        "{}",
        said.stderr
    );
    assert!(said.stdout.contains("Linear"), "the report is shown");
    let said = run_with_engine(&[
        "fixtures/mlp.pt",
        "fixtures/tiny_cnn.pt",
        "--input",
        "4x16",
        "--save-trace",
        path,
    ]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("one file at a time"),
        "{}",
        said.stderr
    );
}

#[test]
fn the_largest_batch_is_shown_by_runs() {
    if !has_simulated_device() {
        return;
    }
    for (file, input, args) in [
        ("resnet18.pt", "Bx3x224x224", &["--memory", "2GiB"][..]),
        (
            "tiny_cnn.pt",
            "Bx3x32x32",
            &["--memory", "700MiB", "--train", "--optimizer", "adamw"],
        ),
    ] {
        let path = format!("fixtures/{file}");
        let fit = [
            &["fit", path.as_str(), "--input", input, "--format", "json"],
            args,
        ]
        .concat();
        let report = json(&fit);
        assert_eq!(report["verified"], true, "{report}");
        let batch = report["batch"].as_u64().unwrap();
        let tried = report["tried"].as_array().unwrap();
        let fits = |batch: u64| {
            let one = tried.iter().find(|one| one["batch"] == batch);
            one.map(|one| one["fits"] == true)
        };
        assert_eq!(
            (fits(batch), fits(batch + 1)),
            (Some(true), Some(false)),
            "{report}"
        );
        // The model's line through two small runs is right at once, or nearly.
        assert!(tried.len() <= 9, "{report}");
        // An ordinary run says the same.
        for (batch, code) in [(batch, 0), (batch + 1, 1)] {
            let input = input.replace('B', &batch.to_string());
            let single = [
                &[path.as_str(), "--input", &input, "--device", "cuda-sim"],
                args,
            ]
            .concat();
            assert_eq!(run_with_engine(&single).code, Some(code), "{file} {batch}");
        }
    }
}

#[test]
fn no_batch_fits() {
    if !has_simulated_device() {
        return;
    }
    let args = [
        "fit",
        "fixtures/vgg16.pt",
        "--input",
        "Bx3x224x224",
        "--memory",
        "560MiB",
    ];
    let said = run_with_engine(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(report["batch"].is_null());
    assert_eq!(report["verified"], true);
    let said = run_with_engine(&[
        "fit",
        "fixtures/vgg16.pt",
        "--input",
        "1x3",
        "--memory",
        "1GiB",
    ]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
}

/// What the file alone tells is what a run finds.
#[test]
fn the_estimate_without_a_run_is_exact_where_it_is_known() {
    if !has_simulated_device() {
        return;
    }
    for (file, input) in [
        ("resnet18.pt", "2x3x224x224"),
        ("tiny_cnn.pt", "2x3x32x32"),
        ("vgg16.pt", "1x3x224x224"),
    ] {
        let path = format!("fixtures/{file}");
        for optimizer in OPTIMIZERS {
            for kind in [&[][..], &["--optimizer-impl", "fused"]] {
                if !kind.is_empty() && matches!(optimizer, "rmsprop" | "adagrad") {
                    continue; // not in fused form here
                }
                let args = [
                    &[
                        path.as_str(),
                        "--format",
                        "json",
                        "--train",
                        "--optimizer",
                        optimizer,
                    ],
                    kind,
                ]
                .concat();
                let without = &json(&args)["estimate"];
                assert_eq!(without["basis"], "static");
                assert!(without["peak_allocated_bytes"].is_null());
                let run = json(&[&args[..], &["--input", input, "--device", "cuda-sim"]].concat());
                let run = &run["estimate"];
                let (known, found) = (&without["at_peak"], &run["at_peak"]);
                assert_eq!(
                    known["parameters"], found["parameters"],
                    "{file} {optimizer}"
                );
                assert_eq!(known["buffers"], found["buffers"], "{file} {optimizer}");
                assert_eq!(
                    known["optimizer_state"], found["optimizer_state"],
                    "{file} {optimizer} {kind:?}"
                );
                assert!(known["activations"].is_null());
                assert_eq!(without["phases"][0]["name"], "load");
                assert_eq!(without["phases"][0], run["phases"][0], "{file}");
            }
        }
    }
}
