//! The CI gate: a file and its run against a baseline, absolute limits and findings that may not be.
//!
//! Pure: [`check`] gets the facts of a report and says what passed, what regressed, what improved, and why. Reading
//! files, running models and writing reports are elsewhere. Numbers are exact, so what has no limit of its own may not
//! grow at all.

mod baseline;
mod budget;
mod findings;
mod limit;
mod options;
mod why;

use std::collections::BTreeSet;

use serde::Serialize;

pub use baseline::{
    BASELINE_VERSION, Baseline, BaselineError, KnownFinding, KnownModule, KnownTensor,
};
pub use budget::{Budget, BudgetError, read as read_budgets};
pub use findings::{CODES, CheckedFinding, Deny, UnknownCode, all as all_findings, all_known};
pub use limit::{Bound, Limit, LimitError, Tolerance};
pub use options::{RunOptions, is_calibration};
pub use why::Why;

use crate::diff::metrics::{self, Metric, Needs, Unit};
use crate::diff::{Facts, FindingFacts, absent, delta};

/// What came of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within its limit.
    Pass,
    /// Beyond it.
    Fail,
    /// Better by more than the limit allows for growth: the baseline is out of date.
    Improved,
}

impl Verdict {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "fail",
            Verdict::Improved => "improved",
        }
    }
}

/// One number that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The file, as the user named it.
    pub file: String,
    /// Its name.
    pub metric: String,
    /// `bytes` or `count`.
    pub unit: &'static str,
    /// What it was; unknown, or not in the baseline.
    pub baseline: Option<u64>,
    /// What it is; unknown where it is not known.
    pub current: Option<u64>,
    /// The difference, where both are known.
    pub delta: Option<i64>,
    /// The most that it may be; none where nothing limits it.
    pub limit: Option<u64>,
    /// The limit as it was given.
    pub rule: String,
    /// What came of it.
    pub verdict: Verdict,
    /// What grew, or why it could not be compared.
    pub why: Vec<Why>,
    /// Whether somebody gave it a limit of its own.
    #[serde(skip)]
    pub own_limit: bool,
    /// Whether its limit is the same whatever the baseline says.
    #[serde(skip)]
    pub absolute: bool,
}

impl Check {
    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> Unit {
        match self.unit {
            "bytes" => Unit::Bytes,
            _ => Unit::Count,
        }
    }
}

/// What is allowed.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Limits of single numbers.
    pub limits: Vec<Limit>,
    /// Of exact numbers without one.
    pub tolerance: Tolerance,
    /// What may not be found.
    pub deny: Vec<Deny>,
    /// Whether an out-of-date baseline fails too.
    pub strict: bool,
}

/// Why a file fails although none of its numbers and findings does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// `--strict`: what the baseline says is not so any more, if only for the better.
    OutdatedBaseline,
    /// `--strict`: nothing limits it.
    NoBudget,
    /// Nobody should load it.
    Dangerous,
    /// Some of its files or tensors are not there.
    Incomplete,
}

impl Reason {
    /// The name in reports.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Reason::OutdatedBaseline => "outdated-baseline",
            Reason::NoBudget => "no-budget",
            Reason::Dangerous => "dangerous",
            Reason::Incomplete => "incomplete",
        }
    }

    /// Whether a finding of the file says the same.
    #[must_use]
    pub fn is_found(self) -> bool {
        matches!(self, Reason::Dangerous | Reason::Incomplete)
    }

    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Reason::OutdatedBaseline => "the baseline is out of date (`--strict`)",
            Reason::NoBudget => "it has no budget (`--strict`)",
            Reason::Dangerous => "it is dangerous to load",
            Reason::Incomplete => "it is not all there",
        }
    }
}

/// What came of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileCheck {
    /// The file, as the user named it.
    pub file: String,
    /// What it was compared with, as the user named it: a baseline, or a budget.
    pub against: Option<String>,
    /// `pass` or `fail`.
    pub verdict: Verdict,
    /// Why it fails besides what its numbers and findings say.
    pub reasons: Vec<Reason>,
    /// How many numbers were checked.
    pub checked: u64,
    /// How it was run, as arguments.
    pub options: Vec<String>,
    /// What should be known besides, in words.
    pub notes: Vec<String>,
    /// Why it could not be checked at all; none where it was.
    pub error: Option<String>,
    /// Why there is nothing to check it for; none where there is.
    pub skipped: Option<String>,
    /// Every number.
    #[serde(skip)]
    pub checks: Vec<Check>,
    /// Every finding.
    #[serde(skip)]
    pub findings: Vec<CheckedFinding>,
}

/// Why limits cannot be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A limit that is relative to nothing.
    #[error("`--max {metric}={text}` is relative to a baseline, and there is none")]
    NoBaseline {
        /// The number.
        metric: String,
        /// The limit.
        text: String,
    },
    /// A number that this file or run does not have.
    #[error("`{metric}` is limited, but not known of `{file}`: {why}")]
    NotKnown {
        /// The number.
        metric: String,
        /// The file.
        file: String,
        /// What it needs.
        why: &'static str,
    },
}

