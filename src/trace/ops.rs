//! The calls of a run: operators, module calls and autograd nodes, each with the call around it.
//!
//! One pass over the events turns their nesting into tables: [`RunIndex::ops`], [`RunIndex::calls`],
//! [`RunIndex::nodes`] and [`RunIndex::phases`], in order of beginning, so that a call always stands before what it
//! calls. A backward node belongs to the module call whose operator made it: the last operator that began with the
//! node's sequence number; a node without one (`AccumulateGrad`) to the call of the node that made the memory it
//! touches.
//!
//! Invariant: every index in a table names an earlier row or a row of a table that is finished.

use std::collections::HashMap;

use super::{Arg, Category, Event, PhaseName, TensorRef, Trace};

/// Row of [`RunIndex::calls`].
pub type CallId = u32;

/// A run as tables.
#[derive(Debug)]
pub struct RunIndex<'a> {
    /// What they are made from.
    pub trace: &'a Trace,
    /// Phases in order.
    pub phases: Vec<Phase>,
    /// Module calls in order of beginning.
    pub calls: Vec<Call<'a>>,
    /// Operators in order of beginning.
    pub ops: Vec<Op<'a>>,
    /// Autograd nodes in order of beginning.
    pub nodes: Vec<Node>,
    /// What the engine said memory is for, in its order.
    pub labels: Vec<Label<'a>>,
    /// What the method was called with, in the schema's order.
    pub arguments: Vec<Argument<'a>>,
    /// Tensors that the method returned, in order.
    pub outputs: Vec<(&'a str, TensorRef)>,
}

/// One phase.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    /// Which.
    pub name: PhaseName,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// Beginning, ns.
    pub start_ns: u64,
    /// End, ns; `None` where the trace was cut off.
    pub end_ns: Option<u64>,
}

/// One call of a module's method.
#[derive(Debug)]
pub struct Call<'a> {
    /// Path of the module.
    pub path: &'a str,
    /// Its class.
    pub class: &'a str,
    /// The module call around it.
    pub parent: Option<CallId>,
    /// Row of [`RunIndex::phases`].
    pub phase: Option<usize>,
    /// Duration, ns.
    pub time_ns: u64,
    /// Part of it in module calls within.
    pub nested_ns: u64,
    /// Tensors that it returned.
    pub out: &'a [TensorRef],
}

/// One call of an operator.
#[derive(Debug)]
pub struct Op<'a> {
    /// Name such as `aten::conv2d`.
    pub name: &'a str,
    /// Number of the name's text.
    pub name_id: u32,
    /// The operator around it, within the same module call or node.
    pub parent: Option<u32>,
    /// Module calls that began before it.
    pub calls_before: CallId,
    /// The module call around it; in the backward pass, that of the operator that made the node.
    pub call: Option<CallId>,
    /// Row of [`RunIndex::phases`].
    pub phase: Option<usize>,
    /// Duration, ns; `None` where it never ended.
    pub time_ns: Option<u64>,
    /// Arguments.
    pub args: &'a [Arg],
    /// Results.
    pub out: &'a [Arg],
}

impl Op<'_> {
    /// Whether it is no operator of its own but the autograd engine at work: what it calls stands for itself.
    #[must_use]
    pub fn is_scope(&self) -> bool {
        self.name.starts_with("autograd::")
            || matches!(self.name, "aten::backward" | "aten::_backward")
    }
}

/// One autograd node.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    /// The module call of the operator that made it.
    pub call: Option<CallId>,
    /// Row of [`RunIndex::phases`].
    pub phase: Option<usize>,
    /// Duration, ns; 0 for one inside another.
    pub time_ns: u64,
}

/// What memory is for.
#[derive(Debug, Clone, Copy)]
pub struct Label<'a> {
    /// Category.
    pub category: Category,
    /// Name.
    pub name: &'a str,
    /// The allocation.
    pub alloc: u32,
    /// Metadata of the tensor in it.
    pub sig: Option<u32>,
}

/// What the method was called with for one of its arguments.
#[derive(Debug, Clone, Copy)]
pub struct Argument<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type in TorchScript's words.
    pub ty: &'a str,
    /// The value as `--input` writes it.
    pub value: &'a str,
    /// Whether it was given; else it is the schema's default.
    pub given: bool,
    /// The tensors in it, each with its place: empty, or indices and keys joined by dots.
    pub tensors: &'a [(String, TensorRef)],
}

impl<'a> RunIndex<'a> {
    /// The tables of a trace.
    #[must_use]
    pub fn new(trace: &'a Trace) -> Self {
        let mut walk = Walk {
            index: RunIndex {
                trace,
                phases: Vec::new(),
                calls: Vec::new(),
                ops: Vec::with_capacity(trace.op_count as usize),
                nodes: Vec::new(),
                labels: Vec::new(),
                arguments: Vec::new(),
                outputs: Vec::new(),
            },
            threads: HashMap::new(),
            main: None,
            phase: None,
            made_by_seq: HashMap::new(),
            alloc_calls: vec![None; trace.allocations.len()],
        };
        for event in &trace.events {
            walk.event(event);
        }
        walk.index
    }

