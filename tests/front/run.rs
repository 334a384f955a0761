//! Recorded runs of small models against what Python's torch says about the same models (`*.truth.json`).

use std::path::{Path, PathBuf};
use std::time::Instant;

use inspect_checkpoint::report::{
    RunAnalysis, RunOrder, RunReport, RunRow, RunRowKind, RunView, RunViewOptions,
};
use inspect_checkpoint::trace::{
    Arg, Event, Header, PhaseName, TRACE_VERSION, TensorRef, Trace, TraceReader,
};
use serde_json::Value;

const RUNS: [&str; 8] = [
    "residual",
    "shared_module",
    "many_calls",
    "tiny_cnn_frozen",
    "transformer_encoder",
    "gru",
    "lstm_tagger",
    "spectrum",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn trace(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/traces")
        .join(format!("{name}.jsonl"));
    let mut reader = TraceReader::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        reader.line(line).unwrap();
    }
    reader.finish().unwrap()
}

fn truth(name: &str) -> Value {
    let path = fixtures().join(format!("{name}.pt.truth.json"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["run"].take()
}

fn report(name: &str) -> Value {
    let trace = trace(name);
    serde_json::to_value(RunReport::new(&RunAnalysis::new(&trace, &[]), true)).unwrap()
}

fn module<'a>(report: &'a Value, path: &str) -> &'a Value {
    report["modules"]
        .as_array()
        .unwrap()
        .iter()
        .find(|module| module["path"] == path)
        .unwrap_or_else(|| panic!("there is no module `{path}`"))
}

#[test]
fn totals_and_outputs_are_those_of_python() {
    for name in RUNS {
        let (report, truth) = (report(name), truth(name));
        // Python's counter says 0 for a Fourier transform; it is not known.
        if !truth["flops"].is_null() && name != "spectrum" {
            assert_eq!(report["totals"]["flops"], truth["flops"], "{name}");
            assert_eq!(report["totals"]["macs"], truth["macs"], "{name}");
        }
        assert_eq!(report["outputs"], truth["outputs"], "{name}");
    }
}

#[test]
fn modules_are_those_of_python() {
    let mut compared = 0;
    for name in RUNS {
        let (report, truth) = (report(name), truth(name));
        for expected in truth["modules"].as_array().unwrap_or(&Vec::new()) {
            // Modules that are never called and own nothing are not in a trace; `shared_module` has two names for one.
            if expected["calls"] == 0 || name == "shared_module" || name == "tiny_cnn_frozen" {
                continue;
            }
            let path = expected["path"].as_str().unwrap();
            let found = module(&report, path);
            for key in ["class", "calls", "outputs", "parameters"] {
                assert_eq!(found[key], expected[key], "{name}: {key} of `{path}`");
            }
            if !expected["flops"].is_null() && name != "spectrum" {
                assert_eq!(
                    found["flops"], expected["flops"],
                    "{name}: flops of `{path}`"
                );
            }
            compared += 1;
        }
    }
    assert!(compared > 15, "only {compared} modules were compared");
}

