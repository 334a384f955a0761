//! What the allocator did, phase by phase, on a device that really computed; and what was live at the peak.

use serde::Serialize;

use crate::trace::memory::{AllocationLife, CATEGORIES, MemoryTimeline, Peak, PhaseMemory, Place};
use crate::trace::{Category, Trace};

/// Live tensors that a report names; the categories' sums hold the others too.
const MAX_LIVE: usize = 100;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredReport<'a> {
    /// Where: `cpu`, `cuda:0`.
    pub device: &'a str,
    /// Who says so.
    pub source: &'static str,
    /// Phases in order.
    pub phases: Vec<PhaseReport>,
    /// Most bytes that callers had asked for.
    pub peak_requested_bytes: u64,
    /// Most bytes in blocks handed out.
    pub peak_allocated_bytes: u64,
    /// Most bytes got from the device; the CPU allocator keeps none back.
    pub peak_reserved_bytes: Option<u64>,
    /// Memory of the device that the process used.
    pub device_used_bytes: Option<u64>,
    /// The moment of most allocated bytes.
    pub at_peak: Option<PeakReport<'a>>,
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhaseReport {
    /// `load`, `inputs`, `forward`, `backward` or `optimizer`.
    pub name: &'static str,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// Requested bytes at its beginning.
    pub start_requested_bytes: u64,
    /// Most requested bytes within.
    pub peak_requested_bytes: u64,
    /// Most allocated bytes within.
    pub peak_allocated_bytes: u64,
    /// Most active bytes within.
    pub peak_active_bytes: u64,
    /// Most reserved bytes within.
    pub peak_reserved_bytes: Option<u64>,
    /// Requested bytes at its end.
    pub end_requested_bytes: u64,
}

/// What was live at the peak. The categories add up to the requested bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeakReport<'a> {
    /// Phase, where one was running.
    pub phase: Option<&'static str>,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// The outermost operator that was running.
    pub op: Option<&'a str>,
    /// Path of the module that was running.
    pub module: Option<&'a str>,
    /// Which event of the trace reached it.
    pub event: usize,
    /// Requested bytes.
    pub requested_bytes: u64,
    /// Requested bytes by category.
    #[serde(flatten, serialize_with = "as_map")]
    pub categories: Vec<(&'static str, u64)>,
    /// The largest live tensors, largest first.
    pub live: Vec<LiveReport<'a>>,
    /// Live tensors that are not named.
    pub more_live: usize,
}

/// One live tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LiveReport<'a> {
    /// Requested bytes.
    pub bytes: u64,
    /// What it is for.
    pub category: &'static str,
    /// Its name, such as the parameter's.
    pub name: Option<String>,
    /// Path of the module that made it.
    pub module: Option<&'a str>,
    /// The operator that made it.
    pub op: Option<&'a str>,
    /// Sizes of the first tensor seen in it.
    pub shape: Option<&'a [u64]>,
    /// Its dtype.
    pub dtype: Option<&'a str>,
}

impl<'a> MeasuredReport<'a> {
    /// What a run measured; `None` for the simulated device, which measures nothing.
    pub(super) fn new(trace: &'a Trace, memory: &MemoryTimeline) -> Option<Self> {
        let device = trace.header.device.as_str();
        let source = match device {
            "cpu" => "libtorch CPU allocator",
            other if other.starts_with("cuda:") => "CUDACachingAllocator",
            _ => return None,
        };
        let phases: Vec<PhaseReport> = memory.phases.iter().map(phase).collect();
        let most = |of: fn(&PhaseReport) -> u64| phases.iter().map(of).max().unwrap_or(0);
        Some(MeasuredReport {
            device,
            source,
            peak_requested_bytes: most(|phase| phase.peak_requested_bytes),
            peak_allocated_bytes: most(|phase| phase.peak_allocated_bytes),
            peak_reserved_bytes: memory.peak_reserved,
            phases,
            device_used_bytes: None,
            at_peak: memory
                .peak
                .as_ref()
                .map(|peak| at_peak(peak, memory, trace)),
        })
    }
}

fn phase(phase: &PhaseMemory) -> PhaseReport {
    PhaseReport {
        name: phase.name.name(),
        step: phase.step,
        start_requested_bytes: phase.requested.start,
        peak_requested_bytes: phase.requested.peak,
        peak_allocated_bytes: phase.allocated.peak,
        // Without streams that hold blocks back, what is handed out is what is active.
        peak_active_bytes: phase.active.unwrap_or(phase.allocated).peak,
        peak_reserved_bytes: phase.reserved.map(|reserved| reserved.peak),
        end_requested_bytes: phase.requested.end,
    }
}

fn at_peak<'a>(peak: &Peak, memory: &MemoryTimeline, trace: &'a Trace) -> PeakReport<'a> {
    let Place { phase, op, module } = peak.place;
    let phase = phase.and_then(|id| memory.phases.get(id));
    let text = |id: Option<u32>| id.map(|id| plain(trace.text(id)));
    let live = peak.live.iter();
    PeakReport {
        phase: phase.map(|phase| phase.name.name()),
        step: phase.and_then(|phase| phase.step),
        op: text(op),
        module: text(module),
        event: peak.event,
        requested_bytes: peak.requested,
        categories: categories(memory),
        live: live
            .take(MAX_LIVE)
            .filter_map(|id| memory.allocations.get(*id as usize))
            .map(|life| one(life, trace))
            .collect(),
        more_live: peak.live.len().saturating_sub(MAX_LIVE),
    }
}

fn categories(memory: &MemoryTimeline) -> Vec<(&'static str, u64)> {
    let sums = memory.categories_at_peak();
    CATEGORIES
        .iter()
        .map(|category| {
            let sum = sums.iter().find(|(known, _)| known == category);
            (category_name(*category), sum.map_or(0, |(_, bytes)| *bytes))
        })
        .collect()
}

fn one<'a>(life: &AllocationLife, trace: &'a Trace) -> LiveReport<'a> {
    let sig = life.sig.and_then(|id| trace.sigs.get(id as usize));
    LiveReport {
        bytes: life.bytes,
        category: category_name(life.category),
        name: life.name.clone(),
        module: life.place.module.map(|id| trace.text(id)),
        op: life.place.op.map(|id| plain(trace.text(id))),
        shape: sig.map(|sig| sig.shape.as_slice()),
        dtype: sig.map(|sig| sig.dtype.as_str()),
    }
}

/// An operator's name, or that of the node that the autograd engine was evaluating.
fn plain(name: &str) -> &str {
    name.strip_prefix("autograd::engine::evaluate_function: ")
        .unwrap_or(name)
}

/// The category as the contract writes it.
fn category_name(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameters",
        Category::Buffers => "buffers",
        Category::Inputs => "inputs",
        Category::Activations => "activations",
        Category::Gradients => "gradients",
        Category::OptimizerState => "optimizer_state",
        Category::Temporaries => "temporaries",
        Category::Workspaces => "workspaces",
        Category::Other => "other",
    }
}

fn as_map<S: serde::Serializer>(
    pairs: &[(&'static str, u64)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().copied())
}
