//! The same program on another device, or with other settings: its allocations and frees, without the recording's
//! addresses and segments.
//!
//! A release of unused memory in the recording is taken for the program's own `empty_cache`, except in a recording
//! that ran out of memory, where a release right before an allocation is the allocator's own.

use std::collections::HashMap;

use super::super::allocator::Allocator;
use super::super::conf::AllocConf;
use super::super::device::{DeviceLimits, Placement};
use super::super::recording::{Action, DeviceRecording};
use super::rebuild::Initial;
use super::report::WhatIf;
use super::run::{is_release, start};
use crate::simulate::{BlockId, MIB};

/// Capacities differ by no less than this: the driver hands out memory in such pieces.
const STEP_BYTES: u64 = 2 * MIB;

struct Tried {
    allocator: Allocator,
    failed: Option<(usize, u64)>,
}

/// What would happen with these settings, and this capacity if one is given.
pub(super) fn try_out(
    recording: &DeviceRecording,
    initial: &Initial,
    conf: &AllocConf,
    memory_bytes: Option<u64>,
) -> WhatIf {
    let limits = memory_bytes.map_or(DeviceLimits::UNLIMITED, |total_bytes| DeviceLimits {
        total_bytes,
    });
    let tried = run(recording, initial, conf, limits);
    let stats = tried.allocator.stats();
    WhatIf {
        memory_bytes,
        fits: tried.failed.is_none(),
        first_oom_event: tried.failed.map(|(event, _)| event),
        tried_bytes: tried.failed.map(|(_, bytes)| bytes),
        num_alloc_retries: stats.num_alloc_retries,
        peak_requested_bytes: stats.requested_bytes().peak,
        peak_allocated_bytes: stats.allocated_bytes().peak,
        peak_active_bytes: stats.active_bytes().peak,
        peak_reserved_bytes: stats.reserved_bytes().peak,
    }
}

/// The least capacity, in steps of 2 MiB, with which the recording still runs, by bisection; `None` where it does
/// not even with all the memory there is.
pub(super) fn smallest(
    recording: &DeviceRecording,
    initial: &Initial,
    conf: &AllocConf,
) -> Option<u64> {
    let unlimited = run(recording, initial, conf, DeviceLimits::UNLIMITED);
    if unlimited.failed.is_some() {
        return None;
    }
    let stats = unlimited.allocator.stats();
    // Nothing runs in less than its blocks; everything runs in what it took without a limit.
    let mut fails = stats.allocated_bytes().peak / STEP_BYTES;
    let mut runs = stats.reserved_bytes().peak.div_ceil(STEP_BYTES);
    let fits = |steps: u64| {
        let total_bytes = steps * STEP_BYTES;
        run(recording, initial, conf, DeviceLimits { total_bytes })
            .failed
            .is_none()
    };
    if fails >= runs || fits(fails) {
        return Some(fails.min(runs) * STEP_BYTES);
    }
    while runs - fails > 1 {
        let middle = fails + (runs - fails) / 2;
        if fits(middle) {
            runs = middle;
        } else {
            fails = middle;
        }
    }
    Some(runs * STEP_BYTES)
}

fn run(
    recording: &DeviceRecording,
    initial: &Initial,
    conf: &AllocConf,
    limits: DeviceLimits,
) -> Tried {
    let (mut allocator, mut live) =
        start(conf, initial, limits, Placement::Upward).unwrap_or_else(|_| {
            let allocator = Allocator::new(conf.clone(), limits, Placement::Upward);
            (allocator, HashMap::new())
        });
    allocator.set_memory_fraction(conf.per_process_memory_fraction);
    if allocator.device_used_bytes() > limits.total_bytes {
        allocator.empty_cache();
    }
    let private_pools = recording.private_pools();
    let ran_out = recording.count(Action::OutOfMemory) > 0;
    let mut failed = None;
    let mut releasing = false;
    for (index, event) in recording.events.iter().enumerate() {
        if releasing && !is_release(event.action) {
            releasing = false;
            let grows = matches!(event.action, Action::SegmentAlloc | Action::SegmentMap);
            let own = ran_out && (grows || event.action == Action::OutOfMemory);
            if !own {
                allocator.empty_cache();
            }
        }
        match event.action {
            Action::Alloc => {
                let pool = private_pools.of(event.addr);
                match allocator.alloc_in(pool, event.bytes, event.stream) {
                    Ok(id) => live.extend(id.map(|id| (event.addr, id))),
                    Err(error) => {
                        failed = Some((index, error.tried_bytes));
                        break;
                    }
                }
            }
            Action::FreeRequested => request(&mut allocator, live.get(&event.addr).copied()),
            Action::FreeCompleted => {
                let id = live.remove(&event.addr);
                complete(&mut allocator, id);
            }
            action => releasing |= is_release(action),
        }
    }
    if releasing {
        allocator.empty_cache();
    }
    Tried { allocator, failed }
}

/// A block that the recording frees twice, or that was never there, changes nothing.
fn request(allocator: &mut Allocator, id: Option<BlockId>) {
    if let Some(id) = id {
        let _ = allocator.request_free(id);
    }
}

fn complete(allocator: &mut Allocator, id: Option<BlockId>) {
    if let Some(id) = id
        && allocator.complete_free(id).is_err()
    {
        let _ = allocator.free(id);
    }
}