#[test]
fn a_shared_module_counts_once() {
    let report = report("shared_module");
    let parameters: u64 = report["modules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|module| module["parameters"]["numel"].as_u64().unwrap())
        .sum();
    assert_eq!(parameters, 42);
    assert_eq!(module(&report, "left.0")["calls"], 1);
    assert_eq!(module(&report, "right.0")["calls"], 1);
    assert_eq!(module(&report, "left")["flops"], 144);
    assert_eq!(module(&report, "right")["flops"], 144);
}

#[test]
fn children_and_functions_add_up() {
    for name in RUNS {
        let report = report(name);
        let modules = report["modules"].as_array().unwrap();
        for parent in modules {
            let path = parent["path"].as_str().unwrap();
            let below = modules.iter().filter(|module| {
                let child = module["path"].as_str().unwrap();
                let above = child.rsplit_once('.').map_or("", |(above, _)| above);
                !child.is_empty() && above == path
            });
            let children: u64 = below
                .map(|module| module["flops"].as_u64().unwrap_or(0))
                .sum();
            let functions = parent["functions"].as_array().unwrap().iter();
            let own: u64 = functions
                .map(|one| one["flops"].as_u64().unwrap_or(0))
                .sum();
            assert_eq!(
                parent["flops"].as_u64().unwrap_or(0),
                children + own,
                "{name}: `{path}`"
            );
        }
        let count = |list: &Value| list.as_array().unwrap().len() as u64;
        assert_eq!(
            report["ops"]["total"].as_u64().unwrap(),
            count(&report["op_list"]),
            "{name}"
        );
        let kinds = report["ops"]["kinds"].as_object().unwrap().values();
        let calls: u64 = kinds.map(|kind| kind["count"].as_u64().unwrap()).sum();
        assert_eq!(report["ops"]["total"].as_u64().unwrap(), calls, "{name}");
    }
}

#[test]
fn residual_adds_and_views_are_rows() {
    let trace = trace("residual");
    let run = RunAnalysis::new(&trace, &[]);
    let view = RunView::new(&run, &RunViewOptions::default());
    let functions: Vec<&str> = view
        .rows
        .iter()
        .filter(|row| row.kind == RunRowKind::Function)
        .map(|row| row.label.as_str())
        .collect();
    assert!(functions.contains(&"add"), "{functions:?}");
    assert_eq!(view.rows[0].label, "Residual");
}

#[test]
fn what_cannot_be_counted_is_named() {
    let report = report("spectrum");
    let missing = report["ops"]["without_flops"].as_array().unwrap();
    assert!(report["totals"]["flops"].is_null(), "unknown is not 0");
    assert!(
        missing
            .iter()
            .any(|name| name.as_str().unwrap().contains("fft")),
        "{missing:?}"
    );
}

#[test]
fn measured_phases_follow_each_other() {
    for name in RUNS {
        let report = report(name);
        let measured = &report["measured"];
        assert_eq!(measured["source"], "libtorch CPU allocator");
        let phases = measured["phases"].as_array().unwrap();
        let names: Vec<&str> = phases
            .iter()
            .map(|phase| phase["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["load", "inputs", "forward"], "{name}");
        let bytes = |value: &Value| value.as_u64().unwrap();
        let most = phases
            .iter()
            .map(|phase| bytes(&phase["peak_requested_bytes"]))
            .max();
        assert_eq!(Some(bytes(&measured["peak_requested_bytes"])), most);
        let peak = &measured["at_peak"];
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
        let sum: u64 = categories
            .iter()
            .map(|category| bytes(&peak[category]))
            .sum();
        assert_eq!(
            sum,
            bytes(&peak["requested_bytes"]),
            "{name}: categories at the peak"
        );
    }
}

#[test]
fn keys_are_those_of_the_contract() {
    let report = report("residual");
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(
        keys(&report),
        [
            "device",
            "mode",
            "method",
            "libtorch_version",
            "inputs",
            "outputs",
            "modules",
            "ops",
            "op_list",
            "totals",
            "measured",
            "arguments",
        ]
    );
    assert_eq!(
        keys(&report["inputs"][0]),
        ["name", "dtype", "shape", "bytes"]
    );
    assert_eq!(
        keys(&report["outputs"][0]),
        ["path", "dtype", "shape", "bytes"]
    );
    assert_eq!(
        keys(&report["modules"][0])[..11],
        [
            "path",
            "class",
            "depth",
            "calls",
            "outputs",
            "parameters",
            "macs",
            "flops",
            "time_ns",
            "backward_time_ns",
            "peak_bytes",
        ]
    );
    assert_eq!(
        keys(&report["op_list"][0]),
        [
            "index", "op", "module", "phase", "inputs", "outputs", "flops", "time_ns", "bytes",
        ]
    );
    assert_eq!(
        keys(&report["totals"]),
        ["macs", "flops", "backward_flops", "time_ns"]
    );
    assert!(report["totals"]["backward_flops"].is_null());
}

#[test]
fn a_training_step_knows_whose_gradients_it_computes() {
    let report = report("tiny_cnn_train");
    // By hand, MACs: stem 8 x 256 x 27 (no gradient of the image), depthwise 8 x 256 x 9 twice, head 80 twice.
    let (stem, depthwise, head) = (8 * 256 * 27, 8 * 256 * 9, 80);
    assert_eq!(report["totals"]["flops"], 2 * (stem + depthwise + head));
    assert_eq!(
        report["totals"]["backward_flops"],
        2 * (stem + 2 * depthwise + 2 * head)
    );
    for (path, macs) in [
        ("stem.0", stem),
        ("depthwise", 2 * depthwise),
        ("head", 2 * head),
    ] {
        let module = module(&report, path);
        assert_eq!(module["backward_flops"], 2 * macs, "{path}");
        assert!(module["backward_time_ns"].as_u64().unwrap() > 0, "{path}");
    }
    // What ReLU made in place is kept for pooling and convolution; pooling keeps its indices.
    assert!(module(&report, "pool")["saved_bytes"].as_u64().unwrap() > 0);
    let phases = report["measured"]["phases"].as_array().unwrap();
    let names: Vec<&str> = phases
        .iter()
        .map(|phase| phase["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["load", "inputs", "forward", "backward", "optimizer"]
    );
    assert_eq!(phases[3]["step"], 1);
}

/// A run of `count` operators in a thousand calls.
fn long_trace(count: u32) -> Vec<Event> {
    let header = Header {
        version: TRACE_VERSION,
        device: "cpu".into(),
        libtorch_version: "2.11.0".into(),
        mode: "inference".into(),
        method: "forward".into(),
        alloc_conf: None,
    };
    let mut events = vec![Event::Header(header)];
    let texts = ["aten::mm", "layers.0", "Linear", "aten::empty"];
    for (id, text) in (0..).zip(texts) {
        events.push(Event::Str {
            id,
            text: text.into(),
        });
    }
    events.push(Event::Sig {
        id: 0,
        dtype: "float32".into(),
        shape: vec![8, 8],
        bytes: 256,
    });
    events.push(Event::Phase {
        t: 0,
        name: PhaseName::Forward,
        step: None,
    });
    for id in 0..count / 2 {
        let t = u64::from(id) * 10;
        let tensor = Arg::Tensor(TensorRef {
            sig: 0,
            alloc: Some(id),
        });
        let op = |id, name, args| Event::Op {
            t,
            id,
            name,
            seq: None,
            args,
            thread: 0,
        };
        let inner = vec![Arg::List(vec![Arg::Int(8), Arg::Int(8)])];
        events.extend([
            Event::Enter {
                t,
                path: 1,
                class: 2,
                thread: 0,
            },
            Event::Alloc {
                t,
                id,
                bytes: 256,
                block: None,
                addr: 64,
                stream: 0,
                thread: 0,
            },
            op(2 * id, 0, vec![tensor.clone(), tensor.clone()]),
            op(2 * id + 1, 3, inner),
            Event::End {
                t,
                id: 2 * id + 1,
                out: vec![],
            },
            Event::End {
                t,
                id: 2 * id,
                out: vec![tensor],
            },
            Event::Exit {
                t,
                out: vec![],
                thread: 0,
            },
            Event::Free { t, id },
        ]);
    }
    events
}

#[test]
fn a_hundred_thousand_operators_take_less_than_a_second() {
    let lines: Vec<String> = long_trace(100_000)
        .iter()
        .map(|event| serde_json::to_string(event).unwrap())
        .collect();
    let start = Instant::now();
    let mut reader = TraceReader::new();
    for line in &lines {
        reader.line(line).unwrap();
    }
    let trace = reader.finish().unwrap();
    let run = RunAnalysis::new(&trace, &[]);
    let report = serde_json::to_string(&RunReport::new(&run, true)).unwrap();
    let view = RunView::new(&run, &RunViewOptions::default());
    let took = start.elapsed();
    assert!(report.contains("\"total\":50000"));
    assert_eq!(run.tree.by_path("layers.0").unwrap().calls, 50_000);
    assert_eq!(view.rows.len(), 3);
    // A machine that does other things meanwhile may be several times slower.
    assert!(took.as_secs_f64() < 5.0, "it took {took:?}");
}

/// The labels of the rows that options give.
fn labels(name: &str, options: &RunViewOptions) -> Vec<String> {
    let trace = trace(name);
    let run = RunAnalysis::new(&trace, &[]);
    let rows = RunView::new(&run, options).rows;
    rows.into_iter().map(|row| row.label).collect()
}

#[test]
fn a_list_adds_up_to_the_run() {
    for name in RUNS {
        let trace = trace(name);
        let run = RunAnalysis::new(&trace, &[]);
        let options = RunViewOptions {
            order: Some(RunOrder::Run),
            ..RunViewOptions::default()
        };
        let view = RunView::new(&run, &options);
        assert!(!view.tree);
        let sum: u64 = view.rows.iter().map(|row| row.work.macs).sum();
        let root = RunView::new(&run, &RunViewOptions::default());
        assert_eq!(sum, root.rows[0].work.macs, "{name}");
    }
}

#[test]
fn lists_are_sorted_and_cut() {
    let sorted = |order, top| RunViewOptions {
        order,
        top,
        ..RunViewOptions::default()
    };
    let names = labels("transformer_encoder", &sorted(Some(RunOrder::Name), None));
    assert!(names.is_sorted(), "{names:?}");
    let trace = trace("transformer_encoder");
    let run = RunAnalysis::new(&trace, &[]);
    let by_bytes = RunView::new(&run, &sorted(Some(RunOrder::Bytes), None));
    let bytes: Vec<_> = by_bytes.rows.iter().map(RunRow::output_bytes).collect();
    assert!(bytes.is_sorted_by(|a, b| a >= b), "{bytes:?}");
    let by_time = RunView::new(&run, &sorted(Some(RunOrder::Time), None));
    assert!(by_time.rows.is_sorted_by(|a, b| a.time_ns >= b.time_ns));
    let top = RunView::new(&run, &sorted(None, Some(2)));
    assert_eq!(top.rows.len(), 2);
    assert_eq!(top.hidden_rows, by_bytes.rows.len() - 2);
    let first = |view: &RunView<'_>| view.rows[0].label.clone();
    assert_eq!(first(&top), first(&by_bytes));
}

#[test]
fn a_filter_keeps_what_is_around() {
    let options = RunViewOptions {
        filter: Some(regex::Regex::new(r"^left\.0$").unwrap()),
        ops: true,
        ..RunViewOptions::default()
    };
    assert_eq!(labels("shared_module", &options)[1..], ["left", "0"]);
    let trace = trace("shared_module");
    let run = RunAnalysis::new(&trace, &[]);
    let view = RunView::new(&run, &options);
    assert_eq!(view.filtered.unwrap().0, 1);
    let (ops, all) = view.ops.unwrap();
    assert!(!ops.is_empty() && ops.len() < all);
    assert!(ops.iter().all(|op| op.module == Some("left.0")));
    // The last child has no sibling below it any more.
    assert_eq!(view.rows.last().unwrap().guides, [false, false]);
}

#[test]
fn every_call_of_a_module_is_told() {
    let trace = trace("many_calls");
    let run = RunAnalysis::new(&trace, &[]);
    for module in &run.tree.modules {
        let calls: u64 = module.outputs_of_calls.iter().map(|one| one.calls).sum();
        assert_eq!(calls, module.calls, "{}", module.path);
    }
}
