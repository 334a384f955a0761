//! Real networks through the engine: the figures that everyone can look up.

use std::process::Command;

use serde_json::Value;

/// The report on a fixture, run with an image.
fn run(name: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_inspect"))
        .args(["--input", "1x3x224x224", "--no-sim", "--format", "json"])
        .arg(format!("fixtures/{name}.pt"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("INSPECT_ENGINE")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn module<'a>(report: &'a Value, path: &str) -> &'a Value {
    let modules = report["run"]["modules"].as_array().unwrap();
    modules.iter().find(|one| one["path"] == path).unwrap()
}

#[test]
fn well_known_networks() {
    let networks = [
        ("resnet18", 3_628_146_688_u64, 11_689_512_u64),
        ("resnet18_traced", 3_628_146_688, 11_689_512),
        ("mobilenet_v3_small", 113_020_800, 2_542_856),
        ("vgg16", 30_940_528_640, 138_357_544),
        ("vit_b_16", 35_127_656_448, 86_567_656),
    ];
    for (name, flops, parameters) in networks {
        let report = run(name);
        let totals = &report["run"]["totals"];
        assert_eq!(totals["flops"], flops, "{name}");
        assert_eq!(totals["macs"], flops / 2, "{name}");
        assert_eq!(
            report["run"]["ops"]["without_flops"],
            serde_json::json!([]),
            "{name}"
        );
        let modules = report["run"]["modules"].as_array().unwrap().iter();
        let own: u64 = modules
            .map(|one| one["parameters"]["numel"].as_u64().unwrap())
            .sum();
        assert_eq!(own, parameters, "{name}");
        assert_eq!(
            report["run"]["outputs"][0]["shape"],
            serde_json::json!([1, 1000]),
            "{name}"
        );
        let findings = report["findings"].as_array().unwrap();
        assert!(
            findings
                .iter()
                .all(|one| one["code"] != "engine-listing-differs"),
            "{name}: {findings:?}"
        );
    }
}

#[test]
fn resnet18_in_detail() {
    let report = run("resnet18");
    let conv = module(&report, "layer1.0.conv1");
    assert_eq!(conv["class"], "Conv2d");
    assert_eq!(conv["depth"], 3);
    assert_eq!(
        conv["outputs"][0]["shape"],
        serde_json::json!([1, 64, 56, 56])
    );
    assert_eq!(conv["macs"], 115_605_504);
    assert_eq!(conv["parameters"]["bytes"], 147_456);
    let run = &report["run"];
    assert_eq!(run["inputs"][0]["name"], "x");
    assert_eq!(run["inputs"][0]["bytes"], 602_112);
    assert_eq!(run["ops"]["total"], 69);
    assert_eq!(run["ops"]["kinds"]["aten::conv2d"]["count"], 20);
    // Weights and the peak's activations: more than the weights alone, less than twice.
    let peak = run["measured"]["peak_requested_bytes"].as_u64().unwrap();
    assert!((46_796_608..2 * 46_796_608).contains(&peak), "{peak}");
}
