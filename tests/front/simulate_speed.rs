//! How fast the simulator is, beside PyTorch's real allocator on the same calls. `scripts/bench_allocator` runs it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "a test program"
)]

use std::time::Instant;

use crate::allocator::real::driver;
use crate::allocator::traces::{Mix, Numbers, Op, Trace};
use inspect_checkpoint::simulate::{AllocConf, Allocator, DeviceLimits, Placement};

const CALLS: usize = 1_000_000;

const PLAIN: Mix = Mix {
    streams: 1,
    empty_ppm: 0,
    fraction_ppm: 0,
    settings: &[],
};

/// Sizes spread evenly over powers of two, half allocations and half frees of any live block, 2000 live at most.
fn spread() -> Vec<Op> {
    let mut numbers = Numbers::new(1);
    let (mut live, mut ops) = (Vec::new(), Vec::new());
    for id in 0..CALLS as u64 {
        if live.len() < 2000 && (live.is_empty() || numbers.below(2) == 0) {
            let bytes = numbers.log(0.0, 26.0);
            live.push(id);
            ops.push(Op::Alloc {
                id,
                bytes,
                stream: 0,
            });
        } else {
            let index = usize::try_from(numbers.below(live.len() as u64)).unwrap();
            ops.push(Op::Free {
                id: live.swap_remove(index),
            });
        }
    }
    ops
}

/// A model's training steps: the same sizes in the same order, freed backwards.
fn steps() -> Vec<Op> {
    let mut numbers = Numbers::new(2);
    let sizes: Vec<u64> = (0..400).map(|_| numbers.log(9.0, 25.0)).collect();
    let (mut id, mut ops) = (0, Vec::new());
    while ops.len() < CALLS {
        let first = id;
        for bytes in &sizes {
            ops.push(Op::Alloc {
                id,
                bytes: *bytes,
                stream: 0,
            });
            id += 1;
        }
        ops.extend((first..id).rev().map(|id| Op::Free { id }));
    }
    ops
}

/// Nanoseconds that this thread ran; where the system does not tell, that went by.
fn ran_ns(since: Instant) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = text.split(' ').next().and_then(|ns| ns.parse().ok());
    ran.unwrap_or_else(|| u64::try_from(since.elapsed().as_nanos()).unwrap())
}

/// Calls a second, the best of fifteen: other work on the machine only slows it down.
fn simulated(ops: &[Op]) -> f64 {
    let ids = ops
        .iter()
        .filter(|op| matches!(op, Op::Alloc { .. }))
        .count();
    let last = ops.iter().map(|op| match op {
        Op::Alloc { id, .. } | Op::Free { id } => *id,
        _ => 0,
    });
    let ids = ids.max(usize::try_from(last.max().unwrap() + 1).unwrap());
    let run = || {
        let mut allocator = Allocator::new(
            AllocConf::default(),
            DeviceLimits::UNLIMITED,
            Placement::Upward,
        );
        let mut live = vec![None; ids];
        let start = Instant::now();
        let before = ran_ns(start);
        for op in ops {
            match op {
                Op::Alloc { id, bytes, stream } => {
                    live[*id as usize] = allocator.alloc(*bytes, *stream).unwrap();
                }
                Op::Free { id } => {
                    if let Some(block) = live[*id as usize] {
                        allocator.free(block).unwrap();
                    }
                }
                _ => {}
            }
        }
        assert!(allocator.stats().allocated_bytes().peak > 0);
        ops.len() as f64 / (ran_ns(start) - before) as f64 * 1e9
    };
    (0..15).map(|_| run()).fold(0.0, f64::max)
}

#[test]
#[ignore = "a measurement"]
fn beside_the_real_allocator() {
    let random = Trace::new(Numbers::new(3), 64 << 30, PLAIN)
        .filter(|op| matches!(op, Op::Alloc { .. } | Op::Free { .. }));
    let traces = [
        ("spread", spread()),
        ("steps", steps()),
        ("random", random.take(CALLS).collect()),
    ];
    for (name, ops) in traces {
        let model = simulated(&ops);
        let real = driver().map(|driver| driver.time(&ops));
        let real = real.map_or("unknown".to_owned(), |(count, ns)| {
            format!("{:.2} M", count as f64 / ns as f64 * 1e3)
        });
        println!(
            "{name:8} model {:6.2} M calls/s, PyTorch {real} calls/s",
            model / 1e6
        );
    }
}
