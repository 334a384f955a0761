//! Our own traces as recordings.
//!
//! A trace names operators and modules instead of source lines: each operator, autograd node and module that is open
//! becomes a frame, innermost first, with the module's path as its file.

use std::collections::HashMap;

use super::{Action, DeviceRecording, Frame, Recording, StackId, TraceEvent};
use crate::trace::{Event, SegmentAction, Trace};

impl Recording {
    /// The memory events of a trace. It has no final segments: [`super::super::replay::complete`] works them out.
    #[must_use]
    pub fn from_trace(trace: &Trace) -> Self {
        let mut reader = Reader {
            trace,
            recording: Self {
                settings: trace.header.alloc_conf.clone(),
                ..Self::default()
            },
            events: Vec::new(),
            open: HashMap::new(),
            phase: None,
            live: HashMap::new(),
        };
        for event in &trace.events {
            reader.event(event);
        }
        let device = trace.header.device.rsplit_once(':');
        let device = device
            .and_then(|(_, index)| index.parse().ok())
            .unwrap_or(0);
        reader.recording.devices.push(DeviceRecording {
            device,
            events: reader.events,
            ..DeviceRecording::default()
        });
        reader.recording
    }
}

/// What is open on a thread.
#[derive(Debug, Clone, PartialEq)]
enum Open {
    Module { path: u32, class: u32 },
    Op { id: u32, name: u32 },
    Node { name: u32 },
}

struct Reader<'a> {
    trace: &'a Trace,
    recording: Recording,
    events: Vec<TraceEvent>,
    open: HashMap<u32, Vec<Open>>,
    phase: Option<String>,
    /// Address, size and stream by the allocation's number.
    live: HashMap<u32, (u64, u64, u64)>,
}

impl Reader<'_> {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Phase { name, step, .. } => {
                let step = step.map(|step| format!(" of step {step}"));
                self.phase = Some(name.name().to_owned() + &step.unwrap_or_default());
            }
            Event::PhaseEnd { .. } => self.phase = None,
            Event::Alloc {
                t,
                id,
                bytes,
                addr,
                stream,
                thread,
                ..
            } => {
                self.live.insert(*id, (*addr, *bytes, *stream));
                let stack = self.stack(*thread);
                self.push(Action::Alloc, *t, (*addr, *bytes, *stream), stack);
            }
            Event::Free { t, id } => {
                // Memory from before the recording has no address.
                if let Some(block) = self.live.remove(id) {
                    self.push(Action::FreeRequested, *t, block, StackId::default());
                    self.push(Action::FreeCompleted, *t, block, StackId::default());
                }
            }
            Event::Segment {
                t,
                action,
                addr,
                bytes,
                stream,
            } => {
                let action = match action {
                    SegmentAction::Alloc => Action::SegmentAlloc,
                    SegmentAction::Free => Action::SegmentFree,
                    SegmentAction::Map => Action::SegmentMap,
                    SegmentAction::Unmap => Action::SegmentUnmap,
                    SegmentAction::Oom => Action::OutOfMemory,
                };
                self.push(action, *t, (*addr, *bytes, *stream), StackId::default());
            }
            _ => self.call(event),
        }
    }

    /// Modules, operators and nodes that begin and end.
    fn call(&mut self, event: &Event) {
        match event {
            Event::Enter {
                path,
                class,
                thread,
                ..
            } => {
                let (path, class) = (*path, *class);
                self.stack_of(*thread).push(Open::Module { path, class });
            }
            Event::Exit { thread, .. } => {
                self.close(*thread, |open| matches!(open, Open::Module { .. }));
            }
            Event::Op {
                id, name, thread, ..
            } => {
                let (id, name) = (*id, *name);
                self.stack_of(*thread).push(Open::Op { id, name });
            }
            Event::End { id, .. } => {
                for stack in self.open.values_mut() {
                    let is_it = |open: &Open| matches!(open, Open::Op { id: at, .. } if at == id);
                    if let Some(at) = stack.iter().rposition(is_it) {
                        stack.remove(at);
                        break;
                    }
                }
            }
            Event::Node { name, thread, .. } => {
                let name = *name;
                self.stack_of(*thread).push(Open::Node { name });
            }
            Event::NodeEnd { thread, .. } => {
                self.close(*thread, |open| matches!(open, Open::Node { .. }));
            }
            _ => {}
        }
    }

    fn push(
        &mut self,
        action: Action,
        time_ns: u64,
        (addr, bytes, stream): (u64, u64, u64),
        stack: StackId,
    ) {
        // A request of 0 bytes gets no memory.
        if bytes > 0 {
            self.events.push(TraceEvent {
                action,
                addr,
                bytes,
                stream,
                time_us: Some(time_ns / 1000),
                stack,
            });
        }
    }

    fn stack_of(&mut self, thread: u32) -> &mut Vec<Open> {
        self.open.entry(thread).or_default()
    }

    fn close(&mut self, thread: u32, is_it: fn(&Open) -> bool) {
        let stack = self.stack_of(thread);
        if let Some(at) = stack.iter().rposition(is_it) {
            stack.remove(at);
        }
    }

    /// What is open on a thread as a stack, the phase outermost.
    fn stack(&mut self, thread: u32) -> StackId {
        let trace = self.trace;
        let open = self
            .open
            .get(&thread)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let (mut frames, mut module) = (Vec::new(), "");
        for item in open {
            let name = match item {
                Open::Module { path, class } => {
                    module = trace.text(*path);
                    trace.text(*class)
                }
                Open::Op { name, .. } | Open::Node { name } => trace.text(*name),
            };
            frames.push(Frame {
                name: name.to_owned(),
                filename: module.to_owned(),
                line: 0,
            });
        }
        let phase = self.phase.clone().map(|name| Frame {
            name,
            filename: String::new(),
            line: 0,
        });
        let frames = frames.into_iter().rev().chain(phase);
        let stacks = &mut self.recording.stacks;
        let numbers = frames.map(|frame| stacks.add_frame(frame)).collect();
        stacks.add_stack(numbers)
    }
}
