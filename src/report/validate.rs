//! What `inspect validate` prints: text for people, the report itself as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::grid::{Grid, numbers, phase_text, words};
use super::table::{Table, fact};
use super::text_table::{self, Cell, Fit, Look};
use super::{SCHEMA_VERSION, Tool, an_item_a_line};
use crate::text::escape;
use crate::units::Units;
use crate::validate::{Compared, Difference, Validation, Verdict};

/// Who measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeasuredBy {
    /// The device: `cpu`, `cuda:0`, `cuda`, `cuda-sim`.
    pub device: String,
    /// Whose figures they are, or the format of the recording.
    pub source: &'static str,
    /// The recording, as the user named it.
    pub path: Option<String>,
}

/// The JSON of `inspect validate`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValidationReport {
    schema_version: u32,
    tool: Tool,
    file: String,
    basis: &'static str,
    measured_by: MeasuredBy,
    tolerance: String,
    #[serde(flatten)]
    found: Validation,
}

/// Differences that the text shows.
const DIFFERENCES: usize = 8;

/// Where the text of a line below the tables begins.
const INDENT: usize = 10;

impl ValidationReport {
    /// A report on `file`, as the user named it.
    #[must_use]
    pub fn new(
        file: String,
        basis: &'static str,
        measured_by: MeasuredBy,
        tolerance: String,
        found: Validation,
    ) -> Self {
        ValidationReport {
            schema_version: SCHEMA_VERSION,
            tool: Tool::THIS,
            file,
            basis,
            measured_by,
            tolerance,
            found,
        }
    }

    /// Writes it for programs.
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        an_item_a_line(self, out)
    }

    /// Writes it for people.
    pub fn table(&self, table: &Table, units: Units, out: &mut dyn Write) -> io::Result<()> {
        let by = &self.measured_by;
        let file = escape(&self.file);
        writeln!(out, "{file}  the estimate beside {}", measured_text(by))?;
        writeln!(out)?;
        let found = &self.found;
        let width = table.width;
        show(&comparison(&found.comparison, units), width, out)?;
        let explained = terms(found, units);
        if !explained.rows.is_empty() {
            writeln!(out)?;
            show(&explained, width, out)?;
        }
        if !found.differences.is_empty() {
            writeln!(out)?;
            show(&differences(&found.differences, units), width, out)?;
        }
        writeln!(out)?;
        self.foot(width, out)
    }

    /// What the tables do not say, and the verdict.
    fn foot(&self, width: usize, out: &mut dyn Write) -> io::Result<()> {
        let found = &self.found;
        if let Some(parted) = &found.first_op_difference {
            let name = |op: &Option<String>| op.as_deref().map_or("the end".to_owned(), escape);
            let text = format!(
                "after {} operators: {} in the estimate, {} in the measurement",
                parted.index,
                name(&parted.estimated),
                name(&parted.measured)
            );
            fact("Parts", INDENT, &text, width, out)?;
        }
        let basis = match self.basis {
            "cuda-sim" => "libtorch's CUDA code on the simulated device",
            "cpu-trace" => "the CPU's run through the memory model",
            _ => "the run's tensors by their shapes alone",
        };
        fact("Estimate", INDENT, basis, width, out)?;
        if found.explained.iter().any(|term| term.bytes.is_none()) {
            let text = "the CUDA context and other memory outside the allocator";
            fact("Unknown", INDENT, text, width, out)?;
        }
        let (verdict, tolerance) = (found.verdict, self.tolerance.trim_start_matches('+'));
        let text = match verdict {
            Verdict::Pass => format!("pass: every number is within {tolerance}"),
            Verdict::Fail if found.comparison.is_empty() => {
                "fail: there is nothing to compare".to_owned()
            }
            Verdict::Fail => {
                let off = |one: &&Compared| one.within_tolerance == Some(false);
                let off = found.comparison.iter().filter(off).count();
                format!(
                    "fail: {off} of {} numbers are more than {tolerance} off",
                    found.comparison.len()
                )
            }
        };
        fact("Verdict", INDENT, &text, width, out)
    }
}

