//! One conversation with an engine, from the request to its last line.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::error::{EngineError, Exit, excerpt};
use super::options::EngineOptions;
use super::process::{Chunk, MAX_LINE_BYTES, Process};
use super::protocol::{BUILD_ID, Done, Hello, Message, PROTOCOL, Progress, Request};

/// libtorch needs a fifth of a second to start; a cold disk and a busy machine some more.
const HELLO_TIMEOUT: Duration = Duration::from_secs(60);

/// How often Ctrl-C and the clock are looked at while the engine is silent.
const TICK: Duration = Duration::from_millis(50);

/// How long an engine may take to end after its last line.
const END_GRACE: Duration = Duration::from_secs(3);

/// What the C++ library and the dynamic linker say when the system refuses them memory.
const NO_MEMORY: [&str; 5] = [
    "bad_alloc",
    "Cannot allocate memory",
    "cannot allocate memory",
    "failed to map segment from shared object", // the loader
    "memory allocation of",                     // Rust
];

/// Receives what an engine says while it works.
pub trait Observer {
    /// How far it is.
    fn progress(&mut self, progress: &Progress);
    /// One line of the trace, without its newline.
    fn trace_line(&mut self, line: &str) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// An answer: who gave it, and how it ended. The trace went to the observer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The engine's first line.
    pub hello: Hello,
    /// Its last.
    pub done: Done,
}

/// Starts an engine, asks it one thing and hears it out. `interrupted` ends it early.
pub fn ask(
    request: &Request,
    options: &EngineOptions,
    observer: &mut dyn Observer,
    interrupted: &AtomicBool,
) -> Result<Answer, EngineError> {
    let (process, chunks, program) = start(request, options)?;
    Conversation::new(Some(process), chunks, options, program, None).hear(observer, interrupted)
}

/// Asks for two things at once, of which a copy of the engine does the second ([`Request::copy`]): libtorch is loaded
/// once for both. Both answers, where the first came about.
pub fn ask_both(
    request: &Request,
    options: &EngineOptions,
    observer: &mut dyn Observer,
    copy_observer: &mut (dyn Observer + Send),
    interrupted: &AtomicBool,
) -> Result<(Answer, Result<Answer, EngineError>), EngineError> {
    let (process, chunks, program) = start(request, options)?;
    let started = |source| EngineError::Start {
        program: program.clone(),
        source,
    };
    let copied = process.copy().map_err(started)?;
    let copied = copied.ok_or_else(|| started(std::io::ErrorKind::InvalidInput.into()))?;
    let over = AtomicBool::new(false);
    let copy = Conversation::new(None, copied, options, program.clone(), None);
    let first = Conversation::new(Some(process), chunks, options, program, Some(&over));
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let answer = copy.hear(copy_observer, interrupted);
            over.store(true, Ordering::Relaxed);
            answer
        });
        let answer = first.hear(observer, interrupted);
        // Where the first has failed, its engine and the copy are gone.
        let copied = beside.join().unwrap_or(Err(EngineError::Interrupted));
        Ok((answer?, copied))
    })
}

/// Starts an engine and gives it the request.
fn start(
    request: &Request,
    options: &EngineOptions,
) -> Result<(Process, Receiver<Chunk>, PathBuf), EngineError> {
    let line = serde_json::to_vec(request).map_err(EngineError::Encode)?;
    let program = options.locate()?;
    let command = options.command(&program)?;
    let (mut process, chunks) =
        Process::spawn(command, request.copy.is_some()).map_err(|source| EngineError::Start {
            program: program.clone(),
            source,
        })?;
    if let Some(limit) = options.memory_limit {
        process
            .limit_memory(limit)
            .map_err(|source| EngineError::Limit { limit, source })?;
    }
    process.send(line);
    Ok((process, chunks, program))
}

struct Conversation<'a> {
    /// The engine; none for its copy, which ends with it.
    process: Option<Process>,
    chunks: Receiver<Chunk>,
    /// Whether the copy's conversation is over, where there is one: the engine waits for its copy.
    copy_is_over: Option<&'a AtomicBool>,
    options: &'a EngineOptions,
    program: PathBuf,
    started: Instant,
    hello: Option<Hello>,
    done: Option<Done>,
    stage: String,
    lines: u64,
    trace_lines: u64,
}

