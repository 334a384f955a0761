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

/// What one statistic of one pool is worked out from. The sum of all decreases follows from the rest, so that a
/// decrease is one subtraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counter {
    current: u64,
    peak: u64,
    /// The sum of all increases since the last reset; wraps, as PyTorch's 64-bit totals do.
    allocated: u64,
    /// The value at the last reset.
    at_reset: u64,
}

impl Counter {
    fn freed(&self) -> u64 {
        self.allocated
            .wrapping_add(self.at_reset)
            .wrapping_sub(self.current)
    }
}

/// One statistic: of each pool, and the peak of both together.
///
/// Sums of what a device holds do not overflow: its addresses end at 2^62. So nothing is checked here, where every call
/// passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counters {
    pools: [Counter; 2],
    peak: u64,
}

impl Counters {
    #[inline]
    fn current(&self) -> u64 {
        self.pools[0].current.wrapping_add(self.pools[1].current)
    }

    #[inline]
    fn increase(&mut self, pool: Pool, amount: u64) {
        let counter = &mut self.pools[pool.stat_index() - 1];
        counter.current = counter.current.wrapping_add(amount);
        counter.peak = counter.peak.max(counter.current);
        counter.allocated = counter.allocated.wrapping_add(amount);
        self.peak = self.peak.max(self.current());
    }

    #[inline]
    fn decrease(&mut self, pool: Pool, amount: u64) {
        let counter = &mut self.pools[pool.stat_index() - 1];
        debug_assert!(
            counter.current >= amount,
            "more is freed than was allocated"
        );
        counter.current = counter.current.wrapping_sub(amount);
    }

    fn of(&self, pool: Option<Pool>) -> Stat {
        if let Some(pool) = pool {
            let counter = &self.pools[pool.stat_index() - 1];
            return Stat {
                current: counter.current,
                peak: counter.peak,
                allocated: counter.allocated,
                freed: counter.freed(),
            };
        }
        let [small, large] = &self.pools;
        Stat {
            current: self.current(),
            peak: self.peak,
            allocated: small.allocated.wrapping_add(large.allocated),
            freed: small.freed().wrapping_add(large.freed()),
        }
    }

    /// Every peak becomes what it was before, or the current value where that is more.
    fn restore_peaks(&mut self, before: &Counters) {
        for (counter, old) in self.pools.iter_mut().zip(&before.pools) {
            counter.peak = old.peak.max(counter.current);
        }
        self.peak = before.peak.max(self.current());
    }

    fn reset_peak(&mut self) {
        self.restore_peaks(&Counters::default());
    }

    fn reset_accumulated(&mut self) {
        for counter in &mut self.pools {
            (counter.allocated, counter.at_reset) = (0, counter.current);
        }
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
    by_kind: [Counters; 9],
    /// Whether a block was ever active without being allocated, waited for on another stream. Until then what is
    /// active is what is allocated, and is counted once.
    waiting: bool,
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

impl Stats {
    /// One statistic, of both pools together (`None`) or of one.
    #[must_use]
    pub fn get(&self, kind: StatKind, pool: Option<Pool>) -> Stat {
        self.counters(kind).of(pool)
    }

    #[inline]
    fn counters(&self, kind: StatKind) -> &Counters {
        let kind = match kind {
            StatKind::Active if !self.waiting => StatKind::Allocation,
            StatKind::ActiveBytes if !self.waiting => StatKind::AllocatedBytes,
            kind => kind,
        };
        &self.by_kind[kind as usize]
    }

    /// Counts a block that is handed out.
    #[inline]
    pub(super) fn hand_out(&mut self, pool: Pool, bytes: u64, requested: u64) {
        self.increase(StatKind::Allocation, pool, 1);
        self.increase(StatKind::AllocatedBytes, pool, bytes);
        self.increase(StatKind::RequestedBytes, pool, requested);
        if self.waiting {
            self.increase(StatKind::Active, pool, 1);
            self.increase(StatKind::ActiveBytes, pool, bytes);
        }
    }

    /// Counts a block that its owner gave up.
    #[inline]
    pub(super) fn give_up(&mut self, pool: Pool, bytes: u64) {
        self.decrease(StatKind::Allocation, pool, 1);
        self.decrease(StatKind::AllocatedBytes, pool, bytes);
    }

    /// Counts a block that nobody waits for any more.
    #[inline]
    pub(super) fn put_back(&mut self, pool: Pool, bytes: u64, requested: u64) {
        self.decrease(StatKind::RequestedBytes, pool, requested);
        if self.waiting {
            self.decrease(StatKind::Active, pool, 1);
            self.decrease(StatKind::ActiveBytes, pool, bytes);
        }
    }

    /// From here on blocks may be active without being allocated.
    pub(super) fn begin_waiting(&mut self) {
        if !self.waiting {
            let kinds = [
                (StatKind::Active, StatKind::Allocation),
                (StatKind::ActiveBytes, StatKind::AllocatedBytes),
            ];
            for (active, allocated) in kinds {
                self.by_kind[active as usize] = self.by_kind[allocated as usize];
            }
            self.waiting = true;
        }
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
        self.by_kind[kind as usize].increase(pool, amount);
    }

    #[inline]
    pub(super) fn decrease(&mut self, kind: StatKind, pool: Pool, amount: u64) {
        self.by_kind[kind as usize].decrease(pool, amount);
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
        for kind in StatKind::ALL {
            self.by_kind[kind as usize].restore_peaks(before.counters(kind));
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
        self.by_kind.iter_mut().for_each(Counters::reset_peak);
        for stat in [&mut self.oversize_allocations, &mut self.oversize_segments] {
            stat.peak = stat.current;
        }
    }

    /// Totals and counters become 0; peaks stay.
    pub fn reset_accumulated(&mut self) {
        self.by_kind
            .iter_mut()
            .for_each(Counters::reset_accumulated);
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
