//! Tables and facts apart from the format that shows them: a terminal, Markdown or HTML.

use super::text_table::{Cell, Column, Fit, Look, Side};

/// A table: columns, rows, and remarks below it.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// Its columns.
    pub(super) columns: Vec<Column>,
    /// Its rows, with a cell for every column.
    pub(super) rows: Vec<Vec<Cell>>,
    /// What is not in it, and how to see that.
    pub(super) notes: Vec<String>,
}

impl Grid {
    /// The columns that hold something: an empty one says nothing. With their places.
    pub(super) fn filled(&self) -> Vec<(usize, Column)> {
        let filled = |index: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(index));
            cells.any(|cell| !cell.text.is_empty())
        };
        let columns = self.columns.iter().copied().enumerate();
        columns.filter(|(index, _)| filled(*index)).collect()
    }
}

/// A column of words.
pub(super) fn words(title: &'static str, fit: Fit) -> Column {
    Column {
        title,
        side: Side::Left,
        fit,
    }
}

/// A column of numbers.
pub(super) fn numbers(title: &'static str, fit: Fit) -> Column {
    Column {
        title,
        side: Side::Right,
        fit,
    }
}

/// Levels below the top that the guides of a tree draw.
pub(super) fn level(cell: &Cell) -> usize {
    cell.lead.chars().count() / GUIDE_COLUMNS
}

/// Columns of one level of guides: `├─ `.
const GUIDE_COLUMNS: usize = 3;

/// A line under a heading; one without a name goes on with the last.
#[derive(Debug)]
pub(super) struct Fact {
    /// The heading.
    pub(super) name: &'static str,
    /// The text, escaped; names and code in backticks.
    pub(super) text: String,
    /// How it looks.
    pub(super) look: Look,
}

impl Fact {
    /// A line of text.
    pub(super) fn new(name: &'static str, text: impl Into<String>, look: Look) -> Self {
        Fact {
            name,
            text: text.into(),
            look,
        }
    }
}

/// `backward 2`.
pub(super) fn phase_text(name: &str, step: Option<u32>) -> String {
    match step {
        Some(step) => format!("{name} {step}"),
        None => name.to_owned(),
    }
}

/// The parts of a text, told apart by backticks: plain, code, plain, ...; the flag is true for code.
pub(super) fn spans(text: &str) -> impl Iterator<Item = (bool, &str)> {
    text.split('`')
        .enumerate()
        .map(|(index, part)| (index % 2 == 1, part))
        .filter(|(_, part)| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_apart() {
        let parts: Vec<_> = spans("in `aten::add_` of `a.b`").collect();
        assert_eq!(
            parts,
            [
                (false, "in "),
                (true, "aten::add_"),
                (false, " of "),
                (true, "a.b")
            ]
        );
        assert_eq!(spans("plain").collect::<Vec<_>>(), [(false, "plain")]);
    }

    #[test]
    fn empty_columns_are_left_out() {
        let cell = |text: &str| Cell::new(text, Look::Plain);
        let grid = Grid {
            columns: vec![
                words("A", Fit::Keep),
                words("B", Fit::Keep),
                numbers("C", Fit::Keep),
            ],
            rows: vec![vec![cell("x"), cell(""), cell("1")]],
            notes: Vec::new(),
        };
        let titles: Vec<_> = grid
            .filled()
            .iter()
            .map(|(index, one)| (*index, one.title))
            .collect();
        assert_eq!(titles, [(0, "A"), (2, "C")]);
    }
}
