//! What `inspect replay` prints: text for people, and [`ReplayReport`] with its file as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::{SCHEMA_VERSION, Tool};
use crate::simulate::replay::{
    CallSite, DeviceReplay, Fragmentation, LiveGroup, OutOfMemoryEvent, Peak, ReplayReport, Start,
    WhatIf,
};
use crate::text::escape;
use crate::units::{Units, grouped};

/// The JSON of `inspect replay`.
#[derive(Debug, Serialize)]
pub struct ReplayDocument<'a> {
    schema_version: u32,
    tool: Tool,
    file: ReplayFile<'a>,
    #[serde(flatten)]
    report: &'a ReplayReport,
}

#[derive(Debug, Serialize)]
struct ReplayFile<'a> {
    path: &'a str,
    bytes: u64,
    format: &'static str,
}

impl<'a> ReplayDocument<'a> {
    /// A replay with the file it is of, as the user named it.
    #[must_use]
    pub fn new(report: &'a ReplayReport, path: &'a str, bytes: u64, format: &'static str) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            tool: Tool::THIS,
            file: ReplayFile {
                path,
                bytes,
                format,
            },
            report,
        }
    }
}

/// Frames of a stack that the text shows.
const FRAMES: usize = 6;

/// Groups of live memory that the text shows.
const GROUPS: usize = 12;

/// Writes a replay as text.
pub fn table(report: &ReplayReport, units: Units, out: &mut dyn Write) -> io::Result<()> {
    for (index, device) in report.devices.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        Text { units, out }.device(device)?;
    }
    for finding in &report.findings {
        let location = escape(&finding.location);
        writeln!(
            out,
            "{}: {} ({}: {location})",
            finding.severity, finding.message, finding.code
        )?;
    }
    Ok(())
}

struct Text<'a> {
    units: Units,
    out: &'a mut dyn Write,
}

