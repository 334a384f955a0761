//! A run as tables: modules, operators, phases.

use std::fmt::Write as _;

use super::exact::{OpReport, OpsReport, TensorShape};
use super::text::work_text;
use super::{MeasuredPhase, MeasuredReport, RunRow, RunRowKind, RunView};
use crate::report::Document;
use crate::report::grid::{Grid, numbers, phase_text, words};
use crate::report::layout::shape_text;
use crate::report::table::guides;
use crate::report::text_table::{Cell, Fit, Look};
use crate::text::{self, escape};
use crate::units::{Units, count, duration_ns, grouped};

/// Columns of a class; longer ones are cut, since paths say more.
const MAX_CLASS: usize = 20;

/// Kinds of operators that are told one by one.
const MAX_KINDS: usize = 12;

/// Tensors among an operator's arguments that are told.
const MAX_TENSORS: usize = 4;

/// The tables of a run: modules, then operators in order where they are asked for, else by kind; then the phases that
/// were measured, where no estimate shows those of its own.
pub(in crate::report) fn grids(view: &RunView<'_>, document: &Document<'_>) -> Vec<Grid> {
    let units = document.units;
    let mut grids = vec![modules(view, units)];
    let Some(run) = &document.report.run else {
        return grids;
    };
    grids.push(match &view.ops {
        Some((list, all)) => ops(list, *all, units),
        None => kinds(&run.ops),
    });
    if let (Some(measured), None) = (&run.measured, document.report.estimate) {
        grids.push(phases(measured, units));
    }
    grids
}

fn modules(view: &RunView<'_>, units: Units) -> Grid {
    Grid {
        columns: vec![
            words("Module", Fit::Cut(32)),
            words("Class", Fit::Drop(1)),
            numbers("Calls", Fit::Drop(2)),
            words("Output", Fit::Keep),
            numbers("Bytes", Fit::Drop(3)),
            numbers("Parameters", Fit::Keep),
            numbers("MACs", Fit::Keep),
            numbers("Peak inside", Fit::Drop(6)),
            numbers("Saved", Fit::Drop(4)),
            numbers("Time", Fit::Drop(0)),
            numbers("Backward", Fit::Drop(5)),
        ],
        rows: view.rows.iter().map(|row| module(row, units)).collect(),
        notes: notes(view),
    }
}

fn notes(view: &RunView<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if view.hidden_rows > 0 {
        let how = if view.tree {
            ": `--all` shows every one"
        } else {
            ""
        };
        notes.push(format!("… and {} more rows{how}", number(view.hidden_rows)));
    }
    if let Some((matching, all)) = view.filtered {
        notes.push(format!(
            "{} of {} modules and functions match",
            number(matching),
            number(all)
        ));
    }
    let (shown, levels) = view.depth;
    if shown < levels {
        notes.push(format!(
            "{shown} of {levels} levels: `--depth {levels}` shows all"
        ));
    }
    notes
}

fn number(value: usize) -> String {
    grouped(u64::try_from(value).unwrap_or(u64::MAX))
}

