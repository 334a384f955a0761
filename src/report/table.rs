//! The table for a terminal.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::grid::{Fact, Grid};
use super::layout::{Row, RowKind, View};
use super::parts::more_facts;
use super::text_table::{self, Cell, Column, Fit, Look, Side, paint};
use super::{Document, ExactReport, Render, VerifiedReport, run};
use crate::text::{self, escape};
use crate::units::{Units, grouped};

/// The table for a terminal of this width.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether to use colour.
    pub color: bool,
}

impl Render for Table {
    fn document(
        &self,
        document: &Document<'_>,
        first: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if !first {
            writeln!(out)?;
        }
        self.header(document, out)?;
        if let Some(signature) = &document.signature {
            writeln!(out, "{}", escape(signature))?;
        }
        writeln!(out)?;
        match &document.run {
            Some(run) => self.run_grids(run, document, out)?,
            None => self.tensors(document, out)?,
        }
        if let Some(grid) = super::statistics::grid(document) {
            self.grid(&grid, out)?;
            writeln!(out)?;
        }
        self.totals(document, out)?;
        if let Some(run) = &document.report.run {
            self.all_facts(&run::facts(run, document.units), out)?;
        }
        self.all_facts(&super::program::facts(document.checkpoint.programs()), out)?;
        self.facts(document, out)?;
        if let Some(estimate) = document.report.estimate {
            self.estimate(estimate, document.units, out)?;
        }
        self.findings(&document.report, out)
    }
}

impl Table {
    fn paint(&self, text: &str, look: Look) -> String {
        paint(text, look, self.color)
    }

    fn header(&self, document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
        let file = &document.report.file;
        let about = about(document);
        let name = escape(&file.path);
        let room = self.width.saturating_sub(text::width(&about) + 2);
        if room >= LEAST_NAME.min(text::width(&name)) {
            return writeln!(
                out,
                "{}  {}",
                self.paint(&text::cut(&name, room), Look::Strong),
                self.paint(&about, Look::Dim)
            );
        }
        let name = text::cut(&name, self.width);
        writeln!(out, "{}", self.paint(&name, Look::Strong))?;
        for line in wrap(&about, self.width.saturating_sub(2)) {
            writeln!(out, "  {}", self.paint(&line, Look::Dim))?;
        }
        Ok(())
    }

    fn tensors(&self, document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
        let view = &document.view;
        if view.rows.is_empty() {
            return writeln!(out, "{}\n", no_rows(view));
        }
        let columns = columns(document);
        let rows: Vec<Vec<Cell>> = view
            .rows
            .iter()
            .map(|row| cells(row, view, document.units))
            .collect();
        text_table::write(&columns, &rows, self.width, self.color, out)?;
        for note in notes(view) {
            writeln!(out, "{}", self.paint(&note, Look::Dim))?;
        }
        writeln!(out)
    }

    fn totals(&self, document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
        let totals = &document.report.totals;
        let units = document.units;
        let column = |title, side| Column {
            title,
            side,
            fit: Fit::Keep,
        };
        let columns = [
            column("Totals", Side::Left),
            column("Tensors", Side::Right),
            column("Elements", Side::Right),
            column("Bytes", Side::Right),
        ];
        let row = |name: &str, sum: super::SumReport, look| {
            vec![
                Cell::new(name, look),
                Cell::new(grouped(sum.tensors), look),
                Cell::new(grouped(sum.numel), look),
                Cell::new(units.bytes(sum.bytes), look),
            ]
        };
        let mut rows = Vec::new();
        for (role, sum) in &totals.by_role {
            rows.push(row(role, *sum, Look::Plain));
        }
        let all = super::SumReport {
            tensors: totals.sums.tensors,
            numel: totals.sums.numel,
            bytes: totals.sums.tensor_bytes,
        };
        rows.push(row("all", all, Look::Strong));
        if totals.by_dtype.len() > 1 {
            rows.push(vec![Cell::default(); columns.len()]);
            for (dtype, sum) in &totals.by_dtype {
                rows.push(row(dtype, *sum, Look::Dim));
            }
        }
        text_table::write(&columns, &rows, self.width, self.color, out)?;
        writeln!(out)
    }