impl Text<'_> {
    fn line(&mut self, name: &str, value: &str) -> io::Result<()> {
        writeln!(self.out, "  {name:<22} {value}")
    }

    fn bytes(&self, bytes: u64) -> String {
        self.units.bytes(bytes)
    }

    fn device(&mut self, device: &DeviceReplay) -> io::Result<()> {
        let start = match device.start {
            Start::Cold => "from nothing",
            Start::Warm => "from a state worked out backwards",
            Start::None => "no events, segments only",
        };
        writeln!(self.out, "device {}: {start}", device.device)?;
        self.counts(device)?;
        self.verdict(device)?;
        if let Some(peaks) = &device.peaks {
            writeln!(self.out)?;
            self.peak("peak requested", &peaks.requested, &[])?;
            self.peak("peak allocated", &peaks.allocated, &peaks.requested.stack)?;
            self.peak("peak active", &peaks.active, &peaks.allocated.stack)?;
            self.peak("peak reserved", &peaks.reserved, &peaks.active.stack)?;
        }
        if !device.live_at_peak.is_empty() {
            let when = if device.peaks.is_some() {
                "at the allocated peak"
            } else {
                "at the end"
            };
            writeln!(
                self.out,
                "\n  in use {when}, by the place that allocated it"
            )?;
            self.groups(&device.live_at_peak)?;
        }
        writeln!(self.out, "\n  at the end")?;
        let allocated = self.bytes(device.end.allocated_bytes);
        let reserved = self.bytes(device.end.reserved_bytes);
        self.line("allocated", &allocated)?;
        self.line("reserved", &reserved)?;
        self.fragmentation(&device.fragmentation)?;
        if let Some(oom) = &device.first_oom {
            self.out_of_memory(oom)?;
        }
        if let Some(bytes) = device.smallest_memory_bytes {
            let exact = grouped(bytes);
            let text = format!("{} ({exact} B) of allocator memory", self.bytes(bytes));
            writeln!(self.out)?;
            self.line("least that runs", &text)?;
        }
        device
            .what_if
            .as_ref()
            .map_or(Ok(()), |what_if| self.what_if(what_if))
    }

    fn counts(&mut self, device: &DeviceReplay) -> io::Result<()> {
        let mut parts = Vec::new();
        for (count, what) in [
            (device.allocations, "allocations"),
            (device.frees, "frees"),
            (device.segment_allocs, "segments from the device"),
            (device.segment_frees, "segments given back"),
            (device.segment_maps, "mappings"),
            (device.segment_unmaps, "unmappings"),
            (device.ooms, "out of memory"),
        ] {
            if count > 0 {
                parts.push(format!("{} {what}", grouped(count)));
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        self.line("events", &parts.join(", "))
    }

    fn verdict(&mut self, device: &DeviceReplay) -> io::Result<()> {
        let equal = |equal: Option<bool>| match equal {
            Some(true) => "equal",
            Some(false) => "different",
            None => "not recorded",
        };
        self.line("mismatches", &grouped(device.mismatches))?;
        if let Some(first) = &device.first_mismatch {
            let event = first
                .event
                .map_or_else(String::new, |event| format!(" at event {event}"));
            let text = format!("expected {}, got {}", first.expected, first.got);
            self.line(&format!("first{event}"), &text)?;
        }
        let (segments, blocks) = (device.end.segments_equal, device.end.blocks_equal);
        let text = format!("{}, blocks {}", equal(segments), equal(blocks));
        self.line("final segments", &text)
    }

    /// A peak; its stack only where it is not the one shown above.
    fn peak(&mut self, name: &str, peak: &Peak, shown: &[CallSite]) -> io::Result<()> {
        let place = match (peak.event, peak.requested_bytes) {
            (Some(event), Some(bytes)) => {
                format!("event {event}, a request of {}", self.bytes(bytes))
            }
            (Some(event), None) => format!("event {event}"),
            (None, _) => "there at the start".to_owned(),
        };
        let text = format!(
            "{} ({} B), {place}",
            self.bytes(peak.bytes),
            grouped(peak.bytes)
        );
        self.line(name, &text)?;
        if peak.stack == shown {
            return Ok(());
        }
        self.stack(&peak.stack)
    }

    /// The frames that tell something: Python's where there are any.
    fn stack(&mut self, stack: &[CallSite]) -> io::Result<()> {
        let python = stack.iter().any(CallSite::is_python);
        let tells = |frame: &&CallSite| {
            if python {
                frame.is_python()
            } else {
                !frame.is_machinery()
            }
        };
        for frame in stack.iter().filter(tells).take(FRAMES) {
            writeln!(self.out, "      {}", call_site(frame))?;
        }
        let more = stack.iter().filter(tells).count().saturating_sub(FRAMES);
        if more > 0 {
            writeln!(self.out, "      ... {more} more")?;
        }
        Ok(())
    }

    fn groups(&mut self, groups: &[LiveGroup]) -> io::Result<()> {
        for group in groups.iter().take(GROUPS) {
            let place = group
                .frame
                .as_ref()
                .map_or("not recorded".to_owned(), call_site);
            let before = if group.before_recording {
                ", before the recording"
            } else {
                ""
            };
            let bytes = self.bytes(group.bytes);
            let blocks = grouped(group.blocks);
            writeln!(
                self.out,
                "    {bytes:>10} in {blocks:>6} blocks  {place}{before}"
            )?;
        }
        let rest = groups.get(GROUPS..).unwrap_or_default();
        if !rest.is_empty() {
            let bytes = self.bytes(rest.iter().map(|group| group.bytes).sum());
            writeln!(self.out, "    {bytes:>10} at {} more places", rest.len())?;
        }
        Ok(())
    }

    fn fragmentation(&mut self, free: &Fragmentation) -> io::Result<()> {
        for (name, bytes) in [
            ("free of that", free.free_bytes),
            ("  could be given back", free.returnable_bytes),
            ("  stuck between blocks", free.stuck_bytes),
            ("largest free block", free.largest_free_block_bytes),
        ] {
            let text = self.bytes(bytes);
            self.line(name, &text)?;
        }
        Ok(())
    }

    fn out_of_memory(&mut self, oom: &OutOfMemoryEvent) -> io::Result<()> {
        writeln!(self.out, "\n  out of memory at event {}", oom.event)?;
        let text = format!(
            "{} with {} left on the device",
            self.bytes(oom.tried_bytes),
            self.bytes(oom.device_free_bytes)
        );
        self.line("tried to allocate", &text)?;
        let text = self.bytes(oom.allocated_bytes);
        self.line("allocated", &text)?;
        let text = self.bytes(oom.reserved_bytes);
        self.line("reserved", &text)?;
        self.fragmentation(&oom.fragmentation)?;
        self.stack(&oom.stack)
    }

    fn what_if(&mut self, what_if: &WhatIf) -> io::Result<()> {
        let memory = what_if
            .memory_bytes
            .map_or("any memory".to_owned(), |n| self.bytes(n));
        writeln!(self.out, "\n  the same program with {memory}")?;
        let verdict = match (what_if.first_oom_event, what_if.tried_bytes) {
            (Some(event), Some(bytes)) => {
                format!("no: event {event} cannot get {}", self.bytes(bytes))
            }
            _ => "yes".to_owned(),
        };
        self.line("runs", &verdict)?;
        self.line("retries", &grouped(what_if.num_alloc_retries))?;
        for (name, bytes) in [
            ("peak requested", what_if.peak_requested_bytes),
            ("peak allocated", what_if.peak_allocated_bytes),
            ("peak active", what_if.peak_active_bytes),
            ("peak reserved", what_if.peak_reserved_bytes),
        ] {
            let text = format!("{} ({} B)", self.bytes(bytes), grouped(bytes));
            self.line(name, &text)?;
        }
        Ok(())
    }
}

fn call_site(frame: &CallSite) -> String {
    let (name, file) = (escape(&frame.name), escape(&frame.filename));
    match (frame.filename.is_empty(), frame.line) {
        (true, _) => name,
        (false, 0) => format!("{name}  {file}"),
        (false, line) => format!("{name}  {file}:{line}"),
    }
}