    /// Name of an operator's phase.
    #[must_use]
    pub fn phase(&self, id: Option<usize>) -> Option<&Phase> {
        self.phases.get(id?)
    }

    /// The last training step; `None` for inference. Reports describe this step.
    #[must_use]
    pub fn last_step(&self) -> Option<u32> {
        self.phases.iter().filter_map(|phase| phase.step).max()
    }

    /// Whether a phase is part of the step that reports describe.
    #[must_use]
    pub fn reported(&self, id: Option<usize>) -> bool {
        let step = self.last_step();
        self.phase(id).is_some_and(|phase| {
            phase.step == step && !matches!(phase.name, PhaseName::Load | PhaseName::Inputs)
        })
    }

    /// The path of an operator's module.
    #[must_use]
    pub fn path(&self, call: Option<CallId>) -> Option<&'a str> {
        self.calls.get(call? as usize).map(|call| call.path)
    }
}

/// What is open on one thread.
#[derive(Debug, Default)]
struct Thread {
    frames: Vec<Frame>,
}

/// Something open.
#[derive(Debug, Clone, Copy)]
enum Frame {
    Call { id: CallId, start_ns: u64 },
    Op { id: u32, start_ns: u64 },
    Node { id: usize, start_ns: u64 },
}

struct Walk<'a> {
    index: RunIndex<'a>,
    threads: HashMap<u32, Thread>,
    /// The thread that called the first module: others work for it.
    main: Option<u32>,
    phase: Option<usize>,
    made_by_seq: HashMap<i64, Option<CallId>>,
    /// The call in which each allocation was made.
    alloc_calls: Vec<Option<CallId>>,
}

impl<'a> Walk<'a> {
    fn event(&mut self, event: &'a Event) {
        match event {
            Event::Phase { t, name, step } => self.begin_phase(*t, *name, *step),
            Event::PhaseEnd { t, .. } => {
                if let Some(phase) = self
                    .phase
                    .take()
                    .and_then(|id| self.index.phases.get_mut(id))
                {
                    phase.end_ns = Some(*t);
                }
            }
            Event::Enter {
                t,
                path,
                class,
                thread,
            } => self.enter(*t, *path, *class, *thread),
            Event::Exit { t, out, thread } => self.exit(*t, out, *thread),
            Event::Op {
                t,
                name,
                seq,
                args,
                thread,
                id,
            } => self.begin_op(*t, *id, *name, *seq, args, *thread),
            Event::End { t, id, out } => self.end_op(*t, *id, out),
            Event::Node { t, seq, thread, .. } => self.begin_node(*t, *seq, *thread),
            Event::NodeEnd { t, thread } => self.end_node(*t, *thread),
            Event::Alloc { id, thread, .. } => {
                let call = self.current_call(*thread);
                if let Some(slot) = self.alloc_calls.get_mut(*id as usize) {
                    *slot = call;
                }
            }
            Event::Label {
                id,
                sig,
                category,
                name,
            } => self.index.labels.push(Label {
                category: *category,
                name,
                alloc: *id,
                sig: *sig,
            }),
            Event::Output { path, tensor } => self.index.outputs.push((path, *tensor)),
            Event::Argument {
                name,
                ty,
                value,
                given,
                tensors,
            } => self.index.arguments.push(Argument {
                name,
                ty,
                value,
                given: *given,
                tensors,
            }),
            Event::Header(_)
            | Event::Str { .. }
            | Event::Sig { .. }
            | Event::Extern { .. }
            | Event::Free { .. }
            | Event::Segment { .. } => {}
        }
    }

    fn begin_phase(&mut self, t: u64, name: PhaseName, step: Option<u32>) {
        self.phase = Some(self.index.phases.len());
        self.index.phases.push(Phase {
            name,
            step,
            start_ns: t,
            end_ns: None,
        });
    }

    /// The innermost node open on this thread.
    fn node_around(&self, thread: u32) -> Option<usize> {
        let frames = &self.threads.get(&thread)?.frames;
        frames.iter().rev().find_map(|frame| match frame {
            Frame::Node { id, .. } => Some(*id),
            _ => None,
        })
    }

    fn frames(&mut self, thread: u32) -> &mut Vec<Frame> {
        &mut self.threads.entry(thread).or_default().frames
    }

    /// The module call in which this thread works now.
    fn current_call(&self, thread: u32) -> Option<CallId> {
        let of = |thread: u32| {
            let frames = &self.threads.get(&thread)?.frames;
            frames.iter().rev().find_map(|frame| match frame {
                Frame::Call { id, .. } => Some(Some(*id)),
                Frame::Node { id, .. } => {
                    Some(self.index.nodes.get(*id).and_then(|node| node.call))
                }
                Frame::Op { .. } => None,
            })
        };
        of(thread).or_else(|| of(self.main?)).flatten()
    }

