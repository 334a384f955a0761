//! The estimate from the simulated CUDA device, end to end: front, engine, stand-ins, libtorch's own CUDA code.
//!
//! Skipped, and said so, where this build has no simulated device (no engine, or a libtorch without CUDA).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

use std::path::PathBuf;

use crate::common::{Said, has_simulated_device, run_with_engine};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

fn inspect(file: &str, args: &[&str]) -> Said {
    let file = fixture(file);
    run_with_engine(&[&[file.to_str().unwrap()], args].concat())
}

fn report(file: &str, args: &[&str], exit: i32) -> Value {
    let output = inspect(file, &[args, &["--format", "json"]].concat());
    assert_eq!(output.code, Some(exit), "{}", output.stderr);
    serde_json::from_str(&output.stdout).unwrap()
}

fn estimate(file: &str, args: &[&str], exit: i32) -> Value {
    let estimate = report(file, args, exit)["estimate"].clone();
    assert!(estimate.is_object(), "no estimate");
    adds_up(&estimate);
    estimate
}

/// The categories at the peak, rounding and cache add up to what is reserved, and so does the list of live tensors.
fn adds_up(estimate: &Value) {
    let peak = &estimate["at_peak"];
    let bytes = |key: &str| {
        peak[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key} in {peak}"))
    };
    let categories = [
        "parameters",
        "buffers",
        "inputs",
        "activations",
        "gradients",
        "optimizer_state",
        "temporaries",
        "workspaces",
        "other",
    ];
    let requested: u64 = categories.into_iter().map(bytes).sum();
    assert_eq!(
        requested + bytes("rounding") + bytes("cached_free"),
        bytes("reserved_bytes")
    );
    let live: u64 = peak["live"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(live, requested);
    let phases = estimate["phases"].as_array().unwrap();
    let highest = phases
        .iter()
        .map(|phase| phase["peak_allocated_bytes"].as_u64().unwrap())
        .max();
    assert_eq!(highest, estimate["peak_allocated_bytes"].as_u64());
    for phase in phases {
        let order = [
            "peak_requested_bytes",
            "peak_allocated_bytes",
            "peak_active_bytes",
            "peak_reserved_bytes",
        ];
        let values: Vec<u64> = order
            .iter()
            .map(|key| phase[*key].as_u64().unwrap())
            .collect();
        assert!(values.is_sorted(), "{phase}");
    }
}

const IMAGE: [&str; 2] = ["--input", "1x3x224x224"];
const IMAGES: [&str; 2] = ["--input", "8x3x224x224"];
const SIM: [&str; 2] = ["--device", "cuda-sim"];

/// Peaks that Python's torch 2.11 reaches on the simulated device with the same module (compute capability 8.9).
#[test]
fn inference_peaks_are_those_of_pytorch() {
    if !has_simulated_device() {
        return;
    }
    for (file, input, allocated, reserved) in [
        ("resnet18.pt", IMAGE, 57_037_824_u64, 71_303_168_u64),
        ("resnet18.pt", IMAGES, 103_058_432, 125_829_120),
    ] {
        let estimate = estimate(file, &[input, SIM].concat(), 0);
        assert_eq!(estimate["basis"], "cuda-sim");
        assert_eq!(
            estimate["peak_allocated_bytes"], allocated,
            "{file} {input:?}"
        );
        assert_eq!(
            estimate["peak_reserved_bytes"], reserved,
            "{file} {input:?}"
        );
        assert_eq!(estimate["peak_phase"], "forward");
    }
}

#[test]
fn training_peaks_are_those_of_pytorch() {
    if !has_simulated_device() {
        return;
    }
    let estimate = estimate(
        "vgg16.pt",
        &[&IMAGES[..], &SIM, &["--train", "--optimizer", "adamw"]].concat(),
        0,
    );
    // torch.optim.AdamW in its multi-tensor form, as it runs on CUDA.
    assert_eq!(estimate["peak_allocated_bytes"], 2_797_484_544_u64);
    assert_eq!(estimate["peak_reserved_bytes"], 3_338_665_984_u64);
    let peak = &estimate["at_peak"];
    let parameters = 138_357_544 * 4;
    assert_eq!(peak["parameters"], parameters);
    assert_eq!(peak["optimizer_state"], 2 * parameters);
}

#[test]
fn the_default_run_has_both() {
    if !has_simulated_device() {
        return;
    }
    let report = report("tiny_cnn.pt", &["--input", "2x3x32x32"], 0);
    assert_eq!(report["run"]["device"], "cpu");
    assert_eq!(report["estimate"]["basis"], "cuda-sim");
    let without = report_without_simulation();
    assert_eq!(without["run"]["device"], "cpu");
    assert!(without["estimate"].is_null());
}

fn report_without_simulation() -> Value {
    report("tiny_cnn.pt", &["--input", "2x3x32x32", "--no-sim"], 0)
}

#[test]
fn a_model_that_does_not_fit_gets_pytorchs_own_error_and_exit_code_1() {
    if !has_simulated_device() {
        return;
    }
    let args = [&IMAGES[..], &SIM, &["--memory", "560MiB"]].concat();
    let output = inspect("vgg16.pt", &args);
    let stderr = &output.stderr;
    assert_eq!(output.code, Some(1), "{stderr}");
    assert!(stderr.contains("does not fit"), "{stderr}");
    assert!(stderr.contains("CUDA out of memory"), "{stderr}");
    let estimate = estimate("vgg16.pt", &args, 1);
    assert_eq!(estimate["fits"], false);
    assert!(estimate["margin_bytes"].is_null());
    let live = estimate["at_peak"]["live"].as_array().unwrap();
    // The context takes its share of the capacity: memory runs out at the classifier, while loading.
    assert_eq!(estimate["at_peak"]["phase"], "load");
    assert_eq!(live[0]["category"], "parameters");
    assert_eq!(live[0]["name"], "features.19.weight");
}

/// Memory that runs out inside the model, whose interpreter makes a plain error of it; in inference and in training, in
/// the forward and in the backward pass.
#[test]
fn memory_that_runs_out_while_running_is_told_as_such() {
    if !has_simulated_device() {
        return;
    }
    let image = ["--input", "8x3x224x224", "--device", "cuda-sim"];
    let cases: [(&[&str], &str); 3] = [
        (&["--memory", "570MiB"], "forward"),
        (&["--memory", "620MiB", "--train"], "forward"),
        (&["--memory", "720MiB", "--train"], "backward"),
    ];
    for (more, phase) in cases {
        let args = [&image[..], more].concat();
        let output = inspect("resnet18.pt", &args);
        let stderr = &output.stderr;
        assert_eq!(output.code, Some(1), "{more:?}: {stderr}");
        assert!(stderr.contains("CUDA out of memory"), "{more:?}: {stderr}");
        let estimate = estimate("resnet18.pt", &args, 1);
        assert_eq!(estimate["fits"], false, "{more:?}");
        assert_eq!(estimate["at_peak"]["phase"], phase, "{more:?}");
    }
}

/// Between what is allocated at most and what is reserved when memory is plenty, PyTorch gives its cache back and tries
/// again: the model fits, and the figures are those of the smaller card.
#[test]
fn the_cache_is_given_back_before_memory_runs_out() {
    if !has_simulated_device() {
        return;
    }
    let args = [
        "--input",
        "8x3x224x224",
        "--device",
        "cuda-sim",
        "--train",
        "--optimizer",
        "adamw",
    ];
    let plenty = estimate("resnet18.pt", &args, 0);
    let bytes = |estimate: &Value, key: &str| estimate[key].as_u64().unwrap();
    let reserved = bytes(&plenty, "peak_reserved_bytes");
    let context = bytes(&plenty, "context_bytes");
    let capacity = (context + reserved - (10 << 20)).to_string();
    let tight = [&args[..], &["--memory", &capacity]].concat();
    let tight = estimate("resnet18.pt", &tight, 0);
    assert_eq!(tight["fits"], true);
    assert!(bytes(&tight, "peak_reserved_bytes") < reserved);
    assert_eq!(
        bytes(&tight, "peak_allocated_bytes"),
        bytes(&plenty, "peak_allocated_bytes")
    );
}

#[test]
fn what_fits_has_a_margin() {
    if !has_simulated_device() {
        return;
    }
    let estimate = estimate(
        "resnet18.pt",
        &[&IMAGE[..], &SIM, &["--memory", "8GiB"]].concat(),
        0,
    );
    assert_eq!(estimate["fits"], true);
    let context = estimate["context_bytes"].as_u64().unwrap();
    let reserved = estimate["peak_reserved_bytes"].as_u64().unwrap();
    assert_eq!(estimate["margin_bytes"], (8_u64 << 30) - context - reserved);
}

#[test]
fn the_allocators_settings_change_what_is_reserved() {
    if !has_simulated_device() {
        return;
    }
    let args = [
        &IMAGE[..],
        &SIM,
        &["--alloc-conf", "expandable_segments:True"],
    ]
    .concat();
    let expandable = estimate("resnet18.pt", &args, 0);
    // Expandable segments split where a plain large segment does not: less rounding.
    assert!(expandable["peak_allocated_bytes"].as_u64().unwrap() < 57_037_824);
}

#[test]
fn a_hopper_card_has_the_larger_workspace() {
    if !has_simulated_device() {
        return;
    }
    let workspace = |profile: &str| {
        let args = [
            "--input",
            "4x16",
            "--device",
            "cuda-sim",
            "--profile",
            profile,
        ];
        estimate("mlp.pt", &args, 0)["at_peak"]["workspaces"]
            .as_u64()
            .unwrap()
    };
    assert!(workspace("h100") >= 32 << 20);
    assert!(workspace("rtx-4090") < 32 << 20);
}

const SELECTS: &[&str] = &["--input", "16x24", "--input", "20:int64@0..7"];

/// What a mask keeps, how many ids there are and numbers read from tensors come from the CPU run beside it.
#[test]
fn sizes_that_depend_on_values_are_those_of_the_cpu_run() {
    if !has_simulated_device() {
        return;
    }
    let report = report("selects.pt", SELECTS, 0);
    let estimate = &report["estimate"];
    adds_up(estimate);
    assert_eq!(
        estimate["coverage"]["value_dependent_ops"],
        serde_json::json!([])
    );
    let outputs = report["run"]["outputs"].as_array().unwrap();
    let expected: u64 = outputs
        .iter()
        .map(|one| one["bytes"].as_u64().unwrap())
        .sum();
    assert!(outputs.iter().all(|one| one["bytes"].as_u64() > Some(0)));
    let phases = estimate["phases"].as_array().unwrap();
    let forward = phases.iter().find(|one| one["name"] == "forward").unwrap();
    let grown = forward["end_requested_bytes"].as_u64().unwrap()
        - forward["start_requested_bytes"].as_u64().unwrap();
    let workspaces = estimate["at_peak"]["workspaces"].as_u64().unwrap();
    assert_eq!(grown - workspaces, expected, "{estimate}");
}

/// The simulated device alone knows no values, and says where it needed one.
#[test]
fn sizes_that_nobody_knows_are_named() {
    if !has_simulated_device() {
        return;
    }
    let arguments = [SELECTS, &["--device", "cuda-sim"]].concat();
    let coverage = estimate("selects.pt", &arguments, 0)["coverage"].clone();
    assert_eq!(
        coverage["value_dependent_ops"],
        serde_json::json!([
            "aten::_local_scalar_dense",
            "aten::_unique2",
            "aten::masked_select",
            "aten::nonzero"
        ])
    );
}

/// VGG16 at 3x224x224, row by row as CS231n counts it: values of the output, weights without biases.
const VGG16: [(&str, u64, u64); 21] = [
    ("features.0", 3_211_264, 1_728),
    ("features.2", 3_211_264, 36_864),
    ("features.4", 802_816, 0),
    ("features.5", 1_605_632, 73_728),
    ("features.7", 1_605_632, 147_456),
    ("features.9", 401_408, 0),
    ("features.10", 802_816, 294_912),
    ("features.12", 802_816, 589_824),
    ("features.14", 802_816, 589_824),
    ("features.16", 200_704, 0),
    ("features.17", 401_408, 1_179_648),
    ("features.19", 401_408, 2_359_296),
    ("features.21", 401_408, 2_359_296),
    ("features.23", 100_352, 0),
    ("features.24", 100_352, 2_359_296),
    ("features.26", 100_352, 2_359_296),
    ("features.28", 100_352, 2_359_296),
    ("features.30", 25_088, 0),
    ("classifier.0", 4_096, 102_760_448),
    ("classifier.3", 4_096, 16_777_216),
    ("classifier.6", 1_000, 4_096_000),
];

#[test]
fn the_rule_of_thumb_is_the_table_of_vgg16() {
    if !has_simulated_device() {
        return;
    }
    let args = [&IMAGE[..], &SIM, &["--train", "--optimizer", "adam"]].concat();
    let report = report("vgg16.pt", &args, 0);
    let product = |shape: &Value| -> u64 {
        let sizes = shape.as_array().unwrap();
        sizes.iter().map(|size| size.as_u64().unwrap()).product()
    };
    let find = |list: &str, key: &str, name: &str| -> Value {
        let all = report[list].as_array().or(report["run"][list].as_array());
        let found = all.unwrap().iter().find(|one| one[key] == name);
        found.cloned().unwrap_or_else(|| panic!("no {name}"))
    };
    let input = 150_528;
    let (mut values, mut weights) = (input, 0);
    for (path, output, weight) in VGG16 {
        let module = find("modules", "path", path);
        assert_eq!(product(&module["outputs"][0]["shape"]), output, "{path}");
        if weight > 0 {
            let tensor = find("tensors", "name", &format!("{path}.weight"));
            assert_eq!(tensor["numel"], weight, "{path}");
        }
        values += output;
        weights += weight;
    }
    assert_eq!((values, weights), (15_237_608, 138_344_128));
    let rule = &report["estimate"]["rule_of_thumb"];
    assert_eq!(rule["parameters"], 4 * weights);
    assert_eq!(rule["activations_forward"], 4 * values);
    assert_eq!(rule["activations_backward"], 4 * values);
    assert_eq!(rule["optimizer"], 3 * 4 * weights);
    assert_eq!(rule["total"], 4 * 4 * weights + 2 * 4 * values);
}

/// Memory that runs out in the model's own code is out of memory, too.
#[test]
fn a_forward_that_does_not_fit_is_no_failure_of_the_model() {
    if !has_simulated_device() {
        return;
    }
    let args = ["--input", "600x3x224x224", "--memory", "2GiB"];
    let output = inspect("resnet18.pt", &[&args[..], &SIM].concat());
    let stderr = &output.stderr;
    assert_eq!(output.code, Some(1), "{stderr}");
    assert!(stderr.contains("CUDA out of memory"), "{stderr}");
}

/// The fallback's figures against the simulated device's.
#[test]
fn a_cpus_run_gives_nearly_the_same() {
    if !has_simulated_device() {
        return;
    }
    let adamw = ["--train", "--optimizer", "adamw"];
    for (file, input, args) in [
        ("resnet18.pt", "2x3x224x224", &[][..]),
        ("resnet18.pt", "2x3x64x64", &adamw[..]),
        ("mobilenet_v3_small.pt", "2x3x64x64", &adamw),
        ("mlp.pt", "4x16", &adamw),
        ("transformer_encoder.pt", "8x6x16", &adamw),
    ] {
        let args = [&["--input", input], args].concat();
        let real = estimate(file, &[&args[..], &SIM].concat(), 0);
        let ours = estimate(file, &[&args[..], &["--basis", "cpu-trace"]].concat(), 0);
        assert_eq!(ours["basis"], "cpu-trace");
        for key in ["peak_allocated_bytes", "peak_reserved_bytes"] {
            let (ours, real) = (ours[key].as_f64().unwrap(), real[key].as_f64().unwrap());
            assert!(
                (ours / real - 1.0).abs() < 0.05,
                "{file} {key}: {ours} {real}"
            );
        }
    }
    let output = inspect(
        "mlp.pt",
        &[&["--input", "4x16", "--basis", "cpu-trace"][..], &SIM].concat(),
    );
    assert_eq!(output.code, Some(2));
}

/// Peaks of the eager Python modules, torch 2.11 on the stand-ins (scripts/compare_cuda_sim.py): allocated, reserved.
#[test]
fn the_peak_of_an_eager_module_is_said_beside_torchscripts() {
    if !has_simulated_device() {
        return;
    }
    for (file, input, more, allocated, reserved) in [
        (
            "resnet18.pt",
            "1x3x224x224",
            &[][..],
            57_037_824,
            73_400_320,
        ),
        (
            "mobilenet_v3_small.pt",
            "8x3x224x224",
            &[],
            31_154_688,
            50_331_648,
        ),
        ("vit_b_16.pt", "8x3x224x224", &[], 423_595_008, 480_247_808),
        (
            "vit_b_16.pt",
            "8x3x224x224",
            &["--train", "--optimizer", "adamw"],
            2_110_409_728_u64,
            2_399_141_888_u64,
        ),
    ] {
        let run = ["--input", input, "--device", "cuda-sim"];
        let beside = &estimate(file, &[&run[..], more].concat(), 0)["eager"];
        let python = ["--lifetimes", "python"];
        let alone = estimate(file, &[&run[..], more, &python].concat(), 0);
        for found in [beside, &alone] {
            assert_eq!(found["peak_allocated_bytes"], allocated, "{file} {more:?}");
            assert_eq!(found["peak_reserved_bytes"], reserved, "{file} {more:?}");
        }
        assert!(alone["eager"].is_null());
    }
}

/// An eager module that does not fit is said, where TorchScript's does.
#[test]
fn an_eager_module_that_does_not_fit_is_said() {
    if !has_simulated_device() {
        return;
    }
    let run = ["--input", "1x3x224x224", "--device", "cuda-sim"];
    let peaks = estimate("resnet18.pt", &run, 0);
    let figure = |value: &Value| value.as_u64().unwrap();
    let reserved = figure(&peaks["peak_reserved_bytes"]);
    assert!(reserved < figure(&peaks["eager"]["peak_reserved_bytes"]));
    // Just what TorchScript's run needs.
    let memory = reserved + figure(&peaks["context_bytes"]);
    let fit = ["--memory", &memory.to_string()];
    let found = estimate("resnet18.pt", &[&run[..], &fit].concat(), 0);
    assert_eq!(found["fits"], true);
    assert_eq!(found["eager"]["fits"], false);
    assert!(found["eager"]["margin_bytes"].is_null());
}

/// A safe figure says which part of it is margin, and a network without convolutions needs none for their workspaces.
#[test]
fn a_safe_bound_is_the_expected_figure_and_its_margin() {
    if !has_simulated_device() {
        return;
    }
    let figure = |value: &Value| value.as_u64().unwrap();
    for (file, input, convolutions) in [
        ("resnet18.pt", "1x3x224x224", true),
        ("mlp.pt", "2x16", false),
    ] {
        let run = ["--input", input, "--device", "cuda-sim"];
        let expected = estimate(file, &run, 0);
        assert!(expected["safe_margin"].is_null());
        let safe = estimate(file, &[&run[..], &["--bound", "safe"]].concat(), 0);
        assert_eq!(
            (&expected["bound"], &safe["bound"]),
            (&"expected".into(), &"safe".into())
        );
        let margin = &safe["safe_margin"];
        assert_eq!(
            margin["expected_reserved_bytes"],
            expected["peak_reserved_bytes"]
        );
        assert!(
            margin["context_bytes"].is_null(),
            "the default card's is known"
        );
        let workspaces = margin["cudnn_workspace_bytes"].as_u64();
        assert_eq!(workspaces.is_some(), convolutions, "{file}");
        let bound = figure(&safe["peak_reserved_bytes"]);
        let parts = figure(&expected["peak_reserved_bytes"])
            + figure(&margin["address_order_bytes"])
            + workspaces.unwrap_or(0);
        assert_eq!(bound, parts, "{file}");
        if let Some(workspaces) = workspaces {
            assert_eq!(workspaces * 1000 / bound, 174, "{file}");
        }
    }
}
