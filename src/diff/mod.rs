//! What changed between two checkpoints, two saved reports, or one of each.
//!
//! Both sides are [`Facts`]: what the JSON report says. A checkpoint is reported in memory first, so a saved report and
//! the file that it is of give the same answer. Nothing here opens a file; `values` alone reads numbers, from files
//! that are open.
//!
//! [`metrics`] are the named numbers that `inspect check` compares too.

mod facts;
mod matching;
pub mod metrics;
mod modules;
mod run;
mod tensors;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use facts::{
    EstimateFacts, Facts, FileFacts, FindingFacts, HELD, ModuleFacts, ReportError, RunFacts,
    ShapeFacts, Sums, TensorFacts, delta,
};
pub use matching::{MatchedBy, Matching, Pair};
pub use modules::{ModuleChange, modules};
pub use run::{
    HeldChange, ModuleRun, ModuleRunChange, NumberChange, OpChange, RunDiff, TextChange, absent,
    numbers,
};
pub(crate) use tensors::changes;
pub use tensors::{Change, Contents, TensorChange, TensorSide};
pub use values::{NotCompared, NotFinite, Opened, Scan, ValueChange, Values, compare, scan};

/// Everything that differs; the JSON of `inspect diff` but for who wrote it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// The old file.
    pub old: FileFacts,
    /// The new file.
    pub new: FileFacts,
    /// Whether nothing that was compared differs.
    pub identical: bool,
    /// How far the tensors' contents were compared.
    pub contents: Contents,
    /// Every tensor that changed: those of the new file in its order, new ones, those that are gone.
    pub tensors: Vec<TensorChange>,
    /// Bytes by module: parents, then their children, those that changed most first.
    pub modules: Vec<ModuleChange>,
    /// Sums.
    pub totals: DiffTotals,
    /// Numbers of the file that differ.
    pub metrics: Vec<NumberChange>,
    /// Properties of the file that differ.
    pub properties: Vec<TextChange>,
    /// numpy arrays that came, went or changed, by name.
    pub numpy_arrays: Vec<String>,
    /// Findings that are new.
    pub new_findings: Vec<FindingFacts>,
    /// Findings that are gone.
    pub gone_findings: Vec<FindingFacts>,
    /// Tensors whose numbers could not be compared, where that was asked for.
    pub not_compared: Vec<NotCompared>,
    /// What differs between two runs; none where not both files have one.
    pub run: Option<RunDiff>,
    /// What could not be compared, in words.
    pub notes: Vec<String>,
}

/// Sums of what changed. Bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DiffTotals {
    /// The file.
    pub delta_file_bytes: i64,
    /// Logical bytes of the tensors.
    pub delta_tensor_bytes: i64,
    /// Every storage once.
    pub delta_storage_bytes: i64,
    /// Reached by no tensor.
    pub delta_slack_bytes: i64,
    /// Tensors without any change.
    pub unchanged: u64,
    /// Tensors by change; one with several counts in each.
    pub changes: BTreeMap<&'static str, u64>,
    /// Tensors whose numbers were compared and are equal.
    pub equal_values: Option<u64>,
}

impl Diff {
    /// Compares two files; `values` is what comparing their numbers gave, where that was done.
    #[must_use]
    pub fn new(old: &Facts, new: &Facts, matching: &Matching, values: Option<&Values>) -> Diff {
        let different = values.map(|values| &values.different);
        let tensors = changes(old, new, matching, different);
        let of_file = |facts: &Facts| -> Vec<metrics::Metric> {
            let all = metrics::of(facts, false);
            all.into_iter()
                .filter(|one| !run::of_run(&one.name))
                .collect()
        };
        let hashed = |facts: &Facts| facts.storages.iter().any(|one| one.hash.is_some());
        let contents = match values {
            Some(_) => Contents::Values,
            None if hashed(old) && hashed(new) => Contents::Hashes,
            None => Contents::No,
        };
        let run = run::run(old, new);
        let mut diff = Diff {
            old: old.file.clone(),
            new: new.file.clone(),
            identical: false,
            contents,
            modules: modules(old, new, matching),
            totals: totals(old, new, matching, &tensors, values),
            tensors,
            metrics: numbers(&of_file(old), &of_file(new)),
            properties: properties(old, new),
            numpy_arrays: numpy_arrays(old, new),
            new_findings: only_in(&new.findings, &old.findings),
            gone_findings: only_in(&old.findings, &new.findings),
            not_compared: values.map_or_else(Vec::new, |values| values.not_compared.clone()),
            notes: notes(old, new),
            run,
        };
        diff.identical = diff.is_empty();
        diff
    }

