//! Multiply-accumulates of one operator, from the shapes of its arguments and results.
//!
//! | formula | multiply-accumulates |
//! |---|---|
//! | matrix product `[m, k] @ [k, n]` | m k n, times the batch |
//! | linear `[.., k]` to n features | elements of the input times n |
//! | convolution | elements of the output times the weights of one filter; transposed: elements of the input instead |
//! | its backward | once the forward for each of the gradients of input and weight that is computed |
//! | attention, B heads of `[q, d]`, `[k, d]`, `[k, v]` | B q k (d + v); backward B q k (3 d + 2 v), scores computed anew |
//! | recurrent layer | time steps times batch times the elements of its weight matrices; backward twice that |
//! | distances of points with d coordinates | d for each distance |
//!
//! A formula gives `None` where shapes are not those it is for; it never guesses.

use crate::trace::ops::Op;
use crate::trace::{Arg, Trace};

/// Which formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Formula {
    /// `[.., m, k] @ [.., k, n]`; the first matrix is argument `first`.
    MatMul { first: usize },
    /// `[m, k] @ [k]`; the matrix is argument `first`.
    MatVec { first: usize },
    /// Two vectors.
    Dot,
    /// Input argument 0, weight argument 1 of shape `[n, k]` or `[k]`.
    Linear,
    /// Input argument 0, weight in a form of its own: the output tells n.
    Packed,
    /// Input argument 0 and gradient of the output argument 1 of a linear layer.
    LinearBackward,
    /// Input argument 0, weight argument 1.
    Conv { transposed: bool },
    /// The same, argument 6 says whether transposed.
    ConvGeneral,
    /// `conv_tbc`: weight `[width, in, out]`.
    ConvTbc,
    /// Gradient of the output argument 0, input 1, weight 2, transposed 7.
    ConvBackward,
    /// Query, key, value are arguments 0, 1, 2.
    Attention,
    /// The same, all `[batch, length, heads, size]`.
    AttentionByLength,
    /// Gradient of the output, query, key, value are arguments 0 to 3.
    AttentionBackward,
    /// `_native_multi_head_attention`.
    MultiHead,
    /// `_transformer_encoder_layer_fwd`.
    EncoderLayer,
    /// Input argument 0, weight matrices among arguments `1..=weights`, applied `times` times.
    Recurrent { weights: usize, times: u64 },
    /// Input and state; `gates` times the hidden size rows of packed weights.
    PackedCell { gates: u64 },
    /// A whole network of such cells.
    PackedLayers { gates: u64 },
    /// Result or argument `distances` holds distances between points of argument `points`.
    Distances {
        points: usize,
        distances: Option<usize>,
    },
}

/// Multiply-accumulates of `op`.
pub(super) fn macs(formula: Formula, op: &Op<'_>, trace: &Trace) -> Option<u64> {
    let shapes = Shapes { op, trace };
    match formula {
        Formula::MatMul { first } => matmul(shapes.arg(first)?, shapes.arg(first + 1)?),
        Formula::MatVec { first } => numel(shapes.arg(first)?),
        Formula::Dot => numel(shapes.arg(0)?),
        Formula::Linear => linear(shapes.arg(0)?, shapes.arg(1)?),
        Formula::Packed => mul([numel(shapes.out(0)?)?, *shapes.arg(0)?.last()?]),
        Formula::LinearBackward => {
            let one = mul([numel(shapes.arg(1)?)?, *shapes.arg(0)?.last()?])?;
            one.checked_mul(shapes.gradients())
        }
        Formula::Conv { transposed } => shapes.conv(transposed),
        Formula::ConvGeneral => shapes.conv(op.args.get(6)?.bool()?),
        Formula::ConvTbc => {
            let weight = shapes.arg(1)?;
            mul([numel(shapes.out(0)?)?, *weight.first()?, *weight.get(1)?])
        }
        Formula::ConvBackward => shapes.conv_backward(),
        Formula::Attention => attention(shapes.arg(0)?, shapes.arg(1)?, shapes.arg(2)?, 1, 1),
        Formula::AttentionByLength => {
            attention_by_length(shapes.arg(0)?, shapes.arg(1)?, shapes.arg(2)?)
        }
        Formula::AttentionBackward => {
            attention(shapes.arg(1)?, shapes.arg(2)?, shapes.arg(3)?, 3, 2)
        }
        Formula::MultiHead => multi_head(shapes.arg(0)?, shapes.arg(1)?, op.args.get(3)?),
        Formula::EncoderLayer => shapes.encoder_layer(),
        Formula::Recurrent { weights, times } => shapes.recurrent(weights)?.checked_mul(times),
        Formula::PackedCell { gates } => shapes.packed_cell(gates),
        Formula::PackedLayers { gates } => shapes.packed_layers(gates),
        Formula::Distances { points, distances } => {
            let distances = match distances {
                None => shapes.out(0)?,
                Some(index) => shapes.arg(index)?,
            };
            mul([numel(distances)?, *shapes.arg(points)?.last()?])
        }
    }
}

