//! The JSON of an exported program, as `torch/_export/serde/schema.py` lays it out (schema 5 to 8, torch 2.2 to 2.11).
//!
//! Only what reports and runs need is kept; keys that are not known are passed over, as PyTorch passes them over. A
//! union is an object with one key, which says what its value is. One that is not known is kept by that key, so that
//! whoever needs it can name it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::tensor::DType;

/// `models/<name>.json`, or `serialized_exported_program.json` before torch 2.8.
#[derive(Debug, Deserialize)]
pub(crate) struct ExportedProgram {
    pub(crate) graph_module: GraphModule,
    #[serde(default)]
    pub(crate) opset_version: HashMap<String, i64>,
    #[serde(default)]
    pub(crate) range_constraints: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    pub(crate) schema_version: Version,
    #[serde(default)]
    pub(crate) torch_version: Option<String>,
}

/// The schema's version; a plain number before torch 2.4.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
pub(crate) enum Version {
    Parts {
        major: u64,
        minor: u64,
    },
    Number(u64),
    #[default]
    Unknown,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphModule {
    pub(crate) graph: Graph,
    #[serde(default)]
    pub(crate) signature: Signature,
    #[serde(default)]
    pub(crate) module_call_graph: Vec<ModuleCall>,
}

impl GraphModule {
    /// JSON of the pytree that the program's outputs make up; empty where the file does not say.
    pub(crate) fn out_spec(&self) -> &str {
        let root = self
            .module_call_graph
            .iter()
            .find(|call| call.fqn.is_empty());
        let signature = root.and_then(|call| call.signature.as_ref());
        signature.map_or("", |signature| &signature.out_spec)
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Graph {
    #[serde(default)]
    pub(crate) inputs: Vec<Argument>,
    #[serde(default)]
    pub(crate) outputs: Vec<Argument>,
    #[serde(default)]
    pub(crate) nodes: Vec<Node>,
    #[serde(default)]
    pub(crate) tensor_values: HashMap<String, TensorMeta>,
    #[serde(default)]
    pub(crate) sym_int_values: HashMap<String, serde_json::Value>,
    #[serde(default)]
    pub(crate) sym_bool_values: HashMap<String, serde_json::Value>,
    #[serde(default)]
    pub(crate) sym_float_values: HashMap<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) inputs: Vec<NamedArgument>,
    #[serde(default)]
    pub(crate) outputs: Vec<Argument>,
    #[serde(default)]
    pub(crate) metadata: Metadata,
}

/// Where a node came from.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Metadata {
    /// `key,path,class;key,path,class`, outermost first.
    #[serde(default)]
    pub(crate) nn_module_stack: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedArgument {
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) arg: Argument,
}

/// The name of a value of the graph.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Named {
    #[serde(default)]
    pub(crate) name: String,
}

/// A number that the graph computes, or one that is written down.
#[derive(Debug)]
pub(crate) enum Symbolic {
    Name(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    Other(String),
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Device {
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphArgument {
    pub(crate) graph: Graph,
}

/// What is given to a node, or comes out of it.
#[derive(Debug)]
pub(crate) enum Argument {
    None,
    Tensor(String),
    Tensors(Vec<Named>),
    OptionalTensor(Option<String>),
    OptionalTensors(Vec<Option<String>>),
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Bool(bool),
    Bools(Vec<bool>),
    Text(String),
    Texts(Vec<String>),
    Symbolic(Symbolic),
    Symbolics(Vec<Symbolic>),
    ScalarType(i64),
    MemoryFormat(i64),
    Layout(i64),
    Device(Device),
    Graph(Box<Graph>),
    /// A kind without a meaning here, by its key: `as_custom_obj`.
    Other(String),
}

impl Argument {
    /// The names of the values that it is made of.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Argument::Tensor(name)
            | Argument::OptionalTensor(Some(name))
            | Argument::Symbolic(Symbolic::Name(name)) => vec![name],
            Argument::Tensors(all) => all.iter().map(|one| one.name.as_str()).collect(),
            Argument::OptionalTensors(all) => all.iter().flatten().map(String::as_str).collect(),
            Argument::Symbolics(all) => all
                .iter()
                .filter_map(|one| match one {
                    Symbolic::Name(name) => Some(name.as_str()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// A tensor as it was when the program was exported.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TensorMeta {
    pub(crate) dtype: i64,
    #[serde(default)]
    pub(crate) sizes: Vec<Size>,
    #[serde(default)]
    pub(crate) requires_grad: Option<bool>,
    #[serde(default)]
    pub(crate) strides: Vec<Size>,
    #[serde(default)]
    pub(crate) storage_offset: Option<Size>,
    #[serde(default)]
    pub(crate) layout: Option<i64>,
    #[serde(default)]
    pub(crate) device: Option<Device>,
}

impl TensorMeta {
    /// The dtype, where the number is one that torch 2.11 writes.
    pub(crate) fn dtype(&self) -> Option<DType> {
        dtype(self.dtype)
    }
}

/// A size: a number, or an expression of symbols with the value it had in the example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Size {
    Int(i64),
    Expression { text: String, hint: Option<i64> },
}

/// Which input and output of the graph is what.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Signature {
    #[serde(default)]
    pub(crate) input_specs: Vec<InputSpec>,
    #[serde(default)]
    pub(crate) output_specs: Vec<OutputSpec>,
}

/// A value of the graph, and what it is bound to.
#[derive(Debug, Deserialize)]
pub(crate) struct Binding {
    #[serde(deserialize_with = "name_of")]
    pub(crate) arg: String,
    #[serde(
        alias = "parameter_name",
        alias = "buffer_name",
        alias = "tensor_constant_name",
        alias = "user_input_name"
    )]
    pub(crate) name: String,
}

fn name_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Named::deserialize(deserializer)?.name)
}

