//! What reports say of an exported program.

use std::collections::HashMap;

use super::schema::{
    Argument, ExportedProgram, Graph, InputSpec, OutputSpec, Size, Symbolic, Version, readable,
};
use super::structure::structure;
use crate::checkpoint::program::{Constant, Node, Port, PortKind, Program, Symbol};
use crate::checkpoint::{Argument as MethodArgument, Method};

/// The facts of a program.
pub(super) fn facts(name: &str, exported: &ExportedProgram, has_sample_inputs: bool) -> Program {
    let graph = &exported.graph_module.graph;
    let signature = &exported.graph_module.signature;
    let inputs = signature.input_specs.iter().filter_map(|spec| match spec {
        InputSpec::User(argument) => Some(port(graph, argument)),
        _ => None,
    });
    let fixed = signature.input_specs.iter().filter_map(|spec| match spec {
        InputSpec::Value(fixed) => Some(Port {
            name: fixed.name.clone(),
            ..port(graph, &fixed.value)
        }),
        _ => None,
    });
    let outputs = signature.output_specs.iter().filter_map(|spec| match spec {
        OutputSpec::User(argument) => Some(port(graph, argument)),
        _ => None,
    });
    let mut opset: Vec<(String, i64)> = exported
        .opset_version
        .iter()
        .map(|(set, version)| (set.clone(), *version))
        .collect();
    opset.sort();
    Program {
        name: name.to_owned(),
        schema_version: match exported.schema_version {
            Version::Parts { major, minor } => Some(format!("{major}.{minor}")),
            Version::Number(number) => Some(number.to_string()),
            Version::Unknown => None,
        },
        opset,
        inputs: inputs.collect(),
        fixed_inputs: fixed.collect(),
        outputs: outputs.collect(),
        symbols: symbols(exported),
        nodes: graph.nodes.iter().map(|one| node(graph, one)).collect(),
        has_sample_inputs,
    }
}

/// The method that a run calls, with the schema that libtorch says of it.
pub(super) fn method(program: &Program, exported: &ExportedProgram) -> Method {
    // What the program always has is no argument of it.
    let named = program.inputs.iter().filter(|input| !input.name.is_empty());
    let arguments = named.map(|input| MethodArgument {
        name: input.name.clone(),
        type_name: type_name(&input.kind).to_owned(),
        default: None,
    });
    let returns: Vec<(String, &str)> = program
        .outputs
        .iter()
        .map(|output| (String::new(), type_name(&output.kind)))
        .collect();
    let (_, returns) = structure(exported.graph_module.out_spec(), &returns);
    Method {
        name: "forward".to_owned(),
        arguments: arguments.collect(),
        returns,
    }
}

fn type_name(kind: &PortKind) -> &str {
    match kind {
        PortKind::Tensor { .. } => "Tensor",
        PortKind::Other(name) if name == "None" => "NoneType",
        PortKind::Other(name) => name,
    }
}

fn symbols(exported: &ExportedProgram) -> Vec<Symbol> {
    let bound = |value: Option<&serde_json::Value>| value.and_then(serde_json::Value::as_i64);
    exported
        .range_constraints
        .iter()
        .map(|(name, range)| Symbol {
            name: readable(name),
            min: bound(range.get("min_val").or_else(|| range.get(0))),
            // What is this large stands for infinity.
            max: bound(range.get("max_val").or_else(|| range.get(1)))
                .filter(|max| *max < i64::MAX - 1),
        })
        .collect()
}

fn node(graph: &Graph, node: &super::schema::Node) -> Node {
    Node {
        op: op_name(&node.target),
        module: stack(node).last().map_or("", |frame| frame.path).to_owned(),
        outputs: node
            .outputs
            .iter()
            .flat_map(|output| ports(graph, output))
            .collect(),
    }
}

/// `torch.ops.aten.add.Tensor` as the dispatcher names it, `aten::add.Tensor`; the default overload has no name.
fn op_name(target: &str) -> String {
    let Some(op) = target.strip_prefix("torch.ops.") else {
        return target.to_owned();
    };
    match op.split_once('.') {
        Some((namespace, rest)) => {
            format!(
                "{namespace}::{}",
                rest.strip_suffix(".default").unwrap_or(rest)
            )
        }
        None => op.to_owned(),
    }
}

/// A module call that a node was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'g> {
    /// Tells calls of one module apart: `L__self___layer1@1`.
    pub(super) key: &'g str,
    pub(super) path: &'g str,
    pub(super) class: &'g str,
}

