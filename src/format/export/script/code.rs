//! Classes and methods as TorchScript source.

use std::fmt::Write;

use super::super::super::error::FormatError;
use super::super::schema::{Argument, Binding, ExportedProgram, OutputSpec, Symbolic};
use super::super::structure::{structure, tuple, tuple_type};
use super::flow::{Call, Flow, Item, Type};
use super::operators::{self, Names};
use super::tree::{Module, Tree, is_identifier, names_of};
use super::unsupported;

/// The source of every class, by its qualified name, in the order of the tree.
pub(super) fn classes(
    exported: &ExportedProgram,
    flow: &Flow<'_>,
    tree: &Tree<'_>,
    device: &str,
) -> Result<Vec<(String, String)>, FormatError> {
    let mut sources = Vec::new();
    for module in &tree.modules {
        let mut text = header(module, tree);
        for call in flow.calls.iter().filter(|call| call.path == module.path) {
            let writer = Writer {
                flow,
                module,
                device,
            };
            if module.path.is_empty() {
                writer.root(call, exported, &mut text)?;
            } else {
                writer.method(call, &mut text)?;
            }
        }
        sources.push((module.class.clone(), text));
    }
    Ok(sources)
}

fn header(module: &Module<'_>, tree: &Tree<'_>) -> String {
    let class = module.class.rsplit('.').next().unwrap_or("Module");
    let list = |names: Vec<String>| {
        let quoted: Vec<String> = names
            .iter()
            .map(|name| format!("{}, ", operators::quoted(name)))
            .collect();
        quoted.concat()
    };
    let mut text = format!(
        "class {class}(Module):\n  __parameters__ = [{}]\n  __buffers__ = [{}]\n",
        list(names_of(module, true)),
        list(names_of(module, false))
    );
    let mut odd = String::new();
    let mut attribute = |name: &str, kind: &str| {
        let _ = if is_identifier(name) {
            writeln!(text, "  {name} : {kind}")
        } else {
            writeln!(
                odd,
                "  __annotations__[{}] = {kind}",
                operators::quoted(name)
            )
        };
    };
    for (name, _) in &module.tensors {
        attribute(name, "Tensor");
    }
    for (name, place) in &module.children {
        let class = tree
            .modules
            .get(*place)
            .map_or("", |child| child.class.as_str());
        attribute(name, class);
    }
    if !odd.is_empty() {
        text.push_str("  __annotations__ = []\n");
        text.push_str(&odd);
    }
    text
}

/// Writes the methods of one module.
struct Writer<'w> {
    flow: &'w Flow<'w>,
    module: &'w Module<'w>,
    device: &'w str,
}

