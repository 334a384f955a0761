//! The engine as a process: its own group, its pipes drained by threads, killed when nobody waits for it any more.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::error::Exit;

/// A longer line is a fault: a list of every tensor of the largest models stays far below.
pub(super) const MAX_LINE_BYTES: usize = 64 << 20;

/// How much of the engine's stderr is kept: its end is what tells why it died.
const STDERR_KEPT_BYTES: usize = 64 << 10;

/// One read of a pipe.
const READ_BYTES: usize = 256 << 10;

/// Chunks in flight: bounds memory when the reader of the trace is slower than the engine.
const CHUNKS: usize = 16;

/// A piece of the engine's stdout.
pub(super) enum Chunk {
    /// Whole lines, each with its newline.
    Lines(Vec<u8>),
    /// The last line has no newline (it may be cut off).
    Rest(Vec<u8>),
    /// A line passed [`MAX_LINE_BYTES`].
    TooLong,
    /// The pipe broke.
    Failed(io::Error),
}

/// A running engine. Dropping it kills its whole group and waits, so nothing is left behind.
pub(super) struct Process {
    child: Child,
    /// Where the request goes; the answers of a copy come back on it.
    socket: Option<UnixStream>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
    stderr_thread: Option<thread::JoinHandle<()>>,
    reaped: bool,
}

impl Process {
    /// Starts `command` in a group of its own, with all three pipes ours, and gives what it says on stdout. With `copied`
    /// its stdin is a socket, on which a copy of it answers.
    pub(super) fn spawn(mut command: Command, copied: bool) -> io::Result<(Self, Receiver<Chunk>)> {
        let (stdin, socket) = if copied {
            let (ours, theirs) = UnixStream::pair()?;
            (Stdio::from(OwnedFd::from(theirs)), Some(ours))
        } else {
            (Stdio::piped(), None)
        };
        let mut child = command
            .process_group(0)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        // It holds the engine's end of the socket, which must be closed when the engine has ended.
        drop(command);
        let (sender, chunks) = sync_channel(CHUNKS);
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || forward_lines(stdout, &sender));
        }
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let stderr_thread = child.stderr.take().map(|pipe| {
            let kept = Arc::clone(&stderr);
            thread::spawn(move || keep_end(pipe, &kept))
        });
        let process = Process {
            child,
            socket,
            stderr,
            stderr_thread,
            reaped: false,
        };
        Ok((process, chunks))
    }

    /// What a copy of the engine says; none where it was not started for one.
    pub(super) fn copy(&self) -> io::Result<Option<Receiver<Chunk>>> {
        let Some(socket) = &self.socket else {
            return Ok(None);
        };
        let socket = socket.try_clone()?;
        let (sender, chunks) = sync_channel(CHUNKS);
        thread::spawn(move || forward_lines(socket, &sender));
        Ok(Some(chunks))
    }

    /// Puts a limit on the memory the engine may ask for. Called before the request is sent, so before it does anything.
    pub(super) fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{Resource, Rlimit, prlimit};
            let limit = Rlimit {
                current: Some(bytes),
                maximum: Some(bytes),
            };
            match prlimit(Some(Pid::from_child(&self.child)), Resource::Data, limit) {
                // Already dead: how it ended says more.
                Ok(_) | Err(rustix::io::Errno::SRCH) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = bytes;
            Err(io::Error::from(io::ErrorKind::Unsupported))
        }
    }

    /// Sends one line and closes the engine's stdin. Never blocks: an engine that does not read is noticed by its
    /// silence, one that has died by its end.
    pub(super) fn send(&mut self, mut line: Vec<u8>) {
        line.push(b'\n');
        if let Some(stdin) = self.child.stdin.take() {
            thread::spawn(move || write_all(stdin, &line));
        } else if let Some(Ok(socket)) = self.socket.as_ref().map(UnixStream::try_clone) {
            thread::spawn(move || {
                write_all(&socket, &line);
                // The answers still come back.
                let _ = socket.shutdown(Shutdown::Write);
            });
        }
    }

    /// Waits for the end for a short while, then kills, and says how it ended.
    pub(super) fn finish(&mut self, grace: Duration) -> Exit {
        let deadline = Instant::now() + grace;
        let exit = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.reaped = true;
                    break match (status.signal(), status.code()) {
                        (Some(signal), _) => Exit::Signal(signal),
                        (None, Some(code)) => Exit::Code(code),
                        (None, None) => Exit::Unknown,
                    };
                }
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(2)),
                _ => break Exit::Unknown,
            }
        };
        self.kill();
        exit
    }

    /// The end of stderr. Complete only once the process has ended.
    pub(super) fn stderr_end(&mut self) -> String {
        if let Some(thread) = self.stderr_thread.take() {
            // The group is dead, so the pipe is at its end; a stranger that still holds it must not hold us.
            let deadline = Instant::now() + Duration::from_millis(500);
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Kills the group: the engine and whatever it started.
    fn kill(&mut self) {
        // The group lives as long as one member does; when there is none the call fails, which is as good.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        if !self.reaped {
            let _ = self.child.wait();
            self.reaped = true;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn write_all(mut stdin: impl Write, line: &[u8]) {
    // A broken pipe means that the engine has ended: its exit status says more.
    let _ = stdin.write_all(line);
}

/// Sends stdout on in whole lines until it ends or nobody listens.
fn forward_lines(mut stdout: impl Read, sender: &SyncSender<Chunk>) {
    let mut pending: Vec<u8> = Vec::with_capacity(READ_BYTES);
    loop {
        let start = pending.len();
        pending.resize(start + READ_BYTES, 0);
        let Some(free) = pending.get_mut(start..) else {
            return;
        };
        let read = match stdout.read(free) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                pending.truncate(start);
                continue;
            }
            Err(error) => {
                let _ = sender.send(Chunk::Failed(error));
                return;
            }
        };
        pending.truncate(start + read);
        let new = pending.get(start..).unwrap_or_default();
        let message = if read == 0 {
            let _ = sender.send(Chunk::Rest(pending));
            return;
        } else if let Some(newline) = new.iter().rposition(|byte| *byte == b'\n') {
            let rest = pending.split_off(start + newline + 1);
            Chunk::Lines(std::mem::replace(&mut pending, rest))
        } else if pending.len() > MAX_LINE_BYTES {
            Chunk::TooLong
        } else {
            continue;
        };
        let stop = matches!(message, Chunk::TooLong);
        if sender.send(message).is_err() || stop {
            return;
        }
    }
}

/// Keeps the last [`STDERR_KEPT_BYTES`] of stderr.
fn keep_end(mut stderr: ChildStderr, kept: &Mutex<VecDeque<u8>>) {
    let mut buffer = [0_u8; 8192];
    loop {
        match stderr.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(buffer.get(..read).unwrap_or_default());
                let excess = kept.len().saturating_sub(STDERR_KEPT_BYTES);
                kept.drain(..excess);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
