//! CSV: exact figures as rows, for a spreadsheet. Filtered, sorted and cut like any list, never collapsed.
//!
//! Without a run every row is a tensor. With one the rows are what the run showed, told apart by the column `row`:
//! `module`, `function` (an operator that a module calls itself), `op` (with `--ops`), `measured` and `estimate` (a
//! phase each); a file that was not run has a row `tensor` for each of its tensors. An empty field does not apply, or is unknown.

use std::io::{self, Write};

use super::tree::cast_bytes;
use super::{Document, OpReport, Render, RunRow, RunRowKind, TensorReport, TensorShape};
use crate::estimate::PhaseFigures;
use crate::tensor::DType;
use crate::trace::flops::Work;

/// Rows of CSV, of all files in one table.
#[derive(Debug, Clone, Copy)]
pub struct Csv {
    /// Adds a column with the sizes if cast to this dtype: `bytes_as_bfloat16`.
    pub cast: Option<DType>,
    /// Whether any of the files was run.
    pub runs: bool,
}

const COLUMNS: [&str; 13] = [
    "file",
    "name",
    "role",
    "role_source",
    "dtype",
    "shape",
    "strides",
    "numel",
    "bytes",
    "storage",
    "storage_offset",
    "requires_grad",
    "layout",
];

const RUN_COLUMNS: [&str; 25] = [
    "file",
    "row",
    "index",
    "path",
    "name",
    "phase",
    "step",
    "calls",
    "dtype",
    "shape",
    "bytes",
    "parameters",
    "macs",
    "flops",
    "time_ns",
    "backward_time_ns",
    "saved_bytes",
    "peak_bytes",
    "inputs",
    "start_requested_bytes",
    "peak_requested_bytes",
    "peak_allocated_bytes",
    "peak_active_bytes",
    "peak_reserved_bytes",
    "end_requested_bytes",
];

impl Render for Csv {
    fn begin(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.runs {
            return record(out, &RUN_COLUMNS.map(str::to_owned));
        }
        let mut columns = COLUMNS.map(str::to_owned).to_vec();
        columns.extend(self.cast.map(|dtype| format!("bytes_as_{}", dtype.name())));
        record(out, &columns)
    }

    fn document(
        &self,
        document: &Document<'_>,
        _first: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let report = &document.report;
        if self.runs {
            return run(document, out);
        }
        let tensors = document.checkpoint.tensors();
        for index in &document.view.selected {
            let (Some(tensor), Some(model)) = (report.tensors.get(*index), tensors.get(*index))
            else {
                continue;
            };
            let mut fields = row(&report.file.path, &tensor).to_vec();
            let cast = self.cast.map(|dtype| cast_bytes(model, dtype));
            fields.extend(cast.map(|bytes| number(tensor.bytes.map(|_| bytes))));
            record(out, &fields)?;
        }
        Ok(())
    }
}

/// The rows of a run.
fn run(document: &Document<'_>, out: &mut dyn Write) -> io::Result<()> {
    let file = &document.report.file.path;
    let mut write = |row: RunFields| record(out, &row.fields(file));
    let view = document.run.as_ref();
    for row in view.iter().flat_map(|view| &view.rows) {
        write(module(row))?;
    }
    for op in view
        .iter()
        .filter_map(|view| view.ops.as_ref())
        .flat_map(|(list, _)| list)
    {
        write(operator(op))?;
    }
    if view.is_none() && document.report.estimate.is_none() {
        let selected = document.view.selected.iter();
        for one in selected.filter_map(|index| document.report.tensors.get(*index)) {
            write(tensor(&one))?;
        }
    }
    let run = document.report.run.as_ref();
    let measured = run.and_then(|run| run.measured.as_ref());
    for one in measured.iter().flat_map(|measured| &measured.phases) {
        write(phase("measured", &one.figures))?;
    }
    for one in document.report.estimate.iter().flat_map(|one| &one.phases) {
        write(phase("estimate", one))?;
    }
    Ok(())
}

/// A row of a run, by column.
#[derive(Default)]
struct RunFields {
    row: &'static str,
    index: String,
    path: String,
    name: String,
    phase: String,
    step: String,
    calls: String,
    dtype: String,
    shape: String,
    bytes: String,
    parameters: String,
    macs: String,
    flops: String,
    time_ns: String,
    backward_time_ns: String,
    saved_bytes: String,
    peak_bytes: String,
    inputs: String,
    /// Requested at the start, peaks of requested, allocated, active and reserved, requested at the end.
    memory: [String; 6],
}

