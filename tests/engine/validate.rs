//! `inspect validate` with a real engine: the measuring path on the simulated device, with planted differences, and the
//! CPU's own allocator.
//!
//! Skipped, and said so, where this build has no simulated device.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

use crate::common::{Said, has_simulated_device, inspect, run_with_engine as run};
use inspect_checkpoint::trace::memory::MemoryTimeline;
use inspect_checkpoint::trace::ops::RunIndex;
use inspect_checkpoint::trace::{Event, PhaseName, Trace, TraceReader};
use serde_json::Value;

const CNN: [&str; 4] = ["validate", "fixtures/tiny_cnn.pt", "--input", "2x3x16x16"];

fn report(said: &Said, code: i32) -> Value {
    assert_eq!(said.code, Some(code), "{}", said.snapshot());
    serde_json::from_str(&said.stdout).unwrap()
}

/// The terms of each number add up to its difference.
fn adds_up(report: &Value) {
    for one in report["comparison"].as_array().unwrap() {
        let (Some(estimated), Some(measured)) =
            (one["estimated"].as_i64(), one["measured"].as_i64())
        else {
            continue;
        };
        if one["phase"].is_null() {
            let terms = report["explained"].as_array().unwrap().iter();
            let of_metric = terms.filter(|term| term["metric"] == one["metric"]);
            let sum: i64 = of_metric.map(|term| term["bytes"].as_i64().unwrap()).sum();
            assert_eq!(sum, measured - estimated, "{report:#}");
        }
    }
}

#[test]
fn the_simulated_device_is_like_itself() {
    if !has_simulated_device() {
        return;
    }
    let options = [
        "--device", "cuda-sim", "--basis", "cuda-sim", "--format", "json",
    ];
    for train in [&[][..], &["--train", "--optimizer", "adamw"]] {
        let found = report(&run(&[&CNN[..], &options, train].concat()), 0);
        adds_up(&found);
        assert_eq!(found["verdict"], "pass");
        assert_eq!(found["differences"], Value::Array(Vec::new()), "{found:#}");
        assert!(found["first_op_difference"].is_null(), "{found:#}");
    }
}

#[test]
fn a_planted_workspace_is_found_and_named() {
    if !has_simulated_device() {
        return;
    }
    let options = [
        "--device", "cuda-sim", "--basis", "cuda-sim", "--format", "json",
    ];
    let mut command = inspect(&[&CNN[..], &options].concat());
    command
        .env("INSPECT_ENGINE", env!("CARGO_BIN_EXE_inspect-torch"))
        .env("INSPECT_TEST_CONV_WORKSPACE_BYTES", "67108864");
    let said = Said::of(&command.output().unwrap());
    let found = report(&said, 1);
    adds_up(&found);
    assert_eq!(found["verdict"], "fail");
    let first = &found["differences"][0];
    assert_eq!(first["term"], "cudnn_workspace", "{found:#}");
    assert!(first["op"].as_str().unwrap().contains("conv"), "{found:#}");
    assert!(first["estimated_bytes"].is_null());
    assert_eq!(first["measured_bytes"].as_u64().unwrap() % 67_108_864, 0);
}

#[test]
fn a_snapshot_is_compared() {
    if !has_simulated_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("s.pickle").display().to_string();
    let said = run(&[
        "fixtures/tiny_cnn.pt",
        "--input",
        "2x3x16x16",
        "--device",
        "cuda-sim",
        "--save-snapshot",
        &snapshot,
    ]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    let options = ["--snapshot", &snapshot, "--format", "json"];
    let found = report(&run(&[&CNN[..], &options].concat()), 0);
    adds_up(&found);
    assert_eq!(found["differences"], Value::Array(Vec::new()), "{found:#}");
    assert_eq!(found["measured_by"]["source"], "torch-memory-snapshot");
    // Another input needs another amount.
    let other = ["validate", "fixtures/tiny_cnn.pt", "--input", "64x3x64x64"];
    let found = report(&run(&[&other[..], &options].concat()), 1);
    adds_up(&found);
}

#[test]
fn the_cpus_tensors_are_what_their_shapes_say() {
    let options = ["--format", "json", "--tolerance", "100%"];
    let found = report(&run(&[&CNN[..], &options].concat()), 0);
    adds_up(&found);
    assert_eq!(found["measured_by"]["device"], "cpu");
    let metrics = found["comparison"].as_array().unwrap();
    assert!(
        metrics
            .iter()
            .all(|one| one["metric"] != "peak_reserved_bytes")
    );
}

#[test]
fn a_measured_run_is_warm_and_times_are_the_devices() {
    if !has_simulated_device() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = |name: &str, args: &[&str]| {
        let path = folder.path().join(name);
        let text = path.display().to_string();
        let said = run(&[args, &["--device", "cuda-sim", "--save-trace", &text]].concat());
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
        let mut reader = TraceReader::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            reader.line(line).unwrap();
        }
        reader.finish().unwrap()
    };
    let train = ["--train", "--basis", "cuda-sim"];
    let measured = trace("measured.jsonl", &[&CNN[..], &train].concat());
    let plain = trace("plain.jsonl", &[&CNN[1..], &train].concat());
    // The run before it has left nothing: neither calls, nor operators, nor memory.
    let count = |trace: &Trace, of: fn(&Event) -> bool| {
        trace.events.iter().filter(|event| of(event)).count()
    };
    let kinds: [fn(&Event) -> bool; 3] = [
        |event| matches!(event, Event::Enter { .. }),
        |event| matches!(event, Event::Op { .. }),
        |event| matches!(event, Event::Alloc { .. }),
    ];
    for of in kinds {
        assert_eq!(count(&measured, of), count(&plain, of));
        assert!(count(&plain, of) > 0);
    }
    // Phases say what the device has in use, and how long they took there.
    let memory = MemoryTimeline::of(&measured);
    for phase in &memory.phases {
        let device = phase.device.unwrap();
        let reserved = phase.reserved.unwrap();
        assert!(device.peak >= reserved.peak && device.peak <= device.total);
        assert_eq!(device.end - reserved.end, device.start - reserved.start);
        let host_ns = phase.time.1 - phase.time.0;
        let device_ns = phase.device_ns.unwrap();
        assert!(
            device_ns > 0 && device_ns <= host_ns + 1_000_000,
            "{device_ns} {host_ns}"
        );
    }
    assert!(
        MemoryTimeline::of(&plain)
            .phases
            .iter()
            .all(|phase| phase.device_ns.is_none())
    );
    // Modules' times lie within their phase's.
    let index = RunIndex::new(&measured);
    let forward = memory
        .phases
        .iter()
        .find(|phase| phase.name == PhaseName::Forward);
    let forward_ns = forward.unwrap().device_ns.unwrap();
    let root = index.calls.iter().map(|call| call.time_ns).max().unwrap();
    assert!(
        root > 0 && root <= forward_ns + 1_000_000,
        "{root} {forward_ns}"
    );
}