impl RuleError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            RuleError::NoBaseline { .. } => {
                "give `--baseline`, or an absolute limit such as `120MB`"
            }
            RuleError::NotKnown { .. } => "`inspect FILE --format json` shows what is known",
        }
    }
}

/// What is checked, and against what.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// What is known of the file and its run.
    pub facts: &'a Facts,
    /// How it was run.
    pub options: &'a RunOptions,
    /// The baseline, where there is one.
    pub baseline: Option<&'a Baseline>,
    /// What it is called: the baseline's or the budget's name.
    pub against: Option<&'a str>,
}

/// Checks one file.
pub fn check(
    subject: Subject<'_>,
    rules: &Rules,
    found: Vec<FindingFacts>,
) -> Result<FileCheck, RuleError> {
    let current = metrics::of(subject.facts, subject.options.measured);
    applicable(&subject, rules, &current)?;
    let reasons = why::Reasons::new(subject.facts, subject.baseline);
    let mut checks = Vec::new();
    for metric in all_metrics(&current, subject.baseline) {
        checks.extend(row(&subject, &metric, rules, &reasons));
    }
    let known = subject
        .baseline
        .map(|baseline| baseline.findings.as_slice());
    let findings = findings::check(found, known, &rules.deny);
    let outdated = checks
        .iter()
        .any(|check| check.verdict == Verdict::Improved)
        || (subject.baseline.is_some() && checks.iter().any(|check| check.rule == NOT_IN_BASELINE));
    let failed = checks.iter().any(|check| check.verdict == Verdict::Fail)
        || findings.iter().any(|finding| finding.denied);
    let strictly = outdated && rules.strict;
    let mut notes = Vec::new();
    if outdated {
        notes.push("the baseline is out of date: `--update-baseline` writes it anew".to_owned());
    }
    if checks.is_empty() && rules.deny.is_empty() {
        notes.push("nothing limits this file".to_owned());
    }
    Ok(FileCheck {
        file: subject.facts.file.path.clone(),
        against: subject.against.map(str::to_owned),
        verdict: if failed || strictly {
            Verdict::Fail
        } else {
            Verdict::Pass
        },
        reasons: strictly
            .then_some(Reason::OutdatedBaseline)
            .into_iter()
            .collect(),
        checked: checks.len() as u64,
        options: subject.options.arguments(),
        notes,
        error: None,
        skipped: None,
        checks,
        findings,
    })
}

impl FileCheck {
    /// A file that could not be read or run: it is none that passed.
    #[must_use]
    pub fn not_checked(file: String, against: Option<String>, error: String) -> FileCheck {
        FileCheck {
            verdict: Verdict::Fail,
            error: Some(error),
            ..FileCheck::nothing(file, against)
        }
    }

    /// A file that no budget is for: there is nothing to say against it, unless everything has to be said for.
    #[must_use]
    pub fn without_budget(file: String, budgets: &str, strict: bool) -> FileCheck {
        let mut checked = FileCheck {
            skipped: Some(format!("no budget in `{budgets}` is for it")),
            ..FileCheck::nothing(file, None)
        };
        if strict {
            checked.fail(Reason::NoBudget);
        }
        checked
    }

