//! The strict reader: lines in, one consistent [`Trace`] out.

use std::io::{self, Write};

use super::{Event, Header, TRACE_VERSION, TensorRef};

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A line that is not an event.
    #[error("line {line} of the trace is not an event")]
    Syntax {
        /// Line, from 1.
        line: u64,
        /// What the JSON reader says.
        #[source]
        source: serde_json::Error,
    },
    /// The first line is something else.
    #[error(
        "line 1 of the trace is not its header: expected `{{\"header\": ...}}`, found `{found}`"
    )]
    NoHeader {
        /// The event found there.
        found: String,
    },
    /// A header in the middle.
    #[error("line {line} of the trace is a second header")]
    SecondHeader {
        /// Line, from 1.
        line: u64,
    },
    /// Written by another version of this program.
    #[error("the trace has format version {found}, this program reads version {TRACE_VERSION}")]
    Version {
        /// Version found.
        found: u32,
    },
    /// A number that is out of order or names nothing.
    #[error("line {line} of the trace: expected {what} {expected}, found {found}")]
    Number {
        /// Line, from 1.
        line: u64,
        /// What is numbered.
        what: &'static str,
        /// What would be right.
        expected: String,
        /// What is there.
        found: u64,
    },
    /// An end without its beginning.
    #[error("line {line} of the trace: `{event}` ends nothing that is open on thread {thread}")]
    Nesting {
        /// Line, from 1.
        line: u64,
        /// The event.
        event: &'static str,
        /// Thread.
        thread: u32,
    },
    /// No line at all.
    #[error("the trace is empty")]
    Empty,
}

/// Metadata of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sig {
    /// PyTorch's name of the dtype.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// numel x element size.
    pub bytes: u64,
}

/// What is known of an allocation when it appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// Requested bytes.
    pub bytes: u64,
    /// Allocated bytes; equal to `bytes` where the allocator does not round.
    pub block: u64,
    /// False for memory from before the recording.
    pub recorded: bool,
}

/// Whether an operator's record is open or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Started, not yet ended.
    Open {
        /// Its thread.
        thread: u32,
    },
    /// Ended.
    Closed,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The first line.
    pub header: Header,
    /// Texts by number.
    pub texts: Vec<String>,
    /// Tensor metadata by number.
    pub sigs: Vec<Sig>,
    /// Allocations by number.
    pub allocations: Vec<Allocation>,
    /// Number of operators.
    pub op_count: u32,
    /// Everything but `header`, `str` and `sig`, in order.
    pub events: Vec<Event>,
}

impl Trace {
    /// Text number `id`; the reader has checked every number in `events`.
    #[must_use]
    pub fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", String::as_str)
    }

    /// Writes the trace in its own format: what [`TraceReader`] reads is the same trace.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut line = |event: &Event| {
            serde_json::to_writer(&mut *out, event)?;
            out.write_all(b"\n")
        };
        line(&Event::Header(self.header.clone()))?;
        for (id, text) in (0_u32..).zip(&self.texts) {
            let text = text.clone();
            line(&Event::Str { id, text })?;
        }
        for (id, sig) in (0_u32..).zip(&self.sigs) {
            line(&Event::Sig {
                id,
                dtype: sig.dtype.clone(),
                shape: sig.shape.clone(),
                bytes: sig.bytes,
            })?;
        }
        self.events.iter().try_for_each(line)
    }

    /// Metadata of a tensor; the reader has checked every number in `events`.
    #[must_use]
    pub fn sig(&self, tensor: TensorRef) -> Option<&Sig> {
        self.sigs.get(tensor.sig as usize)
    }
}

/// Folds lines into a [`Trace`].
#[derive(Debug, Default)]
pub struct TraceReader {
    line: u64,
    header: Option<Header>,
    texts: Vec<String>,
    sigs: Vec<Sig>,
    allocations: Vec<Allocation>,
    live: Vec<bool>,
    ops: Vec<OpKind>,
    op_stacks: Vec<Vec<u32>>,
    module_depth: Vec<u32>,
    node_depth: Vec<u32>,
    events: Vec<Event>,
}