impl Writer<'_> {
    fn method(&self, call: &Call<'_>, text: &mut String) -> Result<(), FormatError> {
        let returns: Vec<&str> = call
            .outputs
            .iter()
            .map(|name| self.kind(name).name())
            .collect();
        let values: Vec<String> = call.outputs.iter().map(|name| self.value(name)).collect();
        self.signature(call, &call.inputs, &tuple_type(&returns), text);
        self.body(call, text)?;
        let _ = writeln!(text, "    return {}", tuple(&values));
        Ok(())
    }

    /// The program itself: called with its arguments, and its outputs as the caller had them.
    fn root(
        &self,
        call: &Call<'_>,
        exported: &ExportedProgram,
        text: &mut String,
    ) -> Result<(), FormatError> {
        let signature = &exported.graph_module.signature;
        let mut flat = Vec::new();
        let mut changed = Vec::new();
        for output in &signature.output_specs {
            match output {
                OutputSpec::User(argument) => flat.push(self.result(argument)?),
                OutputSpec::BufferMutation(Binding { arg, name })
                | OutputSpec::ParameterMutation(Binding { arg, name }) => {
                    changed.push((self.attribute(name), self.value(&self.outside(arg))));
                }
                OutputSpec::InputMutation(Binding { arg, name }) => {
                    changed.push((
                        self.value(&self.outside(name)),
                        self.value(&self.outside(arg)),
                    ));
                }
                OutputSpec::Other(key) => {
                    return Err(unsupported(&format!("an output of kind `{key}`")));
                }
            }
        }
        let (value, kind) = structure(exported.graph_module.out_spec(), &flat);
        self.signature(call, &self.flow.arguments, &kind, text);
        self.body(call, text)?;
        for (index, (target, value)) in changed.into_iter().enumerate() {
            let _ = writeln!(text, "    _c{index} = torch.copy_({target}, {value})");
        }
        let _ = writeln!(text, "    return {value}");
        Ok(())
    }

    fn signature(&self, call: &Call<'_>, arguments: &[String], returns: &str, text: &mut String) {
        let _ = write!(text, "  def {}(self: {}", call.method, self.module.class);
        for name in arguments {
            let _ = write!(
                text,
                ",\n    {}: {}",
                variable(name),
                self.kind(name).name()
            );
        }
        let _ = writeln!(text, ") -> {returns}:");
    }

    fn body(&self, call: &Call<'_>, text: &mut String) -> Result<(), FormatError> {
        for (index, item) in call.items.iter().enumerate() {
            match item {
                Item::Step(step) => {
                    if let Some(line) = operators::statement(step, self, index)? {
                        let _ = writeln!(text, "    {line}");
                    }
                }
                Item::Call(callee) => {
                    let Some(callee) = self.flow.calls.get(*callee) else {
                        continue;
                    };
                    let arguments: Vec<String> = callee
                        .inputs
                        .iter()
                        .map(|name| format!("{}, ", self.value(name)))
                        .collect();
                    let call = format!(
                        "({}).{}({})",
                        self.attribute(callee.path),
                        callee.method,
                        arguments.concat()
                    );
                    let results: Vec<String> =
                        callee.outputs.iter().map(|name| variable(name)).collect();
                    let _ = match results.as_slice() {
                        [] => writeln!(text, "    _m{index} = {call}"),
                        [one] => writeln!(text, "    {one} = {call}"),
                        several => writeln!(text, "    {}, = {call}", several.join(", ")),
                    };
                }
            }
        }
        Ok(())
    }

    /// `self.layer1.conv.weight`, as seen from this module.
    fn attribute(&self, full: &str) -> String {
        let below = if self.module.path.is_empty() {
            full
        } else {
            full.strip_prefix(&self.module.path)
                .and_then(|rest| rest.strip_prefix('.'))
                .unwrap_or(full)
        };
        below.split('.').fold("self".to_owned(), |object, name| {
            if is_identifier(name) {
                format!("{object}.{name}")
            } else {
                format!("getattr({object}, {})", operators::quoted(name))
            }
        })
    }

    fn outside(&self, name: &str) -> String {
        self.flow.name(0, name)
    }

    fn result(&self, argument: &Argument) -> Result<(String, &'static str), FormatError> {
        let literal = match argument {
            Argument::None | Argument::OptionalTensor(None) => ("None".to_owned(), "NoneType"),
            Argument::Int(value) | Argument::Symbolic(Symbolic::Int(value)) => {
                (value.to_string(), "int")
            }
            Argument::Float(value) | Argument::Symbolic(Symbolic::Float(value)) => {
                (operators::float(*value), "float")
            }
            Argument::Bool(value) | Argument::Symbolic(Symbolic::Bool(value)) => {
                (operators::boolean(*value).to_owned(), "bool")
            }
            Argument::Text(value) => (operators::quoted(value), "str"),
            named => match named.names().as_slice() {
                [name] => {
                    let name = self.outside(name);
                    (self.value(&name), self.kind(&name).name())
                }
                _ => return Err(unsupported("an output of an unknown kind")),
            },
        };
        Ok(literal)
    }
}

impl Names for Writer<'_> {
    fn value(&self, name: &str) -> String {
        match self.flow.own(&self.module.path, name) {
            Some(full) => self.attribute(full),
            None => variable(name),
        }
    }

    fn kind(&self, name: &str) -> Type {
        self.flow.types.get(name).copied().unwrap_or(Type::Tensor)
    }

    fn scoped(&self, scope: usize, name: &str) -> String {
        self.flow.name(scope, name)
    }

    fn device(&self) -> &str {
        self.device
    }
}

/// Words that a variable cannot be called, because the grammar or the importer has them.
const TAKEN: [&str; 46] = [
    "and",
    "as",
    "assert",
    "break",
    "class",
    "continue",
    "def",
    "del",
    "elif",
    "else",
    "except",
    "exec",
    "False",
    "finally",
    "for",
    "from",
    "global",
    "if",
    "import",
    "in",
    "is",
    "lambda",
    "None",
    "not",
    "or",
    "pass",
    "print",
    "raise",
    "return",
    "True",
    "try",
    "while",
    "with",
    "yield",
    "self",
    "torch",
    "ops",
    "annotate",
    "uninitialized",
    "CONSTANTS",
    "getattr",
    "inf",
    "nan",
    "int",
    "float",
    "bool",
];

pub(super) fn is_taken(name: &str) -> bool {
    TAKEN.contains(&name)
}

/// The variable of a value.
pub(super) fn variable(name: &str) -> String {
    let clean = super::tree::identifier(name);
    if is_taken(&clean)
        || clean.starts_with("_c")
        || clean.starts_with("_m")
        || clean.starts_with("_n")
    {
        format!("v_{clean}")
    } else {
        clean
    }
}