fn module(row: &RunRow<'_>, units: Units) -> Vec<Cell> {
    let look = match row.kind {
        _ if row.level == 0 && row.path.is_empty() => Look::Strong,
        RunRowKind::Module => Look::Plain,
        RunRowKind::Function => Look::Dim,
    };
    let mut label = escape(&row.label);
    if row.kind == RunRowKind::Module && row.repeats > 1 {
        label = format!("{label} x{}", row.repeats);
    }
    let parameters = match row.parameters {
        None => "unknown".to_owned(),
        Some(0) if row.shared => "shared".to_owned(),
        Some(0) => String::new(),
        Some(numel) if row.shared => format!("{} + shared", grouped(numel)),
        Some(numel) => grouped(numel),
    };
    let class = row.class.map(|class| text::cut(&escape(class), MAX_CLASS));
    let ran = row.calls > 0 || row.time_ns > 0;
    let cell = |text: String| Cell::new(text, look);
    let size = |bytes: Option<u64>| {
        let bytes = bytes.filter(|bytes| *bytes > 0);
        cell(bytes.map(|bytes| units.bytes(bytes)).unwrap_or_default())
    };
    let time = |ns: Option<u64>| cell(ns.map(duration_ns).unwrap_or_default());
    vec![
        Cell {
            lead: guides(&row.guides_below_root()),
            text: label,
            look,
        },
        Cell::new(class.unwrap_or_default(), Look::Dim),
        cell(if row.calls == 1 {
            String::new()
        } else {
            grouped(row.calls)
        }),
        cell(output_text(row)),
        size(row.output_bytes()),
        cell(parameters),
        cell(work_text(row.work)),
        size(row.peak_bytes),
        size(row.saved_bytes),
        time(ran.then_some(row.time_ns)),
        time(row.backward_time_ns.filter(|ns| *ns > 0)),
    ]
}

/// `1×64×56×56`, the first of several with the count of the others.
fn output_text(row: &RunRow<'_>) -> String {
    let Some(first) = row.outputs.first() else {
        return String::new();
    };
    let mut text = shape_text(first.shape);
    if row.outputs.len() > 1 {
        text = format!("{text} +{}", row.outputs.len() - 1);
    }
    if row.outputs_differ {
        text.push_str(" (varies)");
    }
    text
}

/// Operators by kind: the most work first, then the most calls. (By time, no two runs would show the same.)
fn kinds(ops: &OpsReport<'_>) -> Grid {
    let mut kinds: Vec<_> = ops.kinds.iter().collect();
    kinds.sort_by_key(|(_, kind)| std::cmp::Reverse((kind.flops.unwrap_or(0), kind.count)));
    let mut notes = Vec::new();
    if let Some(more) = kinds.get(MAX_KINDS..).filter(|more| !more.is_empty()) {
        let calls: u64 = more.iter().map(|(_, kind)| kind.count).sum();
        notes.push(format!(
            "… and {} more kinds with {} calls: `--ops` lists every operator",
            more.len(),
            grouped(calls)
        ));
    }
    let missing = |name: &str| ops.without_flops.contains(&name);
    let row = |(name, kind): &&(&str, super::exact::OpKindReport)| {
        let work = match kind.flops {
            None => "unknown".to_owned(),
            Some(0) => String::new(),
            Some(flops) if missing(name) => format!("≥{}", count(flops / 2)),
            Some(flops) => count(flops / 2),
        };
        vec![
            Cell::new(escape(name), Look::Plain),
            Cell::new(grouped(kind.count), Look::Plain),
            Cell::new(work, Look::Plain),
            Cell::new(duration_ns(kind.time_ns), Look::Plain),
        ]
    };
    Grid {
        columns: vec![
            words("Operators", Fit::Cut(24)),
            numbers("Calls", Fit::Keep),
            numbers("MACs", Fit::Keep),
            numbers("Time", Fit::Drop(0)),
        ],
        rows: kinds.iter().take(MAX_KINDS).map(row).collect(),
        notes,
    }
}

