//! A run for a terminal: the tree, then what it adds up to.

use std::io::{self, Write};

use super::text::{LARGEST, MISSING, facts, work_text};
use super::{RunReport, RunRow, RunRowKind, RunView};
use crate::report::Table;
use crate::report::table::guides;
use crate::report::text_table::{self, Cell, Column, Fit, Look, Side};
use crate::text::{self, escape};
use crate::units::{Units, duration_ns, grouped};

/// Columns of a class; longer ones are cut, since paths say more.
const MAX_CLASS: usize = 20;

impl Table {
    /// The tree of a run.
    pub(in crate::report) fn run_tree(
        &self,
        view: &RunView<'_>,
        units: Units,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let rows: Vec<Vec<Cell>> = view.rows.iter().map(|row| cells(row, units)).collect();
        text_table::write(&columns(), &rows, self.width, self.color, out)?;
        let (shown, levels) = view.depth;
        if view.hidden_rows > 0 {
            let hidden = grouped(u64::try_from(view.hidden_rows).unwrap_or(u64::MAX));
            let note = format!("… and {hidden} more rows: `--all` shows every one");
            writeln!(out, "{}", self.paint(&note, Look::Dim))?;
        }
        if shown < levels {
            let note = format!("{shown} of {levels} levels: `--depth {levels}` shows all");
            writeln!(out, "{}", self.paint(&note, Look::Dim))?;
        }
        writeln!(out)
    }

    /// What a run was given, returned, computed and needed.
    pub(in crate::report) fn run_facts(
        &self,
        run: &RunReport<'_>,
        units: Units,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for (name, text) in facts(run, units) {
            let look = match name {
                MISSING => Look::Warn,
                "" | LARGEST => Look::Dim,
                _ => Look::Plain,
            };
            self.fact(name, &text, look, out)?;
        }
        Ok(())
    }
}

fn columns() -> [Column; 8] {
    let column = |title, side, fit| Column { title, side, fit };
    [
        column("Module", Side::Left, Fit::Cut(32)),
        column("Class", Side::Left, Fit::Drop(1)),
        column("Calls", Side::Right, Fit::Drop(2)),
        column("Output", Side::Left, Fit::Keep),
        column("Bytes", Side::Right, Fit::Drop(3)),
        column("Parameters", Side::Right, Fit::Keep),
        column("MACs", Side::Right, Fit::Keep),
        column("Time", Side::Right, Fit::Drop(0)),
    ]
}

fn cells(row: &RunRow<'_>, units: Units) -> Vec<Cell> {
    let look = match row.kind {
        _ if row.level == 0 => Look::Strong,
        RunRowKind::Module => Look::Plain,
        RunRowKind::Function => Look::Dim,
    };
    let mut label = escape(&row.label);
    if row.kind == RunRowKind::Module && row.repeats > 1 {
        label = format!("{label} x{}", row.repeats);
    }
    let name = Cell {
        lead: guides(&row.guides_below_root()),
        text: label,
        look,
    };
    let blank = String::new;
    let parameters = match row.parameters {
        None => "unknown".to_owned(),
        Some(0) if row.shared => "shared".to_owned(),
        Some(0) => blank(),
        Some(numel) if row.shared => format!("{} + shared", grouped(numel)),
        Some(numel) => grouped(numel),
    };
    vec![
        name,
        Cell::new(
            row.class
                .map(|class| text::cut(&escape(class), MAX_CLASS))
                .unwrap_or_default(),
            Look::Dim,
        ),
        Cell::new(
            if row.calls == 1 {
                blank()
            } else {
                grouped(row.calls)
            },
            look,
        ),
        Cell::new(row.output.clone(), look),
        Cell::new(
            row.output_bytes
                .filter(|bytes| *bytes > 0)
                .map_or_else(blank, |bytes| units.bytes(bytes)),
            look,
        ),
        Cell::new(parameters, look),
        Cell::new(work_text(row.work), look),
        Cell::new(
            if row.calls == 0 && row.time_ns == 0 {
                blank()
            } else {
                duration_ns(row.time_ns)
            },
            look,
        ),
    ]
}

impl RunRow<'_> {
    /// The root has no sibling, so its guide is none.
    fn guides_below_root(&self) -> Vec<bool> {
        let mut guides = Vec::with_capacity(self.guides.len() + 1);
        if self.level > 0 {
            guides.push(false);
        }
        guides.extend_from_slice(&self.guides);
        guides
    }
}
