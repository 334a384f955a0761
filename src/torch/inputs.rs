//! From SPECs to the values a method is called with. The schema decides what a SPEC means.

pub(crate) mod file;

use inspect_checkpoint::engine::protocol::{
    Argument as Given, FailureKind, Fill, InputSpec, InputValue, Number, Scalar, TensorSpec,
};
use tch::{Kind, Tensor};

use crate::dtype;
use crate::failure::Failure;
use crate::ffi::{Module, TorchError, Value, Values, call_op, tensor_info};
use crate::signature::{Argument, Kind as Type, Method};

/// Where input tensors live.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// libtorch's device.
    pub(crate) device: tch::Device,
    /// Whether arithmetic is done there: the simulated device does none, so its inputs are never filled.
    pub(crate) computes: bool,
}

/// What a method is called with.
pub(crate) struct Chosen {
    /// A value for every argument.
    pub(crate) values: Values,
    /// For every argument whether it was given; else it is the schema's default.
    pub(crate) given: Vec<bool>,
}

/// The stack of arguments for a call, complete and of the schema's types.
pub(crate) fn arguments(
    module: &Module,
    method: &Method,
    given: &[Given],
    place: Place,
) -> Result<Chosen, Failure> {
    let chosen = assign(method, given)?;
    let name = &method.signature.method;
    let mut values = Values::new();
    for (index, (argument, choice)) in method.arguments.iter().zip(&chosen).enumerate() {
        let Some(value) = choice else {
            values
                .push_default(module, name, index)
                .map_err(|error| Failure::input(error.message, &method.signature))?;
            continue;
        };
        push(&mut values, value, &argument.kind, argument, method, place)?;
        values.fit(module, name, index).map_err(|error| {
            Failure::input(
                format!("argument `{}`: {}", argument.name, error.message),
                &method.signature,
            )
        })?;
    }
    Ok(Chosen {
        values,
        given: chosen.iter().map(Option::is_some).collect(),
    })
}

/// Which given value belongs to which argument of the schema.
fn assign<'a>(method: &Method, given: &'a [Given]) -> Result<Vec<Option<&'a InputValue>>, Failure> {
    let count = method.arguments.len();
    let mut chosen: Vec<Option<&InputValue>> = vec![None; count];
    let mut position = 0;
    for one in given {
        let index = if let Some(name) = &one.name {
            method
                .arguments
                .iter()
                .position(|a| &a.name == name)
                .ok_or_else(|| {
                    Failure::input(
                        format!("`{}` has no argument `{name}`", method.signature.method),
                        &method.signature,
                    )
                })?
        } else {
            position += 1;
            position - 1
        };
        let Some(slot) = chosen.get_mut(index) else {
            return Err(Failure::input(
                format!(
                    "`{}` takes {}, got {}",
                    method.signature.method,
                    arguments_text(count),
                    given.len()
                ),
                &method.signature,
            ));
        };
        if slot.replace(&one.value).is_some() {
            let name = method.arguments.get(index).map_or("", |a| a.name.as_str());
            return Err(Failure::input(
                format!("argument `{name}` is given twice"),
                &method.signature,
            ));
        }
    }
    let missing: Vec<String> = method
        .arguments
        .iter()
        .zip(&chosen)
        .filter(|(argument, choice)| choice.is_none() && argument.default.is_none())
        .map(|(argument, _)| format!("`{}` of type {}", argument.name, argument.ty))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::input(
            format!(
                "`{}` takes {}, got {}: no input for {}",
                method.signature.method,
                arguments_text(count),
                given.len(),
                missing.join(", ")
            ),
            &method.signature,
        ));
    }
    Ok(chosen)
}

fn arguments_text(count: usize) -> String {
    match count {
        0 => "no arguments".to_owned(),
        1 => "1 argument".to_owned(),
        _ => format!("{count} arguments"),
    }
}

fn push(
    values: &mut Values,
    value: &InputValue,
    ty: &Type,
    argument: &Argument,
    method: &Method,
    place: Place,
) -> Result<(), Failure> {
    let inner = ty.without_optional();
    match value {
        InputValue::Spec(spec) => push_spec(values, spec, ty, argument, method, place),
        InputValue::List(items) => {
            for (index, item) in items.iter().enumerate() {
                let item_type = if inner.is == "Tuple" {
                    inner.of.get(index)
                } else {
                    inner.of.first()
                };
                push(
                    values,
                    item,
                    item_type.unwrap_or(&any()),
                    argument,
                    method,
                    place,
                )?;
            }
            Ok(values.tuple(items.len())?)
        }
        InputValue::Dict(entries) => {
            let value_type = inner.of.get(1).cloned().unwrap_or_else(any);
            for (key, item) in entries {
                values.push(&Value::Text(key))?;
                push(values, item, &value_type, argument, method, place)?;
            }
            Ok(values.dict(entries.len())?)
        }
    }
}

