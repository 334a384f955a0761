//! Following a recording, event by event.

use std::collections::HashMap;
use std::ops::Range;

use super::super::allocator::Allocator;
use super::super::conf::AllocConf;
use super::super::device::{DeviceLimits, Placement, RecordedPlaces};
use super::super::event::{DeviceEvent, DeviceRange};
use super::super::forced::Releasable;
use super::super::recording::{
    Action, DeviceRecording, PrivatePools, RecordedSegment, Stacks, TraceEvent,
};
use super::super::stats::Stats;
use super::super::{BlockId, BlockState, BlockView, Pool, PoolId};
use super::analysis;
use super::rebuild::{self, Initial};
use super::report::{Mismatch, Mismatches, OutOfMemoryEvent, Peak, Peaks};

/// A recording that was followed to its end.
pub(super) struct Run {
    pub(super) initial: Initial,
    pub(super) allocator: Allocator,
    pub(super) mismatches: Mismatches,
    pub(super) peak_events: PeakEvents,
    /// Sizes of the blocks handed out, by event.
    pub(super) block_bytes: HashMap<usize, u64>,
    pub(super) first_oom: Option<OutOfMemoryEvent>,
    pub(super) segments_equal: Option<bool>,
    pub(super) blocks_equal: Option<bool>,
}

/// Which events reached the peaks; none where they were there at the start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PeakEvents {
    pub(super) requested: Option<usize>,
    pub(super) allocated: Option<usize>,
    pub(super) active: Option<usize>,
    pub(super) reserved: Option<usize>,
}

/// Segments that a recorded event is about, as the model's own events say it.
pub(super) fn device_event(event: &TraceEvent) -> Option<DeviceEvent> {
    let range = DeviceRange {
        addr: event.addr,
        bytes: event.bytes,
        stream: event.stream,
    };
    match event.action {
        Action::SegmentAlloc => Some(DeviceEvent::SegmentAlloc(range)),
        Action::SegmentFree => Some(DeviceEvent::SegmentFree(range)),
        Action::SegmentMap => Some(DeviceEvent::SegmentMap(range)),
        Action::SegmentUnmap => Some(DeviceEvent::SegmentUnmap(range)),
        _ => None,
    }
}

/// Whether memory went back to the device.
pub(super) fn is_release(action: Action) -> bool {
    matches!(action, Action::SegmentFree | Action::SegmentUnmap)
}

/// Differences after which the model is no longer put right: by then it is not this allocator's recording.
const MAX_CORRECTIONS: u64 = 1000;

/// Segments and mappings that may wait for the allocation they belong to; real ones come one to a few at a time.
const MAX_GROWTH: usize = 4096;

struct Follower<'a> {
    recording: &'a DeviceRecording,
    conf: &'a AllocConf,
    private_pools: PrivatePools,
    allocator: Allocator,
    /// Blocks in use, by recorded address.
    live: HashMap<u64, BlockId>,
    /// Segments and pages that the recording saw come and no allocation of the model has asked for yet.
    growth: Vec<(usize, DeviceEvent)>,
    mismatches: Mismatches,
    peaks: PeakEvents,
    last: Stats,
    block_bytes: HashMap<usize, u64>,
    first_oom: Option<OutOfMemoryEvent>,
}

/// Feeds the model with a recording and compares.
pub(super) fn follow(recording: &DeviceRecording, conf: &AllocConf) -> Run {
    let mut mismatches = Mismatches::default();
    // Without a state at the end there is none to go back from: such a recording begins with the program.
    let initial = match recording.segments {
        Some(_) => rebuild::initial(recording, conf, &mut mismatches),
        None => Initial::default(),
    };
    let mut allocator = start(
        conf,
        &initial,
        DeviceLimits::UNLIMITED,
        Placement::default(),
    );
    let live = match &mut allocator {
        Ok((_, live)) => std::mem::take(live),
        Err(error) => {
            mismatches.add(Mismatch::state(error.clone()));
            HashMap::new()
        }
    };
    let mut allocator = allocator.map_or_else(
        |_| Allocator::new(conf.clone(), DeviceLimits::UNLIMITED, Placement::default()),
        |(allocator, _)| allocator,
    );
    *allocator.placement_mut() = Placement::Recorded(RecordedPlaces::default());
    allocator.record_device_events();
    let mut follower = Follower {
        recording,
        conf,
        private_pools: recording.private_pools(),
        last: *allocator.stats(),
        allocator,
        live,
        growth: Vec::new(),
        mismatches,
        peaks: PeakEvents::default(),
        block_bytes: HashMap::new(),
        first_oom: None,
    };
    follower.run();
    follower.finish(initial)
}

