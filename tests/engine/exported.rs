//! Exported programs with a real engine: they run as TorchScript of the same network does, to the byte.

use crate::archive::changed;
use crate::common::run_with_engine as run;
use serde_json::Value;

fn report(args: &[&str]) -> Value {
    let said = run(&[args, &["--format", "json"]].concat());
    assert_eq!(said.code, Some(0), "{args:?}: {}", said.snapshot());
    serde_json::from_str(&said.stdout).unwrap()
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter_map(|finding| finding["code"].as_str())
        .collect()
}

#[test]
fn a_program_runs_with_the_inputs_that_its_file_keeps() {
    for (name, operators) in [
        ("net", 18),
        ("counter", 8),
        ("tiny_cnn", 8),
        ("tiny_cnn_core", 9),
        ("torch_2_5", 8),
        ("torch_2_8", 8),
    ] {
        let report = report(&[&format!("fixtures/exported/{name}.pt2")]);
        assert_eq!(report["run"]["ops"]["total"], operators, "{name}");
        assert_eq!(report["estimate"]["basis"], "cuda-sim", "{name}");
        assert!(report["estimate"]["eager"].is_null(), "{name}");
        // libtorch's own list of parameters and buffers agrees with ours.
        assert_eq!(codes(&report), [""; 0], "{name}");
    }
}

#[test]
fn modules_are_put_together_again() {
    let report = report(&["fixtures/exported/net.pt2", "--input", "5x3x16x16"]);
    let modules = report["run"]["modules"].as_array().unwrap();
    let calls: Vec<(&str, &str, u64)> = modules
        .iter()
        .map(|module| {
            (
                module["path"].as_str().unwrap(),
                module["class"].as_str().unwrap(),
                module["calls"].as_u64().unwrap(),
            )
        })
        .collect();
    for expected in [
        ("", "Net", 1),
        ("stem", "Conv2d", 1),
        ("layers", "Sequential", 2),
        ("layers.0", "Block", 2),
        ("layers.0.conv", "Conv2d", 2),
        ("layers.0.bn", "BatchNorm2d", 2),
        ("fc", "Linear", 1),
        ("head", "Linear", 1),
    ] {
        assert!(calls.contains(&expected), "{expected:?} in {calls:?}");
    }
    assert_eq!(
        report["run"]["outputs"][0]["shape"],
        serde_json::json!([5, 4])
    );
}

#[test]
fn peaks_are_those_of_the_same_network_as_torchscript() {
    for mode in [&[][..], &["--train", "--optimizer", "adamw"]] {
        let of = |file: &str| -> Value {
            let mut estimate =
                report(&[&[file, "--input", "1x3x8x8"], mode].concat())["estimate"].take();
            let keep = [
                "peak_requested_bytes",
                "peak_allocated_bytes",
                "peak_reserved_bytes",
            ];
            let estimate = estimate.as_object_mut().unwrap();
            keep.iter()
                .map(|key| ((*key).to_owned(), estimate[*key].take()))
                .collect()
        };
        let script = of("fixtures/tiny_cnn.pt");
        assert!(script["peak_allocated_bytes"].is_u64());
        assert_eq!(of("fixtures/exported/tiny_cnn.pt2"), script, "{mode:?}");
    }
}

#[test]
fn what_a_program_holds_of_the_cpu_that_it_was_exported_on_is_said() {
    // Attention lays out its result otherwise on CUDA: a `view` that the exporter left alone fails there, in Python too.
    let report = report(&["fixtures/exported/attention.pt2"]);
    assert_eq!(codes(&report), ["fails-on-cuda"]);
    assert_eq!(report["estimate"]["basis"], "cpu-trace");
}

#[test]
fn a_program_that_cannot_run_is_listed_all_the_same() {
    let file = changed("fixtures/exported/tiny_cnn.pt2", "model.json", |text| {
        text.replace(
            "torch.ops.aten.relu_.default",
            "torch.ops.mine.relu_.default",
        )
    });
    let path = file.path().to_str().unwrap();
    let listed = report(&[path]);
    assert_eq!(codes(&listed), ["not-run"]);
    assert!(listed["run"].is_null());
    for asked in [
        &["--inputs", path][..],
        &["--train"],
        &["--device", "cuda-sim"],
    ] {
        let said = run(&[&[path][..], asked].concat());
        assert_eq!(said.code, Some(3), "{asked:?}: {}", said.snapshot());
    }
    let said = run(&[path, "--inputs", path]);
    assert!(said.stderr.contains("mine"), "{}", said.stderr);
}
