//! Handing out and taking back blocks: lookup, splitting, merging, and the order of attempts when memory is short.

use super::block::{Block, BlockId, BlockIndex, BlockState, NONE, Slab};
use super::conf::AllocConf;
use super::device::{Device, DeviceLimits, Placement};
use super::event::{DeviceEvent, NotAllocated, OutOfMemory};
use super::free_list::{Entry, Position};
use super::lists::{StreamList, StreamLists};
use super::range::Range;
use super::stats::{StatKind, Stats};
use super::{MIN_BLOCK_BYTES, Pool, PoolId, SMALL_BYTES, Stream};

/// A free block, and where it is in its list if it is in one.
#[derive(Clone, Copy)]
struct Found {
    index: BlockIndex,
    at: Option<Position>,
}

/// The caching allocator of one device.
#[derive(Debug, Clone)]
pub struct Allocator {
    pub(super) conf: AllocConf,
    /// `conf.max_split_bytes`, with "unlimited" as the largest number.
    pub(super) max_split: u64,
    pub(super) device: Device,
    pub(super) blocks: Slab,
    pub(super) lists: Vec<StreamList>,
    pub(super) pools: Vec<StreamLists>,
    pub(super) ranges: Vec<Option<Range>>,
    pub(super) stats: Stats,
    /// What the process may hold from the device, where that is limited.
    pub(super) limit_bytes: Option<u64>,
    pub(super) reserved_bytes: u64,
    pub(super) events: Option<Vec<DeviceEvent>>,
}

impl Allocator {
    /// An allocator that holds nothing yet.
    #[must_use]
    pub fn new(conf: AllocConf, limits: DeviceLimits, placement: Placement) -> Self {
        let fraction = conf.per_process_memory_fraction;
        let pools = [Pool::Small, Pool::Large].map(|pool| StreamLists {
            id: PoolId::default(),
            pool,
            streams: Vec::new(),
            searches: 0,
        });
        let mut allocator = Self {
            max_split: conf.max_split_bytes.unwrap_or(u64::MAX),
            conf,
            device: Device::new(limits, placement),
            blocks: Slab::default(),
            lists: Vec::new(),
            pools: pools.into(),
            ranges: Vec::new(),
            stats: Stats::default(),
            limit_bytes: None,
            reserved_bytes: 0,
            events: None,
        };
        allocator.set_memory_fraction(fraction);
        allocator
    }

    /// Changes the settings at run time, as `torch.cuda.memory._set_allocator_settings` does.
    pub fn configure(&mut self, conf: AllocConf) {
        self.max_split = conf.max_split_bytes.unwrap_or(u64::MAX);
        self.conf = conf;
    }

    /// The settings in force.
    #[must_use]
    pub fn conf(&self) -> &AllocConf {
        &self.conf
    }

