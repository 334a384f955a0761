//! Values that the host reads from the device: an `.item()`, the number of elements that `nonzero` found.
//!
//! The simulated device computes nothing, so it would answer 0. A run on the CPU knows; [`read_backs`] takes what its
//! operators read, and the simulated device gives the same answers at the same operators. Some operators read more or
//! other values on the CPU than on CUDA, so a read is known by more than its place in the order: [`ReadBack::key`].

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Arg, Event, PhaseName, Trace};

/// Operators that read one number of the device: the scalar itself, or how many elements they found.
const READERS: [(&str, Reading); 6] = [
    ("aten::_local_scalar_dense", Reading::Scalar),
    ("aten::nonzero", Reading::Rows),
    ("aten::masked_select", Reading::Rows),
    ("aten::_unique2", Reading::Rows),
    ("aten::unique_dim", Reading::Rows),
    ("aten::unique_consecutive", Reading::Rows),
];

#[derive(Clone, Copy)]
enum Reading {
    Scalar,
    Rows,
}

/// What an operator of the model read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadBack {
    /// The operator.
    pub op: String,
    /// The outermost operator around it, itself where there is none.
    pub outer: String,
    /// For a scalar the operator that returned it last; empty where that was none.
    pub producer: String,
    /// Shape of its first argument.
    pub shape: Vec<u64>,
    /// What it read.
    pub value: ReadValue,
}

impl ReadBack {
    /// What the same read in another run has in common with it.
    #[must_use]
    pub fn key(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        let ReadBack {
            op,
            outer,
            producer,
            ..
        } = self;
        format!("{op}|{outer}|{producer}|{}", shape.join("x"))
    }
}

/// A value that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadValue {
    /// How many elements were found.
    Count(u64),
    /// An integer scalar.
    Int(i64),
    /// A boolean scalar.
    Bool(bool),
    /// The bits of a floating scalar, as a 64-bit float.
    Float(u64),
}

/// How often an operator read a value of the simulated device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reads {
    /// The operator.
    pub op: String,
    /// Reads that were answered from a run on the CPU.
    pub answered: u64,
    /// Reads that gave 0, since nobody knew better.
    pub unknown: u64,
}

/// Every value that the model's forward and backward passes read, in order.
#[must_use]
pub fn read_backs(trace: &Trace) -> Vec<ReadBack> {
    let mut finder = Finder::new(trace);
    let mut of_model = false;
    for event in &trace.events {
        match event {
            Event::Phase { name, .. } => {
                of_model = matches!(name, PhaseName::Forward | PhaseName::Backward);
            }
            Event::Op {
                id,
                name,
                args,
                thread,
                ..
            } if of_model => finder.begins(*id, *name, args, *thread),
            Event::End { id, out, .. } if of_model => finder.ends(*id, out),
            _ => {}
        }
    }
    finder.found
}

/// An operator that has begun.
struct Open {
    id: u32,
    name: u32,
    /// Where it reads: how, and everything about it but the value.
    reads: Option<(Reading, ReadBack)>,
}

struct Finder<'a> {
    trace: &'a Trace,
    /// Operators that have begun, by thread.
    open: HashMap<u32, Vec<Open>>,
    threads: HashMap<u32, u32>,
    /// The operator that returned an allocation last.
    producers: HashMap<u32, u32>,
    found: Vec<ReadBack>,
}

impl Finder<'_> {
    fn new(trace: &Trace) -> Finder<'_> {
        Finder {
            trace,
            open: HashMap::new(),
            threads: HashMap::new(),
            producers: HashMap::new(),
            found: Vec::new(),
        }
    }

    fn begins(&mut self, id: u32, name: u32, args: &[Arg], thread: u32) {
        let stack = self.open.entry(thread).or_default();
        let op = self.trace.text(name);
        let reader = READERS.iter().find(|(reader, _)| *reader == op);
        // What an operator reads through others is its own read.
        let inside = stack.iter().any(|open| open.reads.is_some());
        let reads = match (reader, args.first()) {
            (Some((_, reading)), Some(Arg::Tensor(first))) if !inside => {
                let producer = match reading {
                    Reading::Scalar => first.alloc.and_then(|alloc| self.producers.get(&alloc)),
                    Reading::Rows => None,
                };
                let sig = self.trace.sigs.get(first.sig as usize);
                let read = ReadBack {
                    op: op.to_owned(),
                    outer: self
                        .trace
                        .text(stack.first().map_or(name, |outer| outer.name))
                        .to_owned(),
                    producer: producer
                        .map(|name| self.trace.text(*name).to_owned())
                        .unwrap_or_default(),
                    shape: sig.map(|sig| sig.shape.clone()).unwrap_or_default(),
                    value: ReadValue::Count(0),
                };
                Some((*reading, read))
            }
            _ => None,
        };
        stack.push(Open { id, name, reads });
        self.threads.insert(id, thread);
    }

    fn ends(&mut self, id: u32, out: &[Arg]) {
        let Some(stack) = self
            .threads
            .remove(&id)
            .and_then(|thread| self.open.get_mut(&thread))
        else {
            return;
        };
        let Some(open) = stack.pop_if(|open| open.id == id) else {
            return;
        };
        if let Some((reading, read)) = open.reads
            && let Some(value) = out
                .first()
                .and_then(|first| value(self.trace, first, reading))
        {
            self.found.push(ReadBack { value, ..read });
        }
        for made in out {
            if let Arg::Tensor(made) = made
                && let Some(alloc) = made.alloc
            {
                self.producers.insert(alloc, open.name);
            }
        }
    }
}

fn shape(trace: &Trace, arg: &Arg) -> Option<Vec<u64>> {
    let Arg::Tensor(tensor) = arg else {
        return None;
    };
    let sig = trace.sigs.get(tensor.sig as usize)?;
    Some(sig.shape.clone())
}

fn value(trace: &Trace, arg: &Arg, reads: Reading) -> Option<ReadValue> {
    match (reads, arg) {
        (Reading::Rows, arg) => shape(trace, arg)?.first().copied().map(ReadValue::Count),
        (Reading::Scalar, Arg::Int(value)) => Some(ReadValue::Int(*value)),
        (Reading::Scalar, Arg::Bool(value)) => Some(ReadValue::Bool(*value)),
        (Reading::Scalar, Arg::Double(value)) => Some(ReadValue::Float(value.to_bits())),
        // Not a number, or infinite: JSON has no word for it, the trace has its text.
        (Reading::Scalar, Arg::Other(text)) => {
            let value: f64 = text.parse().ok()?;
            Some(ReadValue::Float(value.to_bits()))
        }
        (Reading::Scalar, _) => None,
    }
}
