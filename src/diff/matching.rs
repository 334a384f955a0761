//! Which tensor of one file is which of the other.
//!
//! By name first. What is left over has been renamed, added or removed. A renamed tensor keeps dtype and shape; beyond
//! that it is known by the bytes of its storage where both files were hashed, and else guessed: by the longest ending of
//! its name that no other tensor has (a prefix that came or went), then by its place among those of its shape.

use std::collections::{HashMap, HashSet, VecDeque};

use serde::Serialize;

use super::facts::{Facts, TensorFacts};

/// How two tensors are known to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchedBy {
    /// They have one name.
    Name,
    /// They have the same bytes, by the hash of their storage.
    Hash,
    /// They have dtype and shape in common, and the ending of their name.
    NameEnding,
    /// They have dtype and shape in common, and their place among those that do.
    Position,
}

/// One tensor of both files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Its place in the old file.
    pub old: usize,
    /// Its place in the new one.
    pub new: usize,
    /// How that is known.
    pub by: MatchedBy,
}

/// All tensors of two files, each in one of the three.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Matching {
    /// In both files, in the order of the new one.
    pub pairs: Vec<Pair>,
    /// In the old one only.
    pub removed: Vec<usize>,
    /// In the new one only.
    pub added: Vec<usize>,
}

/// A map of names that are no secret, and decide nothing that an attacker would want.
type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// What a renamed tensor keeps.
type Key<'a> = (Option<&'a str>, Option<&'a [u64]>, Option<u64>);

fn key(tensor: &TensorFacts) -> Key<'_> {
    (
        tensor.dtype.as_deref(),
        tensor.shape.as_deref(),
        tensor.bytes,
    )
}

/// The hash of a storage, by number; every storage of a hashed file with bytes has one.
pub(super) fn hashes(facts: &Facts) -> HashMap<u32, &str> {
    let storages = facts.storages.iter();
    storages
        .filter_map(|one| Some((one.id, one.hash.as_deref()?)))
        .collect()
}

impl Matching {
    /// Matches the tensors of two files.
    #[must_use]
    pub fn of(old: &Facts, new: &Facts) -> Matching {
        let mut left = Left::by_name(old, new);
        let (old_hashes, new_hashes) = (hashes(old), hashes(new));
        if old_hashes.is_empty() || new_hashes.is_empty() {
            left.by_name_ending(old, new);
            left.by_position(old, new);
        } else {
            left.by_hash((old, &old_hashes), (new, &new_hashes));
        }
        let mut pairs = left.pairs;
        pairs.sort_by_key(|pair| pair.new);
        Matching {
            pairs,
            removed: left.removed,
            added: left.added,
        }
    }
}

/// What is matched so far, and what is left.
struct Left {
    pairs: Vec<Pair>,
    removed: Vec<usize>,
    added: Vec<usize>,
}

impl Left {
    fn by_name(old: &Facts, new: &Facts) -> Left {
        // A file may have a name twice: in order, then.
        let mut names: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for (index, tensor) in old.tensors.iter().enumerate() {
            names.entry(&tensor.name).or_default().push_back(index);
        }
        let (mut pairs, mut added) = (Vec::new(), Vec::new());
        for (index, tensor) in new.tensors.iter().enumerate() {
            let known = names.get_mut(tensor.name.as_str());
            match known.and_then(VecDeque::pop_front) {
                Some(old) => pairs.push(Pair {
                    old,
                    new: index,
                    by: MatchedBy::Name,
                }),
                None => added.push(index),
            }
        }
        let mut removed: Vec<usize> = names.into_values().flatten().collect();
        removed.sort_unstable();
        Left {
            pairs,
            removed,
            added,
        }
    }

    /// Pairs what has the same key, each once and in order.
    fn pair_up<K: Eq + std::hash::Hash>(
        &mut self,
        by: MatchedBy,
        old_key: impl Fn(usize) -> Option<K>,
        new_key: impl Fn(usize) -> Option<K>,
    ) {
        let mut waiting: HashMap<K, VecDeque<usize>> = HashMap::new();
        for old in &self.removed {
            if let Some(key) = old_key(*old) {
                waiting.entry(key).or_default().push_back(*old);
            }
        }
        let mut taken = HashSet::new();
        let pairs = &mut self.pairs;
        self.added.retain(|new| {
            let old = new_key(*new).and_then(|key| waiting.get_mut(&key)?.pop_front());
            if let Some(old) = old {
                taken.insert(old);
                pairs.push(Pair { old, new: *new, by });
            }
            old.is_none()
        });
        self.removed.retain(|old| !taken.contains(old));
    }

    fn by_hash(&mut self, old: (&Facts, &HashMap<u32, &str>), new: (&Facts, &HashMap<u32, &str>)) {
        fn content<'a>(
            (facts, hashes): (&'a Facts, &HashMap<u32, &'a str>),
            index: usize,
        ) -> Option<(Key<'a>, &'a str, Option<u64>)> {
            let tensor = facts.tensors.get(index)?;
            let hash = hashes.get(&tensor.storage?)?;
            Some((key(tensor), hash, tensor.storage_offset))
        }
        self.pair_up(
            MatchedBy::Hash,
            |index| content(old, index),
            |index| content(new, index),
        );
    }

    fn by_position(&mut self, old: &Facts, new: &Facts) {
        self.pair_up(
            MatchedBy::Position,
            |index| old.tensors.get(index).map(key),
            |index| new.tensors.get(index).map(key),
        );
    }

    /// A whole model moved below another name, or out of one: the endings of names stay.
    fn by_name_ending(&mut self, old: &Facts, new: &Facts) {
        type Ending<'a> = (Key<'a>, &'a str);
        fn endings(tensor: &TensorFacts) -> impl Iterator<Item = Ending<'_>> {
            let name = tensor.name.as_str();
            let inner = name
                .match_indices('.')
                .filter_map(|(dot, _)| name.get(dot + 1..));
            std::iter::once(name)
                .chain(inner)
                .map(move |ending| (key(tensor), ending))
        }
        // Endings that one removed and one added tensor have, and no other.
        // 100,000 tensors have half a million endings.
        let mut owners: FastMap<Ending<'_>, (Option<usize>, Option<usize>, bool)> =
            FastMap::default();
        for index in &self.removed {
            for ending in old.tensors.get(*index).into_iter().flat_map(endings) {
                let owner = owners.entry(ending).or_default();
                owner.2 |= owner.0.replace(*index).is_some();
            }
        }
        for index in &self.added {
            for ending in new.tensors.get(*index).into_iter().flat_map(endings) {
                let owner = owners.entry(ending).or_default();
                owner.2 |= owner.1.replace(*index).is_some();
            }
        }
        let (mut gone, mut come) = (HashSet::new(), HashSet::new());
        for index in self.added.clone() {
            // Longest first.
            for ending in new.tensors.get(index).into_iter().flat_map(endings) {
                let Some((Some(removed), Some(added), false)) = owners.get(&ending).copied() else {
                    continue;
                };
                if added == index && gone.insert(removed) {
                    come.insert(index);
                    self.pairs.push(Pair {
                        old: removed,
                        new: index,
                        by: MatchedBy::NameEnding,
                    });
                    break;
                }
            }
        }
        self.removed.retain(|index| !gone.contains(index));
        self.added.retain(|index| !come.contains(index));
    }
}