/// An allocator in the state before the first event, and its blocks in use by address.
pub(super) fn start(
    conf: &AllocConf,
    initial: &Initial,
    limits: DeviceLimits,
    placement: Placement,
) -> Result<(Allocator, HashMap<u64, BlockId>), String> {
    let mut allocator = Allocator::new(conf.clone(), limits, placement);
    // The recording's own limit on the process shows in what it released.
    allocator.set_memory_fraction(1.0);
    let live = allocator
        .restore(&initial.segments, &initial.lowest)
        .map_err(|error| error.to_string())?;
    Ok((allocator, live.into_iter().collect()))
}

impl Follower<'_> {
    fn run(&mut self) {
        let events = &self.recording.events;
        let mut index = 0;
        while let Some(event) = events.get(index) {
            let mut next = index + 1;
            match event.action {
                Action::Alloc => self.alloc(index, event),
                Action::FreeRequested | Action::FreeCompleted => self.free(index, event),
                Action::SegmentFree | Action::SegmentUnmap => {
                    // What was mapped before a release was part of an attempt that failed.
                    self.force_growth();
                    let batch = events[index..].iter().take_while(|e| is_release(e.action));
                    next = index + batch.count();
                    self.release(index..next);
                }
                Action::SegmentAlloc | Action::SegmentMap => {
                    if self.growth.len() == MAX_GROWTH {
                        let (index, event) = self.growth.remove(0);
                        self.differs(index, &event, "no need for it");
                    }
                    self.growth
                        .extend(device_event(event).map(|event| (index, event)));
                }
                Action::OutOfMemory => {
                    self.force_growth();
                    self.out_of_memory(index, event);
                }
                Action::Snapshot => {}
            }
            self.note_peaks(index);
            index = next;
        }
        for (index, event) in std::mem::take(&mut self.growth) {
            self.differs(index, &event, "no need for it");
        }
    }

    fn differs(&mut self, index: usize, expected: &dyn std::fmt::Debug, got: &str) {
        let expected = format!("{expected:?}");
        self.mismatches
            .add(Mismatch::event(index, expected, got.to_owned()));
    }

    fn note_peaks(&mut self, index: usize) {
        let (now, last) = (self.allocator.stats(), &self.last);
        let rose = |peak: fn(&Stats) -> u64| peak(now) > peak(last);
        let (requested, allocated, active, reserved) = (
            rose(|s| s.requested_bytes().peak),
            rose(|s| s.allocated_bytes().peak),
            rose(|s| s.active_bytes().peak),
            rose(|s| s.reserved_bytes().peak),
        );
        let peaks = &mut self.peaks;
        for (rose, event) in [
            (requested, &mut peaks.requested),
            (allocated, &mut peaks.allocated),
            (active, &mut peaks.active),
            (reserved, &mut peaks.reserved),
        ] {
            if rose {
                *event = Some(index);
            }
        }
        if requested || allocated || active || reserved {
            self.last = *now;
        }
    }

    fn alloc(&mut self, index: usize, event: &TraceEvent) {
        if let Placement::Recorded(places) = self.allocator.placement_mut() {
            places.segments.clear();
            places.next_range = None;
            for (_, event) in &self.growth {
                match event {
                    DeviceEvent::SegmentAlloc(range) => {
                        places.segments.push_back((range.addr, range.bytes));
                    }
                    DeviceEvent::SegmentMap(range) => {
                        places.next_range.get_or_insert(range.addr);
                    }
                    DeviceEvent::SegmentFree(_) | DeviceEvent::SegmentUnmap(_) => {}
                }
            }
        }
        let pool = self.private_pools.of(event.addr);
        let before = *self.allocator.stats();
        let placed = self.allocator.alloc_in(pool, event.bytes, event.stream);
        let mut placed = placed.ok().flatten();
        let asked = self.allocator.take_device_events();
        let block = placed.and_then(|id| self.allocator.block(id));
        let same_place = block.is_some_and(|block| block.addr == event.addr);
        if !same_place {
            let expected = format!("{} bytes at {:#x}", event.bytes, event.addr);
            let got = block.map_or("no block".to_owned(), |block| format!("{:#x}", block.addr));
            self.mismatches.add(Mismatch::event(index, expected, got));
        }
        if !same_place && self.mismatches.count <= MAX_CORRECTIONS {
            placed = self.correct(event, pool, placed, &asked, &before);
        } else {
            self.compare_growth(index, asked);
        }
        let Some(id) = placed else { return };
        let bytes = self
            .allocator
            .block(id)
            .map_or(event.bytes, |block| block.size_bytes);
        self.block_bytes.insert(index, bytes);
        if self.live.insert(event.addr, id).is_some() {
            let expected = format!("{} bytes at {:#x}", event.bytes, event.addr);
            self.differs(index, &expected, "a block that is in use there");
        }
    }

    /// Compares what the model asked of the device for an allocation with what the recording saw before it.
    fn compare_growth(&mut self, index: usize, asked: Vec<DeviceEvent>) {
        for asked in asked {
            let known = self
                .growth
                .iter()
                .position(|(_, recorded)| *recorded == asked);
            if let Some(at) = known {
                self.growth.remove(at);
            } else {
                let expected = "no segment or page from the device".to_owned();
                let got = format!("{asked:?}");
                self.mismatches.add(Mismatch::event(index, expected, got));
            }
        }
    }

    /// After an allocation that the model placed elsewhere: undoes it and puts the block where the recording says,
    /// so that what follows is compared from the same state.
    fn correct(
        &mut self,
        event: &TraceEvent,
        pool_id: PoolId,
        placed: Option<BlockId>,
        asked: &[DeviceEvent],
        before: &Stats,
    ) -> Option<BlockId> {
        if let Some(id) = placed {
            self.allocator.free(id).ok()?;
            let releasable = self.allocator.releasable();
            for found in &releasable {
                if asked.iter().any(|event| event.range() == found.range) {
                    self.allocator.release(found);
                }
            }
            self.allocator.stats_mut().restore_peaks(before);
        }
        let pool = self.conf.rounded(event.bytes).map_or(Pool::Large, Pool::of);
        for (_, growth) in std::mem::take(&mut self.growth) {
            match growth {
                DeviceEvent::SegmentAlloc(range) => {
                    self.allocator.add_segment(pool_id, pool, range);
                }
                DeviceEvent::SegmentMap(range) => {
                    self.allocator.map_at(range.addr, range.bytes);
                }
                DeviceEvent::SegmentFree(_) | DeviceEvent::SegmentUnmap(_) => {}
            }
        }
        let corrected = self
            .allocator
            .alloc_at(event.addr, event.bytes)
            .or_else(|| {
                // No room there: the model's own place, once more.
                let again = self.allocator.alloc_in(pool_id, event.bytes, event.stream);
                again.ok().flatten()
            });
        self.allocator.take_device_events();
        corrected
    }

    fn free(&mut self, index: usize, event: &TraceEvent) {
        let completes = event.action == Action::FreeCompleted;
        let id = if completes {
            self.live.remove(&event.addr)
        } else {
            self.live.get(&event.addr).copied()
        };
        let block = id.and_then(|id| Some((id, self.allocator.block(id)?)));
        let Some((id, block)) = block else {
            let expected = format!("{:?} of a block at {:#x}", event.action, event.addr);
            self.differs(index, &expected, "no block in use there");
            return;
        };
        if block.requested_bytes != event.bytes && block.size_bytes != event.bytes {
            let expected = format!("{} bytes freed at {:#x}", event.bytes, event.addr);
            self.differs(
                index,
                &expected,
                &format!("{} bytes", block.requested_bytes),
            );
        }
        let done = match (completes, block.state) {
            (false, BlockState::Allocated) => self.allocator.request_free(id),
            (true, BlockState::PendingFree) => self.allocator.complete_free(id),
            (true, _) => self.allocator.free(id),
            (false, _) => {
                let expected = format!("first free of a block at {:#x}", event.addr);
                self.differs(index, &expected, "freed before");
                Ok(())
            }
        };
        if let Err(error) = done {
            self.differs(index, event, &error.to_string());
        }
    }

    /// Carries out growth that belongs to no allocation that succeeded.
    fn force_growth(&mut self) {
        for (index, event) in std::mem::take(&mut self.growth) {
            let done = match event {
                DeviceEvent::SegmentMap(range) => self.allocator.map_at(range.addr, range.bytes),
                _ => false,
            };
            if !done {
                self.differs(index, &event, "nothing that could be mapped there");
            }
        }
        self.allocator.take_device_events();
    }

    /// A run of releases: everything unused, unless the settings let the allocator release a part.
    fn release(&mut self, batch: Range<usize>) {
        let recorded: Vec<(usize, DeviceEvent)> = batch
            .clone()
            .filter_map(|index| Some((index, device_event(self.recording.events.get(index)?)?)))
            .collect();
        let addrs: HashMap<u64, usize> = recorded
            .iter()
            .filter_map(|(i, _)| Some((self.recording.events.get(*i)?.addr, *i)))
            .collect();
        let partly =
            self.conf.max_split_bytes.is_some() || self.conf.garbage_collection_threshold > 0.0;
        let releasable = self.allocator.releasable();
        for kept in &releasable {
            let range = kept.range;
            if !partly && kept.id == PoolId::default() && !addrs.contains_key(&range.addr) {
                let got = format!("a release of {} bytes at {:#x}", range.bytes, range.addr);
                let expected = "a release of everything unused".to_owned();
                self.mismatches
                    .add(Mismatch::event(batch.start, expected, got));
            }
        }
        let mut by_addr: HashMap<(u64, u64), Releasable> = releasable
            .into_iter()
            .map(|found| ((found.range.addr, found.range.bytes), found))
            .collect();
        for (index, event) in recorded {
            let (DeviceEvent::SegmentFree(range) | DeviceEvent::SegmentUnmap(range)) = event else {
                continue;
            };
            match by_addr.remove(&(range.addr, range.bytes)) {
                Some(found) => self.allocator.release(&found),
                None => self.differs(index, &event, "no such unused memory"),
            }
        }
        self.allocator.take_device_events();
    }

    fn out_of_memory(&mut self, index: usize, event: &TraceEvent) {
        let stats = self.allocator.stats_mut();
        stats.num_alloc_retries += 1;
        stats.num_ooms += 1;
        if self.first_oom.is_none() {
            let stats = self.allocator.stats();
            self.first_oom = Some(OutOfMemoryEvent {
                event: index,
                time_us: event.time_us,
                tried_bytes: event.bytes,
                device_free_bytes: event.addr,
                reserved_bytes: stats.reserved_bytes().current,
                allocated_bytes: stats.allocated_bytes().current,
                fragmentation: analysis::fragmentation(&self.allocator),
                stack: Vec::new(),
            });
        }
    }

    fn finish(mut self, initial: Initial) -> Run {
        let recorded = self.recording.segments.as_deref();
        let equal = recorded.map(|recorded| self.compare_end(recorded));
        Run {
            initial,
            allocator: self.allocator,
            mismatches: self.mismatches,
            peak_events: self.peaks,
            block_bytes: self.block_bytes,
            first_oom: self.first_oom,
            segments_equal: equal.map(|(segments, _)| segments),
            blocks_equal: equal.map(|(_, blocks)| blocks),
        }
    }

    /// Whether segments and blocks are those of the recording; each difference is a mismatch.
    fn compare_end(&mut self, recorded: &[RecordedSegment]) -> (bool, bool) {
        let model = self.allocator.segments();
        let mut recorded: Vec<&RecordedSegment> = recorded.iter().collect();
        recorded.sort_by_key(|r| r.segment.addr);
        let (mut segments_equal, mut blocks_equal) = (model.len() == recorded.len(), true);
        for (got, expected) in model.iter().zip(&recorded) {
            let expected = &expected.segment;
            let same_place = (got.addr, got.size_bytes, got.stream, got.is_expandable)
                == (
                    expected.addr,
                    expected.size_bytes,
                    expected.stream,
                    expected.is_expandable,
                );
            segments_equal &=
                same_place && (got.pool, got.pool_id) == (expected.pool, expected.pool_id);
            let untold = self.recording.unknown_requests > 0;
            let shown = |b: &BlockView| {
                let requested = if untold || b.state == BlockState::Free {
                    0
                } else {
                    b.requested_bytes
                };
                (b.addr, b.size_bytes, b.state, requested)
            };
            blocks_equal &= got
                .blocks
                .iter()
                .map(shown)
                .eq(expected.blocks.iter().map(shown));
        }
        blocks_equal &= segments_equal;
        if !segments_equal || !blocks_equal {
            let what = if segments_equal { "blocks" } else { "segments" };
            let got = format!("other {what} after the last event than recorded");
            self.mismatches.add(Mismatch::state(got));
        }
        (segments_equal, blocks_equal)
    }
}

impl Run {
    /// The four peaks with the allocations that made them.
    pub(super) fn peaks(&self, recording: &DeviceRecording, stacks: &Stacks) -> Peaks {
        let stats = self.allocator.stats();
        let peak = |bytes: u64, event: Option<usize>| {
            let recorded = event.and_then(|event| recording.events.get(event));
            Peak {
                bytes,
                event,
                time_us: recorded.and_then(|event| event.time_us),
                requested_bytes: recorded.map(|event| event.bytes),
                stack: analysis::call_sites(stacks, recorded.map(|event| event.stack)),
            }
        };
        let events = &self.peak_events;
        Peaks {
            requested: peak(stats.requested_bytes().peak, events.requested),
            allocated: peak(stats.allocated_bytes().peak, events.allocated),
            active: peak(stats.active_bytes().peak, events.active),
            reserved: peak(stats.reserved_bytes().peak, events.reserved),
        }
    }
}
