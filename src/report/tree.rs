//! The tree of modules that tensor names spell, and the collapsing of layers that repeat.
//!
//! A name is split at its dots; nothing is made up and nothing is dropped: the tensors below a node are its own
//! sums, so children add up to their parent at every level, collapsed or not.

mod collapse;
mod names;

use std::borrow::Cow;
use std::collections::HashMap;

use self::names::Names;
use crate::checkpoint::{Checkpoint, Composite, Tensor};
use crate::tensor::DType;

/// A map of names, of which a checkpoint has 100,000: keys are no secret, and what they hold decides nothing.
type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Index of a node.
pub(super) type NodeId = usize;

/// The root is always the first node.
pub(super) const ROOT: NodeId = 0;

/// What a tensor row needs to know besides the tensor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaf<'a> {
    /// The tensor.
    pub(super) tensor: &'a Tensor,
    /// The first tensor on the same storage, where that is another one.
    pub(super) first: Option<&'a Tensor>,
}

impl Leaf<'_> {
    /// How it shares memory with [`Leaf::first`].
    pub(super) fn sharing(&self) -> Sharing {
        match self.first {
            None => Sharing::No,
            Some(first) => {
                let same = first.storage_offset() == self.tensor.storage_offset()
                    && first.shape() == self.tensor.shape()
                    && first.strides() == self.tensor.strides()
                    && first.dtype() == self.tensor.dtype();
                if same {
                    Sharing::Same
                } else {
                    Sharing::Storage
                }
            }
        }
    }
}

/// How a tensor shares memory with an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sharing {
    /// It does not.
    No,
    /// It is the same view.
    Same,
    /// It is another view of the same storage.
    Storage,
}

/// What a checkpoint knows of names that are no tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct About<'a> {
    /// The class of the module of this name.
    pub(super) class: Option<&'a str>,
    /// The tensor of this name that is stored as several.
    pub(super) composite: Option<&'a Composite>,
}

/// Names that are no tensors.
pub(super) fn abouts(checkpoint: &Checkpoint) -> FastMap<&str, About<'_>> {
    let mut abouts: FastMap<&str, About<'_>> = FastMap::default();
    for module in checkpoint.modules() {
        abouts.entry(&module.path).or_default().class = Some(module.class_name());
    }
    for composite in checkpoint.composites() {
        abouts.entry(&composite.name).or_default().composite = Some(composite);
    }
    abouts
}

/// A module, or a tensor where it has one.
#[derive(Debug)]
pub(super) struct Node<'a> {
    /// Its part of the name; with other nodes in it `{0..31}`.
    pub(super) label: Cow<'a, str>,
    /// Nodes below it, in file order.
    pub(super) children: Vec<NodeId>,
    /// The tensor with this name (a name can be a tensor and a prefix of others).
    pub(super) leaf: Option<Leaf<'a>>,
    /// What else is known of it.
    pub(super) about: About<'a>,
    /// How many equal nodes this one stands for.
    pub(super) repeats: u64,
    /// Sums over everything below, of one of the repeats.
    pub(super) sums: Sums,
}

/// Sums below a node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    /// Tensors.
    pub(super) tensors: u64,
    /// Elements.
    pub(super) numel: u64,
    /// Logical bytes.
    pub(super) bytes: u64,
    /// Logical bytes if cast.
    pub(super) cast_bytes: u64,
    /// The dtypes.
    pub(super) dtype: DTypes,
}

/// The dtypes below a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum DTypes {
    /// No tensor has one.
    #[default]
    None,
    /// All tensors have this one.
    One(DType),
    /// There are several.
    Mixed,
}

impl DTypes {
    fn join(self, other: DTypes) -> DTypes {
        match (self, other) {
            (DTypes::None, x) | (x, DTypes::None) => x,
            (DTypes::One(a), DTypes::One(b)) if a == b => self,
            _ => DTypes::Mixed,
        }
    }
}

impl Sums {
    fn of(tensor: &Tensor, cast: Option<DType>) -> Sums {
        Sums {
            tensors: 1,
            numel: tensor.numel(),
            bytes: tensor.bytes(),
            cast_bytes: cast.map_or(0, |dtype| cast_bytes(tensor, dtype)),
            dtype: tensor.dtype().map_or(DTypes::None, DTypes::One),
        }
    }

    fn add(&mut self, other: Sums, repeats: u64) {
        let plus = |a: u64, b: u64| a.saturating_add(b.saturating_mul(repeats));
        self.tensors = plus(self.tensors, other.tensors);
        self.numel = plus(self.numel, other.numel);
        self.bytes = plus(self.bytes, other.bytes);
        self.cast_bytes = plus(self.cast_bytes, other.cast_bytes);
        self.dtype = self.dtype.join(other.dtype);
    }
}

/// Bytes of a tensor if cast as `Module.to(dtype)` does: floating tensors change, all others stay.
pub(super) fn cast_bytes(tensor: &Tensor, dtype: DType) -> u64 {
    let floating = tensor.dtype().is_some_and(DType::is_floating_point);
    match tensor.shape() {
        Some(shape) if floating => dtype.tensor_bytes(shape).unwrap_or(u64::MAX),
        _ => tensor.bytes(),
    }
}

