//! What the allocator did, phase by phase, on a device that really computed; and what was live at the peak.

use serde::Serialize;

use crate::estimate::{AtPeak, PhaseFigures};
use crate::trace::memory::{MemoryTimeline, PhaseMemory};
use crate::trace::{DeviceMemory, Trace};

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredReport<'a> {
    /// Where: `cpu`, `cuda:0`.
    pub device: &'a str,
    /// Who says so.
    pub source: &'static str,
    /// Phases in order.
    pub phases: Vec<MeasuredPhase>,
    /// Most bytes that callers had asked for.
    pub peak_requested_bytes: u64,
    /// Most bytes in blocks handed out.
    pub peak_allocated_bytes: u64,
    /// Most bytes got from the device; the CPU allocator keeps none back.
    pub peak_reserved_bytes: Option<u64>,
    /// Most memory of the whole GPU in use, by whomever; none on the CPU.
    pub device_used_bytes: Option<u64>,
    /// The moment of most allocated bytes.
    pub at_peak: Option<AtPeak>,
}

/// A phase that was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredPhase {
    /// The allocator's figures.
    #[serde(flatten)]
    pub figures: PhaseFigures,
    /// Memory of the whole GPU in use, by whomever; none on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceMemory>,
    /// Time on the GPU by its own events, ns; none on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_time_ns: Option<u64>,
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
        let measured = |phase: &PhaseMemory| MeasuredPhase {
            figures: PhaseFigures::of(phase),
            device: phase.device,
            device_time_ns: phase.device_ns,
        };
        let phases: Vec<MeasuredPhase> = memory.phases.iter().map(measured).collect();
        let most = |of: fn(&PhaseFigures) -> u64| {
            let figures = phases.iter().map(|phase| of(&phase.figures));
            figures.max().unwrap_or(0)
        };
        Some(MeasuredReport {
            device,
            source,
            peak_requested_bytes: most(|phase| phase.peak_requested_bytes),
            peak_allocated_bytes: most(|phase| phase.peak_allocated_bytes),
            peak_reserved_bytes: memory.peak_reserved,
            device_used_bytes: memory.device_used(),
            phases,
            at_peak: AtPeak::of(trace, memory),
        })
    }
}
