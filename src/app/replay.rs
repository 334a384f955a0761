//! `inspect replay FILE`: the memory model alone, on a PyTorch memory snapshot or a saved trace.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{Exit, Failure};
use crate::cli::{Replay, ReplayFormat};
use crate::format::snapshot;
use crate::report::replay::{ReplayDocument, table};
use crate::simulate::recording::Recording;
use crate::simulate::replay::{ReplayOptions, replay as follow};
use crate::source::Source;
use crate::trace::TraceReader;

/// What a saved trace begins with; a snapshot is a pickle and begins with its protocol.
const TRACE_START: &[u8] = b"{\"header\"";

/// Replays a recording and says what it shows.
pub(super) fn replay(options: &Replay) -> Result<Exit, Failure> {
    options.target.check()?;
    let (recording, bytes, format) = read(&options.file)?;
    let asked = ReplayOptions {
        alloc_conf: options.alloc_conf.clone(),
        memory_bytes: options.memory_bytes,
        find_smallest_memory: options.smallest,
        top: options.top.unwrap_or(0),
    };
    let report = follow(&recording, &asked).map_err(|error| Failure::new(Exit::INPUT, error))?;
    let path = options.file.display().to_string();
    options.target.write(|out| match options.format {
        ReplayFormat::Table => table(&report, options.units, out),
        ReplayFormat::Json => {
            let document = ReplayDocument::new(&report, &path, bytes, format);
            serde_json::to_writer_pretty(&mut *out, &document)?;
            writeln!(out)
        }
    })?;
    let ran_out = report
        .devices
        .iter()
        .any(|device| device.what_if.as_ref().is_some_and(|tried| !tried.fits));
    Ok(if ran_out { Exit::NO } else { Exit::OK })
}

/// A recording with the file's size and the name of its format.
fn read(path: &Path) -> Result<(Recording, u64, &'static str), Failure> {
    let source = Source::open(path).map_err(|error| Failure::new(Exit::INPUT, error))?;
    let bytes = source.bytes();
    let size = bytes.len() as u64;
    let failed = |error: anyhow::Error| {
        Failure::new(
            Exit::INPUT,
            error.context(format!("cannot replay `{}`", path.display())),
        )
    };
    if bytes.starts_with(TRACE_START) {
        let recording = trace(path).map_err(failed)?;
        return Ok((recording, size, "inspect-trace"));
    }
    let recording = snapshot::read(bytes).map_err(|error| {
        failed(error.into()).hint(
            "expected what `torch.cuda.memory._dump_snapshot` writes, or a trace of `--save-trace`",
        )
    })?;
    Ok((recording, size, "torch-memory-snapshot"))
}

fn trace(path: &Path) -> Result<Recording, anyhow::Error> {
    let mut reader = TraceReader::new();
    for line in BufReader::new(File::open(path)?).lines() {
        reader.line(&line?)?;
    }
    Ok(Recording::from_trace(&reader.finish()?))
}
