//! The files of a check besides checkpoints: baselines and budgets, and why they cannot be used.

use std::path::{Path, PathBuf};

use super::super::{Exit, Failure};
use crate::check::{Baseline, BaselineError, BudgetError};

/// What is where a baseline should be.
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// A baseline.
    Baseline(Box<Baseline>),
    /// Something else.
    Other {
        /// What is wrong with it.
        failure: Failure,
        /// Whether it may have been one: it is empty, or JSON by its first character.
        maybe_baseline: bool,
    },
}

/// The baseline at a path.
pub(super) fn baseline(path: &Path) -> Found {
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Found::Nothing,
        Err(error) => {
            return Found::Other {
                failure: unreadable(path, "baseline", error),
                maybe_baseline: false,
            };
        }
    };
    match Baseline::read(&text) {
        Ok(baseline) => Found::Baseline(Box::new(baseline)),
        Err(error) => Found::Other {
            failure: no_baseline(path, error),
            maybe_baseline: text
                .trim_ascii_start()
                .first()
                .is_none_or(|byte| *byte == b'{'),
        },
    }
}

/// The text of a budget file.
pub(super) fn budget(path: &Path) -> Result<Vec<u8>, Failure> {
    read(path).map_err(|error| unreadable(path, "budget", error))
}

/// A whole file; never a device, which may have no end.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    std::fs::read(path)
}

fn unreadable(path: &Path, what: &str, error: std::io::Error) -> Failure {
    let error =
        anyhow::Error::new(error).context(format!("cannot read the {what} `{}`", path.display()));
    Failure::new(Exit::INPUT, error)
}

/// Why a baseline cannot be compared with.
pub(super) fn no_baseline(path: &Path, error: BaselineError) -> Failure {
    let hint = error.hint();
    let error =
        anyhow::Error::new(error).context(format!("cannot compare with `{}`", path.display()));
    Failure::new(Exit::INPUT, error).hint(hint)
}

/// Why a budget file cannot be used.
pub(super) fn no_budget(path: &Path, error: BudgetError) -> Failure {
    let hint = error.hint();
    let error =
        anyhow::Error::new(error).context(format!("cannot use the budget `{}`", path.display()));
    let failure = Failure::new(Exit::INPUT, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// A file as a budget in this folder names it.
pub(super) fn relative(file: &Path, folder: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = if folder.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        folder.to_owned()
    };
    let (file, folder) = (absolute(file), absolute(&folder));
    file.strip_prefix(&folder)
        .map_or(file.clone(), Path::to_owned)
}
