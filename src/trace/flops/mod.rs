//! Floating-point operations of a run, by formula per operator from the shapes it really saw.
//!
//! As PyTorch's `FlopCounterMode` counts: matrix products, convolutions and attention; one multiply-accumulate is two
//! operations; element-wise arithmetic, normalization, pooling and reductions are left out by convention. Unlike it,
//! fused attention and fused recurrent layers are counted on every device, and the weight gradient of a grouped
//! convolution is not multiplied by its groups.
//!
//! Operators nest. One that has a formula is counted and what it calls is not looked at again; one that has none is
//! the sum of what it calls. An operator that is in no table (`kinds`) and calls nothing that computes is named in
//! [`Flops::without`], never counted as zero in silence.

mod formulas;
mod kinds;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::ops::{Op, RunIndex};
pub use kinds::OpClass;
use kinds::Rule;

/// Work of one operator with everything it calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Multiply-accumulates.
    pub macs: u64,
    /// Whether a part of it is not known, so that `macs` is too low.
    pub incomplete: bool,
}

impl Work {
    /// Floating-point operations: two a multiply-accumulate.
    #[must_use]
    pub fn flops(self) -> u64 {
        self.macs.saturating_mul(2)
    }

    /// Adds another operator's.
    pub fn add(&mut self, other: Work) {
        self.macs = self.macs.saturating_add(other.macs);
        self.incomplete |= other.incomplete;
    }
}

/// Work of every operator of a run.
#[derive(Debug)]
pub struct Flops {
    /// By operator, in the order of [`RunIndex::ops`], each with everything it calls.
    pub by_op: Vec<Work>,
    /// Rows of operators that compute, and nobody knows how much.
    pub without: Vec<u32>,
}

/// How one operator came out, apart from what it calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Inside one that is counted.
    Covered,
    /// By formula.
    Counted(u64),
    /// Arithmetic that is left out by convention.
    ByConvention,
    /// Moves or describes data.
    Free,
    /// In no table, or its shapes do not fit the formula.
    Unknown,
}

impl Flops {
    /// Counts every operator of a run.
    #[must_use]
    pub fn of(index: &RunIndex<'_>) -> Self {
        let verdicts = verdicts(index);
        let mut by_op = vec![Work::default(); index.ops.len()];
        let mut computes_inside = vec![false; index.ops.len()];
        let mut without = Vec::new();
        // Callers stand before what they call: from the end, everything inside is known.
        for (id, (op, verdict)) in index.ops.iter().zip(&verdicts).enumerate().rev() {
            let Some(work) = by_op.get_mut(id) else {
                continue;
            };
            let inside = computes_inside.get(id).copied().unwrap_or(false);
            match verdict {
                Verdict::Counted(macs) => work.macs = *macs,
                Verdict::Unknown if !inside && !op.is_scope() => {
                    work.incomplete = true;
                    without.extend(u32::try_from(id));
                }
                _ => {}
            }
            let work = *work;
            let parent = op.parent.map(|id| id as usize);
            if let Some(sum) = parent.and_then(|id| by_op.get_mut(id))
                && *verdict != Verdict::Covered
            {
                sum.add(work);
            }
            if let Some(slot) = parent.and_then(|id| computes_inside.get_mut(id)) {
                *slot |= !matches!(verdict, Verdict::Free | Verdict::Covered);
            }
        }
        without.reverse();
        Flops { by_op, without }
    }

    /// Work of operator `id`.
    #[must_use]
    pub fn work(&self, id: usize) -> Work {
        self.by_op.get(id).copied().unwrap_or_default()
    }
}

fn verdicts(index: &RunIndex<'_>) -> Vec<Verdict> {
    let mut rules: HashMap<u32, Rule> = HashMap::new();
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(index.ops.len());
    for op in &index.ops {
        let parent = op.parent.and_then(|id| verdicts.get(id as usize));
        let verdict = match parent {
            None | Some(Verdict::Unknown) => {
                let rule = *rules
                    .entry(op.name_id)
                    .or_insert_with(|| kinds::rule(op.name));
                judge(rule, op, index)
            }
            Some(_) => Verdict::Covered,
        };
        verdicts.push(verdict);
    }
    verdicts
}

fn judge(rule: Rule, op: &Op<'_>, index: &RunIndex<'_>) -> Verdict {
    match rule {
        Rule::Free => Verdict::Free,
        Rule::ByConvention => Verdict::ByConvention,
        Rule::Unknown => Verdict::Unknown,
        Rule::Formula(formula) => {
            formulas::macs(formula, op, index.trace).map_or(Verdict::Unknown, Verdict::Counted)
        }
    }
}
