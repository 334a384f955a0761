//! Operator arguments and results as the trace writes them: short, since there are hundreds of thousands.
//!
//! | JSON | meaning |
//! |---|---|
//! | `[sig, alloc]` | a tensor: number of its metadata and of the allocation that holds it (`-1`: none) |
//! | `null` | None or an undefined tensor |
//! | `3`, `0.5`, `true`, `"mean"` | int, float, bool, str |
//! | `{"l": [...]}` | list or tuple |
//! | `{"x": "..."}` | anything else: a float that JSON has no word for, or the name of the value's type |

use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeTuple};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::{SmallVec, smallvec};

/// A tensor seen by an operator: its metadata and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorRef {
    /// Number of the `sig` event.
    pub sig: u32,
    /// Number of the `alloc` or `extern` event of its storage; none for tensors without storage.
    pub alloc: Option<u32>,
}

/// One argument or result of an operator.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// None, or an undefined tensor.
    None,
    /// A tensor.
    Tensor(TensorRef),
    /// An integer (also dtypes, layouts and memory formats, as libtorch numbers them).
    Int(i64),
    /// A finite floating-point number.
    Double(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Str(String),
    /// A list or tuple.
    List(Vec<Arg>),
    /// Something else, by the name of its type.
    Other(String),
}

impl Arg {
    /// The tensors in it, in order.
    pub fn tensors(&self) -> impl Iterator<Item = TensorRef> + '_ {
        // Most arguments are no lists: nothing is allocated for them.
        let mut pending: SmallVec<[&Arg; 4]> = smallvec![self];
        std::iter::from_fn(move || {
            while let Some(arg) = pending.pop() {
                match arg {
                    Arg::Tensor(tensor) => return Some(*tensor),
                    Arg::List(items) => pending.extend(items.iter().rev()),
                    _ => {}
                }
            }
            None
        })
    }

    /// The tensor, where it is one.
    #[must_use]
    pub fn tensor(&self) -> Option<TensorRef> {
        match self {
            Arg::Tensor(tensor) => Some(*tensor),
            _ => None,
        }
    }

    /// The integer, where it is one.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Arg::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The truth value, where it is one.
    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        match self {
            Arg::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The items, where it is a list.
    #[must_use]
    pub fn list(&self) -> Option<&[Arg]> {
        match self {
            Arg::List(items) => Some(items),
            _ => None,
        }
    }
}

impl Serialize for TensorRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&self.sig)?;
        pair.serialize_element(&self.alloc.map_or(-1, i64::from))?;
        pair.end()
    }
}

impl<'de> Deserialize<'de> for TensorRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (sig, alloc) = <(u32, i64)>::deserialize(deserializer)?;
        TensorRef::new(sig, alloc).ok_or_else(|| de::Error::custom(alloc_range(alloc)))
    }
}

impl TensorRef {
    fn new(sig: u32, alloc: i64) -> Option<Self> {
        let alloc = match alloc {
            -1 => None,
            other => Some(u32::try_from(other).ok()?),
        };
        Some(TensorRef { sig, alloc })
    }
}

fn alloc_range(found: i64) -> String {
    format!("expected an allocation's number or -1, found {found}")
}

impl Serialize for Arg {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Arg::None => serializer.serialize_unit(),
            Arg::Tensor(tensor) => tensor.serialize(serializer),
            Arg::Int(value) => serializer.serialize_i64(*value),
            Arg::Double(value) => serializer.serialize_f64(*value),
            Arg::Bool(value) => serializer.serialize_bool(*value),
            Arg::Str(value) => serializer.serialize_str(value),
            Arg::List(items) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("l", items)?;
                map.end()
            }
            Arg::Other(name) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("x", name)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Arg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgVisitor)
    }
}

struct ArgVisitor;

impl<'de> Visitor<'de> for ArgVisitor {
    type Value = Arg;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an argument: null, a number, true, false, text, [sig, alloc], {\"l\": [...]} or {\"x\": \"...\"}")
    }

    fn visit_unit<E>(self) -> Result<Arg, E> {
        Ok(Arg::None)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Arg, E> {
        Ok(Arg::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Arg, E> {
        Ok(Arg::Int(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Arg, E> {
        i64::try_from(value)
            .map(Arg::Int)
            .map_err(|_| E::custom("integer above 2^63 - 1"))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Arg, E> {
        Ok(Arg::Double(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Arg, E> {
        Ok(Arg::Str(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Arg, A::Error> {
        let sig: u32 = seq
            .next_element()?
            .ok_or_else(|| de::Error::invalid_length(0, &self))?;
        let alloc: i64 = seq
            .next_element()?
            .ok_or_else(|| de::Error::invalid_length(1, &self))?;
        if seq.next_element::<de::IgnoredAny>()?.is_some() {
            return Err(de::Error::custom("a tensor has two numbers, found more"));
        }
        TensorRef::new(sig, alloc)
            .map(Arg::Tensor)
            .ok_or_else(|| de::Error::custom(alloc_range(alloc)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Arg, A::Error> {
        let key: std::borrow::Cow<'de, str> = map.next_key()?.ok_or_else(|| {
            de::Error::custom("expected the key `l` or `x`, found an empty object")
        })?;
        let arg = match &*key {
            "l" => Arg::List(map.next_value()?),
            "x" => Arg::Other(map.next_value()?),
            other => return Err(de::Error::unknown_field(other, &["l", "x"])),
        };
        if map.next_key::<de::IgnoredAny>()?.is_some() {
            return Err(de::Error::custom("expected one key, found more"));
        }
        Ok(arg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_wire() {
        let args = vec![
            Arg::None,
            Arg::Tensor(TensorRef {
                sig: 3,
                alloc: Some(7),
            }),
            Arg::Tensor(TensorRef {
                sig: 3,
                alloc: None,
            }),
            Arg::Int(-5),
            Arg::Double(1.0),
            Arg::Bool(true),
            Arg::Str("mean".into()),
            Arg::List(vec![Arg::Int(1), Arg::List(vec![Arg::None])]),
            Arg::Other("inf".into()),
        ];
        let text = serde_json::to_string(&args).unwrap();
        assert_eq!(
            text,
            r#"[null,[3,7],[3,-1],-5,1.0,true,"mean",{"l":[1,{"l":[null]}]},{"x":"inf"}]"#
        );
        assert_eq!(serde_json::from_str::<Vec<Arg>>(&text).unwrap(), args);
    }

    #[test]
    fn malformed_arguments_are_refused() {
        for bad in [
            "[1]",
            "[1,-2]",
            "[1,2,3]",
            "{}",
            r#"{"l":[],"x":""}"#,
            r#"{"y":1}"#,
            "[-1,0]",
        ] {
            assert!(serde_json::from_str::<Arg>(bad).is_err(), "{bad} was read");
        }
    }

    #[test]
    fn tensors_inside_lists_come_in_order() {
        let t = |sig| Arg::Tensor(TensorRef { sig, alloc: None });
        let arg = Arg::List(vec![t(0), Arg::List(vec![t(1), Arg::Int(4)]), t(2)]);
        assert_eq!(arg.tensors().map(|t| t.sig).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
