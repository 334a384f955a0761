//! Which entry of which file is which piece of what.

use std::collections::HashMap;

use super::super::super::error::FormatError;
use super::super::super::torch::rows::push_finding;
use super::metadata::{Metadata, Stored};
use crate::checkpoint::{Finding, Severity};
use crate::limits;

/// The entries of one file, by their places in [`Metadata::stored`], in the order in which they lie in it.
#[derive(Debug)]
pub(super) struct FilePlan<'p> {
    pub(super) name: &'p str,
    pub(super) entries: Vec<usize>,
}

/// What an entry is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing that the metadata names.
    None,
    /// An object that is no tensor.
    Object,
    /// A chunk, by the places of the item and of the chunk in it.
    Chunk(usize, usize),
}

/// All of it.
#[derive(Debug)]
pub(super) struct Plan<'p> {
    /// In the order of processes.
    pub(super) files: Vec<FilePlan<'p>>,
    /// By the place of the entry.
    pub(super) claims: Vec<Claim>,
    /// By the place of the item: the entry of each chunk, or the one entry of an object.
    pub(super) entries: Vec<Vec<Option<usize>>>,
}

/// The entries of one name, by where their piece starts.
type Group<'p> = HashMap<Option<&'p [u64]>, usize>;

impl<'p> Plan<'p> {
    pub(super) fn of(
        metadata: &'p Metadata<'_>,
        findings: &mut Vec<Finding>,
    ) -> Result<Plan<'p>, FormatError> {
        let groups = groups(metadata, findings);
        let mut claims = vec![Claim::None; metadata.stored.len()];
        let mut claim = |entry: Option<usize>, what: Claim| {
            if let Some(slot) = entry.and_then(|entry| claims.get_mut(entry)) {
                *slot = what;
            }
        };
        let mut entries = Vec::with_capacity(metadata.items.len());
        for (item_index, item) in metadata.items.iter().enumerate() {
            let group = groups.get(item.name);
            let find = |offsets| group.and_then(|group| group.get(&offsets)).copied();
            let Some(tensor) = &item.tensor else {
                let entry = find(None);
                claim(entry, Claim::Object);
                entries.push(vec![entry]);
                continue;
            };
            let chunks = tensor
                .chunks
                .iter()
                .map(|chunk| find(Some(&*chunk.offsets)));
            let own: Vec<Option<usize>> = chunks.collect();
            for (chunk, entry) in own.iter().enumerate() {
                claim(*entry, Claim::Chunk(item_index, chunk));
            }
            entries.push(own);
        }
        for (stored, claim) in metadata.stored.iter().zip(&claims) {
            if *claim == Claim::None {
                let message = format!(
                    "`{}` has an entry for it that is no chunk of what the metadata names",
                    crate::format::pickle::cut(stored.file)
                );
                push_finding(
                    findings,
                    Severity::Warning,
                    "unknown-entry",
                    stored.name,
                    message,
                );
            }
        }
        Ok(Plan {
            files: files(&metadata.stored)?,
            claims,
            entries,
        })
    }

    pub(super) fn has_file(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }
}

/// As in Python, the last of equal keys counts.
fn groups<'p>(
    metadata: &'p Metadata<'_>,
    findings: &mut Vec<Finding>,
) -> HashMap<&'p str, Group<'p>> {
    let mut groups: HashMap<&str, Group<'_>> = HashMap::with_capacity(metadata.items.len());
    for (index, stored) in metadata.stored.iter().enumerate() {
        let group = groups.entry(stored.name).or_default();
        if group.insert(stored.offsets.as_deref(), index).is_some() {
            let message = "two entries are for the same piece: the last one counts".to_owned();
            let warning = Severity::Warning;
            push_finding(findings, warning, "duplicate-entry", stored.name, message);
        }
    }
    groups
}

/// The files in the order of their numbers, and what lies in each from front to back.
fn files<'p>(stored: &'p [Stored<'_>]) -> Result<Vec<FilePlan<'p>>, FormatError> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut files: Vec<FilePlan<'_>> = Vec::new();
    for (index, entry) in stored.iter().enumerate() {
        let place = *places.entry(entry.file).or_insert(files.len());
        match files.get_mut(place) {
            Some(file) => file.entries.push(index),
            None => files.push(FilePlan {
                name: entry.file,
                entries: vec![index],
            }),
        }
        if files.len() > limits::SHARDS {
            return Err(FormatError::Limit {
                what: "the files of one checkpoint".to_owned(),
                limit: limits::SHARDS as u64,
            });
        }
    }
    for file in &mut files {
        file.entries.sort_by_key(|index| {
            let entry = stored.get(*index);
            entry.map_or((0, 0), |entry| (entry.offset, entry.bytes))
        });
    }
    files.sort_by_cached_key(|file| (numbers(file.name), file.name));
    Ok(files)
}

/// The numbers in a name: `__10_0` comes behind `__9_0`.
fn numbers(name: &str) -> Vec<u64> {
    let parts = name.split(|letter: char| !letter.is_ascii_digit());
    let numbers = parts.filter(|digits| !digits.is_empty());
    numbers
        .take(MAX_NUMBERS)
        .map(|digits| digits.parse().unwrap_or(u64::MAX))
        .collect()
}

/// Numbers of a name that files are ordered by.
const MAX_NUMBERS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &'static str, file: &'static str, offset: u64) -> Stored<'static> {
        Stored {
            name,
            offsets: None,
            file,
            offset,
            bytes: 1,
            transforms: Vec::new(),
        }
    }

    #[test]
    fn files_and_entries_are_in_order() {
        let all = [
            stored("a", "__10_0.distcp", 5),
            stored("b", "__9_0.distcp", 7),
            stored("c", "__10_0.distcp", 2),
        ];
        let files = files(&all).unwrap();
        let names: Vec<&str> = files.iter().map(|file| file.name).collect();
        assert_eq!(names, ["__9_0.distcp", "__10_0.distcp"]);
        assert_eq!(files[1].entries, [2, 0]);
    }

    #[test]
    fn equal_keys_and_entries_for_nothing_are_found() {
        let metadata = Metadata {
            items: Vec::new(),
            stored: vec![stored("a", "x", 0), stored("a", "x", 1)],
            version: None,
        };
        let mut findings = Vec::new();
        let plan = Plan::of(&metadata, &mut findings).unwrap();
        assert_eq!(plan.claims, [Claim::None, Claim::None]);
        let codes: Vec<&str> = findings.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["duplicate-entry", "unknown-entry", "unknown-entry"]);
    }
}