fn mul<const N: usize>(factors: [u64; N]) -> Option<u64> {
    factors.into_iter().try_fold(1, u64::checked_mul)
}

fn numel(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1_u64, |product, size| product.checked_mul(*size))
}

/// `[.., m, k] @ [.., k, n]`.
fn matmul(a: &[u64], b: &[u64]) -> Option<u64> {
    let ([.., rows, inner], [.., inner2, columns]) = (a, b) else {
        return None;
    };
    let batch = |shape: &[u64]| numel(shape.get(..shape.len().checked_sub(2)?)?);
    if inner != inner2 || batch(a)? != batch(b)? {
        return None;
    }
    mul([batch(a)?, *rows, *inner, *columns])
}

fn linear(input: &[u64], weight: &[u64]) -> Option<u64> {
    match weight {
        [k] if Some(k) == input.last() => numel(input),
        [n, k] if Some(k) == input.last() => mul([numel(input)?, *n]),
        _ => None,
    }
}

/// `passes_k` products over the size of keys, `passes_v` over that of values.
fn attention(
    query: &[u64],
    key: &[u64],
    value: &[u64],
    passes_k: u64,
    passes_v: u64,
) -> Option<u64> {
    let ([.., _, d], [.., length, d2], [.., length2, v]) = (query, key, value) else {
        return None;
    };
    if query.len() < 3 || d != d2 || length != length2 || *d == 0 {
        return None;
    }
    let queries = numel(query)? / d;
    let sizes = mul([passes_k, *d])?.checked_add(mul([passes_v, *v])?)?;
    mul([queries, *length, sizes])
}

fn attention_by_length(query: &[u64], key: &[u64], value: &[u64]) -> Option<u64> {
    let swap = |shape: &[u64]| match shape {
        [batch, length, heads, size] => Some([*batch, *heads, *length, *size]),
        _ => None,
    };
    attention(&swap(query)?, &swap(key)?, &swap(value)?, 1, 1)
}

/// Projections in and out, scores and their application.
fn multi_head(query: &[u64], key: &[u64], width: &Arg) -> Option<u64> {
    let width = u64::try_from(width.int()?).ok()?;
    let ([batch, queries, e], [batch2, keys, e2]) = (query, key) else {
        return None;
    };
    if batch != batch2 || *e != width || *e2 != width {
        return None;
    }
    let projected = queries.checked_mul(2)?.checked_add(keys.checked_mul(2)?)?;
    let projections = mul([*batch, projected, width, width])?;
    projections.checked_add(mul([*batch, 2, *queries, *keys, width])?)
}

/// Shapes of an operator's arguments and results.
struct Shapes<'a> {
    op: &'a Op<'a>,
    trace: &'a Trace,
}

