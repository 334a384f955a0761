//! What a replay reports. The JSON of `inspect replay` is these types, serialized.

use serde::Serialize;

use super::super::recording::{Action, DeviceRecording, Frame, Stacks};
use super::analysis;
use super::run::Run;

/// Everything a replay found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayReport {
    /// One entry for each device.
    pub devices: Vec<DeviceReplay>,
    /// What is noteworthy about the recording.
    pub findings: Vec<ReplayFinding>,
}

/// Something noteworthy about a recording, in the shape of the report's other findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayFinding {
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// A stable kebab-case code.
    pub code: &'static str,
    /// What it is about.
    pub location: String,
    /// One sentence.
    pub message: String,
}

impl ReplayFinding {
    pub(super) fn warning(code: &'static str, location: String, message: String) -> Self {
        Self {
            severity: "warning",
            code,
            location,
            message,
        }
    }
}

/// Where a replay starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// From nothing: the recording begins with the program.
    Cold,
    /// From a state worked out backwards from the end.
    Warm,
    /// Nowhere: there are segments, but no events.
    None,
}

/// A difference between the recording and the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// Index of the event; none where it is about the state at the start or the end.
    pub event: Option<usize>,
    /// What the recording says.
    pub expected: String,
    /// What the model says.
    pub got: String,
}

impl Mismatch {
    pub(super) fn event(index: usize, expected: String, got: String) -> Self {
        Self {
            event: Some(index),
            expected,
            got,
        }
    }

    /// A recorded state that contradicts itself.
    pub(super) fn state(got: String) -> Self {
        Self {
            event: None,
            expected: "segments and blocks that fit together".to_owned(),
            got,
        }
    }
}

/// How many differences there are, and the first.
#[derive(Debug, Clone, Default)]
pub(super) struct Mismatches {
    pub(super) count: u64,
    pub(super) first: Option<Mismatch>,
}

impl Mismatches {
    pub(super) fn add(&mut self, mismatch: Mismatch) {
        self.count += 1;
        // The earliest event, not the first one noticed: the state at the start is found last to first.
        let earlier = match &self.first {
            None => true,
            Some(first) => mismatch.event.is_some() && mismatch.event < first.event,
        };
        if earlier {
            self.first = Some(mismatch);
        }
    }
}

/// One frame, as reports show it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CallSite {
    /// The function.
    pub name: String,
    /// Its file.
    pub filename: String,
    /// The line.
    pub line: u64,
}

impl From<&Frame> for CallSite {
    fn from(frame: &Frame) -> Self {
        Self {
            name: frame.name.clone(),
            filename: frame.filename.clone(),
            line: frame.line,
        }
    }
}

/// The largest value of one kind, and the allocation that made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// The value.
    pub bytes: u64,
    /// Index of the event that reached it; none where it was there at the start.
    pub event: Option<usize>,
    /// When, where the recording tells.
    pub time_us: Option<u64>,
    /// What was asked for.
    pub requested_bytes: Option<u64>,
    /// Who asked, innermost first.
    pub stack: Vec<CallSite>,
}

/// The peaks of the four kinds of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peaks {
    /// Asked for by callers.
    pub requested: Peak,
    /// In blocks handed out.
    pub allocated: Peak,
    /// In blocks handed out or waited for.
    pub active: Peak,
    /// Held from the device.
    pub reserved: Peak,
}

/// The state after the last event, beside the recorded one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Final {
    /// Whether the segments are those of the recording; none where it has none.
    pub segments_equal: Option<bool>,
    /// Whether the blocks are.
    pub blocks_equal: Option<bool>,
    /// Bytes in blocks handed out.
    pub allocated_bytes: u64,
    /// Bytes held from the device.
    pub reserved_bytes: u64,
}

/// Free memory that is held from the device, and what could be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fragmentation {
    /// Held from the device and not in use.
    pub free_bytes: u64,
    /// The largest request of the large pool that fits without more memory from the device.
    pub largest_free_block_bytes: u64,
    /// What `empty_cache` would give back.
    pub returnable_bytes: u64,
    /// Free, but between blocks in use: neither given back nor of use to a larger request.
    pub stuck_bytes: u64,
}

/// Memory in use that was allocated at one place of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LiveGroup {
    /// Where; none where the recording does not tell.
    pub frame: Option<CallSite>,
    /// Whether the memory was there before the recording begins.
    pub before_recording: bool,
    /// How many blocks.
    pub blocks: u64,
    /// Their sizes together.
    pub bytes: u64,
}

/// A request that failed in the recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutOfMemoryEvent {
    /// Index of the event.
    pub event: usize,
    /// When, where the recording tells.
    pub time_us: Option<u64>,
    /// The size that was tried.
    pub tried_bytes: u64,
    /// What the device had left.
    pub device_free_bytes: u64,
    /// What was held from the device.
    pub reserved_bytes: u64,
    /// What was in use.
    pub allocated_bytes: u64,
    /// What was free within that.
    pub fragmentation: Fragmentation,
    /// Who asked, innermost first.
    pub stack: Vec<CallSite>,
}

