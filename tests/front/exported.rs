//! Exported programs (`.pt2`): their graph, what is refused, and the TorchScript that they are run as.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panic"
)]

use std::fs;
use std::path::Path;

use crate::archive::{Record, changed, zip};
use crate::common::gate::{Folder, engine, with_engine};
use crate::common::run;
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
        check!(name, said);
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

/// A symbol of a program as its file writes it.
const SYMBOL: &str = "Symbol('s77', positive=True, integer=True)";

/// `net.pt2` with another third size of `x`, which is 16.
fn resized(size: &str) -> tempfile::NamedTempFile {
    let own = format!("{SYMBOL}\", \"hint\": {{\"as_int\": 2}}}}}}, {{\"as_int\": 3}}, ");
    let new =
        format!("{{\"as_expr\": {{\"expr_str\": \"{size}\", \"hint\": {{\"as_int\": 16}}}}}}");
    changed(&fixture("net.pt2"), "models/model.json", move |text| {
        let from = format!("{own}{{\"as_int\": 16}}");
        assert!(text.contains(&from));
        text.replacen(&from, &format!("{own}{new}"), 1)
    })
}

#[test]
fn sizes_that_hang_together_are_checked_together() {
    let cases = [
        (
            SYMBOL.to_owned(),
            "16x3x16x16",
            "16x3x15x16",
            "has to be 16: `s77` is 16",
        ),
        (
            format!("Mul(Integer(8), {SYMBOL})"),
            "2x3x16x16",
            "2x3x24x16",
            "has to be 8*s77 = 16: `s77` is 2 by dimension 0 of `x`",
        ),
        (
            format!("Add(FloorDiv({SYMBOL}, Integer(2)), Integer(-1))"),
            "34x3x16x16",
            "34x3x17x16",
            "has to be s77//2 - 1 = 16",
        ),
        (
            "Mul(Integer(8), Symbol('s5', integer=True))".to_owned(),
            "2x3x16x16",
            "2x3x15x16",
            "is 8*s5 for a whole `s5`",
        ),
    ];
    for (size, right, wrong, why) in cases {
        let file = resized(&size);
        let path = file.path().to_str().unwrap();
        let engine = engine("residual.jsonl");
        let said = with_engine(&engine, &[path, "--input", right, "--no-sim"]);
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
        let said = with_engine(&engine, &[path, "--input", wrong, "--no-sim"]);
        assert_eq!(said.code, Some(3), "{}", said.snapshot());
        assert!(said.stderr.contains(why), "{}", said.stderr);
        assert!(said.stderr.contains("argument `x`"), "{}", said.stderr);
    }
}

#[test]
fn inputs_of_other_dtypes_are_refused() {
    let net = fixture("net.pt2");
    let said = run(&[&net, "--input", "2x3x16x16:f64"]);
    assert_eq!(said.code, Some(3), "{}", said.snapshot());
    check!("exported_dtype", said);
    let said = run(&[&fixture("attention.pt2"), "--input", "tokens=2x8"]);
    assert!(
        said.code == Some(3)
            && said
                .stderr
                .contains("is float32, and the program was exported for int64"),
        "{}",
        said.snapshot()
    );
    // Weights of another dtype want inputs of it.
    let engine = engine("residual.jsonl");
    let cast = ["--cast", "f16", "--no-sim"];
    let said = with_engine(
        &engine,
        &[&[&net, "--input", "2x3x16x16:f16"], &cast[..]].concat(),
    );
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    // A file of inputs is looked into.
    let said = run(&[&net, "--inputs", "fixtures/tensor.pt"]);
    assert!(
        said.code == Some(3) && said.stderr.contains("argument `x` is "),
        "{}",
        said.snapshot()
    );
}

#[test]
fn sizes_are_written_as_people_do() {
    let file = resized(&format!(
        "Add(FloorDiv(Add({SYMBOL}, Integer(-1)), Integer(2)), Integer(1))"
    ));
    let path = file.path().to_str().unwrap();
    let said = run(&[path, "--no-run"]);
    assert!(
        said.stdout
            .contains("`x` s77×3×((s77 - 1)//2 + 1)×16 float32"),
        "{}",
        said.stdout
    );
    let program = &listed(path)["programs"][0];
    assert_eq!(
        program["inputs"][0]["shape"][2],
        "Add(FloorDiv(Add(s77, -1), 2), 1)"
    );
}