/// An argument that the program was exported with.
#[derive(Debug, Deserialize)]
pub(crate) struct FixedInput {
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) value: Argument,
}

#[derive(Debug)]
pub(crate) enum InputSpec {
    User(Argument),
    Parameter(Binding),
    Buffer(Binding),
    Constant(Binding),
    /// A number, text or `None` that the program was exported with and always has.
    Value(FixedInput),
    Other(String),
}

#[derive(Debug)]
pub(crate) enum OutputSpec {
    User(Argument),
    BufferMutation(Binding),
    ParameterMutation(Binding),
    InputMutation(Binding),
    Other(String),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModuleCall {
    #[serde(default)]
    pub(crate) fqn: String,
    #[serde(default)]
    pub(crate) signature: Option<CallSignature>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CallSignature {
    /// JSON of the pytree that the flat outputs make up.
    #[serde(default)]
    pub(crate) out_spec: String,
}

/// `data/weights/*_weights_config.json` and `data/constants/*_constants_config.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct PayloadConfig {
    pub(crate) config: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Payload {
    pub(crate) path_name: String,
    #[serde(default)]
    pub(crate) is_param: bool,
    #[serde(default)]
    pub(crate) use_pickle: bool,
    #[serde(default)]
    pub(crate) tensor_meta: Option<TensorMeta>,
}

/// The dtype behind a number of `schema.ScalarType`, which counts otherwise than libtorch.
pub(crate) fn dtype(number: i64) -> Option<DType> {
    Some(match number {
        1 => DType::UInt8,
        2 => DType::Int8,
        3 => DType::Int16,
        4 => DType::Int32,
        5 => DType::Int64,
        6 => DType::Float16,
        7 => DType::Float32,
        8 => DType::Float64,
        9 => DType::Complex32,
        10 => DType::Complex64,
        11 => DType::Complex128,
        12 => DType::Bool,
        13 => DType::BFloat16,
        28 => DType::UInt16,
        29 => DType::Float8E4M3Fn,
        30 => DType::Float8E5M2,
        31 => DType::Float8E4M3Fnuz,
        32 => DType::Float8E5M2Fnuz,
        _ => return None,
    })
}

/// Reads a union: an object whose one key says what its value is. Where a writer left more keys, the first with a value
/// counts.
macro_rules! union {
    ($name:ident, $map:ident, $key:ident, { $($pattern:pat => $value:expr,)* }) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                struct Keys;
                impl<'de> Visitor<'de> for Keys {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object whose key says what its value is")
                    }

                    fn visit_map<A: MapAccess<'de>>(self, mut $map: A) -> Result<$name, A::Error> {
                        let mut found = None;
                        while let Some($key) = $map.next_key::<Cow<'de, str>>()? {
                            let value = match &*$key {
                                $($pattern => $value,)*
                                _ => {
                                    $map.next_value::<IgnoredAny>()?;
                                    $name::Other($key.into_owned())
                                }
                            };
                            found.get_or_insert(value);
                        }
                        found.ok_or_else(|| A::Error::custom("a union without a key"))
                    }
                }
                deserializer.deserialize_map(Keys)
            }
        }
    };
}

union!(Symbolic, map, key, {
    "as_name" => Symbolic::Name(map.next_value()?),
    "as_int" => Symbolic::Int(map.next_value()?),
    "as_float" => Symbolic::Float(map.next_value::<Number>()?.0),
    "as_bool" => Symbolic::Bool(map.next_value()?),
});