    fn enter(&mut self, t: u64, path: u32, class: u32, thread: u32) {
        self.main.get_or_insert(thread);
        let id = CallId::try_from(self.index.calls.len()).unwrap_or(CallId::MAX);
        let parent = self.current_call(thread);
        let trace = self.index.trace;
        self.index.calls.push(Call {
            path: trace.text(path),
            class: trace.text(class),
            parent,
            phase: self.phase,
            time_ns: 0,
            nested_ns: 0,
            out: &[],
        });
        self.frames(thread).push(Frame::Call { id, start_ns: t });
    }

    fn exit(&mut self, t: u64, out: &'a [TensorRef], thread: u32) {
        let frames = self.frames(thread);
        // An operator that failed never ends; leaving the call closes it.
        let Some(at) = frames
            .iter()
            .rposition(|frame| matches!(frame, Frame::Call { .. }))
        else {
            return;
        };
        let Some(Frame::Call { id, start_ns }) = frames.get(at).copied() else {
            return;
        };
        frames.truncate(at);
        let Some(call) = self.index.calls.get_mut(id as usize) else {
            return;
        };
        call.time_ns = t.saturating_sub(start_ns);
        call.out = out;
        let (time, parent) = (call.time_ns, call.parent);
        if let Some(parent) = parent.and_then(|id| self.index.calls.get_mut(id as usize)) {
            parent.nested_ns = parent.nested_ns.saturating_add(time);
        }
    }

    fn begin_op(
        &mut self,
        t: u64,
        id: u32,
        name: u32,
        seq: Option<i64>,
        args: &'a [Arg],
        thread: u32,
    ) {
        let call = self.call_for_op(args, thread);
        let last = self
            .threads
            .get(&thread)
            .and_then(|open| open.frames.last());
        let parent = match last {
            Some(Frame::Op { id, .. }) => {
                let around = self.index.ops.get(*id as usize);
                around.filter(|op| !op.is_scope()).map(|_| *id)
            }
            _ => None,
        };
        if let (Some(seq), None) = (seq, self.node_around(thread)) {
            self.made_by_seq.insert(seq, call);
        }
        self.index.ops.push(Op {
            name: self.index.trace.text(name),
            name_id: name,
            calls_before: CallId::try_from(self.index.calls.len()).unwrap_or(CallId::MAX),
            parent,
            call,
            phase: self.phase,
            time_ns: None,
            args,
            out: &[],
        });
        self.frames(thread).push(Frame::Op { id, start_ns: t });
    }

    /// The call of an operator; gives a node that has none yet the call that made the memory it touches first.
    fn call_for_op(&mut self, args: &[Arg], thread: u32) -> Option<CallId> {
        let current = self.current_call(thread);
        let node = self.node_around(thread);
        let (None, Some(node)) = (current, node) else {
            return current;
        };
        let made = args
            .iter()
            .flat_map(Arg::tensors)
            .filter_map(|tensor| tensor.alloc)
            .find_map(|alloc| self.alloc_calls.get(alloc as usize).copied().flatten());
        if let Some(node) = self.index.nodes.get_mut(node) {
            node.call = made;
        }
        made
    }

    fn end_op(&mut self, t: u64, id: u32, out: &'a [Arg]) {
        for thread in self.threads.values_mut() {
            let Some(Frame::Op { id: open, start_ns }) = thread.frames.last().copied() else {
                continue;
            };
            if open == id {
                thread.frames.pop();
                if let Some(op) = self.index.ops.get_mut(id as usize) {
                    op.time_ns = Some(t.saturating_sub(start_ns));
                    op.out = out;
                }
                return;
            }
        }
    }

    fn begin_node(&mut self, t: u64, seq: Option<i64>, thread: u32) {
        let id = self.index.nodes.len();
        let call = seq.and_then(|seq| self.made_by_seq.get(&seq).copied().flatten());
        // The engine and the node itself may both report it; only one of them knows its number.
        let call = call.or_else(|| {
            self.node_around(thread)
                .and_then(|id| self.index.nodes.get(id)?.call)
        });
        self.index.nodes.push(Node {
            call,
            phase: self.phase,
            time_ns: 0,
        });
        self.frames(thread).push(Frame::Node { id, start_ns: t });
    }

    fn end_node(&mut self, t: u64, thread: u32) {
        let frames = self.frames(thread);
        let Some(at) = frames
            .iter()
            .rposition(|frame| matches!(frame, Frame::Node { .. }))
        else {
            return;
        };
        let ended = frames.get(at).copied();
        frames.truncate(at);
        let nested = frames
            .iter()
            .any(|frame| matches!(frame, Frame::Node { .. }));
        if let (Some(Frame::Node { id, start_ns }), false) = (ended, nested)
            && let Some(node) = self.index.nodes.get_mut(id)
        {
            node.time_ns = t.saturating_sub(start_ns);
        }
    }
}
