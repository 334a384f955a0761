//! Naming everything that a pickle holds.
//!
//! A walk goes through the values in the file's order, with a stack of its own (nesting is as deep as the file likes),
//! and names what it finds by the path that leads there. What is reached on several paths is named on each, as in a
//! state_dict with tied weights; a value inside itself is not entered again. Subtrees without anything to name are
//! entered once, so references that multiply (2^60 paths in 900 bytes) cost nothing.

mod calls;
mod mappings;
mod objects;
mod tensors;

use std::vec::IntoIter;

use super::super::error::FormatError;
use super::super::pickle::{Node, NodeId};
use super::nodes::NodeSet;
use super::rebuild::Graph;
use super::rows::{Place, Rows};
use super::script::Classes;
use super::storage::{Records, StorageTable};
use crate::checkpoint::ObjectKind;
use crate::limits;

/// What a child adds to the path.
#[derive(Debug, Clone)]
enum Label {
    /// A dictionary key or attribute name in the pickle.
    Key(NodeId),
    /// A place in a list or tuple.
    Index(usize),
    /// A name of our own.
    Name(Box<str>),
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

/// What stands between a member's name and a path inside it; a prefix that ends with it is such a name.
const MEMBER_END: &str = "::";

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
        path: prefix.trim_end_matches(MEMBER_END).to_owned(),
        // Behind a member's name a path starts anew.
        segments: usize::from(!prefix.is_empty() && !prefix.ends_with(MEMBER_END)),
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
        } else if !self.path.is_empty() {
            self.path.push_str(MEMBER_END);
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
