//! Who held the memory, and what was free between it.

use std::collections::HashMap;

use super::super::allocator::Allocator;
use super::super::recording::{Action, DeviceRecording, Frame, StackId, Stacks};
use super::super::{BlockState, Pool, PoolId};
use super::report::{CallSite, Fragmentation, LiveGroup};
use super::run::Run;

/// Where free memory is.
pub(super) fn fragmentation(allocator: &Allocator) -> Fragmentation {
    let stats = allocator.stats();
    let free_bytes = stats.reserved_bytes().current - stats.active_bytes().current;
    let mut largest = 0;
    for segment in allocator
        .segments()
        .iter()
        .filter(|s| s.pool == Pool::Large)
    {
        let free = segment
            .blocks
            .iter()
            .filter(|b| b.state == BlockState::Free);
        largest = free.map(|b| b.size_bytes).max().unwrap_or(0).max(largest);
    }
    let returnable_bytes = allocator
        .releasable()
        .iter()
        .filter(|released| released.id == PoolId::default())
        .map(|released| released.range.bytes)
        .sum();
    Fragmentation {
        free_bytes,
        largest_free_block_bytes: largest,
        returnable_bytes,
        stuck_bytes: free_bytes - returnable_bytes,
    }
}

/// The frames of a stack, innermost first.
pub(super) fn call_sites(stacks: &Stacks, stack: Option<StackId>) -> Vec<CallSite> {
    let frames = stack.map(|stack| stacks.frames(stack).map(CallSite::from));
    frames.map(Iterator::collect).unwrap_or_default()
}

/// The frame that says most to the program's author: the innermost of their own Python code, else of any, else the
/// innermost that is neither the recorder nor the allocator.
fn telling(stacks: &Stacks, stack: StackId) -> Option<&Frame> {
    let library = |frame: &&Frame| {
        frame.filename.contains("site-packages") || frame.filename.contains("dist-packages")
    };
    let frames = || stacks.frames(stack);
    frames()
        .find(|frame| is_python(&frame.filename) && !library(frame))
        .or_else(|| frames().find(|frame| is_python(&frame.filename)))
        .or_else(|| frames().find(|frame| !is_machinery(&frame.name)))
        .or_else(|| frames().next())
}

/// Whether a frame's file is Python source.
fn is_python(filename: &str) -> bool {
    std::path::Path::new(filename)
        .extension()
        .is_some_and(|extension| extension == "py")
}

/// Whether a function only records or allocates: it is in every stack and says nothing.
fn is_machinery(name: &str) -> bool {
    const PARTS: [&str; 4] = [
        "torch::unwind::",
        "CapturedTraceback::",
        "gather_with_cpp",
        "CUDACachingAllocator::",
    ];
    PARTS.iter().any(|part| name.contains(part))
}

impl CallSite {
    /// Whether the frame is one of Python's.
    #[must_use]
    pub fn is_python(&self) -> bool {
        is_python(&self.filename)
    }

    /// Whether the function only records or allocates, and so says nothing about the program.
    #[must_use]
    pub fn is_machinery(&self) -> bool {
        is_machinery(&self.name)
    }
}

struct Block {
    bytes: u64,
    stack: StackId,
    before_recording: bool,
}

/// Memory in use right after an event (`None`: before the first), by the place that allocated it, most first.
pub(super) fn live_at(
    recording: &DeviceRecording,
    run: &Run,
    event: Option<usize>,
    stacks: &Stacks,
    top: usize,
) -> Vec<LiveGroup> {
    let mut live: HashMap<u64, Block> = HashMap::new();
    let origin = final_stacks(recording);
    for block in run
        .initial
        .segments
        .iter()
        .flat_map(|segment| &segment.blocks)
    {
        if block.state == BlockState::Allocated {
            let stack = origin.get(&block.addr).copied().unwrap_or_default();
            let block_then = Block {
                bytes: block.size_bytes,
                stack,
                before_recording: true,
            };
            live.insert(block.addr, block_then);
        }
    }
    let count = event.map_or(0, |event| event + 1);
    for (index, event) in recording.events.iter().enumerate().take(count) {
        match event.action {
            Action::Alloc => {
                let bytes = run.block_bytes.get(&index).copied().unwrap_or(event.bytes);
                let block = Block {
                    bytes,
                    stack: event.stack,
                    before_recording: false,
                };
                live.insert(event.addr, block);
            }
            Action::FreeRequested | Action::FreeCompleted => {
                live.remove(&event.addr);
            }
            _ => {}
        }
    }
    group(live.into_values(), stacks, top)
}

/// Who allocated the blocks that are in use after the last event, by the events.
pub(super) fn stacks_at_end(recording: &DeviceRecording) -> HashMap<u64, StackId> {
    let mut stacks = HashMap::new();
    for event in &recording.events {
        match event.action {
            Action::Alloc => {
                stacks.insert(event.addr, event.stack);
            }
            Action::FreeCompleted => {
                stacks.remove(&event.addr);
            }
            _ => {}
        }
    }
    stacks
}

/// Who allocated the blocks that are still there at the end, by the final segments.
fn final_stacks(recording: &DeviceRecording) -> HashMap<u64, StackId> {
    let segments = recording.segments.iter().flatten();
    segments
        .flat_map(|s| {
            s.segment
                .blocks
                .iter()
                .map(|b| b.addr)
                .zip(s.stacks.iter().copied())
        })
        .collect()
}

fn group(live: impl Iterator<Item = Block>, stacks: &Stacks, top: usize) -> Vec<LiveGroup> {
    let mut groups: HashMap<(Option<&Frame>, bool), (u64, u64)> = HashMap::new();
    for block in live {
        let frame = telling(stacks, block.stack);
        let group = groups.entry((frame, block.before_recording)).or_default();
        *group = (group.0 + 1, group.1.saturating_add(block.bytes));
    }
    let mut groups: Vec<LiveGroup> = groups
        .into_iter()
        .map(|((frame, before_recording), (blocks, bytes))| LiveGroup {
            frame: frame.map(CallSite::from),
            before_recording,
            blocks,
            bytes,
        })
        .collect();
    groups.sort_by(|a, b| {
        let by_bytes = b.bytes.cmp(&a.bytes);
        by_bytes.then_with(|| (&a.frame, a.before_recording).cmp(&(&b.frame, b.before_recording)))
    });
    if top > 0 {
        groups.truncate(top);
    }
    groups
}
