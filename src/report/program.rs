//! Exported programs: what the JSON says of them, and the lines that people see.

use std::borrow::Cow;
use std::fmt::Write;

use serde::Serialize;

use super::grid::Fact;
use super::table::grouped_usize;
use super::text_table::Look;
use crate::checkpoint::program::expression::Expression;
use crate::checkpoint::program::{Constant, Node, Port, PortKind, Program, Symbol};
use crate::tensor::DType;
use crate::text::{cut, escape};

/// An exported program.
#[derive(Debug, Serialize)]
pub struct ProgramReport<'a> {
    /// What the archive calls it.
    pub name: &'a str,
    /// The version of the JSON's layout.
    pub schema_version: Option<&'a str>,
    /// Versions of operator sets.
    pub opset: serde_json::Map<String, serde_json::Value>,
    /// What it is called with, parameters, buffers and constants left out.
    pub inputs: Vec<PortReport<'a>>,
    /// Arguments that it was exported with and always has: they are not given.
    pub fixed_inputs: Vec<PortReport<'a>>,
    /// What it returns, flat.
    pub outputs: Vec<PortReport<'a>>,
    /// Sizes that are not fixed.
    pub symbols: Vec<SymbolReport<'a>>,
    /// Whether the file has inputs to run it with.
    pub sample_inputs: bool,
    /// The operators, in order.
    pub nodes: Vec<NodeReport<'a>>,
}

/// A value that goes in or comes out.
#[derive(Debug, Serialize)]
pub struct PortReport<'a> {
    /// Its name in the graph.
    pub name: &'a str,
    /// `Tensor`, or another type as TorchScript writes it.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// PyTorch's name without `torch.`; none for what is no tensor.
    pub dtype: Option<&'static str>,
    /// A number, or an expression of symbols, a dimension; none for what is no tensor.
    pub shape: Option<Vec<SizeReport<'a>>>,
    /// What it always is; not there for what the program computes or is given, or where the file does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<ConstantReport<'a>>,
}

/// A value that is always the same.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ConstantReport<'a> {
    /// `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A text; JSON has no number for what is infinite or NaN.
    Text(Cow<'a, str>),
}

/// A size.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum SizeReport<'a> {
    /// That is fixed.
    Number(u64),
    /// That depends on symbols.
    Expression(&'a str),
}

/// A size that is not fixed.
#[derive(Debug, Serialize)]
pub struct SymbolReport<'a> {
    /// Its name.
    pub name: &'a str,
    /// The least value; none without a bound.
    pub min: Option<i64>,
    /// The greatest value; none without a bound.
    pub max: Option<i64>,
}

/// An operator.
#[derive(Debug, Serialize)]
pub struct NodeReport<'a> {
    /// As the dispatcher names it.
    pub op: &'a str,
    /// The module that it is in.
    pub module: &'a str,
    /// What comes out.
    pub outputs: Vec<PortReport<'a>>,
}

impl<'a> ProgramReport<'a> {
    /// What there is to say of a program.
    #[must_use]
    pub fn of(program: &'a Program) -> ProgramReport<'a> {
        let versions = program.opset.iter();
        ProgramReport {
            name: &program.name,
            schema_version: program.schema_version.as_deref(),
            opset: versions
                .map(|(set, version)| (set.clone(), (*version).into()))
                .collect(),
            inputs: program.inputs.iter().map(port).collect(),
            fixed_inputs: program.fixed_inputs.iter().map(port).collect(),
            outputs: program.outputs.iter().map(port).collect(),
            symbols: program.symbols.iter().map(symbol).collect(),
            sample_inputs: program.has_sample_inputs,
            nodes: program.nodes.iter().map(node).collect(),
        }
    }
}

fn port(port: &Port) -> PortReport<'_> {
    let (kind, dtype, shape) = match &port.kind {
        PortKind::Tensor { dtype, shape } => ("Tensor", dtype.map(DType::name), Some(shape)),
        PortKind::Other(kind) => (kind.as_str(), None, None),
    };
    PortReport {
        name: &port.name,
        kind,
        dtype,
        shape: shape.map(|shape| shape.iter().map(|size| written(size)).collect()),
        value: port.constant.as_ref().map(constant),
    }
}

fn constant(constant: &Constant) -> ConstantReport<'_> {
    match constant {
        Constant::None => ConstantReport::None,
        Constant::Bool(value) => ConstantReport::Bool(*value),
        Constant::Int(number) => ConstantReport::Int(*number),
        Constant::Float(number) if number.is_finite() => ConstantReport::Float(*number),
        Constant::Float(number) => ConstantReport::Text(number.to_string().into()),
        Constant::Text(text) => ConstantReport::Text(text.into()),
    }
}

