//! Objects: modules by their state, anything else by its attributes.

use super::super::super::pickle::{Node, NodeId, cut};
use super::super::rows::Place;
use super::super::script::Class;
use super::{Child, Label, Walk};
use crate::checkpoint::Module;

impl Walk<'_, '_, '_> {
    /// The state of an object that is a module: a dictionary with `_parameters` and `_modules`.
    pub(super) fn module_state(&self, node: NodeId) -> Option<NodeId> {
        let pickle = self.graph.pickle;
        let state = pickle.state(node)?;
        let both =
            pickle.get(state, "_parameters").is_some() && pickle.get(state, "_modules").is_some();
        both.then_some(state)
    }

    pub(super) fn class_name(&self, class: NodeId) -> String {
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
    pub(super) fn script_class(&self, node: NodeId) -> Option<&Class> {
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

    pub(super) fn object(&mut self, node: NodeId, class: NodeId, args: &[NodeId], place: Place) {
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
                    label: Label::Name(format!("__args__.{index}").into()),
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
    pub(super) fn state_children(&self, state: NodeId, place: Place) -> Vec<Child> {
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
                label: Label::Name("__state__".into()),
                node: state,
                place,
            }],
            _ => Vec::new(),
        }
    }

    pub(super) fn attribute_children(&self, dict: NodeId, place: Place) -> Vec<Child> {
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
    pub(super) fn module(&mut self, node: NodeId, class: NodeId, state: NodeId, place: Place) {
        self.saw_module = true;
        if place == Place::Attribute && !self.seen_attributes.insert(node) {
            return;
        }
        if place != Place::Attribute {
            self.seen_attributes.insert(node);
            self.at.rows.modules.push(Module {
                path: self.path.clone(),
                class: self.class_name(class),
            });
        }
        let children = self.module_children(state, place);
        self.enter(node, children);
    }

    /// What a module's state holds: parameters, buffers and modules by their names, everything else as attributes.
    fn module_children(&self, state: NodeId, place: Place) -> Vec<Child> {
        let pickle = self.graph.pickle;
        let transient: Vec<&[u8]> = pickle
            .get(state, "_non_persistent_buffers_set")
            .map_or(Vec::new(), |set| self.strings_of_set(set));
        let is_transient = |name| {
            let name = pickle.str_bytes(name);
            name.is_some_and(|name| transient.contains(&name))
        };
        let mut children = Vec::new();
        let mut add = |key, node, place| {
            if self.may_hold(node) {
                let label = Label::Key(key);
                children.push(Child { label, node, place });
            }
        };
        for (key, value) in pickle.entries(pickle.pairs(state)) {
            let own = match pickle.str_bytes(key) {
                Some(b"_parameters") => Some(Place::Parameter),
                Some(b"_buffers") => Some(Place::Buffer),
                Some(b"_modules") => Some(Place::Modules),
                _ => None,
            };
            let Some((own, pairs)) = own.zip(self.mapping_entries(value)) else {
                add(key, value, Place::Attribute);
                continue;
            };
            for (name, entry) in pairs {
                let unsaved = own == Place::Buffer && is_transient(name);
                let attribute = unsaved || place == Place::Attribute;
                add(name, entry, if attribute { Place::Attribute } else { own });
            }
        }
        children
    }

    pub(super) fn mapping_entries(&self, node: NodeId) -> Option<Vec<(NodeId, NodeId)>> {
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

    pub(super) fn strings_of_set(&self, set: NodeId) -> Vec<&[u8]> {
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
    pub(super) fn script_module(&mut self, node: NodeId, class: NodeId) {
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
                        Some((_, name)) => (Label::Name(name.as_str().into()), place_of(name)),
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
}
