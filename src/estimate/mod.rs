//! GPU memory: how much a run needs, where its peak is and what holds it, and whether it fits.
//!
//! One [`Estimate`] whatever the trace came from (the simulated CUDA device, a real one, a file). It adds nothing to
//! what the trace shows: where something is not known (convolution workspaces, a context nobody has published) it is
//! `None` or an assumption in words.
//!
//! The estimate serializes exactly as the JSON contract's `estimate`.

mod orders;
pub mod profile;
pub mod rule_of_thumb;

use serde::{Serialize, Serializer};

pub use orders::{Modelled, model};
pub use profile::{DEFAULT_PROFILE, PROFILES, Profile, UnknownProfile};
pub use rule_of_thumb::{RuleOfThumb, optimizer_copies};

use crate::simulate::{AllocConf, DeviceLimits, Placement};
use crate::trace::memory::{CATEGORIES, MemoryTimeline, Peak, PhaseMemory, Place};
use crate::trace::{Category, Reads, Trace};

/// What an estimate was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// libtorch's own CUDA code on the simulated device.
    CudaSim,
    /// A CPU run and the memory model.
    CpuTrace,
    /// A saved trace.
    TraceFile,
    /// No run: weights, gradients and optimizer state only.
    Static,
}

/// One phase, as reports show it. Bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhaseEstimate {
    /// `load`, `inputs`, `forward`, `backward`, `optimizer`.
    pub name: &'static str,
    /// Training step.
    pub step: Option<u32>,
    /// Requested when it began.
    pub start_requested_bytes: u64,
    /// Highest requested.
    pub peak_requested_bytes: u64,
    /// Highest allocated.
    pub peak_allocated_bytes: u64,
    /// Highest active.
    pub peak_active_bytes: Option<u64>,
    /// Highest reserved.
    pub peak_reserved_bytes: Option<u64>,
    /// Requested when it ended.
    pub end_requested_bytes: u64,
}

impl PhaseEstimate {
    /// A phase of a timeline.
    #[must_use]
    pub fn of(phase: &PhaseMemory) -> PhaseEstimate {
        PhaseEstimate {
            name: phase.name.name(),
            step: phase.step,
            start_requested_bytes: phase.requested.start,
            peak_requested_bytes: phase.requested.peak,
            peak_allocated_bytes: phase.allocated.peak,
            peak_active_bytes: phase.active.map(|span| span.peak),
            peak_reserved_bytes: phase.reserved.map(|span| span.peak),
            end_requested_bytes: phase.requested.end,
        }
    }
}

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

/// The moment of peak allocated memory. Categories are requested bytes; with `rounding` and `cached_free` they add up to
/// `reserved_bytes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AtPeak {
    /// Phase.
    pub phase: Option<&'static str>,
    /// Training step.
    pub step: Option<u32>,
    /// Outermost operator.
    pub op: Option<String>,
    /// Module.
    pub module: Option<String>,
    /// Number of the event in the trace.
    pub event: usize,
    /// Requested bytes by category, every category.
    #[serde(flatten, serialize_with = "categories")]
    pub categories: Vec<(Category, u64)>,
    /// Allocated minus requested.
    pub rounding: u64,
    /// Reserved minus allocated; unknown where there is no caching allocator.
    pub cached_free: Option<u64>,
    /// Reserved at that moment.
    pub reserved_bytes: Option<u64>,
    /// Everything that was alive, largest first.
    pub live: Vec<LiveTensor>,
}

/// A range of reserved memory, and why it is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Interval {
    /// Lowest.
    pub low_reserved_bytes: u64,
    /// Highest.
    pub high_reserved_bytes: u64,
    /// What is not known.
    pub why: String,
}

/// What the estimate covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Operators run.
    pub ops: u64,
    /// Operators whose memory could not be recorded.
    pub ops_without_memory_record: u64,
    /// Operators whose sizes depend on values, which the simulated device does not compute.
    pub value_dependent_ops: Vec<String>,
    /// Library functions whose memory is not modelled.
    pub not_modelled_functions: Vec<String>,
}

