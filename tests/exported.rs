//! Exported programs (`.pt2`): their graph, what is refused, and the TorchScript that they are run as.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]

mod archive;
#[macro_use]
mod common;

use std::fs;
use std::path::Path;

use archive::{Record, changed, zip};
use common::gate::{Folder, engine, with_engine};
use common::run;
use inspect_checkpoint::format;
use inspect_checkpoint::source::Source;
use serde_json::Value;

fn fixture(name: &str) -> String {
    format!("fixtures/exported/{name}")
}

fn listed(path: &str) -> Value {
    let said = run(&[path, "--no-run", "--format", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    serde_json::from_str(&said.stdout).unwrap()
}

/// The archive that libtorch is given for a program, as one file.
fn torchscript(path: &Path, device: &str) -> Vec<u8> {
    let source = Source::open(path).unwrap();
    let archive = format::loadable(&source, device, false).unwrap();
    let mut whole = Vec::new();
    for piece in &archive.pieces {
        let from = if piece.in_head {
            &archive.head
        } else {
            source.bytes()
        };
        let start = usize::try_from(piece.offset).unwrap();
        whole.extend(&from[start..start + usize::try_from(piece.bytes).unwrap()]);
    }
    whole
}

#[test]
fn the_graph_is_what_python_exported() {
    for name in ["net", "counter", "attention", "tiny_cnn", "tiny_cnn_core"] {
        let path = fixture(&format!("{name}.pt2"));
        let truth = fs::read(format!("{path}.truth.json")).unwrap();
        let truth: Value = serde_json::from_slice(&truth).unwrap();
        let report = listed(&path);
        assert_eq!(report["file"]["format"], "exported-program");
        let program = &report["programs"][0];
        let nodes = program["nodes"].as_array().unwrap();
        assert_eq!(truth["program"]["nodes"], nodes.len(), "{name}");
        assert_eq!(program["sample_inputs"], true, "{name}");
    }
    let program = &listed(&fixture("net.pt2"))["programs"][0];
    assert_eq!(
        program["inputs"][0]["shape"][0],
        program["symbols"][0]["name"]
    );
    assert_eq!(program["inputs"][0]["shape"][1], 3);
    assert_eq!(program["symbols"][0]["min"], 1);
    assert_eq!(program["symbols"][0]["max"], 64);
    assert_eq!(program["nodes"][1]["op"], "aten::conv2d");
    assert_eq!(program["nodes"][1]["module"], "layers.0.conv");
}

#[test]
fn earlier_layouts_hold_the_same_tensors() {
    let facts = |name: &str| -> Vec<String> {
        let report = listed(&fixture(name));
        let mut rows: Vec<String> = report["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| {
                format!(
                    "{} {} {} {}",
                    row["name"], row["role"], row["dtype"], row["shape"]
                )
            })
            .collect();
        rows.sort();
        rows
    };
    let today = facts("tiny_cnn.pt2");
    assert_eq!(facts("torch_2_5.pt2"), today);
    assert_eq!(facts("torch_2_8.pt2"), today);
}

#[test]
fn the_torchscript_of_a_program_holds_its_tensors_and_its_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let keep = std::env::var_os("INSPECT_KEEP_TORCHSCRIPT");
    for name in [
        "net",
        "counter",
        "attention",
        "tiny_cnn",
        "tiny_cnn_core",
        "torch_2_5",
        "torch_2_8",
    ] {
        let path = fixture(&format!("{name}.pt2"));
        let whole = torchscript(Path::new(&path), "cpu");
        let made = folder.path().join(format!("{name}.pt"));
        fs::write(&made, &whole).unwrap();
        if let Some(keep) = &keep {
            fs::copy(&made, Path::new(keep).join(format!("{name}.pt"))).unwrap();
        }
        let said = run(&[
            made.to_str().unwrap(),
            "--hash",
            "--verify",
            "--format",
            "json",
        ]);
        assert_eq!(said.code, Some(0), "{name}: {}", said.snapshot());
        let script: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(script["file"]["format"], "torchscript", "{name}");
        assert_eq!(script["security"]["verdict"], "clean", "{name}");
        let said = run(&[&path, "--no-run", "--hash", "--format", "json"]);
        let program: Value = serde_json::from_str(&said.stdout).unwrap();
        let rows = |report: &Value| -> Vec<String> {
            let storages = report["storages"].as_array().unwrap();
            let mut rows: Vec<String> = report["tensors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| {
                    let storage =
                        &storages[usize::try_from(row["storage"].as_u64().unwrap()).unwrap()];
                    format!(
                        "{} {} {} {} {}",
                        row["name"], row["dtype"], row["shape"], row["strides"], storage["hash"]
                    )
                })
                .collect();
            rows.sort();
            rows
        };
        assert_eq!(rows(&script), rows(&program), "{name}");
    }
}

