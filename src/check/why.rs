//! Why a number is another: what grew most.

use std::collections::BTreeMap;

use serde::Serialize;

use super::baseline::{Baseline, KnownModule, modules, of_known, tensors};
use crate::diff::metrics::{self, Unit};
use crate::diff::{Change, Facts, Matching, TensorChange, TensorFacts, TensorSide, changes, delta};

/// Reasons that are given for one number.
const MOST: usize = 3;

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The tensor, module or category; empty where it is none of them.
    pub what: String,
    /// How much of the difference it is, in the number's own unit; unknown where nothing was compared.
    pub delta: Option<i64>,
    /// How large it is, where there is nothing to compare with.
    pub size: Option<u64>,
    /// In words.
    pub detail: String,
}

impl Why {
    fn new(what: &str, delta: Option<i64>, detail: impl Into<String>) -> Why {
        Why {
            what: what.to_owned(),
            delta,
            size: None,
            detail: detail.into(),
        }
    }

    fn large(what: &str, size: u64, detail: impl Into<String>) -> Why {
        Why {
            size: Some(size),
            ..Why::new(what, None, detail)
        }
    }

    /// A reason that is no part of the file.
    #[must_use]
    pub fn words(detail: impl Into<String>) -> Why {
        Why::new("", None, detail)
    }
}

/// What can be said about one file against its baseline.
pub(super) struct Reasons<'a> {
    facts: &'a Facts,
    baseline: Option<&'a Baseline>,
    tensors: Vec<TensorChange>,
    before: BTreeMap<String, KnownModule>,
    now: BTreeMap<String, KnownModule>,
}

