//! A recording of an allocator's life, whatever file it came from: the neutral input of [`super::replay`].
//!
//! Readers of files build it; nothing in it has been checked yet. Addresses and sizes may be nonsense, frees may be
//! of nothing, and the final segments may contradict the events: [`super::replay`] finds out.

mod from_trace;

use std::collections::HashMap;

use super::{PoolId, SegmentView, Stream};

/// Everything one file recorded.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The settings that were in force (`PYTORCH_ALLOC_CONF`), where the file tells.
    pub settings: Option<String>,
    /// One entry for each device that has segments or events.
    pub devices: Vec<DeviceRecording>,
    /// The stacks that events and blocks refer to.
    pub stacks: Stacks,
    /// Events of kinds that are not understood, by name, with how often they occur.
    pub unknown_actions: Vec<(String, u64)>,
}

/// What one device recorded.
#[derive(Debug, Clone, Default)]
pub struct DeviceRecording {
    /// Index of the device.
    pub device: u32,
    /// Events, oldest first; perhaps only the last ones of a longer history.
    pub events: Vec<TraceEvent>,
    /// Segments and blocks after the last event, where the file has them.
    pub segments: Option<Vec<RecordedSegment>>,
    /// Blocks in use of whose requested size the file says nothing: their own size stands for it.
    pub unknown_requests: u64,
}

/// A segment as the file shows it.
#[derive(Debug, Clone)]
pub struct RecordedSegment {
    /// The segment and its blocks.
    pub segment: SegmentView,
    /// Who allocated each of its blocks, in the blocks' order.
    pub stacks: Vec<StackId>,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out; the size is what was asked for.
    Alloc,
    /// A block was given up by its owner.
    FreeRequested,
    /// A block went back into its pool.
    FreeCompleted,
    /// cudaMalloc.
    SegmentAlloc,
    /// cudaFree.
    SegmentFree,
    /// Pages were mapped into an expandable segment.
    SegmentMap,
    /// Pages were unmapped.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request failed; the address is what the device had left.
    OutOfMemory,
}

/// One event.
#[derive(Debug, Clone, Copy)]
pub struct TraceEvent {
    /// What happened.
    pub action: Action,
    /// The address it is about; for [`Action::OutOfMemory`] the bytes that the device had left.
    pub addr: u64,
    /// The size it is about.
    pub bytes: u64,
    /// The stream it is for.
    pub stream: Stream,
    /// When, in microseconds, where the file tells.
    pub time_us: Option<u64>,
    /// Where in the program.
    pub stack: StackId,
}

/// A stack in [`Stacks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StackId(u32);

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The function.
    pub name: String,
    /// Its file.
    pub filename: String,
    /// The line, 0 where it is not known.
    pub line: u64,
}

/// Stacks and frames, each kept once; number 0 is the empty stack.
#[derive(Debug, Clone)]
pub struct Stacks {
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, u32>,
    lists: Vec<Vec<u32>>,
    stack_ids: HashMap<Vec<u32>, StackId>,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            frame_ids: HashMap::new(),
            lists: vec![Vec::new()],
            stack_ids: HashMap::from([(Vec::new(), StackId(0))]),
        }
    }
}

impl Stacks {
    /// The number of a frame, kept from now on.
    pub fn add_frame(&mut self, frame: Frame) -> u32 {
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        *self.frame_ids.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(frame.clone());
            next
        })
    }

    /// The number of a stack of frames, innermost first, kept from now on.
    pub fn add_stack(&mut self, frames: Vec<u32>) -> StackId {
        let next = StackId(u32::try_from(self.lists.len()).unwrap_or(u32::MAX));
        *self.stack_ids.entry(frames).or_insert_with_key(|frames| {
            self.lists.push(frames.clone());
            next
        })
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, id: StackId) -> impl Iterator<Item = &Frame> {
        let stack = self.lists.get(id.0 as usize);
        let numbers = stack.map(Vec::as_slice).unwrap_or_default();
        numbers.iter().filter_map(|n| self.frames.get(*n as usize))
    }
}

impl DeviceRecording {
    /// How many events there are of a kind.
    #[must_use]
    pub fn count(&self, action: Action) -> u64 {
        self.events.iter().filter(|e| e.action == action).count() as u64
    }

    /// Private pools by the addresses they hold, as far as the final segments tell.
    pub(super) fn private_pools(&self) -> PrivatePools {
        let segments = self
            .segments
            .iter()
            .flatten()
            .map(|recorded| &recorded.segment);
        let private = segments.filter(|s| s.pool_id != PoolId::default());
        let mut ranges: Vec<(u64, u64, PoolId)> = private
            .map(|s| (s.addr, s.addr.saturating_add(s.size_bytes), s.pool_id))
            .collect();
        ranges.sort_unstable();
        PrivatePools(ranges)
    }
}

/// Address ranges of private pools: first address, end, pool.
pub(super) struct PrivatePools(Vec<(u64, u64, PoolId)>);

impl PrivatePools {
    /// The pool that an address belongs to; the default one where no private pool holds it.
    pub(super) fn of(&self, addr: u64) -> PoolId {
        let after = self.0.partition_point(|(start, ..)| *start <= addr);
        let before = after.checked_sub(1).and_then(|at| self.0.get(at));
        before.map_or(PoolId::default(), |(_, end, id)| {
            if addr < *end { *id } else { PoolId::default() }
        })
    }
}
