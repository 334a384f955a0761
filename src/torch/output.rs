//! The engine's side of stdout: protocol messages and trace lines, counted.

use std::io::{self, BufWriter, Write};

use inspect_checkpoint::engine::protocol::{Message, Progress};
use inspect_checkpoint::trace::Event;

/// Writes lines to the front.
pub(crate) struct Output<W: Write> {
    to: BufWriter<W>,
    /// Trace lines written so far.
    pub(crate) trace_lines: u64,
}

impl<W: Write> Output<W> {
    /// Writes to `to`, in large pieces.
    pub(crate) fn new(to: W) -> Self {
        Output {
            to: BufWriter::with_capacity(1 << 16, to),
            trace_lines: 0,
        }
    }

    /// A protocol message; flushed at once.
    pub(crate) fn message(&mut self, message: &Message) -> io::Result<()> {
        serde_json::to_writer(&mut self.to, message)?;
        self.to.write_all(b"\n")?;
        self.to.flush()
    }

    /// Says what is being done now.
    pub(crate) fn progress(&mut self, stage: &str) -> io::Result<()> {
        self.message(&Message::Progress(Progress {
            stage: stage.to_owned(),
            done: 0,
            total: None,
        }))
    }

    /// A trace line.
    pub(crate) fn event(&mut self, event: &Event) -> io::Result<()> {
        serde_json::to_writer(&mut self.to, event)?;
        self.to.write_all(b"\n")?;
        self.trace_lines += 1;
        Ok(())
    }
}
