//! `inspect calibrate`, and what `--profile FILE` makes of it: the measuring path on the simulated device, whose cuDNN
//! is told what to ask for.
//!
//! Skipped, and said so, where this build has no simulated device.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

use serde_json::{Value, json};

use crate::common::gate::Folder;
use crate::common::{Said, has_simulated_device, inspect, run_with_engine as run};

const CNN: &str = "fixtures/tiny_cnn.pt";
const SIZE: [&str; 2] = ["--input", "2x3x16x16"];
const MIB: u64 = 1 << 20;

fn json(folder: &Folder, name: &str) -> Value {
    serde_json::from_str(&folder.read(name)).unwrap()
}

fn calibrated(args: &[&str]) -> Said {
    let said = run(&[&["calibrate", "--device", "cuda-sim"], args].concat());
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    said
}

fn report(args: &[&str], code: i32) -> Value {
    let said = run(&[args, &["--format", "json"]].concat());
    assert_eq!(said.code, Some(code), "{}", said.snapshot());
    serde_json::from_str(&said.stdout).unwrap()
}

#[test]
fn a_card_is_measured_without_a_model() {
    if !has_simulated_device() {
        return;
    }
    let folder = Folder::new();
    let out = folder.path("gpu.json");
    let said = calibrated(&["--profile", "h100", "-o", &out]);
    assert!(said.stderr.contains("H100"), "{}", said.snapshot());
    let found = json(&folder, "gpu.json");
    assert_eq!(found["card"]["compute_capability"], json!([9, 0]));
    assert_eq!(found["card"]["multiprocessors"], 132);
    assert_eq!(found["card"]["total_bytes"], 81_559 * MIB);
    assert_eq!(found["segment_order"], "up");
    assert_eq!(found["used_before_bytes"], 0);
    assert_eq!(found["convolutions"], json!([]));
    let libraries = found["libraries"].as_array().unwrap();
    let library = |name: &str| libraries.iter().find(|one| one["library"] == name).unwrap();
    // The profile's context is what the simulated device has in use before anything is allocated.
    for name in ["context", "kernels", "cublas", "cudnn"] {
        assert_eq!(library(name)["used_bytes"], 512 * MIB, "{found:#}");
    }
    // Hopper's larger workspace.
    assert_eq!(library("cublas")["workspace_bytes"], 32 * MIB, "{found:#}");
    assert!(
        libraries.iter().all(|one| one["unavailable"].is_null()),
        "{found:#}"
    );

    // As a profile it is the card.
    let run = [CNN, SIZE[0], SIZE[1], "--device", "cuda-sim"];
    let named = report(&[&run[..], &["--profile", "h100"]].concat(), 0);
    let measured = report(&[&run[..], &["--profile", &out]].concat(), 0);
    for figure in [
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "device_total_bytes",
        "fits",
    ] {
        assert_eq!(
            named["estimate"][figure], measured["estimate"][figure],
            "{figure}"
        );
    }
    assert_eq!(measured["estimate"]["context_bytes"], 512 * MIB);
}

#[test]
fn workspaces_are_measured_and_looked_up() {
    if !has_simulated_device() {
        return;
    }
    let folder = Folder::new();
    let (plain, planted, again) = (
        folder.path("plain.json"),
        folder.path("planted.json"),
        folder.path("again.json"),
    );
    let model = ["fixtures/residual.pt", "--input", "1x4x8x8", "--train"];
    calibrated(&[&model[..], &["-o", &plain]].concat());
    let mut known = json(&folder, "plain.json");
    let runs = known["convolutions"].as_array_mut().unwrap();
    let passes: Vec<String> = runs
        .iter()
        .map(|run| run["convolution"]["pass"].as_str().unwrap().to_owned())
        .collect();
    for pass in ["forward", "backward_data", "backward_filter"] {
        assert!(passes.iter().any(|one| one == pass), "{passes:?}");
    }
    // A line for each.
    let text = folder.read("plain.json");
    let lines = text.lines().filter(|line| line.contains("\"pass\""));
    assert_eq!(lines.count(), passes.len());
    // Each its own, so that none can be taken for another.
    for (index, run) in runs.iter_mut().enumerate() {
        assert_eq!(run["workspace_bytes"], 0);
        run["workspace_bytes"] = ((index as u64 + 1) * MIB + 512).into();
    }
    folder.write("planted.json", &known.to_string());

    // A card with those workspaces is measured as it is.
    calibrated(&[&model[..], &["--profile", &planted, "-o", &again]].concat());
    assert_eq!(
        json(&folder, "again.json")["convolutions"],
        known["convolutions"]
    );

    // The estimate has them, and says so; without the file it is lower, and says that.
    let estimate = |profile: &str, input: &str| {
        let args = [
            "fixtures/residual.pt",
            "--input",
            input,
            "--train",
            "--device",
            "cuda-sim",
            "--profile",
            profile,
        ];
        report(&args, 0)["estimate"].clone()
    };
    let assumes = |estimate: &Value, words: &str| {
        let all = estimate["assumptions"].as_array().unwrap();
        all.iter().any(|one| one.as_str().unwrap().contains(words))
    };
    let (without, with) = (
        estimate("rtx-4090", "1x4x8x8"),
        estimate(&planted, "1x4x8x8"),
    );
    let peak = |estimate: &Value| estimate["peak_allocated_bytes"].as_u64().unwrap();
    assert!(peak(&with) > peak(&without) + MIB, "{with:#}");
    assert!(
        assumes(&without, "workspaces are not included"),
        "{without:#}"
    );
    assert!(assumes(&with, "workspaces: measured on"), "{with:#}");
    assert!(with["interval"].is_null());
    let other = estimate(&planted, "2x4x8x8");
    assert!(
        assumes(&other, "not for all of these convolutions"),
        "{other:#}"
    );

    // More convolutions join those that are there.
    let more = ["fixtures/residual.pt", "--input", "2x4x8x8", "--train"];
    calibrated(&[&more[..], &["--profile", &planted, "-o", &again, "--add"]].concat());
    let both = json(&folder, "again.json")["convolutions"]
        .as_array()
        .unwrap()
        .len();
    assert!(both > passes.len(), "{both}");
    let other = estimate(&again, "2x4x8x8");
    assert!(assumes(&other, "workspaces: measured on"), "{other:#}");
}

