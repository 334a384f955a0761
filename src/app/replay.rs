//! `inspect replay FILE`: the memory model alone, on a PyTorch memory snapshot or a saved trace.

use std::path::Path;

use super::{Exit, Failure};
use crate::cli::{Replay, ReplayFormat};
use crate::format::recording;
use crate::report::replay::{ReplayDocument, table};
use crate::simulate::recording::Recording;
use crate::simulate::replay::{ReplayOptions, replay as follow};
use crate::source::Source;

/// Replays a recording and says what it shows.
pub(super) fn replay(options: &Replay) -> Result<Exit, Failure> {
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
pub(super) fn read(path: &Path) -> Result<(Recording, u64, &'static str), Failure> {
    let source = Source::open(path).map_err(|error| Failure::new(Exit::INPUT, error))?;
    let bytes = source.bytes();
    let (recording, format) = recording::read(bytes).map_err(|error| {
        let hint = error.hint();
        let error = anyhow::Error::new(error);
        let failure = Failure::new(
            Exit::INPUT,
            error.context(format!("cannot replay `{}`", path.display())),
        );
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    Ok((recording, bytes.len() as u64, format.name()))
}