fn measured_text(by: &MeasuredBy) -> String {
    match &by.path {
        Some(path) => format!("the recording {}", escape(path)),
        None => format!("a run on {} ({})", by.device, by.source),
    }
}

fn show(grid: &Grid, width: usize, out: &mut dyn Write) -> io::Result<()> {
    text_table::write(&grid.columns, &grid.rows, width, false, out)?;
    for note in &grid.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn plain(text: impl Into<String>) -> Cell {
    Cell::new(text, Look::Plain)
}

/// `peak allocated`.
fn metric_text(metric: &str) -> String {
    metric.trim_end_matches("_bytes").replace('_', " ")
}

fn bytes_text(bytes: Option<u64>, units: Units) -> Cell {
    plain(bytes.map_or("unknown".to_owned(), |bytes| units.bytes(bytes)))
}

fn comparison(all: &[Compared], units: Units) -> Grid {
    let rows = all.iter().map(|one| {
        let difference = one
            .estimated
            .zip(one.measured)
            .map(|(estimated, measured)| i128::from(estimated) - i128::from(measured));
        let phase = one
            .phase
            .map_or("whole run".to_owned(), |name| phase_text(name, one.step));
        let ratio = one
            .error_ratio
            .map(|ratio| format!("{:+.2} %", ratio * 100.0));
        let within = match one.within_tolerance {
            Some(true) => "yes",
            Some(false) => "no",
            None if difference.is_some() => "not judged",
            None => "unknown",
        };
        vec![
            plain(phase),
            plain(metric_text(one.metric)),
            bytes_text(one.estimated, units),
            bytes_text(one.measured, units),
            plain(difference.map_or(String::new(), |bytes| units.bytes_delta(bytes))),
            plain(ratio.unwrap_or_default()),
            plain(within),
        ]
    });
    Grid {
        rows: rows.collect(),
        columns: vec![
            words("Phase", Fit::Keep),
            words("Number", Fit::Keep),
            numbers("Estimated", Fit::Keep),
            numbers("Measured", Fit::Keep),
            numbers("Difference", Fit::Drop(0)),
            numbers("Ratio", Fit::Keep),
            words("Within", Fit::Keep),
        ],
        notes: Vec::new(),
    }
}

/// The terms that are not nothing: how much higher the measurement is because of each.
fn terms(found: &Validation, units: Units) -> Grid {
    let known = found
        .explained
        .iter()
        .filter_map(|term| Some((term, term.bytes.filter(|bytes| *bytes != 0)?)));
    let rows = known.map(|(term, bytes)| {
        vec![
            plain(metric_text(term.metric)),
            plain(term.term),
            plain(units.bytes_delta(i128::from(bytes))),
        ]
    });
    Grid {
        rows: rows.collect(),
        columns: vec![
            words("Measured more of", Fit::Keep),
            words("because of", Fit::Keep),
            numbers("by", Fit::Keep),
        ],
        notes: Vec::new(),
    }
}

/// Where the sides differ, the first first.
fn differences(all: &[Difference], units: Units) -> Grid {
    let rows = all.iter().take(DIFFERENCES).map(|one| {
        let bytes = |bytes: Option<u64>| plain(bytes.map_or("none".to_owned(), |n| units.bytes(n)));
        let text = |text: &Option<String>| plain(escape(text.as_deref().unwrap_or_default()));
        vec![
            plain(one.term),
            plain(one.phase.unwrap_or_default()),
            text(&one.op),
            text(&one.module),
            plain(one.count.to_string()),
            bytes(one.estimated_bytes),
            bytes(one.measured_bytes),
        ]
    });
    let more = all.len().saturating_sub(DIFFERENCES);
    Grid {
        rows: rows.collect(),
        columns: vec![
            words("Differs in", Fit::Keep),
            words("Phase", Fit::Drop(1)),
            words("Operator", Fit::Cut(12)),
            words("Module", Fit::Drop(2)),
            numbers("Times", Fit::Keep),
            numbers("Estimated", Fit::Keep),
            numbers("Measured", Fit::Keep),
        ],
        notes: (more > 0)
            .then(|| format!("… and {more} more; `--format json` has all"))
            .into_iter()
            .collect(),
    }
}