fn ops(list: &[OpReport<'_>], all: usize, units: Units) -> Grid {
    let mut notes = Vec::new();
    if list.len() < all {
        notes.push(format!(
            "{} of {} operators",
            number(list.len()),
            number(all)
        ));
    }
    let row = |op: &OpReport<'_>| {
        let work = match op.flops {
            None => "unknown".to_owned(),
            Some(0) => String::new(),
            Some(flops) => count(flops / 2),
        };
        let bytes = Some(op.bytes).filter(|bytes| *bytes > 0);
        vec![
            Cell::new(number(op.index), Look::Dim),
            Cell::new(escape(op.op), Look::Plain),
            Cell::new(op.module.map(escape).unwrap_or_default(), Look::Dim),
            Cell::new(op.phase.unwrap_or_default(), Look::Dim),
            Cell::new(tensors_text(&op.inputs), Look::Dim),
            Cell::new(tensors_text(&op.outputs), Look::Plain),
            Cell::new(
                bytes.map(|bytes| units.bytes(bytes)).unwrap_or_default(),
                Look::Plain,
            ),
            Cell::new(work, Look::Plain),
            Cell::new(op.time_ns.map(duration_ns).unwrap_or_default(), Look::Plain),
        ]
    };
    Grid {
        columns: vec![
            numbers("Op", Fit::Drop(4)),
            words("Operator", Fit::Cut(24)),
            words("Module", Fit::Cut(14)),
            words("Phase", Fit::Drop(2)),
            words("Inputs", Fit::Drop(3)),
            words("Outputs", Fit::Keep),
            numbers("Bytes", Fit::Drop(0)),
            numbers("MACs", Fit::Keep),
            numbers("Time", Fit::Drop(1)),
        ],
        rows: list.iter().map(row).collect(),
        notes,
    }
}

/// `1×3×224×224, 64×3×7×7 float32`: a dtype stands behind the last of the tensors that have it.
fn tensors_text(tensors: &[TensorShape<'_>]) -> String {
    let shown = tensors.get(..MAX_TENSORS).unwrap_or(tensors);
    let mut parts = Vec::with_capacity(shown.len());
    for (index, tensor) in shown.iter().enumerate() {
        let same = shown
            .get(index + 1)
            .is_some_and(|next| next.dtype == tensor.dtype);
        let shape = shape_text(tensor.shape);
        parts.push(if same {
            shape
        } else {
            format!("{shape} {}", escape(tensor.dtype))
        });
    }
    let mut text = parts.join(", ");
    let more = tensors.len() - shown.len();
    if more > 0 {
        let _ = write!(text, " +{more}");
    }
    text
}

/// What the allocator did, phase by phase; on a GPU also its whole memory, and its time.
fn phases(measured: &MeasuredReport<'_>, units: Units) -> Grid {
    let requested = |one: &MeasuredPhase| one.figures.peak_requested_bytes;
    let highest = measured.phases.iter().map(requested).max();
    let on_gpu = measured.phases.iter().any(|one| one.device.is_some());
    let row = |phase: &MeasuredPhase| {
        let one = &phase.figures;
        let look = if Some(one.peak_requested_bytes) == highest {
            Look::Strong
        } else {
            Look::Plain
        };
        let cell = |text| Cell::new(text, look);
        let reserved = one.peak_reserved_bytes;
        let mut cells = vec![
            cell(phase_text(one.name, one.step)),
            cell(units.bytes(one.start_requested_bytes)),
            cell(units.bytes(one.peak_requested_bytes)),
            cell(
                reserved
                    .map(|_| units.bytes(one.peak_allocated_bytes))
                    .unwrap_or_default(),
            ),
            cell(reserved.map(|bytes| units.bytes(bytes)).unwrap_or_default()),
            cell(units.bytes(one.end_requested_bytes)),
        ];
        if on_gpu {
            let used = phase.device.map(|device| units.bytes(device.peak));
            cells.push(cell(used.unwrap_or_default()));
            cells.push(cell(
                phase.device_time_ns.map(duration_ns).unwrap_or_default(),
            ));
        }
        cells
    };
    let mut columns = vec![
        words("Measured", Fit::Keep),
        numbers("At start", Fit::Drop(1)),
        numbers("Peak requested", Fit::Keep),
        numbers("Peak allocated", Fit::Drop(2)),
        numbers("Peak reserved", Fit::Keep),
        numbers("At end", Fit::Drop(0)),
    ];
    if on_gpu {
        columns.push(numbers("GPU in use", Fit::Drop(3)));
        columns.push(numbers("GPU time", Fit::Drop(4)));
    }
    Grid {
        columns,
        rows: measured.phases.iter().map(row).collect(),
        notes: Vec::new(),
    }
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
