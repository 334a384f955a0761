//! What the allocator did, phase by phase, on a device that really computed; and what was live at the peak.

use serde::Serialize;

use crate::estimate::{AtPeak, PhaseFigures};
use crate::trace::Trace;
use crate::trace::memory::MemoryTimeline;

/// What was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredReport<'a> {
    /// Where: `cpu`, `cuda:0`.
    pub device: &'a str,
    /// Who says so.
    pub source: &'static str,
    /// Phases in order.
    pub phases: Vec<PhaseFigures>,
    /// Most bytes that callers had asked for.
    pub peak_requested_bytes: u64,
    /// Most bytes in blocks handed out.
    pub peak_allocated_bytes: u64,
    /// Most bytes got from the device; the CPU allocator keeps none back.
    pub peak_reserved_bytes: Option<u64>,
    /// Memory of the device that the process used.
    pub device_used_bytes: Option<u64>,
    /// The moment of most allocated bytes.
    pub at_peak: Option<AtPeak>,
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
        let phases: Vec<PhaseFigures> = memory.phases.iter().map(PhaseFigures::of).collect();
        let most = |of: fn(&PhaseFigures) -> u64| phases.iter().map(of).max().unwrap_or(0);
        Some(MeasuredReport {
            device,
            source,
            peak_requested_bytes: most(|phase| phase.peak_requested_bytes),
            peak_allocated_bytes: most(|phase| phase.peak_allocated_bytes),
            peak_reserved_bytes: memory.peak_reserved,
            phases,
            device_used_bytes: None,
            at_peak: AtPeak::of(trace, memory),
        })
    }
}
