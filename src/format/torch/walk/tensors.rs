//! Tensors, whatever they are wrapped in or made of.

use super::super::super::error::{FormatError, TensorFault};
use super::super::super::pickle::{Node, NodeId, cut};
use super::super::globals::Known;
use super::super::numpy;
use super::super::rebuild::{Built, View};
use super::super::rows::Place;
use super::{Child, Label, Walk};
use crate::checkpoint::{Composite, Layout, NumpyArray};
use crate::tensor::{DType, Dims};

/// Calls around the one that makes a tensor.
const MAX_WRAPPERS: usize = 8;

/// What the calls around a tensor add to it.
#[derive(Debug, Default)]
struct Wrap {
    requires_grad: Option<bool>,
    parameter: bool,
    states: Vec<NodeId>,
    /// What it consists of, where that is listed: its attributes may hold the same again.
    parts: Vec<NodeId>,
}

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
    ) -> Result<(), FormatError> {
        let mut wrap = Wrap {
            states: state.into_iter().collect(),
            ..Wrap::default()
        };
        let built = self.unwrapped(known, args, &mut wrap)?;
        let place = if wrap.parameter && place == Place::Plain {
            Place::Parameter
        } else {
            place
        };
        match built {
            Built::View(mut view, parts) => {
                view.requires_grad = wrap.requires_grad.or(view.requires_grad);
                let layout = view.layout;
                if parts.is_empty() {
                    self.at
                        .rows
                        .add(self.at.member, &self.path, view, place, layout)?;
                } else {
                    self.composite(layout, Some(view.dtype), Some(view.shape.clone()))?;
                    self.part(view, place, layout)?;
                    self.parts(parts, place, None)?;
                }
            }
            Built::Parts {
                layout,
                shape,
                parts,
            } => {
                self.composite(layout, None, shape)?;
                wrap.parts.extend(parts.iter().map(|(_, part)| *part));
                self.parts(parts, place, Some(layout))?;
            }
            Built::Uninitialized { requires_grad } => {
                self.at
                    .rows
                    .add_uninitialized(&self.path, place, requires_grad)?;
            }
            Built::Array(array) => self.numpy(numpy::array(self.graph, array, &self.path))?,
            Built::Wrapped { .. } | Built::Call { .. } => {}
        }
        self.attributes_of_tensor(&wrap);
        Ok(())
    }

    /// What a call makes, with everything around it taken off: never [`Built::Wrapped`] or [`Built::Call`].
    fn unwrapped(
        &mut self,
        known: Known,
        args: NodeId,
        wrap: &mut Wrap,
    ) -> Result<Built, FormatError> {
        let mut next = (known, args);
        // A parameter of a subclass of a device's tensor: three at most in what PyTorch writes.
        for _ in 0..MAX_WRAPPERS {
            let (known, args) = next;
            let built = self
                .graph
                .build(known, args, self.at.table, self.at.records)
                .map_err(|fault| self.fault(fault))?;
            next = match built {
                Built::Wrapped {
                    inner,
                    requires_grad,
                    parameter,
                    state,
                } => {
                    wrap.requires_grad = wrap.requires_grad.or(requires_grad);
                    wrap.parameter |= parameter;
                    wrap.states.extend(state);
                    self.inner_call(inner)?
                }
                Built::Call { known, args, state } => {
                    wrap.states.extend(state);
                    (known, args)
                }
                other => return Ok(other),
            };
        }
        Err(self.fault(TensorFault::Argument {
            what: "what makes it",
            expected: "a tensor",
            found: "a tensor of a tensor of a tensor".to_owned(),
        }))
    }

    /// Adds what is memory, but no tensor.
    pub(super) fn numpy(&mut self, array: Option<NumpyArray>) -> Result<(), FormatError> {
        if let Some(array) = array {
            self.at.rows.charge(&self.path)?;
            self.at.rows.numpy_arrays.push(array);
        }
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
        dtype: Option<DType>,
        shape: Option<Dims>,
    ) -> Result<(), FormatError> {
        self.at.rows.charge(&self.path)?;
        self.at.rows.composites.push(Composite {
            name: self.path.clone(),
            layout,
            dtype,
            shape,
            parts: Vec::new(),
            bytes: 0,
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
            self.push_label(&Label::Name(name.into()));
            let (known, args) = self.inner_call(node)?;
            let built = self.unwrapped(known, args, &mut Wrap::default())?;
            let Built::View(view, _) = built else {
                return Err(self.fault(TensorFault::Argument {
                    what: "a part of it",
                    expected: "a strided tensor",
                    found: self.graph.pickle.kind(node),
                }));
            };
            if matches!(name, "values" | "buffer")
                && let Some(whole) = self.at.rows.composites.last_mut()
            {
                whole.dtype = Some(view.dtype);
            }
            let layout = layout.unwrap_or(view.layout);
            self.part(view, place, layout)?;
            self.path.truncate(path_len);
            self.segments = segments;
        }
        Ok(())
    }

    /// Adds a tensor that is part of the last whole.
    fn part(&mut self, view: View, place: Place, layout: Layout) -> Result<(), FormatError> {
        self.at
            .rows
            .add(self.at.member, &self.path, view, place, layout)?;
        if let Some(whole) = self.at.rows.composites.last_mut()
            && let Some(part) = self.at.rows.tensors.last()
        {
            whole.parts.push(part.name().to_owned());
            whole.bytes = whole.bytes.saturating_add(part.bytes());
        }
        Ok(())
    }

    /// Python attributes of a tensor subclass can hold tensors.
    fn attributes_of_tensor(&mut self, wrap: &Wrap) {
        let pickle = self.graph.pickle;
        let listed = |node: NodeId| {
            let pairs = pickle.pairs(node);
            wrap.parts.contains(&node)
                || !pairs.is_empty()
                    && pairs
                        .chunks_exact(2)
                        .all(|pair| pair.last().is_some_and(|value| wrap.parts.contains(value)))
        };
        let children: Vec<Child> = wrap
            .states
            .iter()
            .flat_map(|state| self.state_children(*state, Place::Attribute))
            .filter(|child| !listed(child.node))
            .collect();
        if let Some(first) = wrap.states.first() {
            self.enter(*first, children);
        }
    }

    /// A storage by itself.
    pub(super) fn storage(&mut self, node: NodeId) -> Result<(), FormatError> {
        let declared = self.graph.declared(node);
        declared
            .and_then(|declared| self.at.table.get(&declared, self.at.records))
            .map_err(|fault| self.fault(fault))?;
        Ok(())
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
                self.storage(node)?;
            }
            // What an object made of itself to be packed: a function, and what it is called with.
            let arguments = pickle.items(id).last().copied();
            if let (Some(b"reduce_package"), Some(arguments)) = (tag, arguments) {
                let children = pickle.items(arguments).iter().enumerate();
                let children = children.map(|(index, argument)| Child {
                    label: Label::Name(format!("__args__.{index}").into()),
                    node: *argument,
                    place: Place::Attribute,
                });
                let children = children.collect();
                self.enter(node, children);
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