    fn facts(&self, document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
        let security = &document.report.security;
        self.fact("Memory", &memory_text(document), Look::Plain, out)?;
        self.fact("File", &file_text(document), Look::Plain, out)?;
        let report = &document.report;
        for (name, text) in more_facts(report, document.units) {
            self.fact(name, &text, Look::Plain, out)?;
        }
        if let Some(verified) = document.report.verified {
            let look = match verified.damaged {
                0 => Look::Good,
                _ => Look::Bad,
            };
            let text = verified_text(verified, document.units);
            self.fact("Verified", &text, look, out)?;
        }
        if let Some(cast) = document.cast {
            let text = format!("{} in memory", document.units.bytes(cast.storage_bytes));
            self.fact(
                &format!("As {}", cast.dtype.name()),
                &text,
                Look::Plain,
                out,
            )?;
        }
        let look = match security.verdict {
            "clean" => Look::Good,
            "suspicious" => Look::Warn,
            _ => Look::Bad,
        };
        self.fact("Security", &security_text(&document.report), look, out)
    }

    /// A table and the remarks below it.
    pub(super) fn grid(&self, grid: &Grid, out: &mut dyn Write) -> io::Result<()> {
        text_table::write(&grid.columns, &grid.rows, self.width, self.color, out)?;
        for note in &grid.notes {
            writeln!(out, "{}", self.paint(note, Look::Dim))?;
        }
        Ok(())
    }

    /// A remark, broken at blanks.
    pub(super) fn note(&self, note: &str, out: &mut dyn Write) -> io::Result<()> {
        wrap(note, self.width)
            .iter()
            .try_for_each(|line| writeln!(out, "{}", self.paint(line, Look::Dim)))
    }

    /// The tables of a run, each with an empty line behind it.
    fn run_grids(
        &self,
        view: &run::RunView<'_>,
        document: &Document<'_>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for grid in run::grids(view, document) {
            self.grid(&grid, out)?;
            writeln!(out)?;
        }
        Ok(())
    }

    /// Lines under headings.
    pub(super) fn all_facts(&self, facts: &[Fact], out: &mut dyn Write) -> io::Result<()> {
        facts
            .iter()
            .try_for_each(|fact| self.fact(fact.name, &fact.text, fact.look, out))
    }

    /// `name  text`, the text broken at blanks where it is too long.
    fn fact(&self, name: &str, text: &str, look: Look, out: &mut dyn Write) -> io::Result<()> {
        const INDENT: usize = 10;
        let indent = INDENT.max(text::width(name) + 2);
        let lines = wrap(text, self.width.saturating_sub(indent).max(20));
        for (index, line) in lines.iter().enumerate() {
            let head = if index == 0 { name } else { "" };
            let gap = indent.saturating_sub(text::width(head));
            let head = self.paint(head, Look::Strong);
            writeln!(out, "{head}{:gap$}{}", "", self.paint(line, look))?;
        }
        Ok(())
    }

    fn findings(&self, report: &ExactReport<'_>, out: &mut dyn Write) -> io::Result<()> {
        if !report.findings.is_empty() {
            writeln!(out)?;
        }
        let shown = report.findings.iter().take(MAX_FINDINGS);
        for finding in shown {
            let look = match finding.severity {
                "info" => Look::Dim,
                "warning" => Look::Warn,
                _ => Look::Bad,
            };
            let place = if finding.location.is_empty() {
                String::new()
            } else {
                format!("`{}`: ", text::cut(&escape(&finding.location), 60))
            };
            let text = format!(
                "{}: {place}{} [{}]",
                finding.severity,
                escape(&finding.message),
                finding.code
            );
            for (index, line) in wrap(&text, self.width.saturating_sub(2)).iter().enumerate() {
                let indent = if index == 0 { "" } else { "  " };
                writeln!(out, "{indent}{}", self.paint(line, look))?;
            }
        }
        let more = report.findings.len().saturating_sub(MAX_FINDINGS);
        if more > 0 {
            writeln!(
                out,
                "… and {} more findings: `--format json` has all",
                grouped_usize(more)
            )?;
        }
        Ok(())
    }
}

/// Findings that a table shows.
const MAX_FINDINGS: usize = 20;

/// Columns of a file's name that are left of it beside what it is.
const LEAST_NAME: usize = 20;

/// Columns of a note on shared memory.
const SHARED_WIDTH: usize = 28;

/// Globals that a table names.
const MAX_GLOBALS: usize = 8;

pub(super) fn grouped_usize(value: usize) -> String {
    grouped(u64::try_from(value).unwrap_or(u64::MAX))
}