fn any() -> Type {
    Type {
        is: "Any".to_owned(),
        of: Vec::new(),
    }
}

fn push_spec(
    values: &mut Values,
    spec: &InputSpec,
    ty: &Type,
    argument: &Argument,
    method: &Method,
    place: Place,
) -> Result<(), Failure> {
    if ty.allows_none() && spec.scalar == Some(Scalar::None) && ty.without_optional().is != "Any" {
        return Ok(values.push(&Value::None)?);
    }
    let inner = ty.without_optional();
    let refuse = || {
        let hint = match inner.is.as_str() {
            "List" | "Tuple" | "Dict" => ": give it with `--inputs FILE.json`",
            _ => "",
        };
        Failure::input(
            format!(
                "argument `{}` is of type {}, which `{}` is not{hint}",
                argument.name, argument.ty, spec.text
            ),
            &method.signature,
        )
    };
    let wants_tensor = inner.is == "Tensor"
        || inner.is == "Union" && inner.of.iter().any(|k| k.is == "Tensor")
        || inner.is == "Any" && spec.scalar.is_none();
    match (&spec.tensor, &spec.scalar) {
        (Some(tensor), _) if wants_tensor => {
            let made = make(tensor, place).map_err(|error| match error {
                Failure::Told(mut told) if told.kind == FailureKind::Internal => {
                    told.message = format!("argument `{}`: {}", argument.name, told.message);
                    Failure::Told(told)
                }
                other => other,
            })?;
            Ok(values.push(&Value::Tensor(&made))?)
        }
        _ if inner.is == "Tensor" => Err(refuse()),
        _ if matches!(inner.is.as_str(), "String" | "DeviceObj") => {
            Ok(values.push(&Value::Text(&spec.text))?)
        }
        (_, Some(scalar)) => {
            let value = match (scalar, inner.is.as_str()) {
                (Scalar::None, "Any" | "None") => Value::None,
                (Scalar::Bool(value), "Bool" | "Any" | "Union") => Value::Bool(*value),
                (
                    Scalar::Number(Number::Int(value)),
                    "Int" | "Float" | "Number" | "Any" | "Union",
                ) => Value::Int(*value),
                (Scalar::Number(Number::Float(value)), "Float" | "Number" | "Any" | "Union") => {
                    Value::Double(*value)
                }
                _ => return Err(refuse()),
            };
            Ok(values.push(&value)?)
        }
        _ => Err(refuse()),
    }
}

/// The tensor of a SPEC.
fn make(spec: &TensorSpec, place: Place) -> Result<Tensor, Failure> {
    let name = spec.dtype.as_deref().unwrap_or("float32");
    let scalar_type = dtype::scalar_type(name).ok_or_else(|| {
        Failure::new(
            FailureKind::InputMismatch,
            format!("libtorch has no dtype `{name}`"),
        )
    })?;
    let dims = spec
        .dims
        .iter()
        .map(|size| i64::try_from(*size))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| Failure::new(FailureKind::InputMismatch, "a size above 2^63 - 1"))?;
    if let Some(fill) = spec.fill {
        check_values(fill, name)?;
    }
    if !place.computes
        && let Some(kind) = tch_kind(name)
    {
        return Ok(Tensor::f_empty(&dims, (kind, place.device))?);
    }
    let on_host = (working_kind(name), tch::Device::Cpu);
    let filled = if place.computes {
        fill(
            spec.fill.unwrap_or_else(|| default_fill(name)),
            &dims,
            on_host,
            name,
        )?
    } else {
        Tensor::f_empty(&dims, on_host)?
    };
    let typed = convert(filled, scalar_type)?;
    Ok(if place.device == tch::Device::Cpu {
        typed
    } else {
        typed.f_to_device(place.device)?
    })
}

/// `tch`'s name for a dtype, where it has one.
fn tch_kind(dtype: &str) -> Option<Kind> {
    Some(match dtype {
        "float16" => Kind::Half,
        "bfloat16" => Kind::BFloat16,
        "float32" => Kind::Float,
        "float64" => Kind::Double,
        "complex64" => Kind::ComplexFloat,
        "complex128" => Kind::ComplexDouble,
        "bool" => Kind::Bool,
        "uint8" => Kind::Uint8,
        "int8" => Kind::Int8,
        "int16" => Kind::Int16,
        "int32" => Kind::Int,
        "int64" => Kind::Int64,
        _ => return None,
    })
}

/// The kind in which values are made before conversion.
fn working_kind(dtype: &str) -> Kind {
    match dtype {
        "float64" => Kind::Double,
        "complex64" => Kind::ComplexFloat,
        "complex128" => Kind::ComplexDouble,
        "bool" | "uint8" | "int8" | "int16" | "int32" | "int64" | "uint16" | "uint32"
        | "uint64" => Kind::Int64,
        _ => Kind::Float,
    }
}

