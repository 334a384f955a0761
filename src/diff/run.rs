//! What differs between two runs, times left out.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::facts::{EstimateFacts, Facts, HELD, ModuleFacts, RunFacts, ShapeFacts, delta};
use super::metrics::{self, Metric};

/// A number of which both sides are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumberChange {
    /// Its name, of [`metrics::CATALOGUE`].
    pub metric: String,
    /// As it was; unknown, or there was none.
    pub old: Option<u64>,
    /// As it is.
    pub new: Option<u64>,
    /// The difference, where both are known.
    pub delta: Option<i64>,
}

/// A property of which both sides are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TextChange {
    /// What it is.
    pub what: &'static str,
    /// As it was.
    pub old: Option<String>,
    /// As it is.
    pub new: Option<String>,
}

/// A module that ran otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModuleRunChange {
    /// Its path; empty for the root.
    pub path: String,
    /// As it was; none where it is new.
    pub old: Option<ModuleRun>,
    /// As it is; none where it is gone.
    pub new: Option<ModuleRun>,
}

/// What a module did in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModuleRun {
    /// Its class.
    pub class: Option<String>,
    /// Calls.
    pub calls: u64,
    /// What the last call returned.
    pub outputs: Vec<ShapeFacts>,
    /// Floating-point operations forward, with children.
    pub flops: Option<u64>,
    /// Kept for the backward pass, with children.
    pub saved_bytes: Option<u64>,
}

/// An operator that is called more or less often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpChange {
    /// Name such as `aten::conv2d`.
    pub op: String,
    /// Calls before; 0 where it is new.
    pub old: u64,
    /// Calls now; 0 where it is gone.
    pub new: u64,
}

/// Memory at the peak by what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldChange {
    /// A category of the contract's `at_peak`.
    pub category: &'static str,
    /// Bytes before.
    pub old: Option<u64>,
    /// Bytes now.
    pub new: Option<u64>,
    /// The difference, where both are known.
    pub delta: Option<i64>,
}

/// What differs between two runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RunDiff {
    /// How they were run: what is not the same is no change of the model.
    pub conditions: Vec<TextChange>,
    /// Numbers.
    pub metrics: Vec<NumberChange>,
    /// Memory at the allocated peak.
    pub at_peak: Vec<HeldChange>,
    /// Modules, those of the new run in its order, then those that are gone.
    pub modules: Vec<ModuleRunChange>,
    /// Operators, by name.
    pub ops: Vec<OpChange>,
}

impl RunDiff {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == RunDiff::default()
    }
}

/// Numbers that differ, in the order of [`metrics::CATALOGUE`].
#[must_use]
pub fn numbers(old: &[Metric], new: &[Metric]) -> Vec<NumberChange> {
    let before: HashMap<&str, Option<u64>> = old
        .iter()
        .map(|one| (one.name.as_str(), one.value))
        .collect();
    let after: HashMap<&str, Option<u64>> = new
        .iter()
        .map(|one| (one.name.as_str(), one.value))
        .collect();
    let change = |name: &str| {
        let value = |side: &HashMap<&str, Option<u64>>| match side.get(name) {
            Some(value) => *value,
            None => absent(name),
        };
        let (old, new) = (value(&before), value(&after));
        (old != new).then(|| NumberChange {
            metric: name.to_owned(),
            old,
            new,
            delta: old.zip(new).map(|(old, new)| delta(old, new)),
        })
    };
    let gone = old
        .iter()
        .filter(|one| !after.contains_key(one.name.as_str()));
    let all = new.iter().chain(gone);
    let mut list: Vec<NumberChange> = all.filter_map(|one| change(&one.name)).collect();
    list.sort_by_key(|one| metrics::order(&one.metric));
    list
}

/// What a number is where a report does not list it: parameters by dtype are listed where there are any.
#[must_use]
pub fn absent(metric: &str) -> Option<u64> {
    metric.starts_with("parameters.").then_some(0)
}

/// What differs between the runs and estimates of two files; `None` where not both have one of them.
#[must_use]
pub(super) fn run(old: &Facts, new: &Facts) -> Option<RunDiff> {
    let runs = old.run.as_ref().zip(new.run.as_ref());
    let estimates = old.estimate.as_ref().zip(new.estimate.as_ref());
    if runs.is_none() && estimates.is_none() {
        return None;
    }
    let only_runs = |facts: &Facts| -> Vec<Metric> {
        let all = metrics::of(facts, true);
        all.into_iter().filter(|one| of_run(&one.name)).collect()
    };
    let mut diff = RunDiff {
        metrics: numbers(&only_runs(old), &only_runs(new)),
        ..RunDiff::default()
    };
    if let Some((old, new)) = runs {
        diff.conditions = conditions(old, new);
        diff.modules = modules(old, new);
        diff.ops = ops(old, new);
    }
    if let Some((old, new)) = estimates {
        diff.conditions
            .extend(text("basis", Some(&old.basis), Some(&new.basis)));
        let profiles = (old.profile.as_deref(), new.profile.as_deref());
        diff.conditions
            .extend(text("profile", profiles.0, profiles.1));
        diff.at_peak = held(old, new);
    }
    Some(diff)
}

