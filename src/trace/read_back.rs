//! Values that the host reads from the device: an `.item()`, the number of elements that `nonzero` found.
//!
//! The simulated device computes nothing, so it would answer 0. A run on the CPU knows; [`read_backs`] takes what its
//! operators read, in order, and the simulated device gives the same answers at the same operators.

use serde::{Deserialize, Serialize};

use super::{Arg, Event, PhaseName, Trace};

/// Operators that read one number of the device: the scalar itself, or how many elements they found.
const READERS: [(&str, Reading); 5] = [
    ("aten::_local_scalar_dense", Reading::Scalar),
    ("aten::nonzero", Reading::Rows),
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
    /// Shape of its first argument.
    pub shape: Vec<u64>,
    /// What it read.
    pub value: ReadValue,
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
    let mut open: Option<(u32, Reading, &str, Vec<u64>)> = None;
    let mut found = Vec::new();
    let mut of_model = false;
    for event in &trace.events {
        match event {
            Event::Phase { name, .. } => {
                of_model = matches!(name, PhaseName::Forward | PhaseName::Backward);
            }
            Event::Op { id, name, args, .. } if of_model => {
                let name = trace.text(*name);
                if open.is_none() // what an operator reads through others is its own read
                    && let Some((op, reads)) = READERS.iter().find(|(op, _)| *op == name)
                    && let Some(shape) = args.first().and_then(|first| shape(trace, first))
                {
                    open = Some((*id, *reads, op, shape));
                }
            }
            Event::End { id, out, .. } => {
                let Some((_, reads, op, shape)) = open.take_if(|(open, ..)| open == id) else {
                    continue;
                };
                if let Some(value) = out.first().and_then(|first| value(trace, first, reads)) {
                    found.push(ReadBack {
                        op: op.to_owned(),
                        shape,
                        value,
                    });
                }
            }
            _ => {}
        }
    }
    found
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
