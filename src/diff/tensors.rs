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
    /// It is laid out otherwise: strides, layout or whether it wants gradients.
    Layout,
    /// It has other numbers.
    Value,
}

impl Change {
    /// Every change, in the order of reports.
    pub const ALL: [Change; 9] = [
        Change::Added,
        Change::Removed,
        Change::Reshaped,
        Change::Retyped,
        Change::Retied,
        Change::Role,
        Change::Renamed,
        Change::Layout,
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
        tied_to: tied_to.map(|tensor| tensor.name.clone()),
    })
}

/// Every tensor that changed: those of the new file in its order, then those that are gone. `values` holds what
/// comparing numbers gave, by place in the new file.
#[must_use]
pub fn changes(
    old: &Facts,
    new: &Facts,
    matching: &Matching,
    values: &HashMap<usize, ValueChange>,
) -> Vec<TensorChange> {
    let number = |place: fn(&Pair) -> usize| -> HashMap<usize, usize> {
        let pairs = matching.pairs.iter().enumerate();
        pairs.map(|(number, pair)| (place(pair), number)).collect()
    };
    let old_ties = ties(old, &number(|pair| pair.old));
    let new_ties = ties(new, &number(|pair| pair.new));
    let (old_first, new_first) = (first_on_storage(old), first_on_storage(new));
    let (old_hashes, new_hashes) = (hashes(old), hashes(new));
    let mut list = Vec::new();
    for (number, pair) in matching.pairs.iter().enumerate() {
        let (Some(before), Some(after)) = (old.tensors.get(pair.old), new.tensors.get(pair.new))
        else {
            continue;
        };
        let mut changes = differences(before, after);
        let tie = |tensor: &TensorFacts, ties: &HashMap<u32, usize>| {
            let first = tensor.storage.and_then(|storage| ties.get(&storage));
            first.copied().unwrap_or(number)
        };
        if tie(before, &old_ties) != tie(after, &new_ties) {
            changes.push(Change::Retied);
        }
        let hash = |tensor: &TensorFacts, hashes: &HashMap<u32, &str>| {
            tensor
                .storage
                .and_then(|id| hashes.get(&id).map(|hash| (*hash).to_owned()))
        };
        let hashes = (hash(before, &old_hashes), hash(after, &new_hashes));
        let other_bytes = matches!(&hashes, (Some(a), Some(b)) if a != b)
            && before.dtype == after.dtype
            && whole(before, old)
            && whole(after, new);
        if values.contains_key(&pair.new) || (values.is_empty() && other_bytes) {
            changes.push(Change::Value);
        }
        changes.sort_unstable();
        let Some(change) = changes.first().copied() else {
            continue;
        };
        list.push(TensorChange {
            name: after.name.clone(),
            change,
            changes,
            matched_by: Some(pair.by),
            old: side(old, pair.old, &old_first),
            new: side(new, pair.new, &new_first),
            delta_bytes: before.bytes.zip(after.bytes).map(|(a, b)| delta(a, b)),
            values: values.get(&pair.new).cloned(),
        });
    }
    let alone = |change, tensor: &TensorFacts, old: Option<TensorSide>, new: Option<TensorSide>| {
        let bytes = tensor.bytes;
        TensorChange {
            name: tensor.name.clone(),
            change,
            changes: vec![change],
            matched_by: None,
            delta_bytes: bytes.map(|bytes| match change {
                Change::Removed => delta(bytes, 0),
                _ => delta(0, bytes),
            }),
            old,
            new,
            values: None,
        }
    };
    for index in &matching.added {
        if let Some(tensor) = new.tensors.get(*index) {
            list.push(alone(
                Change::Added,
                tensor,
                None,
                side(new, *index, &new_first),
            ));
        }
    }
    for index in &matching.removed {
        if let Some(tensor) = old.tensors.get(*index) {
            list.push(alone(
                Change::Removed,
                tensor,
                side(old, *index, &old_first),
                None,
            ));
        }
    }
    list
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
    // Another shape has other strides: that is said already. One side may not say whether gradients are wanted.
    let strides = old.shape == new.shape && old.strides != new.strides;
    let gradients = matches!((old.requires_grad, new.requires_grad), (Some(a), Some(b)) if a != b);
    note(
        strides || gradients || old.layout != new.layout,
        Change::Layout,
    );
    changes
}

/// Whether a tensor is all of its storage, so that a hash of the one is a hash of the other.
fn whole(tensor: &TensorFacts, facts: &Facts) -> bool {
    let storage = tensor.storage.and_then(|id| facts.storage(id));
    storage.is_some_and(|storage| Some(storage.bytes) == tensor.bytes)
}