impl<'a> Reasons<'a> {
    pub(super) fn new(facts: &'a Facts, baseline: Option<&'a Baseline>) -> Reasons<'a> {
        let changed = baseline.map(|baseline| {
            let old = Facts::of_tensors(baseline.tensor_facts());
            let new = Facts::of_tensors(of_known(&tensors(facts, baseline.depth)));
            let matching = Matching::of(&old, &new);
            changes(&old, &new, &matching, None)
        });
        Reasons {
            facts,
            baseline,
            tensors: changed.unwrap_or_default(),
            before: baseline.map(|one| one.modules.clone()).unwrap_or_default(),
            now: modules(facts),
        }
    }

    /// Why this number is not what it was; largest first.
    pub(super) fn of(&self, metric: &str) -> Vec<Why> {
        let Some((kind, part)) = metrics::find(metric) else {
            return Vec::new();
        };
        if self.baseline.is_none() {
            return self.largest(kind.name);
        }
        match kind.name {
            "slack_bytes" => self.findings("storage-slack"),
            "flops" => self.modules(|module| module.flops),
            "activation_bytes" => self.modules(|module| Some(module.activation_bytes)),
            // Its phases grow for the same reasons: said once.
            "peak_requested_bytes" | "peak_allocated_bytes" | "peak_reserved_bytes"
                if part.is_empty() =>
            {
                self.peak()
            }
            "file_bytes" => {
                let list = self.tensors(kind.unit, |_| true);
                if list.is_empty() {
                    vec![Why::words(
                        "no tensor changed size: it is code, pickle or padding",
                    )]
                } else {
                    list
                }
            }
            "storage_bytes" | "tensors" => self.tensors(kind.unit, |_| true),
            "parameters" | "parameter_bytes" => self.tensors(kind.unit, |role| role == "parameter"),
            "buffer_bytes" => self.tensors(kind.unit, |role| role == "buffer"),
            "optimizer_bytes" => self.tensors(kind.unit, |role| role == "optimizer"),
            _ => Vec::new(),
        }
    }

    fn tensors(&self, unit: Unit, role: impl Fn(&str) -> bool) -> Vec<Why> {
        let size = |change: &TensorChange| -> Option<i64> {
            if unit == Unit::Bytes {
                return change.delta_bytes;
            }
            let numel = |shape: &Option<Vec<u64>>| crate::tensor::numel(shape.as_deref()?);
            let of = |side: &Option<TensorSide>| {
                side.as_ref().map_or(Some(0), |side| numel(&side.shape))
            };
            Some(delta(of(&change.old)?, of(&change.new)?))
        };
        let of_role = self.tensors.iter().filter(|change| {
            let sides = change.old.iter().chain(&change.new);
            sides.into_iter().any(|side| role(&side.role))
        });
        let list = of_role.filter_map(|change| {
            let size = size(change);
            let counts = !matches!(change.change, Change::Renamed);
            (size != Some(0) && counts).then(|| Why::new(&change.name, size, detail(change)))
        });
        largest(list.collect())
    }

    fn modules(&self, number: impl Fn(&KnownModule) -> Option<u64>) -> Vec<Why> {
        let value = |side: &BTreeMap<String, KnownModule>, path: &str| match side.get(path) {
            Some(module) => number(module),
            None => Some(0),
        };
        let paths: std::collections::BTreeSet<&String> =
            self.before.keys().chain(self.now.keys()).collect();
        let mut list = Vec::new();
        for path in &paths {
            let (old, new) = (value(&self.before, path), value(&self.now, path));
            if old == new {
                continue;
            }
            let word = match (
                self.before.contains_key(*path),
                self.now.contains_key(*path),
            ) {
                (false, _) => "new",
                (_, false) => "gone",
                _ => "",
            };
            list.push((
                path.as_str(),
                old.zip(new).map(|(old, new)| delta(old, new)),
                word,
            ));
        }
        // A module that changed only because of those below it says nothing.
        let inner: Vec<&str> = list.iter().map(|(path, ..)| *path).collect();
        let leaf = |path: &str| {
            let below = |other: &&str| match path {
                "" => !other.is_empty(),
                path => other
                    .strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('.')),
            };
            !inner.iter().any(below)
        };
        let leaves = list.iter().filter(|(path, ..)| leaf(path));
        largest(
            leaves
                .map(|(path, delta, word)| Why::new(path, *delta, *word))
                .collect(),
        )
    }

    /// By what the memory at the peak is for, then the modules that return more.
    fn peak(&self) -> Vec<Why> {
        let estimate = self.facts.estimate.as_ref();
        let peak = estimate.and_then(|estimate| estimate.at_peak.as_ref());
        let (Some(baseline), Some(peak)) = (self.baseline, peak) else {
            return Vec::new();
        };
        let held = peak.held().into_iter().filter_map(|(category, now)| {
            let before = baseline.at_peak.get(category).copied()?;
            let words = format!("{} at the peak", category.replace('_', " "));
            (before != now).then(|| Why::new("", Some(delta(before, now)), words))
        });
        let mut list = largest(held.collect());
        let outputs = self
            .modules(|module| Some(module.activation_bytes))
            .into_iter();
        list.extend(outputs.take(1).map(|why| Why {
            detail: "returned".to_owned(),
            ..why
        }));
        list
    }

    fn findings(&self, code: &str) -> Vec<Why> {
        let findings = self.facts.findings.iter().filter(|one| one.code == code);
        findings
            .take(MOST)
            .map(|one| Why::new(&one.location, None, one.message.clone()))
            .collect()
    }

    /// What is largest now, where there is nothing to compare with.
    fn largest(&self, metric: &str) -> Vec<Why> {
        let list: Vec<Why> = match metric {
            "flops" | "activation_bytes" => {
                let of = |module: &KnownModule| match metric {
                    "flops" => module.flops.unwrap_or(0),
                    _ => module.activation_bytes,
                };
                let parent = |path: &str| {
                    let mut others = self.now.keys();
                    others.any(|other| {
                        other
                            .strip_prefix(path)
                            .is_some_and(|rest| rest.starts_with('.'))
                    })
                };
                let modules = self
                    .now
                    .iter()
                    .filter(|(path, _)| !path.is_empty() && !parent(path));
                modules
                    .map(|(path, module)| Why::large(path, of(module), ""))
                    .collect()
            }
            "peak_requested_bytes" | "peak_allocated_bytes" | "peak_reserved_bytes" => {
                let estimate = self.facts.estimate.as_ref();
                let peak = estimate.and_then(|estimate| estimate.at_peak.as_ref());
                let held = peak.iter().flat_map(|peak| peak.held());
                held.filter(|(_, bytes)| *bytes > 0)
                    .map(|(category, bytes)| {
                        let words = format!("{} at the peak", category.replace('_', " "));
                        Why::large("", bytes, words)
                    })
                    .collect()
            }
            "file_bytes" => self.in_file(),
            "storage_bytes" | "parameter_bytes" | "parameters" => {
                let only = metric.starts_with("parameter");
                let tensors = self.facts.tensors.iter();
                let tensors = tensors.filter(|one| !only || one.role == "parameter");
                let number = |one: &TensorFacts| match metric {
                    "parameters" => one.numel,
                    _ => one.bytes,
                };
                tensors
                    .filter_map(|one| Some(Why::large(&one.name, number(one)?, "")))
                    .collect()
            }
            _ => Vec::new(),
        };
        largest(list)
    }

    /// What storages take up in the file, by their first tensor.
    fn in_file(&self) -> Vec<Why> {
        let mut seen = std::collections::HashSet::new();
        let tensors = self.facts.tensors.iter();
        let first = tensors.filter(|one| one.storage.is_some_and(|id| seen.insert(id)));
        first
            .filter_map(|one| {
                let storage = self.facts.storage(one.storage?)?;
                Some(Why::large(&one.name, storage.file_bytes, ""))
            })
            .collect()
    }
}

fn largest(mut list: Vec<Why>) -> Vec<Why> {
    list.sort_by(|a, b| {
        let size = |why: &Why| why.size.or(why.delta.map(i64::unsigned_abs));
        size(b).cmp(&size(a)).then_with(|| a.what.cmp(&b.what))
    });
    list.truncate(MOST);
    list
}

fn detail(change: &TensorChange) -> String {
    let text = |side: &TensorSide| {
        let shape = side.shape.as_ref().map(|shape| {
            let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
            if sizes.is_empty() {
                "scalar".to_owned()
            } else {
                sizes.join("×")
            }
        });
        let parts: Vec<String> = side.dtype.clone().into_iter().chain(shape).collect();
        parts.join(" ")
    };
    match (&change.old, &change.new) {
        (Some(old), Some(new)) if text(old) != text(new) => {
            format!("{} → {}", text(old), text(new))
        }
        (Some(_), Some(_)) => change.change.name().to_owned(),
        (None, Some(new)) => format!("added, {}", text(new)),
        (Some(old), None) => format!("removed, {}", text(old)),
        (None, None) => String::new(),
    }
}
