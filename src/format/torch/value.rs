//! An object as plain values, for inputs that were saved with `torch.save`.

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::{Node, NodeId, cut};
use super::globals::Known;
use super::rebuild::{Built, Graph, View};
use super::storage::{Records, StorageTable};
use crate::checkpoint::{ByteOrder, Layout, Security, Storage, StorageId};
use crate::limits;
use crate::tensor::{DType, Dims};

/// A value that a model can take.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `None`
    None,
    /// A bool.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A string.
    Str(String),
    /// A tensor.
    Tensor(TensorRef),
    /// A list.
    List(Vec<Value>),
    /// A tuple.
    Tuple(Vec<Value>),
    /// A dictionary, in its own order.
    Dict(Vec<(Value, Value)>),
}

/// A tensor among [`Inputs`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRef {
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Dims,
    /// Its strides in elements.
    pub strides: Dims,
    /// The storage it views: its place in [`Inputs::storages`].
    pub storage: StorageId,
    /// Where in the storage it starts, in elements.
    pub storage_offset: u64,
    /// Whether it wants gradients, where the file says.
    pub requires_grad: Option<bool>,
}

/// What a file of inputs holds.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The object.
    pub value: Value,
    /// The storages of its tensors; [`super::super::storage_bytes`] reads them.
    pub storages: Vec<Storage>,
    /// The byte order of their data.
    pub byte_order: Option<ByteOrder>,
    /// Whether the file is safe to load.
    pub security: Security,
}

/// Converts a pickle's root.
pub(crate) fn convert(
    graph: &Graph<'_, '_>,
    member: &str,
    records: &dyn Records,
) -> Result<(Value, Vec<Storage>), FormatError> {
    let mut conversion = Conversion {
        graph,
        member,
        records,
        table: StorageTable::default(),
        values: 0,
        path: String::new(),
    };
    let value = conversion.value(graph.pickle.root(), 0)?;
    Ok((value, conversion.table.into_storages()))
}

struct Conversion<'c, 'p, 'a> {
    graph: &'c Graph<'p, 'a>,
    member: &'c str,
    records: &'c dyn Records,
    table: StorageTable,
    values: u64,
    path: String,
}

