//! A method's schema: as the protocol says it, and with the types that decide what a SPEC means.

use inspect_checkpoint::engine::protocol::{FailureKind, Signature, SignatureArgument};
use serde::Deserialize;

use crate::failure::Failure;
use crate::ffi::{Module, Schema};

/// A type of TorchScript: its kind and what it contains.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Kind {
    /// `Tensor`, `Optional`, `List`, `Int`, ...
    pub(crate) is: String,
    /// Contained types.
    #[serde(default)]
    pub(crate) of: Vec<Kind>,
}

impl Kind {
    /// The type inside Optional; an Optional may also come as a Union with None.
    pub(crate) fn without_optional(&self) -> &Kind {
        match self.is.as_str() {
            "Optional" => self.of.first().map_or(self, Kind::without_optional),
            "Union" if self.of.len() == 2 && self.of.iter().any(|k| k.is == "None") => self
                .of
                .iter()
                .find(|k| k.is != "None")
                .map_or(self, Kind::without_optional),
            _ => self,
        }
    }

    /// Whether None is one of its values.
    pub(crate) fn allows_none(&self) -> bool {
        matches!(self.is.as_str(), "Optional" | "None" | "Any")
            || self.is == "Union" && self.of.iter().any(Kind::allows_none)
    }
}

/// One argument with its type.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Argument {
    /// Its name.
    pub(crate) name: String,
    /// Its type as TorchScript writes it.
    #[serde(rename = "type")]
    pub(crate) ty: String,
    /// Its type to decide by.
    pub(crate) kind: Kind,
    /// Its default as TorchScript writes it.
    pub(crate) default: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Raw {
    class: String,
    method: String,
    returns: String,
    arguments: Vec<Argument>,
}

/// A method's schema.
#[derive(Debug, Clone)]
pub(crate) struct Method {
    /// As the protocol says it.
    pub(crate) signature: Signature,
    /// The arguments without `self`.
    pub(crate) arguments: Vec<Argument>,
}

impl Method {
    /// Reads the schema of `method`.
    pub(crate) fn of(module: &Module, method: &str) -> Result<Method, Failure> {
        let json = match module.schema(method)? {
            Schema::Found(json) => json,
            Schema::Missing(methods) => {
                let known = if methods.is_empty() {
                    "it has no methods".to_owned()
                } else {
                    format!(
                        "it has {}",
                        methods
                            .iter()
                            .map(|m| format!("`{m}`"))
                            .collect::<Vec<_>>()
                            .join(", ")
                    )
                };
                return Err(Failure::new(
                    FailureKind::NoSuchMethod,
                    format!("the module has no method `{method}`: {known}"),
                ));
            }
        };
        let raw: Raw = serde_json::from_str(&json).map_err(|error| {
            Failure::new(
                FailureKind::Internal,
                format!("the schema of `{method}` cannot be read: {error}"),
            )
        })?;
        let signature = Signature {
            method: raw.method,
            class: Some(raw.class).filter(|class| !class.is_empty()),
            arguments: raw
                .arguments
                .iter()
                .map(|a| SignatureArgument {
                    name: a.name.clone(),
                    ty: a.ty.clone(),
                    default: a.default.clone(),
                })
                .collect(),
            returns: raw.returns,
        };
        Ok(Method {
            signature,
            arguments: raw.arguments,
        })
    }
}
