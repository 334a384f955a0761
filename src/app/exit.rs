//! The exit codes, and the one map from what went wrong to one of them.

use std::path::Path;

use crate::engine::EngineError;
use crate::engine::protocol::FailureKind;
use crate::format::FormatError;
use crate::ui::{OutputError, Ui};

/// An exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exit(pub u8);

impl Exit {
    /// Done, and the answer is yes.
    pub const OK: Exit = Exit(0);
    /// Done, and the answer is no.
    pub const NO: Exit = Exit(1);
    /// Bad usage, or a file that cannot be read or trusted.
    pub const INPUT: Exit = Exit(2);
    /// No engine, it failed, or the model's own code did.
    pub const ENGINE: Exit = Exit(3);
    /// Ctrl-C.
    pub const INTERRUPTED: Exit = Exit(130);
}

/// Why a command did not do what was asked: text for the user and an exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    error: anyhow::Error,
    details: Vec<String>,
    hint: Option<String>,
}

impl Failure {
    /// A failure with this exit code.
    #[must_use]
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Failure {
            exit,
            error: error.into(),
            details: Vec::new(),
            hint: None,
        }
    }

    /// Bad usage or input, in one sentence.
    #[must_use]
    pub fn input(message: String) -> Self {
        Failure::new(Exit::INPUT, anyhow::Error::msg(message))
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts what it comes from under what it means.
    #[must_use]
    pub(super) fn context(mut self, message: String) -> Self {
        self.error = self.error.context(message);
        self
    }

    /// Whether the model's own code failed.
    pub(super) fn is_of_model(&self) -> bool {
        let engine = self.error.downcast_ref::<EngineError>();
        matches!(engine, Some(EngineError::Failed(failed)) if failed.kind == FailureKind::ModelError)
    }

    /// Adds what else is known of the cause.
    #[must_use]
    pub(super) fn detail(mut self, detail: String) -> Self {
        self.details.push(detail);
        self
    }

    /// A file that could not be read.
    #[must_use]
    pub fn unreadable(path: &Path, error: FormatError) -> Self {
        let hint = error.hint();
        let error = match error {
            // Names the path itself.
            FormatError::Source(source) => anyhow::Error::new(source),
            other => anyhow::Error::new(other).context(format!("cannot read `{}`", path.display())),
        };
        Failure {
            hint,
            ..Failure::new(Exit::INPUT, error)
        }
    }

    /// Whether it is not about one file among several: Ctrl-C, or a report that would replace what is read.
    pub(super) fn ends_all(&self) -> bool {
        let output = self.error.downcast_ref::<OutputError>();
        self.exit == Exit::INTERRUPTED || matches!(output, Some(OutputError::Input(_)))
    }

    /// What went wrong with its causes, on one line.
    pub(super) fn one_line(&self) -> String {
        format!("{:#}", self.error)
    }

    /// Why it came to that in the end, without where.
    pub(super) fn last_cause(&self) -> String {
        self.error.root_cause().to_string()
    }

    /// Tells the user.
    pub fn show(&self, ui: &Ui) {
        let mut causes: Vec<String> = self
            .error
            .chain()
            .skip(1)
            .map(ToString::to_string)
            .collect();
        // An error that quotes its cause has said it already.
        let mut said = self.error.to_string();
        causes
            .retain(|cause| !std::mem::replace(&mut said, cause.clone()).ends_with(cause.as_str()));
        ui.error(
            &self.error.to_string(),
            &causes,
            &self.details,
            self.hint.as_deref(),
        );
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let exit = match error {
            EngineError::Interrupted => Exit::INTERRUPTED,
            _ => Exit::ENGINE,
        };
        Failure {
            details: error.details(),
            hint: error.hint(),
            ..Failure::new(exit, error)
        }
    }
}

impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        let hint = error.hint();
        Failure {
            hint,
            ..Failure::new(Exit::INPUT, error)
        }
    }
}
