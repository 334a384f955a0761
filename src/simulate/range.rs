//! Expandable segments: one range of addresses for each (pool, stream), mapped page by page.

use super::allocator::Allocator;
use super::block::{Block, BlockIndex, BlockState, NONE};
use super::event::{DeviceEvent, DeviceRange};
use super::free_list::MAX_ADDRESS;
use super::stats::StatKind;

/// Index of an expandable segment.
pub(super) type RangeIndex = u32;

/// A reserved range of addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) page: u64,
}

impl Allocator {
    /// A block of at least `size` bytes in no list, in an expandable segment. Pieces mapped before one that fails
    /// stay mapped and free.
    pub(super) fn expand(&mut self, list: u32, size: u64) -> Option<BlockIndex> {
        let mut index = self.find_range(list, size)?;
        if self.blocks[index].state == BlockState::Unmapped {
            let bytes = self.blocks[index].size.min(size);
            self.map(index, bytes)?;
        }
        while self.blocks[index].size < size {
            let missing = size - self.blocks[index].size;
            let next = self.blocks[index].next;
            let bytes = self.blocks.get(next)?.size.min(missing);
            self.map(next, bytes)?;
            // Mapping joined the block before into this one.
            index = next;
        }
        self.drop_free(index);
        Some(index)
    }

    /// Where `size` bytes can be had by mapping: the lowest unmapped range, with the free block right before it and
    /// all that is free or unmapped behind; else a new segment.
    fn find_range(&mut self, list: u32, size: u64) -> Option<BlockIndex> {
        for unmapped in self.lists[list as usize].unmapped.values() {
            let prev = self.blocks[*unmapped].prev;
            let starts_free = prev != NONE && self.blocks[prev].state == BlockState::Free;
            let start = if starts_free { prev } else { *unmapped };
            if self.has_room(start, size) {
                return Some(start);
            }
        }
        self.new_range(list)
    }

    /// Whether `size` bytes from a block on are free or unmapped.
    fn has_room(&self, start: BlockIndex, size: u64) -> bool {
        let (mut index, mut bytes) = (start, 0);
        while bytes < size {
            match self.blocks.get(index) {
                Some(block) if matches!(block.state, BlockState::Free | BlockState::Unmapped) => {
                    bytes += block.size;
                    index = block.next;
                }
                _ => return false,
            }
        }
        true
    }

    /// Reserves addresses for the whole device and an eighth more, in whole pages.
    fn new_range(&mut self, list: u32) -> Option<BlockIndex> {
        let pool = self.lists[list as usize].pool;
        let page = self.conf.page_bytes(pool);
        let total = self.device.total_bytes;
        let bytes = (total + total / 8).checked_next_multiple_of(page)?;
        if bytes >= MAX_ADDRESS / 4 {
            return None;
        }
        let base = self.device.reserve_range(bytes);
        Some(self.add_range(list, base, page, bytes))
    }

    /// An unmapped segment of `bytes` at `base`.
    pub(super) fn add_range(&mut self, list: u32, base: u64, page: u64, bytes: u64) -> BlockIndex {
        let vacant = self.ranges.iter().position(Option::is_none);
        let slot = vacant.unwrap_or_else(|| {
            self.ranges.push(None);
            self.ranges.len() - 1
        });
        self.ranges[slot] = Some(Range { base, page });
        let index = self.blocks.insert(Block {
            addr: base,
            size: bytes,
            prev: NONE,
            next: NONE,
            list,
            range: u32::try_from(slot).unwrap_or(NONE),
            pool: self.lists[list as usize].pool,
            state: BlockState::Unmapped,
            ..Block::default()
        });
        self.lists[list as usize].unmapped.insert(base, index);
        index
    }

    /// Maps `bytes`, in whole pages, at the start of an unmapped range; all or nothing.
    pub(super) fn map(&mut self, index: BlockIndex, bytes: u64) -> Option<()> {
        let block = self.blocks[index];
        let page = self.ranges.get(block.range as usize)?.as_ref()?.page;
        let bytes = bytes.checked_next_multiple_of(page)?.min(block.size);
        if block.state != BlockState::Unmapped || !self.device.take(bytes) {
            return None;
        }
        self.lists[block.list as usize].unmapped.remove(&block.addr);
        self.blocks[index].state = BlockState::Free;
        if bytes < block.size {
            self.blocks[index].size = bytes;
            let rest = Block {
                addr: block.addr + bytes,
                size: block.size - bytes,
                ..block
            };
            let addr = rest.addr;
            let rest = self.link_new(rest, index, false);
            self.lists[block.list as usize].unmapped.insert(addr, rest);
        }
        let (prev, next) = (self.blocks[index].prev, self.blocks[index].next);
        self.merge(index, prev);
        self.merge(index, next);
        self.add_free(index);
        self.reserved_bytes += bytes;
        self.stats
            .increase(StatKind::ReservedBytes, block.pool, bytes);
        self.stats.num_device_alloc += 1;
        let stream = self.lists[block.list as usize].stream;
        self.log(DeviceEvent::SegmentMap(DeviceRange {
            addr: block.addr,
            bytes,
            stream,
        }));
        Some(())
    }

    /// Start and size of the whole pages that a block of an expandable segment covers.
    pub(super) fn whole_pages(&self, block: &Block) -> Option<(u64, u64)> {
        let range = self.ranges.get(block.range as usize)?.as_ref()?;
        let offset = block.addr - range.base;
        let low = offset.next_multiple_of(range.page);
        let high = (offset + block.size) / range.page * range.page;
        (low < high).then(|| (range.base + low, high - low))
    }

    /// Unmaps every whole page of a free block; a segment left without any is dropped.
    pub(super) fn unmap(&mut self, index: BlockIndex) {
        let block = self.blocks[index];
        let Some((addr, bytes)) = self.whole_pages(&block) else {
            return;
        };
        self.drop_free(index);
        if addr > block.addr {
            let head = Block {
                size: addr - block.addr,
                ..block
            };
            let head = self.link_new(head, index, true);
            self.add_free(head);
        }
        let (end, block_end) = (addr + bytes, block.addr + block.size);
        if block_end > end {
            let tail = Block {
                addr: end,
                size: block_end - end,
                ..block
            };
            let tail = self.link_new(tail, index, false);
            self.add_free(tail);
        }
        let unmapped = &mut self.blocks[index];
        (unmapped.addr, unmapped.size) = (addr, bytes);
        unmapped.state = BlockState::Unmapped;
        let (prev, next) = (unmapped.prev, unmapped.next);
        self.merge(index, prev);
        self.merge(index, next);
        let merged = self.blocks[index];
        self.device.release(bytes);
        self.reserved_bytes -= bytes;
        self.stats
            .decrease(StatKind::ReservedBytes, block.pool, bytes);
        self.stats.num_device_free += 1;
        let list = &mut self.lists[block.list as usize];
        let stream = list.stream;
        if merged.is_split() {
            list.unmapped.insert(merged.addr, index);
        } else {
            self.blocks.remove(index);
            self.ranges[block.range as usize] = None;
        }
        self.log(DeviceEvent::SegmentUnmap(DeviceRange {
            addr,
            bytes,
            stream,
        }));
    }
}
