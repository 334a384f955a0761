//! Memory phase by phase, as reports show it.

use serde::Serialize;

use crate::trace::memory::PhaseMemory;

/// One phase: a row of the contract's `phases`, estimated or measured. Bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PhaseFigures {
    /// `load`, `inputs`, `forward`, `backward`, `optimizer`.
    pub name: &'static str,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// Requested when it began.
    pub start_requested_bytes: u64,
    /// Highest requested.
    pub peak_requested_bytes: u64,
    /// Highest allocated.
    pub peak_allocated_bytes: u64,
    /// Highest active; unknown where a caching allocator did not tell.
    pub peak_active_bytes: Option<u64>,
    /// Highest reserved; none where the allocator keeps nothing back.
    pub peak_reserved_bytes: Option<u64>,
    /// Requested when it ended.
    pub end_requested_bytes: u64,
}

impl PhaseFigures {
    /// A phase of a timeline.
    #[must_use]
    pub fn of(phase: &PhaseMemory) -> PhaseFigures {
        // Without streams that hold blocks back, what is handed out is what is active: the CPU's allocator has none.
        let active = match (phase.active, phase.reserved) {
            (None, None) => Some(phase.allocated),
            (active, _) => active,
        };
        PhaseFigures {
            name: phase.name.name(),
            step: phase.step,
            start_requested_bytes: phase.requested.start,
            peak_requested_bytes: phase.requested.peak,
            peak_allocated_bytes: phase.allocated.peak,
            peak_active_bytes: active.map(|span| span.peak),
            peak_reserved_bytes: phase.reserved.map(|span| span.peak),
            end_requested_bytes: phase.requested.end,
        }
    }
}
