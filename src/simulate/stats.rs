//! The allocator's statistics, as `torch.cuda.memory_stats()` reports them.

use super::Pool;
use crate::trace::{AllocatorStats, Stat as PhaseStat};

/// One statistic of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The value now.
    pub current: u64,
    /// The largest value since the start or the last reset.
    pub peak: u64,
    /// The sum of all increases.
    pub allocated: u64,
    /// The sum of all decreases.
    pub freed: u64,
}

impl Stat {
    #[inline]
    fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        // PyTorch's totals are 64-bit integers that wrap, too.
        self.allocated = self.allocated.wrapping_add(amount);
    }

    #[inline]
    fn decrease(&mut self, amount: u64) {
        self.current -= amount;
        self.freed = self.freed.wrapping_add(amount);
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        (self.allocated, self.freed) = (0, 0);
    }
}

/// A count of oversize blocks or segments. Signed, because what was counted in under one `max_split_size` may be
/// counted out under another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OversizeStat {
    /// The value now.
    pub current: i64,
    /// The largest value since the start or the last reset.
    pub peak: i64,
    /// How many were counted in.
    pub allocated: u64,
    /// How many were counted out.
    pub freed: u64,
}

impl OversizeStat {
    pub(super) fn count_in(&mut self) {
        self.current += 1;
        self.peak = self.peak.max(self.current);
        self.allocated += 1;
    }

    pub(super) fn count_out(&mut self) {
        self.current -= 1;
        self.freed += 1;
    }
}

/// The nine statistics kept for each pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatKind {
    /// Blocks handed out and not freed.
    Allocation,
    /// Segments got from the device (not expandable ones).
    Segment,
    /// Blocks handed out, or freed and still waited for.
    Active,
    /// Free blocks that have a neighbour in their segment.
    InactiveSplit,
    /// Bytes of [`StatKind::Allocation`]'s blocks.
    AllocatedBytes,
    /// Bytes held from the device.
    ReservedBytes,
    /// Bytes of [`StatKind::Active`]'s blocks.
    ActiveBytes,
    /// Bytes of [`StatKind::InactiveSplit`]'s blocks.
    InactiveSplitBytes,
    /// Bytes the callers asked for.
    RequestedBytes,
}

impl StatKind {
    /// All nine, in the order of PyTorch's `DeviceStats`.
    pub const ALL: [Self; 9] = [
        Self::Allocation,
        Self::Segment,
        Self::Active,
        Self::InactiveSplit,
        Self::AllocatedBytes,
        Self::ReservedBytes,
        Self::ActiveBytes,
        Self::InactiveSplitBytes,
        Self::RequestedBytes,
    ];
}

/// Every statistic and counter of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    by_kind: [[Stat; 3]; 9],
    /// Blocks of at least `max_split_size` handed out.
    pub oversize_allocations: OversizeStat,
    /// Segments of at least `max_split_size`.
    pub oversize_segments: OversizeStat,
    /// How often a device allocation failed and everything unused was released to try again.
    pub num_alloc_retries: u64,
    /// How often that did not help.
    pub num_ooms: u64,
    /// How often all streams were waited for.
    pub num_sync_all_streams: u64,
    /// Successful device allocations and mappings.
    pub num_device_alloc: u64,
    /// Device frees and unmappings.
    pub num_device_free: u64,
}

/// Index of the sum over both pools.
const AGGREGATE: usize = 0;

impl Stats {
    /// One statistic, of both pools together (`None`) or of one.
    #[must_use]
    pub fn get(&self, kind: StatKind, pool: Option<Pool>) -> Stat {
        self.by_kind[kind as usize][pool.map_or(AGGREGATE, Pool::stat_index)]
    }

    /// Bytes the callers asked for, both pools.
    #[must_use]
    pub fn requested_bytes(&self) -> Stat {
        self.get(StatKind::RequestedBytes, None)
    }

    /// Bytes of the blocks handed out, both pools.
    #[must_use]
    pub fn allocated_bytes(&self) -> Stat {
        self.get(StatKind::AllocatedBytes, None)
    }

    /// Bytes of the blocks handed out or still waited for, both pools.
    #[must_use]
    pub fn active_bytes(&self) -> Stat {
        self.get(StatKind::ActiveBytes, None)
    }

    /// Bytes held from the device, both pools.
    #[must_use]
    pub fn reserved_bytes(&self) -> Stat {
        self.get(StatKind::ReservedBytes, None)
    }

    #[inline]
    pub(super) fn increase(&mut self, kind: StatKind, pool: Pool, amount: u64) {
        let stats = &mut self.by_kind[kind as usize];
        stats[AGGREGATE].increase(amount);
        stats[pool.stat_index()].increase(amount);
    }

    #[inline]
    pub(super) fn decrease(&mut self, kind: StatKind, pool: Pool, amount: u64) {
        let stats = &mut self.by_kind[kind as usize];
        stats[AGGREGATE].decrease(amount);
        stats[pool.stat_index()].decrease(amount);
    }

    /// `after - before`, counted as one increase or one decrease.
    #[inline]
    pub(super) fn change(&mut self, kind: StatKind, pool: Pool, before: u64, after: u64) {
        if after > before {
            self.increase(kind, pool, after - before);
        } else if after < before {
            self.decrease(kind, pool, before - after);
        }
    }

    /// Every peak becomes what it was before, or the current value where that is more.
    pub(super) fn restore_peaks(&mut self, before: &Self) {
        let old = before.by_kind.iter().flatten();
        for (stat, old) in self.by_kind.iter_mut().flatten().zip(old) {
            stat.peak = old.peak.max(stat.current);
        }
    }

    /// The figures of a phase that began with `started` and a reset of the peaks, as a trace holds them.
    #[must_use]
    pub fn since(&self, started: &Self) -> AllocatorStats {
        let stat = |of: fn(&Self) -> Stat| PhaseStat {
            current: of(self).current,
            peak: of(self).peak,
            start: of(started).current,
        };
        AllocatorStats {
            requested_bytes: stat(Self::requested_bytes),
            allocated_bytes: stat(Self::allocated_bytes),
            active_bytes: stat(Self::active_bytes),
            reserved_bytes: stat(Self::reserved_bytes),
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
        }
    }

    /// Every peak becomes the current value.
    pub fn reset_peak(&mut self) {
        self.by_kind.iter_mut().flatten().for_each(Stat::reset_peak);
        for stat in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            stat.peak = stat.current;
        }
    }

    /// Totals and counters become 0; peaks stay.
    pub fn reset_accumulated(&mut self) {
        self.by_kind
            .iter_mut()
            .flatten()
            .for_each(Stat::reset_accumulated);
        for stat in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            (stat.allocated, stat.freed) = (0, 0);
        }
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }
}
