//! The simulator against PyTorch's real allocator (`libc10_cuda.so` on the simulated CUDA runtime): after every
//! operation of random traces, in every mode, the address and every statistic must be equal.
//!
//! `INSPECT_ALLOCATOR_OPS` sets the number of operations of all cases together (default one million),
//! `INSPECT_ALLOCATOR_SEED` another seed, `INSPECT_ALLOCATOR_CASES` a part of the cases by name.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "a test program"
)]

use std::fmt::Write as _;

use crate::allocator::cases::{CASES, Case};
use crate::allocator::real::{Driver, driver};
use crate::allocator::rows::{Simulated, column};
use crate::allocator::traces::{Numbers, Op, Trace};
use inspect_checkpoint::format::snapshot;
use inspect_checkpoint::simulate::recording::Action;
use inspect_checkpoint::simulate::{AllocConf, AllocConfError, FreeRanges, Placement};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// Runs one case on both; the first difference ends it.
fn compare(driver: &Driver, case: &Case, ops: u64, seed: u64, order: &str) {
    let numbers = Numbers::named(case.name, seed);
    let trace = Trace::new(numbers, case.total_bytes, case.mix);
    let trace = trace.take(usize::try_from(ops).unwrap());
    compare_ops(
        driver,
        case.name,
        case.settings,
        case.total_bytes,
        order,
        &trace,
    );
}

fn compare_ops<I>(
    driver: &Driver,
    name: &str,
    settings: &str,
    total_bytes: u64,
    order: &str,
    ops: &I,
) where
    I: Iterator<Item = Op> + Clone + Send + 'static,
{
    let placement = match order {
        "down" => Placement::Downward,
        "reuse" => Placement::LowestFree(FreeRanges::default()),
        _ => Placement::Upward,
    };
    let mut real = driver.run(settings, total_bytes, order, ops.clone());
    let mut simulated = Simulated::new(settings, total_bytes, placement);
    for (index, op) in ops.clone().enumerate() {
        let expected = real.row();
        let answer = simulated.run(op);
        let got = simulated.row(answer);
        if got != expected {
            let differences: Vec<String> = (0..got.len())
                .filter(|at| got[*at] != expected[*at])
                .take(12)
                .map(|at| format!("{}: real {} model {}", column(at), expected[at], got[at]))
                .collect();
            panic!(
                "case `{name}` ({order}): operation {index} `{op}` differs:\n  {}",
                differences.join("\n  ")
            );
        }
    }
    assert_eq!(
        simulated.snapshot(),
        real.snapshot(),
        "case `{name}`: snapshots differ"
    );
}

#[test]
fn every_statistic_after_every_operation_in_every_mode() {
    let Some(driver) = driver() else { return };
    let wanted = std::env::var("INSPECT_ALLOCATOR_CASES").unwrap_or_default();
    let cases: Vec<&Case> = CASES
        .iter()
        .filter(|case| case.name.contains(&wanted))
        .collect();
    let ops = setting("INSPECT_ALLOCATOR_OPS", 1_000_000) / cases.len() as u64;
    let seed = setting("INSPECT_ALLOCATOR_SEED", 0);
    for case in &cases {
        compare(driver, case, ops, seed, "up");
    }
    println!(
        "{} operations in each of {} cases are equal",
        ops,
        cases.len()
    );
}

#[test]
fn where_addresses_descend_or_are_used_again() {
    let Some(driver) = driver() else { return };
    for name in ["default-empty", "oom", "split64-oom", "gc-streams"] {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        for order in ["down", "reuse"] {
            compare(driver, case, 5_000, 1, order);
        }
    }
}

/// The programs behind recorded snapshots, once more: their allocations and frees on both allocators, with the
/// settings they ran with and with others.
#[test]
fn recorded_programs() {
    let Some(driver) = driver() else { return };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/snapshots");
    if !folder.exists() {
        println!("skipped: no snapshots in {}", folder.display());
        return;
    }
    for name in [
        "lm_train_ctx100",
        "attention_naive",
        "gnn_3gpu_expandable_oom",
    ] {
        let bytes = std::fs::read(folder.join(format!("{name}.pickle"))).unwrap();
        let recording = snapshot::read(&bytes).unwrap();
        for device in &recording.devices {
            let ops = program(&device.events);
            for (settings, total_bytes) in [
                ("", 90 << 30),
                ("expandable_segments:True", 90 << 30),
                ("max_split_size_mb:64", 4 << 30),
                ("roundup_power2_divisions:8", 600 << 20),
            ] {
                let ops = ops.clone().into_iter();
                compare_ops(driver, name, settings, total_bytes, "up", &ops);
            }
        }
    }
}

/// Allocations and frees of a recording, blocks numbered in order of allocation.
fn program(events: &[inspect_checkpoint::simulate::recording::TraceEvent]) -> Vec<Op> {
    let mut ids = std::collections::HashMap::new();
    let mut ops = Vec::new();
    for event in events {
        match event.action {
            Action::Alloc => {
                let id = ops.len() as u64;
                ids.insert(event.addr, id);
                let (bytes, stream) = (event.bytes, 0);
                ops.push(Op::Alloc { id, bytes, stream });
            }
            Action::FreeCompleted => {
                ops.extend(ids.remove(&event.addr).map(|id| Op::Free { id }));
            }
            _ => {}
        }
    }
    ops
}

