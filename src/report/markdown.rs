//! Markdown for an issue, a pull request or a wiki.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::grid::{Fact, Grid, level, spans};
use super::layout::Row;
use super::parts::more_facts;
use super::table::{kinds_text, no_rows, notes, shape_cell, verified_text};
use super::text_table::Side;
use super::{Document, ExactReport, Render, SumReport, run};
use crate::text::escape;
use crate::units::{Units, grouped};

/// A section a file, with tables.
#[derive(Debug, Clone, Copy)]
pub struct Markdown;

impl Render for Markdown {
    fn document(
        &self,
        document: &Document<'_>,
        first: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if !first {
            writeln!(out)?;
        }
        let report = &document.report;
        let units = document.units;
        writeln!(out, "## {}\n", code(&report.file.path))?;
        writeln!(
            out,
            "{} {}, {} ({} bytes)\n",
            report.file.format,
            report.file.object,
            units.bytes(report.file.bytes),
            grouped(report.file.bytes)
        )?;
        if let Some(signature) = &document.signature {
            writeln!(out, "{}\n", code(signature))?;
        }
        match (&report.run, &document.run) {
            (Some(run), Some(view)) => {
                writeln!(out, "### Run\n")?;
                for table in run::grids(view, document) {
                    grid(&table, out)?;
                }
                facts(&run::facts(run, units), out)?;
            }
            _ => rows(document, out)?,
        }
        if let Some(table) = super::statistics::grid(document) {
            grid(&table, out)?;
        }
        let programs = super::program::facts(document.checkpoint.programs());
        if !programs.is_empty() {
            facts(&programs, out)?;
        }
        totals(document, out)?;
        contents(report, units, out)?;
        if let Some(estimate) = report.estimate {
            writeln!(out, "\n### GPU memory\n")?;
            facts(&super::estimate::facts(estimate, units), out)?;
            for table in super::estimate::grids(estimate, units) {
                grid(&table, out)?;
            }
        }
        security_and_findings(report, out)
    }
}

/// What the file consists of, and what its checksums say.
fn contents(report: &ExactReport<'_>, units: Units, out: &mut dyn Write) -> io::Result<()> {
    for (name, bytes) in report.totals.by_class.parts() {
        if bytes > 0 {
            let kinds = match name {
                "optimizer" => cell(&kinds_text(&report.totals.optimizer_by_kind, units)),
                _ => String::new(),
            };
            writeln!(out, "- {name}: {} of the file{kinds}", units.bytes(bytes))?;
        }
    }
    for (name, text) in more_facts(report, units) {
        writeln!(out, "\n{name}: {}", cell(&text))?;
    }
    if let Some(verified) = report.verified {
        writeln!(out, "\nVerified: {}", verified_text(verified, units))?;
    }
    Ok(())
}

fn security_and_findings(report: &ExactReport<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nSecurity: **{}**", report.security.verdict)?;
    for global in report.security.unexpected_globals {
        writeln!(out, "- {}", code(global))?;
    }
    if !report.findings.is_empty() {
        writeln!(out, "\n### Findings\n")?;
    }
    for finding in &report.findings {
        let place = match finding.location.as_str() {
            "" => String::new(),
            location => format!("{}: ", code(location)),
        };
        writeln!(
            out,
            "- {} `{}` {place}{}",
            finding.severity,
            finding.code,
            cell(&finding.message)
        )?;
    }
    Ok(())
}

/// A table, its remarks and an empty line.
pub(super) fn grid(grid: &Grid, out: &mut dyn Write) -> io::Result<()> {
    let columns = grid.filled();
    let (mut titles, mut sides) = (String::new(), String::new());
    for (_, column) in &columns {
        let _ = write!(titles, " {} |", column.title);
        sides.push_str(match column.side {
            Side::Left => "---|",
            Side::Right => "---:|",
        });
    }
    writeln!(out, "|{titles}\n|{sides}")?;
    for row in &grid.rows {
        write!(out, "|")?;
        for found in columns.iter().filter_map(|(index, _)| row.get(*index)) {
            let indent = "&emsp;".repeat(level(found));
            write!(out, " {indent}{} |", cell(&found.text))?;
        }
        writeln!(out)?;
    }
    for note in &grid.notes {
        writeln!(out, "\n{}", prose(note))?;
    }
    writeln!(out)
}

