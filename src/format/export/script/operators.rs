//! One operator as a statement of TorchScript.

use super::super::super::error::FormatError;
use super::super::schema::{Argument, NamedArgument, Node, Symbolic};
use super::code::variable;
use super::flow::{Step, Type};
use super::unsupported;

/// What a statement is written with.
pub(super) trait Names {
    /// A value of the program, as this method sees it.
    fn value(&self, name: &str) -> String;
    /// The type of a value.
    fn kind(&self, name: &str) -> Type;
    /// A value's name in the program, from its name in a graph.
    fn scoped(&self, scope: usize, name: &str) -> String;
    /// The device that constants of the program stand for.
    fn device(&self) -> &str;
}

/// Checks that the exporter put in: they change nothing, and their sizes are those of the example.
const CHECKS: [&str; 7] = [
    "torch.ops.aten._assert_async.msg",
    "torch.ops.aten._assert_async.default",
    "torch.ops.aten._assert_scalar.default",
    "torch.ops.aten._assert_tensor_metadata.default",
    "torch.ops.aten.sym_constrain_range.default",
    "torch.ops.aten.sym_constrain_range_for_size.default",
    "torch._check",
];

/// The statement, or none where the operator only checks.
pub(super) fn statement(
    step: &Step<'_>,
    names: &dyn Names,
    index: usize,
) -> Result<Option<String>, FormatError> {
    let node = step.node;
    if CHECKS.contains(&node.target.as_str()) {
        return Ok(None);
    }
    let expression = match node.target.strip_prefix("torch.ops.") {
        Some(op) => operator(op, step, names)?,
        None => python(node, step, names)?,
    };
    let expression = match (node.target.as_str(), made(node, step, names)) {
        // What is one number of some type to TorchScript has a type of its own in the graph.
        (
            "torch.ops.aten.item.default" | "torch.ops.aten._local_scalar_dense.default",
            Some(kind),
        ) => {
            format!("{}({expression})", kind.name())
        }
        _ => expression,
    };
    Ok(Some(match left(step, names, index) {
        Some(left) => format!("{left} = {expression}"),
        None => format!("_n{index} = {expression}"),
    }))
}

/// The type of the first result.
fn made(node: &Node, step: &Step<'_>, names: &dyn Names) -> Option<Type> {
    let name = node.outputs.iter().flat_map(Argument::names).next()?;
    Some(names.kind(&names.scoped(step.scope, name)))
}

/// What the results are assigned to.
fn left(step: &Step<'_>, names: &dyn Names, index: usize) -> Option<String> {
    let target = |name: &str| variable(&names.scoped(step.scope, name));
    let outputs = step.node.outputs.as_slice();
    match outputs {
        [] => None,
        [Argument::Tensors(all)] => {
            let all: Vec<String> = all
                .iter()
                .map(|one| format!("{}, ", target(&one.name)))
                .collect();
            (!all.is_empty()).then(|| all.concat().trim_end().to_owned())
        }
        [one] => Some(match one.names().as_slice() {
            [name, ..] => target(name),
            [] => return None,
        }),
        several => {
            let parts =
                several
                    .iter()
                    .enumerate()
                    .map(|(place, one)| match one.names().as_slice() {
                        [name] if !name.is_empty() => format!("{}, ", target(name)),
                        _ => format!("_n{index}_{place}, "),
                    });
            Some(parts.collect::<String>().trim_end().to_owned())
        }
    }
}

