//! Detection by content and one reader per format.

#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

pub mod pickle;
pub mod snapshot;

use std::path::Path;

use crate::checkpoint::{Checkpoint, ModelError};
use crate::source::{Source, SourceError};

/// How a file is read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {}

/// Why a file was not read: what, where, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The path could not be opened.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The facts in the file contradict each other.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Not a file of a format this tool reads.
    #[error("not a checkpoint: it is {what}")]
    NotACheckpoint {
        /// What it is instead.
        what: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
}

impl FormatError {
    /// What the user can do about it, where there is something.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            FormatError::NotACheckpoint { hint, .. } => *hint,
            _ => None,
        }
    }
}

/// Reads the checkpoint at `path` without running anything in it.
pub fn read(path: &Path, options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    read_source(&Source::open(path)?, options)
}

/// Reads a checkpoint that is open already.
pub fn read_source(source: &Source, _options: &ReadOptions) -> Result<Checkpoint, FormatError> {
    let _ = source;
    Err(FormatError::NotACheckpoint {
        what: "of a kind this version does not know".to_owned(),
        hint: None,
    })
}
