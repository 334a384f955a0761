//! `inspect diff` and `inspect check` as a user and a CI server see them. Runs come from recorded traces, through an
//! engine that only repeats one.

use std::path::{Path, PathBuf};

use crate::common::gate::{
    Folder, RUN, add, baseline, budget_folder, engine, in_folder, with_engine,
};
use crate::common::{Said, inspect, run};
use serde_json::Value;

#[test]
fn differences() {
    check!(
        "diff_same",
        run(&[
            "diff",
            "fixtures/state_tied.pt",
            "fixtures/state_tied.pt",
            "--hash"
        ])
    );
    check!(
        "diff_models",
        run(&["diff", "fixtures/state_mlp.pt", "fixtures/state_cnn.pt"])
    );
    check!(
        "diff_retyped",
        run(&[
            "diff",
            "fixtures/mlp.pt",
            "fixtures/mlp_half.pt",
            "--values",
            "--exit-code"
        ])
    );
    check!(
        "diff_renamed",
        run(&[
            "diff",
            "fixtures/state_mlp.pt",
            "fixtures/state_prefixed.pt",
            "--top",
            "4"
        ])
    );
    check!(
        "diff_markdown",
        run(&[
            "diff",
            "fixtures/mlp.pt",
            "fixtures/mlp_half.pt",
            "--format",
            "markdown"
        ])
    );
    check!(
        "diff_json",
        run(&[
            "diff",
            "fixtures/mlp.pt",
            "fixtures/mlp_half.pt",
            "--format",
            "json",
            "--values"
        ])
    );
    check!(
        "diff_dangerous",
        run(&[
            "diff",
            "fixtures/state_mlp.pt",
            "fixtures/hostile/os_system.pt"
        ])
    );
    check!(
        "diff_missing",
        run(&["diff", "fixtures/mlp.pt", "no/such/file.pt"])
    );
}

#[test]
fn a_difference_is_an_answer_only_when_asked() {
    let args = ["diff", "fixtures/mlp.pt", "fixtures/mlp_half.pt"];
    assert_eq!(run(&args).code, Some(0));
    let mut args = args.to_vec();
    args.push("--exit-code");
    assert_eq!(run(&args).code, Some(1));
    let same = [
        "diff",
        "fixtures/mlp.pt",
        "fixtures/mlp.pt",
        "--exit-code",
        "--values",
    ];
    assert_eq!(run(&same).code, Some(0));
}

