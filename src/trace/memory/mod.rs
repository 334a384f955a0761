//! Memory over a run: what each allocation was for, what was live when, and where the peak was.
//!
//! Everything is decided from what really happened to an allocation (see [`Category`]):
//!
//! | category | decided by |
//! |---|---|
//! | parameters, buffers, inputs, optimizer state, gradients of parameters | the engine's label |
//! | temporaries | freed before the outermost operator that allocated it ended; in the optimizer's step, before that ended |
//! | activations | allocated in the forward pass, seen as an operator's or module's tensor, outlived its operator |
//! | gradients | likewise in the backward pass: gradients of activations |
//! | workspaces | on CUDA: allocated inside an operator, outlived it, never seen as a tensor |
//! | other | the rest: loading, making inputs |
//!
//! Invariant: at every event the categories' bytes add up to the allocator's live bytes, because each allocation has
//! exactly one category for its whole life.

mod follow;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::{Category, DeviceMemory, PhaseName, Trace};
use follow::Follower;

/// Where in the run something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Index into [`MemoryTimeline::phases`]; none between phases.
    pub phase: Option<usize>,
    /// Name of the outermost operator, else of the autograd node (text number).
    pub op: Option<u32>,
    /// Path of the innermost module; in the backward pass that of the forward operator (text number).
    pub module: Option<u32>,
}

/// One allocation and its life.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocationLife {
    /// Requested bytes.
    pub bytes: u64,
    /// Allocated bytes.
    pub block: u64,
    /// False for memory from before the recording: it counts nowhere.
    pub recorded: bool,
    /// Where it was made.
    pub place: Place,
    /// What it was for.
    pub category: Category,
    /// Name given by the engine, such as a parameter's.
    pub name: Option<String>,
    /// Metadata of the first tensor seen in it (number of the `sig` event).
    pub sig: Option<u32>,
    /// Index of its `alloc` event in [`Trace::events`].
    pub born: usize,
    /// Index of its `free` event.
    pub died: Option<usize>,
    /// In training: an activation still alive when its forward pass ended, that is, kept for the backward pass (or
    /// returned to the caller).
    pub saved: bool,
}

/// Start, highest and last value of one figure within a phase, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// When the phase began.
    pub start: u64,
    /// Highest.
    pub peak: u64,
    /// When it ended.
    pub end: u64,
}

/// Memory in one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseMemory {
    /// Which.
    pub name: PhaseName,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// When it began and ended, ns.
    pub time: (u64, u64),
    /// Requested bytes.
    pub requested: Span,
    /// Allocated bytes.
    pub allocated: Span,
    /// Active bytes; none where the allocator has no such figure (CPU).
    pub active: Option<Span>,
    /// Reserved bytes; likewise.
    pub reserved: Option<Span>,
    /// The whole device's memory; none on the CPU.
    pub device: Option<DeviceMemory>,
    /// How long it took on the device itself, ns; none where that was not measured.
    pub device_ns: Option<u64>,
}

/// The moment with the most allocated bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Peak {
    /// Index of the event that reached it.
    pub event: usize,
    /// Where the run was.
    pub place: Place,
    /// Allocated bytes.
    pub allocated: u64,
    /// Requested bytes at that moment.
    pub requested: u64,
    /// Bytes got from the device at that moment; none on the CPU.
    pub reserved: Option<u64>,
    /// What was live, largest first, equal ones in order of allocation (numbers of allocations).
    pub live: Vec<u32>,
}

/// The whole run's memory.
#[derive(Debug, Clone)]
pub struct MemoryTimeline {
    /// By allocation number.
    pub allocations: Vec<AllocationLife>,
    /// In order.
    pub phases: Vec<PhaseMemory>,
    /// The highest moment; none where nothing was allocated.
    pub peak: Option<Peak>,
    /// Most allocated bytes live while inside a module, by path (text number).
    pub module_peaks: HashMap<u32, u64>,
    /// Highest reserved bytes; none on the CPU.
    pub peak_reserved: Option<u64>,
    /// Failed device allocations that emptied the cache and tried again.
    pub retries: u64,
    /// Out-of-memory errors.
    pub out_of_memory: u64,
}

impl MemoryTimeline {
    /// Most memory of the whole device in use, by whomever; none where no phase says it.
    #[must_use]
    pub fn device_used(&self) -> Option<u64> {
        let devices = self.phases.iter().filter_map(|phase| phase.device);
        devices.map(|device| device.peak).max()
    }

    /// Follows a trace from start to end.
    #[must_use]
    pub fn of(trace: &Trace) -> MemoryTimeline {
        let mut follower = Follower::new(trace);
        for (index, event) in trace.events.iter().enumerate() {
            follower.event(index, event);
        }
        follower.finish()
    }

    /// Requested bytes by category at the peak.
    #[must_use]
    pub fn categories_at_peak(&self) -> Vec<(Category, u64)> {
        let live = self.peak.iter().flat_map(|peak| &peak.live);
        let mut sums: Vec<(Category, u64)> =
            CATEGORIES.iter().map(|category| (*category, 0)).collect();
        for life in live.filter_map(|id| self.allocations.get(*id as usize)) {
            if let Some(sum) = sums.iter_mut().find(|sum| sum.0 == life.category) {
                sum.1 += life.bytes;
            }
        }
        sums
    }
}

/// Every category, in the order of reports.
pub const CATEGORIES: [Category; 9] = [
    Category::Parameters,
    Category::Buffers,
    Category::Inputs,
    Category::Activations,
    Category::Gradients,
    Category::OptimizerState,
    Category::Temporaries,
    Category::Workspaces,
    Category::Other,
];
