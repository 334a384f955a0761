//! The estimate from the file alone: no engine is needed, and nothing is guessed.

#![allow(
    clippy::unwrap_used,
    reason = "clippy excuses functions marked #[test], and not their helpers"
)]

use crate::common::run;
use serde_json::Value;

fn estimate(args: &[&str], code: i32) -> Value {
    let said = run(&[args, &["--format", "json"]].concat());
    assert_eq!(said.code, Some(code), "{}", said.stderr);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    report["estimate"].clone()
}

const STATE: &str = "fixtures/resnet18_state.pth";

/// resnet18: 11,689,512 parameters in 62 tensors; running means and variances, 20 counters.
const PARAMETERS: u64 = 11_689_512 * 4;
const BUFFERS: u64 = 9_600 * 4 + 20 * 8;

#[test]
fn weights_gradients_and_state_are_exact() {
    for (optimizer, copies) in [
        ("sgd", 0),
        ("sgd-momentum", 1),
        ("nesterov", 1),
        ("adam", 2),
        ("adamw", 2),
        ("rmsprop", 1),
        ("adagrad", 1),
    ] {
        let estimate = estimate(&[STATE, "--train", "--optimizer", optimizer], 0);
        let known = &estimate["at_peak"];
        assert_eq!(estimate["basis"], "static");
        assert_eq!(known["parameters"], PARAMETERS);
        assert_eq!(known["buffers"], BUFFERS);
        assert_eq!(known["gradients"], PARAMETERS);
        assert_eq!(known["optimizer_state"], copies * PARAMETERS, "{optimizer}");
    }
    // The fused form counts steps on the device, in a float32 each.
    let fused = [
        "--train",
        "--optimizer",
        "adam",
        "--optimizer-impl",
        "fused",
    ];
    let estimate = estimate(&[&[STATE], &fused[..]].concat(), 0);
    assert_eq!(
        estimate["at_peak"]["optimizer_state"],
        2 * PARAMETERS + 62 * 4
    );
}

#[test]
fn what_is_unknown_is_null() {
    let estimate = estimate(&[STATE, "--memory", "8GiB"], 0);
    for key in [
        "peak_phase",
        "peak_requested_bytes",
        "peak_allocated_bytes",
        "peak_active_bytes",
        "peak_reserved_bytes",
        "fits",
        "margin_bytes",
    ] {
        assert!(estimate[key].is_null(), "{key}");
    }
    let known = &estimate["at_peak"];
    for key in [
        "activations",
        "inputs",
        "temporaries",
        "workspaces",
        "other",
    ] {
        assert!(known[key].is_null(), "{key}");
    }
    assert_eq!(known["gradients"], 0, "inference has none");
    assert_eq!(known["optimizer_state"], 0);
    assert!(estimate["rule_of_thumb"]["total"].is_null());
}

#[test]
fn weights_alone_can_be_too_much_and_never_fit_for_sure() {
    let args = [STATE, "--train", "--optimizer", "adamw", "--memory"];
    let too_small = estimate(&[&args[..], &["600MiB"]].concat(), 1);
    assert_eq!(too_small["fits"], false);
    let said = run(&[&args[..], &["8GiB"]].concat());
    assert_eq!(said.code, Some(0));
    let text = said.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("activations are unknown without a run"),
        "{text}"
    );
    assert!(
        text.contains("Fits unknown: this alone fits into 8.00 GiB"),
        "{text}"
    );
    let said = run(&[&args[..], &["600MiB"]].concat());
    assert!(
        said.stdout.contains("no, not into 600 MiB"),
        "{}",
        said.stdout
    );
    assert!(said.stderr.contains("does not fit"), "{}", said.stderr);
}

#[test]
fn shared_weights_count_once() {
    let estimate = estimate(&["fixtures/state_tied.pt", "--train"], 0);
    let said = run(&["fixtures/state_tied.pt", "--format", "json"]);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(report["totals"]["shared_bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        estimate["at_peak"]["parameters"],
        report["totals"]["storage_bytes"]
    );
    assert_eq!(
        estimate["at_peak"]["gradients"],
        estimate["at_peak"]["parameters"]
    );
}

#[test]
fn nothing_is_estimated_unasked() {
    assert!(estimate(&[STATE], 0).is_null());
}
