//! The moment of peak allocated memory: where the run was, and what held the memory.

use serde::{Serialize, Serializer};

use crate::trace::memory::{AllocationLife, CATEGORIES, MemoryTimeline, Place};
use crate::trace::{Category, Trace};

/// Something alive at the peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LiveTensor {
    /// Requested bytes.
    pub bytes: u64,
    /// What it was for.
    #[serde(serialize_with = "category_name")]
    pub category: Category,
    /// The parameter, buffer or input, by name.
    pub name: Option<String>,
    /// The module that made it.
    pub module: Option<String>,
    /// The operator that made it.
    pub op: Option<String>,
    /// Shape of the first tensor seen in it.
    pub shape: Option<Vec<u64>>,
    /// Its dtype.
    pub dtype: Option<String>,
}

/// The moment of peak allocated memory, estimated or measured; without a run, what is known of it. Categories are requested bytes; with `rounding` and
/// `cached_free` they add up to `reserved_bytes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct AtPeak {
    /// Phase, where one was running.
    pub phase: Option<&'static str>,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// The outermost operator that was running.
    pub op: Option<String>,
    /// Path of the module that was running.
    pub module: Option<String>,
    /// Number of the event in the trace; none without a run.
    pub event: Option<usize>,
    /// Requested bytes: the sum of the categories; unknown where one of them is.
    pub requested_bytes: Option<u64>,
    /// Requested bytes by category; a category that is not there is unknown.
    #[serde(flatten, serialize_with = "categories")]
    pub categories: Vec<(Category, u64)>,
    /// Allocated minus requested; unknown without a run.
    pub rounding: Option<u64>,
    /// Reserved minus allocated; unknown where there is no caching allocator.
    pub cached_free: Option<u64>,
    /// Reserved at that moment.
    pub reserved_bytes: Option<u64>,
    /// Everything that was alive, largest first.
    pub live: Vec<LiveTensor>,
}

impl AtPeak {
    /// The highest moment of a timeline; none where nothing was allocated.
    #[must_use]
    pub fn of(trace: &Trace, memory: &MemoryTimeline) -> Option<AtPeak> {
        let peak = memory.peak.as_ref()?;
        let Place { phase, op, module } = peak.place;
        let phase = phase.and_then(|index| memory.phases.get(index));
        let lives = peak.live.iter();
        Some(AtPeak {
            phase: phase.map(|phase| phase.name.name()),
            step: phase.and_then(|phase| phase.step),
            op: op.map(|id| op_name(trace, id)),
            module: module.map(|id| trace.text(id).to_owned()),
            event: Some(peak.event),
            requested_bytes: Some(peak.requested),
            categories: memory.categories_at_peak(),
            rounding: Some(peak.allocated.saturating_sub(peak.requested)),
            cached_free: peak
                .reserved
                .map(|reserved| reserved.saturating_sub(peak.allocated)),
            reserved_bytes: peak.reserved,
            live: lives
                .filter_map(|id| memory.allocations.get(*id as usize))
                .map(|life| live(trace, life))
                .collect(),
        })
    }
}

/// An operator's or autograd node's name, without the words that libtorch's engine puts before a node.
fn op_name(trace: &Trace, id: u32) -> String {
    let name = trace.text(id);
    let node = name.strip_prefix("autograd::engine::evaluate_function: ");
    node.unwrap_or(name).to_owned()
}

fn live(trace: &Trace, life: &AllocationLife) -> LiveTensor {
    let Place { op, module, .. } = life.place;
    let sig = life.sig.and_then(|sig| trace.sigs.get(sig as usize));
    LiveTensor {
        bytes: life.bytes,
        category: life.category,
        name: life.name.clone(),
        module: module.map(|id| trace.text(id).to_owned()),
        op: op.map(|id| op_name(trace, id)),
        shape: sig.map(|sig| sig.shape.clone()),
        dtype: sig.map(|sig| sig.dtype.clone()),
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn category_name<S: Serializer>(category: &Category, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(category.name())
}

fn categories<S: Serializer>(sums: &[(Category, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(CATEGORIES.iter().map(|category| {
        let sum = sums.iter().find(|sum| sum.0 == *category);
        (category.name(), sum.map(|sum| sum.1))
    }))
}
