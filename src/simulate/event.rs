//! What the allocator asks of the device, and what it cannot do.

use super::{BlockId, Stream};

/// No block could be found or made for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of memory: tried to allocate {tried_bytes} bytes for a request of {requested_bytes}, with {reserved_bytes} of {limit_bytes} bytes reserved"
)]
pub struct OutOfMemory {
    /// What the caller asked for.
    pub requested_bytes: u64,
    /// The segment that did not fit: what PyTorch's message calls "tried to allocate".
    pub tried_bytes: u64,
    /// Held from the device at that moment.
    pub reserved_bytes: u64,
    /// The device's memory, or the process's share of it.
    pub limit_bytes: u64,
}

/// A free of something that was not handed out, or was freed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("block {0:?} is not allocated")]
pub struct NotAllocated(pub BlockId);

/// What the allocator asked of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEvent {
    /// cudaMalloc of a segment.
    SegmentAlloc(DeviceRange),
    /// cudaFree of a segment.
    SegmentFree(DeviceRange),
    /// Pages mapped into an expandable segment.
    SegmentMap(DeviceRange),
    /// Pages unmapped from one.
    SegmentUnmap(DeviceRange),
}

impl DeviceEvent {
    /// The addresses it is about.
    #[must_use]
    pub fn range(&self) -> DeviceRange {
        match self {
            Self::SegmentAlloc(range)
            | Self::SegmentFree(range)
            | Self::SegmentMap(range)
            | Self::SegmentUnmap(range) => *range,
        }
    }
}

/// Addresses that a [`DeviceEvent`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRange {
    /// First address.
    pub addr: u64,
    /// How many bytes.
    pub bytes: u64,
    /// The stream whose blocks lie there.
    pub stream: Stream,
}
