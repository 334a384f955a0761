//! What a recording says happened, done without asking whether the rules would.
//!
//! Used where the model and a recording disagree, so that one difference does not make all that follows differ, and
//! for what the rules cannot know: a mapping that failed half-way, a release for a reason that left no event.

use super::allocator::Allocator;
use super::block::{Block, BlockId, BlockIndex, BlockState, NONE};
use super::restore::{MAX_TOTAL_BYTES, is_range};
use super::stats::StatKind;
use super::{DeviceRange, MIN_BLOCK_BYTES, Pool, PoolId};

/// Something that could go back to the device.
pub(super) struct Releasable {
    pub(super) id: PoolId,
    pub(super) range: DeviceRange,
    index: BlockIndex,
}

impl Allocator {
    /// What could go back to the device now: whole segments, and whole pages of expandable ones.
    pub(super) fn releasable(&self) -> Vec<Releasable> {
        let mut found = Vec::new();
        for list in &self.lists {
            for entry in list.free.iter() {
                let index = entry.index();
                let block = &self.blocks[index];
                let part = if block.is_expandable() {
                    self.whole_pages(block)
                } else {
                    (!block.is_split()).then_some((block.addr, block.size))
                };
                found.extend(part.map(|(addr, bytes)| Releasable {
                    id: self.pools[list.owner].id,
                    range: DeviceRange {
                        addr,
                        bytes,
                        stream: list.stream,
                    },
                    index,
                }));
            }
        }
        found
    }

    /// Gives back what [`Self::releasable`] just showed.
    pub(super) fn release(&mut self, released: &Releasable) {
        if self.blocks[released.index].is_expandable() {
            self.unmap(released.index);
        } else {
            self.give_back(released.index);
        }
    }

    /// Maps pages, where they are the start of an unmapped range.
    pub(super) fn map_at(&mut self, addr: u64, bytes: u64) -> bool {
        let mut lists = self.lists.iter();
        let found = lists.find_map(|list| list.unmapped.get(&addr).copied());
        found.is_some_and(|index| {
            self.blocks[index].size >= bytes && self.map(index, bytes).is_some()
        })
    }

    /// Adds a segment, all of it free; refuses one that cannot be.
    pub(super) fn add_segment(&mut self, id: PoolId, pool: Pool, range: DeviceRange) -> bool {
        let DeviceRange {
            addr,
            bytes,
            stream,
        } = range;
        if !is_range(addr, bytes) || self.reserved_bytes + bytes > MAX_TOTAL_BYTES {
            return false;
        }
        let list = self.list(id, pool, stream);
        self.device.hold(bytes);
        self.reserved_bytes += bytes;
        self.count_segment(pool, bytes);
        let index = self.blocks.insert(Block {
            addr,
            size: bytes,
            prev: NONE,
            next: NONE,
            list,
            range: NONE,
            pool,
            ..Block::default()
        });
        self.add_free(index);
        true
    }

    /// Hands out a block at `addr`, where that is free.
    pub(super) fn alloc_at(&mut self, addr: u64, request: u64) -> Option<BlockId> {
        let size = self.conf.rounded(request)?;
        let end = addr.checked_add(size)?;
        if request == 0 || !addr.is_multiple_of(MIN_BLOCK_BYTES) {
            return None;
        }
        let (index, _) = self.blocks.iter().find(|(_, block)| {
            block.state == BlockState::Free && block.addr <= addr && end <= block.addr + block.size
        })?;
        self.drop_free(index);
        let block = self.blocks[index];
        if block.addr < addr {
            self.cut_head(index, addr - block.addr);
        }
        Some(BlockId(self.hand_out_whole(index, size, request)))
    }

    /// Makes the first `bytes` of a free block in no list a free block of their own.
    fn cut_head(&mut self, index: BlockIndex, bytes: u64) {
        let block = self.blocks[index];
        let head = self.link_new(
            Block {
                size: bytes,
                ..block
            },
            index,
            true,
        );
        self.add_free(head);
        let rest = &mut self.blocks[index];
        rest.addr += bytes;
        rest.size -= bytes;
        if !block.is_expandable() {
            self.stats.increase(StatKind::InactiveSplit, block.pool, 1);
            if !block.is_split() {
                self.stats.increase(StatKind::InactiveSplit, block.pool, 1);
                self.stats
                    .increase(StatKind::InactiveSplitBytes, block.pool, block.size);
            }
        }
    }
}
