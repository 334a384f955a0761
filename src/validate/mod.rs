//! An estimate beside a measurement: how far apart they are, and why.
//!
//! Both sides are lists of allocations and frees ([`Side`]): of the simulated device, of a real one, of somebody's
//! snapshot, of the CPU. They are brought into line (`align`), and the difference of each peak is split into terms: the
//! measured run is turned into the estimated one step by step, and each step's change of the peak is one term's. So the
//! terms add up to the difference exactly, whatever the moment of either peak.
//!
//! | term | step |
//! |---|---|
//! | `cudnn_workspace` | memory inside convolutions and cuDNN's recurrent networks that only one side has |
//! | `cublas_workspace`, `cublaslt_workspace` | likewise for matrix products |
//! | `scratch` | memory of one side only that no tensor ever shows |
//! | `rounding` | the same allocation with another size |
//! | `lifetimes` | the same allocation freed at another time |
//! | `unexplained` | every other allocation that only one side has |
//! | `fragmentation` | reserved memory: what the memory model makes of one and the same list, and what the allocator did |
//! | `reserved`, `context` | of the whole device's memory: the allocator's part, and everything outside it |
//!
//! Must not: read files, run anything.

mod align;
mod explain;
mod side;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::check::Tolerance;
use crate::estimate::PhaseFigures;
pub use side::{Side, SideError};

/// A number of both sides. Bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// `peak_requested_bytes`, `peak_allocated_bytes`, `peak_reserved_bytes`.
    pub metric: &'static str,
    /// The phase; none for the whole run.
    pub phase: Option<&'static str>,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// What the estimate says.
    pub estimated: Option<u64>,
    /// What was measured.
    pub measured: Option<u64>,
    /// (estimated - measured) / measured; 0 where they are equal; unknown where one of them is, or
    /// where nothing was measured of what is estimated.
    pub error_ratio: Option<f64>,
    /// Whether the estimate lies within the tolerance of the measured number; unknown where one of them is.
    pub within_tolerance: Option<bool>,
}

/// A part of the difference between the two sides' peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Term {
    /// The number whose difference it is a part of.
    pub metric: &'static str,
    /// Which part; see the module.
    pub term: &'static str,
    /// Bytes by which the measured number is higher because of it; unknown where nobody measured it.
    pub bytes: Option<i64>,
}

/// Allocations in which the sides differ, all of one kind and one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The term that it counts for.
    pub term: &'static str,
    /// Phase of the first, where that is known.
    pub phase: Option<&'static str>,
    /// The operator.
    pub op: Option<String>,
    /// The module.
    pub module: Option<String>,
    /// How many allocations.
    pub count: u64,
    /// Bytes of them in the estimate; none where it lacks them.
    pub estimated_bytes: Option<u64>,
    /// Bytes of them in the measurement; none where it lacks them.
    pub measured_bytes: Option<u64>,
}

/// The first operator in which the two runs are not the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpDifference {
    /// How many outermost operators are the same before it.
    pub index: usize,
    /// The estimate's; none where it has ended.
    pub estimated: Option<String>,
    /// The measurement's; none where it has ended.
    pub measured: Option<String>,
}

/// Whether the estimate was right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every number is within the tolerance.
    Pass,
    /// One is not, or nothing could be compared.
    Fail,
}

/// Everything that a comparison finds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Validation {
    /// Number by number: the whole run, then its phases.
    pub comparison: Vec<Compared>,
    /// The differences of the whole run's peaks, in parts.
    pub explained: Vec<Term>,
    /// Where the sides differ, in the order of the run; the first is where they part.
    pub differences: Vec<Difference>,
    /// Where the operators are not the same; none where they are, or a side has none.
    pub first_op_difference: Option<OpDifference>,
    /// Whether it is right.
    pub verdict: Verdict,
}