/// Lines under headings, and an empty line.
pub(super) fn facts(facts: &[Fact], out: &mut dyn Write) -> io::Result<()> {
    for fact in facts {
        match fact.name {
            "" => writeln!(out, "  - {}", prose(&fact.text))?,
            name => writeln!(out, "- **{name}**: {}", prose(&fact.text))?,
        }
    }
    writeln!(out)
}

/// A text whose code stays code.
pub(super) fn prose(text: &str) -> String {
    spans(text)
        .map(|(is_code, part)| if is_code { code(part) } else { cell(part) })
        .collect()
}

fn rows(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let view = &document.view;
    if view.rows.is_empty() {
        return writeln!(out, "{}\n", no_rows(view));
    }
    let cast = document.cast.map(|cast| cast.dtype.name());
    writeln!(
        out,
        "| Name | Class | Shape | Dtype | Elements | Bytes |{}",
        cast.map(|name| format!(" {name} |")).unwrap_or_default()
    )?;
    writeln!(
        out,
        "|---|---|---|---|---:|---:|{}",
        cast.map_or("", |_| "---:|")
    )?;
    for row in &view.rows {
        writeln!(out, "{}", line(row, document.units, cast.is_some()))?;
    }
    for note in notes(view) {
        writeln!(out, "\n{note}")?;
    }
    writeln!(out)
}

fn line(row: &Row, units: Units, cast: bool) -> String {
    let unknown = || "unknown".to_owned();
    let repeats = if row.repeats > 1 {
        format!(" x{}", row.repeats)
    } else {
        String::new()
    };
    let mut text = format!(
        "| {}{repeats} | {} | {} | {} | {} | {} |",
        code(&row.path),
        row.class.as_deref().map(cell).unwrap_or_default(),
        cell(&shape_cell(row)),
        row.dtype.unwrap_or_default(),
        row.numel.map_or_else(unknown, grouped),
        row.bytes.map_or_else(unknown, |bytes| units.bytes(bytes)),
    );
    if cast {
        let _ = write!(
            text,
            " {} |",
            row.cast_bytes
                .map_or_else(unknown, |bytes| units.bytes(bytes))
        );
    }
    text
}

fn totals(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let totals = &document.report.totals;
    writeln!(
        out,
        "| Totals | Tensors | Elements | Bytes |\n|---|---:|---:|---:|"
    )?;
    let all = SumReport {
        tensors: totals.sums.tensors,
        numel: totals.sums.numel,
        bytes: totals.sums.tensor_bytes,
    };
    let groups = totals.by_role.iter().chain(&totals.by_dtype);
    for (name, sum) in groups.copied().chain([("**all**", all)]) {
        writeln!(
            out,
            "| {name} | {} | {} | {} |",
            grouped(sum.tensors),
            grouped(sum.numel),
            document.units.bytes(sum.bytes)
        )?;
    }
    let lines = [
        ("memory, every storage once", totals.sums.storage_bytes),
        ("shared", totals.sums.shared_bytes),
        ("slack", totals.sums.slack_bytes),
    ];
    for (name, bytes) in lines {
        writeln!(out, "| {name} | | | {} |", document.units.bytes(bytes))?;
    }
    if let Some(cast) = document.cast {
        let bytes = document.units.bytes(cast.storage_bytes);
        writeln!(out, "| as {} in memory | | | {bytes} |", cast.dtype.name())?;
    }
    writeln!(out)
}

/// A name as code: no backtick, pipe or newline of its own gets through.
pub(super) fn code(text: &str) -> String {
    let text = escape(text).replace('`', "'").replace('|', "\\|");
    if text.is_empty() {
        "` `".to_owned()
    } else {
        format!("`{text}`")
    }
}

/// A text in a table cell, with nothing in it that Markdown or HTML would act on.
fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in escape(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '|' | '[' | ']' | '*' | '_' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_names() {
        assert_eq!(code("a`b|c\nd"), "`a'b\\|c\\nd`");
        assert_eq!(cell("<script>[x](y)"), "&lt;script>\\[x\\](y)");
        assert_eq!(prose("of `max_pool2d` in a_b"), "of `max_pool2d` in a\\_b");
    }
}
