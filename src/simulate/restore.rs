//! An allocator that starts with segments and blocks it already holds.

use std::collections::BTreeMap;

use super::allocator::Allocator;
use super::block::{Block, BlockId, BlockIndex, BlockState, NONE};
use super::free_list::{MAX_ADDRESS, MAX_BYTES};
use super::stats::StatKind;
use super::{BlockView, MIN_BLOCK_BYTES, Pool, PoolId, SegmentView, Stream};

/// Bytes that segments may hold together: more than any machine has, far from overflow.
pub(super) const MAX_TOTAL_BYTES: u64 = 1 << 58;

/// Why segments cannot be an allocator's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// An address or size that no block has.
    #[error(
        "block at {addr:#x}: {size_bytes} bytes is not a size from 512 B to 1 PiB in steps of 512 at such an address"
    )]
    Unaligned {
        /// The block's address.
        addr: u64,
        /// Its size.
        size_bytes: u64,
    },
    /// The blocks of a segment leave a gap, overlap, or do not add up to it.
    #[error("segment at {segment:#x}: a block was expected at {expected:#x}, found {found:#x}")]
    Uncovered {
        /// The segment's address.
        segment: u64,
        /// Where the next block, or the end, should be.
        expected: u64,
        /// Where it is.
        found: u64,
    },
    /// Two segments share addresses.
    #[error("segment at {addr:#x} starts before the one at {before:#x} ends")]
    Overlap {
        /// The later segment.
        addr: u64,
        /// The earlier segment.
        before: u64,
    },
    /// A block holds more than its size.
    #[error("block at {addr:#x}: {requested_bytes} bytes requested of a block of {size_bytes}")]
    Requested {
        /// The block's address.
        addr: u64,
        /// What was asked for.
        requested_bytes: u64,
        /// The block's size.
        size_bytes: u64,
    },
    /// More memory than any machine has.
    #[error("segments of more than {MAX_TOTAL_BYTES} bytes together")]
    TooMuch,
}

/// Which expandable segment: there is one for each pool and stream.
pub(super) type RangeKey = (PoolId, Pool, Stream);

/// Whether a segment or page can lie there.
pub(super) fn is_range(addr: u64, bytes: u64) -> bool {
    let aligned = addr.is_multiple_of(MIN_BLOCK_BYTES) && bytes.is_multiple_of(MIN_BLOCK_BYTES);
    aligned && (1..=MAX_BYTES).contains(&bytes) && addr < MAX_ADDRESS
}

/// What is wrong with a segment's own addresses and blocks, if anything.
pub(super) fn check_segment(segment: &SegmentView) -> Result<(), RestoreError> {
    let mut expected = segment.addr;
    for block in &segment.blocks {
        if !is_range(block.addr, block.size_bytes) {
            return Err(RestoreError::Unaligned {
                addr: block.addr,
                size_bytes: block.size_bytes,
            });
        }
        if block.addr != expected {
            return Err(RestoreError::Uncovered {
                segment: segment.addr,
                expected,
                found: block.addr,
            });
        }
        if block.state != BlockState::Free && block.requested_bytes > block.size_bytes {
            return Err(RestoreError::Requested {
                addr: block.addr,
                requested_bytes: block.requested_bytes,
                size_bytes: block.size_bytes,
            });
        }
        expected += block.size_bytes;
    }
    let end = segment.addr.saturating_add(segment.size_bytes);
    if segment.blocks.is_empty() || expected != end {
        return Err(RestoreError::Uncovered {
            segment: segment.addr,
            expected: end,
            found: expected,
        });
    }
    Ok(())
}

/// Segments by address, each checked, none overlapping another.
fn check(segments: &[SegmentView]) -> Result<Vec<&SegmentView>, RestoreError> {
    let mut sorted: Vec<&SegmentView> = segments.iter().collect();
    sorted.sort_by_key(|segment| segment.addr);
    let mut total: u64 = 0;
    for segment in &sorted {
        check_segment(segment)?;
        total = total.saturating_add(segment.size_bytes);
    }
    if total > MAX_TOTAL_BYTES {
        return Err(RestoreError::TooMuch);
    }
    for pair in sorted.windows(2) {
        if let [before, after] = pair
            && before.addr + before.size_bytes > after.addr
        {
            return Err(RestoreError::Overlap {
                addr: after.addr,
                before: before.addr,
            });
        }
    }
    Ok(sorted)
}

