//! GPU memory: how much a run needs, where its peak is and what holds it, and whether it fits.
//!
//! One [`Estimate`] whatever the trace came from (the simulated CUDA device, a real one, a file). It adds nothing to
//! what the trace shows: where something is not known (convolution workspaces, a context nobody has published) it is
//! `None` or an assumption in words.
//!
//! The estimate serializes exactly as the JSON contract's `estimate`.

mod bound;
mod calibration;
pub mod cpu_trace;
mod eager;
pub mod fit;
mod optimizer;
mod orders;
mod peak;
mod phase;
pub mod profile;
pub mod rule_of_thumb;
mod without_run;

use serde::Serialize;

pub use bound::{Bound, SafeMargin};
pub use calibration::{CALIBRATION_VERSION, Calibration, CalibrationError, SegmentOrder};
pub use eager::EagerPeak;
pub use optimizer::{OPTIMIZERS, OptimizerState};
pub use orders::{Modelled, model};
pub use peak::{AtPeak, LiveTensor};
pub use phase::PhaseFigures;
pub use profile::{DEFAULT_PROFILE, PROFILES, Profile, UnknownProfile};
pub use rule_of_thumb::RuleOfThumb;
pub use without_run::Training;

use crate::simulate::{AllocConf, DeviceLimits, Placement};
use crate::trace::memory::{MemoryTimeline, PhaseMemory};
use crate::trace::{Reads, Trace};

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
    pub phases: Vec<PhaseFigures>,
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
    /// The same run with the lifetimes of an eager Python module; none where that is what was run, or was not.
    pub eager: Option<EagerPeak>,
    /// How a safe figure came about; none where it is the expected one.
    pub safe_margin: Option<SafeMargin>,
    /// Where the reserved figure is a range.
    pub interval: Option<Interval>,
    /// The CUDA context outside the allocator.
    pub context_bytes: Option<u64>,
    /// The card's memory, or the capacity asked for.
    pub device_total_bytes: Option<u64>,
    /// Whether memory ran out, so that the run ended there: all figures but `eager` are of what it had come to.
    pub out_of_memory: bool,
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
    /// The figure that is expected, or one that should never be too low.
    pub bound: Bound,
    /// The same run with the lifetimes of an eager Python module; none where that is the run itself, or was not made.
    pub eager: Option<&'a MemoryTimeline>,
    /// The back-of-envelope method.
    pub rule_of_thumb: RuleOfThumb,
    /// Functions that the simulated device called without modelling them.
    pub not_modelled_functions: Vec<String>,
    /// Operators that read values of the device.
    pub reads: Vec<Reads>,
    /// Operators whose memory on CUDA has no rule.
    pub ops_without_rule: u64,
    /// Assumptions of the run itself (loss, optimizer, seed).
    pub assumptions: Vec<String>,
}

/// Operators whose output's size depends on values and which read it by themselves; those that call an operator which
/// reads ([`Reads`]) are told by that one.
const VALUE_DEPENDENT: [&str; 2] = ["aten::_unique", "torchvision::nms"];

impl Estimate {
    /// The estimate from a run on a CUDA device: the simulated one, or what a CPU's run becomes on one.
    #[must_use]
    pub fn of_run(
        basis: Basis,
        trace: &Trace,
        memory: &MemoryTimeline,
        question: &Question<'_>,
    ) -> Estimate {
        let range = || address_range(trace, &question.conf, memory.peak_reserved);
        let interval = if question.order_is_measured() {
            None
        } else {
            range()
        };
        let context = question.profile.and_then(|profile| profile.context_bytes);
        let (fits, margin) = question.fits(memory);
        let at_peak = AtPeak::of(trace, memory);
        let mut estimate = Estimate {
            basis,
            profile: question
                .profile
                .map(|profile| profile.name.clone().into_owned()),
            bound: Bound::Expected.name(),
            phases: memory.phases.iter().map(PhaseFigures::of).collect(),
            peak_phase: at_peak.as_ref().and_then(|peak| peak.phase),
            peak_requested_bytes: highest(memory, |phase| Some(phase.requested.peak)),
            peak_allocated_bytes: highest(memory, |phase| Some(phase.allocated.peak)),
            peak_active_bytes: highest(memory, |phase| phase.active.map(|span| span.peak)),
            peak_reserved_bytes: memory.peak_reserved,
            at_peak,
            eager: question.eager.map(|eager| EagerPeak::of(eager, question)),
            safe_margin: None,
            interval,
            context_bytes: context,
            device_total_bytes: question
                .capacity_bytes
                .or(question.profile.map(|profile| profile.total_bytes)),
            out_of_memory: memory.out_of_memory > 0,
            fits,
            margin_bytes: margin,
            rule_of_thumb: question.rule_of_thumb,
            assumptions: assumptions(basis, trace, question),
            coverage: Coverage {
                ops: u64::from(trace.op_count),
                ops_without_memory_record: question.ops_without_rule,
                value_dependent_ops: value_dependent(trace, &question.reads),
                not_modelled_functions: question.not_modelled_functions.clone(),
            },
        };
        if question.bound == Bound::Safe {
            estimate.make_safe(trace, question);
        }
        estimate
    }
}

