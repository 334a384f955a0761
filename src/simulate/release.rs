//! Getting segments from the device, and giving them back: oversize blocks, garbage collection, everything unused.

use super::allocator::Allocator;
use super::block::{Block, BlockIndex, BlockState, NONE};
use super::event::{DeviceEvent, DeviceRange};
use super::stats::StatKind;
use super::{Pool, PoolId};

impl Allocator {
    /// Gives everything unused back to the device.
    pub fn empty_cache(&mut self) {
        self.release_cached();
    }

    /// A block of at least `size` bytes in no list, from new device memory; `None` where the limit or the device
    /// says no.
    pub(super) fn new_block(
        &mut self,
        list: u32,
        size: u64,
        segment_bytes: u64,
    ) -> Option<BlockIndex> {
        let wanted = self.reserved_bytes.saturating_add(segment_bytes);
        if self.limit_bytes.is_some_and(|limit| wanted > limit) {
            return None;
        }
        if self.conf.expandable_segments {
            return self.expand(list, size);
        }
        // What no device has fails before it is rounded up.
        if segment_bytes > self.device.total_bytes {
            return None;
        }
        let addr = self.device.allocate(segment_bytes)?;
        let (pool, stream) = (
            self.lists[list as usize].pool,
            self.lists[list as usize].stream,
        );
        self.reserved_bytes += segment_bytes;
        self.stats.num_device_alloc += 1;
        self.count_segment(pool, segment_bytes);
        self.log(DeviceEvent::SegmentAlloc(DeviceRange {
            addr,
            bytes: segment_bytes,
            stream,
        }));
        Some(self.blocks.insert(Block {
            addr,
            size: segment_bytes,
            prev: NONE,
            next: NONE,
            list,
            range: NONE,
            pool,
            ..Block::default()
        }))
    }

    pub(super) fn count_segment(&mut self, pool: Pool, bytes: u64) {
        self.stats.increase(StatKind::Segment, pool, 1);
        self.stats.increase(StatKind::ReservedBytes, pool, bytes);
        if bytes >= self.max_split {
            self.stats.oversize_segments.count_in();
        }
    }

    pub(super) fn log(&mut self, event: DeviceEvent) {
        if let Some(events) = &mut self.events {
            events.push(event);
        }
    }

    /// Frees the segment that a whole, free block fills.
    pub(super) fn give_back(&mut self, index: BlockIndex) {
        self.drop_free(index);
        let block = self.blocks[index];
        self.blocks.remove(index);
        self.stats.num_device_free += 1;
        self.device.free(block.addr, block.size);
        self.reserved_bytes -= block.size;
        self.stats.decrease(StatKind::Segment, block.pool, 1);
        self.stats
            .decrease(StatKind::ReservedBytes, block.pool, block.size);
        if block.size >= self.max_split {
            self.stats.oversize_segments.count_out();
        }
        let stream = self.lists[block.list as usize].stream;
        self.log(DeviceEvent::SegmentFree(DeviceRange {
            addr: block.addr,
            bytes: block.size,
            stream,
        }));
    }

    /// Releases blocks of at least `max_split` bytes until `size` bytes could fit; whether they were enough.
    pub(super) fn release_oversize(&mut self, list: u32, size: u64) -> bool {
        if self.max_split == u64::MAX {
            return false;
        }
        let wanted = size.max(self.max_split);
        let free = &self.lists[list as usize].free;
        if let Some(at) = free.lower_bound(wanted) {
            let index = free.get(at).index();
            // Stays as it is: memory in an expandable segment is not given back here.
            if self.blocks[index].is_expandable() {
                return false;
            }
            self.give_back_unsplit(index);
            return true;
        }
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        for entry in free.iter().rev() {
            if bytes >= wanted || entry.size() < self.max_split {
                break;
            }
            if !self.blocks[entry.index()].is_expandable() {
                bytes += entry.size();
                chosen.push(entry.index());
            }
        }
        for index in chosen {
            self.give_back_unsplit(index);
        }
        bytes >= wanted
    }

    /// Like [`Self::give_back`], but leaves a piece of a segment alone. PyTorch does not look, and hands cudaFree
    /// an address inside a segment: that is a CUDA error, after which nothing is defined.
    fn give_back_unsplit(&mut self, index: BlockIndex) {
        if !self.blocks[index].is_split() {
            self.give_back(index);
        }
    }

    /// Waits for all streams and releases every unused segment and page of the default pools: the large one, then
    /// the small one. Private pools keep theirs.
    pub(super) fn release_cached(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.release_pool(1);
        self.release_pool(0);
    }

    fn release_pool(&mut self, owner: usize) {
        let mut pages = Vec::new();
        let mut whole = Vec::new();
        for (_, list) in &self.pools[owner].streams {
            for entry in self.lists[*list as usize].free.iter() {
                let block = &self.blocks[entry.index()];
                if block.is_expandable() {
                    pages.push(entry.index());
                } else if !block.is_split() {
                    whole.push(entry.index());
                }
            }
        }
        for index in whole {
            self.give_back(index);
        }
        for index in pages {
            self.unmap(index);
        }
    }

    /// Garbage collection needs both a threshold and a limit.
    #[inline]
    pub(super) fn collects_garbage(&self) -> bool {
        self.limit_bytes.is_some() && self.conf.garbage_collection_threshold > 0.0
    }

    /// Releases whole segments of the large pool, the longest unused first, until usage is below the threshold.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "PyTorch truncates the product, and `as` saturates"
    )]
    pub(super) fn collect_garbage(&mut self) {
        let limit = self.limit_bytes.unwrap_or(u64::MAX) as f64;
        let threshold = (self.conf.garbage_collection_threshold * limit) as u64;
        let target = self.reserved_bytes.saturating_sub(threshold);
        let owner = Pool::Large.stat_index() - 1;
        debug_assert_eq!(self.pools[owner].id, PoolId::default());
        let searches = self.pools[owner].searches;
        let mut candidates: Vec<(BlockIndex, u64)> = Vec::new();
        for (_, list) in &self.pools[owner].streams {
            for entry in self.lists[*list as usize].free.iter() {
                let block = &self.blocks[entry.index()];
                debug_assert_eq!(block.state, BlockState::Free);
                if !block.is_split() {
                    candidates.push((entry.index(), searches - block.age_base));
                }
            }
        }
        let mut released = 0;
        let mut total_age: u64 = candidates.iter().map(|(_, age)| age).sum();
        while released < target && !candidates.is_empty() {
            let mean = total_age as f64 / candidates.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = candidates
                .into_iter()
                .partition(|(_, age)| *age as f64 >= mean);
            if old.is_empty() {
                break;
            }
            for (index, age) in old {
                released += self.blocks[index].size;
                total_age -= age;
                self.give_back(index);
            }
            candidates = young;
        }
    }
}