/// `torchscript module ResNet, 44.7 MiB`.
fn about(document: &Document<'_>) -> String {
    let file = &document.report.file;
    let root = document
        .checkpoint
        .modules()
        .iter()
        .find(|module| module.path.is_empty())
        .map(|module| format!(" {}", text::cut(&escape(module.class_name()), 30)))
        .unwrap_or_default();
    let version = file
        .torch_version
        .map(|version| format!(", PyTorch {}", text::cut(&escape(version), 20)))
        .unwrap_or_default();
    let order = match file.byte_order {
        Some("big") => ", big-endian",
        _ => "",
    };
    let object = if file.object == "other" {
        String::new()
    } else {
        format!(" {}", file.object)
    };
    format!(
        "{}{object}{root}, {}{version}{order}",
        file.format,
        document.units.bytes(file.bytes)
    )
}

fn columns(document: &Document<'_>) -> Vec<Column> {
    let column = |title, side, fit| Column { title, side, fit };
    let mut columns = vec![
        column(
            "Name",
            Side::Left,
            Fit::Cut(if document.view.tree { 26 } else { 36 }),
        ),
        column("Class", Side::Left, Fit::Drop(1)),
        column("Role", Side::Left, Fit::Drop(2)),
        column("Shape", Side::Left, Fit::Drop(0)),
        column("Dtype", Side::Left, Fit::Keep),
        column("Elements", Side::Right, Fit::Keep),
        column("Bytes", Side::Right, Fit::Keep),
    ];
    if let Some(cast) = document.cast {
        columns.push(column(cast.dtype.name(), Side::Right, Fit::Keep));
    }
    columns
}

fn cells(row: &Row, view: &View, units: Units) -> Vec<Cell> {
    let look = match row.kind {
        RowKind::Module => Look::Strong,
        RowKind::Tensor => Look::Plain,
    };
    let unknown = || "unknown".to_owned();
    let mut cells = vec![
        name_cell(row, view, look),
        Cell::new(
            row.class.as_deref().map(escape).unwrap_or_default(),
            Look::Dim,
        ),
        Cell::new(row.role.unwrap_or_default(), Look::Dim),
        Cell::new(shape_cell(row), look),
        Cell::new(row.dtype.unwrap_or_default(), look),
        Cell::new(row.numel.map_or_else(unknown, grouped), look),
        Cell::new(
            row.bytes.map_or_else(unknown, |bytes| units.bytes(bytes)),
            look,
        ),
    ];
    if let Some(bytes) = row.cast_bytes {
        cells.push(Cell::new(units.bytes(bytes), look));
    }
    cells
}

fn name_cell(row: &Row, view: &View, look: Look) -> Cell {
    let (lead, name) = if view.tree {
        (guides(&row.guides), &row.label)
    } else {
        (String::new(), &row.path)
    };
    let mut text = if name.is_empty() {
        "\"\"".to_owned()
    } else {
        escape(name)
    };
    // In a tree the row that was collapsed says it for the rows below.
    if row.repeats > 1 && (!view.tree || row.collapsed) {
        text = format!("{text} x{}", row.repeats);
    }
    Cell { lead, text, look }
}

/// The shape, and what is unusual about the memory behind it; escaped.
pub(super) fn shape_cell(row: &Row) -> String {
    let mut text = row.shape.clone().unwrap_or_default();
    let shared = row
        .shared
        .as_deref()
        .map(|shared| text::cut(&escape(shared), SHARED_WIDTH));
    for note in row.layout.map(str::to_owned).into_iter().chain(shared) {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&note);
    }
    text
}

/// `│  ├─ `; nothing at the top level.
pub(super) fn guides(more: &[bool]) -> String {
    let mut text = String::new();
    let last = more.len().saturating_sub(1);
    for (index, more) in more.iter().enumerate().skip(1) {
        text.push_str(match (index == last, more) {
            (true, true) => "├─ ",
            (true, false) => "└─ ",
            (false, true) => "│  ",
            (false, false) => "   ",
        });
    }
    text
}

/// Why there are no rows.
pub(super) fn no_rows(view: &View) -> String {
    match view.filtered {
        Some((_, all)) if all > 0 => format!("none of {} tensors matches", grouped_usize(all)),
        _ => "no tensors".to_owned(),
    }
}

/// What is not shown, and how to see it.
pub(super) fn notes(view: &View) -> Vec<String> {
    let mut notes = Vec::new();
    if view.hidden_rows > 0 {
        let how = if view.top {
            ""
        } else {
            ": `--all` shows every one"
        };
        notes.push(format!(
            "… and {} more rows{how}",
            grouped_usize(view.hidden_rows)
        ));
    }
    if let Some((shown, all)) = view.filtered {
        notes.push(format!(
            "{} of {} tensors match",
            grouped_usize(shown),
            grouped_usize(all)
        ));
    }
    let (shown, levels) = view.depth;
    if view.tree && shown < levels {
        notes.push(format!(
            "{shown} of {levels} levels: `--depth {levels}` shows all"
        ));
    }
    notes
}