impl<'a> Conversation<'a> {
    fn new(
        process: Option<Process>,
        chunks: Receiver<Chunk>,
        options: &'a EngineOptions,
        program: PathBuf,
        copy_is_over: Option<&'a AtomicBool>,
    ) -> Self {
        Conversation {
            process,
            chunks,
            copy_is_over,
            options,
            program,
            started: Instant::now(),
            hello: None,
            done: None,
            stage: "starting".to_owned(),
            lines: 0,
            trace_lines: 0,
        }
    }

    /// Waits for the engine's end for a short while, then kills it, and says how it ended.
    fn finish(&mut self, grace: Duration) -> Exit {
        let process = self.process.as_mut();
        process.map_or(Exit::Unknown, |process| process.finish(grace))
    }

    fn stderr_end(&mut self) -> String {
        let process = self.process.as_mut();
        process.map(Process::stderr_end).unwrap_or_default()
    }

    fn hear(
        mut self,
        observer: &mut dyn Observer,
        interrupted: &AtomicBool,
    ) -> Result<Answer, EngineError> {
        let mut ended = None;
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return Err(EngineError::Interrupted);
            }
            match self.chunks.recv_timeout(TICK) {
                Ok(Chunk::Lines(bytes)) => self.lines(&bytes, observer)?,
                Ok(Chunk::Rest(bytes)) if bytes.is_empty() => return self.end(),
                Ok(Chunk::Rest(bytes)) => return Err(self.cut_off(&bytes, observer)),
                Ok(Chunk::TooLong) => {
                    return Err(EngineError::LineTooLong {
                        line: self.lines + 1,
                        limit: MAX_LINE_BYTES,
                    });
                }
                Ok(Chunk::Failed(error)) => return Err(EngineError::Read(error)),
                Err(RecvTimeoutError::Disconnected) => return self.end(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.check_clock()?;
            let alone = self
                .copy_is_over
                .is_none_or(|over| over.load(Ordering::Relaxed));
            if self.done.is_some() && alone {
                // Something the engine started may hold its stdout; after `done` nobody waits long for it.
                let since = *ended.get_or_insert_with(Instant::now);
                if since.elapsed() > END_GRACE {
                    return self.end();
                }
            }
        }
    }

    fn check_clock(&mut self) -> Result<(), EngineError> {
        let waited = self.started.elapsed();
        if let Some(limit) = self.options.timeout
            && waited > limit
        {
            return Err(EngineError::Timeout {
                limit,
                stage: self.stage.clone(),
            });
        }
        if self.hello.is_none() && waited > HELLO_TIMEOUT {
            self.finish(Duration::ZERO);
            let stderr = self.stderr_end();
            return Err(EngineError::HelloTimeout {
                program: self.program.clone(),
                waited: HELLO_TIMEOUT,
                stderr,
            });
        }
        Ok(())
    }