impl Allocator {
    /// Takes over segments and blocks, which must not overlap what it holds; returns the blocks that are in use, by
    /// address. `lowest` says where the address ranges of expandable segments start, where that is below what is
    /// mapped.
    pub(super) fn restore(
        &mut self,
        segments: &[SegmentView],
        lowest: &BTreeMap<RangeKey, u64>,
    ) -> Result<Vec<(u64, BlockId)>, RestoreError> {
        let sorted = check(segments)?;
        let mut in_use = Vec::new();
        let mut expandable: BTreeMap<RangeKey, Vec<&SegmentView>> = BTreeMap::new();
        for segment in sorted {
            let key = (segment.pool_id, segment.pool, segment.stream);
            if segment.is_expandable {
                expandable.entry(key).or_default().push(segment);
                continue;
            }
            let list = self.list(segment.pool_id, segment.pool, segment.stream);
            self.reserved_bytes += segment.size_bytes;
            self.device.hold(segment.size_bytes);
            self.count_segment(segment.pool, segment.size_bytes);
            let mut tail = NONE;
            for block in &segment.blocks {
                tail = self.restore_block(block, list, NONE, tail, &mut in_use);
            }
            self.count_inactive(tail);
        }
        for (key, mapped) in expandable {
            let base = lowest.get(&key).copied();
            self.restore_range(key, base, &mapped, &mut in_use);
        }
        Ok(in_use)
    }

    /// One expandable segment with its mapped ranges, the addresses between them unmapped.
    fn restore_range(
        &mut self,
        (id, pool, stream): RangeKey,
        base: Option<u64>,
        mapped: &[&SegmentView],
        in_use: &mut Vec<(u64, BlockId)>,
    ) {
        let Some(first) = mapped.first().map(|segment| segment.addr) else {
            return;
        };
        let page = self.conf.page_bytes(pool);
        let base = base.map_or(first, |base| base.min(first));
        let list = self.list(id, pool, stream);
        let total = self.device.total_bytes;
        let end = mapped
            .iter()
            .map(|s| s.addr + s.size_bytes)
            .max()
            .unwrap_or(first);
        let bytes = (total + total / 8).saturating_add(end - base);
        let bytes = bytes.checked_next_multiple_of(page).unwrap_or(bytes);
        // The whole range as one unmapped block first, then cut up from its start.
        let whole = self.add_range(list, base, page, bytes);
        let range = self.blocks[whole].range;
        self.lists[list as usize].unmapped.remove(&base);
        self.blocks.remove(whole);
        let (mut tail, mut at) = (NONE, base);
        for segment in mapped {
            tail = self.restore_unmapped(list, range, tail, at, segment.addr);
            for block in &segment.blocks {
                tail = self.restore_block(block, list, range, tail, in_use);
            }
            at = segment.addr + segment.size_bytes;
            self.reserved_bytes += segment.size_bytes;
            self.device.hold(segment.size_bytes);
            self.stats
                .increase(StatKind::ReservedBytes, pool, segment.size_bytes);
        }
        self.restore_unmapped(list, range, tail, at, base.saturating_add(bytes));
    }

    fn restore_unmapped(
        &mut self,
        list: u32,
        range: u32,
        tail: BlockIndex,
        from: u64,
        to: u64,
    ) -> BlockIndex {
        if from >= to {
            return tail;
        }
        let index = self.append(
            tail,
            Block {
                addr: from,
                size: to - from,
                list,
                range,
                pool: self.lists[list as usize].pool,
                state: BlockState::Unmapped,
                ..Block::default()
            },
        );
        self.lists[list as usize].unmapped.insert(from, index);
        index
    }

    fn restore_block(
        &mut self,
        block: &BlockView,
        list: u32,
        range: u32,
        tail: BlockIndex,
        in_use: &mut Vec<(u64, BlockId)>,
    ) -> BlockIndex {
        let pool = self.lists[list as usize].pool;
        let index = self.append(
            tail,
            Block {
                addr: block.addr,
                size: block.size_bytes,
                requested: block.requested_bytes,
                list,
                range,
                pool,
                state: block.state,
                ..Block::default()
            },
        );
        match block.state {
            BlockState::Allocated => {
                self.count_allocated(pool, block.size_bytes, block.requested_bytes);
            }
            BlockState::PendingFree => {
                self.stats.begin_waiting();
                self.stats.increase(StatKind::Active, pool, 1);
                self.stats
                    .increase(StatKind::ActiveBytes, pool, block.size_bytes);
                self.stats
                    .increase(StatKind::RequestedBytes, pool, block.requested_bytes);
            }
            BlockState::Free | BlockState::Unmapped => {
                self.blocks[index].requested = 0;
                self.blocks[index].state = BlockState::Free;
                self.add_free(index);
                return index;
            }
        }
        in_use.push((block.addr, BlockId(index)));
        index
    }

    /// Puts a block behind the last one of its segment.
    fn append(&mut self, tail: BlockIndex, block: Block) -> BlockIndex {
        let index = self.blocks.insert(Block {
            prev: tail,
            next: NONE,
            ..block
        });
        if tail != NONE {
            self.blocks[tail].next = index;
        }
        index
    }

    /// Counts the free pieces of a segment that is not expandable, from its last block on.
    fn count_inactive(&mut self, tail: BlockIndex) {
        let mut index = tail;
        while let Some(block) = self.blocks.get(index).copied() {
            if block.state == BlockState::Free && block.is_split() {
                self.stats.increase(StatKind::InactiveSplit, block.pool, 1);
                self.stats
                    .increase(StatKind::InactiveSplitBytes, block.pool, block.size);
            }
            index = block.prev;
        }
    }
}