/// A tree of modules and tensors.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
}

impl<'a> Tree<'a> {
    /// The tree of these tensors; `abouts` knows what else has a name. With `collapse`, siblings that differ only in
    /// their number are one node.
    pub(super) fn new(
        leaves: &[Leaf<'a>],
        abouts: &FastMap<&'a str, About<'a>>,
        cast: Option<DType>,
        collapse: bool,
    ) -> Self {
        let mut names = Names::new(leaves, abouts);
        if collapse {
            names.collapse();
        }
        let mut tree = Tree {
            nodes: names.nodes(),
        };
        tree.sum(cast);
        tree
    }

    /// The node with this id.
    pub(super) fn node(&self, id: NodeId) -> &Node<'a> {
        // Ids come from the tree itself; the root is always there.
        self.nodes.get(id).unwrap_or(&self.nodes[ROOT])
    }

    /// Sums, bottom up: children always come after their parents in `nodes`.
    fn sum(&mut self, cast: Option<DType>) {
        for id in (0..self.nodes.len()).rev() {
            let node = self.node(id);
            let mut sums = node
                .leaf
                .map_or_else(Sums::default, |leaf| Sums::of(leaf.tensor, cast));
            for child in &node.children {
                let child = self.node(*child);
                sums.add(child.sums, child.repeats);
            }
            if let Some(node) = self.nodes.get_mut(id) {
                node.sums = sums;
            }
        }
    }

    /// Joins modules with the only thing in them: `model` and `layers` to `model.layers`, `conv1` and `weight` to
    /// `conv1.weight`, which keeps the class of the module.
    pub(super) fn join_chains(&mut self) {
        let mut open = vec![ROOT];
        while let Some(id) = open.pop() {
            self.join_chain(id);
            open.extend_from_slice(&self.node(id).children);
        }
    }

    /// Joins a node with the only thing in it, as often as there is but one.
    fn join_chain(&mut self, id: NodeId) {
        while let [only] = self.node(id).children[..] {
            let child = self.node(only);
            let own = self.node(id);
            if id == ROOT
                || own.leaf.is_some()
                || own.about.composite.is_some()
                || child.repeats > 1
            {
                break;
            }
            let label = format!("{}.{}", self.node(id).label, child.label);
            let (children, leaf) = (child.children.clone(), child.leaf);
            let about = match leaf {
                Some(_) => self.node(id).about,
                None => child.about,
            };
            if let Some(node) = self.nodes.get_mut(id) {
                node.label = Cow::Owned(label);
                node.children = children;
                node.leaf = leaf;
                node.about = about;
            }
        }
    }

    /// Levels below the root.
    pub(super) fn depth(&self) -> usize {
        self.levels(ROOT)
    }

    fn levels(&self, id: NodeId) -> usize {
        let children = &self.node(id).children;
        children
            .iter()
            .map(|child| 1 + self.levels(*child))
            .max()
            .unwrap_or(0)
    }

    /// Rows that a tree cut at each depth has: `[0]` for depth 1, ...
    pub(super) fn rows_by_depth(&self) -> Vec<usize> {
        let mut rows = Vec::new();
        let mut level: Vec<NodeId> = self.node(ROOT).children.clone();
        let mut total = 0;
        while !level.is_empty() {
            total += level.len();
            rows.push(total);
            level = level
                .iter()
                .flat_map(|id| self.node(*id).children.iter().copied())
                .collect();
        }
        rows
    }
}

/// `block12` as `block` and 12; `None` without a number, or with one that would not print the same again.
pub(super) fn split_number(label: &str) -> Option<(&str, u64)> {
    let prefix = label.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = label.get(prefix.len()..)?;
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    Some((prefix, digits.parse().ok()?))
}

/// Most ranges that a collapsed label spells out.
const MAX_RANGES: usize = 4;

/// `{0..31}`, `{0..3,5}`, `{0,2,4,…,30}`.
pub(super) fn ranges(numbers: &[u64]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let runs: Vec<String> = sorted
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .map(|run| match run {
            [first, .., last] => format!("{first}..{last}"),
            [only] => only.to_string(),
            [] => String::new(),
        })
        .collect();
    match (&runs[..], runs.last()) {
        ([a, b, c, ..], Some(last)) if runs.len() > MAX_RANGES => {
            format!("{{{a},{b},{c},…,{last}}}")
        }
        _ => format!("{{{}}}", runs.join(",")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_labels() {
        assert_eq!(split_number("12"), Some(("", 12)));
        assert_eq!(split_number("block3"), Some(("block", 3)));
        assert_eq!(split_number("block0"), Some(("block", 0)));
        assert_eq!(split_number("block03"), None);
        assert_eq!(split_number("weight"), None);
        assert_eq!(split_number("99999999999999999999999"), None);
        assert_eq!(ranges(&[2, 0, 1, 10, 11]), "{0..2,10..11}");
        assert_eq!(ranges(&[0, 2, 4, 6, 8]), "{0,2,4,…,8}");
    }
}
