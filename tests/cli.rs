//! The command line as a user sees it: exit code, stdout and stderr.

mod common;

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Engine, Said, hello, inspect, run};

/// Compares with a snapshot; what changes between machines and versions is named instead.
macro_rules! check {
    ($name:literal, $said:expr) => {
        insta::with_settings!({filters => vec![
            (r"0\.\d+\.\d+-[0-9a-f]{16}", "[BUILD]"),
            (r"inspect( +)0\.\d+\.\d+", "inspect$1[VERSION]"),
            (r"/[^ `\n]*/inspect-torch", "[BIN]/inspect-torch"),
            (r"/[^ `\n]*/\.tmp[^/]*/", "[TMP]/"),
        ], prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_snapshot!($name, $said.snapshot());
        });
    };
}

#[test]
fn bad_usage() {
    check!("usage_no_file", run(&[]));
    check!("usage_unknown_option", run(&["x.pt", "--frobnicate"]));
    check!("usage_bad_spec", run(&["x.pt", "--input", "1x3:floaty"]));
    check!("usage_train_without_input", run(&["x.pt", "--train"]));
    check!("usage_bad_regex", run(&["x.pt", "--filter", "("]));
}

#[test]
fn help_and_version() {
    check!("help", run(&["-h"]));
    check!("help_long", run(&["--help"]));
    check!("version", run(&["--version"]));
}

#[test]
fn files_that_are_none() {
    check!("missing_file", run(&["no/such/file.pt"]));
    check!("directory", run(&["fixtures"]));
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
