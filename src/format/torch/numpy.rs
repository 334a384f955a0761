//! numpy arrays and scalars in a pickle: memory, but no tensors.

use super::super::pickle::{Node, NodeId};
use super::globals::Known;
use super::rebuild::Graph;
use crate::checkpoint::NumpyArray;

/// The array that `_reconstruct` and its state describe; `None` when it holds Python objects, or is not complete.
pub(super) fn array(graph: &Graph<'_, '_>, node: NodeId, name: &str) -> Option<NumpyArray> {
    let pickle = graph.pickle;
    if graph.called(node) != Known::NumpyReconstruct {
        return None;
    }
    let state = pickle.state(node)?;
    let [_version, shape, dtype, _fortran, data] = *pickle.items(state) else {
        return None;
    };
    if matches!(pickle.node(data), Node::List(_)) {
        return None;
    }
    shaped(graph, dtype, shape, name)
}

/// The array that `_frombuffer(data, dtype, shape, order)` makes: protocol 5.
pub(super) fn from_buffer(graph: &Graph<'_, '_>, args: NodeId, name: &str) -> Option<NumpyArray> {
    let [_data, dtype, shape, ..] = *graph.pickle.items(args) else {
        return None;
    };
    shaped(graph, dtype, shape, name)
}

fn shaped(graph: &Graph<'_, '_>, dtype: NodeId, shape: NodeId, name: &str) -> Option<NumpyArray> {
    let pickle = graph.pickle;
    let shape: Vec<u64> = pickle
        .items(shape)
        .iter()
        .map(|&size| u64::try_from(pickle.int(size)?).ok())
        .collect::<Option<_>>()?;
    let (dtype, item) = item_type(graph, dtype)?;
    let bytes = crate::tensor::numel(&shape)?.checked_mul(item)?;
    Some(NumpyArray {
        name: name.to_owned(),
        dtype,
        shape,
        bytes,
    })
}

/// The scalar that a call of `scalar` with these arguments makes; `None` when it is a Python object.
pub(super) fn scalar(graph: &Graph<'_, '_>, args: NodeId, name: &str) -> Option<NumpyArray> {
    let (dtype, bytes) = item_type(graph, *graph.pickle.items(args).first()?)?;
    Some(NumpyArray {
        name: name.to_owned(),
        dtype,
        shape: Vec::new(),
        bytes,
    })
}

/// The name of numpy's type, and the bytes of one item; `None` for Python objects.
fn item_type(graph: &Graph<'_, '_>, dtype: NodeId) -> Option<(String, u64)> {
    let pickle = graph.pickle;
    let Node::Reduce { args, .. } = pickle.node(dtype) else {
        return None;
    };
    let code = pickle.text(*pickle.items(args).first()?)?;
    let kind = code.trim_end_matches(|c: char| c.is_ascii_digit());
    let size: u64 = code.get(kind.len()..)?.parse().ok()?;
    let bits = size.checked_mul(8)?;
    match kind {
        "O" => None,
        "b" if size == 1 => Some(("bool".to_owned(), 1)),
        "i" => Some((format!("int{bits}"), size)),
        "u" => Some((format!("uint{bits}"), size)),
        "f" => Some((format!("float{bits}"), size)),
        "c" => Some((format!("complex{bits}"), size)),
        "M" => Some((format!("datetime{bits}"), size)),
        "m" => Some((format!("timedelta{bits}"), size)),
        // numpy counts characters of unicode strings, four bytes each.
        "U" => Some((code.into_owned(), size.checked_mul(4)?)),
        _ => Some((code.into_owned(), size)),
    }
}