impl TraceReader {
    /// A reader that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one line.
    pub fn line(&mut self, line: &str) -> Result<(), TraceError> {
        let event = serde_json::from_str(line).map_err(|source| TraceError::Syntax {
            line: self.line + 1,
            source,
        })?;
        self.event(event)
    }

    /// Takes one event.
    pub fn event(&mut self, event: Event) -> Result<(), TraceError> {
        self.line += 1;
        if self.header.is_none() {
            return self.first(event);
        }
        match event {
            Event::Header(_) => return Err(TraceError::SecondHeader { line: self.line }),
            Event::Str { id, text } => {
                self.next_number("text", self.texts.len(), id)?;
                self.texts.push(text);
                return Ok(());
            }
            Event::Sig {
                id,
                dtype,
                shape,
                bytes,
            } => {
                self.next_number("tensor metadata", self.sigs.len(), id)?;
                self.sigs.push(Sig {
                    dtype,
                    shape,
                    bytes,
                });
                return Ok(());
            }
            _ => {}
        }
        self.check(&event)?;
        self.events.push(event);
        Ok(())
    }

    /// The whole trace; operators cut off by an error may be left open.
    pub fn finish(self) -> Result<Trace, TraceError> {
        let op_count = u32::try_from(self.ops.len()).unwrap_or(u32::MAX);
        Ok(Trace {
            header: self.header.ok_or(TraceError::Empty)?,
            texts: self.texts,
            sigs: self.sigs,
            allocations: self.allocations,
            op_count,
            events: self.events,
        })
    }

    fn first(&mut self, event: Event) -> Result<(), TraceError> {
        match event {
            Event::Header(header) if header.version == TRACE_VERSION => {
                self.header = Some(header);
                Ok(())
            }
            Event::Header(header) => Err(TraceError::Version {
                found: header.version,
            }),
            other => Err(TraceError::NoHeader {
                found: event_name(&other).to_owned(),
            }),
        }
    }

    fn check(&mut self, event: &Event) -> Result<(), TraceError> {
        match event {
            Event::Enter {
                path,
                class,
                thread,
                ..
            } => {
                self.known_text(*path)?;
                self.known_text(*class)?;
                *slot(&mut self.module_depth, *thread) += 1;
            }
            Event::Exit { out, thread, .. } => {
                for tensor in out {
                    self.known_tensor(*tensor)?;
                }
                self.leave("exit", *thread, |reader| {
                    slot(&mut reader.module_depth, *thread)
                })?;
            }
            Event::Op {
                id,
                name,
                args,
                thread,
                ..
            } => {
                self.next_number("operator", self.ops.len(), *id)?;
                self.known_text(*name)?;
                for tensor in args.iter().flat_map(super::Arg::tensors) {
                    self.known_tensor(tensor)?;
                }
                self.ops.push(OpKind::Open { thread: *thread });
                slot(&mut self.op_stacks, *thread).push(*id);
            }
            Event::End { id, out, .. } => {
                for tensor in out.iter().flat_map(super::Arg::tensors) {
                    self.known_tensor(tensor)?;
                }
                self.close_op(*id)?;
            }
            Event::Node { name, thread, .. } => {
                self.known_text(*name)?;
                *slot(&mut self.node_depth, *thread) += 1;
            }
            Event::NodeEnd { thread, .. } => {
                self.leave("node_end", *thread, |reader| {
                    slot(&mut reader.node_depth, *thread)
                })?;
            }
            Event::Alloc {
                id, bytes, block, ..
            } => {
                self.new_allocation(*id, *bytes, block.unwrap_or(*bytes), true)?;
            }
            Event::Extern { id, bytes } => self.new_allocation(*id, *bytes, *bytes, false)?,
            Event::Free { id, .. } => self.free(*id)?,
            Event::Label { id, sig, .. } => {
                self.known_allocation(*id)?;
                if let Some(sig) = sig {
                    self.below("tensor metadata", self.sigs.len(), *sig)?;
                }
            }
            Event::Argument { tensors, .. } => {
                for (_, tensor) in tensors {
                    self.known_tensor(*tensor)?;
                }
            }
            Event::Output { tensor, .. } => self.known_tensor(*tensor)?,
            Event::Header(_)
            | Event::Str { .. }
            | Event::Sig { .. }
            | Event::Phase { .. }
            | Event::PhaseEnd { .. }
            | Event::Segment { .. } => {}
        }
        Ok(())
    }

