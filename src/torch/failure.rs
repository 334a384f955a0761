//! What can end a task early, as the protocol says it.

use inspect_checkpoint::engine::protocol::{Failed, FailureKind, Signature};

use crate::ffi::TorchError;

/// A task that did not work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// To be told to the front.
    #[error("{}", .0.message)]
    Told(Box<Failed>),
    /// Nobody listens any more.
    #[error("cannot write to the front")]
    Output(#[from] std::io::Error),
}

impl Failure {
    /// A failure of `kind` with one sentence.
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure::Told(Box::new(Failed {
            kind,
            message: message.into(),
            detail: Vec::new(),
            signature: None,
        }))
    }

    /// An input that does not fit, with the schema.
    pub(crate) fn input(message: impl Into<String>, signature: &Signature) -> Failure {
        Failure::Told(Box::new(Failed {
            kind: FailureKind::InputMismatch,
            message: message.into(),
            detail: Vec::new(),
            signature: Some(signature.clone()),
        }))
    }

    /// libtorch's own error, of `kind` unless memory ran out.
    pub(crate) fn torch(kind: FailureKind, error: &TorchError) -> Failure {
        let (message, detail) = reason(&error.message);
        // TorchScript's interpreter turns every error into a plain runtime error: only the text is left.
        let kind = if error.out_of_memory || is_out_of_memory(&message) {
            FailureKind::OutOfMemory
        } else {
            kind
        };
        Failure::Told(Box::new(Failed {
            kind,
            message,
            detail,
            signature: None,
        }))
    }
}

impl From<TorchError> for Failure {
    fn from(error: TorchError) -> Self {
        Failure::torch(FailureKind::Internal, &error)
    }
}

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        let message = match error {
            tch::TchError::Torch(message) => message,
            other => other.to_string(),
        };
        TorchError {
            out_of_memory: message.contains("out of memory"),
            message,
        }
    }
}

impl From<tch::TchError> for Failure {
    fn from(error: tch::TchError) -> Self {
        Failure::torch(FailureKind::Internal, &TorchError::from(error))
    }
}

/// Whether the reason is an allocator's: that of CUDA, or that of the CPU.
fn is_out_of_memory(reason: &str) -> bool {
    reason.starts_with("CUDA out of memory. Tried to allocate")
        || reason.contains("DefaultCPUAllocator: can't allocate memory")
}

/// Most lines of the model's own stack that are worth reading.
const MAX_DETAIL_LINES: usize = 12;

/// Characters of a message, and of each line of the stack: a model may raise megabytes.
const MAX_MESSAGE: usize = 2_000;

/// The first characters of a text, the cut marked by `…`.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Cuts libtorch's text to its reason and to the model's own stack. An error of TorchScript's interpreter reads
/// `The following operation failed ...`, the stack, and last `RuntimeError: reason`; others begin with the reason.
/// C++ frames and source positions of libtorch itself help nobody and are dropped.
fn reason(text: &str) -> (String, Vec<String>) {
    let mut lines: Vec<&str> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !is_cpp_frame(line))
        .skip_while(|line| line.is_empty()) // an unknown operator's message begins with one
        .collect();
    let mut message = None;
    if lines
        .first()
        .is_some_and(|line| line.starts_with("The following operation failed"))
    {
        lines.remove(0);
        if let Some(at) = lines.iter().rposition(|line| is_exception(line)) {
            let cause = lines.split_off(at);
            let first = cause
                .first()
                .map(|line| without_class(line))
                .unwrap_or_default();
            message = Some(
                std::iter::once(first)
                    .chain(cause.into_iter().skip(1).map(str::to_owned))
                    .collect::<Vec<_>>()
                    .join(" "),
            );
        }
    }
    let message = match message {
        Some(text) => essential(&text),
        None if lines.is_empty() => "no reason given".to_owned(),
        None => essential(lines.remove(0)),
    };
    let mut detail: Vec<String> = lines
        .into_iter()
        .filter(|line| !line.trim().is_empty())
        .map(cut)
        .collect();
    detail.truncate(MAX_DETAIL_LINES);
    (cut(message.trim()), detail)
}

/// The part of a message that is about the model: without where libtorch's allocator found out, and without the list of
/// everything that is registered for other backends.
fn essential(text: &str) -> String {
    let text = text
        .find("DefaultCPUAllocator: ")
        .and_then(|at| text.get(at..))
        .unwrap_or(text);
    let text = text.split(" This could be because the operator").next();
    let text = text.unwrap_or_default().to_owned();
    if text.starts_with("Unknown builtin op") {
        return format!(
            "{} Only libtorch's own operators are available, none of other libraries such as torchvision",
            text.trim()
        );
    }
    text
}

fn is_exception(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(class, _)| {
        !class.is_empty()
            && class.ends_with("Error") | class.ends_with("Exception")
            && class
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_')
    })
}

fn without_class(line: &str) -> String {
    let text = line.split_once(": ").map_or(line, |(_, rest)| rest);
    text.to_owned()
}

fn is_cpp_frame(line: &str) -> bool {
    line.starts_with("frame #") || line.starts_with("Exception raised from ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_comes_first() {
        let text = "The following operation failed in the TorchScript interpreter.\n\
                    Traceback of TorchScript, serialized code (most recent call last):\n\
                    \x20 File \"code/__torch__.py\", line 7, in forward\n\
                    \x20   return torch.linear(x, self.weight)\n\
                    RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x4 and 3x2)\n";
        let (message, detail) = reason(text);
        assert_eq!(
            message,
            "mat1 and mat2 shapes cannot be multiplied (1x4 and 3x2)"
        );
        assert_eq!(detail.len(), 3);
    }

    #[test]
    fn a_message_of_megabytes_is_cut() {
        let (message, detail) = reason(&format!(
            "{}\n{}",
            "é".repeat(5_000_000),
            "x".repeat(5_000_000)
        ));
        assert_eq!(message.chars().count(), MAX_MESSAGE + 1);
        assert_eq!(detail[0].chars().count(), MAX_MESSAGE + 1);
    }

    #[test]
    fn frames_of_libtorch_are_dropped() {
        let (message, detail) =
            reason("open file failed\nException raised from x at y.cpp:3\nframe #0: a + 0x1\n");
        assert_eq!(message, "open file failed");
        assert!(detail.is_empty());
    }
}