/// Refuses a fill with numbers that an integer type does not have: libtorch would wrap them around.
fn check_values(fill: Fill, dtype: &str) -> Result<(), Failure> {
    let Some((lowest, highest)) = integer_values(dtype) else {
        return Ok(());
    };
    let (first, last) = match fill {
        Fill::Range {
            low: Number::Int(low),
            high: Number::Int(high),
        } => (low, high.saturating_sub(1)),
        Fill::Constant(Number::Int(value)) => (value, value),
        _ => return Ok(()),
    };
    let has = |value: i64| lowest <= i128::from(value) && i128::from(value) <= highest;
    match [first, last].into_iter().find(|value| !has(*value)) {
        None => Ok(()),
        Some(value) => Err(Failure::new(
            FailureKind::InputMismatch,
            format!("{value} is no value of {dtype}, which has {lowest} to {highest}"),
        )),
    }
}

/// The smallest and the largest value of an integer type.
fn integer_values(dtype: &str) -> Option<(i128, i128)> {
    if dtype == "bool" {
        return Some((0, 1));
    }
    let (unsigned, bits) = match dtype.strip_prefix("uint") {
        Some(bits) => (true, bits),
        None => (false, dtype.strip_prefix("int")?),
    };
    let bits: u32 = bits.parse().ok().filter(|bits| *bits <= 64)?;
    Some(if unsigned {
        (0, (1 << bits) - 1)
    } else {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    })
}

fn default_fill(dtype: &str) -> Fill {
    match dtype {
        "bool" => Fill::Ones,
        name if dtype::is_floating(name) || dtype::is_complex(name) => Fill::Randn,
        _ => Fill::Zeros,
    }
}

fn fill(
    fill: Fill,
    dims: &[i64],
    options: (Kind, tch::Device),
    dtype: &str,
) -> Result<Tensor, Failure> {
    let integers = options.0 == Kind::Int64;
    Ok(match fill {
        Fill::Zeros => Tensor::f_zeros(dims, options)?,
        Fill::Ones => Tensor::f_ones(dims, options)?,
        Fill::Randn | Fill::Rand if integers => {
            return Err(Failure::new(
                FailureKind::InputMismatch,
                format!(
                    "`randn` and `rand` make floating-point numbers, not {dtype}: use `@LOW..HIGH`"
                ),
            ));
        }
        Fill::Randn => Tensor::f_randn(dims, options)?,
        Fill::Rand => Tensor::f_rand(dims, options)?,
        Fill::Arange => {
            let count: i64 = dims.iter().product();
            Tensor::f_arange(count, options)?.f_reshape(dims)?
        }
        Fill::Range {
            low: Number::Int(low),
            high: Number::Int(high),
        } if integers => {
            if low >= high {
                return Err(empty_range());
            }
            Tensor::f_randint_low(low, high, dims, options)?
        }
        Fill::Range { low, high } => {
            let (low, high) = (float(low), float(high));
            if low.partial_cmp(&high) != Some(std::cmp::Ordering::Less) {
                return Err(empty_range());
            }
            let unit = Tensor::f_rand(
                dims,
                (if integers { Kind::Double } else { options.0 }, options.1),
            )?;
            unit.f_mul_scalar(high - low)?.f_add_scalar(low)?
        }
        Fill::Constant(Number::Int(value)) => Tensor::f_full(dims, value, options)?,
        Fill::Constant(Number::Float(value)) if integers => {
            return Err(Failure::new(
                FailureKind::InputMismatch,
                format!("{value} is not a value of {dtype}"),
            ));
        }
        Fill::Constant(Number::Float(value)) => Tensor::f_full(dims, value, options)?,
    })
}

fn empty_range() -> Failure {
    Failure::new(
        FailureKind::InputMismatch,
        "the range of values is empty: its end is excluded",
    )
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a fill's bound for floating-point values"
)]
fn float(number: Number) -> f64 {
    match number {
        Number::Int(value) => value as f64,
        Number::Float(value) => value,
    }
}

/// The same values in another dtype; types that `tch` has no word for go through the dispatcher.
pub(crate) fn convert(tensor: Tensor, scalar_type: i8) -> Result<Tensor, Failure> {
    let (current, _) = tensor_info(&tensor)?;
    if current == i32::from(scalar_type) {
        return Ok(tensor);
    }
    let converted = call_op(
        "aten::_to_copy",
        "",
        &[Value::Tensor(&tensor), Value::Int(i64::from(scalar_type))],
    )?;
    converted.into_iter().next().ok_or_else(|| {
        Failure::from(TorchError {
            out_of_memory: false,
            message: "`aten::_to_copy` returned nothing".to_owned(),
        })
    })
}