/// Whether a number is one of a run, and not of the file.
#[must_use]
pub(super) fn of_run(metric: &str) -> bool {
    metrics::find(metric).is_some_and(|(kind, _)| kind.needs != metrics::Needs::File)
}

/// A property that differs.
pub(super) fn text(what: &'static str, old: Option<&str>, new: Option<&str>) -> Option<TextChange> {
    (old != new).then(|| TextChange {
        what,
        old: old.map(str::to_owned),
        new: new.map(str::to_owned),
    })
}

/// A tensor with its name, where it has one.
fn named(name: &str, spec: &str) -> String {
    match name {
        "" => spec.to_owned(),
        name => format!("{name}={spec}"),
    }
}

/// A tensor as `--input` writes it: `1x3x224x224:float32`.
fn spec(shape: Option<&[u64]>, dtype: &str) -> String {
    let sizes = match shape {
        None => "unknown".to_owned(),
        Some([]) => "[]".to_owned(),
        Some(sizes) => {
            let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
            sizes.join("x")
        }
    };
    format!("{sizes}:{dtype}")
}

fn conditions(old: &RunFacts, new: &RunFacts) -> Vec<TextChange> {
    let inputs = |run: &RunFacts| -> String {
        let inputs = run.inputs.iter().map(|input| {
            let dtype = input.dtype.as_deref().unwrap_or("unknown");
            named(&input.name, &spec(input.shape.as_deref(), dtype))
        });
        inputs.collect::<Vec<_>>().join(", ")
    };
    let outputs = |run: &RunFacts| -> String {
        let outputs = run.outputs.iter().map(|output| {
            let spec = spec(Some(&output.tensor.shape), &output.tensor.dtype);
            named(&output.path, &spec)
        });
        outputs.collect::<Vec<_>>().join(", ")
    };
    [
        text("device", Some(&old.device), Some(&new.device)),
        text("mode", Some(&old.mode), Some(&new.mode)),
        text("method", Some(&old.method), Some(&new.method)),
        text(
            "libtorch",
            Some(&old.libtorch_version),
            Some(&new.libtorch_version),
        ),
        text("inputs", Some(&inputs(old)), Some(&inputs(new))),
        text("outputs", Some(&outputs(old)), Some(&outputs(new))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn module_run(module: &ModuleFacts) -> ModuleRun {
    ModuleRun {
        class: module.class.clone(),
        calls: module.calls,
        outputs: module.outputs.clone(),
        flops: module.flops,
        saved_bytes: module.saved_bytes,
    }
}

fn modules(old: &RunFacts, new: &RunFacts) -> Vec<ModuleRunChange> {
    let mut before: HashMap<&str, &ModuleFacts> = old
        .modules
        .iter()
        .map(|one| (one.path.as_str(), one))
        .collect();
    let mut changes = Vec::new();
    for module in &new.modules {
        let new = module_run(module);
        let old = before.remove(module.path.as_str()).map(module_run);
        if old.as_ref() != Some(&new) {
            changes.push(ModuleRunChange {
                path: module.path.clone(),
                old,
                new: Some(new),
            });
        }
    }
    let gone = old
        .modules
        .iter()
        .filter(|one| before.contains_key(one.path.as_str()));
    changes.extend(gone.map(|module| ModuleRunChange {
        path: module.path.clone(),
        old: Some(module_run(module)),
        new: None,
    }));
    changes
}

fn ops(old: &RunFacts, new: &RunFacts) -> Vec<OpChange> {
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, kind) in &old.ops.kinds {
        counts.entry(name).or_default().0 = kind.count;
    }
    for (name, kind) in &new.ops.kinds {
        counts.entry(name).or_default().1 = kind.count;
    }
    let changed = counts.into_iter().filter(|(_, (old, new))| old != new);
    changed
        .map(|(op, (old, new))| OpChange {
            op: op.to_owned(),
            old,
            new,
        })
        .collect()
}

fn held(old: &EstimateFacts, new: &EstimateFacts) -> Vec<HeldChange> {
    let of = |estimate: &EstimateFacts| -> HashMap<&'static str, u64> {
        let peak = estimate.at_peak.as_ref();
        peak.map(|peak| peak.held().into_iter().collect())
            .unwrap_or_default()
    };
    let (old, new) = (of(old), of(new));
    let change = |category: &'static str| {
        let (old, new) = (old.get(category).copied(), new.get(category).copied());
        (old != new).then(|| HeldChange {
            category,
            old,
            new,
            delta: old.zip(new).map(|(old, new)| delta(old, new)),
        })
    };
    HELD.into_iter().filter_map(change).collect()
}