#[test]
fn inputs_of_other_sizes_are_refused_by_the_argument() {
    let path = fixture("net.pt2");
    for (name, input) in [
        ("exported_rank", "2x3x16"),
        ("exported_fixed", "2x3x17x16"),
        ("exported_range", "65x3x16x16"),
    ] {
        let said = run(&[&path, "--input", input]);
        assert!(
            said.code == Some(3) && said.stderr.contains("argument `x`"),
            "{}",
            said.snapshot()
        );
        let stderr = said.stderr.clone();
        insta::assert_snapshot!(name, stderr);
    }
    let said = run(&[&path, "--input", "2x3x16x16", "--lifetimes", "python"]);
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
}

#[test]
fn the_listing_as_people_see_it() {
    check!("exported_list", run(&[&fixture("net.pt2"), "--no-run"]));
    check!(
        "exported_markdown",
        run(&[&fixture("counter.pt2"), "--no-run", "--format", "markdown"])
    );
    check!(
        "exported_signature",
        run(&[&fixture("net.pt2"), "--signature"])
    );
}

#[test]
fn options_of_a_run_take_the_inputs_that_the_file_keeps() {
    let (engine, folder) = (engine("residual.jsonl"), Folder::new());
    let net = fixture("net.pt2");
    let (trace, snapshot) = (folder.path("trace"), folder.path("snapshot"));
    let basis = ["--basis", "cpu-trace"];
    for options in [
        &["--ops"][..],
        &["--cast", "f16"],
        &["--autocast", "bf16"],
        &["--weights", "fixtures/state_cnn.pt"],
        &["--bound", "safe"],
        &["--save-trace", &trace],
        &["--save-snapshot", &snapshot],
        &["--no-sim"],
    ] {
        let more = if options == ["--no-sim"] {
            &[][..]
        } else {
            &basis[..]
        };
        let said = with_engine(&engine, &[&[net.as_str()], options, more].concat());
        assert_eq!(said.code, Some(0), "{options:?} {}", said.snapshot());
        assert!(said.stdout.contains("Run "), "{}", said.snapshot());
        let listed = ["--no-run"];
        let said = run(&[&[net.as_str()], options, &listed].concat());
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        for files in [
            &["fixtures/residual.pt"][..],
            &["fixtures/state_cnn.pt"],
            &[net.as_str(), net.as_str()],
            &["fixtures"],
        ] {
            let said = run(&[files, options].concat());
            assert_eq!(said.code, Some(2), "{}", said.snapshot());
            assert_eq!(said.stdout, "");
            assert!(
                said.stderr.contains("needs `--input`") || files != ["fixtures/residual.pt"],
                "{}",
                said.stderr
            );
        }
    }
    check!(
        "exported_needs_input",
        run(&["fixtures/residual.pt", "--ops"])
    );
}

