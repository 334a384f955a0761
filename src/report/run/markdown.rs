//! A run for an issue or a wiki.

use std::io::{self, Write};

use super::text::{facts, work_text};
use super::{RunReport, RunRow, RunRowKind, RunView};
use crate::report::markdown::{cell, code};
use crate::units::{Units, duration_ns, grouped};

/// Writes the tree of a run and what it adds up to.
pub(in crate::report) fn write(
    run: &RunReport<'_>,
    view: &RunView<'_>,
    units: Units,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "### Run\n")?;
    writeln!(
        out,
        "| Module | Class | Calls | Output | Bytes | Parameters | MACs | Time |"
    )?;
    writeln!(out, "|:---|:---|---:|:---|---:|---:|---:|---:|")?;
    for row in &view.rows {
        line(row, units, out)?;
    }
    if view.hidden_rows > 0 {
        writeln!(out, "\n… and {} more rows", view.hidden_rows)?;
    }
    writeln!(out)?;
    for (name, text) in facts(run, units) {
        match name {
            "" => writeln!(out, "  - {}", cell(&text))?,
            _ => writeln!(out, "- **{name}**: {}", cell(&text))?,
        }
    }
    writeln!(out)
}

fn line(row: &RunRow<'_>, units: Units, out: &mut dyn Write) -> io::Result<()> {
    let indent = "&emsp;".repeat(row.level);
    let name = match row.kind {
        RunRowKind::Module if row.repeats > 1 => {
            format!("{} x{}", code(&row.label), row.repeats)
        }
        RunRowKind::Module | RunRowKind::Function => code(&row.label),
    };
    writeln!(
        out,
        "| {indent}{name} | {} | {} | {} | {} | {} | {} | {} |",
        row.class.map(cell).unwrap_or_default(),
        grouped(row.calls),
        row.output,
        row.output_bytes
            .map(|bytes| units.bytes(bytes))
            .unwrap_or_default(),
        row.parameters.map_or_else(|| "unknown".to_owned(), grouped),
        work_text(row.work),
        duration_ns(row.time_ns),
    )
}