fn written(size: &str) -> SizeReport<'_> {
    size.parse()
        .map_or(SizeReport::Expression(size), SizeReport::Number)
}

fn symbol(symbol: &Symbol) -> SymbolReport<'_> {
    SymbolReport {
        name: &symbol.name,
        min: symbol.min,
        max: symbol.max,
    }
}

fn node(node: &Node) -> NodeReport<'_> {
    NodeReport {
        op: &node.op,
        module: &node.module,
        outputs: node.outputs.iter().map(port).collect(),
    }
}

/// Widest name, and most values, that a line shows.
const NAME_WIDTH: usize = 40;
const VALUES: usize = 6;

/// The lines on exported programs.
pub(super) fn facts(programs: &[Program]) -> Vec<Fact> {
    let mut facts = Vec::new();
    for program in programs {
        let count = program.nodes.len();
        let plural = if count == 1 { "" } else { "s" };
        let mut text = format!("{} operator{plural}", grouped_usize(count));
        if programs.len() > 1 {
            text = format!("`{}`: {text}", shown(&program.name));
        }
        if let Some(version) = &program.schema_version {
            text.push_str(", schema ");
            text.push_str(&shown(version));
        }
        text.push_str(if program.has_sample_inputs {
            "; with the inputs that it was exported with"
        } else {
            "; without inputs"
        });
        facts.push(Fact::new("Program", text, Look::Plain));
        facts.push(Fact::new("Takes", ports(&program.inputs), Look::Plain));
        if !program.fixed_inputs.is_empty() {
            facts.push(Fact::new(
                "Fixed",
                ports(&program.fixed_inputs),
                Look::Plain,
            ));
        }
        facts.push(Fact::new("Returns", ports(&program.outputs), Look::Plain));
        if !program.symbols.is_empty() {
            let sizes: Vec<String> = program.symbols.iter().map(range).collect();
            facts.push(Fact::new("Sizes", limited(&sizes, ", "), Look::Plain));
        }
    }
    facts
}

fn shown(text: &str) -> String {
    cut(&escape(text), NAME_WIDTH)
}

fn ports(ports: &[Port]) -> String {
    let texts: Vec<String> = ports.iter().map(port_text).collect();
    if texts.is_empty() {
        return "nothing".to_owned();
    }
    limited(&texts, "; ")
}

fn limited(texts: &[String], between: &str) -> String {
    let mut text = texts
        .iter()
        .take(VALUES)
        .cloned()
        .collect::<Vec<_>>()
        .join(between);
    if let Some(more) = texts.len().checked_sub(VALUES).filter(|more| *more > 0) {
        let _ = write!(text, "{between}and {} more", grouped_usize(more));
    }
    text
}

fn port_text(port: &Port) -> String {
    let kind = match &port.kind {
        PortKind::Tensor { dtype, shape } => {
            let shape = match shape.as_slice() {
                [] => "scalar".to_owned(),
                [one] => size_text(one),
                several => several
                    .iter()
                    .map(|size| apart(size))
                    .collect::<Vec<_>>()
                    .join("×"),
            };
            format!(
                "{} {}",
                shown(&shape),
                dtype.map_or("of an unknown dtype", DType::name)
            )
        }
        PortKind::Other(kind) => match port.constant.as_ref().and_then(constant_text) {
            Some(value) => format!("{} {}", shown(kind), shown(&value)),
            None => shown(kind),
        },
    };
    if port.name.is_empty() {
        kind
    } else {
        format!("`{}` {kind}", shown(&port.name))
    }
}

/// A value that the program always has, as Python writes it; `None` says so by its type.
fn constant_text(constant: &Constant) -> Option<String> {
    Some(match constant {
        Constant::None => return None,
        Constant::Bool(true) => "True".to_owned(),
        Constant::Bool(false) => "False".to_owned(),
        Constant::Int(number) => number.to_string(),
        Constant::Float(number) => format!("{number:?}"),
        Constant::Text(text) => format!("'{text}'"),
    })
}

/// A size as people write it.
fn size_text(size: &str) -> String {
    Expression::parse(size).map_or_else(|| size.to_owned(), |read| read.to_string())
}

/// The same among others, in parentheses where it would look like several.
fn apart(size: &str) -> String {
    let text = size_text(size);
    if text.contains(['*', '/', '+', '-', '%', ' ']) {
        format!("({text})")
    } else {
        text
    }
}

fn range(symbol: &Symbol) -> String {
    let name = shown(&size_text(&symbol.name));
    match (symbol.min, symbol.max) {
        (Some(min), Some(max)) => format!("`{name}` {min} to {max}"),
        (Some(min), None) => format!("`{name}` from {min}"),
        (None, Some(max)) => format!("`{name}` up to {max}"),
        (None, None) => format!("`{name}` any"),
    }
}
