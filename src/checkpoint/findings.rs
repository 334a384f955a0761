//! What makes a file larger than it needs to be, as far as it shows without reading tensor data.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::hash::BuildHasher;

use super::{CheckpointParts, Finding, Role, Severity, Tensor};
use crate::limits;
use crate::tensor::DType;
use crate::units::grouped;

/// Waste below this many bytes is not worth a sentence.
const WORTH_BYTES: u64 = 1024;

/// Slack is worth a sentence from this share of a storage on: one byte in so many.
const WORTH_SHARE: u64 = 8;

/// Findings about waste. Storages must know their usage already.
pub(super) fn of(parts: &CheckpointParts) -> Vec<Finding> {
    let mut findings = slack(parts);
    findings.extend(averages(parts));
    findings.extend(doubles(parts));
    findings
}

/// Storages of which tensors reach only a part: what is left of a tensor when a slice of it is saved.
fn slack(parts: &CheckpointParts) -> Vec<Finding> {
    let mut wasted: Vec<(u64, usize)> = parts
        .storages
        .iter()
        .enumerate()
        .map(|(index, s)| (s.bytes().saturating_sub(s.used_bytes()), index))
        .filter(|&(bytes, index)| {
            let whole = parts.storages.get(index).map_or(0, super::Storage::bytes);
            bytes >= WORTH_BYTES && bytes >= whole / WORTH_SHARE
        })
        .collect();
    if wasted.is_empty() {
        return Vec::new();
    }
    wasted.sort_by_key(|&(bytes, index)| (Reverse(bytes), index));
    let rest = wasted.split_off(wasted.len().min(limits::FINDINGS_PER_KIND));
    let mut first_tensor: Vec<Option<&str>> = vec![None; parts.storages.len()];
    for tensor in &parts.tensors {
        for id in tensor.storages() {
            if let Some(slot) = first_tensor.get_mut(id.index()) {
                slot.get_or_insert(tensor.name());
            }
        }
    }
    let mut findings: Vec<Finding> = wasted
        .iter()
        .filter_map(|&(_, index)| {
            let storage = parts.storages.get(index)?;
            let name = first_tensor.get(index).copied().flatten();
            let reached = match (name, storage.used_bytes()) {
                (None, _) => "no tensor uses it".to_owned(),
                (_, used) => format!(
                    "tensors reach {}: it was saved as part of something larger",
                    grouped(used)
                ),
            };
            Some(Finding {
                severity: Severity::Warning,
                code: "storage-slack",
                location: name.unwrap_or(storage.member()).to_owned(),
                message: format!(
                    "its storage has {} bytes, {reached}",
                    grouped(storage.bytes())
                ),
            })
        })
        .collect();
    findings.extend(rest_of_slack(&rest));
    findings
}

/// The storages with the least slack, in one sentence.
fn rest_of_slack(rest: &[(u64, usize)]) -> Option<Finding> {
    let bytes = rest
        .iter()
        .fold(0, |sum: u64, (bytes, _)| sum.saturating_add(*bytes));
    (!rest.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        code: "storage-slack",
        location: String::new(),
        message: format!(
            "{} more storages hold {} bytes that no tensor reaches",
            grouped(rest.len() as u64),
            grouped(bytes)
        ),
    })
}

/// Averaged copies of the weights (EMA), which only evaluation or only further training needs.
fn averages(parts: &CheckpointParts) -> Option<Finding> {
    let first = parts.tensors.iter().find(|t| average(t.name()).is_some())?;
    let hasher = foldhash::fast::RandomState::default();
    let mut weights: HashSet<u64> = HashSet::new();
    for tensor in parts.tensors.iter().filter(|t| average(t.name()).is_none()) {
        let mut rest = tensor.name();
        weights.insert(key(&hasher, rest, tensor));
        for _ in 0..MAX_PREFIXES {
            let Some((_, below)) = rest.split_once('.') else {
                break;
            };
            rest = below;
            weights.insert(key(&hasher, rest, tensor));
        }
    }
    // A storage that the weights use too is no copy.
    let mut counted = vec![false; parts.storages.len()];
    let mut uncounted_bytes = |tensor: &Tensor| {
        let new = tensor.storages().filter(|id| {
            let slot = counted.get_mut(id.index());
            slot.is_some_and(|slot| !std::mem::replace(slot, true))
        });
        let bytes = new.map(|id| {
            let storage = parts.storages.get(id.index());
            storage.map_or(0, super::Storage::file_bytes)
        });
        bytes.reduce(u64::saturating_add)
    };
    for tensor in parts.tensors.iter().filter(|t| average(t.name()).is_none()) {
        uncounted_bytes(tensor);
    }
    let (mut bytes, mut tensors) = (0_u64, 0_u64);
    for tensor in &parts.tensors {
        let copied = average(tensor.name())
            .is_some_and(|name| weights.contains(&key(&hasher, name, tensor)));
        if copied && let Some(own) = uncounted_bytes(tensor) {
            bytes = bytes.saturating_add(own);
            tensors = tensors.saturating_add(1);
        }
    }
    (bytes >= WORTH_BYTES).then(|| Finding {
        severity: Severity::Info,
        code: "ema-copy",
        location: first.name().to_owned(),
        message: format!(
            "{} bytes in {} tensors are averages (EMA) of weights that are also in the file: one of the two is enough to run the model",
            grouped(bytes),
            grouped(tensors)
        ),
    })
}

/// How many parts in front of a weight's name (`state_dict.model.`) an average's name may lack.
const MAX_PREFIXES: usize = 3;

/// The rest of a name behind a part that says EMA; `None` where no part does.
fn average(name: &str) -> Option<&str> {
    let letters = name.as_bytes();
    // Every letter is looked at: without a way out the loop takes 16 or more at once.
    let is_m = |letter: &u8| letter | 0x20 == b'm';
    let has_m = letters.iter().map(is_m).fold(false, |any, one| any | one);
    if !has_m || !letters.windows(3).any(|w| matches!(w, b"ema" | b"EMA")) {
        return None;
    }
    let mut rest = name;
    while let Some((part, below)) = rest.split_once('.') {
        let mut words = part.split(['_', '-']);
        if words.any(|word| matches!(word, "ema" | "EMA")) {
            return Some(below);
        }
        rest = below;
    }
    None
}

/// Name and shape as a number. Dots do not count: buffers cannot have any, so some keep averages without.
fn key(hasher: &impl BuildHasher, name: &str, tensor: &Tensor) -> u64 {
    hasher.hash_one((name.replace('.', ""), tensor.shape()))
}

/// Parameters of double precision, which models are hardly ever trained in on purpose.
fn doubles(parts: &CheckpointParts) -> Option<Finding> {
    let is_double = |t: &&Tensor| t.role() == Role::Parameter && t.dtype() == Some(DType::Float64);
    let first = parts.tensors.iter().find(is_double)?;
    let doubles = parts.tensors.iter().filter(is_double);
    let bytes = doubles.map(Tensor::bytes).fold(0, u64::saturating_add);
    (bytes >= WORTH_BYTES).then(|| Finding {
        severity: Severity::Info,
        code: "float64-parameters",
        location: first.name().to_owned(),
        message: format!(
            "{} bytes of parameters are float64: as float32 they take half",
            grouped(bytes)
        ),
    })
}
