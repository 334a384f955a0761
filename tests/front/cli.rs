//! The command line as a user sees it: exit code, stdout and stderr.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Engine, Said, fixtures, hello, inspect, run};

#[test]
fn bad_usage() {
    check!("usage_no_file", run(&[]));
    check!("usage_unknown_option", run(&["x.pt", "--frobnicate"]));
    check!("usage_bad_spec", run(&["x.pt", "--input", "1x3:floaty"]));
    check!("usage_bad_regex", run(&["x.pt", "--filter", "("]));
}

#[test]
fn help_and_version() {
    // What it lists is compared with README; its width with 80 columns.
    for flag in ["-h", "--help"] {
        let said = run(&[flag]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
        assert!(
            said.stdout.contains("Usage: inspect <FILE>..."),
            "{}",
            said.stdout
        );
    }
    check!("version", run(&["--version"]));
}

#[test]
fn files_that_are_none() {
    check!("missing_file", run(&["no/such/file.pt"]));
    check!("directory", run(&["scripts"]));
}

#[test]
fn files_that_are_no_checkpoint_are_called_what_they_are() {
    for (name, file) in [
        ("refused_empty", "fixtures/hostile/empty.pt"),
        ("refused_html", "fixtures/hostile/page.pt"),
        ("refused_lfs", "fixtures/hostile/pointer.pt"),
        ("refused_gzip", "fixtures/hostile/packed.pt.gz"),
        ("refused_onnx", "fixtures/hostile/graph.onnx"),
        ("refused_text", "fixtures/hostile/notes.txt"),
        ("refused_numpy", "fixtures/hostile/array.npy"),
        ("refused_truncated", "fixtures/hostile/truncated.pt"),
        ("refused_opcode", "fixtures/hostile/no_stop.pt"),
    ] {
        insta::allow_duplicates! { check!(name, run(&[file])); }
    }
}

#[test]
fn verdicts() {
    check!("dangerous", run(&["fixtures/hostile/os_system.pt"]));
    check!(
        "dangerous_trusted",
        run(&["fixtures/hostile/os_system.pt", "--trust"])
    );
    check!("suspicious", run(&["fixtures/writes_file.pt"]));
    check!(
        "suspicious_is_not_run",
        run(&["fixtures/writes_file.pt", "--input", "1"])
    );
}

#[test]
fn listings() {
    check!("resnet18", run(&["fixtures/resnet18.pt"]));
    check!(
        "vit_as_bfloat16",
        run(&["fixtures/vit_b_16.pt", "--as", "bf16", "--units", "si"])
    );
    check!("checkpoint", run(&["fixtures/checkpoint_adamw.pt"]));
    check!("depth", run(&["fixtures/resnet18.pt", "--depth", "1"]));
    check!("top", run(&["fixtures/resnet18.pt", "--top", "5"]));
    check!(
        "filter",
        run(&[
            "fixtures/resnet18.pt",
            "--filter",
            r"^layer1.*conv",
            "--all",
            "--units",
            "bytes"
        ])
    );
    check!(
        "filter_none",
        run(&["fixtures/resnet18.pt", "--filter", "nothing"])
    );
    check!(
        "sort_name",
        run(&["fixtures/state_mlp.pt", "--sort", "name"])
    );
    check!("sparse", run(&["fixtures/sparse.pt"]));
    check!("quantized", run(&["fixtures/quantized.pt"]));
    check!("tied", run(&["fixtures/tied_decoder.pt"]));
    check!("views", run(&["fixtures/views.pt"]));
    check!("names", run(&["fixtures/names.pt"]));
    check!("meta", run(&["fixtures/meta.pt"]));
    check!("no_tensors", run(&["fixtures/no_tensors.pt"]));
    check!(
        "several",
        run(&["fixtures/slack.pt", "no/such/file.pt", "fixtures/tensor.pt"])
    );
}

#[test]
fn a_narrow_terminal_gets_a_narrow_table() {
    let mut command = inspect(&["fixtures/resnet18.pt", "--all"]);
    let said = Said::of(&command.env("COLUMNS", "80").output().unwrap());
    assert!(
        said.stdout.lines().all(|line| line.chars().count() <= 80),
        "{}",
        said.stdout
    );
    check!("resnet18_narrow", said);
}

#[test]
fn a_title_breaks_where_it_is_too_wide() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a_program_with_a_rather_long_name.pt2");
    std::fs::copy("fixtures/exported/counter.pt2", &path).unwrap();
    for (columns, lines) in [("60", 2), ("80", 2), ("120", 1)] {
        let args = [path.to_str().unwrap(), "--no-run"];
        let said = Said::of(&inspect(&args).env("COLUMNS", columns).output().unwrap());
        let title: Vec<&str> = said
            .stdout
            .lines()
            .take_while(|line| !line.is_empty())
            .collect();
        assert!(title.len() >= lines, "{title:?}");
        assert!(lines > 1 || title.len() == 1, "{title:?}");
        for line in said.stdout.lines().take(title.len()) {
            assert!(line.chars().count() <= columns.parse().unwrap(), "{line}");
        }
        assert!(title.join(" ").contains("2.11.0+cu130"), "{title:?}");
    }
}

