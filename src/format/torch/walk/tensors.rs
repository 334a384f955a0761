//! Tensors, whatever they are wrapped in or made of.

use super::super::super::error::{FormatError, TensorFault};
use super::super::super::pickle::{Node, NodeId, cut};
use super::super::globals::Known;
use super::super::numpy;
use super::super::rebuild::Built;
use super::super::rows::Place;
use super::super::storage::declared_storage;
use super::{Child, Label, Walk};
use crate::checkpoint::{Composite, Layout};

impl Walk<'_, '_, '_> {
    pub(super) fn fault(&self, fault: TensorFault) -> FormatError {
        FormatError::Tensor {
            member: self.at.member.to_owned(),
            name: cut(&self.path),
            fault,
        }
    }

    pub(super) fn tensor(
        &mut self,
        known: Known,
        args: NodeId,
        state: Option<NodeId>,
        place: Place,
        layout: Option<Layout>,
    ) -> Result<(), FormatError> {
        let mut next = Some((known, args));
        let mut place = place;
        let mut requires_grad = None;
        let mut states: Vec<NodeId> = state.into_iter().collect();
        let mut steps = 0_u32;
        while let Some((known, args)) = next.take() {
            // A parameter of a subclass of a device's tensor: three at most in what PyTorch writes.
            steps = steps.saturating_add(1);
            if steps > 8 {
                return Err(self.fault(TensorFault::Argument {
                    what: "what makes it",
                    expected: "a tensor",
                    found: "a tensor of a tensor of a tensor".to_owned(),
                }));
            }
            let built = self
                .graph
                .build(known, args, self.at.table, self.at.records)
                .map_err(|fault| self.fault(fault))?;
            match built {
                Built::View(mut view, parts) => {
                    if requires_grad.is_some() {
                        view.requires_grad = requires_grad;
                    }
                    let layout = layout.unwrap_or(view.layout);
                    self.at
                        .rows
                        .add(self.at.member, &self.path, view, place, layout)?;
                    self.parts(parts, place, None)?;
                }
                Built::Parts {
                    layout,
                    shape,
                    parts,
                } => {
                    self.composite(layout, shape)?;
                    self.parts(parts, place, Some(layout))?;
                }
                Built::Wrapped {
                    inner,
                    requires_grad: grad,
                    parameter,
                    state,
                } => {
                    requires_grad = requires_grad.or(grad);
                    if parameter && place == Place::Plain {
                        place = Place::Parameter;
                    }
                    states.extend(state);
                    next = Some(self.inner_call(inner)?);
                }
                Built::Call { known, args, state } => {
                    states.extend(state);
                    next = Some((known, args));
                }
                Built::Uninitialized { requires_grad } => {
                    self.at
                        .rows
                        .add_uninitialized(&self.path, place, requires_grad)?;
                }
                Built::Array(array) => {
                    if let Some(array) = numpy::array(self.graph, array, &self.path) {
                        self.at.rows.charge(&self.path)?;
                        self.at.rows.numpy_arrays.push(array);
                    }
                }
            }
        }
        self.attributes_of_tensor(&states);
        Ok(())
    }

    pub(super) fn inner_call(&self, inner: NodeId) -> Result<(Known, NodeId), FormatError> {
        match self.graph.pickle.node(inner) {
            Node::Reduce { callable, args } if self.graph.known(callable).makes_tensor() => {
                Ok((self.graph.known(callable), args))
            }
            _ => Err(self.fault(TensorFault::Argument {
                what: "its data",
                expected: "a tensor",
                found: self.graph.pickle.kind(inner),
            })),
        }
    }

    pub(super) fn composite(
        &mut self,
        layout: Layout,
        shape: Option<crate::tensor::Dims>,
    ) -> Result<(), FormatError> {
        self.at.rows.charge(&self.path)?;
        self.at.rows.composites.push(Composite {
            name: self.path.clone(),
            layout,
            dtype: None,
            shape,
        });
        Ok(())
    }

    /// Adds the tensors that a tensor is made of.
    pub(super) fn parts(
        &mut self,
        parts: Vec<(&'static str, NodeId)>,
        place: Place,
        layout: Option<Layout>,
    ) -> Result<(), FormatError> {
        let (path_len, segments) = (self.path.len(), self.segments);
        for (name, node) in parts {
            self.push_label(&Label::Name(name.to_owned()));
            let (known, args) = self.inner_call(node)?;
            let built = self
                .graph
                .build(known, args, self.at.table, self.at.records)
                .map_err(|fault| self.fault(fault))?;
            let Built::View(view, _) = built else {
                return Err(self.fault(TensorFault::Argument {
                    what: "a part of it",
                    expected: "a strided tensor",
                    found: self.graph.pickle.kind(node),
                }));
            };
            if name == "values"
                && let Some(composite) = self.at.rows.composites.last_mut()
            {
                composite.dtype = Some(view.dtype);
            }
            let layout = layout.unwrap_or(view.layout);
            self.at
                .rows
                .add(self.at.member, &self.path, view, place, layout)?;
            self.path.truncate(path_len);
            self.segments = segments;
        }
        Ok(())
    }

    /// Python attributes of a tensor subclass can hold tensors.
    pub(super) fn attributes_of_tensor(&mut self, states: &[NodeId]) {
        let children: Vec<Child> = states
            .iter()
            .flat_map(|state| self.state_children(*state, Place::Attribute))
            .collect();
        if let Some(first) = states.first() {
            self.enter(*first, children);
        }
    }

    /// A storage by itself, or a tensor of the tar era.
    pub(super) fn persistent(&mut self, node: NodeId, place: Place) -> Result<(), FormatError> {
        let pickle = self.graph.pickle;
        let Node::Persistent(id) = pickle.node(node) else {
            return Ok(());
        };
        if matches!(pickle.node(id), Node::Tuple(_)) {
            let tag = pickle.items(id).first().and_then(|t| pickle.str_bytes(*t));
            if tag == Some(b"storage") {
                let declared = declared_storage(pickle, node).map_err(|fault| self.fault(fault))?;
                self.at
                    .table
                    .get(&declared, self.at.records)
                    .map_err(|fault| self.fault(fault))?;
            }
            return Ok(());
        }
        let key = pickle.key_text(id);
        match self.at.records.tensor(&key) {
            Some(view) => {
                let layout = view.layout;
                self.at
                    .rows
                    .add(self.at.member, &self.path, view, place, layout)
            }
            None => Err(self.fault(TensorFault::NoRecord(cut(&key)))),
        }
    }
}