/// Random settings texts, many of them wrong: what is read, and which texts are refused, is the same.
#[test]
fn settings_are_read_as_pytorch_reads_them() {
    let Some(driver) = driver() else { return };
    let mut numbers = Numbers::new(setting("INSPECT_ALLOCATOR_SEED", 0));
    let texts: Vec<String> = (0..4_000).map(|_| random_settings(&mut numbers)).collect();
    let answers = driver.settings(&texts);
    assert_eq!(answers.len(), texts.len());
    let (mut refused, mut wrong) = (0, Vec::new());
    for (text, answer) in texts.iter().zip(&answers) {
        let got = AllocConf::parse(text);
        let (kind, rest) = answer.split_once(' ').unwrap();
        refused += u32::from(kind != "ok");
        let same = match &got {
            Ok(conf) => kind == "ok" && shown(conf) == rest,
            Err(error) => same_error(error, kind, rest),
        };
        if !same {
            wrong.push(format!("`{text}`: PyTorch says `{answer}`, we say {got:?}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} texts differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    println!("{} texts, {refused} of them refused", texts.len());
    assert!(refused > 1_000 && refused < 3_500);
}

/// As the driver shows settings.
fn shown(conf: &AllocConf) -> String {
    let mut text = format!(
        "{} {} {} {} {} {}",
        conf.large_segment_bytes,
        conf.max_split_bytes.unwrap_or(u64::MAX),
        conf.max_non_split_rounding_bytes,
        conf.garbage_collection_threshold,
        u8::from(conf.expandable_segments),
        conf.per_process_memory_fraction
    );
    for divisions in conf.roundup_power2_divisions {
        write!(text, " {divisions}").unwrap();
    }
    text
}

/// PyTorch's own words are ours; what C++ says about numbers and ends of text is said better.
fn same_error(error: &AllocConfError, kind: &str, message: &str) -> bool {
    match error {
        AllocConfError::NotNumber { function, .. } => {
            kind == "std" && message == format!("{function} argument")
        }
        AllocConfError::OutOfRange { function, .. } => {
            kind == "std" && message == format!("{function} range")
        }
        AllocConfError::Ends { .. } => message.contains("Index out of bounds in ConfigTokenizer"),
        AllocConfError::NoClosingBracket => message.contains(&error.to_string()),
        error => kind == "error" && message.trim_end() == error.to_string(),
    }
}

fn random_settings(numbers: &mut Numbers) -> String {
    const KEYS: [&str; 16] = [
        "large_segment_size_mb",
        "max_split_size_mb",
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "roundup_power2_divisions",
        "roundup_power2_divisions",
        "expandable_segments",
        "expandable_segments",
        "pinned_use_background_threads",
        "release_lock_on_cudamalloc",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "per_process_memory_fraction",
        "unknown_key",
    ];
    const VALUES: [&str; 30] = [
        "1",
        "0",
        "2",
        "3",
        "4",
        "8",
        "11",
        "16",
        "20",
        "21",
        "64",
        "100",
        "128",
        "256",
        "1024",
        "0.5",
        "0.9",
        "1.0",
        "1.5",
        "-1",
        "-0.5",
        "1e-3x",
        "True",
        "False",
        "true",
        "abc",
        "99999999999999999999",
        "native",
        "inf",
        "1e-400",
    ];
    let mut parts = Vec::new();
    for _ in 0..numbers.between(0, 4) {
        let key = numbers.pick(&KEYS);
        let fitting = numbers.below(10) < 7;
        let value = match key {
            "roundup_power2_divisions" if fitting || numbers.below(2) == 0 => {
                let mut entries = Vec::new();
                for _ in 0..numbers.between(0, 4) {
                    let size = numbers.pick(&["1", "2", "4", "16", "256", "32768", ">", "3"]);
                    let divisions = numbers.pick(&["0", "1", "2", "4", "8", "16", "5"]);
                    entries.push(format!("{size}:{divisions}"));
                }
                let close = numbers.pick(&["]", "]", "]", "]", "]", "", ",]"]);
                format!("[{}{close}", entries.join(","))
            }
            "garbage_collection_threshold" | "per_process_memory_fraction" if fitting => numbers
                .pick(&["0.5", ".25", "0.9999", "1e-2", "0x1p-1", "0.8garbage"])
                .to_owned(),
            "expandable_segments" | "release_lock_on_cudamalloc" if fitting => {
                numbers.pick(&["True", "False"]).to_owned()
            }
            _ if fitting => numbers.between(11, 400).to_string(),
            _ => numbers.pick(&VALUES).to_owned(),
        };
        let colon = numbers.pick(&[":", ":", ":", ":", ":", ":", ":", " : ", ",", ""]);
        parts.push(format!("{key}{colon}{value}"));
    }
    let comma = numbers.pick(&[",", ",", ",", ",", " , ", ":", ",,"]);
    parts.join(comma)
}
