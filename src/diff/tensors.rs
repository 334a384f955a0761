//! What became of every tensor.

use std::collections::HashMap;

use serde::Serialize;

use super::facts::{Facts, TensorFacts, delta};
use super::matching::{MatchedBy, Matching, Pair, hashes};
use super::values::ValueChange;

/// What became of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It has another shape.
    Reshaped,
    /// It has another dtype.
    Retyped,
    /// It shares memory with others than before.
    Retied,
    /// It is something else to the model.
    Role,
    /// It has another name.
    Renamed,
    /// It is laid out otherwise: strides or layout.
    Layout,
    /// It wants gradients, or does not any more.
    RequiresGrad,
    /// It has other numbers.
    Value,
}

impl Change {
    /// Every change, in the order of reports.
    pub const ALL: [Change; 10] = [
        Change::Added,
        Change::Removed,
        Change::Reshaped,
        Change::Retyped,
        Change::Retied,
        Change::Role,
        Change::Renamed,
        Change::Layout,
        Change::RequiresGrad,
        Change::Value,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Change::Added => "added",
            Change::Removed => "removed",
            Change::Reshaped => "reshaped",
            Change::Retyped => "retyped",
            Change::Retied => "retied",
            Change::Role => "role",
            Change::Renamed => "renamed",
            Change::Layout => "layout",
            Change::RequiresGrad => "requires_grad",
            Change::Value => "value",
        }
    }
}

/// A tensor in one of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorSide {
    /// Its name.
    pub name: String,
    /// What it is to the model.
    pub role: String,
    /// PyTorch's name without `torch.`.
    pub dtype: Option<String>,
    /// Sizes.
    pub shape: Option<Vec<u64>>,
    /// Logical bytes.
    pub bytes: Option<u64>,
    /// How it is laid out.
    pub layout: String,
    /// Steps in elements.
    pub strides: Option<Vec<u64>>,
    /// Whether it wants gradients.
    pub requires_grad: Option<bool>,
    /// The first tensor that it shares memory with, where there is one before it.
    pub tied_to: Option<String>,
}

/// A tensor that changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorChange {
    /// Its name in the new file, else in the old one.
    pub name: String,
    /// The first of `changes`.
    pub change: Change,
    /// All that changed.
    pub changes: Vec<Change>,
    /// How the two are known to be one; none where there is only one.
    pub matched_by: Option<MatchedBy>,
    /// As it was.
    pub old: Option<TensorSide>,
    /// As it is.
    pub new: Option<TensorSide>,
    /// Logical bytes that it grew by; unknown where a size is.
    pub delta_bytes: Option<i64>,
    /// How its numbers differ; none where they were not compared or are equal.
    pub values: Option<ValueChange>,
}

/// How far the contents were compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contents {
    /// Nobody read them.
    No,
    /// By hashes of storages.
    Hashes,
    /// Number by number.
    Values,
}

/// Who shares memory with whom: for every tensor the first pair on its storage.
fn ties(facts: &Facts, pair_of: &HashMap<usize, usize>) -> HashMap<u32, usize> {
    let mut first: HashMap<u32, usize> = HashMap::new();
    for (index, tensor) in facts.tensors.iter().enumerate() {
        let (Some(storage), Some(pair)) = (tensor.storage, pair_of.get(&index)) else {
            continue;
        };
        let least = first.entry(storage).or_insert(*pair);
        *least = (*least).min(*pair);
    }
    first
}

/// The first tensor on every storage.
fn first_on_storage(facts: &Facts) -> HashMap<u32, usize> {
    let mut first = HashMap::new();
    for (index, tensor) in facts.tensors.iter().enumerate() {
        if let Some(storage) = tensor.storage {
            first.entry(storage).or_insert(index);
        }
    }
    first
}

fn side(facts: &Facts, index: usize, first: &HashMap<u32, usize>) -> Option<TensorSide> {
    let tensor = facts.tensors.get(index)?;
    let before = tensor.storage.and_then(|storage| first.get(&storage));
    let before = before.filter(|first| **first != index);
    let tied_to = before.and_then(|first| facts.tensors.get(*first));
    Some(TensorSide {
        name: tensor.name.clone(),
        role: tensor.role.clone(),
        dtype: tensor.dtype.clone(),
        shape: tensor.shape.clone(),
        bytes: tensor.bytes,
        layout: tensor.layout.clone(),
        strides: tensor.strides.clone(),
        requires_grad: tensor.requires_grad,
        tied_to: tied_to.map(|tensor| tensor.name.clone()),
    })
}

/// One file with what is looked up in it again and again.
struct Looked<'a> {
    facts: &'a Facts,
    ties: HashMap<u32, usize>,
    first: HashMap<u32, usize>,
    hashes: HashMap<u32, &'a str>,
}