fn memory_text(document: &Document<'_>) -> String {
    let totals = &document.report.totals;
    let units = document.units;
    let storages = document.report.storages.len();
    let plural = if storages == 1 { "" } else { "s" };
    let mut text = format!(
        "{} in {} storage{plural}",
        units.bytes(totals.sums.storage_bytes),
        grouped_usize(storages)
    );
    let in_file = document.report.storages.file_bytes();
    if in_file < totals.sums.storage_bytes {
        let _ = write!(text, ", {} in the file", units.bytes(in_file));
    }
    if totals.sums.shared_bytes > 0 {
        let _ = write!(
            text,
            "; {} are shared, counted more than once above",
            units.bytes(totals.sums.shared_bytes)
        );
    }
    if totals.sums.slack_bytes > 0 {
        let _ = write!(
            text,
            "; {} are slack, reached by no tensor",
            units.bytes(totals.sums.slack_bytes)
        );
    }
    text
}

fn file_text(document: &Document<'_>) -> String {
    let totals = &document.report.totals;
    let parts: Vec<String> = totals
        .by_class
        .parts()
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| {
            let kinds = match *name {
                "optimizer" => kinds_text(&totals.optimizer_by_kind, document.units),
                _ => String::new(),
            };
            format!("{name} {}{kinds}", document.units.bytes(*bytes))
        })
        .collect();
    format!(
        "{} B = {}",
        grouped(document.report.file.bytes),
        parts.join(" + ")
    )
}

/// Kinds of optimizer state that are named.
const MAX_KINDS: usize = 4;

/// ` (exp_avg 1.20 GiB, exp_avg_sq 1.20 GiB)`; nothing where there are none.
pub(super) fn kinds_text(kinds: &[(&str, u64)], units: Units) -> String {
    let mut largest: Vec<&(&str, u64)> = kinds.iter().filter(|(_, bytes)| *bytes > 0).collect();
    largest.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut shown: Vec<String> = largest
        .iter()
        .take(MAX_KINDS)
        .map(|(kind, bytes)| {
            let kind = text::cut(&escape(kind), SHARED_WIDTH);
            format!("{kind} {}", units.bytes(*bytes))
        })
        .collect();
    match largest.len() {
        0 => return String::new(),
        more if more > MAX_KINDS => shown.push("…".to_owned()),
        _ => {}
    }
    format!(" ({})", shown.join(", "))
}

/// What the checksums say.
pub(super) fn verified_text(verified: VerifiedReport, units: Units) -> String {
    let VerifiedReport {
        records,
        bytes,
        unchecked,
        damaged,
    } = verified;
    if records == 0 {
        return "this format has no checksums; every tensor lies inside its storage".to_owned();
    }
    let mut text = match damaged {
        0 => format!(
            "{} records, {}: every checksum is right",
            grouped(records),
            units.bytes(bytes)
        ),
        _ => format!(
            "{} of {} records are damaged",
            grouped(damaged),
            grouped(records)
        ),
    };
    if unchecked > 0 {
        let _ = write!(text, "; {} have no data", grouped(unchecked));
    }
    text
}

fn security_text(report: &ExactReport<'_>) -> String {
    let security = &report.security;
    let unexpected = security.unexpected_globals;
    let mut text = security.verdict.to_owned();
    if !unexpected.is_empty() {
        let shown: Vec<String> = unexpected
            .iter()
            .take(MAX_GLOBALS)
            .map(|global| format!("`{}`", text::cut(&escape(global), 60)))
            .collect();
        text.push_str(": names ");
        text.push_str(&shown.join(", "));
        let more = unexpected.len().saturating_sub(MAX_GLOBALS);
        if more > 0 {
            let _ = write!(text, " and {} more", grouped_usize(more));
        }
    }
    text
}

/// `Name      text`, with the text in a column of its own that begins at `indent`, wrapped to `width`.
pub(super) fn fact(
    name: &str,
    indent: usize,
    text: &str,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let lines = wrap(text, width.saturating_sub(indent));
    for (index, line) in lines.iter().enumerate() {
        let name = if index == 0 { name } else { "" };
        writeln!(out, "{name:<indent$}{line}")?;
    }
    Ok(())
}

/// Lines of at most `room` columns, broken at blanks; a longer word stands alone.
pub(super) fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && text::width(&line) + 1 + text::width(word) > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}
