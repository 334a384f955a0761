//! What `inspect check` prints: tables for people, Markdown for a pull request, JSON, JUnit and SARIF for programs, and
//! annotations for GitHub.

mod github;
mod junit;
mod sarif;

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

pub use self::github::annotations;
pub use self::junit::junit;
pub use self::sarif::sarif;

use super::grid::{Fact, Grid, numbers, words};
use super::page::{Page, Part, delta_look, difference, share, value};
use super::text_table::{Cell, Fit, Look};
use super::{Markdown, SCHEMA_VERSION, Table, Tool, an_item_a_line};
use crate::check::{Check, CheckedFinding, FileCheck, Reason, Verdict, Why};
use crate::diff::metrics::Unit;
use crate::text::escape;
use crate::units::Units;

/// Everything that was checked.
#[derive(Debug)]
pub struct CheckReport {
    /// File by file, in the order in which they were named.
    pub files: Vec<FileCheck>,
}

/// The JSON of `inspect check`.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    tool: Tool,
    verdict: Verdict,
    files: &'a [FileCheck],
    checks: Vec<&'a Check>,
    findings: Vec<FileFinding<'a>>,
}

#[derive(Serialize)]
struct FileFinding<'a> {
    file: &'a str,
    #[serde(flatten)]
    finding: &'a CheckedFinding,
}

impl CheckReport {
    /// Whether all files passed.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let failed = self.files.iter().any(|file| file.verdict == Verdict::Fail);
        if failed { Verdict::Fail } else { Verdict::Pass }
    }

    /// Writes the report as JSON, a check a line.
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let findings = self.files.iter().flat_map(|file| {
            file.findings.iter().map(|finding| FileFinding {
                file: &file.file,
                finding,
            })
        });
        let document = Document {
            schema_version: SCHEMA_VERSION,
            tool: Tool::THIS,
            verdict: self.verdict(),
            files: &self.files,
            checks: self.files.iter().flat_map(|file| &file.checks).collect(),
            findings: findings.collect(),
        };
        an_item_a_line(&document, out)
    }

    /// Writes the report for a terminal; `all` shows what is as it was, too.
    pub fn table(
        &self,
        table: &Table,
        units: Units,
        all: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for (index, file) in self.files.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            table.page(&page(file, units, all), out)?;
        }
        if let Some(summary) = self.summary() {
            writeln!(out, "\n{summary}")?;
        }
        Ok(())
    }

    /// Writes the report as Markdown.
    pub fn markdown(&self, units: Units, all: bool, out: &mut dyn Write) -> io::Result<()> {
        for file in &self.files {
            Markdown::page(&page(file, units, all), out)?;
        }
        if let Some(summary) = self.summary() {
            writeln!(out, "{summary}")?;
        }
        Ok(())
    }

    /// Of several files, how many passed.
    fn summary(&self) -> Option<String> {
        let count =
            |which: fn(&FileCheck) -> bool| self.files.iter().filter(|file| which(file)).count();
        let failed = count(|file| file.verdict == Verdict::Fail);
        let skipped = count(|file| file.verdict == Verdict::Pass && file.skipped.is_some());
        let all = self.files.len();
        let passed = all.saturating_sub(failed).saturating_sub(skipped);
        let mut text = format!("{all} files: {passed} pass, {failed} fail");
        if skipped > 0 {
            let _ = write!(text, ", {skipped} without a budget");
        }
        (all > 1).then_some(text)
    }
}