impl RunFields {
    fn fields(self, file: &str) -> [String; RUN_COLUMNS.len()] {
        let [start, requested, allocated, active, reserved, end] = self.memory;
        [
            file.to_owned(),
            self.row.to_owned(),
            self.index,
            self.path,
            self.name,
            self.phase,
            self.step,
            self.calls,
            self.dtype,
            self.shape,
            self.bytes,
            self.parameters,
            self.macs,
            self.flops,
            self.time_ns,
            self.backward_time_ns,
            self.saved_bytes,
            self.peak_bytes,
            self.inputs,
            start,
            requested,
            allocated,
            active,
            reserved,
            end,
        ]
    }
}

fn module(row: &RunRow<'_>) -> RunFields {
    let work = Some(row.work).filter(|work| !work.incomplete);
    let (kind, name) = match row.kind {
        RunRowKind::Module if row.path.is_empty() => ("module", row.label.as_str()),
        RunRowKind::Module => ("module", row.class.unwrap_or_default()),
        RunRowKind::Function => ("function", row.function.unwrap_or_default()),
    };
    RunFields {
        row: kind,
        path: row.path.to_owned(),
        name: name.to_owned(),
        calls: row.calls.to_string(),
        dtype: joined(&row.outputs, |tensor| tensor.dtype.to_owned()),
        shape: joined(&row.outputs, |tensor| list(tensor.shape)),
        bytes: number(row.output_bytes()),
        parameters: number(row.parameters),
        macs: number(work.map(|work| work.macs)),
        flops: number(work.map(Work::flops)),
        time_ns: row.time_ns.to_string(),
        backward_time_ns: number(row.backward_time_ns),
        saved_bytes: number(row.saved_bytes),
        peak_bytes: number(row.peak_bytes),
        ..RunFields::default()
    }
}

fn tensor(tensor: &TensorReport<'_>) -> RunFields {
    RunFields {
        row: "tensor",
        path: tensor.name.to_owned(),
        dtype: tensor.dtype.unwrap_or_default().to_owned(),
        shape: tensor.shape.map(list).unwrap_or_default(),
        bytes: number(tensor.bytes),
        ..RunFields::default()
    }
}

fn operator(op: &OpReport<'_>) -> RunFields {
    RunFields {
        row: "op",
        index: op.index.to_string(),
        path: op.module.unwrap_or_default().to_owned(),
        name: op.op.to_owned(),
        phase: op.phase.unwrap_or_default().to_owned(),
        calls: "1".to_owned(),
        dtype: joined(&op.outputs, |tensor| tensor.dtype.to_owned()),
        shape: joined(&op.outputs, |tensor| list(tensor.shape)),
        bytes: op.bytes.to_string(),
        macs: number(op.flops.map(|flops| flops / 2)),
        flops: number(op.flops),
        time_ns: number(op.time_ns),
        inputs: joined(&op.inputs, |tensor| {
            format!("{}:{}", list(tensor.shape), tensor.dtype)
        }),
        ..RunFields::default()
    }
}

/// A phase, `measured` or of the `estimate`.
fn phase(row: &'static str, phase: &PhaseFigures) -> RunFields {
    RunFields {
        row,
        phase: phase.name.to_owned(),
        step: number(phase.step),
        memory: [
            phase.start_requested_bytes.to_string(),
            phase.peak_requested_bytes.to_string(),
            phase.peak_allocated_bytes.to_string(),
            number(phase.peak_active_bytes),
            number(phase.peak_reserved_bytes),
            phase.end_requested_bytes.to_string(),
        ],
        ..RunFields::default()
    }
}

/// What is said of each of several tensors, joined by blanks.
fn joined(tensors: &[TensorShape<'_>], say: impl Fn(&TensorShape<'_>) -> String) -> String {
    let parts: Vec<String> = tensors.iter().map(say).collect();
    parts.join(" ")
}

fn row(file: &str, tensor: &TensorReport<'_>) -> [String; 13] {
    [
        file.to_owned(),
        tensor.name.to_owned(),
        tensor.role.to_owned(),
        tensor.role_source.to_owned(),
        tensor.dtype.unwrap_or_default().to_owned(),
        tensor.shape.map(list).unwrap_or_default(),
        tensor.strides.map(list).unwrap_or_default(),
        number(tensor.numel),
        number(tensor.bytes),
        number(tensor.storage),
        number(tensor.storage_offset),
        tensor
            .requires_grad
            .map(|grad| grad.to_string())
            .unwrap_or_default(),
        tensor.layout.to_owned(),
    ]
}

pub(super) fn record(out: &mut dyn Write, fields: &[String]) -> io::Result<()> {
    let mut writer = csv::WriterBuilder::new()
        .buffer_capacity(512)
        .from_writer(out);
    writer.write_record(fields).map_err(io::Error::from)?;
    writer.flush()
}

/// An empty field is unknown.
fn number(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// `64x3x7x7`, as `--input` takes it; `[]` for a 0-dim tensor, so that it differs from unknown.
fn list(sizes: &[u64]) -> String {
    if sizes.is_empty() {
        return "[]".to_owned();
    }
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    sizes.join("x")
}
