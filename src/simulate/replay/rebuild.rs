//! The state before the first event, worked out backwards from the final segments.
//!
//! Going back over an `alloc` makes its block free, over a `free_completed` puts it back, over a `segment_alloc` takes
//! the segment away, and so on. What is not recorded is the size of a block that was freed in the recording but
//! allocated before it: an event tells the requested size only. It is the rounded size, plus what was too small to be
//! split off; the free space behind a block, and the first address handed out there, tell how much that was.

use std::collections::BTreeMap;

use super::super::recording::{Action, DeviceRecording, TraceEvent};
use super::super::restore::{RangeKey, check_segment, is_range};
use super::super::{AllocConf, BlockState, BlockView, Pool, PoolId, SegmentView, Stream};
use super::report::{Mismatch, Mismatches};
use super::run::device_event;
use crate::simulate::{MIN_LARGE_BYTES, SMALL_BYTES};

/// The state before the first event; by default nothing.
#[derive(Default)]
pub(super) struct Initial {
    /// Segments and blocks.
    pub(super) segments: Vec<SegmentView>,
    /// Where each expandable segment's addresses start, as far as any event tells.
    pub(super) lowest: BTreeMap<RangeKey, u64>,
}

/// A segment, or a mapped range of an expandable one.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    end: u64,
    key: RangeKey,
    expandable: bool,
}

/// A block in use.
#[derive(Debug, Clone, Copy)]
struct Live {
    /// Its size, where the final segments show it.
    bytes: Option<u64>,
    requested_bytes: u64,
    state: BlockState,
}

struct Rebuild<'a> {
    conf: &'a AllocConf,
    mapped: BTreeMap<u64, Mapped>,
    live: BTreeMap<u64, Live>,
    lowest: BTreeMap<RangeKey, u64>,
    /// A size that was asked for at each address that events speak of.
    sizes: BTreeMap<u64, u64>,
    mismatches: &'a mut Mismatches,
}

/// The state before the first event. What contradicts itself is counted as a mismatch and left out.
pub(super) fn initial(
    recording: &DeviceRecording,
    conf: &AllocConf,
    mismatches: &mut Mismatches,
) -> Initial {
    let mut rebuild = Rebuild {
        conf,
        mapped: BTreeMap::new(),
        live: BTreeMap::new(),
        lowest: BTreeMap::new(),
        sizes: BTreeMap::new(),
        mismatches,
    };
    if recording.count(Action::SegmentUnmap) > 0 {
        let blocks = recording.events.iter().filter(|event| {
            matches!(
                event.action,
                Action::Alloc | Action::FreeRequested | Action::FreeCompleted
            )
        });
        rebuild.sizes = blocks.map(|event| (event.addr, event.bytes)).collect();
    }
    for recorded in recording.segments.iter().flatten() {
        rebuild.add_final(&recorded.segment);
    }
    for (index, event) in recording.events.iter().enumerate().rev() {
        rebuild.undo(index, event);
    }
    rebuild.sizes_from_first_use(&recording.events);
    rebuild.finish()
}