impl<'a> Looked<'a> {
    /// `place` is where this file's tensor is in a pair.
    fn new(facts: &'a Facts, matching: &Matching, place: fn(&Pair) -> usize) -> Self {
        let pairs = matching.pairs.iter().enumerate();
        let pair_of = pairs.map(|(number, pair)| (place(pair), number)).collect();
        Looked {
            facts,
            ties: ties(facts, &pair_of),
            first: first_on_storage(facts),
            hashes: hashes(facts),
        }
    }

    /// The first pair on a tensor's storage; the tensor's own where it shares with none.
    fn tie(&self, tensor: &TensorFacts, own: usize) -> usize {
        let first = tensor.storage.and_then(|storage| self.ties.get(&storage));
        first.copied().unwrap_or(own)
    }

    /// The hash of a tensor's bytes, where it is all of its storage.
    fn hash(&self, tensor: &TensorFacts) -> Option<&'a str> {
        let id = tensor.storage?;
        let whole = Some(self.facts.storage(id)?.bytes) == tensor.bytes;
        self.hashes.get(&id).copied().filter(|_| whole)
    }

    fn side(&self, index: usize) -> Option<TensorSide> {
        side(self.facts, index, &self.first)
    }
}

/// Every tensor that changed: those of the new file in its order, new ones, those that are gone. `values` holds what
/// comparing numbers gave, by place in the new file, where that was done.
pub(crate) fn changes(
    old: &Facts,
    new: &Facts,
    matching: &Matching,
    values: Option<&HashMap<usize, ValueChange>>,
) -> Vec<TensorChange> {
    let old = Looked::new(old, matching, |pair| pair.old);
    let new = Looked::new(new, matching, |pair| pair.new);
    let pairs = matching.pairs.iter().enumerate();
    let mut list: Vec<TensorChange> = pairs
        .filter_map(|(number, pair)| of_pair(&old, &new, number, *pair, values))
        .collect();
    let sides = |file: &Looked<'_>, index: &usize, change| Some(alone(change, file.side(*index)?));
    list.extend(
        matching
            .added
            .iter()
            .filter_map(|index| sides(&new, index, Change::Added)),
    );
    list.extend(
        matching
            .removed
            .iter()
            .filter_map(|index| sides(&old, index, Change::Removed)),
    );
    list
}

fn of_pair(
    old: &Looked<'_>,
    new: &Looked<'_>,
    number: usize,
    pair: Pair,
    values: Option<&HashMap<usize, ValueChange>>,
) -> Option<TensorChange> {
    let (before, after) = (
        old.facts.tensors.get(pair.old)?,
        new.facts.tensors.get(pair.new)?,
    );
    let mut changes = differences(before, after);
    // A state_dict is detached from its module: that its tensors want no gradients says nothing of the weights.
    let gradients = (before.requires_grad, after.requires_grad);
    if old.facts.file.object == new.facts.file.object
        && matches!(gradients, (Some(before), Some(after)) if before != after)
    {
        changes.push(Change::RequiresGrad);
    }
    if old.tie(before, number) != new.tie(after, number) {
        changes.push(Change::Retied);
    }
    let hashes = (old.hash(before), new.hash(after));
    let other_bytes = before.dtype == after.dtype
        && before.shape == after.shape
        && matches!(hashes, (Some(before), Some(after)) if before != after);
    // Numbers that were compared say more than hashes.
    let numbers = values.and_then(|values| values.get(&pair.new));
    if numbers.is_some() || (values.is_none() && other_bytes) {
        changes.push(Change::Value);
    }
    changes.sort_unstable();
    Some(TensorChange {
        name: after.name.clone(),
        change: changes.first().copied()?,
        changes,
        matched_by: Some(pair.by),
        old: old.side(pair.old),
        new: new.side(pair.new),
        delta_bytes: before.bytes.zip(after.bytes).map(|(a, b)| delta(a, b)),
        values: numbers.copied(),
    })
}

/// A tensor that only one file has.
fn alone(change: Change, side: TensorSide) -> TensorChange {
    let gone = change == Change::Removed;
    let grown = |bytes| {
        if gone {
            delta(bytes, 0)
        } else {
            delta(0, bytes)
        }
    };
    let delta_bytes = side.bytes.map(grown);
    let name = side.name.clone();
    let (old, new) = if gone {
        (Some(side), None)
    } else {
        (None, Some(side))
    };
    TensorChange {
        name,
        change,
        changes: vec![change],
        matched_by: None,
        old,
        new,
        delta_bytes,
        values: None,
    }
}

fn differences(old: &TensorFacts, new: &TensorFacts) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut note = |changed: bool, change| {
        if changed {
            changes.push(change);
        }
    };
    note(old.shape != new.shape, Change::Reshaped);
    note(old.dtype != new.dtype, Change::Retyped);
    note(old.role != new.role, Change::Role);
    note(old.name != new.name, Change::Renamed);
    // Another shape has other strides: that is said already.
    let strides = old.shape == new.shape && old.strides != new.strides;
    note(strides || old.layout != new.layout, Change::Layout);
    changes
}
