//! What `inspect FOLDER` prints: a row for every checkpoint in it.

use std::io::{self, Write};

use serde::Serialize;

use super::csv::record;
use super::grid::{Grid, numbers, words};
use super::page::{Page, Part, value};
use super::text_table::{Cell, Fit, Look};
use super::{Markdown, SCHEMA_VERSION, Table, Tool, an_item_a_line};
use crate::checkpoint::{Checkpoint, Role, Verdict};
use crate::text::escape;
use crate::units::{Units, grouped};

/// One checkpoint of a folder. Everything but its name is unknown where it could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SummaryRow {
    /// Its name in the folder.
    pub name: String,
    /// What kind of file it is.
    pub format: Option<&'static str>,
    /// What its root object is.
    pub object: Option<&'static str>,
    /// How many tensors.
    pub tensors: Option<u64>,
    /// Elements of all parameters.
    pub parameters: Option<u64>,
    /// Bytes of the file, of all of its files where it is several.
    pub bytes: Option<u64>,
    /// Whether it is safe to load.
    pub verdict: Option<&'static str>,
    /// How many findings there are.
    pub findings: Option<u64>,
    /// Why it could not be read.
    pub error: Option<String>,
}

impl SummaryRow {
    /// The row of a checkpoint that was read.
    #[must_use]
    pub fn of(name: String, checkpoint: &Checkpoint) -> Self {
        let totals = checkpoint.totals();
        let roles = totals.by_role.iter();
        let parameters = roles.filter(|(role, _)| *role == Role::Parameter);
        SummaryRow {
            name,
            format: Some(checkpoint.format().name()),
            object: Some(checkpoint.object().name()),
            tensors: Some(totals.tensors),
            parameters: Some(parameters.map(|(_, sum)| sum.numel).sum()),
            bytes: Some(checkpoint.file_bytes()),
            verdict: Some(checkpoint.security().verdict.name()),
            findings: Some(checkpoint.findings().len() as u64),
            error: None,
        }
    }

    /// The row of one that could not be read, of `bytes` bytes where that is known.
    #[must_use]
    pub fn failed(name: String, bytes: Option<u64>, error: String) -> Self {
        SummaryRow {
            name,
            format: None,
            object: None,
            tensors: None,
            parameters: None,
            bytes,
            verdict: None,
            findings: None,
            error: Some(error),
        }
    }
}

/// A folder of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FolderSummary {
    /// Version of the schema.
    pub schema_version: u32,
    /// Who wrote the report.
    pub tool: Tool,
    /// The folder.
    pub folder: FolderFacts,
    /// Its checkpoints, by name.
    pub checkpoints: Vec<SummaryRow>,
}

/// The folder itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FolderFacts {
    /// As the user named it.
    pub path: String,
    /// Bytes of all checkpoints that could be read.
    pub bytes: u64,
    /// How many could be read.
    pub readable: u64,
    /// How many could not.
    pub unreadable: u64,
    /// Files and folders in it that are no checkpoints.
    pub other_entries: u64,
}

impl FolderSummary {
    /// Sums rows up.
    #[must_use]
    pub fn new(path: String, rows: Vec<SummaryRow>, other_entries: u64) -> Self {
        let read = rows.iter().filter(|row| row.error.is_none());
        let sizes = read.clone().filter_map(|row| row.bytes);
        let readable = read.count() as u64;
        FolderSummary {
            schema_version: SCHEMA_VERSION,
            tool: Tool::THIS,
            folder: FolderFacts {
                path,
                bytes: sizes.fold(0, u64::saturating_add),
                readable,
                unreadable: (rows.len() as u64).saturating_sub(readable),
                other_entries,
            },
            checkpoints: rows,
        }
    }

    /// Writes it as JSON, a checkpoint a line.
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        an_item_a_line(self, out)
    }

    /// Writes it for a terminal.
    pub fn table(&self, table: &Table, units: Units, out: &mut dyn Write) -> io::Result<()> {
        table.page(&self.page(units), out)
    }

    /// Writes it as Markdown.
    pub fn markdown(&self, units: Units, out: &mut dyn Write) -> io::Result<()> {
        Markdown::page(&self.page(units), out)
    }

    /// Writes it as CSV, a checkpoint a line.
    pub fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        record(out, &CSV_COLUMNS.map(str::to_owned))?;
        for row in &self.checkpoints {
            let number =
                |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            let fields = [
                row.name.clone(),
                text(row.format),
                text(row.object),
                number(row.tensors),
                number(row.parameters),
                number(row.bytes),
                text(row.verdict),
                number(row.findings),
                text(row.error.as_deref()),
            ];
            record(out, &fields)?;
        }
        Ok(())
    }

    fn page(&self, units: Units) -> Page {
        let facts = &self.folder;
        let unreadable = match facts.unreadable {
            0 => String::new(),
            count => format!(", {} that cannot be read", grouped(count)),
        };
        let answer = format!(
            "{} checkpoints, {}{unreadable}",
            grouped(facts.readable),
            units.bytes(facts.bytes)
        );
        let mut page = Page {
            title: facts.path.clone(),
            answer,
            look: Look::Dim,
            parts: Vec::new(),
        };
        page.grid(self.grid(units));
        for row in &self.checkpoints {
            if let Some(error) = &row.error {
                let (name, error) = (escape(&row.name), escape(error));
                page.parts.push(Part::Note(format!("`{name}`: {error}")));
            }
        }
        if facts.other_entries > 0 {
            let other = grouped(facts.other_entries);
            page.parts.push(Part::Note(format!(
                "{other} other entries of the folder are no checkpoints"
            )));
        }
        page
    }

    fn grid(&self, units: Units) -> Grid {
        let rows = self.checkpoints.iter().map(|row| {
            let plain = |text: String| Cell::new(text, Look::Plain);
            let count = |number: Option<u64>| plain(value(number, false, units));
            let (last, look) = match (row.verdict, &row.error) {
                (_, Some(_)) => ("unreadable".to_owned(), Look::Bad),
                (Some(verdict), None) if verdict == Verdict::Dangerous.name() => {
                    (verdict.to_owned(), Look::Bad)
                }
                (Some(verdict), None) if verdict == Verdict::Suspicious.name() => {
                    (verdict.to_owned(), Look::Warn)
                }
                (verdict, None) => (verdict.unwrap_or_default().to_owned(), Look::Good),
            };
            vec![
                plain(escape(&row.name)),
                plain(row.format.unwrap_or("unknown").to_owned()),
                count(row.tensors),
                count(row.parameters),
                plain(value(row.bytes, true, units)),
                Cell::new(last, look),
            ]
        });
        Grid {
            columns: vec![
                words("Name", Fit::Cut(24)),
                words("Format", Fit::Drop(1)),
                numbers("Tensors", Fit::Drop(2)),
                numbers("Parameters", Fit::Keep),
                numbers("Bytes", Fit::Keep),
                words("Verdict", Fit::Keep),
            ],
            rows: rows.collect(),
            notes: Vec::new(),
        }
    }
}

const CSV_COLUMNS: [&str; 9] = [
    "name",
    "format",
    "object",
    "tensors",
    "parameters",
    "bytes",
    "verdict",
    "findings",
    "error",
];