    fn is_empty(&self) -> bool {
        self.tensors.is_empty()
            && self.metrics.is_empty()
            && self.properties.is_empty()
            && self.numpy_arrays.is_empty()
            && self.new_findings.is_empty()
            && self.gone_findings.is_empty()
            && self.totals.delta_file_bytes == 0
            && self.run.as_ref().is_none_or(RunDiff::is_empty)
    }
}

fn totals(
    old: &Facts,
    new: &Facts,
    matching: &Matching,
    tensors: &[TensorChange],
    values: Option<&Values>,
) -> DiffTotals {
    let (before, after) = (&old.totals, &new.totals);
    let mut changes: BTreeMap<&'static str, u64> = BTreeMap::new();
    for change in tensors.iter().flat_map(|tensor| &tensor.changes) {
        *changes.entry(change.name()).or_default() += 1;
    }
    let in_both = tensors
        .iter()
        .filter(|one| one.matched_by.is_some())
        .count();
    DiffTotals {
        delta_file_bytes: delta(old.file.bytes, new.file.bytes),
        delta_tensor_bytes: delta(before.tensor_bytes, after.tensor_bytes),
        delta_storage_bytes: delta(before.storage_bytes, after.storage_bytes),
        delta_slack_bytes: delta(before.slack_bytes, after.slack_bytes),
        unchanged: matching.pairs.len().saturating_sub(in_both) as u64,
        changes,
        equal_values: values.map(|values| values.equal),
    }
}

fn properties(old: &Facts, new: &Facts) -> Vec<TextChange> {
    let (before, after) = (&old.file, &new.file);
    [
        run::text("format", Some(&before.format), Some(&after.format)),
        run::text("object", Some(&before.object), Some(&after.object)),
        run::text(
            "PyTorch",
            before.torch_version.as_deref(),
            after.torch_version.as_deref(),
        ),
        run::text(
            "producer",
            before.producer.as_deref(),
            after.producer.as_deref(),
        ),
        run::text(
            "byte order",
            before.byte_order.as_deref(),
            after.byte_order.as_deref(),
        ),
        run::text(
            "security",
            Some(&old.security.verdict),
            Some(&new.security.verdict),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn numpy_arrays(old: &Facts, new: &Facts) -> Vec<String> {
    let both = old.numpy_arrays.iter().chain(&new.numpy_arrays);
    let names: BTreeSet<&str> = both.map(|array| array.name.as_str()).collect();
    let all = |facts: &Facts, name: &str| -> Vec<_> {
        let arrays = facts.numpy_arrays.iter();
        arrays.filter(|array| array.name == name).cloned().collect()
    };
    let changed = names
        .into_iter()
        .filter(|name| all(old, name) != all(new, name));
    changed.map(str::to_owned).collect()
}

/// Findings of one side that the other has not.
fn only_in(one: &[FindingFacts], other: &[FindingFacts]) -> Vec<FindingFacts> {
    let known: BTreeSet<&FindingFacts> = other.iter().collect();
    let new = one.iter().filter(|finding| !known.contains(finding));
    new.cloned().collect()
}

fn notes(old: &Facts, new: &Facts) -> Vec<String> {
    let mut notes = Vec::new();
    let mut one_sided = |what: &str, old: bool, new: bool| {
        let which = match (old, new) {
            (true, false) => "old",
            (false, true) => "new",
            _ => return,
        };
        notes.push(format!(
            "only the {which} report has {what}: it was not compared"
        ));
    };
    one_sided("a run", old.run.is_some(), new.run.is_some());
    one_sided(
        "an estimate",
        old.estimate.is_some(),
        new.estimate.is_some(),
    );
    notes
}

#[cfg(test)]
mod tests;
