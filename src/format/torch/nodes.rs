//! Sets of values of one pickle.

use super::super::pickle::NodeId;

/// A set of values: one bit each, made when the first is added.
#[derive(Debug)]
pub(super) struct NodeSet {
    words: Vec<u64>,
    /// How many values the pickle has.
    nodes: usize,
}

impl NodeSet {
    /// An empty set of the values of a pickle with this many.
    pub(super) fn new(nodes: usize) -> NodeSet {
        NodeSet {
            words: Vec::new(),
            nodes,
        }
    }

    fn place(id: NodeId) -> (usize, u64) {
        let index = id.index();
        (
            index / 64,
            1_u64.rotate_left(u32::try_from(index % 64).unwrap_or(0)),
        )
    }

    /// Whether a value is in the set.
    pub(super) fn contains(&self, id: NodeId) -> bool {
        let (word, bit) = Self::place(id);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Adds a value; false when it was there already.
    pub(super) fn insert(&mut self, id: NodeId) -> bool {
        if self.words.is_empty() {
            self.words = vec![0; self.nodes.div_ceil(64)];
        }
        let (word, bit) = Self::place(id);
        let Some(word) = self.words.get_mut(word) else {
            return false;
        };
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Takes a value out.
    pub(super) fn remove(&mut self, id: NodeId) {
        let (word, bit) = Self::place(id);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
        }
    }
}
