//! The peak of the same model run as an eager Python module.
//!
//! TorchScript's interpreter drops a value after its last use; Python keeps it as long as a variable of a running
//! function names it, and `nn.Module.__call__` keeps what a module was called with until it returns. The kernels and
//! their order are the same, so the two runs differ in when memory is given back, and in the weights of recurrent
//! networks, which an eager module has in one block.

use serde::Serialize;

use super::{Question, highest};
use crate::trace::memory::MemoryTimeline;

/// Peaks of a run whose values live as long as an eager Python module's variables hold them. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EagerPeak {
    /// Highest requested.
    pub peak_requested_bytes: Option<u64>,
    /// Highest allocated.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest active.
    pub peak_active_bytes: Option<u64>,
    /// Highest reserved.
    pub peak_reserved_bytes: Option<u64>,
    /// Whether it fits, where that was asked.
    pub fits: Option<bool>,
    /// Capacity minus context minus reserved; none where it does not fit or was not asked.
    pub margin_bytes: Option<u64>,
}

impl EagerPeak {
    /// The peaks of such a run.
    #[must_use]
    pub(super) fn of(memory: &MemoryTimeline, question: &Question<'_>) -> EagerPeak {
        let (fits, margin_bytes) = question.fits(memory);
        EagerPeak {
            peak_requested_bytes: highest(memory, |phase| Some(phase.requested.peak)),
            peak_allocated_bytes: highest(memory, |phase| Some(phase.allocated.peak)),
            peak_active_bytes: highest(memory, |phase| phase.active.map(|span| span.peak)),
            peak_reserved_bytes: memory.peak_reserved,
            fits,
            margin_bytes,
        }
    }
}
