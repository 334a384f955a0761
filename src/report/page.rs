//! A page of tables, facts and remarks, for a terminal or as Markdown: what `inspect diff` and `inspect check` show.

use std::io::{self, Write};

use super::grid::{Fact, Grid, numbers, words};
use super::markdown;
use super::table::wrap;
use super::text_table::{Cell, Fit, Look, paint};
use super::{Markdown, Table};
use crate::text::{self, escape};
use crate::units::{Units, grouped, signed};

/// A part of a page.
#[derive(Debug)]
pub(super) enum Part {
    /// A table.
    Grid(Grid),
    /// Lines under headings.
    Facts(Vec<Fact>),
    /// A remark.
    Note(String),
}

/// A page.
#[derive(Debug)]
pub(super) struct Page {
    /// What it is about, not escaped.
    pub(super) title: String,
    /// The answer in a few words.
    pub(super) answer: String,
    /// How the answer looks.
    pub(super) look: Look,
    /// What is on it.
    pub(super) parts: Vec<Part>,
}

impl Page {
    /// Adds a table that has rows.
    pub(super) fn grid(&mut self, grid: Grid) {
        if !grid.rows.is_empty() {
            self.parts.push(Part::Grid(grid));
        }
    }

    /// Adds lines, where there are any.
    pub(super) fn facts(&mut self, facts: Vec<Fact>) {
        if !facts.is_empty() {
            self.parts.push(Part::Facts(facts));
        }
    }
}

impl Table {
    /// Writes a page for a terminal.
    pub(super) fn page(&self, page: &Page, out: &mut dyn Write) -> io::Result<()> {
        let title = escape(&page.title);
        let (name, color) = (paint(&title, Look::Strong, self.color), self.color);
        if text::width(&title) + 2 + text::width(&page.answer) <= self.width {
            writeln!(out, "{name}  {}", paint(&page.answer, page.look, color))?;
        } else {
            writeln!(out, "{name}")?;
            for line in wrap(&page.answer, self.width) {
                writeln!(out, "{}", paint(&line, page.look, color))?;
            }
        }
        for part in &page.parts {
            writeln!(out)?;
            match part {
                Part::Grid(grid) => self.grid(grid, out)?,
                Part::Facts(facts) => self.all_facts(facts, out)?,
                Part::Note(note) => self.note(note, out)?,
            }
        }
        Ok(())
    }
}

impl Markdown {
    /// Writes a page as a section.
    pub(super) fn page(page: &Page, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "## {}\n", markdown::code(&page.title))?;
        writeln!(out, "**{}**\n", markdown::prose(&page.answer))?;
        for part in &page.parts {
            match part {
                Part::Grid(grid) => markdown::grid(grid, out)?,
                Part::Facts(facts) => markdown::facts(facts, out)?,
                Part::Note(note) => writeln!(out, "{}\n", markdown::prose(note))?,
            }
        }
        Ok(())
    }
}

/// A number that may be unknown, in its unit.
pub(super) fn value(value: Option<u64>, bytes: bool, units: Units) -> String {
    match value {
        None => "unknown".to_owned(),
        Some(value) if bytes => units.bytes(value),
        Some(value) => grouped(value),
    }
}

/// A difference with its sign; nothing where it is not known.
pub(super) fn difference(delta: Option<i64>, bytes: bool, units: Units) -> String {
    match delta {
        None => String::new(),
        Some(delta) if bytes => units.bytes_delta(i128::from(delta)),
        Some(delta) => signed(delta),
    }
}

/// How a difference looks: more is not better.
pub(super) fn delta_look(delta: Option<i64>) -> Look {
    match delta {
        Some(delta) if delta > 0 => Look::Warn,
        Some(delta) if delta < 0 => Look::Good,
        _ => Look::Plain,
    }
}

/// `+12.3 %` of what it was; nothing where that is not known or was nothing.
pub(super) fn share(delta: Option<i64>, old: Option<u64>) -> String {
    match (delta, old) {
        (Some(delta), Some(old)) if old > 0 => {
            let ratio = delta as f64 / old as f64;
            // Beyond a tenfold a percentage is no help.
            if ratio >= 9.0 {
                format!("x{:.0}", ratio + 1.0)
            } else {
                format!("{:+.1} %", ratio * 100.0)
            }
        }
        _ => String::new(),
    }
}

/// A table of numbers before and after.
pub(super) struct Numbers {
    grid: Grid,
    units: Units,
}

impl Numbers {
    /// A table under this heading, its names cut to no less than 24 columns.
    pub(super) fn new(title: &'static str, units: Units) -> Numbers {
        Numbers {
            grid: Grid {
                columns: vec![
                    words(title, Fit::Cut(24)),
                    numbers("Before", Fit::Keep),
                    numbers("After", Fit::Keep),
                    numbers("Difference", Fit::Keep),
                    numbers("", Fit::Drop(1)),
                ],
                ..Grid::default()
            },
            units,
        }
    }

    /// Adds a row; `lead` draws the tree in front of the name.
    pub(super) fn row(
        &mut self,
        lead: String,
        name: &str,
        (old, new): (Option<u64>, Option<u64>),
        delta: Option<i64>,
        bytes: bool,
    ) {
        let mut first = Cell::new(escape(name), Look::Plain);
        first.lead = lead;
        let look = delta_look(delta);
        // A phase or a pass that one side did not have is none, and not unknown.
        let side = |number: Option<u64>| match number {
            None => "—".to_owned(),
            known => value(known, bytes, self.units),
        };
        self.grid.rows.push(vec![
            first,
            Cell::new(side(old), Look::Dim),
            Cell::new(side(new), Look::Plain),
            Cell::new(difference(delta, bytes, self.units), look),
            Cell::new(share(delta, old), Look::Dim),
        ]);
    }

    /// The table, with a remark where something is left out.
    pub(super) fn finish(mut self, note: Option<String>) -> Grid {
        self.grid.notes.extend(note);
        self.grid
    }
}
