//! What `inspect fit` prints: text for people, the report itself as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::Tool;
use super::table::{Table, fact};
use crate::estimate::Basis;
use crate::text::escape;
use crate::units::Units;

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TriedBatch {
    /// The batch.
    pub batch: u64,
    /// Highest reserved bytes; unknown where memory ran out.
    pub peak_reserved_bytes: Option<u64>,
    /// Whether it ran to its end.
    pub fits: bool,
}

/// The JSON of `inspect fit`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitReport {
    /// Version of the schema.
    pub schema_version: u32,
    /// Who wrote the report.
    pub tool: Tool,
    /// The file, as the user named it.
    pub file: String,
    /// What the runs were.
    pub basis: Basis,
    /// The card.
    pub profile: String,
    /// The memory to fit into.
    pub memory_bytes: u64,
    /// What of it the CUDA context takes; unknown where nobody has published it.
    pub context_bytes: Option<u64>,
    /// The largest batch; none where not even 1 fits.
    pub batch: Option<u64>,
    /// The largest batch that the program takes; none where it has no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_max_batch: Option<u64>,
    /// Whether runs showed that this batch fits and the next does not, or that it is the largest that the program
    /// takes.
    pub verified: bool,
    /// Every run, smallest batch first.
    pub tried: Vec<TriedBatch>,
    /// Requested bytes at the peak that each sample adds.
    pub per_sample_bytes: Option<u64>,
    /// Requested bytes at the peak whatever the batch.
    pub fixed_bytes: Option<u64>,
    /// What was taken for granted.
    pub assumptions: Vec<String>,
}

/// Writes a search for people.
pub fn table(
    report: &FitReport,
    table: &Table,
    units: Units,
    out: &mut dyn Write,
) -> io::Result<()> {
    let memory = units.bytes(report.memory_bytes);
    writeln!(
        out,
        "{}  the largest batch for {memory} on {}",
        escape(&report.file),
        report.profile
    )?;
    writeln!(out)?;
    let mut line = |name: &str, text: &str| fact(name, 12, text, table.width, out);
    line("Batch", &batch_text(report))?;
    if let Some(context) = report.context_bytes {
        let left = units.bytes(report.memory_bytes.saturating_sub(context));
        let text = format!(
            "{memory}: {} CUDA context, {left} for the model",
            units.bytes(context)
        );
        line("Memory", &text)?;
    }
    if let (Some(sample), Some(fixed)) = (report.per_sample_bytes, report.fixed_bytes) {
        let text = format!(
            "{} a sample and {} whatever the batch, requested at the peak",
            units.bytes(sample),
            units.bytes(fixed)
        );
        line("Grows by", &text)?;
    }
    for text in &report.assumptions {
        line("Assumed", &escape(text))?;
    }
    writeln!(out)?;
    writeln!(out, "{:>9}  {:>13}  Fits", "Batch", "Peak reserved")?;
    for tried in &report.tried {
        let reserved = tried
            .peak_reserved_bytes
            .map_or_else(|| "out of memory".to_owned(), |bytes| units.bytes(bytes));
        let fits = if tried.fits { "yes" } else { "no" };
        writeln!(out, "{:>9}  {reserved:>13}  {fits}", tried.batch)?;
    }
    Ok(())
}

fn batch_text(report: &FitReport) -> String {
    let how = match report.basis {
        Basis::CudaSim => "on the simulated device",
        _ => "through the memory model",
    };
    let least = report.tried.first().map_or(1, |tried| tried.batch);
    let at_limit = report.batch.is_some() && report.batch == report.program_max_batch;
    match (report.batch, report.verified) {
        (None, true) => format!("none: {least} does not fit, run {how}"),
        (None, false) => format!("none: {least} does not fit, by the memory model"),
        (Some(batch), true) if at_limit => {
            format!("{batch}, the largest that the program takes; it fits, run {how}")
        }
        (Some(batch), false) if at_limit => format!(
            "{batch}, the largest that the program takes; it fits by the memory model, not verified by runs"
        ),
        (Some(batch), true) => {
            format!(
                "{batch}; it fits and {} does not, both run {how}",
                batch + 1
            )
        }
        (Some(batch), false) => format!("{batch}, by the memory model; not verified by runs"),
    }
}