/// What came of a file, in one line.
fn answer(file: &FileCheck) -> String {
    let verdict = file.verdict.name();
    if let Some(why) = file.error.as_ref().or(file.skipped.as_ref()) {
        let strict = if file.reasons.contains(&Reason::NoBudget) {
            " (`--strict`)"
        } else {
            ""
        };
        return format!("{verdict}: not checked: {}{strict}", escape(why));
    }
    let count =
        |which: &dyn Fn(&Check) -> bool| file.checks.iter().filter(|one| which(one)).count();
    let failed = |absolute| count(&|one| one.verdict == Verdict::Fail && one.absolute == absolute);
    let above = if failed(true) == 1 {
        "above its limit"
    } else {
        "above their limits"
    };
    let reasons = file.reasons.iter().map(|reason| reason.words().to_owned());
    let mut parts: Vec<String> = reasons.collect();
    for (number, what) in [
        (failed(false), "regressed"),
        (failed(true), above),
        (count(&|one| one.verdict == Verdict::Improved), "improved"),
        (
            file.findings.iter().filter(|one| one.denied).count(),
            "denied",
        ),
    ] {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    let against = file
        .against
        .as_deref()
        .map(|name| format!(" against {}", escape(name)));
    let checked = match file.checked {
        0 => "findings".to_owned(),
        1 => "1 number".to_owned(),
        number => format!("{number} numbers"),
    };
    parts.push(format!("{checked} checked{}", against.unwrap_or_default()));
    format!("{verdict}: {}", parts.join(", "))
}

fn page(file: &FileCheck, units: Units, all: bool) -> Page {
    let mut page = Page {
        title: file.file.clone(),
        answer: answer(file),
        look: match file.verdict {
            Verdict::Fail => Look::Bad,
            Verdict::Pass if file.skipped.is_some() => Look::Warn,
            Verdict::Pass | Verdict::Improved => Look::Good,
        },
        parts: Vec::new(),
    };
    if file.error.is_some() || file.skipped.is_some() {
        return page;
    }
    page.grid(grid(file, units, all));
    let mut facts = why_facts(file, units);
    facts.extend(
        file.findings
            .iter()
            .filter(|one| all || one.new)
            .map(finding_fact),
    );
    page.facts(facts);
    let known = file.findings.iter().filter(|finding| !finding.new).count();
    if known > 0 && !all {
        let (findings, them) = if known == 1 {
            ("finding", "it")
        } else {
            ("findings", "them")
        };
        let note = format!("{known} {findings} that the baseline knows: `--all` shows {them}");
        page.parts.push(Part::Note(note));
    }
    page.parts
        .extend(file.notes.iter().cloned().map(Part::Note));
    page
}

fn grid(file: &FileCheck, units: Units, all: bool) -> Grid {
    let shown = |check: &&Check| {
        let differs =
            check.delta != Some(0) && !(check.baseline.is_none() && check.current.is_none());
        all || check.own_limit || check.verdict != Verdict::Pass || differs
    };
    let rows: Vec<Vec<Cell>> = file
        .checks
        .iter()
        .filter(shown)
        .map(|check| row(check, units))
        .collect();
    let left_out = file.checks.len().saturating_sub(rows.len());
    let note = if rows.is_empty() {
        format!("all {left_out} numbers are as in the baseline: `--all` shows them")
    } else {
        format!("{left_out} more are as in the baseline: `--all` shows them")
    };
    Grid {
        columns: vec![
            words("Metric", Fit::Cut(20)),
            numbers("Before", Fit::Keep),
            numbers("After", Fit::Keep),
            numbers("Difference", Fit::Keep),
            numbers("", Fit::Drop(1)),
            numbers("Limit", Fit::Drop(0)),
            words("Verdict", Fit::Keep),
        ],
        rows,
        notes: (left_out > 0).then_some(note).into_iter().collect(),
    }
}

fn row(check: &Check, units: Units) -> Vec<Cell> {
    let bytes = check.counts() == Unit::Bytes;
    let (text, look) = match check.verdict {
        Verdict::Pass => ("pass", Look::Plain),
        Verdict::Fail => ("fail", Look::Bad),
        Verdict::Improved => ("improved", Look::Good),
    };
    let before = match check.baseline {
        None => String::new(),
        known => value(known, bytes, units),
    };
    vec![
        Cell::new(escape(&check.metric), Look::Plain),
        Cell::new(before, Look::Dim),
        Cell::new(value(check.current, bytes, units), Look::Plain),
        Cell::new(
            difference(check.delta, bytes, units),
            delta_look(check.delta),
        ),
        Cell::new(share(check.delta, check.baseline), Look::Dim),
        Cell::new(escape(&check.rule), Look::Dim),
        Cell::new(text, look),
    ]
}

/// Why numbers are others; those with the same reasons together.
fn why_facts(file: &FileCheck, units: Units) -> Vec<Fact> {
    let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
    for check in file.checks.iter().filter(|check| !check.why.is_empty()) {
        let text = reasons_in(check, units);
        match groups.iter_mut().find(|(_, known)| *known == text) {
            Some((names, _)) => names.push(&check.metric),
            None => groups.push((vec![&check.metric], text)),
        }
    }
    let fact = |(names, text): (Vec<&str>, String)| {
        let text = format!("`{}`: {text}", names.join("`, `"));
        Fact::new("Why", text, Look::Plain)
    };
    groups.into_iter().map(fact).collect()
}

/// All reasons of a check in one line.
fn reasons_in(check: &Check, units: Units) -> String {
    let bytes = check.counts() == Unit::Bytes;
    let texts = check.why.iter().map(|why| why_text(why, bytes, units));
    let text = texts.collect::<Vec<_>>().join("; ");
    if check.why.iter().any(|why| why.size.is_some()) {
        format!("largest are {text}")
    } else {
        text
    }
}

fn why_text(why: &Why, bytes: bool, units: Units) -> String {
    let name = escape(&why.what).replace('`', "'");
    let name = if name.is_empty() {
        name
    } else {
        format!("`{name}`")
    };
    let parts = [
        name,
        why.size
            .map_or_else(String::new, |size| value(Some(size), bytes, units)),
        difference(why.delta, bytes, units),
        escape(&why.detail),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

/// All reasons of a check, for programs.
fn reasons(check: &Check) -> String {
    reasons_in(check, Units::Iec)
}

/// What became of a number, in one sentence; exact, for programs that show nothing else.
fn sentence(check: &Check) -> String {
    let bytes = check.counts() == Unit::Bytes;
    let exact = |number: Option<u64>| value(number, bytes, Units::Bytes);
    let limit = match check.limit {
        Some(limit) => format!(", limit {} ({})", exact(Some(limit)), check.rule),
        None => String::new(),
    };
    match check.baseline {
        None => format!("{} is {}{limit}", check.metric, exact(check.current)),
        Some(_) => format!(
            "{} was {}, is {} ({}){limit}",
            check.metric,
            exact(check.baseline),
            exact(check.current),
            difference(check.delta, bytes, Units::Bytes),
        ),
    }
}

fn finding_fact(checked: &CheckedFinding) -> Fact {
    let finding = &checked.finding;
    let (name, look) = match (checked.denied, checked.new) {
        (true, _) => ("Denied", Look::Bad),
        (false, true) => ("New", Look::Plain),
        (false, false) => ("Known", Look::Dim),
    };
    let place = match finding.location.as_str() {
        "" => String::new(),
        location => format!("`{}`: ", escape(location).replace('`', "'")),
    };
    let text = format!(
        "{}: {place}{} [{}]",
        finding.severity,
        escape(&finding.message),
        finding.code
    );
    Fact::new(name, text, look)
}
