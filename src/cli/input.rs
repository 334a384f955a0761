//! SPECs: what a method is called with, as typed.
//!
//! ```text
//! SPEC = [NAME=] VALUE
//! VALUE = DIMS [:DTYPE] [@FILL]     1x3x224x224, 1x128:int64@0..30522, []:float32
//!       | number | true | false | none | text
//! FILL = zeros | ones | randn | rand | arange | LOW..HIGH | number
//! ```
//!
//! A text can have more than one reading (`3` is a number and a tensor of size 3); the schema decides, so all of
//! them go on. What looks like a tensor and is none is an error here, where the user can still see what was typed.

use serde_json::Value;

use crate::engine::protocol::{Argument, Fill, InputSpec, InputValue, Number, Scalar, TensorSpec};
use crate::tensor::DType;

/// Why a SPEC could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A dimension that is no number.
    #[error("`{text}` has the dimension `{dimension}`, expected a number")]
    Dimension {
        /// The whole SPEC.
        text: String,
        /// The dimension.
        dimension: String,
    },
    /// `B` outside `fit`.
    #[error("`{0}` has the dimension `B`, which only `inspect fit` can fill in")]
    Batch(String),
    /// More elements than 64 bits count.
    #[error("`{0}` has more than 2^63 - 1 elements")]
    TooLarge(String),
    /// No dtype of PyTorch.
    #[error("`{text}` has the dtype `{dtype}`, which PyTorch does not have")]
    DType {
        /// The whole SPEC.
        text: String,
        /// The dtype.
        dtype: String,
    },
    /// No way to fill a tensor.
    #[error(
        "`{text}` has the fill `{fill}`, expected `zeros`, `ones`, `randn`, `rand`, `arange`, a range such as `0..10`, or a number"
    )]
    Fill {
        /// The whole SPEC.
        text: String,
        /// The fill.
        fill: String,
    },
    /// A range without numbers in it.
    #[error("`{text}` has the range `{range}`, which is empty: the end is excluded")]
    EmptyRange {
        /// The whole SPEC.
        text: String,
        /// The range.
        range: String,
    },
    /// JSON that is neither a list nor an object.
    #[error("expected a list of inputs or an object of named inputs, found {0}")]
    Json(&'static str),
}

/// Reads one SPEC of the command line.
pub fn parse_argument(text: &str) -> Result<Argument, SpecError> {
    let (name, value) = split_name(text);
    Ok(Argument {
        name: name.map(str::to_owned),
        value: InputValue::Spec(parse_spec(value)?),
    })
}

/// An argument with `B` for the batch, as typed for `inspect fit`; one without `B` is the same at every batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchArgument {
    text: String,
}

impl BatchArgument {
    /// The argument at one batch.
    pub fn at(&self, batch: u64) -> Result<Argument, SpecError> {
        let (name, value) = split_name(&self.text);
        let end = value.find([':', '@']).unwrap_or(value.len());
        let (dims, rest) = value.split_at(end);
        let sizes: Vec<String> = dims
            .split(['x', 'X', '×'])
            .map(|size| match size {
                "B" => batch.to_string(),
                _ => size.to_owned(),
            })
            .collect();
        let value = if self.has_batch() {
            sizes.join("x") + rest
        } else {
            value.to_owned()
        };
        Ok(Argument {
            name: name.map(str::to_owned),
            value: InputValue::Spec(parse_spec(&value)?),
        })
    }

    /// Whether it depends on the batch.
    #[must_use]
    pub fn has_batch(&self) -> bool {
        !self.batch_dimensions().is_empty()
    }

    /// The dimensions that are the batch.
    #[must_use]
    pub fn batch_dimensions(&self) -> Vec<usize> {
        let (_, value) = split_name(&self.text);
        let dims = value.split([':', '@']).next().unwrap_or_default();
        let sizes = dims.split(['x', 'X', '×']).enumerate();
        let batch = sizes.filter(|(_, size)| *size == "B");
        batch.map(|(dimension, _)| dimension).collect()
    }

