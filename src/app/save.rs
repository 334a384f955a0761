//! `--save-trace` and `--save-snapshot`: what a run recorded, as files.

use std::path::PathBuf;

use super::{Exit, Failure};
use crate::cli::Save;
use crate::format::snapshot;
use crate::simulate::recording::Recording;
use crate::simulate::replay::complete;
use crate::trace::Trace;
use crate::ui::OutputError;

/// Whether it is one run that is saved.
pub(super) fn check(save: &Save, files: &[PathBuf]) -> Result<(), Failure> {
    if files.len() > 1 && save.targets().next().is_some() {
        let message = "`--save-trace` and `--save-snapshot` are for one file at a time".to_owned();
        return Err(Failure::input(message));
    }
    Ok(())
}

/// Writes what was asked for, each file whole or not at all.
pub(super) fn write(save: &Save, trace: &Trace) -> Result<(), Failure> {
    if let Some(target) = &save.trace {
        target.write(|out| trace.write(out))?;
    }
    let Some(target) = &save.snapshot else {
        return Ok(());
    };
    if !trace.header.device.starts_with("cuda") {
        let message = format!(
            "no memory snapshot was saved: a run on `{}` has no CUDA allocator",
            trace.header.device
        );
        return Err(Failure::new(Exit::INPUT, anyhow::Error::msg(message))
            .hint("leave `--no-sim` out, or use `--device cuda-sim`"));
    }
    let mut recording = Recording::from_trace(trace);
    complete(&mut recording);
    target
        .write(|out| snapshot::write(&recording, out))
        .map_err(|error: OutputError| error.into())
}
