//! The pools, and which list of free blocks a stream has in each.

use std::collections::BTreeMap;

use super::allocator::Allocator;
use super::block::{BlockIndex, NONE};
use super::free_list::FreeList;
use super::{Pool, PoolId, Stream};

/// Free blocks and unmapped ranges of one (private pool, pool, stream).
#[derive(Debug, Clone)]
pub(super) struct StreamList {
    pub(super) stream: Stream,
    pub(super) pool: Pool,
    /// Index into [`Allocator::pools`].
    pub(super) owner: usize,
    pub(super) free: FreeList,
    pub(super) unmapped: BTreeMap<u64, BlockIndex>,
}

/// One pool: its streams in order, and how often it was searched.
#[derive(Debug, Clone)]
pub(super) struct StreamLists {
    pub(super) id: PoolId,
    pub(super) pool: Pool,
    /// Stream and index into [`Allocator::lists`], ordered by stream.
    pub(super) streams: Vec<(Stream, u32)>,
    pub(super) searches: u64,
}

impl Allocator {
    /// Index of the list of a (private pool, pool, stream), made where it is new.
    #[inline]
    pub(super) fn list(&mut self, id: PoolId, pool: Pool, stream: Stream) -> u32 {
        let owner = if id == PoolId::default() {
            pool.stat_index() - 1
        } else {
            self.private_pool(id, pool)
        };
        let streams = &self.pools[owner].streams;
        match streams.iter().find(|(known, _)| *known == stream) {
            Some((_, list)) => *list,
            None => self.new_list(owner, stream),
        }
    }

    fn private_pool(&mut self, id: PoolId, pool: Pool) -> usize {
        let known = self.pools.iter().position(|p| p.id == id && p.pool == pool);
        known.unwrap_or_else(|| {
            self.pools.push(StreamLists {
                id,
                pool,
                streams: Vec::new(),
                searches: 0,
            });
            self.pools.len() - 1
        })
    }

    #[cold]
    fn new_list(&mut self, owner: usize, stream: Stream) -> u32 {
        let list = u32::try_from(self.lists.len()).unwrap_or(NONE);
        let pool = &mut self.pools[owner];
        self.lists.push(StreamList {
            stream,
            pool: pool.pool,
            owner,
            free: FreeList::default(),
            unmapped: BTreeMap::new(),
        });
        let at = pool.streams.partition_point(|(known, _)| *known < stream);
        pool.streams.insert(at, (stream, list));
        list
    }
}
