//! The table of `--stats`.

use super::Document;
use super::grid::{Grid, numbers, words};
use super::text_table::{Cell, Fit, Look};
use crate::checkpoint::{Statistics, Value};
use crate::text::escape;
use crate::units::grouped;

/// Rows where nobody asked for more.
const ROWS: usize = 64;

/// A row for every tensor that the view selects; `None` where there are no statistics.
pub(super) fn grid(document: &Document<'_>) -> Option<Grid> {
    let statistics = document.checkpoint.statistics();
    if statistics.is_empty() {
        return None;
    }
    let view = &document.view;
    let limit = if document.all || view.top {
        usize::MAX
    } else {
        ROWS
    };
    let mut grid = Grid {
        columns: vec![
            words("Statistics", Fit::Cut(26)),
            numbers("Min", Fit::Keep),
            numbers("Max", Fit::Keep),
            numbers("Mean", Fit::Keep),
            numbers("Std", Fit::Keep),
            numbers("NaN", Fit::Keep),
            numbers("Inf", Fit::Keep),
            numbers("Zeros", Fit::Drop(1)),
        ],
        ..Grid::default()
    };
    for index in view.selected.iter().take(limit) {
        let Some(tensor) = document.checkpoint.tensors().get(*index) else {
            continue;
        };
        let found = statistics.get(*index).and_then(Option::as_ref);
        grid.rows.push(row(tensor.name(), found));
    }
    let hidden = view.selected.len().saturating_sub(limit);
    if hidden > 0 {
        let hidden = grouped(hidden as u64);
        let note = format!("… and {hidden} more rows: `--all` shows every one");
        grid.notes.push(note);
    }
    Some(grid)
}

fn row(name: &str, found: Option<&Statistics>) -> Vec<Cell> {
    let unknown = || "unknown".to_owned();
    let cell = |text: Option<String>| Cell::new(text.unwrap_or_else(unknown), Look::Plain);
    let count = |number: Option<u64>| {
        let look = match number {
            Some(1..) => Look::Bad,
            _ => Look::Plain,
        };
        Cell::new(number.map_or_else(unknown, grouped), look)
    };
    vec![
        Cell::new(escape(name), Look::Plain),
        cell(found.and_then(|found| found.min).map(value)),
        cell(found.and_then(|found| found.max).map(value)),
        cell(found.and_then(|found| found.mean).map(float)),
        cell(found.and_then(|found| found.std).map(float)),
        count(found.map(|found| found.nan)),
        count(found.map(|found| found.inf)),
        cell(found.map(|found| grouped(found.zero))),
    ]
}

fn value(value: Value) -> String {
    match value {
        Value::Float(number) => float(number),
        Value::Signed(number) => number.to_string(),
        Value::Unsigned(number) => number.to_string(),
    }
}

/// Four digits that count.
fn float(number: f64) -> String {
    let magnitude = number.abs();
    if number == 0.0 {
        "0".to_owned()
    } else if (1e-3..1e5).contains(&magnitude) {
        let digits = if magnitude >= 1000.0 {
            0
        } else if magnitude >= 100.0 {
            1
        } else if magnitude >= 10.0 {
            2
        } else if magnitude >= 1.0 {
            3
        } else {
            4
        };
        format!("{number:.digits$}")
    } else {
        format!("{number:.3e}")
    }
}