#[test]
fn what_was_calibrated_is_validated() {
    if !has_simulated_device() {
        return;
    }
    let folder = Folder::new();
    let out = folder.path("gpu.json");
    // The device that is measured asks for 64 MiB in every convolution; nobody tells the estimate but the file.
    let on_it = |args: &[&str]| {
        let mut command = inspect(args);
        command
            .env("INSPECT_ENGINE", env!("CARGO_BIN_EXE_inspect-torch"))
            .env("INSPECT_TEST_CONV_WORKSPACE_BYTES", "67108864");
        Said::of(&command.output().unwrap())
    };
    for mode in [&[][..], &["--train"]] {
        let run = [CNN, SIZE[0], SIZE[1], "--device", "cuda-sim"];
        let said = on_it(&[&["calibrate"], &run[..], mode, &["-o", &out]].concat());
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
        let validate = [
            &["validate"],
            &run[..],
            mode,
            &[
                "--basis",
                "cuda-sim",
                "--tolerance",
                "0",
                "--format",
                "json",
            ],
        ]
        .concat();
        let without = on_it(&validate);
        assert_eq!(without.code, Some(1), "{}", without.snapshot());
        let with = on_it(&[&validate[..], &["--profile", &out]].concat());
        assert_eq!(with.code, Some(0), "{}", with.snapshot());
        let found: Value = serde_json::from_str(&with.stdout).unwrap();
        assert_eq!(found["differences"], json!([]), "{found:#}");
        let device = found["comparison"].as_array().unwrap().iter();
        let device = device
            .clone()
            .find(|one| one["metric"] == "device_used_bytes")
            .unwrap();
        assert_eq!(device["estimated"], device["measured"], "{found:#}");
    }
}

#[test]
fn what_cannot_be_calibrated_is_said() {
    let folder = Folder::new();
    let file = folder.write("other.json", r#"{"kind": "recipe"}"#);
    for (args, code, words) in [
        (
            &["calibrate", "--device", "cpu"][..],
            2,
            "measured on a GPU",
        ),
        (&["calibrate", "--input", "1x3"], 2, "no model to run"),
        (&["calibrate", CNN], 2, "needs an input"),
        (&["calibrate", "--add"], 2, "--output"),
        (
            &["calibrate", "--add", "-o", &file],
            2,
            "`kind` is `recipe`",
        ),
        (
            &[CNN, SIZE[0], SIZE[1], "--profile", &file],
            2,
            "`kind` is `recipe`",
        ),
        (
            &[CNN, SIZE[0], SIZE[1], "--profile", "none.json"],
            2,
            "none.json",
        ),
        (
            &[CNN, SIZE[0], SIZE[1], "--profile", "rtx-9999"],
            2,
            "or the file of a calibration",
        ),
    ] {
        let said = run(args);
        assert_eq!(said.code, Some(code), "{args:?} {}", said.snapshot());
        assert!(said.stderr.contains(words), "{args:?} {}", said.snapshot());
    }
    if has_simulated_device() {
        // Another card's calibration is not added to.
        let out = folder.path("gpu.json");
        calibrated(&["-o", &out]);
        let said = run(&[
            "calibrate",
            "--device",
            "cuda-sim",
            "--profile",
            "h100",
            "-o",
            &out,
            "--add",
        ]);
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        assert!(
            said.stderr.contains("GeForce RTX 4090"),
            "{}",
            said.snapshot()
        );
        assert_eq!(
            json(&folder, "gpu.json")["card"]["compute_capability"],
            json!([8, 9])
        );
    }
}