    /// The argument that it is for, where it says.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        split_name(&self.text).0
    }
}

impl std::str::FromStr for BatchArgument {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let argument = BatchArgument {
            text: text.to_owned(),
        };
        argument.at(1)?;
        Ok(argument)
    }
}

/// The name that a SPEC may begin with, and the rest.
fn split_name(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, value)) if is_identifier(name) => (Some(name), value),
        _ => (None, text),
    }
}

fn is_identifier(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// Reads a SPEC without a name.
pub fn parse_spec(text: &str) -> Result<InputSpec, SpecError> {
    Ok(InputSpec {
        text: text.to_owned(),
        tensor: parse_tensor(text)?,
        scalar: parse_scalar(text),
    })
}

/// `None` where the text does not begin like a tensor.
fn parse_tensor(text: &str) -> Result<Option<TensorSpec>, SpecError> {
    let (rest, fill) = match text.split_once('@') {
        Some((rest, fill)) => (rest, Some(fill)),
        None => (text, None),
    };
    let (dims, dtype) = match rest.split_once(':') {
        Some((dims, dtype)) => (dims, Some(dtype)),
        None => (rest, None),
    };
    let Some(dims) = parse_dims(dims, text)? else {
        return Ok(None);
    };
    let elements = dims
        .iter()
        .try_fold(1_u64, |product, size| product.checked_mul(*size));
    if elements.is_none_or(|elements| i64::try_from(elements).is_err()) {
        return Err(SpecError::TooLarge(text.to_owned()));
    }
    let dtype = dtype
        .map(|name| {
            DType::parse(name).ok_or_else(|| SpecError::DType {
                text: text.to_owned(),
                dtype: name.to_owned(),
            })
        })
        .transpose()?;
    Ok(Some(TensorSpec {
        dims,
        dtype: dtype.map(|dtype| dtype.name().to_owned()),
        fill: fill.map(|fill| parse_fill(fill, text)).transpose()?,
    }))
}

/// Sizes joined by `x`, or `[]`; `None` where the text is something else.
fn parse_dims(dims: &str, text: &str) -> Result<Option<Vec<u64>>, SpecError> {
    if dims == "[]" {
        return Ok(Some(Vec::new()));
    }
    let parts: Vec<&str> = dims.split(['x', 'X', '×']).collect();
    let numeric = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    // A text of letters and an `x` (`max`, `xy`) is no tensor; one with a size in it was meant as one.
    let meant =
        parts.iter().any(numeric) && parts.iter().all(|part| part.len() <= 1 || numeric(part));
    if !meant {
        return Ok(None);
    }
    let mut sizes = Vec::with_capacity(parts.len());
    for part in parts {
        if part == "B" {
            return Err(SpecError::Batch(text.to_owned()));
        }
        if !numeric(&part) {
            return Err(SpecError::Dimension {
                text: text.to_owned(),
                dimension: part.to_owned(),
            });
        }
        let size = part
            .parse()
            .map_err(|_| SpecError::TooLarge(text.to_owned()))?;
        sizes.push(size);
    }
    Ok(Some(sizes))
}

fn parse_fill(fill: &str, text: &str) -> Result<Fill, SpecError> {
    let wrong = || SpecError::Fill {
        text: text.to_owned(),
        fill: fill.to_owned(),
    };
    Ok(match fill {
        "zeros" => Fill::Zeros,
        "ones" => Fill::Ones,
        "randn" => Fill::Randn,
        "rand" => Fill::Rand,
        "arange" => Fill::Arange,
        _ => match fill.split_once("..") {
            Some((low, high)) => {
                let low = parse_number(low).ok_or_else(wrong)?;
                let high = parse_number(high).ok_or_else(wrong)?;
                if as_f64(low) >= as_f64(high) {
                    return Err(SpecError::EmptyRange {
                        text: text.to_owned(),
                        range: fill.to_owned(),
                    });
                }
                Fill::Range { low, high }
            }
            None => Fill::Constant(parse_number(fill).ok_or_else(wrong)?),
        },
    })
}

fn as_f64(number: Number) -> f64 {
    match number {
        Number::Int(value) => value as f64,
        Number::Float(value) => value,
    }
}

/// A finite number that begins like one: `inf` and `nan` are text, and the schema may still read them.
fn parse_number(text: &str) -> Option<Number> {
    if let Ok(value) = text.parse() {
        return Some(Number::Int(value));
    }
    text.parse()
        .ok()
        .filter(|value: &f64| value.is_finite())
        .map(Number::Float)
}

fn parse_scalar(text: &str) -> Option<Scalar> {
    match text {
        "none" | "None" => Some(Scalar::None),
        "true" | "True" => Some(Scalar::Bool(true)),
        "false" | "False" => Some(Scalar::Bool(false)),
        _ => parse_number(text).map(Scalar::Number),
    }
}

/// Reads a document that nests SPECs: a list goes by position, an object by name.
pub fn parse_json(document: &Value) -> Result<Vec<Argument>, SpecError> {
    match document {
        Value::Array(items) => items
            .iter()
            .map(|item| {
                Ok(Argument {
                    name: None,
                    value: json_value(item)?,
                })
            })
            .collect(),
        Value::Object(items) => items
            .iter()
            .map(|(name, item)| {
                Ok(Argument {
                    name: Some(name.clone()),
                    value: json_value(item)?,
                })
            })
            .collect(),
        Value::Null => Err(SpecError::Json("null")),
        Value::Bool(_) => Err(SpecError::Json("a bool")),
        Value::Number(_) => Err(SpecError::Json("a number")),
        Value::String(_) => Err(SpecError::Json("a string")),
    }
}

/// serde_json itself refuses deep nesting, so this recursion is bounded.
fn json_value(value: &Value) -> Result<InputValue, SpecError> {
    Ok(match value {
        Value::Array(items) => {
            InputValue::List(items.iter().map(json_value).collect::<Result<_, _>>()?)
        }
        Value::Object(items) => InputValue::Dict(
            items
                .iter()
                .map(|(key, item)| Ok((key.clone(), json_value(item)?)))
                .collect::<Result<_, _>>()?,
        ),
        Value::String(text) => InputValue::Spec(parse_spec(text)?),
        Value::Null => InputValue::Spec(InputSpec {
            text: "none".to_owned(),
            tensor: None,
            scalar: Some(Scalar::None),
        }),
        // A number in JSON is a number, never a size.
        Value::Bool(_) | Value::Number(_) => {
            let text = value.to_string();
            InputValue::Spec(InputSpec {
                scalar: parse_scalar(&text),
                tensor: None,
                text,
            })
        }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_batch_is_filled_in() {
        let dims = |text: &str, batch| {
            let argument: BatchArgument = text.parse().unwrap();
            match argument.at(batch).unwrap().value {
                InputValue::Spec(spec) => spec.tensor.map(|tensor| tensor.dims),
                _ => None,
            }
        };
        assert_eq!(dims("Bx3x224x224", 7), Some(vec![7, 3, 224, 224]));
        assert_eq!(dims("ids=Bx128:int64@0..30522", 2), Some(vec![2, 128]));
        assert_eq!(dims("x=16xB", 5), Some(vec![16, 5]));
        assert_eq!(dims("4x4", 5), Some(vec![4, 4]));
        assert_eq!(dims("B", 5), Some(vec![5]));
        assert_eq!(dims("mode=Box", 5), None);
        assert!("Bx3:floaty".parse::<BatchArgument>().is_err());
        let named: BatchArgument = "lr=0.5".parse().unwrap();
        assert!(!named.has_batch());
        assert_eq!(named.at(9), parse_argument("lr=0.5"));
    }

    use super::*;

    fn tensor(text: &str) -> TensorSpec {
        parse_spec(text).unwrap().tensor.unwrap()
    }

    #[test]
    fn tensors() {
        let image = tensor("1x3x224x224");
        assert_eq!(image.dims, [1, 3, 224, 224]);
        assert_eq!((image.dtype, image.fill), (None, None));
        let ids = tensor("1x128:int64@0..30522");
        assert_eq!(ids.dtype.as_deref(), Some("int64"));
        let range = Fill::Range {
            low: Number::Int(0),
            high: Number::Int(30522),
        };
        assert_eq!(ids.fill, Some(range));
        assert_eq!(tensor("2x4:bf16@-0.5").dtype.as_deref(), Some("bfloat16"));
        assert_eq!(
            tensor("2x4:bf16@-0.5").fill,
            Some(Fill::Constant(Number::Float(-0.5)))
        );
        assert!(tensor("[]:float32").dims.is_empty());
        assert_eq!(tensor("0x5").dims, [0, 5]);
        assert_eq!(tensor("1x128:bool@ones").fill, Some(Fill::Ones));
    }

    #[test]
    fn names_and_readings() {
        let argument = parse_argument("x=3").unwrap();
        assert_eq!(argument.name.as_deref(), Some("x"));
        let InputValue::Spec(spec) = argument.value else {
            unreachable!()
        };
        assert_eq!(spec.tensor.unwrap().dims, [3]);
        assert_eq!(spec.scalar, Some(Scalar::Number(Number::Int(3))));
        let scalar = |text| parse_spec(text).unwrap().scalar;
        assert_eq!(scalar("none"), Some(Scalar::None));
        assert_eq!(scalar("true"), Some(Scalar::Bool(true)));
        assert_eq!(scalar("-0.5"), Some(Scalar::Number(Number::Float(-0.5))));
        assert_eq!(scalar("1e-3"), Some(Scalar::Number(Number::Float(1e-3))));
        for text in [
            "max",
            "hello",
            "translate: 5",
            "inf",
            "",
            "x",
            "a=b",
            "mean",
        ] {
            let spec = parse_spec(text).unwrap();
            assert_eq!((spec.tensor, spec.scalar), (None, None), "{text}");
        }
        assert_eq!(parse_argument("1=2").unwrap().name, None);
    }

    #[test]
    fn what_was_meant_as_a_tensor_must_be_one() {
        let error = |text: &str| parse_argument(text).unwrap_err();
        assert!(matches!(error("1x3x"), SpecError::Dimension { .. }));
        assert!(matches!(error("ax3"), SpecError::Dimension { .. }));
        assert!(matches!(error("x=Bx3x224x224"), SpecError::Batch(_)));
        assert!(matches!(error("1x3:floaty"), SpecError::DType { .. }));
        assert!(matches!(error("1x3@twos"), SpecError::Fill { .. }));
        assert!(matches!(error("1x3@5..5"), SpecError::EmptyRange { .. }));
        assert!(matches!(
            error("4294967296x4294967296"),
            SpecError::TooLarge(_)
        ));
        assert!(matches!(
            error("99999999999999999999x1"),
            SpecError::TooLarge(_)
        ));
    }

    #[test]
    fn json_nests() {
        let document = serde_json::json!(["1x3", ["1x4", {"k": "2:int64"}], 3, null, true]);
        let arguments = parse_json(&document).unwrap();
        assert_eq!(arguments.len(), 5);
        let InputValue::Spec(number) = &arguments[2].value else {
            unreachable!()
        };
        assert_eq!(number.tensor, None);
        let named = parse_json(&serde_json::json!({"x": "1x3"})).unwrap();
        assert_eq!(named[0].name.as_deref(), Some("x"));
        assert_eq!(
            parse_json(&serde_json::json!("1x3")),
            Err(SpecError::Json("a string"))
        );
    }
}