    fn new_allocation(
        &mut self,
        id: u32,
        bytes: u64,
        block: u64,
        recorded: bool,
    ) -> Result<(), TraceError> {
        self.next_number("allocation", self.allocations.len(), id)?;
        self.allocations.push(Allocation {
            bytes,
            block,
            recorded,
        });
        self.live.push(recorded);
        Ok(())
    }

    fn free(&mut self, id: u32) -> Result<(), TraceError> {
        let line = self.line;
        match self.live.get_mut(id as usize) {
            Some(alive) if *alive => {
                *alive = false;
                Ok(())
            }
            _ => Err(TraceError::Number {
                line,
                what: "a free of allocation",
                expected: "that is live".to_owned(),
                found: u64::from(id),
            }),
        }
    }

    fn close_op(&mut self, id: u32) -> Result<(), TraceError> {
        let line = self.line;
        let state = self.ops.get_mut(id as usize);
        let Some(OpKind::Open { thread }) = state.as_deref().copied() else {
            return Err(TraceError::Nesting {
                line,
                event: "end",
                thread: 0,
            });
        };
        if let Some(state) = state {
            *state = OpKind::Closed;
        }
        let stack = slot(&mut self.op_stacks, thread);
        if stack.pop() == Some(id) {
            Ok(())
        } else {
            Err(TraceError::Nesting {
                line,
                event: "end",
                thread,
            })
        }
    }

    fn leave(
        &mut self,
        event: &'static str,
        thread: u32,
        depth: impl FnOnce(&mut Self) -> &mut u32,
    ) -> Result<(), TraceError> {
        let line = self.line;
        let depth = depth(self);
        *depth = depth.checked_sub(1).ok_or(TraceError::Nesting {
            line,
            event,
            thread,
        })?;
        Ok(())
    }

    fn next_number(
        &self,
        what: &'static str,
        expected: usize,
        found: u32,
    ) -> Result<(), TraceError> {
        if expected == found as usize {
            return Ok(());
        }
        Err(TraceError::Number {
            line: self.line,
            what,
            expected: expected.to_string(),
            found: u64::from(found),
        })
    }

    fn below(&self, what: &'static str, count: usize, found: u32) -> Result<(), TraceError> {
        if (found as usize) < count {
            return Ok(());
        }
        Err(TraceError::Number {
            line: self.line,
            what,
            expected: format!("below {count}"),
            found: u64::from(found),
        })
    }

    fn known_text(&self, id: u32) -> Result<(), TraceError> {
        self.below("a text", self.texts.len(), id)
    }

    fn known_allocation(&self, id: u32) -> Result<(), TraceError> {
        self.below("an allocation", self.allocations.len(), id)
    }

    fn known_tensor(&self, tensor: TensorRef) -> Result<(), TraceError> {
        self.below("tensor metadata", self.sigs.len(), tensor.sig)?;
        tensor.alloc.map_or(Ok(()), |id| self.known_allocation(id))
    }
}

/// The slot of a thread, made on first use. Threads are few and numbered from 0 by the engine; a forged number is
/// folded into the last slot instead of growing the table.
fn slot<T: Default>(slots: &mut Vec<T>, thread: u32) -> &mut T {
    const MAX_THREADS: usize = 4096;
    let index = (thread as usize).min(MAX_THREADS - 1);
    if slots.len() <= index {
        slots.resize_with(index + 1, T::default);
    }
    &mut slots[index]
}

