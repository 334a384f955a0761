//! Bytes of tensors by module, before and after: a tree whose children add up to their parent.

use std::collections::HashMap;

use serde::Serialize;

use super::facts::{Facts, delta};
use super::matching::Matching;

/// A name is split into at most this many parts; deeper ones keep the rest in one.
const MAX_PARTS: usize = 64;

/// A module, or a tensor, whose bytes or whose parts' bytes differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModuleChange {
    /// Its path; empty for the whole.
    pub path: String,
    /// Parts of its path.
    pub depth: usize,
    /// Logical bytes of the tensors in it, before.
    pub old_bytes: u64,
    /// Now.
    pub new_bytes: u64,
    /// The difference.
    pub delta_bytes: i64,
}

#[derive(Default)]
struct Node {
    children: Vec<usize>,
    label: String,
    old: u64,
    new: u64,
    changed: bool,
}

/// Modules that changed: parents, then their children, those that changed most first. A renamed tensor counts as its new
/// name on both sides. Empty where nothing changed.
#[must_use]
pub fn modules(old: &Facts, new: &Facts, matching: &Matching) -> Vec<ModuleChange> {
    let mut tree = Tree {
        nodes: vec![Node::default()],
        index: HashMap::new(),
    };
    let size = |facts: &Facts, index: usize| {
        let tensor = facts.tensors.get(index);
        tensor.and_then(|tensor| tensor.bytes).unwrap_or(0)
    };
    let name = |facts: &Facts, index: usize| -> String {
        let tensor = facts.tensors.get(index);
        tensor.map(|tensor| tensor.name.clone()).unwrap_or_default()
    };
    for pair in &matching.pairs {
        let bytes = (size(old, pair.old), size(new, pair.new));
        tree.add(&name(new, pair.new), bytes.0, bytes.1);
    }
    for index in &matching.added {
        tree.add(&name(new, *index), 0, size(new, *index));
    }
    for index in &matching.removed {
        tree.add(&name(old, *index), size(old, *index), 0);
    }
    let mut list = Vec::new();
    tree.list(0, "", 0, &mut list);
    list
}

struct Tree {
    nodes: Vec<Node>,
    index: HashMap<(usize, String), usize>,
}

impl Tree {
    fn add(&mut self, name: &str, old: u64, new: u64) {
        let mut at = 0;
        self.count(at, old, new);
        for part in name.splitn(MAX_PARTS, '.') {
            let next = self.nodes.len();
            let id = *self.index.entry((at, part.to_owned())).or_insert(next);
            if id == next {
                self.nodes.push(Node {
                    label: part.to_owned(),
                    ..Node::default()
                });
                if let Some(parent) = self.nodes.get_mut(at) {
                    parent.children.push(id);
                }
            }
            at = id;
            self.count(at, old, new);
        }
    }

    fn count(&mut self, id: usize, old: u64, new: u64) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.old = node.old.saturating_add(old);
            node.new = node.new.saturating_add(new);
            node.changed |= old != new;
        }
    }

    fn list(&self, id: usize, path: &str, depth: usize, list: &mut Vec<ModuleChange>) {
        let Some(node) = self.nodes.get(id).filter(|node| node.changed) else {
            return;
        };
        list.push(ModuleChange {
            path: path.to_owned(),
            depth,
            old_bytes: node.old,
            new_bytes: node.new,
            delta_bytes: delta(node.old, node.new),
        });
        let mut children: Vec<(&Node, usize)> = node
            .children
            .iter()
            .filter_map(|id| Some((self.nodes.get(*id)?, *id)))
            .collect();
        children.sort_by_key(|(child, _)| std::cmp::Reverse(child.old.abs_diff(child.new)));
        for (child, id) in children {
            let path = match path {
                "" => child.label.clone(),
                path => format!("{path}.{}", child.label),
            };
            self.list(id, &path, depth + 1, list);
        }
    }
}