#[test]
fn a_batch_is_looked_for_among_those_that_the_program_takes() {
    let engine = engine("residual.jsonl");
    let net = fixture("net.pt2");
    let fit = |input: &str, more: &[&str]| {
        let fit = [
            "fit",
            &net,
            "--input",
            input,
            "--memory",
            "8GiB",
            "--basis",
            "cpu-trace",
        ];
        with_engine(&engine, &[&fit[..], more].concat())
    };
    let said = fit("Bx3x16x16", &[]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert!(
        said.stdout
            .contains("64, the largest that the program takes"),
        "{}",
        said.stdout
    );
    let said = fit("Bx3x16x16", &["--format", "json"]);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(
        (&report["batch"], &report["program_max_batch"]),
        (&64.into(), &64.into())
    );
    for (input, why) in [
        ("2x3xBx16", "dimension 2 of `x` is fixed at 16"),
        ("BxBx16x16", "dimension 1 of `x` is fixed at 3"),
        ("Bx3x17x16", "dimension 2 is fixed at 16"),
    ] {
        let said = fit(input, &[]);
        assert!(
            matches!(said.code, Some(2 | 3)) && said.stderr.contains(why),
            "{}",
            said.snapshot()
        );
    }
}

#[test]
fn what_the_program_always_has_is_shown() {
    let file = changed(&fixture("net.pt2"), "models/model.json", |text| {
        let fixed = r#""input_specs": [{"constant_input": {"name": "k", "value": {"as_int": 3}}},
            {"constant_input": {"name": "mode", "value": {"as_string": "a"}}}, "#;
        let returned = r#""output_specs": [{"user_output": {"arg": {"as_int": 7}}},
            {"user_output": {"arg": {"as_none": true}}}, "#;
        text.replace("\"input_specs\": [", fixed)
            .replace("\"output_specs\": [", returned)
    });
    let path = file.path().to_str().unwrap();
    let said = run(&[path, "--no-run"]);
    assert!(
        said.stdout
            .contains("Fixed     `k` int 3; `mode` str 'a'\n"),
        "{}",
        said.stdout
    );
    assert!(
        said.stdout.contains("Returns   int 7; None; `add_3`"),
        "{}",
        said.stdout
    );
    let program = &listed(path)["programs"][0];
    assert_eq!(program["fixed_inputs"][0]["value"], 3);
    assert_eq!(program["fixed_inputs"][1]["value"], "a");
    assert_eq!(program["outputs"][0]["value"], 7);
    assert_eq!(program["outputs"][1]["type"], "None");
    assert_eq!(program["inputs"].as_array().unwrap().len(), 1);
    assert!(program["inputs"][0].get("value").is_none());
}

#[test]
fn one_program_has_one_schema() {
    let said = run(&[&fixture("net.pt2"), "--signature"]);
    assert_eq!(
        said.stdout,
        "forward(Tensor x) -> Tuple[Tensor, Tuple[Tensor, Tensor, Tensor]]\n"
    );
}

#[test]
fn modules_of_nested_graphs_have_their_classes() {
    let nest = |text: String| {
        let mut program: Value = serde_json::from_str(&text).unwrap();
        let graph = &mut program["graph_module"]["graph"];
        let inner = serde_json::json!({"nodes": graph["nodes"].take()});
        graph["nodes"] = serde_json::json!([{
            "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
            "inputs": [
                {"name": "", "arg": {"as_bool": false}},
                {"name": "", "arg": {"as_graph": {"name": "g", "graph": inner}}}
            ],
            "outputs": [], "metadata": {}
        }]);
        program.to_string()
    };
    let file = changed(&fixture("net.pt2"), "models/model.json", nest);
    let said = run(&[file.path().to_str().unwrap(), "--no-run"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    for class in ["Conv2d", "BatchNorm2d", "Linear"] {
        assert!(said.stdout.contains(class), "{}", said.stdout);
    }
    assert!(said.stdout.contains("1 operator,"), "{}", said.stdout);
}

#[test]
fn what_pytorch_would_not_load_is_an_error() {
    let net = fixture("net.pt2");
    let renamed = |record: &str| {
        let bytes = fs::read(&net).unwrap();
        // The length of the name stays: the archive does.
        let other = record.replace("model_", "nodel_");
        let mut new = bytes.clone();
        for at in 0..=bytes.len() - record.len() {
            if &bytes[at..at + record.len()] == record.as_bytes() {
                new[at..at + record.len()].copy_from_slice(other.as_bytes());
            }
        }
        let file = tempfile::Builder::new().suffix(".pt2").tempfile().unwrap();
        fs::write(file.path(), new).unwrap();
        file
    };
    let model = |from: &'static str, to: &'static str| {
        changed(&net, "models/model.json", move |text| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        })
    };
    for (file, why) in [
        (
            renamed("data/weights/model_weights_config.json"),
            "model_weights_config.json",
        ),
        (
            renamed("data/constants/model_constants_config.json"),
            "model_constants_config.json",
        ),
        (model("\"major\": 8", "\"major\": 99"), "found 99.17"),
        (
            model(
                "\"parameter_name\": \"fc.bias\"",
                "\"parameter_name\": \"fc.other\"",
            ),
            "the parameter `fc.other`",
        ),
        (
            model("\"buffer_name\": \"shift\"", "\"buffer_name\": \"gone\""),
            "the buffer `gone`",
        ),
        (
            changed(&net, "archive_version", |_| "7".to_owned()),
            "found 7",
        ),
    ] {
        let said = run(&[file.path().to_str().unwrap(), "--no-run"]);
        assert_eq!(said.code, Some(2), "{}", said.snapshot());
        assert!(said.stderr.contains(why), "{why}: {}", said.stderr);
    }
    let newer = model("\"minor\": 17", "\"minor\": 99");
    assert_eq!(
        listed(newer.path().to_str().unwrap())["programs"][0]["schema_version"],
        "8.99"
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
