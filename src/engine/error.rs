//! Everything that can go wrong between front and engine.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::protocol::{BUILD_ID, Device, Failed, FailureKind, PROTOCOL};

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// The system did not say.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exited with code {code}"),
            Exit::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "was killed by {name} (signal {signal})"),
                None => write!(f, "was killed by signal {signal}"),
            },
            Exit::Unknown => f.write_str("ended in an unknown way"),
        }
    }
}

/// Why an engine gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No engine where one should be.
    #[error("the engine `inspect-torch` was not found: no file at `{}`", .tried.display())]
    NotFound {
        /// Where it was looked for.
        tried: PathBuf,
    },
    /// The running program's own path is unknown, so nothing can be beside it.
    #[error("the engine `inspect-torch` was not found: this program's own path is unknown")]
    NoOwnPath(#[source] io::Error),
    /// There, but it does not start.
    #[error("the engine `{}` could not be started", .program.display())]
    Start {
        /// The engine.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A library to preload whose path the dynamic linker would split.
    #[error("`{}` cannot be preloaded: the dynamic linker splits paths at spaces and colons", .path.display())]
    PreloadPath {
        /// The library.
        path: PathBuf,
    },
    /// The limit on memory could not be set.
    #[error("the engine's memory could not be limited to {limit} bytes")]
    Limit {
        /// The limit asked for.
        limit: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// It ended without a word.
    #[error("the engine `{}` {exit} before it said hello", .program.display())]
    NoHello {
        /// The engine.
        program: PathBuf,
        /// How it ended.
        exit: Exit,
        /// The end of its stderr.
        stderr: String,
    },
    /// It did not say hello in time.
    #[error("the engine `{}` did not say hello within {} s", .program.display(), .waited.as_secs())]
    HelloTimeout {
        /// The engine.
        program: PathBuf,
        /// How long was waited.
        waited: Duration,
        /// The end of its stderr.
        stderr: String,
    },
    /// It speaks another version of the protocol.
    #[error("the engine `{}` speaks protocol {theirs}, expected {PROTOCOL}", .program.display())]
    Protocol {
        /// The engine.
        program: PathBuf,
        /// Its version.
        theirs: u32,
    },
    /// It was built from other sources.
    #[error("the engine `{}` is of build `{theirs}`, expected `{BUILD_ID}`", .program.display())]
    Build {
        /// The engine.
        program: PathBuf,
        /// Its build.
        theirs: String,
    },
    /// A line that is none of the protocol's.
    #[error("the engine printed something that is not its protocol, in line {line}: `{excerpt}`")]
    NotProtocol {
        /// Line of its stdout, from 1.
        line: u64,
        /// The beginning of the line, escaped.
        excerpt: String,
    },
    /// A line of the protocol in the wrong place.
    #[error("the engine sent `{kind}` in line {line}, where {expected} was expected")]
    Misplaced {
        /// Line of its stdout, from 1.
        line: u64,
        /// Its `type`.
        kind: String,
        /// What should have come.
        expected: &'static str,
    },
    /// A line longer than any the protocol has.
    #[error("the engine's line {line} is longer than {limit} bytes")]
    LineTooLong {
        /// Line of its stdout, from 1.
        line: u64,
        /// The limit.
        limit: usize,
    },
    /// The trace could not be read.
    #[error("the engine's line {line} is not a line of a trace")]
    Trace {
        /// Line of its stdout, from 1.
        line: u64,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Trace lines went missing.
    #[error("the engine said it wrote {said} lines of trace, {counted} arrived")]
    TraceLines {
        /// Its count.
        said: u64,
        /// Ours.
        counted: u64,
    },
    /// It ended in the middle of its work.
    #[error("the engine {exit} while {stage}")]
    Crashed {
        /// How it ended.
        exit: Exit,
        /// What it had last said it was doing.
        stage: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It ended because the memory it may have was not enough.
    #[error("the engine ran out of memory while {stage}: it may have {} bytes", .limit)]
    OutOfLimit {
        /// The limit.
        limit: u64,
        /// What it had last said it was doing.
        stage: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It took longer than the user allows.
    #[error("the engine did not finish within {}, while {stage}", seconds(*.limit))]
    Timeout {
        /// The limit.
        limit: Duration,
        /// What it had last said it was doing.
        stage: String,
    },
    /// Its stdout could not be read.
    #[error("the engine's output could not be read")]
    Read(#[source] io::Error),
    /// The request could not be written as JSON.
    #[error("the request to the engine could not be written as JSON")]
    Encode(#[source] serde_json::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// This libtorch has no CUDA code.
    #[error("`{device}` cannot be used: this libtorch was built without CUDA")]
    NoCuda {
        /// What was asked for.
        device: Device,
    },
    /// libtorch's CUDA code cannot be loaded, mostly because NVIDIA's libraries are not there.
    #[error("`{device}` cannot be used: {reason}")]
    NoCudaLibraries {
        /// What was asked for.
        device: Device,
        /// The dynamic linker's words.
        reason: String,
    },
    /// There is no driver.
    #[error("`{device}` cannot be used: this machine has no NVIDIA driver")]
    NoDriver {
        /// What was asked for.
        device: Device,
    },
    /// There is a driver and no card that it lets this process use.
    #[error("`{device}` cannot be used: the NVIDIA driver finds no such GPU")]
    NoGpu {
        /// What was asked for.
        device: Device,
    },
    /// The engine itself says that it cannot.
    #[error("{}", .0.message)]
    Failed(Box<Failed>),
}

/// `90 s`, `0.5 s`.
fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

impl EngineError {
    /// What else is known, one line each: the end of the engine's stderr, the model's own stack.
    #[must_use]
    pub fn details(&self) -> Vec<String> {
        match self {
            EngineError::NoHello { stderr, .. }
            | EngineError::HelloTimeout { stderr, .. }
            | EngineError::OutOfLimit { stderr, .. }
            | EngineError::Crashed { stderr, .. } => last_lines(stderr),
            EngineError::Failed(failed) => failed.detail.clone(),
            _ => Vec::new(),
        }
    }

    /// The same for a run that was to use a real GPU: why there is none, as far as the engine's words and the machine
    /// tell. `has_driver` says whether [`nvidia_driver`] found one.
    #[must_use]
    pub fn on_device(self, device: Device, has_driver: bool) -> EngineError {
        let EngineError::Failed(failed) = &self else {
            return self;
        };
        if !matches!(device, Device::Cuda(_)) || failed.kind != FailureKind::Unsupported {
            return self;
        }
        let message = failed.message.as_str();
        if message.contains("built without CUDA") {
            EngineError::NoCuda { device }
        } else if message.contains("libtorch_cuda.so cannot be opened") {
            let reason = message.to_owned();
            EngineError::NoCudaLibraries { device, reason }
        } else if !message.contains("finds no GPU") {
            self
        } else if has_driver {
            EngineError::NoGpu { device }
        } else {
            EngineError::NoDriver { device }
        }
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            EngineError::NotFound { .. } | EngineError::NoOwnPath(_) => {
                "build it with `cargo build --release`, or name it in the environment variable INSPECT_ENGINE"
            }
            EngineError::Protocol { .. } | EngineError::Build { .. } => {
                "build both programs together: `cargo build --release`"
            }
            EngineError::NoHello { stderr, .. } if stderr.contains("libtorch") => {
                "libtorch seems to be missing: run `scripts/setup`, then `inspect doctor`"
            }
            EngineError::NoHello { .. } | EngineError::HelloTimeout { .. } => {
                "`inspect doctor` says what is installed"
            }
            EngineError::Crashed {
                exit: Exit::Signal(9),
                ..
            } => "the system kills a program so when memory runs out; a smaller input needs less",
            EngineError::OutOfLimit { .. } => "allow more with `--memory-limit`",
            EngineError::Timeout { .. } => "allow more with `--timeout`",
            EngineError::NoCuda { .. } => {
                "`scripts/setup` installs one with CUDA; a LIBTORCH of your own must have lib/libtorch_cuda.so"
            }
            EngineError::NoCudaLibraries { .. } => {
                "`scripts/setup --full` installs NVIDIA's libraries; `--device cuda-sim` needs none of them"
            }
            EngineError::NoDriver { .. } => {
                "install the driver of your card; `--device cuda-sim` runs without one"
            }
            EngineError::NoGpu { .. } => {
                "see what `nvidia-smi` lists, and CUDA_VISIBLE_DEVICES; `--device cuda-sim` runs without a GPU"
            }
            EngineError::Failed(failed) => return failed_hint(failed),
            _ => return None,
        };
        Some(text.to_owned())
    }
}

/// Whether the system has NVIDIA's driver: its kernel module says so in /proc, on WSL there is Microsoft's device.
#[must_use]
pub fn nvidia_driver() -> bool {
    ["/proc/driver/nvidia/version", "/dev/dxg"]
        .iter()
        .any(|path| std::path::Path::new(path).exists())
}

fn failed_hint(failed: &Failed) -> Option<String> {
    match failed.kind {
        FailureKind::InputMismatch | FailureKind::ModelError => failed
            .signature
            .as_ref()
            .map(|signature| format!("the schema is `{signature}`")),
        FailureKind::NoSuchMethod => {
            Some("`--signature` shows the schema, `--method` chooses another method".to_owned())
        }
        FailureKind::OutOfMemory => {
            Some("a smaller input needs less memory; `--memory-limit` allows more".to_owned())
        }
        _ => None,
    }
}

/// At most this many lines of the engine's stderr go into an error.
const STDERR_LINES: usize = 5;

fn last_lines(stderr: &str) -> Vec<String> {
    let lines: Vec<&str> = stderr
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let skip = lines.len().saturating_sub(STDERR_LINES);
    lines
        .iter()
        .skip(skip)
        .map(|line| excerpt(line.as_bytes()))
        .collect()
}

/// Text from an engine as shown in a message: escaped, at most 200 characters.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 200;
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index >= MOST {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_named() {
        assert_eq!(
            Exit::Signal(11).to_string(),
            "was killed by SIGSEGV (signal 11)"
        );
        assert_eq!(Exit::Signal(63).to_string(), "was killed by signal 63");
        assert_eq!(Exit::Code(4).to_string(), "exited with code 4");
    }

    #[test]
    fn why_there_is_no_gpu() {
        let said = |message: &str, kind, device, has_driver| {
            let failed = Failed {
                kind,
                message: message.to_owned(),
                detail: Vec::new(),
                signature: None,
            };
            let error = EngineError::Failed(Box::new(failed)).on_device(device, has_driver);
            (error.to_string(), error.hint())
        };
        let gpu = Device::Cuda(0);
        let mut hints = Vec::new();
        for (words, has_driver, expected) in [
            (
                "this libtorch was built without CUDA",
                false,
                "this libtorch was built without CUDA",
            ),
            (
                "libtorch_cuda.so cannot be opened: libcudnn.so.9: no such file",
                true,
                "libtorch_cuda.so cannot be opened: libcudnn.so.9: no such file",
            ),
            (
                "libtorch finds no GPU for `cuda:0`",
                false,
                "this machine has no NVIDIA driver",
            ),
            (
                "libtorch finds no GPU for `cuda:0`",
                true,
                "the NVIDIA driver finds no such GPU",
            ),
        ] {
            let (text, hint) = said(words, FailureKind::Unsupported, gpu, has_driver);
            assert_eq!(text, format!("`cuda:0` cannot be used: {expected}"));
            hints.push(hint.unwrap());
        }
        hints.dedup();
        assert_eq!(hints.len(), 4, "{hints:?}");
        for (kind, device) in [
            (FailureKind::ModelError, gpu),
            (FailureKind::Unsupported, Device::Cpu),
        ] {
            assert_eq!(
                said("it finds no GPU", kind, device, true).0,
                "it finds no GPU"
            );
        }
    }

    #[test]
    fn stderr_is_cut_to_its_last_lines_and_escaped() {
        let lines = last_lines("1\n2\n\n3\n4\n5\n6 \x1b[31mred\n");
        assert_eq!(lines, ["2", "3", "4", "5", "6 \\u{1b}[31mred"]);
        assert_eq!(excerpt(&[b'x'; 300]).chars().count(), 201);
    }
}
