//! The simulated CUDA device's contract: `cuda_sim/contract.c`, compiled against the embedded stand-ins and run with
//! them preloaded from memory, as an engine is.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use inspect_checkpoint::engine::stand_ins::{self, AddressOrder, SimulatedDevice, StandIns};

const MIB: u64 = 1 << 20;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles the contract in `folder`, linked against copies of the stand-ins that it calls.
fn compile(folder: &Path) -> PathBuf {
    let program = folder.join("contract");
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("src/torch/cuda_sim"));
    command
        .arg(root().join("tests/cuda_sim/contract.c"))
        .arg("-o")
        .arg(&program);
    for (soname, content) in stand_ins::libraries() {
        let wanted = [
            "libcuda.",
            "libcudart.",
            "libcublas.",
            "libcudnn.",
            "libcufft.",
        ];
        if wanted.iter().any(|prefix| soname.starts_with(prefix)) {
            let path = folder.join(soname);
            std::fs::write(&path, content).unwrap();
            command.arg(path);
        }
    }
    let output = command.args(["-lpthread", "-ldl"]).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}

fn device(address_order: AddressOrder) -> SimulatedDevice {
    SimulatedDevice {
        name: String::new(),
        compute_capability: (8, 6),
        multiprocessor_count: 82,
        total_bytes: 1024 * MIB,
        base_bytes: 64 * MIB,
        l2_bytes: None,
        address_order,
    }
}

fn run(program: &Path, stand_ins: &StandIns, order: AddressOrder, argument: &str) -> Output {
    let preload: Vec<String> = stand_ins
        .preload()
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Command::new(program)
        .arg(argument)
        .envs(device(order).env())
        .env("LD_PRELOAD", preload.join(":"))
        .output()
        .unwrap()
}

#[test]
fn every_promise_is_kept() {
    if let Some(reason) = stand_ins::unavailable() {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path());
    let stand_ins = StandIns::open().unwrap();
    let orders = [
        (AddressOrder::Up, "up"),
        (AddressOrder::Down, "down"),
        (AddressOrder::Reuse, "reuse"),
    ];
    for (order, name) in orders {
        let output = run(&program, &stand_ins, order, name);
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{name}:\n{shown}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(shown.ends_with("0 failed\n"), "{shown}");
    }
}

/// One install has everything: all stand-ins together stay small enough to embed.
#[test]
fn they_are_small_and_the_driver_comes_first() {
    let libraries = stand_ins::libraries();
    if libraries.is_empty() {
        eprintln!("skipped: {}", stand_ins::unavailable().unwrap_or_default());
        return;
    }
    let total_bytes: usize = libraries.iter().map(|(_, content)| content.len()).sum();
    assert!(total_bytes < 400_000, "{total_bytes}");
    assert_eq!(libraries[0].0, "libcuda.so.1");
    assert_eq!(libraries[1].0, "libcudart.so.13");
    assert!(
        libraries
            .iter()
            .all(|(_, content)| content.starts_with(b"\x7fELF"))
    );
}
