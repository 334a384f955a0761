//! Attention that the CPU computes part by part, scores and all, where CUDA has one kernel that never holds them.
//!
//! The CPU's fused kernel has no dropout, so a transformer in training takes the way by parts there:
//! `_scaled_dot_product_attention_math` inside `scaled_dot_product_attention`. On CUDA it is one call that returns the
//! output and keeps the logsumexp of the scores, one number a row, for a backward pass that makes the gradients of query,
//! key and value (`aten/src/ATen/native/transformers/cuda/attention.cu`, `_efficient_attention_forward` and its backward).
//! Where the model itself asks for attention by parts, CUDA takes it too, and nothing is changed.

use std::collections::HashSet;

use crate::trace::{Arg, Sig, Trace};

const BY_PARTS: &str = "aten::_scaled_dot_product_attention_math";
const CHOSEN: &str = "aten::scaled_dot_product_attention";
/// What makes the probabilities of the scores.
const PROBABILITIES: &str = "softmax";
/// Types that CUDA's fused kernels take.
const FUSED_DTYPES: [&str; 3] = ["float32", "float16", "bfloat16"];

/// What an allocation is to a call of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What it returns.
    Output,
    /// The probabilities that the CPU keeps for the backward pass.
    Probabilities,
    /// Anything else in the forward pass.
    Forward,
    /// In its backward pass.
    Backward,
}

/// Follows a trace's calls of attention by parts.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The call that is open.
    open: Option<u32>,
    /// Autograd's numbers of the operators inside such calls.
    seqs: HashSet<i64>,
    /// Numbers of scores that they had.
    scores: HashSet<u64>,
    /// For every autograd node that is open, whether it belongs to one.
    nodes: Vec<bool>,
}

impl Attention {
    /// An operator starts inside of others.
    pub(super) fn op<'a>(
        &mut self,
        id: u32,
        name: &str,
        seq: Option<i64>,
        mut around: impl Iterator<Item = &'a str>,
        query: Option<&Sig>,
    ) {
        let fused = query.is_some_and(|sig| FUSED_DTYPES.contains(&sig.dtype.as_str()));
        if self.open.is_some() {
            self.seqs.extend(seq);
        } else if name == BY_PARTS && fused && around.any(|op| op == CHOSEN) {
            self.open = Some(id);
        }
    }

    /// An operator ends: what the allocations of its results are, where it belongs to a call.
    pub(super) fn end(
        &mut self,
        id: u32,
        name: &str,
        out: &[Arg],
        trace: &Trace,
    ) -> Option<(u32, Part)> {
        self.open?;
        let result = out.first()?.tensors().next()?;
        let part = if self.open == Some(id) {
            self.open = None;
            Part::Output
        } else if name.contains(PROBABILITIES) {
            let sig = trace.sig(result)?;
            self.scores.insert(numel(sig));
            Part::Probabilities
        } else {
            return None;
        };
        Some((result.alloc?, part))
    }

    /// An autograd node starts.
    pub(super) fn node(&mut self, seq: Option<i64>) {
        let inside = seq.is_some_and(|seq| self.seqs.contains(&seq));
        self.nodes.push(inside);
    }

    /// The node that started last ends.
    pub(super) fn node_end(&mut self) {
        self.nodes.pop();
    }

    /// What an allocation is that is made now.
    pub(super) fn part(&self) -> Option<Part> {
        if self.open.is_some() {
            Some(Part::Forward)
        } else if self.nodes.contains(&true) {
            Some(Part::Backward)
        } else {
            None
        }
    }

    /// Whether a tensor has as many elements as there were scores.
    pub(super) fn is_scores(&self, sig: &Sig) -> bool {
        self.scores.contains(&numel(sig))
    }
}

/// Elements of a tensor.
fn numel(sig: &Sig) -> u64 {
    sig.shape.iter().product()
}

/// Bytes of the logsumexp of scores: a float32 for each row.
pub(super) fn logsumexp_bytes(scores: &Sig) -> u64 {
    let rows: u64 = scores.shape.iter().rev().skip(1).product();
    rows.saturating_mul(4)
}