/// The estimate; the JSON contract's `estimate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// Made from what.
    pub basis: Basis,
    /// The card.
    pub profile: Option<String>,
    /// `expected` or `safe`.
    pub bound: &'static str,
    /// Phases in order.
    pub phases: Vec<PhaseEstimate>,
    /// The phase with the highest allocated bytes.
    pub peak_phase: Option<&'static str>,
    /// Highest requested.
    pub peak_requested_bytes: Option<u64>,
    /// Highest allocated.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest active.
    pub peak_active_bytes: Option<u64>,
    /// Highest reserved.
    pub peak_reserved_bytes: Option<u64>,
    /// The moment of the peak.
    pub at_peak: Option<AtPeak>,
    /// Where the reserved figure is a range.
    pub interval: Option<Interval>,
    /// The CUDA context outside the allocator.
    pub context_bytes: Option<u64>,
    /// The card's memory, or the capacity asked for.
    pub device_total_bytes: Option<u64>,
    /// Whether it fits, where that was asked.
    pub fits: Option<bool>,
    /// Capacity minus context minus reserved; none where it does not fit or was not asked.
    pub margin_bytes: Option<u64>,
    /// The back-of-envelope method.
    pub rule_of_thumb: RuleOfThumb,
    /// What was taken for granted.
    pub assumptions: Vec<String>,
    /// What is covered.
    pub coverage: Coverage,
}

/// What an estimate is asked for besides the trace.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    /// The card.
    pub profile: Option<&'a Profile>,
    /// Capacity to fit into; none where nobody asked.
    pub capacity_bytes: Option<u64>,
    /// Allocator settings of the run.
    pub conf: AllocConf,
    /// The back-of-envelope method.
    pub rule_of_thumb: RuleOfThumb,
    /// Functions that the simulated device called without modelling them.
    pub not_modelled_functions: Vec<String>,
    /// Operators that read values of the device.
    pub reads: Vec<Reads>,
    /// Assumptions of the run itself (loss, optimizer, seed).
    pub assumptions: Vec<String>,
}

/// Operators whose output's size depends on values and which read it by themselves; those that call an operator which
/// reads ([`Reads`]) are told by that one.
const VALUE_DEPENDENT: [&str; 2] = ["aten::_unique", "torchvision::nms"];

impl Estimate {
    /// The estimate from a run on the simulated CUDA device.
    #[must_use]
    pub fn simulated(trace: &Trace, memory: &MemoryTimeline, question: &Question<'_>) -> Estimate {
        let interval = address_range(trace, &question.conf, memory.peak_reserved);
        let context = question.profile.and_then(|profile| profile.context_bytes);
        let out_of_memory = memory.out_of_memory > 0;
        let need = memory
            .peak_reserved
            .map(|reserved| reserved.saturating_add(context.unwrap_or(0)));
        let fits = question
            .capacity_bytes
            .zip(need)
            .map(|(capacity, need)| !out_of_memory && need <= capacity);
        let margin = match (fits, question.capacity_bytes, need) {
            (Some(true), Some(capacity), Some(need)) => capacity.checked_sub(need),
            _ => None,
        };
        let peak_of =
            |figure: fn(&PhaseMemory) -> Option<u64>| memory.phases.iter().filter_map(figure).max();
        let at_peak = memory
            .peak
            .as_ref()
            .map(|peak| at_peak(trace, memory, peak));
        Estimate {
            basis: Basis::CudaSim,
            profile: question.profile.map(|profile| profile.name.to_owned()),
            bound: "expected",
            phases: memory.phases.iter().map(PhaseEstimate::of).collect(),
            peak_phase: at_peak.as_ref().and_then(|peak| peak.phase),
            peak_requested_bytes: peak_of(|phase| Some(phase.requested.peak)),
            peak_allocated_bytes: peak_of(|phase| Some(phase.allocated.peak)),
            peak_active_bytes: peak_of(|phase| phase.active.map(|span| span.peak)),
            peak_reserved_bytes: memory.peak_reserved,
            at_peak,
            interval,
            context_bytes: context,
            device_total_bytes: question
                .capacity_bytes
                .or(question.profile.map(|profile| profile.total_bytes)),
            fits,
            margin_bytes: margin,
            rule_of_thumb: question.rule_of_thumb,
            assumptions: assumptions(trace, question),
            coverage: Coverage {
                ops: u64::from(trace.op_count),
                ops_without_memory_record: 0,
                value_dependent_ops: value_dependent(trace, &question.reads),
                not_modelled_functions: question.not_modelled_functions.clone(),
            },
        }
    }
}

