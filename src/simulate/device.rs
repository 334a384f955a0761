//! The device as the allocator sees it: how much memory there is and which addresses a driver hands out.

use std::collections::{BTreeMap, VecDeque};

use super::free_list::MAX_ADDRESS;
use super::{MIB, MIN_BLOCK_BYTES};

/// What the driver rounds every allocation up to.
const GRANULARITY_BYTES: u64 = 2 * MIB;

/// Where new segments lie, unless a recording says otherwise: the addresses that the simulated CUDA device hands out.
const FIRST_SEGMENT: u64 = 1 << 49;

/// Where downward placement starts; far enough above [`FIRST_SEGMENT`] for any device.
const TOP_SEGMENT: u64 = FIRST_SEGMENT + (128 << 40);

/// Where address ranges of expandable segments start.
const FIRST_RANGE: u64 = TOP_SEGMENT;

/// No address is handed out above this; only a run of exabytes gets here.
const LAST_ADDRESS: u64 = 1 << 60;

/// What a device offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// All of its memory that the allocator may ask for.
    pub total_bytes: u64,
}

impl DeviceLimits {
    /// A device that never runs out: 16 TiB.
    pub const UNLIMITED: Self = Self {
        total_bytes: 1 << 44,
    };
}

/// Which address a new segment gets. Equal free blocks are told apart by address, so this decides ties.
#[derive(Debug, Clone, Default)]
pub enum Placement {
    /// Each segment above the last.
    #[default]
    Upward,
    /// Each segment below the last.
    Downward,
    /// The lowest free range that is large enough.
    LowestFree(FreeRanges),
    /// The addresses that a recording saw, upward where it has none.
    Recorded(RecordedPlaces),
}

/// Ranges given back, for [`Placement::LowestFree`].
#[derive(Debug, Clone, Default)]
pub struct FreeRanges {
    by_address: BTreeMap<u64, u64>,
}

impl FreeRanges {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (addr, size) = self
            .by_address
            .iter()
            .find(|(_, size)| **size >= bytes)
            .map(|(addr, size)| (*addr, *size))?;
        self.by_address.remove(&addr);
        if size > bytes {
            self.by_address.insert(addr + bytes, size - bytes);
        }
        Some(addr)
    }

    fn give(&mut self, mut addr: u64, mut bytes: u64) {
        if let Some((before, size)) = self.by_address.range(..addr).next_back()
            && before + size == addr
        {
            (addr, bytes) = (*before, bytes + size);
        }
        if let Some(size) = self.by_address.remove(&(addr + bytes)) {
            bytes += size;
        }
        self.by_address.insert(addr, bytes);
    }
}

/// Addresses still to be handed out, for [`Placement::Recorded`].
#[derive(Debug, Clone, Default)]
pub struct RecordedPlaces {
    /// Segments in recorded order: address and size.
    pub segments: VecDeque<(u64, u64)>,
    /// Where the next expandable segment's address range starts.
    pub next_range: Option<u64>,
}

impl RecordedPlaces {
    /// The first recorded segment of this size that is not taken yet.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let at = self.segments.iter().position(|(_, size)| *size == bytes)?;
        let (addr, _) = self.segments.remove(at)?;
        is_address(addr).then_some(addr)
    }
}

/// Memory in use and addresses handed out.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) total_bytes: u64,
    pub(super) used_bytes: u64,
    pub(super) placement: Placement,
    next_up: u64,
    next_down: u64,
    next_range: u64,
}

impl Device {
    pub(super) fn new(limits: DeviceLimits, placement: Placement) -> Self {
        Self {
            total_bytes: limits.total_bytes.min(DeviceLimits::UNLIMITED.total_bytes),
            used_bytes: 0,
            placement,
            next_up: FIRST_SEGMENT,
            next_down: TOP_SEGMENT,
            next_range: FIRST_RANGE,
        }
    }

    /// cudaMalloc: the address of `bytes` new bytes, unless that many are not left.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let rounded = bytes.next_multiple_of(GRANULARITY_BYTES);
        if !self.take(rounded) {
            return None;
        }
        let recorded = match &mut self.placement {
            Placement::Upward => None,
            Placement::Downward => {
                self.next_down = self.next_down.checked_sub(rounded).unwrap_or(LAST_ADDRESS);
                return Some(self.next_down);
            }
            Placement::LowestFree(ranges) => ranges.take(rounded),
            Placement::Recorded(places) => places.take(bytes),
        };
        Some(recorded.unwrap_or_else(|| {
            let addr = self.next_up;
            self.next_up = following(addr, rounded, FIRST_SEGMENT);
            addr
        }))
    }

    /// Takes memory that is held already, whether or not there is as much.
    pub(super) fn hold(&mut self, bytes: u64) {
        self.used_bytes += bytes.next_multiple_of(GRANULARITY_BYTES);
    }

    /// cudaFree.
    pub(super) fn free(&mut self, addr: u64, bytes: u64) {
        let rounded = bytes.next_multiple_of(GRANULARITY_BYTES);
        self.used_bytes -= rounded;
        if let Placement::LowestFree(ranges) = &mut self.placement {
            ranges.give(addr, rounded);
        }
    }

    /// cuMemCreate of whole pages: whether so many bytes were left.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.total_bytes.saturating_sub(self.used_bytes);
        if fits {
            self.used_bytes += bytes;
        }
        fits
    }

    /// cuMemRelease of whole pages.
    pub(super) fn release(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
    }

    /// cuMemAddressReserve: the start of a range of `bytes` addresses.
    pub(super) fn reserve_range(&mut self, bytes: u64) -> u64 {
        if let Placement::Recorded(places) = &mut self.placement
            && let Some(base) = places.next_range.take()
            && is_address(base)
        {
            return base;
        }
        let base = self.next_range;
        let apart = bytes.next_multiple_of(GRANULARITY_BYTES) + GRANULARITY_BYTES;
        self.next_range = following(base, apart, FIRST_RANGE);
        base
    }
}

/// Whether a block can lie there; a recording may say anything.
fn is_address(addr: u64) -> bool {
    addr.is_multiple_of(MIN_BLOCK_BYTES) && addr < MAX_ADDRESS
}

/// The address `bytes` above; starts over where a run is so long that addresses end.
fn following(addr: u64, bytes: u64, first: u64) -> u64 {
    let next = addr.saturating_add(bytes);
    if next < LAST_ADDRESS { next } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_free_range_first() {
        let limits = DeviceLimits {
            total_bytes: 64 * MIB,
        };
        let mut device = Device::new(limits, Placement::LowestFree(FreeRanges::default()));
        let addrs: Vec<u64> = (0..4).filter_map(|_| device.allocate(4 * MIB)).collect();
        for index in [2, 0, 1] {
            device.free(addrs[index], 4 * MIB);
        }
        assert_eq!(device.allocate(12 * MIB), Some(addrs[0]));
        assert_eq!(device.allocate(2 * MIB), Some(addrs[3] + 4 * MIB));
    }

    #[test]
    fn no_more_than_there_is() {
        let limits = DeviceLimits {
            total_bytes: 5 * MIB,
        };
        let mut device = Device::new(limits, Placement::Upward);
        // 3 MiB take 4 of the device, so 1 is left.
        assert!(device.allocate(3 * MIB).is_some());
        assert_eq!(device.allocate(2 * MIB), None);
        assert!(device.take(MIB) && !device.take(1));
    }
}