    fn lines(&mut self, bytes: &[u8], observer: &mut dyn Observer) -> Result<(), EngineError> {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            self.lines += 1;
            self.line(line, observer)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], observer: &mut dyn Observer) -> Result<(), EngineError> {
        let not_protocol = |number| EngineError::NotProtocol {
            line: number,
            excerpt: excerpt(line),
        };
        let text = std::str::from_utf8(line).map_err(|_| not_protocol(self.lines))?;
        let kind = match LineKind::of(text) {
            LineKind::Message(kind) => kind,
            LineKind::Trace => return self.trace_line(text, observer),
            LineKind::Rubbish => return Err(not_protocol(self.lines)),
        };
        // An engine of another version may say a hello of another shape: its version is all that counts then.
        if kind == "hello"
            && let Ok(Version { protocol }) = serde_json::from_str(text)
            && protocol != PROTOCOL
        {
            return Err(EngineError::Protocol {
                program: self.program.clone(),
                theirs: protocol,
            });
        }
        let message = serde_json::from_str(text).map_err(|_| not_protocol(self.lines))?;
        self.message(message, kind, observer)
    }

    fn trace_line(&mut self, line: &str, observer: &mut dyn Observer) -> Result<(), EngineError> {
        self.expect_running("a line of trace")?;
        self.trace_lines += 1;
        observer
            .trace_line(line)
            .map_err(|source| EngineError::Trace {
                line: self.lines,
                source,
            })
    }

    fn message(
        &mut self,
        message: Message,
        kind: &str,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        if let Message::Hello(hello) = message {
            if self.hello.is_some() {
                return Err(self.misplaced(kind, "no second hello"));
            }
            if hello.build_id != BUILD_ID {
                return Err(EngineError::Build {
                    program: self.program.clone(),
                    theirs: excerpt(hello.build_id.as_bytes()),
                });
            }
            self.hello = Some(hello);
            return Ok(());
        }
        self.expect_running(kind)?;
        match message {
            Message::Progress(progress) => {
                self.stage = excerpt(progress.stage.as_bytes());
                observer.progress(&progress);
            }
            Message::Done(done) => self.done = Some(*done),
            Message::Failed(failed) => return Err(EngineError::Failed(Box::new(failed))),
            Message::Hello(_) => {}
        }
        Ok(())
    }

    fn expect_running(&self, kind: &str) -> Result<(), EngineError> {
        if self.hello.is_none() {
            return Err(self.misplaced(kind, "`hello`"));
        }
        if self.done.is_some() {
            return Err(self.misplaced(kind, "nothing after `done`"));
        }
        Ok(())
    }

    fn misplaced(&self, kind: &str, expected: &'static str) -> EngineError {
        EngineError::Misplaced {
            line: self.lines,
            kind: excerpt(kind.as_bytes()),
            expected,
        }
    }

    /// stdout is at its end: the engine has ended, or is about to.
    fn end(mut self) -> Result<Answer, EngineError> {
        let exit = self.finish(END_GRACE);
        match (self.hello.take(), self.done.take()) {
            (Some(hello), Some(done)) if done.trace_lines == self.trace_lines => {
                Ok(Answer { hello, done })
            }
            (Some(_), Some(done)) => Err(EngineError::TraceLines {
                said: done.trace_lines,
                counted: self.trace_lines,
            }),
            (hello, _) => Err(self.died(hello.is_some(), exit)),
        }
    }

    fn died(&mut self, said_hello: bool, exit: Exit) -> EngineError {
        let stderr = self.stderr_end();
        let short = NO_MEMORY.iter().any(|words| stderr.contains(words));
        if let (Some(limit), true) = (self.options.memory_limit, short) {
            return EngineError::OutOfLimit {
                limit,
                stage: self.stage.clone(),
                stderr,
            };
        }
        if said_hello {
            EngineError::Crashed {
                exit,
                stage: self.stage.clone(),
                stderr,
            }
        } else {
            EngineError::NoHello {
                program: self.program.clone(),
                exit,
                stderr,
            }
        }
    }

    /// The last line has no newline: cut off by a crash, or rubbish.
    fn cut_off(mut self, bytes: &[u8], observer: &mut dyn Observer) -> EngineError {
        let exit = self.finish(END_GRACE);
        if exit == Exit::Code(0) || bytes.first() != Some(&b'{') {
            self.lines += 1;
            if let Err(error) = self.line(bytes, observer) {
                return error;
            }
        }
        let said_hello = self.hello.is_some();
        self.died(said_hello, exit)
    }
}

/// A hello of any version.
#[derive(Deserialize)]
struct Version {
    protocol: u32,
}

/// What a line is, by its beginning and end: hundreds of thousands of trace lines are parsed once, by their reader.
#[derive(Debug, PartialEq, Eq)]
enum LineKind<'a> {
    /// A message with this `type`.
    Message(&'a str),
    /// Any other object.
    Trace,
    /// No object.
    Rubbish,
}

impl LineKind<'_> {
    fn of(line: &str) -> LineKind<'_> {
        if !(line.starts_with("{\"") && line.ends_with('}')) {
            return LineKind::Rubbish;
        }
        match line
            .strip_prefix("{\"type\":\"")
            .and_then(|rest| rest.split_once('"'))
        {
            Some((kind, _)) => LineKind::Message(kind),
            None => LineKind::Trace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LineKind;

    #[test]
    fn kinds_of_lines() {
        assert_eq!(
            LineKind::of(r#"{"type":"done","x":1}"#),
            LineKind::Message("done")
        );
        assert_eq!(LineKind::of(r#"{"op":{"t":1}}"#), LineKind::Trace);
        for rubbish in ["", "warning", "[1]", "{}", r#"{"op":{"t":"#, r#""text""#] {
            assert_eq!(LineKind::of(rubbish), LineKind::Rubbish, "{rubbish}");
        }
    }
}