impl Question<'_> {
    /// Whether a run fits into the capacity asked for, and what is left where it does; bytes.
    fn fits(&self, memory: &MemoryTimeline) -> (Option<bool>, Option<u64>) {
        let context = self.profile.and_then(|profile| profile.context_bytes);
        let need = memory
            .peak_reserved
            .map(|reserved| reserved.saturating_add(context.unwrap_or(0)));
        let Some((capacity, need)) = self.capacity_bytes.zip(need) else {
            return (None, None);
        };
        let fits = memory.out_of_memory == 0 && need <= capacity;
        let margin = if fits {
            capacity.checked_sub(need)
        } else {
            None
        };
        (Some(fits), margin)
    }
}

/// The library function that stands for convolutions whose workspace nobody knew, in
/// [`Question::not_modelled_functions`].
const UNKNOWN_WORKSPACE: &str = "convolution workspace ";

impl Question<'_> {
    /// The card, where it was measured.
    fn measured(&self) -> Option<&Calibration> {
        self.profile?.measured.as_deref()
    }

    /// Whether it is known where the card's driver puts new segments; the run was made in that order.
    fn order_is_measured(&self) -> bool {
        self.measured()
            .is_some_and(|measured| measured.segment_order.is_some())
    }

    /// Whether the run had cuDNN's workspaces for all of its convolutions.
    fn workspaces_are_measured(&self, basis: Basis) -> bool {
        let mut functions = self.not_modelled_functions.iter();
        self.measured().is_some()
            && basis == Basis::CudaSim
            && !functions.any(|function| function.starts_with(UNKNOWN_WORKSPACE))
    }

    /// What the figure takes for granted of them.
    fn workspaces_text(&self, basis: Basis) -> String {
        let measured = self.profile.filter(|profile| profile.measured.is_some());
        match measured.filter(|_| basis == Basis::CudaSim) {
            None => "cuDNN's convolution workspaces are not included: only cuDNN on a card knows them. In 16 measured \
                     convolution nets the figure without them was between 17 % under and 9 % over what the card \
                     reserved"
                .to_owned(),
            Some(card) if self.workspaces_are_measured(basis) => {
                format!("cuDNN's convolution workspaces: measured on {}", card.title)
            }
            Some(card) => format!(
                "cuDNN's convolution workspaces: measured on {}, but not for all of these convolutions; the others' are \
                 not included. `inspect calibrate` with this model, input and mode measures them",
                card.title
            ),
        }
    }
}

/// The highest of a figure over all phases.
fn highest(memory: &MemoryTimeline, figure: fn(&PhaseMemory) -> Option<u64>) -> Option<u64> {
    memory.phases.iter().filter_map(figure).max()
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

fn assumptions(basis: Basis, trace: &Trace, question: &Question<'_>) -> Vec<String> {
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
        all.push(question.workspaces_text(basis));
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
    all.extend(context_text(question.profile));
    all
}

/// Where the size of a card's CUDA context comes from, or that it is not known.
#[must_use]
pub fn context_text(profile: Option<&Profile>) -> Option<String> {
    let profile = profile?;
    Some(match profile.context_bytes {
        None => format!(
            "the CUDA context of {} is not known and not included",
            profile.title
        ),
        Some(_) => format!("CUDA context: {}", profile.context_source),
    })
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
