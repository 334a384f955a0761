//! Bringing two lists of allocations into line: which of one is which of the other.

use std::collections::HashMap;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use super::side::Side;

/// A place in the common order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// An allocation of both: its index in the estimate and in the measurement.
    Both(usize, usize),
    /// Only the estimate has it.
    Estimated(usize),
    /// Only the measurement has it.
    Measured(usize),
}

/// Allocations are the same that ask for as many bytes, in the same order; where both sides name operators, inside the
/// same one.
pub(super) fn align(estimated: &Side, measured: &Side) -> Vec<Slot> {
    let by_op = estimated.names_ops && measured.names_ops;
    let mut numbers: HashMap<(u64, &str), u32> = HashMap::new();
    let mut keys = Vec::new();
    for side in [estimated, measured] {
        let of_side = side.allocations.iter().map(|made| {
            let op = made.op.as_deref().filter(|_| by_op).unwrap_or_default();
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            *numbers.entry((made.bytes, op)).or_insert(next)
        });
        keys.push(of_side.collect::<Vec<u32>>());
    }
    let (Some(measured), Some(estimated)) = (keys.pop(), keys.pop()) else {
        return Vec::new();
    };
    let mut slots = Vec::with_capacity(estimated.len().max(measured.len()));
    for op in capture_diff_slices(Algorithm::Myers, &estimated, &measured) {
        let (old, new) = (op.old_range(), op.new_range());
        if matches!(op, DiffOp::Equal { .. }) {
            slots.extend(old.zip(new).map(|(ours, theirs)| Slot::Both(ours, theirs)));
        } else {
            slots.extend(old.map(Slot::Estimated));
            slots.extend(new.map(Slot::Measured));
        }
    }
    slots
}
