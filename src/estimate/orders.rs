//! What the order of addresses can change.
//!
//! Equal free blocks are told apart by address, and drivers differ in where they put new segments. The allocations of a
//! run are the same whatever the addresses, so the memory model replays them in both orders and gives the range.

use std::collections::HashMap;

use crate::simulate::{
    AllocConf, Allocator, BlockId, DeviceLimits, OutOfMemory, Placement, StatKind,
};
use crate::trace::{Event, Trace};

/// What the memory model says of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modelled {
    /// Highest allocated bytes.
    pub peak_allocated: u64,
    /// Highest requested bytes.
    pub peak_requested: u64,
    /// Highest reserved bytes.
    pub peak_reserved: u64,
}

/// Replays the trace's allocations and frees through the memory model.
pub fn model(
    trace: &Trace,
    conf: &AllocConf,
    limits: DeviceLimits,
    placement: Placement,
) -> Result<Modelled, OutOfMemory> {
    let mut allocator = Allocator::new(conf.clone(), limits, placement);
    let mut blocks: HashMap<u32, BlockId> = HashMap::new();
    for event in &trace.events {
        match event {
            Event::Alloc {
                id, bytes, stream, ..
            } => {
                if let Some(block) = allocator.alloc(*bytes, *stream)? {
                    blocks.insert(*id, block);
                }
            }
            Event::Free { id, .. } => {
                if let Some(block) = blocks.remove(id) {
                    // The block came from this allocator and is freed once: the trace's reader has seen to it.
                    let _ = allocator.free(block);
                }
            }
            _ => {}
        }
    }
    let peak = |kind| allocator.stats().get(kind, None).peak;
    Ok(Modelled {
        peak_allocated: peak(StatKind::AllocatedBytes),
        peak_requested: peak(StatKind::RequestedBytes),
        peak_reserved: peak(StatKind::ReservedBytes),
    })
}
