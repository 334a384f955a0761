//! The largest batch: from runs at two batch sizes to the memory of any other.
//!
//! A model makes the same allocations in the same order at every batch, each of a size a + b·B. Two runs give a and b
//! of each, and the memory model replays them at any B. What does not follow this (an operator that takes another way
//! for larger inputs) shows as another order or as a wrong prediction; both are found out by real runs.

use std::collections::HashMap;

use crate::simulate::{
    AllocConf, Allocator, BlockId, DeviceLimits, OutOfMemory, Placement, StatKind,
};
use crate::trace::{Event, Trace};

/// Batches are searched up to this: no tensor of more than 2^63 elements can be asked for.
pub const MAX_BATCH: u64 = 1 << 40;

/// What one run does with memory, without addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Alloc { id: u32, bytes: u64, stream: u64 },
    Free { id: u32 },
}

fn calls(trace: &Trace) -> Vec<Call> {
    let call = |event: &Event| match event {
        Event::Alloc {
            id, bytes, stream, ..
        } => Some(Call::Alloc {
            id: *id,
            bytes: *bytes,
            stream: *stream,
        }),
        Event::Free { id, .. } => Some(Call::Free { id: *id }),
        _ => None,
    };
    trace.events.iter().filter_map(call).collect()
}

/// One allocation at two batches.
#[derive(Debug, Clone, Copy)]
struct Line {
    low: u64,
    high: u64,
}

/// The allocations of a model as functions of the batch.
#[derive(Debug, Clone)]
pub struct Scaling {
    batches: (u64, u64),
    calls: Vec<Call>,
    lines: HashMap<u32, Line>,
}

/// Peaks at one batch, as the memory model has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peaks {
    /// Highest requested bytes.
    pub requested_bytes: u64,
    /// Highest reserved bytes.
    pub reserved_bytes: u64,
}

impl Scaling {
    /// From complete runs at two different batches; none where they do not make the same calls.
    #[must_use]
    pub fn of(low: (u64, &Trace), high: (u64, &Trace)) -> Option<Scaling> {
        if low.0 >= high.0 {
            return None;
        }
        let (calls, others) = (calls(low.1), calls(high.1));
        if calls.len() != others.len() {
            return None;
        }
        let mut lines = HashMap::new();
        for (call, other) in calls.iter().zip(&others) {
            match (call, other) {
                (
                    Call::Alloc { id, bytes, stream },
                    Call::Alloc {
                        id: same,
                        bytes: high,
                        stream: on,
                    },
                ) if id == same && stream == on => {
                    let line = Line {
                        low: *bytes,
                        high: *high,
                    };
                    lines.insert(*id, line);
                }
                (Call::Free { id }, Call::Free { id: same }) if id == same => {}
                _ => return None,
            }
        }
        Some(Scaling {
            batches: (low.0, high.0),
            calls,
            lines,
        })
    }

    /// The size of an allocation at a batch, rounded up; none beyond 64 bits.
    fn bytes(&self, line: Line, batch: u64) -> Option<u64> {
        let (low, high) = self.batches;
        let rise = i128::from(line.high) - i128::from(line.low);
        let steps = i128::from(batch) - i128::from(low);
        let over = i128::from(high) - i128::from(low);
        let part = rise.checked_mul(steps)?;
        // Towards positive infinity.
        let part = part.div_euclid(over) + i128::from(part.rem_euclid(over) > 0);
        u64::try_from((i128::from(line.low) + part).max(0)).ok()
    }

    /// The peaks at a batch with so much memory; none where it runs out.
    #[must_use]
    pub fn peaks(&self, batch: u64, conf: &AllocConf, limits: DeviceLimits) -> Option<Peaks> {
        let mut allocator = Allocator::new(conf.clone(), limits, Placement::Upward);
        self.play(batch, &mut allocator)?.ok()?;
        let peak = |kind| allocator.stats().get(kind, None).peak;
        Some(Peaks {
            requested_bytes: peak(StatKind::RequestedBytes),
            reserved_bytes: peak(StatKind::ReservedBytes),
        })
    }