impl Conversion<'_, '_, '_> {
    fn fault(&self, fault: TensorFault) -> FormatError {
        FormatError::Tensor {
            member: self.member.to_owned(),
            name: cut(&self.path),
            fault,
        }
    }

    fn not_an_input(&self, node: NodeId) -> FormatError {
        FormatError::Structure {
            part: format!("in `{}`: `{}`", self.member, cut(&self.path)),
            expected: "a tensor, number, string, list, tuple or dictionary".to_owned(),
            found: self.graph.pickle.kind(node),
        }
    }

    fn value(&mut self, node: NodeId, depth: u32) -> Result<Value, FormatError> {
        self.values = self.values.saturating_add(1);
        if depth > limits::INPUT_DEPTH || self.values > limits::INPUT_VALUES {
            return Err(FormatError::Limit {
                what: format!("in `{}`: the values, or their nesting,", self.member),
                limit: limits::INPUT_VALUES,
            });
        }
        let pickle = self.graph.pickle;
        Ok(match pickle.node(node) {
            Node::None => Value::None,
            Node::Bool(value) => Value::Bool(value),
            Node::Int(value) => Value::Int(value),
            Node::Float(value) => Value::Float(value),
            Node::Str(_) | Node::Decoded(_) => {
                Value::Str(pickle.text(node).unwrap_or_default().into_owned())
            }
            Node::Tuple(_) => Value::Tuple(self.values(pickle.items(node), depth)?),
            Node::List(_) => Value::List(self.values(pickle.items(node), depth)?),
            Node::Dict(_) => self.dict(pickle.pairs(node), depth)?,
            Node::Reduce { callable, args } => {
                let known = self.graph.known(callable);
                match known {
                    Known::Mapping => self.dict(pickle.assigned_pairs(node), depth)?,
                    Known::Size => match pickle.items(args).first() {
                        Some(&inner) => self.value(inner, depth.saturating_add(1))?,
                        None => Value::Tuple(Vec::new()),
                    },
                    known if known.makes_tensor() => Value::Tensor(self.tensor(known, args)?),
                    _ => return Err(self.not_an_input(node)),
                }
            }
            _ => return Err(self.not_an_input(node)),
        })
    }

    fn values(&mut self, items: &[NodeId], depth: u32) -> Result<Vec<Value>, FormatError> {
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let length = self.path.len();
            self.push(&index.to_string());
            values.push(self.value(*item, depth.saturating_add(1))?);
            self.path.truncate(length);
        }
        Ok(values)
    }

    fn dict(&mut self, pairs: &[NodeId], depth: u32) -> Result<Value, FormatError> {
        let pickle = self.graph.pickle;
        let mut entries = Vec::new();
        for (key, value) in pickle.entries(pairs) {
            let length = self.path.len();
            self.push(&pickle.key_text(key));
            let below = depth.saturating_add(1);
            entries.push((self.value(key, below)?, self.value(value, below)?));
            self.path.truncate(length);
        }
        Ok(Value::Dict(entries))
    }

    fn push(&mut self, label: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(label);
    }

    fn tensor(&mut self, known: Known, args: NodeId) -> Result<TensorRef, FormatError> {
        let (mut known, mut args, mut grad) = (known, args, None);
        for _ in 0..8 {
            let built = self
                .graph
                .build(known, args, &mut self.table, self.records)
                .map_err(|fault| self.fault(fault))?;
            match built {
                Built::View(view, parts) if parts.is_empty() => {
                    return self.reference(view, grad);
                }
                Built::Wrapped {
                    inner,
                    requires_grad,
                    ..
                } => {
                    grad = grad.or(requires_grad);
                    let Node::Reduce {
                        callable,
                        args: next,
                    } = self.graph.pickle.node(inner)
                    else {
                        return Err(self.not_an_input(inner));
                    };
                    (known, args) = (self.graph.known(callable), next);
                }
                Built::Call {
                    known: next,
                    args: next_args,
                    ..
                } => (known, args) = (next, next_args),
                _ => break,
            }
        }
        Err(self.fault(TensorFault::Argument {
            what: "its layout",
            expected: "strided",
            found: "another".to_owned(),
        }))
    }

    fn reference(&self, view: View, grad: Option<bool>) -> Result<TensorRef, FormatError> {
        let (Some(storage), Some(storage_bytes), Layout::Strided) =
            (view.storage, view.storage_bytes, view.layout)
        else {
            return Err(self.fault(TensorFault::Argument {
                what: "its layout",
                expected: "strided",
                found: view.layout.name().to_owned(),
            }));
        };
        let needed_bytes = crate::tensor::extent(&view.shape, &view.strides, view.offset)
            .and_then(|n| n.checked_mul(view.dtype.item_bytes()))
            .ok_or_else(|| self.fault(TensorFault::TooLarge))?;
        if needed_bytes > storage_bytes || view.shape.len() != view.strides.len() {
            return Err(self.fault(TensorFault::OutOfStorage {
                needed_bytes,
                storage_bytes,
            }));
        }
        Ok(TensorRef {
            dtype: view.dtype,
            shape: view.shape,
            strides: view.strides,
            storage,
            storage_offset: view.offset,
            requires_grad: grad.or(view.requires_grad),
        })
    }
}

/// Tensors by name as a dictionary, for formats that hold nothing else.
pub(crate) fn of_tensors(checkpoint: &crate::checkpoint::Checkpoint) -> Inputs {
    let mut entries = Vec::new();
    for tensor in checkpoint.tensors() {
        let (Some(dtype), Some(shape), Some(strides), Some(storage)) = (
            tensor.dtype(),
            tensor.shape(),
            tensor.strides(),
            tensor.storage(),
        ) else {
            continue;
        };
        entries.push((
            Value::Str(tensor.name().to_owned()),
            Value::Tensor(TensorRef {
                dtype,
                shape: Dims::from_slice(shape),
                strides: Dims::from_slice(strides),
                storage,
                storage_offset: tensor.storage_offset(),
                requires_grad: None,
            }),
        ));
    }
    Inputs {
        value: Value::Dict(entries),
        storages: checkpoint.storages().to_vec(),
        byte_order: checkpoint.byte_order(),
        security: checkpoint.security().clone(),
    }
}
