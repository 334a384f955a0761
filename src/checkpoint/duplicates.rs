//! Storages of equal bytes.

use std::collections::HashMap;

use super::{CheckpointParts, ContentHash, Finding, Severity, Storage, StorageId};
use crate::limits;
use crate::text;
use crate::units::grouped;

/// Storages with the same bytes.
struct Group {
    first: usize,
    copies: Vec<usize>,
}

/// Notes the hashes, in the order of the storages, and says which storages are copies of others.
pub(super) fn set(
    parts: &mut CheckpointParts,
    hashes: impl IntoIterator<Item = Option<ContentHash>>,
) -> Vec<Finding> {
    let mut groups: Vec<Group> = Vec::new();
    let mut by_content: HashMap<(ContentHash, u64), usize> = HashMap::new();
    for (index, (storage, hash)) in parts.storages.iter_mut().zip(hashes).enumerate() {
        let mut original = None;
        if let Some(hash) = hash.filter(|_| storage.bytes() > 0) {
            let group = *by_content
                .entry((hash, storage.bytes()))
                .or_insert(groups.len());
            match groups.get_mut(group) {
                Some(known) => {
                    original = u32::try_from(known.first).ok().map(StorageId::new);
                    known.copies.push(index);
                }
                None => groups.push(Group {
                    first: index,
                    copies: Vec::new(),
                }),
            }
        }
        storage.set_content(hash, original);
    }
    groups.retain(|group| !group.copies.is_empty());
    findings(parts, groups)
}

/// One finding a group, the largest first; the last one sums up the rest.
fn findings(parts: &CheckpointParts, groups: Vec<Group>) -> Vec<Finding> {
    let wasted = |group: &Group| -> u64 {
        let copies = group.copies.iter().filter_map(|i| parts.storages.get(*i));
        copies.map(Storage::bytes).fold(0, u64::saturating_add)
    };
    let mut groups: Vec<(u64, Group)> = groups.into_iter().map(|g| (wasted(&g), g)).collect();
    groups.sort_by_key(|(bytes, group)| (std::cmp::Reverse(*bytes), group.first));
    let names = Names::of(parts);
    let rest = groups.split_off(groups.len().min(limits::FINDINGS_PER_KIND));
    let mut findings: Vec<Finding> = groups
        .iter()
        .map(|(bytes, group)| {
            let copies = group.copies.len();
            let first_copy = group.copies.first().copied().unwrap_or(group.first);
            let others = match copies {
                1 => String::new(),
                2 => " and 1 other".to_owned(),
                _ => format!(" and {} others", grouped_count(copies.saturating_sub(1))),
            };
            Finding {
                severity: Severity::Info,
                code: CODE,
                location: names.of_storage(parts, first_copy),
                message: format!(
                    "the same bytes as `{}`{others}: {} bytes more than once",
                    text::cut(&names.of_storage(parts, group.first), limits::SHOWN_CHARS),
                    grouped(*bytes)
                ),
            }
        })
        .collect();
    if !rest.is_empty() {
        let bytes = rest
            .iter()
            .fold(0, |sum: u64, (b, _)| sum.saturating_add(*b));
        findings.push(Finding {
            severity: Severity::Info,
            code: CODE,
            location: String::new(),
            message: format!(
                "there are {} more groups of equal storages: {} bytes more than once",
                grouped_count(rest.len()),
                grouped(bytes)
            ),
        });
    }
    findings
}

const CODE: &str = "duplicate-storage";

fn grouped_count(count: usize) -> String {
    grouped(u64::try_from(count).unwrap_or(u64::MAX))
}

/// What storages are called: their first tensor, or their place in the file.
struct Names {
    first_tensor: Vec<Option<usize>>,
}

impl Names {
    fn of(parts: &CheckpointParts) -> Names {
        let mut first_tensor = vec![None; parts.storages.len()];
        for (index, tensor) in parts.tensors.iter().enumerate() {
            for id in tensor.storages() {
                if let Some(slot) = first_tensor.get_mut(id.index()) {
                    slot.get_or_insert(index);
                }
            }
        }
        Names { first_tensor }
    }

    fn of_storage(&self, parts: &CheckpointParts, storage: usize) -> String {
        let tensor = self.first_tensor.get(storage).copied().flatten();
        let name = match tensor.and_then(|index| parts.tensors.get(index)) {
            Some(tensor) => tensor.name(),
            None => parts.storages.get(storage).map_or("", Storage::member),
        };
        name.to_owned()
    }
}
