//! The simulator driven by operations, and its state as the row of numbers that the driver writes.

use std::collections::HashMap;

use inspect_checkpoint::simulate::stats::OversizeStat;
use inspect_checkpoint::simulate::{
    AllocConf, Allocator, BlockId, BlockState, DeviceLimits, Placement, Pool, Stat, StatKind,
};

use super::traces::Op;

/// Numbers of a row: the answer, nine statistics of three pools with four values each, counters.
pub(crate) const ROW: usize = 1 + 9 * 3 * 4 + 2 + 2 * 4 + 3 + 1;

pub(crate) const OUT_OF_MEMORY: i64 = -1;
pub(crate) const NO_BLOCK: i64 = -2;
pub(crate) const NOT_AN_ALLOCATION: i64 = -3;

/// What a number of a row is.
pub(crate) fn column(index: usize) -> String {
    const POOLS: [&str; 3] = ["all", "small_pool", "large_pool"];
    const VALUES: [&str; 4] = ["current", "peak", "allocated", "freed"];
    const REST: [&str; 14] = [
        "num_alloc_retries",
        "num_ooms",
        "oversize_allocations.current",
        "oversize_allocations.peak",
        "oversize_allocations.allocated",
        "oversize_allocations.freed",
        "oversize_segments.current",
        "oversize_segments.peak",
        "oversize_segments.allocated",
        "oversize_segments.freed",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "device_used_bytes",
    ];
    match index {
        0 => "answer".to_owned(),
        1..109 => {
            let at = index - 1;
            let kind = StatKind::ALL[at / 12];
            format!("{kind:?}.{}.{}", POOLS[at / 4 % 3], VALUES[at % 4])
        }
        _ => REST[index - 109].to_owned(),
    }
}

/// The simulator with its live blocks by the trace's numbers.
pub(crate) struct Simulated {
    pub(crate) allocator: Allocator,
    live: HashMap<u64, BlockId>,
}

impl Simulated {
    pub(crate) fn new(settings: &str, total_bytes: u64, placement: Placement) -> Self {
        let conf = AllocConf::parse(settings).unwrap();
        Self {
            allocator: Allocator::new(conf, DeviceLimits { total_bytes }, placement),
            live: HashMap::new(),
        }
    }

    /// Does one operation; the answer is what the driver's would be.
    pub(crate) fn run(&mut self, op: Op) -> i64 {
        match op {
            Op::Alloc { id, bytes, stream } => match self.allocator.alloc(bytes, stream) {
                Ok(None) => return NO_BLOCK,
                Ok(Some(block)) => {
                    self.live.insert(id, block);
                    return self.allocator.block(block).unwrap().addr as i64;
                }
                Err(_) => return OUT_OF_MEMORY,
            },
            Op::Free { id } => {
                if let Some(block) = self.live.remove(&id) {
                    self.allocator.free(block).unwrap();
                }
            }
            Op::EmptyCache => self.allocator.empty_cache(),
            Op::ResetPeak => self.allocator.stats_mut().reset_peak(),
            Op::ResetAccumulated => self.allocator.stats_mut().reset_accumulated(),
            Op::Fraction(fraction) => self.allocator.set_memory_fraction(fraction),
            Op::Settings(text) => {
                let conf = self.allocator.conf().reparse(text).unwrap();
                self.allocator.configure(conf);
            }
        }
        NOT_AN_ALLOCATION
    }

    /// The state as the driver writes it.
    pub(crate) fn row(&self, answer: i64) -> [i64; ROW] {
        let stats = self.allocator.stats();
        let mut row = [0; ROW];
        row[0] = answer;
        let mut at = 1;
        let mut put = |values: &[i64]| {
            row[at..at + values.len()].copy_from_slice(values);
            at += values.len();
        };
        for kind in StatKind::ALL {
            for pool in [None, Some(Pool::Small), Some(Pool::Large)] {
                let Stat {
                    current,
                    peak,
                    allocated,
                    freed,
                } = stats.get(kind, pool);
                put(&[current, peak, allocated, freed].map(|n| n as i64));
            }
        }
        put(&[stats.num_alloc_retries, stats.num_ooms].map(|n| n as i64));
        for stat in [stats.oversize_allocations, stats.oversize_segments] {
            let OversizeStat {
                current,
                peak,
                allocated,
                freed,
            } = stat;
            put(&[current, peak, allocated as i64, freed as i64]);
        }
        put(&[
            stats.num_sync_all_streams,
            stats.num_device_alloc,
            stats.num_device_free,
            self.allocator.device_used_bytes(),
        ]
        .map(|n| n as i64));
        row
    }

    /// All segments and blocks as the driver writes them.
    pub(crate) fn snapshot(&self) -> Vec<i64> {
        let segments = self.allocator.segments();
        let mut numbers = vec![segments.len() as i64];
        for segment in segments {
            numbers.extend([
                segment.addr as i64,
                segment.size_bytes as i64,
                i64::from(segment.pool == Pool::Large),
                i64::from(segment.is_expandable),
                segment.stream as i64,
                segment.blocks.len() as i64,
            ]);
            for block in segment.blocks {
                numbers.extend([
                    block.size_bytes as i64,
                    block.requested_bytes as i64,
                    i64::from(block.state == BlockState::Allocated),
                    i64::from(block.state != BlockState::Free),
                ]);
            }
        }
        numbers
    }
}
