//! Recordings of an allocator's life: a PyTorch memory snapshot or one of our own traces, told apart by content; either
//! may be compressed with gzip, as PyTorch's memory viewer takes it.

use std::borrow::Cow;
use std::io::Read;

use super::snapshot::{self, SnapshotError};
use crate::limits;
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
    /// Compressed, but not to be inflated, or not to so little.
    #[error("the gzip data cannot be inflated")]
    Gzip(#[source] std::io::Error),
    /// Compressed from more than any recording.
    #[error("the gzip data inflates to more than {limit_bytes} bytes")]
    TooLarge {
        /// The bound.
        limit_bytes: u64,
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

impl RecordingError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Snapshot(_) => Some(
                "expected what `torch.cuda.memory._dump_snapshot` writes, or a trace of `--save-trace`",
            ),
            Self::NotCuda { .. } => {
                Some("`--device cuda-sim --save-trace FILE` makes one without a GPU")
            }
            Self::Trace(_) | Self::NotText { .. } | Self::Gzip(_) | Self::TooLarge { .. } => None,
        }
    }
}

/// What a gzip file begins with.
const GZIP: &[u8] = b"\x1f\x8b";

fn inflated(bytes: &[u8]) -> Result<Cow<'_, [u8]>, RecordingError> {
    if !bytes.starts_with(GZIP) {
        return Ok(Cow::Borrowed(bytes));
    }
    let limit_bytes = (bytes.len() as u64)
        .saturating_mul(limits::RECORDING_PER_GZIP_BYTE)
        .max(limits::INFLATED_BYTES);
    let mut reader = flate2::read::MultiGzDecoder::new(bytes).take(limit_bytes.saturating_add(1));
    let mut all = Vec::new();
    reader.read_to_end(&mut all).map_err(RecordingError::Gzip)?;
    if all.len() as u64 > limit_bytes {
        return Err(RecordingError::TooLarge { limit_bytes });
    }
    Ok(Cow::Owned(all))
}

/// Reads a recording's bytes.
pub fn read(bytes: &[u8]) -> Result<(Recording, RecordingFormat), RecordingError> {
    let bytes = inflated(bytes)?;
    let bytes = bytes.as_ref();
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