/// The same allocations and frees with other settings, or another capacity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WhatIf {
    /// The capacity tried, if any.
    pub memory_bytes: Option<u64>,
    /// Whether every allocation succeeded.
    pub fits: bool,
    /// Index of the first event that failed.
    pub first_oom_event: Option<usize>,
    /// The segment that did not fit there.
    pub tried_bytes: Option<u64>,
    /// Times that unused memory had to be released to go on.
    pub num_alloc_retries: u64,
    /// Peak of what callers asked for, up to the failure if there was one.
    pub peak_requested_bytes: u64,
    /// Peak of the blocks handed out.
    pub peak_allocated_bytes: u64,
    /// Peak of the blocks handed out or waited for.
    pub peak_active_bytes: u64,
    /// Peak of what was held from the device.
    pub peak_reserved_bytes: u64,
}

/// The replay of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceReplay {
    /// Index of the device.
    pub device: u32,
    /// Where the replay starts.
    pub start: Start,
    /// Blocks handed out in the recording.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// Segments got from the device.
    pub segment_allocs: u64,
    /// Segments given back.
    pub segment_frees: u64,
    /// Mappings into expandable segments.
    pub segment_maps: u64,
    /// Unmappings.
    pub segment_unmaps: u64,
    /// Requests that failed.
    pub ooms: u64,
    /// Allocations, segments or releases that the model placed elsewhere than the recording.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatch: Option<Mismatch>,
    /// Peak of what callers asked for; unknown without events.
    pub peak_requested_bytes: Option<u64>,
    /// Peak of the blocks handed out.
    pub peak_allocated_bytes: Option<u64>,
    /// Peak of the blocks handed out or waited for.
    pub peak_active_bytes: Option<u64>,
    /// Peak of what was held from the device.
    pub peak_reserved_bytes: Option<u64>,
    /// The state after the last event.
    #[serde(rename = "final")]
    pub end: Final,
    /// The least capacity with which the recording still runs, when asked for.
    pub smallest_memory_bytes: Option<u64>,
    /// When the peaks were, and who made them.
    pub peaks: Option<Peaks>,
    /// Who held the memory at the peak of allocated bytes, most first; at the end, where there are no events.
    pub live_at_peak: Vec<LiveGroup>,
    /// Free memory after the last event.
    pub fragmentation: Fragmentation,
    /// The first request that failed.
    pub first_oom: Option<OutOfMemoryEvent>,
    /// What other settings or another capacity would have done, when asked for.
    pub what_if: Option<WhatIf>,
}

/// Puts the parts of one device's replay together.
pub(super) fn device_replay(
    recording: &DeviceRecording,
    run: &Run,
    stacks: &Stacks,
    top: usize,
) -> DeviceReplay {
    let has_events = !recording.events.is_empty();
    let start = match (has_events, run.initial.segments.is_empty()) {
        (false, _) => Start::None,
        (true, true) => Start::Cold,
        (true, false) => Start::Warm,
    };
    let peaks = has_events.then(|| run.peaks(recording, stacks));
    let bytes = |peak: fn(&Peaks) -> &Peak| peaks.as_ref().map(|peaks| peak(peaks).bytes);
    let stats = run.allocator.stats();
    let peak_event = run.peak_events.allocated;
    DeviceReplay {
        device: recording.device,
        start,
        allocations: recording.count(Action::Alloc),
        frees: recording.count(Action::FreeCompleted),
        segment_allocs: recording.count(Action::SegmentAlloc),
        segment_frees: recording.count(Action::SegmentFree),
        segment_maps: recording.count(Action::SegmentMap),
        segment_unmaps: recording.count(Action::SegmentUnmap),
        ooms: recording.count(Action::OutOfMemory),
        mismatches: run.mismatches.count,
        first_mismatch: run.mismatches.first.clone(),
        peak_requested_bytes: bytes(|peaks| &peaks.requested),
        peak_allocated_bytes: bytes(|peaks| &peaks.allocated),
        peak_active_bytes: bytes(|peaks| &peaks.active),
        peak_reserved_bytes: bytes(|peaks| &peaks.reserved),
        end: Final {
            segments_equal: run.segments_equal,
            blocks_equal: run.blocks_equal,
            allocated_bytes: stats.allocated_bytes().current,
            reserved_bytes: stats.reserved_bytes().current,
        },
        smallest_memory_bytes: None,
        live_at_peak: analysis::live_at(recording, run, peak_event, stacks, top),
        peaks,
        fragmentation: analysis::fragmentation(&run.allocator),
        first_oom: run.first_oom.clone().map(|mut oom| {
            let event = recording.events.get(oom.event);
            oom.stack = analysis::call_sites(stacks, event.map(|event| event.stack));
            oom
        }),
        what_if: None,
    }
}
