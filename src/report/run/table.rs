//! A run for a terminal: the tree, then what it adds up to.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::exact::{TensorShape, known};
use super::{PeakReport, RunReport, RunRow, RunRowKind, RunView};
use crate::report::Table;
use crate::report::layout::shape_text;
use crate::report::table::guides;
use crate::report::text_table::{self, Cell, Column, Fit, Look, Side};
use crate::text::escape;
use crate::trace::flops::Work;
use crate::units::{Units, count, duration_ns, grouped};

/// Tensors live at the peak that are told.
const MAX_LIVE: usize = 4;

/// Inputs, outputs and names of operators that are told one by one.
const MAX_NAMED: usize = 6;

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
        let mode = match run.mode {
            "train" => "training",
            other => other,
        };
        let text = format!(
            "{mode} on {}, `{}`, libtorch {}",
            run.device,
            escape(run.method),
            run.libtorch_version
        );
        self.fact("Run", &text, Look::Plain, out)?;
        let inputs = run.inputs.iter().map(|input| {
            let tensor = match (input.dtype, input.shape, input.bytes) {
                (Some(dtype), Some(shape), Some(bytes)) => tensor_text(
                    &TensorShape {
                        dtype,
                        shape,
                        bytes,
                    },
                    units,
                ),
                _ => "unknown".to_owned(),
            };
            named(input.name, &tensor)
        });
        self.fact("Input", &some(inputs), Look::Plain, out)?;
        let outputs = run
            .outputs
            .iter()
            .map(|output| named(output.path, &tensor_text(&output.tensor, units)));
        self.fact("Output", &some(outputs), Look::Plain, out)?;
        self.fact("Compute", &compute_text(run), Look::Plain, out)?;
        if let Some(text) = peak_text(run, units) {
            self.fact("Peak", &text, Look::Plain, out)?;
        }
        if let Some(peak) = run.measured.as_ref().and_then(|one| one.at_peak.as_ref()) {
            self.fact("", &holds_text(peak, units), Look::Dim, out)?;
            self.fact("Largest", &largest_text(peak, units), Look::Dim, out)?;
        }
        if !run.ops.without_flops.is_empty() {
            let names = run
                .ops
                .without_flops
                .iter()
                .map(|name| format!("`{}`", escape(name)));
            let text = format!("no FLOPs are known of {}", some(names));
            self.fact("Missing", &text, Look::Warn, out)?;
        }
        Ok(())
    }
}

fn columns() -> [Column; 8] {
    let column = |title, side, fit| Column { title, side, fit };
    [
        column("Module", Side::Left, Fit::Cut(20)),
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
        Cell::new(row.class.map(escape).unwrap_or_default(), Look::Dim),
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

/// `118 M`; `≥118 M` where a part is not known; blank for none.
fn work_text(work: Work) -> String {
    match known(work) {
        None => "unknown".to_owned(),
        Some(work) if work.macs == 0 => String::new(),
        Some(work) if work.incomplete => format!("≥{}", count(work.macs)),
        Some(work) => count(work.macs),
    }
}

fn tensor_text(tensor: &TensorShape<'_>, units: Units) -> String {
    format!(
        "{} {}, {}",
        shape_text(tensor.shape),
        escape(tensor.dtype),
        units.bytes(tensor.bytes)
    )
}

fn named(name: &str, text: &str) -> String {
    if name.is_empty() {
        text.to_owned()
    } else {
        format!("{} {text}", escape(name))
    }
}

/// The first few, and how many more.
fn some(texts: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.collect();
    if texts.is_empty() {
        return "no tensors".to_owned();
    }
    let more = texts.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        texts.truncate(MAX_NAMED);
        texts.push(format!("and {more} more"));
    }
    texts.join("; ")
}

fn compute_text(run: &RunReport<'_>) -> String {
    let totals = run.totals;
    let unknown = || "unknown".to_owned();
    let least = if run.ops.without_flops.is_empty() {
        ""
    } else {
        "at least "
    };
    let mut text = format!(
        "{least}{} MACs = {} FLOPs forward",
        totals.macs.map_or_else(unknown, grouped),
        totals.flops.map_or_else(unknown, grouped),
    );
    if let Some(flops) = totals.backward_flops {
        let _ = write!(text, ", {} backward", grouped(flops));
    }
    let _ = write!(
        text,
        "; {} operators; {}",
        grouped(run.ops.total),
        duration_ns(totals.time_ns)
    );
    text
}

/// When the peak was, what it was made of, and its largest tensors.
fn peak_text(run: &RunReport<'_>, units: Units) -> Option<String> {
    let measured = run.measured.as_ref()?;
    let peak = measured.at_peak.as_ref()?;
    let mut text = format!("{} requested", units.bytes(peak.requested_bytes));
    if let Some(reserved) = measured.peak_reserved_bytes {
        let _ = write!(
            text,
            ", {} allocated, {} reserved",
            units.bytes(measured.peak_allocated_bytes),
            units.bytes(reserved)
        );
    }
    if let Some(phase) = peak.phase {
        let _ = write!(text, ", in {phase}");
    }
    if let Some(step) = peak.step {
        let _ = write!(text, " of step {step}");
    }
    if let Some(op) = peak.op {
        let _ = write!(text, ", `{}`", escape(op));
    }
    if let Some(module) = peak.module.filter(|module| !module.is_empty()) {
        let _ = write!(text, " of `{}`", escape(module));
    }
    let _ = write!(text, " ({})", measured.source);
    Some(text)
}

/// `parameters 44.6 MiB + activations 6.1 MiB`.
fn holds_text(peak: &PeakReport<'_>, units: Units) -> String {
    let parts: Vec<String> = peak
        .categories
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{} {}", name.replace('_', " "), units.bytes(*bytes)))
        .collect();
    parts.join(" + ")
}

fn largest_text(peak: &PeakReport<'_>, units: Units) -> String {
    let named = peak.live.iter().map(|live| {
        let mut text = units.bytes(live.bytes);
        if let Some(shape) = live.shape {
            let _ = write!(text, " {}", shape_text(shape));
        }
        match (&live.name, live.module, live.op) {
            (Some(name), _, _) => {
                let _ = write!(text, " `{}`", escape(name));
            }
            (None, module, Some(op)) => {
                let _ = write!(text, " of `{}`", escape(op));
                if let Some(module) = module.filter(|module| !module.is_empty()) {
                    let _ = write!(text, " in `{}`", escape(module));
                }
            }
            _ => {
                let _ = write!(text, " {}", live.category);
            }
        }
        text
    });
    let largest: Vec<String> = named.take(MAX_LIVE).collect();
    largest.join("; ")
}