#[test]
fn a_gate_runs_a_program_with_its_own_inputs() {
    let (engine, folder) = (engine("residual.jsonl"), Folder::new());
    let (net, base) = (fixture("net.pt2"), folder.path("base.json"));
    let check = ["check", net.as_str(), "--basis", "cpu-trace"];
    let gate = |more: &[&str]| {
        let said = with_engine(&engine, &[&check[..], more].concat());
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
        said.stdout
    };
    assert!(gate(&["--max", "flops=1T", "--all"]).contains("flops"));
    gate(&["--max", "flops=1T", "--cast", "f16"]);
    gate(&["--max", "flops=1T", "--measured"]);
    gate(&["--baseline", &base, "--update-baseline", "--measured"]);
    assert!(folder.read("base.json").contains("\"flops\""));
    let said = with_engine(&engine, &["check", &net, "--baseline", &base]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    let said = run(&[
        "check",
        "fixtures/residual.pt",
        "--max",
        "flops=1T",
        "--measured",
    ]);
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
    assert!(
        said.stderr.contains("`--measured` needs"),
        "{}",
        said.stderr
    );
}

/// What becomes of a record's text.
type Change = Box<dyn Fn(String) -> String>;

#[test]
fn forged_programs_end_in_an_error() {
    let config = "model_weights_config.json";
    let model = "models/model.json";
    let deep = "[".repeat(100_000);
    let cases: Vec<(&str, &str, Change)> = vec![
        (
            "a record that is not there",
            config,
            Box::new(|text| text.replace("weight_0", "weight_99")),
        ),
        (
            "a path that leads out",
            config,
            Box::new(|text| text.replace("weight_0", "../../../etc/passwd")),
        ),
        (
            "a negative size",
            config,
            Box::new(|text| text.replacen("{\"as_int\": 8}", "{\"as_int\": -8}", 1)),
        ),
        (
            "a huge size",
            config,
            Box::new(|text| {
                text.replacen("{\"as_int\": 8}", "{\"as_int\": 4611686018427387904}", 1)
            }),
        ),
        (
            "a dtype that is none",
            config,
            Box::new(|text| text.replacen("\"dtype\": 7", "\"dtype\": 99", 1)),
        ),
        (
            "a size that is open",
            config,
            Box::new(|text| {
                text.replacen(
                    "{\"as_int\": 8}",
                    "{\"as_expr\": {\"expr_str\": \"s0\"}}",
                    1,
                )
            }),
        ),
        ("no JSON", model, Box::new(|_| "not JSON".to_owned())),
        ("nothing", model, Box::new(|_| String::new())),
        ("a list", model, Box::new(|_| "[]".to_owned())),
        ("deep nesting", model, Box::new(move |_| deep.clone())),
        (
            "half of it",
            model,
            Box::new(|text| text[..text.len() / 2].to_owned()),
        ),
    ];
    for (what, record, change) in cases {
        let file = changed(&fixture("net.pt2"), record, change);
        let path = file.path().to_str().unwrap();
        let said = run(&[path]);
        assert_eq!(said.code, Some(2), "{what}: {}", said.snapshot());
        assert!(
            said.stderr.starts_with("error: "),
            "{what}: {}",
            said.stderr
        );
        assert!(
            said.stderr.contains("weights") || said.stderr.contains("model.json"),
            "{what}: {}",
            said.stderr
        );
    }
}

#[test]
fn meta_tensors_have_a_shape_and_no_data() {
    let file = changed(
        &fixture("tiny_cnn.pt2"),
        "model_weights_config.json",
        |text| text.replacen("{\"type\": \"cpu\"", "{\"type\": \"meta\"", 1),
    );
    let report = listed(file.path().to_str().unwrap());
    assert_eq!(report["tensors"][0]["layout"], "meta");
    assert_eq!(report["tensors"][0]["storage"], Value::Null);
    assert_eq!(report["tensors"][1]["layout"], "strided");
}

#[test]
fn what_aotinductor_compiled_is_listed() {
    let records = [
        Record::new("m/archive_format", b"pt2"),
        Record::new("m/archive_version", b"0"),
        Record::new("m/data/aotinductor/model/c1.wrapper.so", &[7; 1000]),
        Record::new("m/data/aotinductor/model/c1.wrapper.cpp", &[b'x'; 500]),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("compiled.pt2");
    fs::write(&path, zip(&records)).unwrap();
    let report = listed(path.to_str().unwrap());
    assert_eq!(report["file"]["format"], "exported-program");
    assert_eq!(report["totals"]["by_class"]["code"], 1500);
    assert_eq!(report["findings"][0]["code"], "compiled-model");
    assert_eq!(report["programs"], Value::Null);
}