    /// Limits the process to a share of the device; 1 and more is no limit, as in PyTorch.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "PyTorch truncates the product, and `as` saturates"
    )]
    pub fn set_memory_fraction(&mut self, fraction: f64) {
        let bytes = (fraction * self.device.total_bytes as f64) as u64;
        self.limit_bytes = (fraction < 1.0).then_some(bytes);
    }

    /// Sets what the device offers from now on; what is held already stays.
    pub fn set_device_limits(&mut self, limits: DeviceLimits) {
        self.device.total_bytes = limits.total_bytes.min(DeviceLimits::UNLIMITED.total_bytes);
    }

    /// Statistics and counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Statistics, to reset peaks or totals.
    pub fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// Bytes taken from the device, in the driver's granularity.
    #[must_use]
    pub fn device_used_bytes(&self) -> u64 {
        self.device.used_bytes
    }

    /// The addresses that new segments get, to add to a recording's.
    pub fn placement_mut(&mut self) -> &mut Placement {
        &mut self.device.placement
    }

    /// Keeps what is asked of the device from now on, for [`Self::take_device_events`].
    pub fn record_device_events(&mut self) {
        self.events.get_or_insert_default();
    }

    /// What was asked of the device since the last call.
    pub fn take_device_events(&mut self) -> Vec<DeviceEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Allocates from the default pool; a request of 0 bytes gets no block and changes nothing.
    #[inline]
    pub fn alloc(&mut self, request: u64, stream: Stream) -> Result<Option<BlockId>, OutOfMemory> {
        self.alloc_in(PoolId::default(), request, stream)
    }

    /// Allocates from a private pool, which is created where there is none yet.
    #[inline]
    pub fn alloc_in(
        &mut self,
        id: PoolId,
        request: u64,
        stream: Stream,
    ) -> Result<Option<BlockId>, OutOfMemory> {
        if request == 0 {
            return Ok(None);
        }
        let rounded = self.conf.rounded(request);
        let sizes = rounded.and_then(|size| Some((size, self.conf.segment_bytes(size)?)));
        let Some((size, segment_bytes)) = sizes else {
            return Err(self.out_of_memory(request, request));
        };
        let list = self.list(id, Pool::of(size), stream);
        let found = match self.find_free(list, size) {
            Some(found) => found,
            None => match self.acquire(list, size, segment_bytes) {
                Some(index) => Found { index, at: None },
                None => return Err(self.out_of_memory(request, segment_bytes)),
            },
        };
        Ok(Some(BlockId(self.hand_out(found, size, request))))
    }

    /// What [`Self::alloc`] does where no free block fits, in PyTorch's order.
    #[cold]
    fn acquire(&mut self, list: u32, size: u64, segment_bytes: u64) -> Option<BlockIndex> {
        if self.collects_garbage() {
            self.collect_garbage();
        }
        if let Some(index) = self.new_block(list, size, segment_bytes) {
            return Some(index);
        }
        if self.release_oversize(list, size)
            && let Some(index) = self.new_block(list, size, segment_bytes)
        {
            return Some(index);
        }
        self.release_cached();
        self.stats.num_alloc_retries += 1;
        let index = self.new_block(list, size, segment_bytes);
        if index.is_none() {
            self.stats.num_ooms += 1;
        }
        index
    }

    fn out_of_memory(&self, requested_bytes: u64, tried_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            requested_bytes,
            tried_bytes,
            reserved_bytes: self.reserved_bytes,
            limit_bytes: self.limit_bytes.unwrap_or(self.device.total_bytes),
        }
    }

    /// Takes a block back at once: [`Self::request_free`] and [`Self::complete_free`].
    #[inline]
    pub fn free(&mut self, id: BlockId) -> Result<(), NotAllocated> {
        self.expect_state(id, BlockState::Allocated)?;
        self.give_up(id.0);
        self.put_back(id.0);
        Ok(())
    }

    /// Takes note that the owner gave a block up; it stays active until [`Self::complete_free`], because another
    /// stream may still use it.
    pub fn request_free(&mut self, id: BlockId) -> Result<(), NotAllocated> {
        self.expect_state(id, BlockState::Allocated)?;
        self.stats.begin_waiting();
        self.blocks[id.0].state = BlockState::PendingFree;
        self.give_up(id.0);
        Ok(())
    }

    /// Puts a block that was given up back into its pool.
    pub fn complete_free(&mut self, id: BlockId) -> Result<(), NotAllocated> {
        self.expect_state(id, BlockState::PendingFree)?;
        self.put_back(id.0);
        Ok(())
    }

    #[inline]
    fn expect_state(&self, id: BlockId, state: BlockState) -> Result<(), NotAllocated> {
        match self.blocks.get(id.0) {
            Some(block) if block.state == state && block.size > 0 => Ok(()),
            _ => Err(NotAllocated(id)),
        }
    }

    #[inline]
    fn give_up(&mut self, index: BlockIndex) {
        let Block { pool, size, .. } = self.blocks[index];
        self.stats.give_up(pool, size);
        if size >= self.max_split {
            self.stats.oversize_allocations.count_out();
        }
    }

    #[inline]
    fn put_back(&mut self, index: BlockIndex) {
        let block = self.blocks[index];
        let pool = block.pool;
        let before = self.free_neighbour(block.prev);
        let behind = self.free_neighbour(block.next);
        let size = self.join_free(index, before, behind);
        if !block.is_expandable() {
            let split = self.blocks[index].is_split();
            let merged_count = u64::from(before.is_some()) + u64::from(behind.is_some());
            let free_bytes = if split { size } else { 0 };
            let stats = &mut self.stats;
            stats.change(
                StatKind::InactiveSplit,
                pool,
                merged_count,
                u64::from(split),
            );
            stats.change(
                StatKind::InactiveSplitBytes,
                pool,
                size - block.size,
                free_bytes,
            );
        }
        self.stats.put_back(pool, block.size, block.requested);
    }

    #[inline]
    fn free_neighbour(&self, index: BlockIndex) -> Option<(BlockIndex, Entry)> {
        let block = self.blocks.get(index)?;
        (block.state == BlockState::Free)
            .then(|| (index, Entry::new(block.size, block.addr, index)))
    }

    /// Makes one free block of a block and its free neighbours; returns its size.
    #[inline]
    fn join_free(
        &mut self,
        index: BlockIndex,
        before: Option<(BlockIndex, Entry)>,
        behind: Option<(BlockIndex, Entry)>,
    ) -> u64 {
        let mut block = self.blocks[index];
        if let Some((prev, _)) = before {
            let removed = self.blocks[prev];
            (block.addr, block.prev) = (removed.addr, removed.prev);
            block.size += removed.size;
            if removed.prev != NONE {
                self.blocks[removed.prev].next = index;
            }
            self.blocks.remove(prev);
        }
        if let Some((next, _)) = behind {
            let removed = self.blocks[next];
            block.next = removed.next;
            block.size += removed.size;
            if removed.next != NONE {
                self.blocks[removed.next].prev = index;
            }
            self.blocks.remove(next);
        }
        let list = &mut self.lists[block.list as usize];
        block.state = BlockState::Free;
        block.age_base = self.pools[list.owner].searches;
        self.blocks[index] = block;
        let entry = Entry::new(block.size, block.addr, index);
        match (before, behind) {
            (None, None) => list.free.insert(entry),
            (Some((_, old)), None) | (None, Some((_, old))) => list.free.raise(old, entry),
            (Some((_, old)), Some((_, other))) => {
                list.free.remove(other);
                list.free.raise(old, entry);
            }
        }
        block.size
    }

    /// The free block to hand out, still in its list.
    #[inline]
    fn find_free(&mut self, list: u32, size: u64) -> Option<Found> {
        if self.collects_garbage() {
            let owner = self.lists[list as usize].owner;
            self.pools[owner].searches += 1;
        }
        let free = &self.lists[list as usize].free;
        let mut at = free.lower_bound(size)?;
        if !self.ranges.is_empty() && self.blocks[free.get(at).index()].is_expandable() {
            at = self.find_in_ranges(list, at)?;
        }
        let entry = free.get(at);
        let found = entry.size();
        if size < self.max_split {
            if found >= self.max_split {
                return None;
            }
        } else if found >= size.saturating_add(self.conf.max_non_split_rounding_bytes) {
            return None;
        }
        Some(Found {
            index: entry.index(),
            at: Some(at),
        })
    }

    /// The lookup where the best fit lies in an expandable segment: the block that can grow least, or, with
    /// expandable segments off, the first that lies in none.
    fn find_in_ranges(&self, list: u32, mut at: Position) -> Option<Position> {
        let free = &self.lists[list as usize].free;
        let block = |at: Position| &self.blocks[free.get(at).index()];
        while block(at).is_expandable() {
            let next = free.next(at);
            if self.conf.expandable_segments {
                match next {
                    Some(next) if self.reach(block(next)) < self.reach(block(at)) => at = next,
                    _ => break,
                }
            } else {
                at = next?;
            }
        }
        Some(at)
    }

    /// How large a free block can grow: with the unmapped range behind it.
    fn reach(&self, block: &Block) -> u64 {
        match self.blocks.get(block.next) {
            Some(next) if next.state == BlockState::Unmapped => block.size + next.size,
            _ => block.size,
        }
    }

    /// Whether what is left of a block goes back to the pool.
    #[inline]
    fn should_split(&self, block: &Block, size: u64) -> bool {
        let rest = block.size - size;
        if block.pool == Pool::Small || self.conf.expandable_segments {
            rest >= MIN_BLOCK_BYTES
        } else {
            size < self.max_split && rest > SMALL_BYTES
        }
    }

    /// [`Self::hand_out`] of a free block that is in no list.
    pub(super) fn hand_out_whole(
        &mut self,
        index: BlockIndex,
        size: u64,
        request: u64,
    ) -> BlockIndex {
        self.hand_out(Found { index, at: None }, size, request)
    }

    /// Cuts a free block to size and marks it as handed out.
    #[inline]
    fn hand_out(&mut self, found: Found, size: u64, request: u64) -> BlockIndex {
        let block = self.blocks[found.index];
        let (pool, was_split) = (block.pool, block.is_split());
        let (mut index, mut bytes) = (found.index, block.size);
        if self.should_split(&block, size) {
            (index, bytes) = (self.split_off_head(found, size, request), size);
            if !block.is_expandable() {
                if was_split {
                    self.stats
                        .decrease(StatKind::InactiveSplitBytes, pool, size);
                } else {
                    let rest = block.size - size;
                    self.stats
                        .increase(StatKind::InactiveSplitBytes, pool, rest);
                    self.stats.increase(StatKind::InactiveSplit, pool, 1);
                }
            }
        } else {
            if let Some(at) = found.at {
                self.lists[block.list as usize].free.remove_at(at);
            }
            if was_split && !block.is_expandable() {
                self.stats
                    .decrease(StatKind::InactiveSplitBytes, pool, bytes);
                self.stats.decrease(StatKind::InactiveSplit, pool, 1);
            }
            let block = &mut self.blocks[index];
            (block.state, block.requested) = (BlockState::Allocated, request);
        }
        self.count_allocated(pool, bytes, request);
        index
    }

    #[inline]
    pub(super) fn count_allocated(&mut self, pool: Pool, bytes: u64, request: u64) {
        self.stats.hand_out(pool, bytes, request);
        if bytes >= self.max_split {
            self.stats.oversize_allocations.count_in();
        }
    }

    /// Splits `size` bytes off the low end of a free block and returns them, allocated; the rest is free.
    #[inline]
    fn split_off_head(&mut self, found: Found, size: u64, requested: u64) -> BlockIndex {
        let rest = found.index;
        let tail = &mut self.blocks[rest];
        let block = *tail;
        let list = &mut self.lists[block.list as usize];
        tail.addr += size;
        tail.size -= size;
        tail.age_base = self.pools[list.owner].searches;
        let entry = Entry::new(tail.size, tail.addr, rest);
        match found.at {
            Some(at) => list.free.lower_at(at, entry),
            None => list.free.insert(entry),
        }
        let head = self.blocks.insert(Block {
            size,
            requested,
            next: rest,
            state: BlockState::Allocated,
            ..block
        });
        self.blocks[rest].prev = head;
        if block.prev != NONE {
            self.blocks[block.prev].next = head;
        }
        head
    }

    #[inline]
    pub(super) fn add_free(&mut self, index: BlockIndex) {
        let block = &mut self.blocks[index];
        let list = &mut self.lists[block.list as usize];
        block.age_base = self.pools[list.owner].searches;
        list.free.insert(Entry::new(block.size, block.addr, index));
    }

    #[inline]
    pub(super) fn drop_free(&mut self, index: BlockIndex) {
        let block = &self.blocks[index];
        let list = &mut self.lists[block.list as usize];
        list.free.remove(Entry::new(block.size, block.addr, index));
    }

    /// Joins the neighbour `src` into `dst` if both are free, or both unmapped; returns its size, or 0.
    #[inline]
    pub(super) fn merge(&mut self, dst: BlockIndex, src: BlockIndex) -> u64 {
        if src == NONE {
            return 0;
        }
        let neighbour = self.blocks[src];
        if neighbour.state != self.blocks[dst].state {
            return 0;
        }
        match neighbour.state {
            BlockState::Free => self.drop_free(src),
            BlockState::Unmapped => {
                self.lists[neighbour.list as usize]
                    .unmapped
                    .remove(&neighbour.addr);
            }
            BlockState::Allocated | BlockState::PendingFree => return 0,
        }
        if neighbour.next == dst {
            let block = &mut self.blocks[dst];
            (block.addr, block.prev) = (neighbour.addr, neighbour.prev);
            if neighbour.prev != NONE {
                self.blocks[neighbour.prev].next = dst;
            }
        } else {
            self.blocks[dst].next = neighbour.next;
            if neighbour.next != NONE {
                self.blocks[neighbour.next].prev = dst;
            }
        }
        self.blocks[dst].size += neighbour.size;
        self.blocks.remove(src);
        neighbour.size
    }

    /// `block`s put in the middle of a chain: `new` right before (`true`) or behind `index`.
    pub(super) fn link_new(&mut self, block: Block, index: BlockIndex, before: bool) -> BlockIndex {
        let old = self.blocks[index];
        let (prev, next) = if before {
            (old.prev, index)
        } else {
            (index, old.next)
        };
        let new = self.blocks.insert(Block {
            prev,
            next,
            ..block
        });
        if prev != NONE {
            self.blocks[prev].next = new;
        }
        if next != NONE {
            self.blocks[next].prev = new;
        }
        new
    }
}
