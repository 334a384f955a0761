//! What the tests of `inspect check` and `inspect diff` share: runs come from recorded traces, through an engine that
//! only repeats one.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::path::Path;

use serde_json::Value;

use super::{Engine, Said, hello, inspect};

/// An engine that repeats a recorded run.
pub fn engine(trace: &str) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/traces")
        .join(trace);
    let lines = std::fs::read_to_string(&path).unwrap().lines().count();
    let done = format!(
        r#"{{"type":"done","trace_lines":{lines},"signature":null,"module_tensors":null}}"#
    );
    Engine::new(&format!(
        "{}\ncat '{}'\necho '{done}'",
        hello(),
        path.display()
    ))
}

/// Runs the program with that engine; the estimate is the CPU's, which needs no other engine.
pub fn with_engine(engine: &Engine, args: &[&str]) -> Said {
    let mut command = inspect(args);
    Said::of(
        &command
            .env("INSPECT_ENGINE", engine.path())
            .output()
            .unwrap(),
    )
}

pub const RUN: [&str; 6] = [
    "--input",
    "1x8x4x4",
    "--basis",
    "cpu-trace",
    "--color",
    "never",
];

pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::Builder::new().prefix(".tmp").tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// A copy of a baseline with numbers of another day.
    pub fn changed(&self, from: &str, to: &str, change: impl Fn(&mut Value)) -> String {
        let mut value: Value = serde_json::from_str(&self.read(from)).unwrap();
        change(&mut value);
        self.write(to, &value.to_string())
    }
}

/// A baseline of the recorded run.
pub fn baseline(folder: &Folder, engine: &Engine) -> String {
    let path = folder.path("base.json");
    let mut args = vec![
        "check",
        "fixtures/residual.pt",
        "--baseline",
        &path,
        "--update-baseline",
    ];
    args.extend(RUN);
    let said = with_engine(engine, &args);
    assert_eq!(said.code, Some(0), "{}", said.snapshot());
    path
}

pub fn add(value: &mut Value, key: &str, more: i64) {
    let number = value[key].as_i64().unwrap();
    value[key] = (number + more).into();
}

/// Budgets are about the files of their folder.
pub fn budget_folder() -> Folder {
    let folder = Folder::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for name in ["mlp.pt", "slack.pt", "tiny_cnn.pt"] {
        std::fs::copy(root.join(name), folder.0.path().join(name)).unwrap();
    }
    folder
}

pub fn in_folder(folder: &Folder, args: &[&str]) -> Said {
    let mut command = inspect(args);
    Said::of(&command.current_dir(folder.0.path()).output().unwrap())
}
