//! What is known of each allocation once a whole trace was read.

use std::collections::{BTreeMap, HashMap};

use super::attention::Attention;
use super::rules::{Change, Made, WITHOUT_RULE};
use crate::trace::{Arg, Event, PhaseName, TensorRef, Trace};

/// Every allocation's life, and what becomes of it.
pub(super) struct Survey<'a> {
    changes: Vec<Change>,
    /// Operators in the optimizer's step, by index of their event: its numbers are on the host.
    host_ops: Vec<bool>,
    lives: Vec<Life<'a>>,
}

struct Life<'a> {
    made: Made<'a>,
    /// The outermost operator or node it was made in.
    outermost: Option<Scope>,
}

/// An operator, or an autograd node by how deep it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scope {
    Op(u32),
    Node(u32),
}

struct Reader<'a> {
    trace: &'a Trace,
    open: Vec<(Scope, &'a str)>,
    nodes: u32,
    phase: Option<PhaseName>,
    /// Index into `lives` by allocation.
    at: HashMap<u32, usize>,
    attention: Attention,
    survey: Survey<'a>,
}

impl<'a> Survey<'a> {
    pub(super) fn of(trace: &'a Trace) -> Survey<'a> {
        let mut reader = Reader {
            trace,
            open: Vec::new(),
            nodes: 0,
            phase: None,
            at: HashMap::new(),
            attention: Attention::default(),
            survey: Survey {
                changes: vec![Change::Keep; trace.allocations.len()],
                host_ops: Vec::with_capacity(trace.events.len()),
                lives: Vec::new(),
            },
        };
        for event in &trace.events {
            reader.event(event);
        }
        let (attention, mut survey) = (reader.attention, reader.survey);
        for (id, life) in &reader.at {
            if let (Some(slot), Some(life)) = (
                survey.changes.get_mut(*id as usize),
                survey.lives.get(*life),
            ) {
                *slot = life.made.change(|sig| attention.is_scores(sig));
            }
        }
        survey
    }

    /// What becomes of an allocation.
    pub(super) fn change(&self, id: u32) -> Change {
        self.changes
            .get(id as usize)
            .copied()
            .unwrap_or(Change::Keep)
    }

    /// Whether the operator of this event computes on the host.
    pub(super) fn on_host(&self, index: usize) -> bool {
        self.host_ops.get(index).copied().unwrap_or(false)
    }
}

impl<'a> Reader<'a> {
    fn event(&mut self, event: &'a Event) {
        let host = matches!(event, Event::Op { .. }) && self.phase == Some(PhaseName::Optimizer);
        self.survey.host_ops.push(host);
        match event {
            Event::Phase { name, .. } => self.phase = Some(*name),
            Event::PhaseEnd { .. } => self.phase = None,
            Event::Op {
                id,
                name,
                seq,
                args,
                ..
            } => {
                self.see_all(args);
                let name = self.trace.text(*name);
                let query = args.first().and_then(Arg::tensor);
                self.attention.op(
                    *id,
                    name,
                    *seq,
                    self.open.iter().map(|open| open.1),
                    query.and_then(|query| self.trace.sig(query)),
                );
                self.open.push((Scope::Op(*id), name));
            }
            Event::End { id, out, .. } => {
                self.see_all(out);
                let name = self.close(Scope::Op(*id)).unwrap_or_default();
                let part = self.attention.end(*id, name, out, self.trace);
                if let Some((alloc, part)) = part
                    && let Some(life) = self.life(alloc)
                    && life.made.attention.is_some()
                {
                    life.made.attention = Some(part);
                }
            }
            Event::Node { name, seq, .. } => {
                self.attention.node(*seq);
                self.nodes += 1;
                self.open
                    .push((Scope::Node(self.nodes), self.trace.text(*name)));
            }
            Event::NodeEnd { .. } => {
                self.attention.node_end();
                self.close(Scope::Node(self.nodes));
                self.nodes = self.nodes.saturating_sub(1);
            }
            Event::Exit { out, .. } => out.iter().for_each(|tensor| self.see(*tensor)),
            Event::Output { tensor, .. } => self.see(*tensor),
            Event::Label { id, .. } => {
                if let Some(life) = self.life(*id) {
                    life.made.labelled = true;
                }
            }
            Event::Alloc { id, bytes, .. } => self.alloc(*id, *bytes),
            Event::Free { id, .. } => {
                let open: Vec<Scope> = self.open.iter().map(|open| open.0).collect();
                if let Some(life) = self.life(*id) {
                    life.made.temporary = life.outermost.is_some_and(|scope| open.contains(&scope));
                }
            }
            _ => {}
        }
    }

    /// Closes an operator or node, and says its name.
    fn close(&mut self, scope: Scope) -> Option<&'a str> {
        let at = self.open.iter().rposition(|open| open.0 == scope)?;
        Some(self.open.remove(at).1)
    }

    fn alloc(&mut self, id: u32, bytes: u64) {
        self.at.insert(id, self.survey.lives.len());
        self.survey.lives.push(Life {
            made: Made {
                bytes,
                ops: self.open.iter().map(|open| open.1).collect(),
                phase: self.phase,
                sig: None,
                labelled: false,
                temporary: false,
                training: self.trace.header.mode == "train",
                attention: self.attention.part(),
            },
            outermost: self.open.first().map(|open| open.0),
        });
    }

    fn life(&mut self, id: u32) -> Option<&mut Life<'a>> {
        let at = *self.at.get(&id)?;
        self.survey.lives.get_mut(at)
    }

    fn see_all(&mut self, args: &[Arg]) {
        for tensor in args.iter().flat_map(Arg::tensors) {
            self.see(tensor);
        }
    }

    fn see(&mut self, tensor: TensorRef) {
        let sig = self.trace.sig(tensor);
        if let Some(life) = tensor.alloc.and_then(|id| self.life(id)) {
            life.made.sig = life.made.sig.or(sig);
        }
    }
}

/// Operators without a rule, outermost or not, by name.
pub(super) fn without_rule(trace: &Trace) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for event in &trace.events {
        if let Event::Op { name, .. } = event {
            let name = trace.text(*name);
            if WITHOUT_RULE.contains(&name) {
                *counts.entry(name).or_default() += 1;
            }
        }
    }
    let counts = counts.into_iter();
    counts
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
}