union!(Argument, map, key, {
    "as_none" => { map.next_value::<IgnoredAny>()?; Argument::None },
    "as_tensor" => Argument::Tensor(map.next_value::<Named>()?.name),
    "as_tensors" => Argument::Tensors(map.next_value()?),
    "as_optional_tensor" => Argument::OptionalTensor(map.next_value::<Maybe>()?.0),
    "as_optional_tensors" => Argument::OptionalTensors(
        map.next_value::<Vec<Maybe>>()?.into_iter().map(|one| one.0).collect(),
    ),
    "as_int" => Argument::Int(map.next_value()?),
    "as_ints" => Argument::Ints(map.next_value()?),
    "as_float" => Argument::Float(map.next_value::<Number>()?.0),
    "as_floats" => Argument::Floats(
        map.next_value::<Vec<Number>>()?.into_iter().map(|one| one.0).collect(),
    ),
    "as_bool" => Argument::Bool(map.next_value()?),
    "as_bools" => Argument::Bools(map.next_value()?),
    "as_string" => Argument::Text(map.next_value()?),
    "as_strings" => Argument::Texts(map.next_value()?),
    "as_sym_int" | "as_sym_float" | "as_sym_bool" => Argument::Symbolic(map.next_value()?),
    "as_sym_ints" | "as_sym_floats" | "as_sym_bools" => Argument::Symbolics(map.next_value()?),
    "as_scalar_type" => Argument::ScalarType(map.next_value()?),
    "as_memory_format" => Argument::MemoryFormat(map.next_value()?),
    "as_layout" => Argument::Layout(map.next_value()?),
    "as_device" => Argument::Device(map.next_value()?),
    "as_graph" => Argument::Graph(Box::new(map.next_value::<GraphArgument>()?.graph)),
});

union!(InputSpec, map, key, {
    "user_input" => InputSpec::User(map.next_value::<UserSpec>()?.arg),
    "parameter" => InputSpec::Parameter(map.next_value()?),
    "buffer" => InputSpec::Buffer(map.next_value()?),
    "tensor_constant" => InputSpec::Constant(map.next_value()?),
    "constant_input" => InputSpec::Value(map.next_value()?),
});

union!(OutputSpec, map, key, {
    "user_output" => OutputSpec::User(map.next_value::<UserSpec>()?.arg),
    "buffer_mutation" => OutputSpec::BufferMutation(map.next_value()?),
    "parameter_mutation" => OutputSpec::ParameterMutation(map.next_value()?),
    "user_input_mutation" => OutputSpec::InputMutation(map.next_value()?),
});

#[derive(Deserialize)]
struct UserSpec {
    arg: Argument,
}

/// A number; JSON has no infinity, which is written as text.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(f64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Number(number)),
            Written::Text(text) => match text.as_str() {
                "Infinity" => Ok(Number(f64::INFINITY)),
                "-Infinity" => Ok(Number(f64::NEG_INFINITY)),
                "NaN" => Ok(Number(f64::NAN)),
                _ => Err(D::Error::custom("a number that is none")),
            },
        }
    }
}

/// A tensor, or none.
struct Maybe(Option<String>);

impl<'de> Deserialize<'de> for Maybe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Maybe, D::Error> {
        Ok(Maybe(match Argument::deserialize(deserializer)? {
            Argument::Tensor(name) => Some(name),
            Argument::None => None,
            _ => return Err(D::Error::custom("neither a tensor nor none")),
        }))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        struct Keys {
            #[serde(default)]
            as_int: Option<i64>,
            #[serde(default)]
            as_expr: Option<Expression>,
        }
        #[derive(Deserialize)]
        struct Expression {
            expr_str: String,
            #[serde(default)]
            hint: serde_json::Value,
        }
        match Keys::deserialize(deserializer)? {
            Keys {
                as_int: Some(size), ..
            } => Ok(Size::Int(size)),
            Keys {
                as_expr: Some(expression),
                ..
            } => Ok(Size::Expression {
                text: readable(&expression.expr_str),
                hint: expression
                    .hint
                    .get("as_int")
                    .unwrap_or(&expression.hint)
                    .as_i64(),
            }),
            Keys { .. } => Err(D::Error::custom(
                "a size that is neither a number nor an expression",
            )),
        }
    }
}

/// sympy's own notation as people write it: `Mul(Integer(2), Symbol('s0', integer=True))` is `Mul(2, s0)`.
pub(crate) fn readable(expression: &str) -> String {
    let mut text = String::new();
    let mut rest = expression;
    while let Some((before, call)) = rest.split_once("Symbol('") {
        text.push_str(before);
        let (name, after) = call.split_once('\'').unwrap_or((call, ""));
        text.push_str(name);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let mut rest = std::mem::take(&mut text);
    while let Some((before, call)) = rest.split_once("Integer(") {
        text.push_str(before);
        let (number, after) = call.split_once(')').unwrap_or((call, ""));
        text.push_str(number);
        rest = after.to_owned();
    }
    text.push_str(&rest);
    text
}
