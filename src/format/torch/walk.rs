//! Naming everything that a pickle holds.
//!
//! A walk goes through the values in the file's order, with a stack of its own (nesting is as deep as the file likes),
//! and names what it finds by the path that leads there. What is reached on several paths is named on each, as in a
//! state_dict with tied weights; a value inside itself is not entered again. Subtrees without anything to name are
//! entered once, so references that multiply (2^60 paths in 900 bytes) cost nothing.

use std::vec::IntoIter;

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::{Node, NodeId, cut};
use super::globals::Known;
use super::nodes::NodeSet;
use super::numpy;
use super::rebuild::{Built, Graph};
use super::rows::{Place, Rows};
use super::script::Classes;
use super::storage::{Records, StorageTable, declared_storage};
use crate::checkpoint::{Composite, Layout, Module, ObjectKind};
use crate::limits;

/// What a child adds to the path.
#[derive(Debug, Clone)]
enum Label {
    /// A dictionary key or attribute name in the pickle.
    Key(NodeId),
    /// A place in a list or tuple.
    Index(usize),
    /// A name of our own.
    Name(String),
    /// Nothing.
    None,
}

#[derive(Debug)]
struct Child {
    label: Label,
    node: NodeId,
    place: Place,
}

/// A value whose children are being visited.
struct Frame {
    node: NodeId,
    children: IntoIter<Child>,
    path_len: usize,
    segments: usize,
    rows_before: usize,
    /// Whether something below was left out because it is above.
    cyclic: bool,
}

/// A walk through one pickle.
pub(crate) struct Walk<'w, 'p, 'a> {
    graph: &'w Graph<'p, 'a>,
    at: Context<'w>,
    path: String,
    /// How many labels the path has.
    segments: usize,
    frames: Vec<Frame>,
    on_path: NodeSet,
    /// Entered completely and found empty.
    barren: NodeSet,
    /// Objects reached as attributes.
    seen_attributes: NodeSet,
    visits: u64,
    visit_limit: u64,
    /// Places seen on the way, for the kind of the root object.
    saw_state_dict: bool,
    saw_optimizer: bool,
    saw_module: bool,
}

/// Where a walk reads and writes. `member` is the pickle's name, for messages.
pub(crate) struct Context<'w> {
    pub(crate) member: &'w str,
    pub(crate) records: &'w dyn Records,
    pub(crate) table: &'w mut StorageTable,
    pub(crate) rows: &'w mut Rows,
    pub(crate) classes: Option<&'w Classes>,
}

/// Names everything from the pickle's root on, under a prefix, and says what the root is.
pub(crate) fn walk(
    graph: &Graph<'_, '_>,
    context: Context<'_>,
    prefix: &str,
    place: Place,
) -> Result<ObjectKind, FormatError> {
    let mut walk = Walk {
        graph,
        at: context,
        path: prefix.to_owned(),
        segments: usize::from(!prefix.is_empty()),
        frames: Vec::new(),
        on_path: NodeSet::new(graph.pickle.len()),
        barren: NodeSet::new(graph.pickle.len()),
        seen_attributes: NodeSet::new(graph.pickle.len()),
        visits: 0,
        visit_limit: limits::WALK_VISITS.saturating_add(
            (graph.pickle.consumed() as u64).saturating_mul(limits::WALK_VISITS_PER_BYTE),
        ),
        saw_state_dict: false,
        saw_optimizer: false,
        saw_module: false,
    };
    let root = graph.pickle.root();
    walk.visit(root, place)?;
    while walk.advance()? {}
    Ok(walk.kind_of_root(root))
}

