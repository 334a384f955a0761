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

mod allocator;

use allocator::cases::{CASES, Case};
use allocator::real::{Driver, driver};
use allocator::rows::{Simulated, column};
use allocator::traces::{Numbers, Trace};
use inspect_checkpoint::simulate::{FreeRanges, Placement};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// Runs one case on both; the first difference ends it.
fn compare(driver: &Driver, case: &Case, ops: u64, seed: u64, order: &str) {
    let trace = || {
        let numbers = Numbers::named(case.name, seed);
        Trace::new(numbers, case.total_bytes, case.mix).take(usize::try_from(ops).unwrap())
    };
    let placement = match order {
        "down" => Placement::Downward,
        "reuse" => Placement::LowestFree(FreeRanges::default()),
        _ => Placement::Upward,
    };
    let mut real = driver.run(case.settings, case.total_bytes, order, trace());
    let mut simulated = Simulated::new(case.settings, case.total_bytes, placement);
    for (index, op) in trace().enumerate() {
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
                "case `{}` ({order}, seed {seed}): operation {index} `{op}` differs:\n  {}",
                case.name,
                differences.join("\n  ")
            );
        }
    }
    assert_eq!(
        simulated.snapshot(),
        real.snapshot(),
        "case `{}`: snapshots differ",
        case.name
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
