//! Segments and blocks, as `torch.cuda.memory_snapshot()` shows them.

use super::allocator::Allocator;
use super::block::{Block, BlockId, BlockIndex, BlockState};
use super::{Pool, PoolId, Stream};

/// One block of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockView {
    /// First address.
    pub addr: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What the caller asked for; 0 for a free block.
    pub requested_bytes: u64,
    /// What it is at the moment; never [`BlockState::Unmapped`].
    pub state: BlockState,
}

/// One segment; of an expandable segment, one contiguous mapped range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentView {
    /// First address.
    pub addr: u64,
    /// Size in bytes: that of its blocks together.
    pub size_bytes: u64,
    /// The stream its blocks are for.
    pub stream: Stream,
    /// The pool it belongs to.
    pub pool: Pool,
    /// The private pool it belongs to, `(0, 0)` for none.
    pub pool_id: PoolId,
    /// Whether it lies in an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, by address.
    pub blocks: Vec<BlockView>,
}

impl Allocator {
    /// All segments, by address.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentView> {
        let mapped = |index: BlockIndex| {
            let block = self.blocks.get(index);
            block.filter(|block| block.state != BlockState::Unmapped)
        };
        let mut segments: Vec<SegmentView> = self
            .blocks
            .iter()
            .filter(|(index, block)| mapped(*index).is_some() && mapped(block.prev).is_none())
            .map(|(index, head)| {
                let blocks: Vec<BlockView> =
                    std::iter::successors(mapped(index), |block| mapped(block.next))
                        .map(Block::view)
                        .collect();
                let list = &self.lists[head.list as usize];
                SegmentView {
                    addr: head.addr,
                    size_bytes: blocks.iter().map(|block| block.size_bytes).sum(),
                    stream: list.stream,
                    pool: list.pool,
                    pool_id: self.pools[list.owner].id,
                    is_expandable: head.is_expandable(),
                    blocks,
                }
            })
            .collect();
        segments.sort_by_key(|segment| segment.addr);
        segments
    }

    /// A block that was handed out.
    #[must_use]
    pub fn block(&self, id: BlockId) -> Option<BlockView> {
        let block = self.blocks.get(id.0).filter(|block| block.size > 0)?;
        matches!(block.state, BlockState::Allocated | BlockState::PendingFree).then(|| block.view())
    }
}

impl Block {
    fn view(&self) -> BlockView {
        let used = matches!(self.state, BlockState::Allocated | BlockState::PendingFree);
        BlockView {
            addr: self.addr,
            size_bytes: self.size,
            requested_bytes: if used { self.requested } else { 0 },
            state: self.state,
        }
    }
}