impl Walk<'_, '_, '_> {
    fn kind_of_root(&self, root: NodeId) -> ObjectKind {
        let pickle = self.graph.pickle;
        if self.graph.called(root).makes_tensor() {
            return ObjectKind::Tensor;
        }
        if self.module_state(root).is_some() || self.script_class(root).is_some() {
            return ObjectKind::Module;
        }
        let mapping = self.mapping_pairs(root);
        if mapping.is_some_and(|pairs| self.is_state_dict(pairs)) {
            return ObjectKind::StateDict;
        }
        let is_dict = mapping.is_some() || matches!(pickle.node(root), Node::Dict(_));
        if is_dict && (self.saw_state_dict || self.saw_optimizer || self.saw_module) {
            return ObjectKind::Checkpoint;
        }
        ObjectKind::Other
    }

    /// Visits the next child; false when there is none left.
    fn advance(&mut self) -> Result<bool, FormatError> {
        let Some(frame) = self.frames.last_mut() else {
            return Ok(false);
        };
        let (path_len, segments) = (frame.path_len, frame.segments);
        let next = frame.children.next();
        self.path.truncate(path_len);
        self.segments = segments;
        match next {
            Some(child) => {
                self.push_label(&child.label);
                self.visit(child.node, child.place)?;
            }
            None => self.leave(),
        }
        Ok(true)
    }

    fn leave(&mut self) {
        let Some(frame) = self.frames.pop() else {
            return;
        };
        self.on_path.remove(frame.node);
        if !frame.cyclic && self.at.rows.len() == frame.rows_before {
            self.barren.insert(frame.node);
        }
        if frame.cyclic
            && let Some(parent) = self.frames.last_mut()
        {
            parent.cyclic = true;
        }
    }

    fn push_label(&mut self, label: &Label) {
        if matches!(label, Label::None) {
            return;
        }
        if self.segments > 0 {
            self.path.push('.');
        }
        self.segments = self.segments.saturating_add(1);
        match label {
            Label::Key(id) => match self.graph.pickle.text(*id) {
                Some(text) => self.path.push_str(&text),
                None => self.path.push_str(&self.graph.pickle.repr(*id)),
            },
            Label::Index(index) => self.path.push_str(&index.to_string()),
            Label::Name(name) => self.path.push_str(name),
            Label::None => {}
        }
    }

    /// Enters a value with children, unless it is above already or known to be empty.
    fn enter(&mut self, node: NodeId, children: Vec<Child>) {
        if children.is_empty() || self.barren.contains(node) {
            return;
        }
        if !self.on_path.insert(node) {
            if let Some(frame) = self.frames.last_mut() {
                frame.cyclic = true;
            }
            return;
        }
        self.frames.push(Frame {
            node,
            children: children.into_iter(),
            path_len: self.path.len(),
            segments: self.segments,
            rows_before: self.at.rows.len(),
            cyclic: false,
        });
    }

    fn visit(&mut self, node: NodeId, place: Place) -> Result<(), FormatError> {
        self.visits = self.visits.saturating_add(1);
        if self.visits > self.visit_limit {
            return Err(FormatError::Limit {
                what: format!("in `{}`: the ways to reach its objects", self.at.member),
                limit: self.visit_limit,
            });
        }
        let pickle = self.graph.pickle;
        match pickle.node(node) {
            Node::Tuple(_) | Node::List(_) | Node::Set(_) | Node::FrozenSet(_) => {
                if self.skip(node) {
                    return Ok(());
                }
                let children = self.indexed(pickle.items(node), below(place));
                self.enter(node, children);
                Ok(())
            }
            Node::Dict(_) => {
                self.mapping(node, pickle.pairs(node), place);
                Ok(())
            }
            Node::Reduce { callable, args } => self.call(node, callable, args, place),
            Node::New { class, args } => {
                self.object(node, class, pickle.items(args), place);
                Ok(())
            }
            Node::NewEx { class, both } => {
                self.object(node, class, pickle.items(both), place);
                Ok(())
            }
            Node::Persistent(_) => self.persistent(node, place),
            _ => Ok(()),
        }
    }

    /// Whether a container need not be looked into again.
    fn skip(&mut self, node: NodeId) -> bool {
        if self.barren.contains(node) {
            return true;
        }
        if self.on_path.contains(node) {
            if let Some(frame) = self.frames.last_mut() {
                frame.cyclic = true;
            }
            return true;
        }
        false
    }

    fn indexed(&self, items: &[NodeId], place: Place) -> Vec<Child> {
        items
            .iter()
            .enumerate()
            .filter(|(_, node)| self.may_hold(**node))
            .map(|(index, node)| Child {
                label: Label::Index(index),
                node: *node,
                place,
            })
            .collect()
    }

    /// Whether a value could hold something to name.
    fn may_hold(&self, node: NodeId) -> bool {
        match self.graph.pickle.node(node) {
            Node::Tuple(_)
            | Node::List(_)
            | Node::Set(_)
            | Node::FrozenSet(_)
            | Node::Dict(_)
            | Node::Reduce { .. }
            | Node::New { .. }
            | Node::NewEx { .. }
            | Node::Persistent(_) => !self.barren.contains(node),
            _ => false,
        }
    }

    // Dictionaries.

    /// The pairs of a dictionary or of an object that is one.
    fn mapping_pairs(&self, node: NodeId) -> Option<&[NodeId]> {
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
    fn is_state_dict(&self, pairs: &[NodeId]) -> bool {
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

    fn is_tar_tensor(&self, node: NodeId) -> bool {
        let pickle = self.graph.pickle;
        matches!(pickle.node(node), Node::Persistent(id) if pickle.str_bytes(id).is_some())
    }

    /// Whether a dictionary is what an optimizer's `state_dict()` gives.
    fn is_optimizer(&self, pairs: &[NodeId]) -> bool {
        let pickle = self.graph.pickle;
        let has = |name: &str| {
            pairs.chunks_exact(2).any(|pair| {
                pair.first()
                    .is_some_and(|k| pickle.str_bytes(*k) == Some(name.as_bytes()))
            })
        };
        has("state") && has("param_groups")
    }

    fn mapping(&mut self, node: NodeId, pairs: &[NodeId], place: Place) {
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

    // Calls.

    fn call(
        &mut self,
        node: NodeId,
        callable: NodeId,
        args: NodeId,
        place: Place,
    ) -> Result<(), FormatError> {
        let pickle = self.graph.pickle;
        let known = self.graph.known(callable);
        if known.makes_tensor() {
            return self.tensor(known, args, pickle.state(node), place, None);
        }
        match known {
            Known::Mapping => {
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
            Known::Sequence | Known::BuildList => {
                if self.skip(node) {
                    return Ok(());
                }
                let place = below(place);
                let mut items: Vec<NodeId> = pickle
                    .items(args)
                    .first()
                    .map_or(Vec::new(), |&list| pickle.items(list).to_vec());
                items.extend_from_slice(pickle.appended_items(node));
                let children = self.indexed(&items, place);
                self.enter(node, children);
            }
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
                if let Some(array) = numpy::array(self.graph, node, &self.path) {
                    self.at.rows.charge(&self.path)?;
                    self.at.rows.numpy_arrays.push(array);
                } else {
                    // An array of Python objects may hold tensors.
                    self.object(node, callable, &[], place);
                }
            }
            Known::Reconstructor => {
                let class = pickle.items(args).first().copied().unwrap_or(callable);
                self.object(node, class, &[], place);
            }
            Known::Size
            | Known::GetLayout
            | Known::NumpyScalar
            | Known::NumpyDType
            | Known::CodecsEncode => {}
            _ => self.object(node, callable, pickle.items(args), place),
        }
        Ok(())
    }

    /// Keys and values of the argument that a mapping was made from.
    fn pairs_of_argument(&self, id: NodeId) -> Vec<NodeId> {
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

    // Tensors.

    fn fault(&self, fault: TensorFault) -> FormatError {
        FormatError::Tensor {
            member: self.at.member.to_owned(),
            name: cut(&self.path),
            fault,
        }
    }

    fn tensor(
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

    fn inner_call(&self, inner: NodeId) -> Result<(Known, NodeId), FormatError> {
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

    fn composite(
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
    fn parts(
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
    fn attributes_of_tensor(&mut self, states: &[NodeId]) {
        let children: Vec<Child> = states
            .iter()
            .flat_map(|state| self.state_children(*state, Place::Attribute))
            .collect();
        if let Some(first) = states.first() {
            self.enter(*first, children);
        }
    }

    // Objects.

    /// The state of an object that is a module: a dictionary with `_parameters` and `_modules`.
    fn module_state(&self, node: NodeId) -> Option<NodeId> {
        let pickle = self.graph.pickle;
        let state = pickle.state(node)?;
        let both =
            pickle.get(state, "_parameters").is_some() && pickle.get(state, "_modules").is_some();
        both.then_some(state)
    }

    fn class_name(&self, class: NodeId) -> String {
        let pickle = self.graph.pickle;
        if let Some((module, name)) = pickle.global(class) {
            return format!("{}.{}", cut(&module), cut(&name));
        }
        // Legacy files keep a class with its source: ('module', class, file, text).
        if let Node::Persistent(id) = pickle.node(class)
            && let Some(&inner) = pickle.items(id).get(1)
            && let Some((module, name)) = pickle.global(inner)
        {
            return format!("{}.{}", cut(&module), cut(&name));
        }
        pickle.kind(class)
    }

    /// The TorchScript class of an object, where it is a module.
    fn script_class(&self, node: NodeId) -> Option<&super::script::Class> {
        let (Node::New { class, .. }
        | Node::Reduce {
            callable: class, ..
        }) = self.graph.pickle.node(node)
        else {
            return None;
        };
        let (module, name) = self.graph.pickle.global(class)?;
        self.at
            .classes?
            .get(&format!("{module}.{name}"))
            .filter(|class| class.is_module)
    }

    fn object(&mut self, node: NodeId, class: NodeId, args: &[NodeId], place: Place) {
        if self.skip(node) {
            return;
        }
        if self.script_class(node).is_some() {
            self.script_module(node, class);
            return;
        }
        if let Some(state) = self.module_state(node) {
            self.module(node, class, state, place);
            return;
        }
        let place = match place {
            Place::Modules | Place::Parameter | Place::Buffer => Place::Attribute,
            other => other,
        };
        if place == Place::Attribute && !self.seen_attributes.insert(node) {
            return;
        }
        let pickle = self.graph.pickle;
        let mut children: Vec<Child> = Vec::new();
        for (index, arg) in args.iter().enumerate() {
            if self.may_hold(*arg) {
                children.push(Child {
                    label: Label::Name(format!("__args__.{index}")),
                    node: *arg,
                    place,
                });
            }
        }
        children.extend(self.indexed(pickle.appended_items(node), place));
        for (key, value) in pickle.entries(pickle.assigned_pairs(node)) {
            children.push(Child {
                label: Label::Key(key),
                node: value,
                place,
            });
        }
        if let Some(state) = pickle.state(node) {
            children.extend(self.state_children(state, place));
        }
        self.enter(node, children);
    }

    /// What an object's state holds: attributes by name; anything else as it is.
    fn state_children(&self, state: NodeId, place: Place) -> Vec<Child> {
        let pickle = self.graph.pickle;
        match pickle.node(state) {
            Node::Dict(_) => self.attribute_children(state, place),
            // (__dict__, slots), where either may be None.
            Node::Tuple(_)
                if matches!(*pickle.items(state), [a, b]
                    if matches!(pickle.node(a), Node::Dict(_) | Node::None)
                        && matches!(pickle.node(b), Node::Dict(_))) =>
            {
                pickle
                    .items(state)
                    .iter()
                    .flat_map(|part| self.attribute_children(*part, place))
                    .collect()
            }
            Node::Tuple(_) | Node::List(_) => self.indexed(pickle.items(state), place),
            _ if self.may_hold(state) => vec![Child {
                label: Label::Name("__state__".to_owned()),
                node: state,
                place,
            }],
            _ => Vec::new(),
        }
    }

    fn attribute_children(&self, dict: NodeId, place: Place) -> Vec<Child> {
        let pickle = self.graph.pickle;
        pickle
            .entries(pickle.pairs(dict))
            .into_iter()
            .filter(|(_, value)| self.may_hold(*value))
            .map(|(key, value)| Child {
                label: Label::Key(key),
                node: value,
                place,
            })
            .collect()
    }

    /// A pickled nn.Module: its state_dict by role, and what else it reaches.
    fn module(&mut self, node: NodeId, class: NodeId, state: NodeId, place: Place) {
        self.saw_module = true;
        if place == Place::Attribute && !self.seen_attributes.insert(node) {
            return;
        }
        let pickle = self.graph.pickle;
        let named = |own: Place| {
            if place == Place::Attribute {
                Place::Attribute
            } else {
                own
            }
        };
        if place != Place::Attribute {
            self.seen_attributes.insert(node);
            self.at.rows.modules.push(Module {
                path: self.path.clone(),
                class: self.class_name(class),
            });
        }
        let transient: Vec<&[u8]> = pickle
            .get(state, "_non_persistent_buffers_set")
            .map_or(Vec::new(), |set| self.strings_of_set(set));
        let mut children = Vec::new();
        for (key, value) in pickle.entries(pickle.pairs(state)) {
            let (own, dict) = match pickle.str_bytes(key) {
                Some(b"_parameters") => (Place::Parameter, true),
                Some(b"_buffers") => (Place::Buffer, true),
                Some(b"_modules") => (Place::Modules, true),
                _ => (Place::Attribute, false),
            };
            let pairs = if dict {
                self.mapping_entries(value)
            } else {
                None
            };
            let Some(pairs) = pairs else {
                if self.may_hold(value) {
                    children.push(Child {
                        label: Label::Key(key),
                        node: value,
                        place: Place::Attribute,
                    });
                }
                continue;
            };
            for (name, entry) in pairs {
                let transient = own == Place::Buffer
                    && pickle
                        .str_bytes(name)
                        .is_some_and(|n| transient.contains(&n));
                if self.may_hold(entry) {
                    children.push(Child {
                        label: Label::Key(name),
                        node: entry,
                        place: named(if transient { Place::Attribute } else { own }),
                    });
                }
            }
        }
        self.enter(node, children);
    }

    fn mapping_entries(&self, node: NodeId) -> Option<Vec<(NodeId, NodeId)>> {
        let pickle = self.graph.pickle;
        let pairs = self.mapping_pairs(node)?;
        if let Node::Reduce { args, .. } = pickle.node(node)
            && let Some(&given) = pickle.items(args).last()
        {
            let all: Vec<NodeId> = self
                .pairs_of_argument(given)
                .into_iter()
                .chain(pairs.iter().copied())
                .collect();
            return Some(pickle.entries(&all));
        }
        Some(pickle.entries(pairs))
    }

    fn strings_of_set(&self, set: NodeId) -> Vec<&[u8]> {
        let pickle = self.graph.pickle;
        let items = match pickle.node(set) {
            Node::Reduce { args, .. } => pickle
                .items(args)
                .first()
                .map_or(&[][..], |&list| pickle.items(list)),
            _ => pickle.items(set),
        };
        items
            .iter()
            .filter_map(|id| pickle.str_bytes(*id))
            .collect()
    }

    /// A TorchScript module: its class header says what its attributes are.
    fn script_module(&mut self, node: NodeId, class: NodeId) {
        self.saw_module = true;
        let pickle = self.graph.pickle;
        self.at.rows.modules.push(Module {
            path: self.path.clone(),
            class: self.class_name(class),
        });
        let Some(info) = self.script_class(node) else {
            return;
        };
        let place_of = |name: &str| {
            if info.parameters.iter().any(|p| p == name) {
                Place::Parameter
            } else if info.buffers.iter().any(|b| b == name) {
                Place::Buffer
            } else {
                Place::Modules
            }
        };
        let Some(state) = pickle.state(node) else {
            return;
        };
        let mut children = Vec::new();
        match pickle.node(state) {
            Node::Dict(_) => {
                for (key, value) in pickle.entries(pickle.pairs(state)) {
                    let place = pickle.text(key).map_or(Place::Modules, |n| place_of(&n));
                    if self.may_hold(value) {
                        children.push(Child {
                            label: Label::Key(key),
                            node: value,
                            place,
                        });
                    }
                }
            }
            _ => {
                // What __getstate__ returned: __setstate__ says where its parts go.
                for (index, item) in pickle.items(state).iter().enumerate() {
                    if !self.may_hold(*item) {
                        continue;
                    }
                    let attribute = info.state_attributes.iter().find(|(i, _)| *i == index);
                    let (label, place) = match attribute {
                        Some((_, name)) => (Label::Name(name.clone()), place_of(name)),
                        None => (Label::Index(index), Place::Modules),
                    };
                    children.push(Child {
                        label,
                        node: *item,
                        place,
                    });
                }
            }
        }
        self.enter(node, children);
    }

    // Persistent objects.

    /// A storage by itself, or a tensor of the tar era.
    fn persistent(&mut self, node: NodeId, place: Place) -> Result<(), FormatError> {
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

/// Whether `name` contains `part`.
fn contains(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}

/// The place of what a plain container holds.
fn below(place: Place) -> Place {
    match place {
        Place::Modules => Place::Attribute,
        other => other,
    }
}
