//! numpy arrays in a pickle: memory, but no tensors.

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
    let shape: Vec<u64> = pickle
        .items(shape)
        .iter()
        .map(|&size| u64::try_from(pickle.int(size)?).ok())
        .collect::<Option<_>>()?;
    let Node::Reduce { args, .. } = pickle.node(dtype) else {
        return None;
    };
    let dtype = pickle.text(*pickle.items(args).first()?)?.into_owned();
    let item: u64 = dtype
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()?;
    if matches!(pickle.node(data), Node::List(_)) {
        return None;
    }
    // numpy counts characters of unicode strings, four bytes each.
    let item = if dtype.starts_with('U') {
        item.checked_mul(4)?
    } else {
        item
    };
    let bytes = crate::tensor::numel(&shape)?.checked_mul(item)?;
    Some(NumpyArray {
        name: name.to_owned(),
        dtype,
        shape,
        bytes,
    })
}