/// Reserved memory with new segments above and below the last: the range that the driver decides.
fn address_range(trace: &Trace, conf: &AllocConf, reserved: Option<u64>) -> Option<Interval> {
    let reserved = reserved?;
    let limits = DeviceLimits::UNLIMITED;
    let up = model(trace, conf, limits, Placement::Upward)
        .ok()?
        .peak_reserved;
    let down = model(trace, conf, limits, Placement::Downward)
        .ok()?
        .peak_reserved;
    let (low, high) = (reserved.min(up).min(down), reserved.max(up).max(down));
    (low < high).then(|| Interval {
        low_reserved_bytes: low,
        high_reserved_bytes: high,
        why: "the driver decides whether new segments lie above or below the last, and ties between equal free \
              blocks go by address"
            .to_owned(),
    })
}

fn assumptions(trace: &Trace, question: &Question<'_>) -> Vec<String> {
    let mut all = question.assumptions.clone();
    let convolutions = trace.texts.iter().any(|text| {
        matches!(
            text.as_str(),
            "aten::cudnn_convolution"
                | "aten::cudnn_convolution_transpose"
                | "aten::cudnn_convolution_relu"
        )
    });
    if convolutions {
        all.push(
            "cuDNN's convolution workspaces are not included: only cuDNN on a card knows them. In 16 measured \
             convolution nets the figure without them was between 17 % under and 9 % over what the card reserved"
                .to_owned(),
        );
    }
    let answered: Vec<String> = question
        .reads
        .iter()
        .filter(|reads| reads.answered > 0)
        .map(|reads| format!("{} ×{}", reads.op, reads.answered))
        .collect();
    if !answered.is_empty() {
        all.push(format!(
            "values that the model reads on the device are those of the CPU run: {}",
            answered.join(", ")
        ));
    }
    match question.profile {
        Some(profile) if profile.context_bytes.is_none() => all.push(format!(
            "the CUDA context of {} is not known and not included",
            profile.title
        )),
        Some(profile) => all.push(format!("CUDA context: {}", profile.context_source)),
        None => {}
    }
    all
}

/// Those whose values nobody knew, of the model and its backward pass.
fn value_dependent(trace: &Trace, reads: &[Reads]) -> Vec<String> {
    let unknown = reads.iter().filter(|reads| reads.unknown > 0);
    let unwatched = VALUE_DEPENDENT
        .into_iter()
        .filter(|op| trace.texts.iter().any(|text| text == op));
    unknown
        .map(|reads| reads.op.clone())
        .chain(unwatched.map(str::to_owned))
        .collect()
}

fn at_peak(trace: &Trace, memory: &MemoryTimeline, peak: &Peak) -> AtPeak {
    let phase = peak.place.phase.and_then(|index| memory.phases.get(index));
    let text = |id: Option<u32>| id.map(|id| op_name(trace, id));
    AtPeak {
        phase: phase.map(|phase| phase.name.name()),
        step: phase.and_then(|phase| phase.step),
        op: text(peak.place.op),
        module: text(peak.place.module),
        event: peak.event,
        categories: memory.categories_at_peak(),
        rounding: peak.allocated.saturating_sub(peak.requested),
        cached_free: peak
            .reserved
            .map(|reserved| reserved.saturating_sub(peak.allocated)),
        reserved_bytes: peak.reserved,
        live: peak
            .live
            .iter()
            .filter_map(|id| live(trace, memory, *id))
            .collect(),
    }
}

/// An operator's or autograd node's name, without the words that libtorch's engine puts before a node.
fn op_name(trace: &Trace, id: u32) -> String {
    let name = trace.text(id);
    let node = name.strip_prefix("autograd::engine::evaluate_function: ");
    node.unwrap_or(name).to_owned()
}

fn live(trace: &Trace, memory: &MemoryTimeline, id: u32) -> Option<LiveTensor> {
    let life = memory.allocations.get(id as usize)?;
    let Place { op, module, .. } = life.place;
    let sig = life.sig.and_then(|sig| trace.sigs.get(sig as usize));
    Some(LiveTensor {
        bytes: life.bytes,
        category: life.category,
        name: life.name.clone(),
        module: module.map(|id| trace.text(id).to_owned()),
        op: op.map(|id| op_name(trace, id)),
        shape: sig.map(|sig| sig.shape.clone()),
        dtype: sig.map(|sig| sig.dtype.clone()),
    })
}

/// A category's name in reports.
#[must_use]
pub fn category_label(category: Category) -> &'static str {
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

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn category_name<S: Serializer>(category: &Category, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(category_label(*category))
}

fn categories<S: Serializer>(sums: &[(Category, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(CATEGORIES.iter().map(|category| {
        let bytes = sums
            .iter()
            .find(|sum| sum.0 == *category)
            .map_or(0, |sum| sum.1);
        (category_label(*category), bytes)
    }))
}