/// A saved report and the file that it is of give the same answer.
#[test]
fn reports_are_compared_as_the_files_are() {
    let folder = Folder::new();
    let report = folder.path("report.json");
    let engine = engine("residual.jsonl");
    let mut args = vec!["fixtures/residual.pt", "--format", "json", "-o", &report];
    args.extend(RUN);
    assert_eq!(with_engine(&engine, &args).code, Some(0));
    let said = run(&["diff", &report, "fixtures/residual.pt"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert!(said.stdout.contains("no difference"), "{}", said.stdout);
    assert!(
        said.stdout.contains("only the old report has a run"),
        "{}",
        said.stdout
    );
    // Two runs of the same model.
    let said = run(&["diff", &report, &report, "--exit-code"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    let numbers = run(&["diff", &report, "fixtures/residual.pt", "--values"]);
    assert_eq!(numbers.code, Some(2), "{}", numbers.snapshot());
}

#[test]
fn two_runs_are_compared_number_by_number() {
    let folder = Folder::new();
    let (old, new) = (folder.path("old.json"), folder.path("new.json"));
    for (trace, file, path) in [
        ("residual.jsonl", "fixtures/residual.pt", &old),
        ("tiny_cnn_train.jsonl", "fixtures/tiny_cnn.pt", &new),
    ] {
        let mut args = vec![file, "--format", "json", "-o", path];
        args.extend(RUN);
        let said = with_engine(&engine(trace), &args);
        assert_eq!(said.code, Some(0), "{}", said.snapshot());
    }
    check!("diff_runs", run(&["diff", &old, &new, "--top", "6"]));
}

#[test]
fn what_is_no_report_is_said() {
    let folder = Folder::new();
    let file = "fixtures/mlp.pt";
    let broken = folder.write("broken.json", r#"{"schema_version": 1, "tool": {"#);
    check!("diff_broken_report", run(&["diff", &broken, file]));
    let newer = folder.write(
        "newer.json",
        r#"{"schema_version": 7, "tool": {}, "tensors": []}"#,
    );
    check!("diff_newer_report", run(&["diff", file, &newer]));
    let engine = engine("residual.jsonl");
    let base = baseline(&folder, &engine);
    check!("diff_baseline", run(&["diff", file, &base]));
}

#[test]
fn every_verdict() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    let base = baseline(&folder, &engine);
    let file = "fixtures/residual.pt";
    // The options are in the baseline.
    check!(
        "check_pass",
        with_engine(&engine, &["check", file, "--baseline", &base])
    );
    check!(
        "check_all",
        with_engine(&engine, &["check", file, "--baseline", &base, "--all"])
    );
    let smaller = folder.changed("base.json", "smaller.json", |value| {
        add(&mut value["metrics"], "peak_allocated_bytes", -512);
        add(&mut value["at_peak"], "activations", -512);
        add(&mut value["metrics"], "flops", -1000);
        add(&mut value["metrics"], "parameters", -9);
        add(&mut value["metrics"], "parameter_bytes", -36);
        let weight = &mut value["tensors"]["conv2.weight"];
        add(weight, "bytes", -36);
        weight["shape"] = serde_json::json!([7, 1, 1, 1]);
    });
    let args = ["check", file, "--baseline", &smaller];
    check!("check_regressed", with_engine(&engine, &args));
    for (format, name) in [
        ("markdown", "check_regressed_markdown"),
        ("json", "check_regressed_json"),
        ("junit", "check_regressed_junit"),
        ("sarif", "check_regressed_sarif"),
    ] {
        let mut args = args.to_vec();
        args.extend(["--format", format]);
        let said = with_engine(&engine, &args);
        assert_eq!(
            said.stdout,
            with_engine(&engine, &args).stdout,
            "two runs, one report"
        );
        insta::allow_duplicates! { check!(name, said); }
    }
    let larger = folder.changed("base.json", "larger.json", |value| {
        add(&mut value["metrics"], "peak_reserved_bytes", 2 << 20);
    });
    check!(
        "check_improved",
        with_engine(&engine, &["check", file, "--baseline", &larger])
    );
    check!(
        "check_strict",
        with_engine(&engine, &["check", file, "--baseline", &larger, "--strict"])
    );
    let limits = [
        "check",
        file,
        "--baseline",
        &smaller,
        "--tolerance",
        "1%",
        "--max",
        "flops=+5%",
        "--max",
        "parameters=+10%",
        "--max",
        "parameter_bytes=1KiB",
        "--max",
        "peak_allocated=+1MiB",
    ];
    check!("check_limits", with_engine(&engine, &limits));
}

#[test]
fn what_does_not_belong_to_the_comparison() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    let base = baseline(&folder, &engine);
    let file = "fixtures/residual.pt";
    let against = |baseline: &str, more: &[&str]| {
        let mut args = vec!["check", file, "--baseline", baseline];
        args.extend(more);
        with_engine(&engine, &args)
    };
    let other = folder.changed("base.json", "libtorch.json", |value| {
        value["libtorch_version"] = "2.10.0".into();
    });
    check!("check_other_libtorch", against(&other, &[]));
    let other = folder.changed("base.json", "basis.json", |value| {
        value["basis"] = "cuda-sim".into();
    });
    check!("check_other_basis", against(&other, &[]));
    let other = folder.changed("base.json", "schema.json", |value| {
        value["schema_version"] = 9.into();
    });
    check!("check_other_schema", against(&other, &[]));
    check!(
        "check_other_options",
        against(&base, &["--input", "2x8x4x4"])
    );
    let missing = folder.path("missing.json");
    check!("check_no_baseline", against(&missing, &[]));
    let broken = folder.write("broken.json", "{");
    check!("check_broken_baseline", against(&broken, &[]));
    check!(
        "check_broken_baseline_update",
        against(&broken, &["--update-baseline"])
    );
    let report = folder.write("report.json", r#"{"schema_version": 1, "tool": {}}"#);
    check!("check_report_as_baseline", against(&report, &[]));
    let absolute = ["--inputs", "/abs/inputs.pt", "--update-baseline"];
    check!("check_absolute_path", against(&base, &absolute));
    check!(
        "check_baseline_no_folder",
        against("no/folder/b.json", &["--update-baseline"])
    );
}

#[test]
fn an_update_without_options_repeats_the_run_and_changes_nothing() {
    let folder = Folder::new();
    let engine = engine("residual.jsonl");
    let base = baseline(&folder, &engine);
    let before = folder.read("base.json");
    let said = with_engine(
        &engine,
        &[
            "check",
            "fixtures/residual.pt",
            "--baseline",
            &base,
            "--update-baseline",
        ],
    );
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    assert_eq!(folder.read("base.json"), before);
}

/// The baseline of the first version, and of the file that it was made of.
#[test]
fn the_first_baseline_stays_readable() {
    let file = "fixtures/residual.pt";
    let said = run(&["check", file, "--baseline", "tests/baselines/v1_file.json"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    // What the memory model says may become better; that is a regression or an improvement, not a fault.
    let run = "tests/baselines/v1_run.json";
    let said = with_engine(
        &engine("residual.jsonl"),
        &["check", file, "--baseline", run],
    );
    assert!(matches!(said.code, Some(0 | 1)), "{}", said.snapshot());
    assert!(
        said.stdout.contains("against tests/baselines/v1_run.json"),
        "{}",
        said.stdout
    );
}

#[test]
fn findings() {
    check!(
        "check_denied",
        run(&["check", "fixtures/slack.pt", "--deny", "storage-slack"])
    );
    check!(
        "check_not_denied",
        run(&["check", "fixtures/slack.pt", "--deny", "nan"])
    );
    check!(
        "check_dangerous",
        run(&["check", "fixtures/hostile/os_system.pt", "--deny", "errors"])
    );
    check!(
        "check_dangerous_trusted",
        run(&[
            "check",
            "fixtures/hostile/os_system.pt",
            "--deny",
            "dangerous",
            "--trust"
        ])
    );
    // A finding that the baseline knows is not new.
    let folder = Folder::new();
    let base = folder.path("slack.json");
    let args = ["check", "fixtures/slack.pt", "--baseline", &base];
    assert_eq!(
        run(&[&args[..], &["--update-baseline"]].concat()).code,
        Some(0)
    );
    check!(
        "check_known",
        run(&[&args[..], &["--deny", "warnings", "--all"]].concat())
    );
    let base = folder.path("os.json");
    let said = run(&[
        "check",
        "fixtures/hostile/os_system.pt",
        "--baseline",
        &base,
        "--update-baseline",
    ]);
    assert_eq!(said.code, Some(2), "{}", said.snapshot());
    assert!(
        !Path::new(&base).exists(),
        "no baseline of what must not be loaded"
    );
}

#[test]
fn wrong_limits() {
    let file = "fixtures/mlp.pt";
    for (name, args) in [
        ("check_nothing", &[][..]),
        ("check_bad_metric", &["--max", "speed=1"]),
        ("check_bad_limit", &["--max", "file_bytes=-2%"]),
        ("check_relative", &["--max", "file_bytes=+2%"]),
        ("check_needs_run", &["--max", "flops=1G"]),
        ("check_bad_code", &["--deny", "slack"]),
        (
            "check_bad_tolerance",
            &["--baseline", "b.json", "--tolerance", "0.02"],
        ),
        (
            "check_budget_and_baseline",
            &["--baseline", "b.json", "--budget", "c.json"],
        ),
    ] {
        let all = [&["check", file], args].concat();
        insta::allow_duplicates! { check!(name, run(&all)); }
    }
    check!(
        "check_two_files",
        run(&["check", file, file, "--baseline", "b.json"])
    );
}

#[test]
fn absolute_limits_need_no_baseline() {
    let files = [
        "check",
        "fixtures/mlp.pt",
        "fixtures/resnet18.pt",
        "no/such/file.pt",
    ];
    let limits = ["--max", "file_bytes=50KB", "--max", "parameters=1M"];
    check!("check_absolute", run(&[&files[..], &limits].concat()));
    let junit = ["--format", "junit"];
    check!(
        "check_absolute_junit",
        run(&[&files[..], &limits, &junit].concat())
    );
}

#[test]
fn budgets() {
    let folder = budget_folder();
    folder.write(
        "budgets.json",
        r#"[{"files": "*.pt", "max": {"file_bytes": "10KiB", "parameters": "1k"}},
            {"name": "no waste", "files": ["slack.pt", "mlp.pt"], "deny": ["storage-slack"]}]"#,
    );
    check!(
        "budget",
        in_folder(&folder, &["check", "--budget", "budgets.json"])
    );
    check!(
        "budget_one",
        in_folder(&folder, &["check", "--budget", "budgets.json", "./mlp.pt"])
    );
    folder.write("other.bin", "");
    check!(
        "budget_unmatched",
        in_folder(
            &folder,
            &["check", "--budget", "budgets.json", "other.bin", "mlp.pt"]
        )
    );
    for (name, text) in [
        ("budget_empty", "[]"),
        ("budget_broken", "{"),
        (
            "budget_no_match",
            r#"[{"files": "*.onnx", "max": {"tensors": "1"}}]"#,
        ),
        (
            "budget_relative",
            r#"[{"files": "*.pt", "max": {"tensors": "+1"}}]"#,
        ),
        (
            "budget_bad_metric",
            r#"[{"files": "*.pt", "max": {"speed": "1"}}]"#,
        ),
        (
            "budget_unknown_key",
            r#"[{"files": "*.pt", "limit": "1MB"}]"#,
        ),
        (
            "budget_bad_input",
            r#"[{"files": "mlp.pt", "options": {"input": ["1x"]}, "max": {"flops": "1"}}]"#,
        ),
    ] {
        folder.write("budgets.json", text);
        insta::allow_duplicates! { check!(name, in_folder(&folder, &["check", "--budget", "budgets.json"])); }
    }
}

#[test]
fn github_gets_annotations() {
    let args = [
        "check",
        "fixtures/slack.pt",
        "fixtures/resnet18.pt",
        "--deny",
        "storage-slack",
        "--max",
        "file_bytes=50KB",
    ];
    let mut command = inspect(&args);
    let said = Said::of(&command.env("GITHUB_ACTIONS", "true").output().unwrap());
    check!("github", said);
    let quiet = Said::of(
        &inspect(&args)
            .env("GITHUB_ACTIONS", "false")
            .output()
            .unwrap(),
    );
    assert!(!quiet.stderr.contains("::error"), "{}", quiet.stderr);
}

#[test]
fn the_manual_covers_every_command() {
    let page = run(&["man"]);
    assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""));
    assert!(page.stdout.contains(".TH inspect 1"), "{}", page.stdout);
    let folder = Folder::new();
    let target = folder.path("man");
    assert_eq!(run(&["man", "-o", &target]).code, Some(0));
    let mut names: Vec<PathBuf> = std::fs::read_dir(&target)
        .unwrap()
        .map(|entry| PathBuf::from(entry.unwrap().file_name()))
        .collect();
    names.sort();
    let expected = [
        "calibrate",
        "check",
        "completions",
        "diff",
        "doctor",
        "fit",
        "man",
        "replay",
        "validate",
    ];
    let mut expected: Vec<PathBuf> = expected
        .iter()
        .map(|name| format!("inspect-{name}.1").into())
        .collect();
    expected.push("inspect.1".into());
    expected.sort();
    assert_eq!(names, expected);
}

/// A safetensors file of one-dimensional tensors: name, dtype, bytes.
fn safetensors(folder: &Folder, name: &str, tensors: &[(&str, &str, usize, Vec<u8>)]) -> String {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, numel, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let offsets = [start, data.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": [numel], "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    let path = folder.0.path().join(name);
    std::fs::write(&path, file).unwrap();
    path.display().to_string()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn values(old: &str, new: &str) -> Value {
    let said = run(&["diff", old, new, "--values", "--format", "json"]);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    serde_json::from_str(&said.stdout).unwrap()
}

#[test]
fn numbers_are_compared_one_by_one() {
    let folder = Folder::new();
    let longs = |last: i64| [1_i64, last].map(i64::to_le_bytes).concat();
    let old = safetensors(
        &folder,
        "old.safetensors",
        &[
            ("changed", "F32", 4, floats(&[1.0, 2.0, 4.0, f32::NAN])),
            ("equal", "F32", 3, floats(&[0.0, f32::NAN, f32::INFINITY])),
            ("nan", "F32", 2, floats(&[1.0, 2.0])),
            ("long", "I64", 2, longs(i64::MAX)),
            ("cast", "F32", 2, floats(&[1.0, 3.140_625])),
            ("rounded", "F32", 1, floats(&[1.001])),
        ],
    );
    let new = safetensors(
        &folder,
        "new.safetensors",
        &[
            ("changed", "F32", 4, floats(&[1.0, 2.5, 4.0, f32::NAN])),
            (
                "equal",
                "F32",
                3,
                floats(&[-0.0, f32::from_bits(0x7fc0_0001), f32::INFINITY]),
            ),
            ("nan", "F32", 2, floats(&[f32::NAN, f32::INFINITY])),
            ("long", "I64", 2, longs(i64::MAX - 1)),
            ("cast", "BF16", 2, vec![0x80, 0x3f, 0x49, 0x40]),
            ("rounded", "BF16", 1, vec![0x80, 0x3f]),
        ],
    );
    let report = values(&old, &new);
    assert_eq!(report["contents"], "values");
    assert_eq!(report["totals"]["equal_values"], 2, "{report}");
    let of = |name: &str| {
        let tensors = report["tensors"].as_array().unwrap();
        let found = tensors.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {report}")).clone()
    };
    let changed = of("changed");
    assert_eq!(changed["change"], "value");
    let expected = serde_json::json!({"different": 1, "numel": 4, "max_abs": 0.5, "max_rel": 0.2,
                                      "nan_appeared": 0, "nan_gone": 0, "inf_appeared": 0});
    assert_eq!(changed["values"], expected);
    let nan = &of("nan")["values"];
    assert_eq!(
        (
            &nan["different"],
            &nan["nan_appeared"],
            &nan["inf_appeared"]
        ),
        (&2.into(), &1.into(), &1.into())
    );
    // Integers are not rounded to floats before they are compared.
    assert_eq!(of("long")["values"]["max_abs"], 1.0);
    // A cast that lost nothing changes the dtype and no number.
    assert_eq!(
        (of("cast")["changes"].clone(), of("cast")["values"].clone()),
        (serde_json::json!(["retyped"]), Value::Null)
    );
    assert_eq!(
        of("rounded")["changes"],
        serde_json::json!(["retyped", "value"])
    );
}

#[test]
fn views_are_compared_through_their_strides() {
    // Views, sparse parts, deflated and big-endian files: every tensor equals itself.
    for file in [
        "fixtures/views.pt",
        "fixtures/sparse.pt",
        "fixtures/zip_deflated.pt",
        "fixtures/zip_big_endian.pt",
        "fixtures/quantized.pt",
        "fixtures/dtypes.pt",
        "fixtures/legacy_views.pt",
        "fixtures/meta.pt",
    ] {
        let report = values(file, file);
        assert_eq!(report["tensors"], serde_json::json!([]), "{file}");
        let equal = report["totals"]["equal_values"].as_u64().unwrap();
        let not_compared = report["not_compared"].as_array().unwrap().len() as u64;
        assert_eq!(
            equal + not_compared,
            report["totals"]["unchanged"].as_u64().unwrap(),
            "{file}"
        );
    }
}

#[test]
fn nan_can_be_denied() {
    let folder = Folder::new();
    let file = safetensors(
        &folder,
        "a.safetensors",
        &[
            ("fine", "F32", 2, floats(&[1.0, 2.0])),
            (
                "broken",
                "F32",
                3,
                floats(&[1.0, f32::NAN, f32::NEG_INFINITY]),
            ),
        ],
    );
    check!(
        "check_nan",
        run(&["check", &file, "--deny", "nan", "--deny", "inf"])
    );
    assert_eq!(
        run(&["check", "fixtures/mlp.pt", "--deny", "nan"]).code,
        Some(0)
    );
}

/// What is no baseline is never replaced by one, least of all the checkpoint itself.
#[test]
fn a_checkpoint_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.pt");
    std::fs::copy("fixtures/mlp.pt", &model).unwrap();
    let before = std::fs::read(&model).unwrap();
    let path = model.to_str().unwrap();
    let other = folder.path().join("notes.txt");
    std::fs::write(&other, "not JSON").unwrap();
    for args in [
        vec!["check", path, "--baseline", path, "--update-baseline"],
        vec!["check", path, "--max", "file_bytes=1GB", "-o", path],
        vec!["diff", path, "fixtures/mlp.pt", "-o", path],
        vec![path, "-o", path],
        vec![
            "check",
            path,
            "--update-baseline",
            "--baseline",
            other.to_str().unwrap(),
        ],
    ] {
        let said = crate::common::run(&args);
        assert_eq!(said.code, Some(2), "{args:?}: {}", said.stderr);
        assert!(said.stderr.contains("not overwritten"), "{}", said.stderr);
        assert_eq!(std::fs::read(&model).unwrap(), before, "{args:?}");
    }
    assert_eq!(std::fs::read(&other).unwrap(), b"not JSON");
}
