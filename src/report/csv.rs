//! CSV: tensors as rows, exact, for a spreadsheet. Filtered, sorted and cut like any list, never collapsed.

use std::io::{self, Write};

use super::tree::cast_bytes;
use super::{Document, Render, TensorReport};
use crate::tensor::DType;

/// Tensors as rows of CSV, of all files in one table.
#[derive(Debug, Clone, Copy)]
pub struct Csv {
    /// Adds a column with the sizes if cast to this dtype: `bytes_as_bfloat16`.
    pub cast: Option<DType>,
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

impl Render for Csv {
    fn begin(&self, out: &mut dyn Write) -> io::Result<()> {
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

fn record(out: &mut dyn Write, fields: &[String]) -> io::Result<()> {
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