fn event_name(event: &Event) -> &'static str {
    match event {
        Event::Header(_) => "header",
        Event::Str { .. } => "str",
        Event::Sig { .. } => "sig",
        Event::Phase { .. } => "phase",
        Event::PhaseEnd { .. } => "phase_end",
        Event::Enter { .. } => "enter",
        Event::Exit { .. } => "exit",
        Event::Op { .. } => "op",
        Event::End { .. } => "end",
        Event::Node { .. } => "node",
        Event::NodeEnd { .. } => "node_end",
        Event::Alloc { .. } => "alloc",
        Event::Free { .. } => "free",
        Event::Extern { .. } => "extern",
        Event::Segment { .. } => "segment",
        Event::Label { .. } => "label",
        Event::Argument { .. } => "argument",
        Event::Output { .. } => "output",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"header":{"version":1,"device":"cpu","libtorch_version":"2.11.0","mode":"inference","method":"forward"}}"#;

    fn read(lines: &[&str]) -> Result<Trace, TraceError> {
        let mut reader = TraceReader::new();
        reader.line(HEADER)?;
        for line in lines {
            reader.line(line)?;
        }
        reader.finish()
    }

    #[test]
    fn a_small_run() {
        let trace = read(&[
            r#"{"str":{"id":0,"text":"aten::relu"}}"#,
            r#"{"sig":{"id":0,"dtype":"float32","shape":[2,3],"bytes":24}}"#,
            r#"{"extern":{"id":0,"bytes":24}}"#,
            r#"{"phase":{"t":1,"name":"forward"}}"#,
            r#"{"op":{"t":2,"id":0,"name":0,"args":[[0,0]]}}"#,
            r#"{"alloc":{"t":3,"id":1,"bytes":24,"addr":4096}}"#,
            r#"{"end":{"t":4,"id":0,"out":[[0,1]]}}"#,
            r#"{"free":{"t":5,"id":1}}"#,
            r#"{"phase_end":{"t":6}}"#,
        ])
        .unwrap();
        assert_eq!(trace.op_count, 1);
        assert_eq!(trace.allocations.len(), 2);
        assert_eq!(trace.text(0), "aten::relu");
        assert_eq!(trace.events.len(), 7);
    }

    #[test]
    fn broken_traces_are_refused_with_their_line() {
        let number = |lines: &[&str]| matches!(read(lines), Err(TraceError::Number { .. }));
        assert!(
            number(&[r#"{"str":{"id":1,"text":"x"}}"#]),
            "a gap in the texts"
        );
        assert!(number(&[r#"{"free":{"t":1,"id":0}}"#]), "a free of nothing");
        assert!(
            number(&[
                r#"{"extern":{"id":0,"bytes":1}}"#,
                r#"{"free":{"t":1,"id":0}}"#
            ]),
            "a free of foreign memory"
        );
        assert!(number(&[
            r#"{"alloc":{"t":3,"id":0,"bytes":24,"addr":0}}"#,
            r#"{"free":{"t":1,"id":0}}"#,
            r#"{"free":{"t":1,"id":0}}"#
        ]));
        assert!(
            number(&[r#"{"op":{"t":2,"id":0,"name":0,"args":[]}}"#]),
            "a name that was never sent"
        );
        let nesting = |lines: &[&str]| matches!(read(lines), Err(TraceError::Nesting { .. }));
        assert!(nesting(&[r#"{"exit":{"t":1,"out":[]}}"#]));
        assert!(nesting(&[r#"{"end":{"t":1,"id":0,"out":[]}}"#]));
        assert!(nesting(&[r#"{"node_end":{"t":1,"thread":4000000000}}"#]));
        assert!(matches!(
            read(&[HEADER]),
            Err(TraceError::SecondHeader { line: 2 })
        ));
        assert!(matches!(
            read(&["nonsense"]),
            Err(TraceError::Syntax { line: 2, .. })
        ));
        assert!(matches!(
            TraceReader::new().finish(),
            Err(TraceError::Empty)
        ));
        let mut reader = TraceReader::new();
        assert!(matches!(
            reader.line(r#"{"free":{"t":1,"id":0}}"#),
            Err(TraceError::NoHeader { .. })
        ));
        let newer = HEADER.replace("\"version\":1", "\"version\":2");
        assert!(matches!(
            TraceReader::new().line(&newer),
            Err(TraceError::Version { found: 2 })
        ));
    }
}