    fn nothing(file: String, against: Option<String>) -> FileCheck {
        FileCheck {
            file,
            against,
            verdict: Verdict::Pass,
            reasons: Vec::new(),
            checked: 0,
            options: Vec::new(),
            notes: Vec::new(),
            error: None,
            skipped: None,
            checks: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// It fails, whatever its numbers are.
    pub fn fail(&mut self, reason: Reason) {
        self.verdict = Verdict::Fail;
        self.reasons.push(reason);
    }
}

/// What a number that the baseline does not have is compared with.
const NOT_IN_BASELINE: &str = "new";

/// Whether every limit limits something: one that does not would pass whatever happens.
fn applicable(subject: &Subject<'_>, rules: &Rules, current: &[Metric]) -> Result<(), RuleError> {
    for limit in &rules.limits {
        if subject.baseline.is_none() && !matches!(limit.bound, Bound::Absolute(_)) {
            return Err(RuleError::NoBaseline {
                metric: limit.metric.clone(),
                text: limit.text.clone(),
            });
        }
        let in_baseline = |name: &str| {
            let baseline = subject.baseline;
            baseline.is_some_and(|baseline| baseline.metrics.contains_key(name))
        };
        let known = current.iter().any(|one| one.name == limit.metric)
            || in_baseline(&limit.metric)
            || absent(&limit.metric).is_some();
        if !known {
            let kind = metrics::find(&limit.metric).map(|(kind, _)| kind.needs);
            return Err(RuleError::NotKnown {
                metric: limit.metric.clone(),
                file: subject.facts.file.path.clone(),
                why: match kind {
                    Some(Needs::Run) => "it needs a run (`--input`)",
                    Some(Needs::Training) => "it needs a training run (`--train`)",
                    Some(Needs::Estimate) => {
                        "it needs a run (`--input`), with an estimate of GPU memory"
                    }
                    Some(Needs::Measured) => "it needs `--measured`, and a device that measures it",
                    _ => "there is no such part",
                },
            });
        }
    }
    Ok(())
}

/// Every number of this run and the baseline, in the order of reports.
fn all_metrics(current: &[Metric], baseline: Option<&Baseline>) -> Vec<Metric> {
    let mut all: Vec<Metric> = current.to_vec();
    let names: BTreeSet<&str> = current.iter().map(|one| one.name.as_str()).collect();
    let gone = baseline.iter().flat_map(|baseline| baseline.metrics.keys());
    for name in gone.filter(|name| !names.contains(name.as_str())) {
        if let Some((kind, _)) = metrics::find(name) {
            all.push(Metric {
                name: name.clone(),
                value: absent(name),
                unit: kind.unit,
            });
        }
    }
    all.sort_by_key(|one| metrics::order(&one.name));
    all
}

/// The limits of a number, with their texts: its own ones, else that of the whole, else the tolerance.
fn bounds(metric: &str, rules: &Rules, has_baseline: bool) -> Vec<(Bound, String)> {
    let text = |limit: &Limit| (limit.bound, limit.text.clone());
    let own: Vec<_> = rules
        .limits
        .iter()
        .filter(|limit| limit.metric == metric)
        .map(text)
        .collect();
    if !own.is_empty() {
        return own;
    }
    let whole: Vec<_> = rules
        .limits
        .iter()
        .filter(|limit| limit.applies(metric))
        .map(text)
        .collect();
    if !whole.is_empty() || !has_baseline {
        return whole;
    }
    let measured = metrics::find(metric).is_some_and(|(kind, _)| kind.needs == Needs::Measured);
    let tolerance = if measured {
        Tolerance::measured()
    } else {
        rules.tolerance.clone()
    };
    vec![(tolerance.bound, tolerance.text)]
}

/// What comes of a number between the least that is as before and the most that is allowed, and why.
fn judge(
    metric: &Metric,
    (lowest, highest): (Option<u64>, Option<u64>),
    lacking: bool,
    reasons: &why::Reasons<'_>,
) -> (Verdict, Vec<Why>) {
    let Some(current) = metric.value else {
        return match highest {
            Some(_) => (Verdict::Fail, vec![Why::words("it is not known any more")]),
            None if lacking => (Verdict::Pass, vec![Why::words("it is not in the baseline")]),
            None => (Verdict::Pass, Vec::new()),
        };
    };
    if highest.is_some_and(|highest| current > highest) {
        (Verdict::Fail, reasons.of(&metric.name))
    } else if lowest.is_some_and(|lowest| current < lowest) {
        (Verdict::Improved, reasons.of(&metric.name))
    } else if lacking {
        (Verdict::Pass, vec![Why::words("it is not in the baseline")])
    } else {
        (Verdict::Pass, Vec::new())
    }
}

fn row(
    subject: &Subject<'_>,
    metric: &Metric,
    rules: &Rules,
    reasons: &why::Reasons<'_>,
) -> Option<Check> {
    let known = subject
        .baseline
        .map(|baseline| match baseline.metrics.get(&metric.name) {
            Some(value) => Some(*value),
            None => absent(&metric.name).map(Some),
        });
    // Outer: whether there is a baseline; then whether it has the number; then whether that was known.
    let in_baseline = known.flatten();
    let baseline = in_baseline.flatten();
    let bounds = bounds(&metric.name, rules, subject.baseline.is_some());
    if bounds.is_empty() {
        return None;
    }
    let highest = bounds
        .iter()
        .filter_map(|(bound, text)| Some((bound.highest(baseline)?, (*bound, text))))
        .min_by_key(|(limit, _)| *limit);
    let lowest = bounds
        .iter()
        .filter_map(|(bound, _)| bound.lowest(baseline))
        .min();
    // Neither it nor, so, a limit that is relative to it.
    let lacking = subject.baseline.is_some() && in_baseline.is_none() && highest.is_none();
    let rule = match highest {
        _ if lacking => NOT_IN_BASELINE.to_owned(),
        Some((_, (_, text))) => text.clone(),
        None => bounds.first().map(|(_, text)| text.clone())?,
    };
    let limit = highest.map(|(limit, _)| limit);
    let (verdict, why) = judge(metric, (lowest, limit), lacking, reasons);
    let current = metric.value;
    Some(Check {
        absolute: highest.is_some_and(|(_, (bound, _))| matches!(bound, Bound::Absolute(_))),
        own_limit: rules.limits.iter().any(|limit| limit.metric == metric.name),
        file: subject.facts.file.path.clone(),
        metric: metric.name.clone(),
        unit: match metric.unit {
            Unit::Bytes => "bytes",
            Unit::Count => "count",
        },
        baseline,
        current,
        delta: baseline.zip(current).map(|(old, new)| delta(old, new)),
        limit,
        rule,
        verdict,
        why,
    })
}

#[cfg(test)]
mod tests;