    fn play(&self, batch: u64, allocator: &mut Allocator) -> Option<Result<(), OutOfMemory>> {
        let mut blocks: HashMap<u32, BlockId> = HashMap::new();
        for call in &self.calls {
            match call {
                Call::Alloc { id, stream, .. } => {
                    let bytes = self.bytes(*self.lines.get(id)?, batch)?;
                    match allocator.alloc(bytes, *stream) {
                        Ok(block) => blocks.extend(block.map(|block| (*id, block))),
                        Err(error) => return Some(Err(error)),
                    }
                }
                Call::Free { id } => {
                    if let Some(block) = blocks.remove(id) {
                        allocator.free(block).ok()?;
                    }
                }
            }
        }
        Some(Ok(()))
    }

    /// The largest batch that fits into so much memory, by bisection; 0 where none does.
    #[must_use]
    pub fn largest(&self, conf: &AllocConf, limits: DeviceLimits) -> u64 {
        let fits = |batch| self.peaks(batch, conf, limits).is_some();
        let mut fails = 1;
        while fails < MAX_BATCH && fits(fails) {
            fails *= 2;
        }
        let mut runs = fails / 2;
        while fails - runs > 1 {
            let middle = runs + (fails - runs) / 2;
            if fits(middle) {
                runs = middle;
            } else {
                fails = middle;
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceReader;

    /// A weight of 4 MiB that stays, an activation of `batch` MiB, a temporary of `2 * batch` MiB beside it.
    fn run(batch: u64, extra: bool) -> Trace {
        let mut reader = TraceReader::new();
        let mib = |n: u64| n << 20;
        let mut lines = vec![
            r#"{"header":{"version":1,"device":"cuda-sim","libtorch_version":"2.11.0","mode":"inference","method":"forward"}}"#.to_owned(),
            format!(r#"{{"alloc":{{"t":0,"id":0,"bytes":{},"addr":0}}}}"#, mib(4)),
            format!(r#"{{"alloc":{{"t":0,"id":1,"bytes":{},"addr":0}}}}"#, mib(batch)),
            format!(r#"{{"alloc":{{"t":0,"id":2,"bytes":{},"addr":0}}}}"#, mib(2 * batch)),
            r#"{"free":{"t":0,"id":2}}"#.to_owned(),
        ];
        if extra {
            lines.push(r#"{"free":{"t":0,"id":1}}"#.to_owned());
        }
        for line in &lines {
            reader.line(line).unwrap();
        }
        reader.finish().unwrap()
    }

    #[test]
    fn any_batch_from_two() {
        let scaling = Scaling::of((2, &run(2, false)), (4, &run(4, false))).unwrap();
        let conf = AllocConf::default();
        let peaks = |batch| {
            scaling
                .peaks(batch, &conf, DeviceLimits::UNLIMITED)
                .unwrap()
        };
        for batch in [1, 3, 100] {
            assert_eq!(peaks(batch).requested_bytes, (4 + 3 * batch) << 20);
        }
        let limits = DeviceLimits {
            total_bytes: 400 << 20,
        };
        let largest = scaling.largest(&conf, limits);
        assert!(scaling.peaks(largest, &conf, limits).is_some());
        assert!(scaling.peaks(largest + 1, &conf, limits).is_none());
        assert!((120..=132).contains(&largest), "{largest}");
        let none = DeviceLimits {
            total_bytes: 1 << 20,
        };
        assert_eq!(scaling.largest(&conf, none), 0);
    }

    #[test]
    fn runs_of_another_kind_are_not_fitted() {
        assert!(Scaling::of((2, &run(2, false)), (4, &run(4, true))).is_none());
        assert!(Scaling::of((4, &run(4, false)), (2, &run(2, false))).is_none());
    }
}
