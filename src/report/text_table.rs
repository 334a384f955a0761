//! Aligned columns for a terminal: one column may be cut, others may be left out where the terminal is narrow.
//!
//! No table crate does both (they wrap long cells, which breaks a tree), so this does, and nothing else.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::text;

/// How a cell looks. Never the only bearer of a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Look {
    /// As it is.
    #[default]
    Plain,
    /// A heading or a sum.
    Strong,
    /// Less important.
    Dim,
    /// Good.
    Good,
    /// Take care.
    Warn,
    /// Bad.
    Bad,
}

impl Look {
    fn style(self) -> Style {
        match self {
            Look::Plain => Style::new(),
            Look::Strong => Style::new().bold(),
            Look::Dim => Style::new().dimmed(),
            Look::Good => Style::new().fg_color(Some(AnsiColor::Green.into())),
            Look::Warn => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
            Look::Bad => Style::new().bold().fg_color(Some(AnsiColor::Red.into())),
        }
    }
}

/// `text` in a look, where colour is on.
pub(super) fn paint(text: &str, look: Look, color: bool) -> String {
    if !color || look == Look::Plain {
        return text.to_owned();
    }
    let style = look.style();
    format!("{style}{text}{style:#}")
}

/// Which side of a column its cells stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// Its heading.
    pub(super) title: &'static str,
    /// Which side its cells stand on.
    pub(super) side: Side,
    /// What happens where space is short.
    pub(super) fit: Fit,
}

/// What happens to a column where space is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It stays.
    Keep,
    /// Its cells are cut, down to this many columns.
    Cut(usize),
    /// It is left out; the highest number goes first.
    Drop(u8),
}

/// A cell: a part that is never cut (a tree's guides), then its text.
#[derive(Debug, Clone, Default)]
pub(super) struct Cell {
    /// Guides.
    pub(super) lead: String,
    /// Text, escaped already.
    pub(super) text: String,
    /// How the text looks.
    pub(super) look: Look,
}

impl Cell {
    /// A cell of this text.
    pub(super) fn new(text: impl Into<String>, look: Look) -> Self {
        Cell {
            lead: String::new(),
            text: text.into(),
            look,
        }
    }

    fn width(&self) -> usize {
        text::width(&self.lead) + text::width(&self.text)
    }
}

/// Blank columns between two columns.
const GAP: usize = 2;

/// Writes rows under a heading, at most `width` wide where columns allow.
pub(super) fn write(
    columns: &[Column],
    rows: &[Vec<Cell>],
    width: usize,
    color: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let widths = fit(columns, rows, width);
    let heads: Vec<Cell> = columns
        .iter()
        .map(|column| Cell::new(column.title, Look::Strong))
        .collect();
    let heading = columns.iter().any(|column| !column.title.is_empty());
    let all = heading.then_some(&heads).into_iter().chain(rows);
    for row in all {
        let mut line = String::new();
        let mut pending = 0;
        for ((cell, column), width) in row.iter().zip(columns).zip(&widths) {
            let Some(width) = *width else { continue };
            let lead = text::width(&cell.lead);
            let body = text::cut(&cell.text, width.saturating_sub(lead));
            let free = width.saturating_sub(lead + text::width(&body));
            let (before, after) = match column.side {
                Side::Left => (0, free),
                Side::Right => (free, 0),
            };
            if cell.lead.is_empty() && body.is_empty() {
                // Blanks at the end of a line are not written.
                pending += width + GAP;
                continue;
            }
            line.extend(std::iter::repeat_n(' ', pending + before));
            line.push_str(&paint(&cell.lead, Look::Dim, color));
            line.push_str(&paint(&body, cell.look, color));
            pending = after + GAP;
        }
        line.push('\n');
        out.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// The width of each column; `None` for one that is left out.
fn fit(columns: &[Column], rows: &[Vec<Cell>], width: usize) -> Vec<Option<usize>> {
    let mut widths: Vec<Option<usize>> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(index))
                .map(Cell::width);
            let widest = cells.max().unwrap_or(0);
            // A column without a cell says nothing.
            (widest > 0).then(|| widest.max(text::width(column.title)))
        })
        .collect();
    while total(&widths) > width {
        let over = total(&widths) - width;
        if shrink(columns, &mut widths, over) {
            break;
        }
        let last = columns
            .iter()
            .zip(&mut widths)
            .filter_map(|(column, width)| match (column.fit, &width) {
                (Fit::Drop(rank), Some(_)) => Some((rank, width)),
                _ => None,
            })
            .max_by_key(|(rank, _)| *rank);
        let Some((_, width)) = last else {
            shrink_to_least(columns, &mut widths);
            break;
        };
        *width = None;
    }
    widths
}

fn total(widths: &[Option<usize>]) -> usize {
    let shown = widths.iter().flatten().count();
    widths.iter().flatten().sum::<usize>() + GAP * shown.saturating_sub(1)
}

/// Takes `over` columns from those that may be cut; false (and nothing changed) where that is too much.
fn shrink(columns: &[Column], widths: &mut [Option<usize>], over: usize) -> bool {
    for (column, width) in columns.iter().zip(widths) {
        if let (Fit::Cut(least), Some(width)) = (column.fit, width)
            && width.saturating_sub(over) >= least
        {
            *width -= over;
            return true;
        }
    }
    false
}

fn shrink_to_least(columns: &[Column], widths: &mut [Option<usize>]) {
    for (column, width) in columns.iter().zip(widths) {
        if let (Fit::Cut(least), Some(width)) = (column.fit, width) {
            *width = (*width).min(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: usize) -> String {
        let columns = [
            Column {
                title: "Name",
                side: Side::Left,
                fit: Fit::Cut(6),
            },
            Column {
                title: "Role",
                side: Side::Left,
                fit: Fit::Drop(1),
            },
            Column {
                title: "Bytes",
                side: Side::Right,
                fit: Fit::Keep,
            },
        ];
        let cell = |text: &str| Cell::new(text, Look::Plain);
        let rows = [
            vec![cell("encoder.weight"), cell("parameter"), cell("1")],
            vec![cell("x"), cell(""), cell("22")],
        ];
        let mut out = Vec::new();
        write(&columns, &rows, width, false, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_and_give_way() {
        assert_eq!(
            table(80),
            "Name            Role       Bytes\nencoder.weight  parameter      1\nx                             22\n"
        );
        assert_eq!(
            table(28),
            "Name        Role       Bytes\nenc…weight  parameter      1\nx                         22\n"
        );
        assert_eq!(
            table(16),
            "Name       Bytes\nen…weight      1\nx             22\n"
        );
        assert_eq!(table(1), "Name    Bytes\ne…ight      1\nx          22\n");
    }
}
