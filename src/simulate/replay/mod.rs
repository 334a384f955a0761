//! Replays of recordings: every place and every segment is predicted and compared, and what follows from that.
//!
//! The allocator model is fed with the recorded allocations and frees. What the driver decides is taken from the
//! recording (addresses of new segments); what the program decides without an event (`empty_cache`) is seen by what
//! was released. Everything else is predicted: where each block lies, when segments are taken from the device, how
//! large they are, what a release gives back, and the final state.
//!
//! A recording that starts in the middle of a program's life is replayed from a state worked out backwards from its
//! end (`rebuild`).
//!
//! | module | owns |
//! |---|---|
//! | `rebuild` | the state before the first event |
//! | `run` | following a recording, event by event |
//! | `analysis` | who held the memory, fragmentation |
//! | `what_if` | the same program with other settings or less memory |
//! | `report` | what is reported |

mod analysis;
mod rebuild;
mod report;
mod run;
mod what_if;

pub use report::{
    CallSite, DeviceReplay, Final, Fragmentation, LiveGroup, Mismatch, OutOfMemoryEvent, Peak,
    Peaks, ReplayFinding, ReplayReport, Start, WhatIf,
};

use std::collections::{HashMap, HashSet};

use super::SegmentView;
use super::conf::{AllocConf, AllocConfError};
use super::recording::{Action, DeviceRecording, RecordedSegment, Recording};

/// What to find out besides the replay itself.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// Settings to try (`--alloc-conf`).
    pub alloc_conf: Option<String>,
    /// A capacity to try, in bytes (`--memory`).
    pub memory_bytes: Option<u64>,
    /// Whether to look for the least memory with which the recording still runs.
    pub find_smallest_memory: bool,
    /// How many groups of live memory to list; 0: all.
    pub top: usize,
}

/// Replays a recording on the allocator model.
///
/// The only error is settings that PyTorch would refuse, in [`ReplayOptions::alloc_conf`]; whatever is wrong with the
/// recording is in the report.
pub fn replay(
    recording: &Recording,
    options: &ReplayOptions,
) -> Result<ReplayReport, AllocConfError> {
    let other = options
        .alloc_conf
        .as_deref()
        .map(AllocConf::parse)
        .transpose()?;
    let mut findings = Vec::new();
    let conf = recorded_conf(recording, &mut findings);
    for (action, count) in &recording.unknown_actions {
        let message = format!("{count} events of a kind that is not understood were left out");
        findings.push(ReplayFinding::warning(
            "unknown-event",
            action.clone(),
            message,
        ));
    }
    for device in recording.devices.iter().filter(|d| d.unknown_requests > 0) {
        let message = format!(
            "{} blocks in use without their requested size: their own size counts, so requested bytes may be high",
            device.unknown_requests
        );
        let location = format!("device {}", device.device);
        findings.push(ReplayFinding::warning(
            "no-requested-size",
            location,
            message,
        ));
    }
    let devices = recording
        .devices
        .iter()
        .map(|device| {
            let run = run::follow(device, &conf);
            if run.mismatches.count > 0 {
                findings.extend(gone_pools(device));
            }
            let stacks = &recording.stacks;
            let mut replay = report::device_replay(device, &run, stacks, options.top);
            if !device.events.is_empty() {
                if other.is_some() || options.memory_bytes.is_some() {
                    let conf = other.as_ref().unwrap_or(&conf);
                    let tried = what_if::try_out(device, &run.initial, conf, options.memory_bytes);
                    replay.what_if = Some(tried);
                }
                if options.find_smallest_memory {
                    let conf = other.as_ref().unwrap_or(&conf);
                    replay.smallest_memory_bytes = what_if::smallest(device, &run.initial, conf);
                }
            }
            replay
        })
        .collect();
    Ok(ReplayReport { devices, findings })
}

/// What differences may come from where segments came and went within the recording: only the final segments tell
/// which pool they belong to.
fn gone_pools(device: &DeviceRecording) -> Option<ReplayFinding> {
    let mut came = HashSet::new();
    let mut gone = 0_u64;
    for event in &device.events {
        match event.action {
            Action::SegmentAlloc => {
                came.insert((event.addr, event.bytes));
            }
            Action::SegmentFree => gone += u64::from(came.remove(&(event.addr, event.bytes))),
            _ => {}
        }
    }
    let message = format!(
        "{gone} segments came and went within the recording; those of a private pool (a CUDA graph, a MemPool) cannot \
         be told from the default pool's, and count as differences"
    );
    let location = format!("device {}", device.device);
    (gone > 0).then(|| ReplayFinding::warning("pool-unknown", location, message))
}

/// Sizes of the blocks that a device handed out, by the event's index, and the settings that were in force.
#[must_use]
pub fn block_sizes(
    recording: &Recording,
    device: &DeviceRecording,
) -> (HashMap<usize, u64>, AllocConf) {
    let conf = recorded_conf(recording, &mut Vec::new());
    (run::follow(device, &conf).block_bytes, conf)
}

/// Gives devices that have events but no final segments the model's, so that the recording can be written as a
/// snapshot.
pub fn complete(recording: &mut Recording) {
    let conf = recorded_conf(recording, &mut Vec::new());
    for device in &mut recording.devices {
        if device.segments.is_none() {
            let run = run::follow(device, &conf);
            let stacks = analysis::stacks_at_end(device);
            let with_stacks = |segment: SegmentView| RecordedSegment {
                stacks: segment
                    .blocks
                    .iter()
                    .map(|block| stacks.get(&block.addr).copied().unwrap_or_default())
                    .collect(),
                segment,
            };
            let segments = run.allocator.segments();
            device.segments = Some(segments.into_iter().map(with_stacks).collect());
        }
    }
}

/// The settings that were in force when the file was recorded; PyTorch's defaults where it does not tell.
fn recorded_conf(recording: &Recording, findings: &mut Vec<ReplayFinding>) -> AllocConf {
    let text = recording.settings.as_deref().unwrap_or_default();
    let mut conf = AllocConf::parse(text).unwrap_or_else(|error| {
        let message =
            format!("other versions' settings, of which those that are understood count: {error}");
        findings.push(ReplayFinding::warning(
            "alloc-conf",
            text.to_owned(),
            message,
        ));
        understood(text)
    });
    // Settings made at run time are not in the text, but this one shows.
    conf.expandable_segments |= recording.devices.iter().any(|device| {
        let segments = device.segments.iter().flatten();
        device.count(Action::SegmentMap) > 0
            || segments.map(|s| &s.segment).any(|s| s.is_expandable)
    });
    conf
}

/// The settings of a text that can be read, one by one.
fn understood(text: &str) -> AllocConf {
    let mut depth = 0_u32;
    let entries = text.split(|c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    let mut conf = AllocConf::default();
    let mut kept = String::new();
    for entry in entries {
        let longer = if kept.is_empty() {
            entry.to_owned()
        } else {
            format!("{kept},{entry}")
        };
        if let Ok(parsed) = AllocConf::parse(&longer) {
            (conf, kept) = (parsed, longer);
        }
    }
    conf
}