/// `aten.conv2d.default` and its arguments.
fn operator(op: &str, step: &Step<'_>, names: &dyn Names) -> Result<String, FormatError> {
    let mut parts = op.splitn(3, '.');
    let (namespace, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    // What is a symbol to the exporter is a number here.
    let name = match (namespace, name) {
        ("aten", "sym_size") => "size",
        ("aten", "sym_numel") => "numel",
        ("aten", "sym_stride") => "stride",
        ("aten", "sym_storage_offset") => "storage_offset",
        _ => name,
    };
    if !super::tree::is_identifier(name) || !super::tree::is_identifier(namespace) {
        return Err(unsupported(&format!("`torch.ops.{op}`")));
    }
    let mut arguments = Vec::new();
    for input in &step.node.inputs {
        arguments.push(named(input, step, names)?);
    }
    Ok(format!("ops.{namespace}.{name}({})", arguments.join(", ")))
}

fn named(input: &NamedArgument, step: &Step<'_>, names: &dyn Names) -> Result<String, FormatError> {
    let value = value(&input.arg, step, names)?;
    Ok(if input.name.is_empty() {
        value
    } else {
        format!("{}={value}", input.name)
    })
}

/// Arithmetic on numbers, which Python does by itself.
fn python(node: &Node, step: &Step<'_>, names: &dyn Names) -> Result<String, FormatError> {
    let values: Result<Vec<String>, FormatError> = node
        .inputs
        .iter()
        .map(|input| value(&input.arg, step, names))
        .collect();
    let values = values?;
    let is_int = made(node, step, names) == Some(Type::Int);
    let target = node.target.as_str();
    let name = target.rsplit('.').next().unwrap_or(target);
    let infix = match name {
        "add" => "+",
        "sub" => "-",
        "mul" => "*",
        "floordiv" => "//",
        "truediv" => "/",
        "mod" => "%",
        "eq" => "==",
        "ne" => "!=",
        "lt" => "<",
        "le" => "<=",
        "gt" => ">",
        "ge" => ">=",
        "and_" => "and",
        "or_" => "or",
        "pow" => "**",
        _ => "",
    };
    Ok(match (name, values.as_slice()) {
        ("pow", [a, b]) if is_int => format!("int({a} ** {b})"),
        (_, [a, b]) if !infix.is_empty() => format!("({a} {infix} {b})"),
        ("neg", [a]) => format!("(-{a})"),
        ("sym_not" | "not_", [a]) => format!("(not {a})"),
        ("sym_max", [a, b]) => format!("ops.prim.max({a}, {b})"),
        ("sym_min", [a, b]) => format!("ops.prim.min({a}, {b})"),
        ("sym_float", [a]) => format!("float({a})"),
        ("sym_int" | "trunc", [a]) => format!("int({a})"),
        ("sym_ite", [a, b, c]) => format!("{b} if {a} else {c}"),
        ("ceil" | "floor", [a]) => format!("ops.aten.{name}({a})"),
        ("_sym_sqrt", [a]) => format!("ops.aten.sqrt({a})"),
        _ => return Err(unsupported(&format!("`{target}`"))),
    })
}

fn value(argument: &Argument, step: &Step<'_>, names: &dyn Names) -> Result<String, FormatError> {
    let of = |name: &str| names.value(&names.scoped(step.scope, name));
    let list = |parts: Vec<String>, kind: &str| {
        if parts.is_empty() {
            format!("annotate(List[{kind}], [])")
        } else {
            format!("[{}]", parts.join(", "))
        }
    };
    Ok(match argument {
        Argument::None | Argument::OptionalTensor(None) => "None".to_owned(),
        Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => of(name),
        Argument::Tensors(all) => list(all.iter().map(|one| of(&one.name)).collect(), "Tensor"),
        Argument::OptionalTensors(all) => {
            let parts: Vec<String> = all
                .iter()
                .map(|one| one.as_deref().map_or_else(|| "None".to_owned(), of))
                .collect();
            format!("annotate(List[Optional[Tensor]], [{}])", parts.join(", "))
        }
        Argument::Int(number) => integer(*number),
        Argument::Ints(all) => list(all.iter().map(|one| integer(*one)).collect(), "int"),
        Argument::Float(number) => float(*number),
        Argument::Floats(all) => list(all.iter().map(|one| float(*one)).collect(), "float"),
        Argument::Bool(truth) => boolean(*truth).to_owned(),
        Argument::Bools(all) => list(
            all.iter().map(|one| boolean(*one).to_owned()).collect(),
            "bool",
        ),
        Argument::Text(text) => quoted(text),
        Argument::Texts(all) => list(all.iter().map(|one| quoted(one)).collect(), "str"),
        Argument::Symbolic(one) => symbolic(one, step, names)?,
        Argument::Symbolics(all) => {
            let parts: Result<Vec<String>, FormatError> =
                all.iter().map(|one| symbolic(one, step, names)).collect();
            list(parts?, "int")
        }
        Argument::ScalarType(number) => match super::super::schema::dtype(*number) {
            Some(dtype) => dtype.scalar_type().to_string(),
            None => return Err(unsupported(&format!("dtype number {number}"))),
        },
        // libtorch counts from contiguous, the schema from unknown.
        Argument::MemoryFormat(number) => match number {
            1 => "0",
            2 => "2",
            3 => "3",
            4 => "1",
            _ => return Err(unsupported(&format!("memory format number {number}"))),
        }
        .to_owned(),
        // strided, COO, CSR, mkldnn, CSC, BSR, BSC to libtorch.
        Argument::Layout(number) => match number {
            7 => "0",
            1 => "1",
            2 => "2",
            6 => "3",
            3 => "4",
            4 => "5",
            5 => "6",
            _ => return Err(unsupported(&format!("layout number {number}"))),
        }
        .to_owned(),
        Argument::Device(device) => {
            let device = if device.kind == "meta" {
                "meta"
            } else {
                names.device()
            };
            format!("torch.device({})", quoted(device))
        }
        Argument::Graph(_) => return Err(unsupported(&format!("`{}`", step.node.target))),
        Argument::Other(key) => {
            return Err(unsupported(&format!(
                "an argument of kind `{key}` of `{}`",
                step.node.target
            )));
        }
    })
}

fn symbolic(one: &Symbolic, step: &Step<'_>, names: &dyn Names) -> Result<String, FormatError> {
    Ok(match one {
        Symbolic::Name(name) => names.value(&names.scoped(step.scope, name)),
        Symbolic::Int(number) => integer(*number),
        Symbolic::Float(number) => float(*number),
        Symbolic::Bool(truth) => boolean(*truth).to_owned(),
        Symbolic::Other(key) => return Err(unsupported(&format!("a number of kind `{key}`"))),
    })
}

/// A negative number is an expression to the grammar.
fn integer(number: i64) -> String {
    if number < 0 {
        format!("({number})")
    } else {
        number.to_string()
    }
}

pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        "float('nan')".to_owned()
    } else if number.is_infinite() {
        format!("float('{}inf')", if number < 0.0 { "-" } else { "" })
    } else if number < 0.0 {
        format!("({number:?})")
    } else {
        format!("{number:?}")
    }
}

pub(super) fn boolean(truth: bool) -> &'static str {
    if truth { "True" } else { "False" }
}

/// A string as Python writes it.
pub(in super::super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
