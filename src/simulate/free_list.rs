//! The free blocks of one pool and stream, ordered by (size, address).
//!
//! A sorted list cut into chunks: a search is two binary searches, an insertion or removal moves at most one chunk's
//! entries. Block sizes and addresses are multiples of 512 B, so size, address and id fit into one `u128` whose
//! order is the wanted one; [`MAX_BYTES`] and [`MAX_ADDRESS`] are the limits of that packing.

use super::{MIN_BLOCK_BYTES, block::BlockIndex};

/// Entries a chunk holds at most; a full one is cut in two.
const CHUNK_ENTRIES: usize = 64;

/// Two neighbouring chunks with no more entries than this together become one.
const JOIN_ENTRIES: usize = 24;

const ADDRESS_BITS: u32 = 55;
const INDEX_BITS: u32 = 32;

/// Largest size of a block: 1 PiB, far above any device.
pub(super) const MAX_BYTES: u64 = (1 << 50) - MIN_BLOCK_BYTES;

/// Addresses are below this.
pub(super) const MAX_ADDRESS: u64 = 1 << 62;

/// One free block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry(u128);

impl Entry {
    #[inline]
    pub(super) fn new(size: u64, addr: u64, index: BlockIndex) -> Self {
        let size = u128::from(size / MIN_BLOCK_BYTES) << (ADDRESS_BITS + INDEX_BITS);
        let addr = u128::from(addr / MIN_BLOCK_BYTES) << INDEX_BITS;
        Self(size | addr | u128::from(index))
    }

    /// The block's index in the slab.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the low bits are the index"
    )]
    pub(super) fn index(self) -> BlockIndex {
        self.0 as BlockIndex
    }

    /// The block's size in bytes.
    #[inline]
    pub(super) fn size(self) -> u64 {
        (self.0 >> (ADDRESS_BITS + INDEX_BITS)) as u64 * MIN_BLOCK_BYTES
    }
}

/// How many of sorted entries are below a key. Written out, so that it is inlined without a branch in its loop.
#[inline]
fn below(entries: &[Entry], key: Entry) -> usize {
    let (mut first, mut count) = (0, entries.len());
    while count > 1 {
        let half = count / 2;
        first = if entries[first + half - 1] < key {
            first + half
        } else {
            first
        };
        count -= half;
    }
    first + usize::from(count == 1 && entries[first] < key)
}

/// Where an entry is; valid until the list changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    chunk: usize,
    offset: usize,
}

/// Free blocks ordered by (size, address).
#[derive(Debug, Clone, Default)]
pub(super) struct FreeList {
    /// Never empty ones.
    chunks: Vec<Vec<Entry>>,
    /// The last entry of each chunk.
    lasts: Vec<Entry>,
}

impl FreeList {
    /// The first entry of at least `size` bytes.
    #[inline]
    pub(super) fn lower_bound(&self, size: u64) -> Option<Position> {
        if size > MAX_BYTES {
            return None;
        }
        self.seek(Entry::new(size, 0, 0))
    }

    #[inline]
    fn seek(&self, key: Entry) -> Option<Position> {
        let chunk = below(&self.lasts, key);
        let entries = self.chunks.get(chunk)?;
        let offset = below(entries, key);
        Some(Position { chunk, offset })
    }

    /// The entry at a position.
    #[inline]
    pub(super) fn get(&self, at: Position) -> Entry {
        self.chunks[at.chunk][at.offset]
    }

    /// The position behind `at`.
    pub(super) fn next(&self, at: Position) -> Option<Position> {
        if at.offset + 1 < self.chunks[at.chunk].len() {
            return Some(Position {
                offset: at.offset + 1,
                ..at
            });
        }
        (at.chunk + 1 < self.chunks.len()).then_some(Position {
            chunk: at.chunk + 1,
            offset: 0,
        })
    }

