//! Real inputs: a `.pt` file that holds a tensor, or a tuple, list or dict of them.
//!
//! A tuple or list gives arguments by position, a dict by name; where the method has a single argument that is a list,
//! tuple or dict itself, the whole file is that argument.

use std::path::Path;

use inspect_checkpoint::engine::protocol::FailureKind;
use tch::Tensor;

use super::{Place, arguments_text};
use crate::failure::Failure;
use crate::ffi::{Module, Value, Values};
use crate::signature::Method;
use crate::weights::Tensors;

/// What stands at one place of the file.
#[derive(Debug)]
enum Item {
    Tensor(Tensor),
    Many(Vec<(String, Item)>),
}

/// The stack of arguments for a call.
pub(crate) fn arguments(
    module: &Module,
    method: &Method,
    path: &Path,
    place: Place,
) -> Result<Values, Failure> {
    let refuse = |why: String| {
        Failure::input(
            format!("`{}` cannot be the inputs: {why}", path.display()),
            &method.signature,
        )
    };
    let root = read(path, place, &refuse)?;
    let mut chosen: Vec<Option<Item>> = method.arguments.iter().map(|_| None).collect();
    let only = match method.arguments.as_slice() {
        [argument] => Some(argument.kind.without_optional().is.as_str()),
        _ => None,
    };
    match root {
        Item::Many(items) if !matches!(only, Some("List" | "Tuple" | "Dict")) => {
            let by_position = is_sequence(&items);
            for (at, (key, item)) in items.into_iter().enumerate() {
                let index = if by_position {
                    Some(at)
                } else {
                    method.arguments.iter().position(|one| one.name == key)
                };
                let slot = index.and_then(|index| chosen.get_mut(index));
                let Some(slot) = slot else {
                    return Err(refuse(if by_position {
                        format!(
                            "`{}` takes {}",
                            method.signature.method,
                            arguments_text(method.arguments.len())
                        )
                    } else {
                        format!("`{}` has no argument `{key}`", method.signature.method)
                    }));
                };
                *slot = Some(item);
            }
        }
        whole => match chosen.first_mut() {
            Some(first) => *first = Some(whole),
            None => {
                return Err(refuse(format!(
                    "`{}` takes no arguments",
                    method.signature.method
                )));
            }
        },
    }
    let mut values = Values::new();
    for (index, (argument, item)) in method.arguments.iter().zip(chosen).enumerate() {
        let place = |why: &str| {
            Failure::input(
                format!("argument `{}`: {why}", argument.name),
                &method.signature,
            )
        };
        match item {
            None if argument.default.is_none() => {
                return Err(refuse(format!("nothing in it is for `{}`", argument.name)));
            }
            None => values.push_default(module, &method.signature.method, index),
            Some(item) => {
                push(&mut values, &item)?;
                values.fit(module, &method.signature.method, index)
            }
        }
        .map_err(|error| place(&error.message))?;
    }
    Ok(values)
}

fn push(values: &mut Values, item: &Item) -> Result<(), Failure> {
    match item {
        Item::Tensor(tensor) => values.push(&Value::Tensor(tensor))?,
        Item::Many(items) => {
            let sequence = is_sequence(items);
            for (key, item) in items {
                if !sequence {
                    values.push(&Value::Text(key))?;
                }
                push(values, item)?;
            }
            if sequence {
                values.tuple(items.len())?;
            } else {
                values.dict(items.len())?;
            }
        }
    }
    Ok(())
}

/// Whether the keys are 0, 1, 2, ...: the reader names the elements of tuples and lists so.
fn is_sequence(items: &[(String, Item)]) -> bool {
    items
        .iter()
        .enumerate()
        .all(|(at, (key, _))| *key == at.to_string())
}

fn read(path: &Path, place: Place, refuse: &dyn Fn(String) -> Failure) -> Result<Item, Failure> {
    let file = Tensors::open(path, FailureKind::InputMismatch)?;
    let mut root = Item::Many(Vec::new());
    for stored in file.checkpoint().tensors() {
        let made = file.make(stored, place.computes, FailureKind::InputMismatch)?;
        let made = if place.device == tch::Device::Cpu {
            made
        } else {
            made.f_to_device(place.device)?
        };
        if stored.name().is_empty() {
            return Ok(Item::Tensor(made));
        }
        insert(&mut root, stored.name(), made);
    }
    match root {
        Item::Many(items) if items.is_empty() => Err(refuse("it holds no tensors".to_owned())),
        root => Ok(root),
    }
}

/// Puts a tensor where its dotted name says.
fn insert(at: &mut Item, name: &str, tensor: Tensor) {
    let Item::Many(items) = at else {
        return;
    };
    match name.split_once('.') {
        Some((key, rest)) => {
            let known = items.iter().position(|(known, _)| known == key);
            let index = known.unwrap_or_else(|| {
                items.push((key.to_owned(), Item::Many(Vec::new())));
                items.len() - 1
            });
            if let Some((_, below)) = items.get_mut(index) {
                insert(below, rest, tensor);
            }
        }
        None => items.push((name.to_owned(), Item::Tensor(tensor))),
    }
}