#[test]
fn what_an_object_is_has_no_wrong_article() {
    let said = run(&["fixtures/tuple.pt", "--input", "3"]);
    assert!(
        said.stderr
            .contains("cannot be run: it is a file of format torch-zip"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("torch.export.save"), "{}", said.stderr);
}

#[test]
fn other_formats() {
    check!("json", run(&["fixtures/state_tied.pt", "--format", "json"]));
    check!(
        "markdown",
        run(&["fixtures/state_tied.pt", "--format", "markdown"])
    );
    check!(
        "csv",
        run(&[
            "fixtures/names.pt",
            "fixtures/state_tied.pt",
            "--format",
            "csv"
        ])
    );
    check!(
        "html",
        run(&[
            "fixtures/names.pt",
            "fixtures/hostile/os_system.pt",
            "--format",
            "html"
        ])
    );
}

#[test]
fn signatures() {
    check!(
        "signature",
        run(&["fixtures/multi_input.pt", "--signature"])
    );
    check!(
        "signature_no_method",
        run(&["fixtures/multi_input.pt", "--signature", "--method", "nope"])
    );
    check!(
        "signature_no_module",
        run(&["fixtures/tensor.pt", "--signature"])
    );
}

#[test]
fn what_cannot_be_run_is_said_and_listed() {
    check!(
        "run_state_dict",
        run(&["fixtures/state_mlp.pt", "--input", "1x3"])
    );
    let mut command = inspect(&["fixtures/mlp.pt", "--input", "1x16"]);
    let said = Said::of(
        &command
            .env("INSPECT_ENGINE", "/no/such/inspect-torch")
            .output()
            .unwrap(),
    );
    check!("run_no_engine", said);
    let engine = Engine::new(&format!("{}\nkill -ABRT $$", hello()));
    let mut command = inspect(&["fixtures/mlp.pt", "--input", "1x16", "--format", "csv"]);
    let said = Said::of(
        &command
            .env("INSPECT_ENGINE", engine.path())
            .output()
            .unwrap(),
    );
    check!("run_engine_dies", said);
}

#[test]
fn what_the_engine_quotes_stands_under_its_error() {
    let failed = r#"{"type":"failed","kind":"model_error","message":"it raised","detail":["Traceback:","  line 1"]}"#;
    let engine = Engine::new(&format!("{}\necho '{failed}'", hello()));
    let mut command = inspect(&["fixtures/mlp.pt", "--input", "1x16", "--format", "csv"]);
    let said = Said::of(
        &command
            .env("INSPECT_ENGINE", engine.path())
            .output()
            .unwrap(),
    );
    check!("run_model_error", said);
}

/// Two of the reasons that do not depend on this machine; `engine::error` tests the other two.
#[test]
fn why_a_gpu_cannot_be_used() {
    for (name, message) in [
        ("run_no_cuda", "this libtorch was built without CUDA"),
        (
            "run_no_cuda_libraries",
            "libtorch_cuda.so cannot be opened: libcusparse.so.12: cannot open shared object file",
        ),
    ] {
        let failed = format!(r#"{{"type":"failed","kind":"unsupported","message":"{message}"}}"#);
        let engine = Engine::new(&format!("{}\necho '{failed}'", hello()));
        let mut command = inspect(&[
            "validate",
            "fixtures/mlp.pt",
            "--input",
            "1x16",
            "--device",
            "cuda",
        ]);
        let output = command
            .env("INSPECT_ENGINE", engine.path())
            .output()
            .unwrap();
        check!(name, Said::of(&output));
    }
}

#[test]
fn a_report_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.csv");
    let said = run(&[
        "fixtures/tensor.pt",
        "--format",
        "csv",
        "-o",
        path.to_str().unwrap(),
    ]);
    assert_eq!(
        (said.code, said.stdout.as_str(), said.stderr.as_str()),
        (Some(0), "", "")
    );
    let direct = run(&["fixtures/tensor.pt", "--format", "csv"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), direct.stdout);
}

#[test]
fn colour_never_carries_meaning_alone() {
    let plain = run(&["fixtures/hostile/os_system.pt", "--color", "never"]);
    let colored = run(&["fixtures/hostile/os_system.pt", "--color", "always"]);
    assert!(!plain.stdout.contains('\x1b') && !plain.stderr.contains('\x1b'));
    let strip = |text: &str| {
        regex::Regex::new("\x1b\\[[0-9;]*m")
            .unwrap()
            .replace_all(text, "")
            .into_owned()
    };
    assert!(colored.stdout.contains('\x1b') && colored.stderr.contains('\x1b'));
    assert_eq!(strip(&colored.stdout), plain.stdout);
    assert_eq!(strip(&colored.stderr), plain.stderr);
}

/// One file for every way a file can be hostile; what each is called is the truth's word.
#[test]
fn hostile_files_end_as_they_should() {
    for path in fixtures("fixtures/hostile") {
        let text = std::fs::read(format!("{path}.truth.json")).unwrap();
        let truth: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let said = run(&[&path, "--format", "json"]);
        let code = serde_json::json!(said.code);
        // Some files may be read or refused, as long as nothing else happens.
        let wanted = &truth["exit"];
        let allowed = wanted
            .as_array()
            .map_or_else(|| vec![wanted.clone()], Clone::clone);
        assert!(
            allowed.contains(&code),
            "{path}: expected {wanted}, {}",
            said.snapshot()
        );
        assert!(!said.stderr.contains("panicked"), "{path}");
        if let Some(verdict) = truth["verdict"].as_str()
            && !said.stdout.is_empty()
        {
            let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
            assert_eq!(report["security"]["verdict"], verdict, "{path}");
        }
        if let Some(named) = truth["named"].as_str() {
            assert!(
                said.stderr.to_lowercase().contains(named),
                "{path}: expected `{named}` in {}",
                said.stderr
            );
        }
    }
}

#[test]
fn an_output_that_cannot_be_written_is_said_before_any_work() {
    check!(
        "output_no_folder",
        run(&["no/such/file.pt", "-o", "no/such/folder/report.json"])
    );
    check!(
        "output_is_folder",
        run(&["no/such/file.pt", "-o", "fixtures"])
    );
}

#[test]
fn completions_name_every_option() {
    for shell in ["bash", "zsh", "fish"] {
        let said = run(&["completions", shell]);
        assert_eq!(said.code, Some(0));
        assert!(said.stdout.contains("memory-limit"), "{shell}");
        assert_eq!(said.stderr, "");
    }
}

#[test]
fn doctor_says_what_is_there_or_what_to_do() {
    let engine = Engine::new(&format!(
        "{}\necho '{{\"type\":\"done\",\"trace_lines\":0}}'",
        hello()
    ));
    let mut command = inspect(&["doctor"]);
    let said = Said::of(
        &command
            .env("INSPECT_ENGINE", engine.path())
            .output()
            .unwrap(),
    );
    check!("doctor_ready", said);
    let mut command = inspect(&["doctor"]);
    let said = Said::of(
        &command
            .env("INSPECT_ENGINE", "/no/such/inspect-torch")
            .output()
            .unwrap(),
    );
    check!("doctor_no_engine", said);
    let engine =
        Engine::new("echo 'error while loading shared libraries: libtorch_cpu.so' >&2; exit 127");
    let mut command = inspect(&["doctor", "--json"]);
    let said = Said::of(
        &command
            .env("INSPECT_ENGINE", engine.path())
            .output()
            .unwrap(),
    );
    check!("doctor_no_libtorch", said);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = inspect(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(stderr, "");
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_with_130_and_leaves_no_child() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let engine = Engine::new(&format!(
        "sleep 1000 &\necho $$ $! > {}\nwait",
        pids.display()
    ));
    let child = inspect(&["doctor"])
        .env("INSPECT_ENGINE", engine.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ids = String::new();
    while !ids.ends_with('\n') {
        std::thread::sleep(Duration::from_millis(10));
        ids = std::fs::read_to_string(&pids).unwrap_or_default();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let said = Said::of(&child.wait_with_output().unwrap());
    check!("interrupted", said);
    for id in ids.split_whitespace() {
        assert_ends(id);
    }
}

/// A killed process takes a moment to be gone.
fn assert_ends(id: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        if state.is_empty() || state.starts_with('Z') {
            return;
        }
        assert!(Instant::now() < deadline, "{id} still runs: {stat}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_format_obeys_the_options_on_what_to_show() {
    let show = |format: &str, options: &[&str]| {
        let said = run(&[&["fixtures/vit_b_16.pt", "--format", format], options].concat());
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{format}");
        said.stdout
    };
    for format in ["table", "markdown", "html", "csv"] {
        let cast = show(format, &["--as", "bfloat16"]);
        assert!(cast.contains("bfloat16"), "{format}");
        let filtered = show(format, &["--filter", "^heads", "--all"]);
        assert!(filtered.contains("head"), "{format}");
        assert!(!filtered.contains("encoder"), "{format}");
        let first = show(format, &["--sort", "name", "--top", "1"]);
        assert!(first.contains("class_token"), "{format}");
        assert!(!first.contains("heads"), "{format}");
        // Layers are collapsed unless all are asked for; rows of CSV always are tensors.
        let layer = |text: &str| text.contains("encoder_layer_11.");
        assert!(
            layer(&show(format, &["--sort", "file", "--all"])),
            "{format}"
        );
        assert_eq!(layer(&show(format, &["--sort", "file"])), format == "csv");
    }
    for format in ["table", "markdown", "html"] {
        assert!(show(format, &["--filter", "nothing"]).contains("none of 152 tensors matches"));
        assert!(show(format, &["--depth", "1"]).contains("1 of 6 levels"));
    }
    let csv = show("csv", &["--as", "bfloat16", "--top", "1"]);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name| lines[0].iter().position(|title| *title == name).unwrap();
    let (bytes, cast) = (
        lines[1][column("bytes")],
        lines[1][column("bytes_as_bfloat16")],
    );
    assert_eq!((bytes, cast), ("9437184", "4718592"));
}