    /// All entries in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = Entry> {
        self.chunks.iter().flatten().copied()
    }

    #[inline]
    pub(super) fn insert(&mut self, entry: Entry) {
        let chunk = below(&self.lasts, entry);
        // Larger than all: append to the last chunk.
        let chunk = chunk.min(self.chunks.len().saturating_sub(1));
        let Some(entries) = self.chunks.get_mut(chunk) else {
            let mut entries = Vec::with_capacity(CHUNK_ENTRIES);
            entries.push(entry);
            self.chunks.push(entries);
            self.lasts.push(entry);
            return;
        };
        let offset = below(entries, entry);
        entries.insert(offset, entry);
        if offset + 1 == entries.len() {
            self.lasts[chunk] = entry;
        }
        if entries.len() == CHUNK_ENTRIES {
            self.cut(chunk);
        }
    }

    #[cold]
    fn cut(&mut self, chunk: usize) {
        let entries = &mut self.chunks[chunk];
        let mut tail = Vec::with_capacity(CHUNK_ENTRIES);
        tail.extend(entries.drain(CHUNK_ENTRIES / 2..));
        let last = entries[CHUNK_ENTRIES / 2 - 1];
        self.lasts.insert(chunk, last);
        self.chunks.insert(chunk + 1, tail);
    }

    /// Removes an entry that is in the list.
    #[inline]
    pub(super) fn remove(&mut self, entry: Entry) {
        if let Some(at) = self.seek(entry) {
            debug_assert_eq!(self.get(at), entry);
            self.remove_at(at);
        }
    }

    /// Puts `new`, which sorts before, in the place of the entry at a position: one move where both belong to the
    /// same chunk.
    #[inline]
    pub(super) fn lower_at(&mut self, at: Position, new: Entry) {
        let entries = &mut self.chunks[at.chunk];
        let before = &mut entries[..=at.offset];
        if at.chunk > 0 && new < self.lasts[at.chunk - 1] {
            self.remove_at(at);
            self.insert(new);
            return;
        }
        let offset = below(before, new);
        before.copy_within(offset..at.offset, offset + 1);
        before[offset] = new;
        if let Some(last) = entries.last() {
            self.lasts[at.chunk] = *last;
        }
    }

    /// Puts `new`, which sorts behind, in the place of `old`.
    #[inline]
    pub(super) fn raise(&mut self, old: Entry, new: Entry) {
        let Some(at) = self.seek(old) else {
            return;
        };
        if new > self.lasts[at.chunk] {
            self.remove_at(at);
            self.insert(new);
            return;
        }
        let behind = &mut self.chunks[at.chunk][at.offset..];
        let offset = below(behind, new) - 1;
        behind.copy_within(1..=offset, 0);
        behind[offset] = new;
    }

    #[inline]
    pub(super) fn remove_at(&mut self, at: Position) {
        let entries = &mut self.chunks[at.chunk];
        entries.remove(at.offset);
        match entries.last() {
            Some(last) if entries.len() > JOIN_ENTRIES / 2 => self.lasts[at.chunk] = *last,
            _ => self.shrink(at.chunk),
        }
    }

    /// Drops an empty chunk, joins a small one with the next where both are small.
    fn shrink(&mut self, chunk: usize) {
        let Some(last) = self.chunks[chunk].last().copied() else {
            self.chunks.remove(chunk);
            self.lasts.remove(chunk);
            return;
        };
        self.lasts[chunk] = last;
        let next = chunk + 1;
        if next < self.chunks.len()
            && self.chunks[chunk].len() + self.chunks[next].len() <= JOIN_ENTRIES
        {
            let tail = self.chunks.remove(next);
            self.chunks[chunk].extend(tail);
            self.lasts.remove(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Numbers that look random, the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % limit
        }
    }

    #[test]
    fn behaves_like_an_ordered_set() {
        let (mut list, mut set) = (FreeList::default(), BTreeSet::new());
        let mut numbers = Numbers(7);
        for step in 0..60_000_u32 {
            // Grow first, shrink later.
            let grow = numbers.below(100) < if step < 30_000 { 60 } else { 40 };
            let entry = Entry::new(512 * (1 + numbers.below(40)), 512 * numbers.below(5000), 1);
            if grow && set.insert(entry) {
                list.insert(entry);
            } else if let Some(found) = set.range(entry..).next().copied() {
                set.remove(&found);
                let other = Entry::new(512 * (1 + numbers.below(40)), 512 * numbers.below(5000), 2);
                match numbers.below(3) {
                    0 => list.remove(found),
                    _ if set.contains(&other) || other == found => list.remove(found),
                    _ if other < found => {
                        set.insert(other);
                        list.lower_at(list.seek(found).unwrap(), other);
                    }
                    _ => {
                        set.insert(other);
                        list.raise(found, other);
                    }
                }
            }
            let size = 512 * numbers.below(42);
            let key = Entry::new(size, 0, 0);
            let at = list.lower_bound(size);
            assert_eq!(at.map(|p| list.get(p)), set.range(key..).next().copied());
            let second = at.and_then(|p| list.next(p)).map(|p| list.get(p));
            assert_eq!(second, set.range(key..).nth(1).copied());
        }
        assert!(list.iter().eq(set.iter().copied()));
        assert!(list.iter().rev().eq(set.iter().rev().copied()));
    }

    #[test]
    fn entries_keep_size_and_index() {
        let entry = Entry::new(MAX_BYTES, MAX_ADDRESS, u32::MAX);
        assert_eq!((entry.size(), entry.index()), (MAX_BYTES, u32::MAX));
        assert!(Entry::new(512, MAX_ADDRESS, 9) < Entry::new(1024, 0, 0));
    }
}
