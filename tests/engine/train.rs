//! Training in the engine against what Python's torch did to the same files: `fixtures/train/*.truth.json`.
//!
//! Every optimizer in every implementation, three steps: losses, every parameter, the kinds and sizes of the
//! optimizer's state, and the labels that the trace gives to gradients and state.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

const MODELS: [(&str, &[u64], Option<&str>); 4] = [
    ("mlp", &[2, 16], None),
    ("cnn", &[1, 3, 32, 32], None),
    ("lstm", &[1, 12], Some("int64")),
    ("transformer", &[2, 6, 16], None),
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

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

fn truth(name: &str) -> Value {
    let path = fixture(&format!("{name}.truth.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Every line that the engine wrote.
fn engine(file: &Path, dims: &[u64], dtype: Option<&str>, training: &Value) -> Vec<Value> {
    let values = if dtype.is_some() { "zeros" } else { "ones" };
    let spec = json!({
        "text": "x",
        "tensor": {"dims": dims, "dtype": dtype, "fill": values},
        "scalar": null,
    });
    let request = json!({
        "protocol": 1,
        "threads": 1,
        "task": {
            "do": "run", "file": file, "weights": null, "method": "forward",
            "inputs": {"arguments": [{"name": null, "value": {"spec": spec}}]},
            "mode": {"training": training},
            "device": "cpu", "cast": null, "autocast": null, "seed": 0, "alloc_conf": null,
        },
    });
    crate::common::engine_lines(env!("CARGO_BIN_EXE_inspect-torch"), &request)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn training(optimizer: &str, implementation: Option<&str>, steps: u32) -> Value {
    json!({
        "optimizer": optimizer, "implementation": implementation, "loss": "mean", "steps": steps,
    })
}

/// Sum and first elements of every parameter.
fn parameters(done: &Value) -> BTreeMap<String, Vec<f64>> {
    done["trained"]["parameters"]
        .as_array()
        .unwrap_or_else(|| panic!("no trained values in {done}"))
        .iter()
        .map(|one| {
            let mut values = vec![one["sum"].as_f64().unwrap()];
            values.extend(
                one["first"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(Value::as_f64),
            );
            (one["name"].as_str().unwrap().to_owned(), values)
        })
        .collect()
}

/// How far values may be from the truth: rounding of single elements (which the truth measured), times the elements
/// that a sum adds up.
fn assert_close(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance + 1e-6 * expected.abs(),
        "{what}: expected {expected}, found {found}, tolerance {tolerance}"
    );
}

fn check(model: &str, optimizer: &str, implementation: Option<&str>) {
    let truth = truth(&format!("train/{model}.pt"));
    let (_, dims, dtype) = MODELS.into_iter().find(|row| row.0 == model).unwrap();
    let expected = &truth["train"]["optimizers"][optimizer];
    let steps = expected["steps"].as_array().unwrap();
    for count in 1..=steps.len() {
        let plan = training(optimizer, implementation, u32::try_from(count).unwrap());
        let lines = engine(&fixture(&format!("train/{model}.pt")), dims, dtype, &plan);
        let done = lines.last().unwrap();
        let what = format!("{model} {optimizer} {implementation:?} step {count}");
        assert_eq!(done["type"], "done", "{what}: {done}");
        let losses = done["trained"]["losses"].as_array().unwrap();
        assert_eq!(losses.len(), count);
        for (loss, step) in losses.iter().zip(steps) {
            assert_close(
                &what,
                loss.as_f64().unwrap(),
                step["loss"].as_f64().unwrap(),
                1e-5,
            );
        }
        let found = parameters(done);
        let wanted = steps[count - 1]["parameters"].as_object().unwrap();
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            wanted
                .keys()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>(),
            "{what}"
        );
        for (name, values) in wanted {
            let rounding = expected["rounding"][name].as_f64().unwrap().max(1e-7);
            let numel = truth["tensors"]
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["name"] == name.as_str())
                .and_then(|row| row["numel"].as_f64())
                .unwrap();
            let values = values.as_array().unwrap();
            assert_eq!(values.len(), found[name].len(), "{what} {name}");
            for (index, (expected, found)) in values.iter().zip(&found[name]).enumerate() {
                let elements = if index == 0 { numel } else { 1.0 };
                let tolerance = 4.0 * rounding * elements;
                assert_close(
                    &format!("{what} {name}[{index}]"),
                    *found,
                    expected.as_f64().unwrap(),
                    tolerance,
                );
            }
        }
        if count == steps.len() {
            check_labels(&what, &lines, expected, wanted.len());
        }
    }
}

/// The trace names every gradient, and every tensor of the optimizer's state.
fn check_labels(what: &str, lines: &[Value], expected: &Value, parameters: usize) {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut gradients = std::collections::BTreeSet::new();
    let mut state: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for line in lines {
        for kind in ["alloc", "extern"] {
            if let Some(id) = line[kind]["id"].as_u64() {
                sizes.insert(id, line[kind]["bytes"].as_u64().unwrap());
            }
        }
        let label = &line["label"];
        let name = label["name"].as_str().unwrap_or_default();
        match label["category"].as_str() {
            Some("gradients") => {
                gradients.insert(name.to_owned());
            }
            Some("optimizer_state") => {
                let (kind, _) = name.split_once(':').unwrap();
                let row = state.entry(kind.to_owned()).or_default();
                row.0 += 1;
                row.1 += sizes[&label["id"].as_u64().unwrap()];
            }
            _ => {}
        }
    }
    assert_eq!(gradients.len(), parameters, "{what}: gradients");
    let expected: BTreeMap<String, (u64, u64)> = expected["state"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(kind, row)| {
            let of = |key: &str| row[key].as_u64().unwrap();
            (kind.clone(), (of("tensors"), of("bytes")))
        })
        .collect();
    assert_eq!(state, expected, "{what}: optimizer state");
}

#[test]
fn the_default_on_the_cpu_ends_where_python_does() {
    for (model, ..) in MODELS {
        for optimizer in OPTIMIZERS {
            check(model, optimizer, None);
        }
    }
}

#[test]
fn many_tensors_at_once_end_where_one_by_one_does() {
    for (model, ..) in MODELS {
        for optimizer in OPTIMIZERS {
            check(model, optimizer, Some("foreach"));
        }
    }
}

#[test]
fn fused_optimizers_end_where_the_others_do() {
    for (model, ..) in MODELS {
        for optimizer in OPTIMIZERS {
            if optimizer != "rmsprop" {
                check(model, optimizer, Some("fused"));
            }
        }
    }
}

fn failure(file: &str, dims: &[u64], training: &Value) -> (String, String) {
    let lines = engine(&fixture(file), dims, None, training);
    let last = lines.last().unwrap();
    assert_eq!(last["type"], "failed", "{last}");
    (
        last["kind"].as_str().unwrap().to_owned(),
        last["message"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn what_torch_optim_lacks_is_refused() {
    let plan = training("rmsprop", Some("fused"), 1);
    assert_eq!(
        failure("train/mlp.pt", &[2, 16], &plan),
        (
            "unsupported".to_owned(),
            "torch.optim.RMSprop has no fused implementation".to_owned()
        )
    );
}

#[test]
fn a_module_without_parameters_cannot_be_trained() {
    let (kind, message) = failure(
        "tiny_cnn_frozen.pt",
        &[1, 3, 32, 32],
        &training("sgd", None, 1),
    );
    assert_eq!(kind, "unsupported");
    assert!(message.contains("nothing to train"), "{message}");
}
