//! `--inputs FILE.pt`: real values for the arguments, whatever they are: tensors, numbers, texts, None, and lists,
//! tuples and dicts of them.
//!
//! A tuple or list is taken by position, a dict by name; where the method has a single argument that is a list,
//! tuple or dict itself, the whole file is that argument, unless it fits as a list of one or a dict of its name.

use std::path::Path;

use inspect_checkpoint::engine::protocol::FailureKind;
use inspect_checkpoint::format::{self, Inputs, TensorRef, Value as Stored};
use inspect_checkpoint::source::Source;
use tch::Tensor;

use super::{Chosen, Place, arguments_text};
use crate::data::{Data, Unusable, View, with_causes};
use crate::failure::Failure;
use crate::ffi::{Module, Value, Values};
use crate::signature::Method;

/// The stack of arguments for a call.
pub(crate) fn arguments(
    module: &Module,
    method: &Method,
    path: &Path,
    place: Place,
) -> Result<Chosen, Failure> {
    let refuse = |why: String| {
        Failure::input(
            format!("`{}` cannot be the inputs: {why}", path.display()),
            &method.signature,
        )
    };
    let unreadable = |error: &dyn std::error::Error| {
        let message = format!(
            "`{}` cannot be read: {}",
            path.display(),
            with_causes(error)
        );
        Failure::new(FailureKind::InputMismatch, message)
    };
    let source = Source::open(path).map_err(|error| unreadable(&error))?;
    let inputs = format::read_inputs(&source).map_err(|error| unreadable(&error))?;
    let maker = Maker {
        data: Data::new(&source, inputs.byte_order),
        inputs: &inputs,
        place,
    };
    let assigned = assign(method, &inputs.value).map_err(refuse)?;
    let name = &method.signature.method;
    let mut values = Values::new();
    let mut given = Vec::with_capacity(assigned.len());
    for (index, (argument, item)) in method.arguments.iter().zip(assigned).enumerate() {
        let about = |why: &str| {
            let message = format!("argument `{}`: {why}", argument.name);
            Failure::input(message, &method.signature)
        };
        given.push(item.is_some());
        match item {
            None if argument.default.is_none() => {
                let message = format!("nothing in it is for `{}`", argument.name);
                return Err(refuse(message));
            }
            None => values.push_default(module, name, index),
            Some(item) => {
                maker.push(&mut values, item).map_err(|error| match error {
                    Unusable::Stored(why) => about(&why),
                    Unusable::Torch(failure) => failure,
                })?;
                values.fit(module, name, index)
            }
        }
        .map_err(|error| about(&error.message))?;
    }
    Ok(Chosen { values, given })
}

/// Which value is for which argument, or why one is for none.
fn assign<'v>(method: &Method, root: &'v Stored) -> Result<Vec<Option<&'v Stored>>, String> {
    let name = &method.signature.method;
    let mut chosen: Vec<Option<&Stored>> = vec![None; method.arguments.len()];
    if is_whole(method, root) {
        let first = chosen
            .first_mut()
            .ok_or_else(|| format!("`{name}` takes no arguments"))?;
        *first = Some(root);
        return Ok(chosen);
    }
    match root {
        Stored::List(items) | Stored::Tuple(items) => {
            if items.len() > chosen.len() {
                return Err(format!(
                    "`{name}` takes {}, and it holds {}",
                    arguments_text(chosen.len()),
                    items.len()
                ));
            }
            for (slot, item) in chosen.iter_mut().zip(items) {
                *slot = Some(item);
            }
        }
        Stored::Dict(entries) => {
            for (key, item) in entries {
                let Stored::Str(key) = key else {
                    return Err("a key of the dict is no argument's name".to_owned());
                };
                let index = method.arguments.iter().position(|one| one.name == *key);
                let slot = index.and_then(|index| chosen.get_mut(index));
                *slot.ok_or_else(|| format!("`{name}` has no argument `{key}`"))? = Some(item);
            }
        }
        _ => {}
    }
    Ok(chosen)
}

/// Whether the file is one argument, not a collection of them.
fn is_whole(method: &Method, root: &Stored) -> bool {
    let (list, dict) = match root {
        Stored::List(items) | Stored::Tuple(items) => (Some(items), None),
        Stored::Dict(entries) => (None, Some(entries)),
        _ => return true,
    };
    let [only] = method.arguments.as_slice() else {
        return false;
    };
    match only.kind.without_optional().is.as_str() {
        "List" | "Tuple" => list.is_some_and(|items| {
            // `[[x, y]]` is the list `[x, y]` for the only argument.
            !matches!(items.as_slice(), [Stored::List(_) | Stored::Tuple(_)])
        }),
        "Dict" => dict.is_some_and(|entries| {
            let named = |(key, value): &(Stored, Stored)| {
                matches!(key, Stored::Str(key) if *key == only.name)
                    && matches!(value, Stored::Dict(_))
            };
            !(entries.len() == 1 && entries.iter().all(named))
        }),
        _ => false,
    }
}

/// Makes libtorch's values of stored ones.
struct Maker<'a> {
    data: Data<'a>,
    inputs: &'a Inputs,
    place: Place,
}

impl Maker<'_> {
    fn push(&self, values: &mut Values, item: &Stored) -> Result<(), Unusable> {
        match item {
            Stored::None => values.push(&Value::None)?,
            Stored::Bool(value) => values.push(&Value::Bool(*value))?,
            Stored::Int(value) => values.push(&Value::Int(*value))?,
            Stored::Float(value) => values.push(&Value::Double(*value))?,
            Stored::Str(text) => values.push(&Value::Text(text))?,
            Stored::Tensor(tensor) => values.push(&Value::Tensor(&self.tensor(tensor)?))?,
            Stored::List(items) | Stored::Tuple(items) => {
                for item in items {
                    self.push(values, item)?;
                }
                values.tuple(items.len())?;
            }
            Stored::Dict(entries) => {
                for (key, item) in entries {
                    self.push(values, key)?;
                    self.push(values, item)?;
                }
                values.dict(entries.len())?;
            }
        }
        Ok(())
    }

    fn tensor(&self, stored: &TensorRef) -> Result<Tensor, Unusable> {
        let storage = self
            .inputs
            .storages
            .get(stored.storage.index())
            .ok_or_else(|| Unusable::Stored("its data is not in the file".to_owned()))?;
        let view = View {
            dtype: stored.dtype,
            shape: &stored.shape,
            strides: &stored.strides,
            offset: stored.storage_offset,
            storage,
        };
        let made = self.data.tensor(view, self.place.computes)?;
        Ok(if self.place.device == tch::Device::Cpu {
            made
        } else {
            made.f_to_device(self.place.device)?
        })
    }
}
