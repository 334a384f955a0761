//! Runs the program as a user does.

#![allow(clippy::expect_used, reason = "a test fails by panic")]
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

pub mod gate;
pub mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use inspect_checkpoint::trace::memory::MemoryTimeline;
use inspect_checkpoint::trace::{Category, Event, Trace};

/// Compares with a snapshot; what changes between machines and versions is named instead.
#[allow(unused_macros, reason = "each test binary uses its own part")]
macro_rules! check {
    ($name:expr, $said:expr) => {
        insta::with_settings!({filters => vec![
            (r"0\.\d+\.\d+-[0-9a-f]{16}", "[BUILD]"),
            (r"inspect( +)0\.\d+\.\d+", "inspect$1[VERSION]"),
            (r#"(\w*[vV]ersion)": "0\.\d+\.\d+"#, "$1\": \"[VERSION]"),
            (r"/[^ `\n]*/inspect-torch", "[BIN]/inspect-torch"),
            (r"/[^ `\n]*/\.tmp[^/]*/", "[TMP]/"),
            (r"cuda-sim  (ready|not available: .*)", "cuda-sim  [READY OR WHY NOT]"),
            (r#"("simulated_device": \{\s+"unavailable": ).*"#, "$1[NULL OR WHY NOT]"),
        ], prepend_module_to_snapshot => false, snapshot_path => "../snapshots", omit_expression => true}, {
            insta::assert_snapshot!($name, $said.snapshot());
        });
    };
}

/// The program, in the folder of the package, with an environment that no terminal or user settings reach.
pub fn inspect(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inspect"));
    command
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("NO_COLOR")
        .env_remove("INSPECT_ENGINE")
        .env_remove("GITHUB_ACTIONS")
        .env_remove("RUST_BACKTRACE")
        .env("COLUMNS", "100");
    command
}

/// What the program said.
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn of(output: &Output) -> Said {
        Said {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr.clone()).expect("stderr is UTF-8"),
        }
    }

    /// Exit code, stdout and stderr as one text.
    pub fn snapshot(&self) -> String {
        let code = self.code.map_or("none".to_owned(), |code| code.to_string());
        format!(
            "exit: {code}\n----- stdout -----\n{}----- stderr -----\n{}",
            self.stdout, self.stderr
        )
    }
}

/// Runs the program to its end.
pub fn run(args: &[&str]) -> Said {
    Said::of(&inspect(args).output().expect("the program starts"))
}

/// Runs the program to its end; its JSON, and all that it said.
pub fn report(args: &[&str]) -> (serde_json::Value, Said) {
    let said = run(&[args, &["--format", "json"]].concat());
    let report = serde_json::from_str(&said.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}: {}", said.stderr));
    (report, said)
}

/// Runs the program to its end with the engine that was built with these tests.
#[cfg(feature = "torch")]
pub fn run_with_engine(args: &[&str]) -> Said {
    let mut command = inspect(args);
    command.env("INSPECT_ENGINE", env!("CARGO_BIN_EXE_inspect-torch"));
    Said::of(&command.output().expect("the program starts"))
}

/// True where there is a simulated CUDA device; says why where there is none.
#[allow(clippy::print_stdout, reason = "a test says why it skips")]
pub fn has_simulated_device() -> bool {
    match inspect_checkpoint::engine::stand_ins::unavailable() {
        None => true,
        Some(reason) => {
            println!("skipped: no simulated CUDA device: {reason}");
            false
        }
    }
}

/// At every event, the bytes of each category are those of the allocations that are live and belong to it, and they
/// add up to what the allocator has handed out.
pub fn assert_categories_add_up(name: &str, trace: &Trace) {
    let memory = MemoryTimeline::of(trace);
    let mut by_category: BTreeMap<Category, u64> = BTreeMap::new();
    let mut live: BTreeMap<u32, u64> = BTreeMap::new();
    let mut highest = 0;
    for (index, event) in trace.events.iter().enumerate() {
        let category = |id: u32| memory.allocations[id as usize].category;
        match event {
            Event::Alloc { id, bytes, .. } => {
                live.insert(*id, *bytes);
                *by_category.entry(category(*id)).or_default() += bytes;
            }
            Event::Free { id, .. } => {
                let bytes = live.remove(id).expect("what is freed was live");
                *by_category.entry(category(*id)).or_default() -= bytes;
            }
            _ => {}
        }
        let allocator: u64 = live.values().sum();
        let categories: u64 = by_category.values().sum();
        assert_eq!(categories, allocator, "{name}: at event {index}");
        // The timeline's own account of the same moment: what was born and has not died.
        if index % 97 == 0 {
            let lives = memory.allocations.iter().filter(|life| {
                life.recorded && life.born <= index && life.died.is_none_or(|died| died > index)
            });
            let theirs: u64 = lives.map(|life| life.bytes).sum();
            assert_eq!(theirs, allocator, "{name}: at event {index}");
        }
        highest = highest.max(allocator);
    }
    assert_eq!(
        memory.peak.as_ref().expect("a run has a peak").requested,
        highest,
        "{name}"
    );
    let at_peak: u64 = memory
        .categories_at_peak()
        .iter()
        .map(|(_, bytes)| bytes)
        .sum();
    assert_eq!(at_peak, highest, "{name}");
}

/// A fake engine: a script in a folder of its own, which goes away with the folder.
pub struct Engine {
    folder: tempfile::TempDir,
}

impl Engine {
    pub fn new(script: &str) -> Engine {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("engine");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("the script is written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("and executable");
        Engine { folder }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("engine")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Every line that an engine writes in answer to a request.
pub fn engine_lines(program: &str, request: &serde_json::Value) -> Vec<String> {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the engine starts");
    let mut stdin = child.stdin.take().expect("its stdin is a pipe");
    writeln!(stdin, "{request}").expect("it reads the request");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    text.lines().map(str::to_owned).collect()
}

/// The first line of an engine of this build.
pub fn hello() -> String {
    use inspect_checkpoint::engine::protocol::{BUILD_ID, PROTOCOL};
    format!(
        r#"echo '{{"type":"hello","protocol":{PROTOCOL},"build_id":"{BUILD_ID}","libtorch_version":"2.11.0","devices":[{{"id":"cpu","name":null,"total_bytes":null,"unavailable":null}},{{"id":"cuda:0","name":null,"total_bytes":null,"unavailable":"no NVIDIA driver"}}],"sandbox":null}}'"#
    )
}

/// Files of `fixtures/` that have a truth beside them.
pub fn fixtures(folder: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut names: Vec<String> = std::fs::read_dir(root)
        .expect("the folder is there")
        .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
        .filter_map(|name| {
            name.strip_suffix(".truth.json")
                .map(|name| format!("{folder}/{name}"))
        })
        .collect();
    names.sort();
    assert!(!names.is_empty());
    names
}