impl<'a> Shapes<'a> {
    fn shape(&self, arg: &Arg) -> Option<&'a [u64]> {
        let sig = self.trace.sig(arg.tensor()?)?;
        Some(&sig.shape)
    }

    fn arg(&self, index: usize) -> Option<&'a [u64]> {
        self.shape(self.op.args.get(index)?)
    }

    fn out(&self, index: usize) -> Option<&'a [u64]> {
        self.shape(self.op.out.get(index)?)
    }

    /// How many of the gradients of input and weight were computed.
    fn gradients(&self) -> u64 {
        [0, 1]
            .into_iter()
            .map(|index| u64::from(self.out(index).is_some_and(|shape| numel(shape) != Some(0))))
            .sum()
    }

    fn conv(&self, transposed: bool) -> Option<u64> {
        let moved = if transposed {
            self.arg(0)?
        } else {
            self.out(0)?
        };
        filter(moved, self.arg(1)?)
    }

    fn conv_backward(&self) -> Option<u64> {
        let transposed = self.op.args.get(7).and_then(Arg::bool) == Some(true);
        let moved = self.arg(usize::from(transposed))?;
        filter(moved, self.arg(2)?)?.checked_mul(self.gradients())
    }

    fn encoder_layer(&self) -> Option<u64> {
        let input = self.arg(0)?;
        let attention = multi_head(input, input, self.op.args.get(1)?)?;
        // Feed-forward weights: see the schema, linear1 is argument 14 and linear2 argument 16.
        let inner = linear(input, self.arg(14)?)?;
        let [width, hidden] = self.arg(16)? else {
            return None;
        };
        let rows = numel(input)? / (*input.last()?).max(1);
        attention
            .checked_add(inner)?
            .checked_add(mul([rows, *width, *hidden])?)
    }

    fn recurrent(&self, weights: usize) -> Option<u64> {
        let input = self.arg(0)?;
        let steps = numel(input)?.checked_div(*input.last()?)?;
        let matrices = self.op.args.get(1..=weights)?.iter().flat_map(Arg::tensors);
        let mut elements = 0_u64;
        for tensor in matrices {
            let shape = &self.trace.sig(tensor)?.shape;
            if shape.len() == 2 {
                elements = elements.checked_add(numel(shape)?)?;
            }
        }
        if elements == 0 {
            return None;
        }
        mul([steps, elements])
    }

    fn packed_cell(&self, gates: u64) -> Option<u64> {
        let input = self.arg(0)?;
        let state = self.shape_in(1)?;
        let hidden = *state.last()?;
        let sizes = input.last()?.checked_add(hidden)?;
        mul([numel(state)?, gates, sizes])
    }

    /// `quantized_lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, ...)`.
    fn packed_layers(&self, gates: u64) -> Option<u64> {
        let input = self.arg(0)?;
        let hidden = *self.shape_in(1)?.last()?;
        let layers = u64::try_from(self.op.args.get(4)?.int()?).ok()?;
        let directions = 1 + u64::from(self.op.args.get(7)?.bool()?);
        let steps = numel(input)?.checked_div(*input.last()?)?;
        let first = input.last()?.checked_add(hidden)?;
        let other = hidden.checked_mul(directions)?.checked_add(hidden)?;
        let columns = layers
            .checked_sub(1)?
            .checked_mul(other)?
            .checked_add(first)?;
        mul([steps, directions, gates, hidden, columns])
    }

    /// The shape of an argument that is a tensor or a list of them.
    fn shape_in(&self, index: usize) -> Option<&'a [u64]> {
        let tensor = self.op.args.get(index)?.tensors().next()?;
        Some(&self.trace.sig(tensor)?.shape)
    }
}

/// Elements that a filter is moved over or to, times the elements of one filter.
fn filter(moved: &[u64], weight: &[u64]) -> Option<u64> {
    let [_, one @ ..] = weight else { return None };
    if one.len() < 2 || moved.len() < one.len() {
        return None;
    }
    mul([numel(moved)?, numel(one)?])
}
