//! Recordings of an allocator's life: a PyTorch memory snapshot or one of our own traces, told apart by content.

use super::snapshot::{self, SnapshotError};
use crate::simulate::recording::Recording;
use crate::trace::{TraceError, TraceReader};

/// What kind of file a recording came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingFormat {
    /// A pickle of `torch.cuda.memory._dump_snapshot`.
    Snapshot,
    /// A trace of `--save-trace`.
    Trace,
}

impl RecordingFormat {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "torch-memory-snapshot",
            Self::Trace => "inspect-trace",
        }
    }
}

/// Why a recording was not read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Not a snapshot, or a broken one.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// Not a trace, or a broken one.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Not text, though it starts like a trace.
    #[error("byte {offset} of the trace is not UTF-8")]
    NotText {
        /// Where.
        offset: u64,
    },
    /// A trace without any addresses, as a CPU's is.
    #[error(
        "a trace of device `{device}` records no CUDA allocator: only traces of `cuda` and `cuda-sim` can be replayed"
    )]
    NotCuda {
        /// The trace's device.
        device: String,
    },
}

/// Reads a recording's bytes.
pub fn read(bytes: &[u8]) -> Result<(Recording, RecordingFormat), RecordingError> {
    // Traces are JSON lines; no pickle of a dictionary starts with a brace that ends it.
    if !bytes.trim_ascii_start().starts_with(b"{\"") {
        return Ok((snapshot::read(bytes)?, RecordingFormat::Snapshot));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| RecordingError::NotText {
        offset: error.valid_up_to() as u64,
    })?;
    let mut reader = TraceReader::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        reader.line(line)?;
    }
    let trace = reader.finish()?;
    if !trace.header.device.starts_with("cuda") {
        return Err(RecordingError::NotCuda {
            device: trace.header.device,
        });
    }
    Ok((Recording::from_trace(&trace), RecordingFormat::Trace))
}