/// The module calls that a node was in, outermost first; empty where the file does not say.
pub(super) fn stack(node: &super::schema::Node) -> Vec<Frame<'_>> {
    let text = node.metadata.nn_module_stack.as_deref().unwrap_or("");
    let frames = text.split(';').filter_map(|frame| {
        let (key, rest) = frame.split_once(',')?;
        // Paths of modules have no commas; classes may (`Foo[int, str]`).
        let (path, class) = rest.split_once(',')?;
        // Reading a size in the root leaves a hook's name where a module's should be.
        if path == "_empty_nn_module_stack_from_metadata_hook" {
            return None;
        }
        let path = path.strip_prefix("L['self'].").unwrap_or(path);
        Some(Frame {
            key,
            path: if path == "L['self']" { "" } else { path },
            class,
        })
    });
    frames.collect()
}

/// The class of every module that a node was in, by path; nodes of branches and of regions without gradients too.
pub(super) fn classes(graph: &Graph) -> HashMap<&str, &str> {
    let mut classes = HashMap::new();
    // Graphs lie in graphs no deeper than JSON is read.
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        for node in &graph.nodes {
            for frame in stack(node) {
                classes.entry(frame.path).or_insert(frame.class);
            }
            graphs.extend(node.inputs.iter().filter_map(|input| match &input.arg {
                Argument::Graph(inner) => Some(inner.as_ref()),
                _ => None,
            }));
        }
    }
    classes
}

/// The one value that an argument is.
fn port(graph: &Graph, argument: &Argument) -> Port {
    ports(graph, argument)
        .pop()
        .unwrap_or_else(|| nameless(argument))
}

fn ports(graph: &Graph, argument: &Argument) -> Vec<Port> {
    let names = argument.names();
    if names.is_empty() {
        return vec![nameless(argument)];
    }
    let ports = names.into_iter().map(|name| Port {
        name: name.to_owned(),
        kind: match graph.tensor_values.get(name) {
            Some(meta) => PortKind::Tensor {
                dtype: meta.dtype(),
                shape: meta.sizes.iter().map(size).collect(),
            },
            None => PortKind::Other(number(graph, name, argument).to_owned()),
        },
        constant: None,
    });
    ports.collect()
}

/// What is no value of the graph: a number or a text that is written down, or nothing.
fn nameless(argument: &Argument) -> Port {
    let constant = match argument {
        Argument::None | Argument::OptionalTensor(None) => Some(Constant::None),
        Argument::Int(number) | Argument::Symbolic(Symbolic::Int(number)) => {
            Some(Constant::Int(*number))
        }
        Argument::Float(number) | Argument::Symbolic(Symbolic::Float(number)) => {
            Some(Constant::Float(*number))
        }
        Argument::Bool(value) | Argument::Symbolic(Symbolic::Bool(value)) => {
            Some(Constant::Bool(*value))
        }
        Argument::Text(text) => Some(Constant::Text(text.clone())),
        _ => None,
    };
    Port {
        name: String::new(),
        kind: PortKind::Other(other(argument)),
        constant,
    }
}

fn size(size: &Size) -> String {
    match size {
        Size::Int(number) => number.to_string(),
        Size::Expression { text, .. } => text.clone(),
    }
}

fn number(graph: &Graph, name: &str, argument: &Argument) -> &'static str {
    if graph.sym_int_values.contains_key(name) {
        "int"
    } else if graph.sym_bool_values.contains_key(name) {
        "bool"
    } else if graph.sym_float_values.contains_key(name) {
        "float"
    } else if matches!(argument, Argument::Tensor(_) | Argument::Tensors(_)) {
        "Tensor"
    } else {
        "unknown"
    }
}

fn other(argument: &Argument) -> String {
    match argument {
        Argument::None | Argument::OptionalTensor(None) => "None",
        Argument::Int(_) | Argument::Symbolic(Symbolic::Int(_)) => "int",
        Argument::Float(_) | Argument::Symbolic(Symbolic::Float(_)) => "float",
        Argument::Bool(_) | Argument::Symbolic(Symbolic::Bool(_)) => "bool",
        Argument::Text(_) => "str",
        Argument::Tensors(_) => "List[Tensor]",
        Argument::Ints(_) | Argument::Symbolics(_) => "List[int]",
        Argument::Floats(_) => "List[float]",
        Argument::Bools(_) => "List[bool]",
        Argument::Texts(_) => "List[str]",
        Argument::Other(key) => return key.strip_prefix("as_").unwrap_or(key).to_owned(),
        _ => "unknown",
    }
    .to_owned()
}
