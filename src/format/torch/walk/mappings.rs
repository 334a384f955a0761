//! Dictionaries, and objects that are dictionaries.

use super::super::super::pickle::{Node, NodeId};
use super::super::globals::Known;
use super::super::rows::Place;
use super::{Child, Label, Walk, below, contains};

impl Walk<'_, '_, '_> {
    /// The pairs of a dictionary or of an object that is one.
    pub(super) fn mapping_pairs(&self, node: NodeId) -> Option<&[NodeId]> {
        let pickle = self.graph.pickle;
        match pickle.node(node) {
            Node::Dict(_) => Some(pickle.pairs(node)),
            Node::Reduce { .. } if self.graph.called(node) == Known::Mapping => {
                Some(pickle.assigned_pairs(node))
            }
            _ => None,
        }
    }

    /// Whether a dictionary is a state_dict: names of tensors, and what quantized modules keep beside them.
    pub(super) fn is_state_dict(&self, pairs: &[NodeId]) -> bool {
        let pickle = self.graph.pickle;
        let mut tensors = false;
        for pair in pairs.chunks_exact(2) {
            let [key, value] = *pair else { return false };
            let Some(name) = pickle.str_bytes(key) else {
                return false;
            };
            if self.graph.called(value).makes_tensor() || self.is_tar_tensor(value) {
                tensors = true;
                continue;
            }
            let beside = [
                "_packed_params",
                "_all_weight_values",
                "_extra_state",
                "_metadata",
                ".dtype",
                "scale",
                "zero_point",
            ];
            if !beside.iter().any(|b| contains(name, b.as_bytes())) {
                return false;
            }
        }
        tensors
    }

    pub(super) fn is_tar_tensor(&self, node: NodeId) -> bool {
        let pickle = self.graph.pickle;
        matches!(pickle.node(node), Node::Persistent(id) if pickle.str_bytes(id).is_some())
    }

    /// Whether a dictionary is what an optimizer's `state_dict()` gives.
    pub(super) fn is_optimizer(&self, pairs: &[NodeId]) -> bool {
        let pickle = self.graph.pickle;
        let (mut state, mut groups) = (false, false);
        for key in pairs.iter().step_by(2) {
            match pickle.str_bytes(*key) {
                Some(b"state") => state = true,
                Some(b"param_groups") => groups = true,
                _ => {}
            }
        }
        state && groups
    }

    pub(super) fn mapping(&mut self, node: NodeId, pairs: &[NodeId], place: Place) {
        if self.skip(node) {
            return;
        }
        let pickle = self.graph.pickle;
        let entries = pickle.entries(pairs);
        let place = match place {
            Place::Plain if self.is_optimizer(pairs) => {
                self.saw_optimizer = true;
                Place::Optimizer
            }
            Place::Plain if self.is_state_dict(pairs) => {
                self.saw_state_dict = true;
                Place::StateDict
            }
            other => below(other),
        };
        let mut children = Vec::with_capacity(entries.len());
        for (index, (key, value)) in entries.into_iter().enumerate() {
            if !self.may_hold(value) {
                continue;
            }
            // Objects as keys have no text: an optimizer that was pickled whole keeps its state by parameter.
            let named = pickle.str_bytes(key).is_some() || pickle.plain_key(key).is_some();
            let label = if named {
                Label::Key(key)
            } else {
                Label::Index(index)
            };
            let optimizer = place == Place::Plain
                && pickle
                    .str_bytes(key)
                    .is_some_and(|k| k.starts_with(b"optim"));
            self.saw_optimizer |= optimizer;
            children.push(Child {
                label,
                node: value,
                place: if optimizer { Place::Optimizer } else { place },
            });
        }
        self.enter(node, children);
    }
}
