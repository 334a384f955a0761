//! What torch's rebuild functions would make of their arguments.

use super::super::error::TensorFault;
use super::super::pickle::{Node, NodeId, Pickle};
use super::embedded::Embedded;
use super::globals::{Known, known};
use super::storage::{Declared, Records, StorageClass, StorageTable, declared_storage};
use crate::checkpoint::{Layout, Quantizer, StorageId};
use crate::limits;
use crate::tensor::{self, DType, Dims};

/// A strided view, checked against its storage.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    pub(crate) strides: Dims,
    /// `None` for meta tensors.
    pub(crate) storage: Option<StorageId>,
    pub(crate) storage_bytes: Option<u64>,
    pub(crate) offset: u64,
    pub(crate) requires_grad: Option<bool>,
    pub(crate) layout: Layout,
    /// How integers become numbers, where that is one way for the whole tensor.
    pub(crate) quantizer: Option<Quantizer>,
}

/// What a call makes.
#[derive(Debug, Clone)]
pub(crate) enum Built {
    /// One tensor; per-channel quantized ones have more tensors as parts.
    View(View, Vec<(&'static str, NodeId)>),
    /// A tensor that consists of others.
    Parts {
        layout: Layout,
        shape: Option<Dims>,
        parts: Vec<(&'static str, NodeId)>,
    },
    /// Another tensor, with more known about it.
    Wrapped {
        inner: NodeId,
        requires_grad: Option<bool>,
        parameter: bool,
        state: Option<NodeId>,
    },
    /// Another call, with attributes for what it makes.
    Call {
        known: Known,
        args: NodeId,
        state: Option<NodeId>,
    },
    /// A lazy parameter or buffer.
    Uninitialized { requires_grad: Option<bool> },
    /// A numpy array that becomes a tensor on another device.
    Array(NodeId),
}

/// A pickle with the meaning of its globals looked up once.
pub(crate) struct Graph<'p, 'a> {
    pub(crate) pickle: &'p Pickle<'a>,
    known: Vec<Known>,
    dtypes: Vec<Option<DType>>,
    storage_classes: Vec<StorageClass>,
    /// Storages inside the pickle.
    embedded: Option<&'p Embedded>,
}

impl<'p, 'a> Graph<'p, 'a> {
    pub(crate) fn new(pickle: &'p Pickle<'a>) -> Graph<'p, 'a> {
        let mut graph = Graph {
            pickle,
            known: Vec::new(),
            dtypes: Vec::new(),
            storage_classes: Vec::new(),
            embedded: None,
        };
        for global in pickle.globals() {
            let (module, name) = pickle.global_name(global).unwrap_or_default();
            let dtype = (module == "torch").then(|| DType::parse(&name)).flatten();
            graph.known.push(known(&module, &name));
            graph.dtypes.push(dtype);
            graph.storage_classes.push(StorageClass::of(&module, &name));
        }
        graph
    }

    /// The graph of a pickle with storages inside it.
    pub(crate) fn with_embedded(pickle: &'p Pickle<'a>, embedded: &'p Embedded) -> Graph<'p, 'a> {
        Graph {
            embedded: Some(embedded),
            ..Graph::new(pickle)
        }
    }

    /// Whether a call makes a storage that is inside the pickle.
    pub(crate) fn is_embedded(&self, call: NodeId) -> bool {
        self.embedded
            .is_some_and(|inside| inside.declared(call).is_some())
    }

    /// The storage that a value stands for.
    pub(crate) fn declared(&self, storage: NodeId) -> Result<Declared<'p>, TensorFault> {
        match self.embedded.and_then(|inside| inside.declared(storage)) {
            Some(declared) => Ok(declared),
            None => declared_storage(self.pickle, storage, |class| self.storage_class(class)),
        }
    }

    /// What a value is as a class of storages.
    fn storage_class(&self, id: NodeId) -> StorageClass {
        let known = match self.pickle.node(id) {
            Node::Global(global) => self.storage_classes.get(global.index()),
            _ => None,
        };
        known.copied().unwrap_or_default()
    }

    /// What a global means; `Other` for anything that is not a global.
    pub(crate) fn known(&self, id: NodeId) -> Known {
        match self.pickle.node(id) {
            Node::Global(global) => self
                .known
                .get(global.index())
                .copied()
                .unwrap_or(Known::Other),
            _ => Known::Other,
        }
    }

    /// What a call calls; `Other` for anything that is not a call of a known global.
    pub(crate) fn called(&self, id: NodeId) -> Known {
        match self.pickle.node(id) {
            Node::Reduce { callable, .. }
            | Node::New {
                class: callable, ..
            } => self.known(callable),
            _ => Known::Other,
        }
    }

    fn argument(&self, what: &'static str, expected: &'static str, id: NodeId) -> TensorFault {
        TensorFault::Argument {
            what,
            expected,
            found: self.pickle.kind(id),
        }
    }

    pub(crate) fn dtype(&self, id: NodeId) -> Result<DType, TensorFault> {
        match self.pickle.node(id) {
            Node::Global(global) => {
                if let Some(dtype) = self.dtypes.get(global.index()).copied().flatten() {
                    return Ok(dtype);
                }
                Err(TensorFault::UnknownDType(self.pickle.repr(id)))
            }
            Node::Int(number) => DType::from_scalar_type(number)
                .ok_or_else(|| TensorFault::UnknownDType(number.to_string())),
            _ => Err(self.argument("its dtype", "a dtype", id)),
        }
    }

    /// A tuple or list of sizes or strides.
    pub(crate) fn dims(&self, what: &'static str, id: NodeId) -> Result<Dims, TensorFault> {
        let list = match self.called(id) {
            Known::Size | Known::BuildList => match self.pickle.node(id) {
                Node::Reduce { args, .. } => {
                    self.pickle.items(args).first().copied().unwrap_or(args)
                }
                _ => id,
            },
            _ => id,
        };
        if !matches!(self.pickle.node(list), Node::Tuple(_) | Node::List(_)) {
            return Err(self.argument(what, "a tuple of integers", id));
        }
        let items = self.pickle.items(list);
        if items.len() > limits::TENSOR_DIMENSIONS {
            return Err(TensorFault::Dimensions(items.len()));
        }
        let mut dims = Dims::with_capacity(items.len());
        for item in items {
            dims.push(self.count(what, *item)?);
        }
        Ok(dims)
    }

    fn count(&self, what: &'static str, id: NodeId) -> Result<u64, TensorFault> {
        let value = match self.pickle.node(id) {
            Node::Int(value) => value,
            Node::Bool(value) => i64::from(value),
            Node::Long(_) | Node::LongText(_) => return Err(TensorFault::TooLarge),
            _ => return Err(self.argument(what, "an integer", id)),
        };
        u64::try_from(value).map_err(|_| TensorFault::Negative { what, value })
    }

    fn arity<const N: usize>(&self, args: NodeId) -> Result<[NodeId; N], TensorFault> {
        self.pickle
            .items(args)
            .first_chunk::<N>()
            .copied()
            .ok_or_else(|| TensorFault::Argument {
                what: "the list of its arguments",
                expected: "complete",
                found: format!("{} values, of {N}", self.pickle.items(args).len()),
            })
    }

    /// What a call of a tensor-making function with these arguments makes.
    pub(crate) fn build(
        &self,
        function: Known,
        args: NodeId,
        table: &mut StorageTable,
        records: &dyn Records,
    ) -> Result<Built, TensorFault> {
        match function {
            Known::RebuildTensor => {
                let view = self.arity::<4>(args)?;
                self.strided(view, None, table, records)
            }
            Known::RebuildTensorV2 => {
                let [storage, offset, size, stride, grad] = self.arity(args)?;
                let mut built =
                    self.strided([storage, offset, size, stride], None, table, records)?;
                set_grad(&mut built, self.pickle.bool(grad));
                Ok(built)
            }
            Known::RebuildTensorV3 => {
                let [storage, offset, size, stride, grad, _hooks, dtype] = self.arity(args)?;
                let dtype = self.dtype(dtype)?;
                let view = [storage, offset, size, stride];
                let mut built = self.strided(view, Some(dtype), table, records)?;
                set_grad(&mut built, self.pickle.bool(grad));
                Ok(built)
            }
            Known::RebuildQTensor => self.quantized(args, table, records),
            _ => self.build_of_others(function, args),
        }
    }

    /// Tensors that view no storage themselves: they have none, or are made of other tensors.
    fn build_of_others(&self, function: Known, args: NodeId) -> Result<Built, TensorFault> {
        match function {
            Known::RebuildSparse => self.sparse(args),
            Known::RebuildNested => {
                let [buffer, sizes, strides, offsets] = self.arity(args)?;
                Ok(Built::Parts {
                    layout: Layout::Nested,
                    shape: None,
                    parts: vec![
                        ("buffer", buffer),
                        ("sizes", sizes),
                        ("strides", strides),
                        ("storage_offsets", offsets),
                    ],
                })
            }
            Known::RebuildJagged => {
                let [arguments] = self.arity(args)?;
                Ok(self.jagged(arguments))
            }
            Known::RebuildMeta => {
                let [dtype, size, stride, grad] = self.arity(args)?;
                self.meta(dtype, size, stride, grad)
            }
            Known::RebuildWrapper => {
                let [_class, dtype, size, stride, _offset, _layout, _device, grad] =
                    self.arity(args)?;
                self.meta(dtype, size, stride, grad)
            }
            _ => self.wrapped(function, args),
        }
    }

    /// Calls around the one that makes a tensor.
    fn wrapped(&self, function: Known, args: NodeId) -> Result<Built, TensorFault> {
        let pickle = self.pickle;
        match function {
            Known::RebuildFromCpu => {
                let [inner, _dtype, _device, grad] = self.arity(args)?;
                Ok(Built::Wrapped {
                    inner,
                    requires_grad: pickle.bool(grad),
                    parameter: false,
                    state: None,
                })
            }
            Known::RebuildFromNumpy => {
                let [array] = self.arity(args)?;
                Ok(Built::Array(array))
            }
            Known::RebuildParameter | Known::RebuildParameterWithState => {
                let [inner, grad] = self.arity(args)?;
                Ok(Built::Wrapped {
                    inner,
                    requires_grad: pickle.bool(grad),
                    parameter: true,
                    state: pickle.items(args).get(3).copied(),
                })
            }
            Known::RebuildFromType | Known::RebuildFromTypeV2 => {
                let [function, _class, inner, state] = self.arity(args)?;
                let known = self.known(function);
                let wraps = matches!(known, Known::RebuildFromType | Known::RebuildFromTypeV2);
                if !known.makes_tensor() || wraps {
                    return Err(self.argument("what makes it", "a rebuild function", function));
                }
                if !matches!(pickle.node(inner), Node::Tuple(_)) {
                    return Err(self.argument("the list of its arguments", "a tuple", inner));
                }
                Ok(Built::Call {
                    known,
                    args: inner,
                    state: Some(state),
                })
            }
            Known::Uninitialized => Ok(Built::Uninitialized {
                requires_grad: pickle.items(args).first().and_then(|&id| pickle.bool(id)),
            }),
            _ => Err(self.argument("what makes it", "a rebuild function", args)),
        }
    }

    fn strided(
        &self,
        [storage, offset, size, stride]: [NodeId; 4],
        dtype: Option<DType>,
        table: &mut StorageTable,
        records: &dyn Records,
    ) -> Result<Built, TensorFault> {
        let declared = self.declared(storage)?;
        let offset = self.count("its storage offset", offset)?;
        let shape = self.dims("its size", size)?;
        let strides = self.dims("its stride", stride)?;
        // A typed storage without a dtype of its own would be a guess; v3 always says.
        let dtype = dtype
            .or(declared.dtype)
            .ok_or_else(|| TensorFault::UnknownDType("UntypedStorage".to_owned()))?;
        let (id, storage_bytes) = table.get(&declared, records)?;
        let offset = within_view(&declared, &shape, &strides, offset, dtype)?;
        let view = View {
            quantizer: None,
            dtype,
            shape,
            strides,
            storage: Some(id),
            storage_bytes: Some(storage_bytes),
            offset,
            requires_grad: None,
            layout: if dtype.is_quantized() {
                Layout::Quantized
            } else {
                Layout::Strided
            },
        };
        Ok(Built::View(view, Vec::new()))
    }

    fn quantized(
        &self,
        args: NodeId,
        table: &mut StorageTable,
        records: &dyn Records,
    ) -> Result<Built, TensorFault> {
        let [storage, offset, size, stride, quantizer, grad] = self.arity(args)?;
        let mut built = self.strided([storage, offset, size, stride], None, table, records)?;
        set_grad(&mut built, self.pickle.bool(grad));
        if let Built::View(view, parts) = &mut built {
            view.layout = Layout::Quantized;
            if let [_scheme, scale, zero_point] = *self.pickle.items(quantizer) {
                let numbers = self.pickle.float(scale).zip(self.pickle.int(zero_point));
                view.quantizer = numbers.map(|(scale, zero)| Quantizer::new(scale, zero));
            }
            // (scheme, scales, zero_points, axis), or (scheme, scale, zero_point) with plain numbers.
            if let [_scheme, scales, zero_points, ..] = self.pickle.items(quantizer) {
                for (name, part) in [("scales", *scales), ("zero_points", *zero_points)] {
                    if self.called(part).makes_tensor() {
                        parts.push((name, part));
                    }
                }
            }
        }
        Ok(built)
    }

    fn sparse(&self, args: NodeId) -> Result<Built, TensorFault> {
        let pickle = self.pickle;
        let [layout, data] = self.arity(args)?;
        let name = match pickle.node(layout) {
            Node::Reduce { args, .. } if self.called(layout) == Known::GetLayout => pickle
                .items(args)
                .first()
                .and_then(|&id| pickle.text(id))
                .unwrap_or_default()
                .into_owned(),
            _ => pickle.repr(layout),
        };
        let (layout, names): (_, &[&'static str]) = match name.as_str() {
            "torch.sparse_coo" => (Layout::SparseCoo, &["indices", "values"]),
            "torch.sparse_csr" => (
                Layout::SparseCsr,
                &["crow_indices", "col_indices", "values"],
            ),
            "torch.sparse_csc" => (
                Layout::SparseCsc,
                &["ccol_indices", "row_indices", "values"],
            ),
            "torch.sparse_bsr" => (
                Layout::SparseBsr,
                &["crow_indices", "col_indices", "values"],
            ),
            "torch.sparse_bsc" => (
                Layout::SparseBsc,
                &["ccol_indices", "row_indices", "values"],
            ),
            _ => return Err(self.argument("its layout", "a sparse layout", layout)),
        };
        let items = pickle.items(data);
        if items.len() < names.len() {
            return Err(self.argument("its sparse data", "indices and values", data));
        }
        let shape = match items.get(names.len()) {
            Some(&size) => Some(self.dims("its size", size)?),
            None => None,
        };
        Ok(Built::Parts {
            layout,
            shape,
            parts: names.iter().copied().zip(items.iter().copied()).collect(),
        })
    }

    /// A nested tensor of rows that differ in length, from the keyword arguments of its constructor.
    fn jagged(&self, arguments: NodeId) -> Built {
        let pickle = self.pickle;
        let cache = pickle.get(arguments, "_metadata_cache");
        let cached = |key| cache.and_then(|cache| pickle.get(cache, key));
        let parts = [
            ("values", pickle.get(arguments, "values")),
            ("offsets", pickle.get(arguments, "offsets")),
            ("lengths", pickle.get(arguments, "lengths")),
            ("min_seqlen", cached("min_seqlen")),
            ("max_seqlen", cached("max_seqlen")),
        ];
        Built::Parts {
            layout: Layout::Nested,
            shape: None,
            parts: parts
                .into_iter()
                .filter_map(|(name, part)| Some((name, part?)))
                .filter(|(_, part)| self.called(*part).makes_tensor())
                .collect(),
        }
    }

    fn meta(
        &self,
        dtype: NodeId,
        size: NodeId,
        stride: NodeId,
        grad: NodeId,
    ) -> Result<Built, TensorFault> {
        let shape = self.dims("its size", size)?;
        let strides = if matches!(self.pickle.node(stride), Node::None) {
            tensor::contiguous_strides(&shape).ok_or(TensorFault::TooLarge)?
        } else {
            self.dims("its stride", stride)?
        };
        let view = View {
            quantizer: None,
            dtype: self.dtype(dtype)?,
            shape,
            strides,
            storage: None,
            storage_bytes: None,
            offset: 0,
            requires_grad: self.pickle.bool(grad),
            layout: Layout::Meta,
        };
        Ok(Built::View(view, Vec::new()))
    }
}

/// The offset from the start of the whole storage, for a view inside a view of a legacy file.
fn within_view(
    declared: &Declared<'_>,
    shape: &[u64],
    strides: &[u64],
    offset: u64,
    dtype: DType,
) -> Result<u64, TensorFault> {
    let Some((start, numel)) = declared.view else {
        return Ok(offset);
    };
    let needed = tensor::extent(shape, strides, offset).ok_or(TensorFault::TooLarge)?;
    if needed > numel {
        let item = dtype.item_bytes();
        return Err(TensorFault::OutOfStorage {
            needed_bytes: needed.saturating_mul(item),
            storage_bytes: numel.saturating_mul(item),
        });
    }
    offset.checked_add(start).ok_or(TensorFault::TooLarge)
}

fn set_grad(built: &mut Built, requires_grad: Option<bool>) {
    if let Built::View(view, _) = built {
        view.requires_grad = requires_grad;
    }
}
