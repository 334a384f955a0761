//! From facts to text: exact report, view, renderers.
//!
//! * [`ExactReport`] is everything that is known, serialized as the JSON contract; nothing in it is cut, sorted or
//!   rounded.
//! * [`View`] is what people asked to see: a tree or a list, filtered, sorted, repeated layers collapsed, cut.
//! * A [`Render`]er turns both into text. It is given width and colour and asks nobody.

pub mod check;
mod csv;
pub mod diff;
mod estimate;
mod exact;
pub mod fit;
mod grid;
mod html;
mod json;
mod layout;
mod markdown;
mod page;
mod parts;
mod program;
pub mod replay;
mod run;
mod statistics;
pub mod summary;
mod table;
mod text_table;
mod tree;
pub mod validate;

use std::io::{self, Write};

pub use self::csv::Csv;
pub use self::exact::{
    ClassBytes, ExactReport, FileReport, FindingReport, PartReport, SCHEMA_VERSION, SecurityReport,
    StorageList, StorageReport, SumReport, TensorList, TensorReport, Tool, TotalsReport,
    VerifiedReport,
};
pub use self::html::Html;
pub use self::json::{Json, an_item_a_line};
pub use self::layout::{Order, Row, RowKind, View, ViewOptions};
pub use self::markdown::Markdown;
pub use self::parts::{ChunkReport, ObjectReport, RanksReport};
pub use self::program::{NodeReport, PortReport, ProgramReport, SizeReport, SymbolReport};
pub use self::run::{
    ArgumentReport, CallOutputsReport, FunctionReport, InputReport, MeasuredReport, ModuleReport,
    OpReport, OpsReport, OutputReport, ParametersReport, RunAnalysis, RunOrder, RunReport, RunRow,
    RunRowKind, RunTotalsReport, RunView, RunViewOptions, TensorShape,
};
pub use self::table::Table;

use crate::checkpoint::Checkpoint;
use crate::tensor::DType;
use crate::units::Units;

/// One file, ready to be shown.
#[derive(Debug)]
pub struct Document<'a> {
    /// The model of the file, for what the exact report leaves out (classes, methods).
    pub checkpoint: &'a Checkpoint,
    /// Everything that is known.
    pub report: ExactReport<'a>,
    /// What was asked for.
    pub view: View,
    /// What people see of a run, where there was one.
    pub run: Option<RunView<'a>>,
    /// How sizes are written.
    pub units: Units,
    /// Whether every row was asked for.
    pub all: bool,
    /// Sizes if cast, where asked for.
    pub cast: Option<CastSizes>,
    /// The schema of a method, where asked for.
    pub signature: Option<String>,
}

/// What a checkpoint would need if its floating tensors had another dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CastSizes {
    /// The other dtype.
    pub dtype: DType,
    /// Every storage once, as far as tensors reach it.
    pub storage_bytes: u64,
}

/// A renderer of documents.
pub trait Render {
    /// Writes before the first of several documents.
    fn begin(&self, out: &mut dyn Write) -> io::Result<()> {
        let _ = out;
        Ok(())
    }
    /// Writes one document; `first` is false for all but the first of a report.
    fn document(&self, document: &Document<'_>, first: bool, out: &mut dyn Write)
    -> io::Result<()>;
    /// Writes after the last document.
    fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        let _ = out;
        Ok(())
    }
}