impl Rebuild<'_> {
    fn add_final(&mut self, segment: &SegmentView) {
        if let Err(error) = check_segment(segment) {
            self.mismatches.add(Mismatch::state(error.to_string()));
            return;
        }
        let key = (segment.pool_id, segment.pool, segment.stream);
        let mapped = Mapped {
            end: segment.addr + segment.size_bytes,
            key,
            expandable: segment.is_expandable,
        };
        self.mapped.insert(segment.addr, mapped);
        if segment.is_expandable {
            self.note_lowest(key, segment.addr);
        }
        for block in segment
            .blocks
            .iter()
            .filter(|b| b.state != BlockState::Free)
        {
            let live = Live {
                bytes: Some(block.size_bytes),
                requested_bytes: block.requested_bytes,
                state: block.state,
            };
            self.live.insert(block.addr, live);
        }
    }

    fn note_lowest(&mut self, key: RangeKey, addr: u64) {
        let lowest = self.lowest.entry(key).or_insert(addr);
        *lowest = addr.min(*lowest);
    }

    fn contradiction(&mut self, index: usize, event: &TraceEvent, found: &str) {
        let expected = format!(
            "{:?} of {} bytes at {:#x}",
            event.action, event.bytes, event.addr
        );
        self.mismatches
            .add(Mismatch::event(index, expected, found.to_owned()));
    }

    fn undo(&mut self, index: usize, event: &TraceEvent) {
        let end = event.addr.saturating_add(event.bytes);
        let pages = device_event(event).is_none() || is_range(event.addr, event.bytes);
        if !pages {
            self.contradiction(index, event, "no segment lies at such an address");
            return;
        }
        match event.action {
            Action::Alloc => {
                if self.live.remove(&event.addr).is_none() {
                    self.contradiction(index, event, "no block in use there afterwards");
                }
            }
            Action::FreeCompleted => {
                let live = Live {
                    bytes: None,
                    requested_bytes: event.bytes,
                    state: BlockState::PendingFree,
                };
                if self.live.insert(event.addr, live).is_some() {
                    self.contradiction(index, event, "a block in use there afterwards");
                }
            }
            Action::FreeRequested => match self.live.get_mut(&event.addr) {
                Some(live) => live.state = BlockState::Allocated,
                None => self.contradiction(index, event, "no block there afterwards"),
            },
            Action::SegmentAlloc => match self.mapped.get(&event.addr) {
                Some(mapped) if mapped.end == end && !mapped.expandable => {
                    self.mapped.remove(&event.addr);
                }
                _ => self.contradiction(index, event, "no such segment afterwards"),
            },
            Action::SegmentFree => {
                let pool = if event.bytes < MIN_LARGE_BYTES {
                    Pool::Small
                } else {
                    Pool::Large
                };
                let mapped = Mapped {
                    end,
                    key: (PoolId::default(), pool, event.stream),
                    expandable: false,
                };
                self.mapped.insert(event.addr, mapped);
            }
            Action::SegmentMap => {
                if !self.take_pages(event.addr, end) {
                    self.contradiction(index, event, "not mapped afterwards");
                }
            }
            Action::SegmentUnmap => self.add_pages(event.addr, end, event.stream),
            Action::Snapshot | Action::OutOfMemory => {}
        }
    }

    /// Takes `[addr, end)` out of the mapped range that holds it.
    fn take_pages(&mut self, addr: u64, end: u64) -> bool {
        let Some((start, mapped)) = self.mapped.range(..=addr).next_back() else {
            return false;
        };
        let (start, mapped) = (*start, *mapped);
        if mapped.end < end || !mapped.expandable || addr >= end {
            return false;
        }
        self.mapped.remove(&start);
        if start < addr {
            self.mapped.insert(
                start,
                Mapped {
                    end: addr,
                    ..mapped
                },
            );
        }
        if end < mapped.end {
            self.mapped.insert(end, mapped);
        }
        self.note_lowest(mapped.key, addr);
        true
    }

    /// Which pool pages belong to: what lay in them tells, else their size.
    fn pool_of_pages(&self, addr: u64, end: u64) -> Pool {
        match self.sizes.range(addr..end).next() {
            Some((_, bytes)) => self.conf.rounded(*bytes).map_or(Pool::Large, Pool::of),
            None if (end - addr).is_multiple_of(self.conf.page_bytes(Pool::Large)) => Pool::Large,
            None => Pool::Small,
        }
    }

    /// Adds `[addr, end)` to the expandable segment it is nearest to, among those of its pool and stream.
    fn add_pages(&mut self, addr: u64, end: u64, stream: Stream) {
        if addr >= end {
            return;
        }
        let distance = |start: u64, mapped: &Mapped| {
            start
                .saturating_sub(end)
                .max(addr.saturating_sub(mapped.end))
        };
        let pool = self.pool_of_pages(addr, end);
        let nearest = self
            .mapped
            .iter()
            .filter(|(_, mapped)| {
                mapped.expandable && (mapped.key.1, mapped.key.2) == (pool, stream)
            })
            .min_by_key(|(start, mapped)| distance(**start, mapped))
            .map(|(_, mapped)| mapped.key);
        let key = nearest.unwrap_or((PoolId::default(), pool, stream));
        self.note_lowest(key, addr);
        let (mut start, mut stop) = (addr, end);
        let before = self.mapped.range(..addr).next_back().map(|(s, m)| (*s, *m));
        if let Some((at, mapped)) = before
            && mapped.end == addr
            && mapped.expandable
            && mapped.key == key
        {
            start = at;
        }
        if let Some(mapped) = self.mapped.get(&end).copied()
            && mapped.expandable
            && mapped.key == key
        {
            self.mapped.remove(&end);
            stop = mapped.end;
        }
        let mapped = Mapped {
            end: stop,
            key,
            expandable: true,
        };
        self.mapped.insert(start, mapped);
    }

    /// Where the space that belongs to the block at `addr` ends at the latest: at the next block in use, or at the
    /// end of its segment.
    fn limit(&self, addr: u64) -> Option<(Mapped, u64)> {
        let (_, mapped) = self.mapped.range(..=addr).next_back()?;
        let next = self
            .live
            .range(addr + 1..)
            .next()
            .map_or(u64::MAX, |(next, _)| *next);
        (addr < mapped.end).then_some((*mapped, mapped.end.min(next)))
    }

    /// Sizes of large blocks with much free space behind them: the first allocation there starts where they end.
    fn sizes_from_first_use(&mut self, events: &[TraceEvent]) {
        let mut open: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (addr, live) in &self.live {
            let Some((mapped, limit)) = self.limit(*addr) else {
                continue;
            };
            let end = self
                .conf
                .rounded(live.requested_bytes)
                .and_then(|n| addr.checked_add(n));
            if let Some(end) = end
                && live.bytes.is_none()
                && mapped.key.1 == Pool::Large
                && !mapped.expandable
                && limit > end.saturating_add(SMALL_BYTES)
            {
                open.insert(*addr, (end, limit));
            }
        }
        for event in events {
            match event.action {
                Action::FreeCompleted => {
                    open.remove(&event.addr);
                }
                Action::Alloc => {
                    let before = open.range(..event.addr).next_back().map(|(a, e)| (*a, *e));
                    let Some((addr, (end, limit))) = before else {
                        continue;
                    };
                    if event.addr >= limit {
                        continue;
                    }
                    open.remove(&addr);
                    let surplus = event.addr.checked_sub(end);
                    if surplus.is_some_and(|surplus| surplus <= SMALL_BYTES)
                        && let Some(live) = self.live.get_mut(&addr)
                    {
                        live.bytes = Some(event.addr - addr);
                    }
                }
                _ => {}
            }
        }
    }

    /// How large a block is whose size no segment shows.
    fn guess(&self, addr: u64, live: Live, mapped: Mapped, limit: u64) -> u64 {
        let room = limit - addr;
        let rounded = self
            .conf
            .rounded(live.requested_bytes)
            .unwrap_or(room)
            .min(room);
        let whole = !mapped.expandable && mapped.key.1 == Pool::Large;
        let unsplit = self.conf.max_split_bytes.is_some_and(|max| rounded >= max);
        if whole && (unsplit || room - rounded <= SMALL_BYTES) {
            room
        } else {
            rounded
        }
    }

    fn finish(self) -> Initial {
        let mut segments: BTreeMap<u64, SegmentView> = BTreeMap::new();
        for (addr, mapped) in &self.mapped {
            let (pool_id, pool, stream) = mapped.key;
            let segment = SegmentView {
                addr: *addr,
                size_bytes: mapped.end - addr,
                stream,
                pool,
                pool_id,
                is_expandable: mapped.expandable,
                blocks: Vec::new(),
            };
            segments.insert(*addr, segment);
        }
        let mut outside = Vec::new();
        for (addr, live) in &self.live {
            let place = self.limit(*addr);
            let segment = segments.range_mut(..=*addr).next_back();
            let (Some((mapped, limit)), Some((_, segment))) = (place, segment) else {
                outside.push(*addr);
                continue;
            };
            let size_bytes = live
                .bytes
                .unwrap_or_else(|| self.guess(*addr, *live, mapped, limit));
            if size_bytes > limit - addr {
                outside.push(*addr);
                continue;
            }
            segment.fill_up_to(*addr);
            segment.blocks.push(BlockView {
                addr: *addr,
                size_bytes,
                requested_bytes: live.requested_bytes.min(size_bytes),
                state: live.state,
            });
        }
        for addr in outside {
            let text =
                format!("block at {addr:#x} in use before the first event lies in no segment");
            self.mismatches.add(Mismatch::state(text));
        }
        let mut segments: Vec<SegmentView> = segments.into_values().collect();
        for segment in &mut segments {
            segment.fill_up_to(segment.addr + segment.size_bytes);
        }
        Initial {
            segments,
            lowest: self.lowest,
        }
    }
}

impl SegmentView {
    /// Ends the blocks with a free one up to `addr`, where there is room.
    fn fill_up_to(&mut self, addr: u64) {
        let end = self
            .blocks
            .last()
            .map_or(self.addr, |b| b.addr + b.size_bytes);
        if end < addr {
            self.blocks.push(BlockView {
                addr: end,
                size_bytes: addr - end,
                requested_bytes: 0,
                state: BlockState::Free,
            });
        }
    }
}
