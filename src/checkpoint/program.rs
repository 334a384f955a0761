//! The graph of an exported program (`torch.export.save`), as the file says it.

pub mod expression;

use crate::tensor::DType;

/// An exported program.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// What the archive calls it (`model`).
    pub name: String,
    /// The version of the JSON's layout (`8.17`), where it says.
    pub schema_version: Option<String>,
    /// Versions of operator sets (`aten`: 10), sorted.
    pub opset: Vec<(String, i64)>,
    /// What it is called with, in order: parameters, buffers and constants left out.
    pub inputs: Vec<Port>,
    /// Arguments that it was exported with and always has, in order.
    pub fixed_inputs: Vec<Port>,
    /// What it returns, in order, as a flat list.
    pub outputs: Vec<Port>,
    /// Sizes that are not fixed.
    pub symbols: Vec<Symbol>,
    /// The operators, in order.
    pub nodes: Vec<Node>,
    /// Whether the archive has inputs to run it with.
    pub has_sample_inputs: bool,
}

/// A value that goes into or comes out of a program or a node.
#[derive(Debug, Clone, PartialEq)]
pub struct Port {
    /// Its name in the graph; empty where it has none.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// What it always is, where the file says that.
    pub constant: Option<Constant>,
}

/// A value that the program was exported with.
#[derive(Debug, Clone, PartialEq)]
pub enum Constant {
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text.
    Text(String),
}

/// What a value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortKind {
    /// A tensor, as it was when the program was exported.
    Tensor {
        /// `None` for a number that torch 2.11 does not write.
        dtype: Option<DType>,
        /// A number, or a symbol or expression of symbols, a dimension.
        shape: Vec<String>,
    },
    /// Something else, as TorchScript writes types (`int`, `float`, `None`).
    Other(String),
}

/// A size that is not fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name (`s77`).
    pub name: String,
    /// The least value; `None` where there is no bound.
    pub min: Option<i64>,
    /// The greatest.
    pub max: Option<i64>,
}

/// An operator of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The operator, as dispatched (`aten::conv2d`), or the Python function where it is none.
    pub op: String,
    /// The path of the module that it was in; empty for the root.
    pub module: String,
    /// What comes out of it.
    pub outputs: Vec<Port>,
}
