//! Calls: containers that are made by calling their class.

use super::super::super::error::FormatError;
use super::super::super::pickle::{Node, NodeId};
use super::super::globals::Known;
use super::super::numpy;
use super::super::rows::Place;
use super::{Child, Label, Walk, below};

impl Walk<'_, '_, '_> {
    pub(super) fn call(
        &mut self,
        node: NodeId,
        callable: NodeId,
        args: NodeId,
        place: Place,
    ) -> Result<(), FormatError> {
        let pickle = self.graph.pickle;
        let known = self.graph.known(callable);
        if known.makes_tensor() {
            return self.tensor(known, args, pickle.state(node), place);
        }
        match known {
            Known::Mapping => self.mapping_call(node, args, place),
            Known::Sequence | Known::BuildList => self.sequence_call(node, args, place),
            Known::RestoreTypeTag => {
                if let Some(&inner) = pickle.items(args).first()
                    && !self.skip(node)
                {
                    let child = Child {
                        label: Label::None,
                        node: inner,
                        place,
                    };
                    self.enter(node, vec![child]);
                }
            }
            Known::NumpyReconstruct => {
                let array = numpy::array(self.graph, node, &self.path);
                if array.is_none() {
                    // An array of Python objects may hold tensors.
                    self.object(node, callable, &[], place);
                }
                self.numpy(array)?;
            }
            Known::Reconstructor => {
                let class = pickle.items(args).first().copied().unwrap_or(callable);
                self.object(node, class, &[], place);
            }
            Known::LoadFromBytes if self.graph.is_embedded(node) => self.storage(node)?,
            Known::NumpyFromBuffer => {
                self.numpy(numpy::from_buffer(self.graph, args, &self.path))?;
            }
            Known::NumpyScalar => self.numpy(numpy::scalar(self.graph, args, &self.path))?,
            Known::Size | Known::GetLayout | Known::NumpyDType | Known::CodecsEncode => {}
            _ => self.object(node, callable, pickle.items(args), place),
        }
        Ok(())
    }

    /// A dictionary made from an argument, and what was assigned into it afterwards.
    fn mapping_call(&mut self, node: NodeId, args: NodeId, place: Place) {
        let pickle = self.graph.pickle;
        let assigned = pickle.assigned_pairs(node);
        // Python 2 gave OrderedDict a list of pairs; Counter and dict take a dictionary.
        let given = pickle.items(args).last().copied();
        let from_args = given.map_or(Vec::new(), |id| self.pairs_of_argument(id));
        if from_args.is_empty() {
            self.mapping(node, assigned, place);
        } else {
            let all: Vec<NodeId> = from_args
                .into_iter()
                .chain(assigned.iter().copied())
                .collect();
            self.mapping(node, &all, place);
        }
    }

    /// A list, set, ... made from an argument, and what was appended to it afterwards.
    fn sequence_call(&mut self, node: NodeId, args: NodeId, place: Place) {
        if self.skip(node) {
            return;
        }
        let pickle = self.graph.pickle;
        let mut items: Vec<NodeId> = pickle
            .items(args)
            .first()
            .map_or(Vec::new(), |&list| pickle.items(list).to_vec());
        items.extend_from_slice(pickle.appended_items(node));
        let children = self.indexed(&items, below(place));
        self.enter(node, children);
    }

    /// Keys and values of the argument that a mapping was made from.
    pub(super) fn pairs_of_argument(&self, id: NodeId) -> Vec<NodeId> {
        let pickle = self.graph.pickle;
        match pickle.node(id) {
            Node::Dict(_) => pickle.pairs(id).to_vec(),
            Node::List(_) | Node::Tuple(_) => pickle
                .items(id)
                .iter()
                .filter_map(|pair| match *pickle.items(*pair) {
                    [key, value] => Some([key, value]),
                    _ => None,
                })
                .flatten()
                .collect(),
            _ => Vec::new(),
        }
    }
}
