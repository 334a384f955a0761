//! The CI gate with a real engine: what it runs today and tomorrow is the same to the byte.

use crate::common::{Said, run_with_engine as run};

fn ok(args: &[&str]) -> Said {
    let said = run(args);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    said
}

#[test]
fn a_run_is_its_own_baseline() {
    let folder = tempfile::tempdir().unwrap();
    for (file, options) in [
        ("fixtures/tiny_cnn.pt", &["--input", "2x3x16x16"][..]),
        (
            "fixtures/train/mlp.pt",
            &["--input", "2x16", "--train", "--optimizer", "adam"],
        ),
    ] {
        let base = folder.path().join("base.json").display().to_string();
        let check = ["check", file, "--baseline", &base];
        ok(&[&check[..], options, &["--update-baseline"]].concat());
        let before = std::fs::read(&base).unwrap();
        ok(&[&check[..], &["--update-baseline"]].concat());
        assert_eq!(std::fs::read(&base).unwrap(), before, "{file}");
        for format in ["table", "json", "markdown", "junit", "sarif"] {
            let args = [&check[..], &["--all", "--strict", "--format", format]].concat();
            assert_eq!(ok(&args).stdout, ok(&args).stdout, "{file} as {format}");
        }
        let text = String::from_utf8(before).unwrap();
        assert!(text.contains("\"peak_reserved_bytes.forward"), "{text}");
        assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "{text}");
    }
}

#[test]
fn two_runs_of_one_model_do_not_differ() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (old, new) = (path("old.json"), path("new.json"));
    for report in [&old, &new] {
        ok(&[
            "fixtures/tiny_cnn.pt",
            "--input",
            "2x3x16x16",
            "--format",
            "json",
            "-o",
            report,
        ]);
    }
    ok(&["diff", &old, &new, "--exit-code"]);
    let batch = path("batch.json");
    ok(&[
        "fixtures/tiny_cnn.pt",
        "--input",
        "4x3x16x16",
        "--format",
        "json",
        "-o",
        &batch,
    ]);
    let said = run(&["diff", &old, &batch, "--exit-code"]);
    assert_eq!(said.code, Some(1), "{}", said.snapshot());
    for text in [
        "inputs: ",
        "activation_bytes",
        "peak_allocated_bytes.forward",
    ] {
        assert!(said.stdout.contains(text), "{text}: {}", said.stdout);
    }
}

#[test]
fn a_limit_of_memory_is_a_budget() {
    let args = [
        "check",
        "fixtures/tiny_cnn.pt",
        "--input",
        "2x3x16x16",
        "--max",
    ];
    let said = run(&[&args[..], &["peak_reserved=1KiB"]].concat());
    assert_eq!(said.code, Some(1), "{}", said.snapshot());
    ok(&[&args[..], &["peak_reserved=8GiB"]].concat());
}