/// The whole run's figures, by name.
const METRICS: [&str; 3] = [REQUESTED, ALLOCATED, RESERVED];
const REQUESTED: &str = "peak_requested_bytes";
const ALLOCATED: &str = "peak_allocated_bytes";
const RESERVED: &str = "peak_reserved_bytes";
/// The whole device's memory, by whomever: shown, not judged.
const DEVICE_USED: &str = "device_used_bytes";

/// Compares an estimate with a measurement.
#[must_use]
pub fn compare(estimated: &Side, measured: &Side, tolerance: &Tolerance) -> Validation {
    let mut comparison = Vec::new();
    let (whole_estimated, whole_measured) = (estimated.peaks(), measured.peaks());
    for ((metric, ours), theirs) in METRICS.into_iter().zip(whole_estimated).zip(whole_measured) {
        comparison.push(compared(metric, None, ours, theirs, tolerance));
    }
    let used = (estimated.device_used, measured.device_used);
    comparison.push(Compared {
        within_tolerance: None,
        ..compared(DEVICE_USED, None, used.0, used.1, tolerance)
    });
    for (index, phase) in measured.phases.iter().enumerate() {
        let same = |other: &&PhaseFigures| (other.name, other.step) == (phase.name, phase.step);
        // Phases come in one order; a name and step that comes twice is paired in that order.
        let before = measured.phases.iter().take(index).filter(same).count();
        let ours = estimated.phases.iter().filter(same).nth(before);
        let ours = ours.map_or([None; 3], figures);
        for ((metric, ours), theirs) in METRICS.into_iter().zip(ours).zip(figures(phase)) {
            comparison.push(compared(metric, Some(phase), ours, theirs, tolerance));
        }
    }
    comparison.retain(|one| match one.metric {
        DEVICE_USED => one.measured.is_some(),
        _ => one.estimated.is_some() || one.measured.is_some(),
    });
    let explained = explain::Pairing::of(estimated, measured);
    let judged = comparison.iter().filter_map(|one| one.within_tolerance);
    let right = judged.clone().count() > 0 && judged.clone().all(|within| within);
    Validation {
        explained: explained.terms(),
        differences: explained.differences(),
        first_op_difference: first_op_difference(estimated, measured),
        verdict: if right { Verdict::Pass } else { Verdict::Fail },
        comparison,
    }
}

fn figures(phase: &PhaseFigures) -> [Option<u64>; 3] {
    [
        Some(phase.peak_requested_bytes),
        Some(phase.peak_allocated_bytes),
        phase.peak_reserved_bytes,
    ]
}

fn compared(
    metric: &'static str,
    phase: Option<&PhaseFigures>,
    estimated: Option<u64>,
    measured: Option<u64>,
    tolerance: &Tolerance,
) -> Compared {
    let both = estimated.zip(measured);
    let ratio = |(estimated, measured): (u64, u64)| match (estimated == measured, measured) {
        (true, _) => Some(0.0),
        (false, 0) => None,
        (false, _) => Some((estimated as f64 - measured as f64) / measured as f64),
    };
    let within = |(estimated, measured): (u64, u64)| {
        let bound = tolerance.bound;
        let high = bound.highest(Some(measured))?;
        Some(estimated <= high && estimated >= bound.lowest(Some(measured))?)
    };
    Compared {
        metric,
        phase: phase.map(|phase| phase.name),
        step: phase.and_then(|phase| phase.step),
        estimated,
        measured,
        error_ratio: both.and_then(ratio),
        within_tolerance: both.and_then(within),
    }
}

fn first_op_difference(estimated: &Side, measured: &Side) -> Option<OpDifference> {
    let (ours, theirs) = (&estimated.ops, &measured.ops);
    if ours.is_empty() || theirs.is_empty() {
        return None;
    }
    let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    (same < ours.len().max(theirs.len())).then(|| OpDifference {
        index: same,
        estimated: ours.get(same).cloned(),
        measured: theirs.get(same).cloned(),
    })
}
