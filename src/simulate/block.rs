//! Blocks: pieces of segments, kept in one slab and linked to their neighbours.

use super::{Pool, range::RangeIndex};

/// Index of a block in the slab.
pub(super) type BlockIndex = u32;

/// "No block" or "no range" in a link.
pub(super) const NONE: u32 = u32::MAX;

/// A block that was handed out: what [`super::Allocator::free`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub(super) BlockIndex);

/// What a block is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockState {
    /// In a free list.
    #[default]
    Free,
    /// Handed out.
    Allocated,
    /// Given back by its owner, still waited for on another stream.
    PendingFree,
    /// Addresses of an expandable segment without memory behind them.
    Unmapped,
}

/// One block. A slot of the slab that no block uses has size 0. As large as a line of the cache, so that none lies on
/// two of them.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    /// Lookups its pool had seen when the block became free.
    pub(super) age_base: u64,
    pub(super) prev: BlockIndex,
    pub(super) next: BlockIndex,
    /// Index of its (pool, stream) in [`super::Allocator`].
    pub(super) list: u32,
    /// The expandable segment it lies in.
    pub(super) range: RangeIndex,
    pub(super) state: BlockState,
    pub(super) pool: Pool,
}

impl Block {
    /// Whether it shares its segment with another block.
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    #[inline]
    pub(super) fn is_expandable(&self) -> bool {
        self.range != NONE
    }
}

/// All blocks, with the slots that are free to be used again.
#[derive(Debug, Clone, Default)]
pub(super) struct Slab {
    blocks: Vec<Block>,
    vacant: Vec<BlockIndex>,
}

impl Slab {
    #[inline]
    pub(super) fn insert(&mut self, block: Block) -> BlockIndex {
        if let Some(index) = self.vacant.pop() {
            self.blocks[index as usize] = block;
            return index;
        }
        self.blocks.push(block);
        // The slab outgrows memory long before the index.
        u32::try_from(self.blocks.len() - 1).unwrap_or(NONE)
    }

    #[inline]
    pub(super) fn remove(&mut self, index: BlockIndex) {
        self.blocks[index as usize].size = 0;
        self.vacant.push(index);
    }

    #[inline]
    pub(super) fn get(&self, index: BlockIndex) -> Option<&Block> {
        self.blocks.get(index as usize)
    }

    /// Every block that exists, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BlockIndex, &Block)> {
        (0..).zip(&self.blocks).filter(|(_, block)| block.size > 0)
    }
}

impl std::ops::Index<BlockIndex> for Slab {
    type Output = Block;

    #[inline]
    fn index(&self, index: BlockIndex) -> &Block {
        &self.blocks[index as usize]
    }
}

impl std::ops::IndexMut<BlockIndex> for Slab {
    #[inline]
    fn index_mut(&mut self, index: BlockIndex) -> &mut Block {
        &mut self.blocks[index as usize]
    }
}
