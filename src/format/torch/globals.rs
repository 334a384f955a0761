//! What the globals of a pickle mean, and whether a file that names them is safe to load.
//!
//! An allow-list, never a deny-list: of Python, torch and numpy only what is listed here is expected. The rules are
//! those of the command line's contract: anything else of theirs is dangerous, called or only named; classes of other
//! packages are suspicious.

use super::stdlib::STANDARD_LIBRARY;
use crate::checkpoint::Verdict;

/// A global that means something to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// `torch._utils._rebuild_tensor`
    RebuildTensor,
    /// `torch._utils._rebuild_tensor_v2`
    RebuildTensorV2,
    /// `torch._utils._rebuild_tensor_v3`
    RebuildTensorV3,
    /// `torch._utils._rebuild_sparse_tensor`, `_rebuild_sparse_csr_tensor`
    RebuildSparse,
    /// `torch._utils._rebuild_nested_tensor`
    RebuildNested,
    /// `torch.nested._internal.nested_tensor._rebuild_njt`
    RebuildJagged,
    /// `torch._utils._rebuild_qtensor`
    RebuildQTensor,
    /// `torch._utils._rebuild_meta_tensor_no_storage`
    RebuildMeta,
    /// `torch._utils._rebuild_wrapper_subclass`
    RebuildWrapper,
    /// `torch._utils._rebuild_device_tensor_from_cpu_tensor`
    RebuildFromCpu,
    /// `torch._utils._rebuild_device_tensor_from_numpy`, `_rebuild_xla_tensor`
    RebuildFromNumpy,
    /// `torch._utils._rebuild_parameter`
    RebuildParameter,
    /// `torch._utils._rebuild_parameter_with_state`
    RebuildParameterWithState,
    /// `torch._tensor._rebuild_from_type`
    RebuildFromType,
    /// `torch._tensor._rebuild_from_type_v2`
    RebuildFromTypeV2,
    /// `torch.nn.parameter.UninitializedParameter`, `UninitializedBuffer`
    Uninitialized,
    /// `torch.Size`
    Size,
    /// `torch.jit._pickle.build_*`: a list of numbers or tensors
    BuildList,
    /// `torch.jit._pickle.restore_type_tag`
    RestoreTypeTag,
    /// `torch.serialization._get_layout`
    GetLayout,
    /// Dictionaries: `OrderedDict`, `defaultdict`, `Counter`, `dict`
    Mapping,
    /// `set`, `frozenset`, `list`, `tuple`, `deque`, ... of one iterable
    Sequence,
    /// `copy_reg._reconstructor`
    Reconstructor,
    /// `numpy._core.multiarray._reconstruct`
    NumpyReconstruct,
    /// `numpy._core.multiarray.scalar`
    NumpyScalar,
    /// `numpy._core.numeric._frombuffer`
    NumpyFromBuffer,
    /// `numpy.dtype`
    NumpyDType,
    /// `_codecs.encode`
    CodecsEncode,
    /// `torch.storage._load_from_bytes`
    LoadFromBytes,
    /// Anything else.
    Other,
}

/// What a global is to the reader.
pub(crate) fn known(module: &str, name: &str) -> Known {
    match (module, name) {
        ("torch._utils", _) => known_rebuild(name),
        ("torch.nested._internal.nested_tensor", "_rebuild_njt") => Known::RebuildJagged,
        ("torch._tensor", "_rebuild_from_type") => Known::RebuildFromType,
        ("torch._tensor", "_rebuild_from_type_v2") => Known::RebuildFromTypeV2,
        ("torch.nn.parameter", "UninitializedParameter" | "UninitializedBuffer") => {
            Known::Uninitialized
        }
        ("torch", "Size") => Known::Size,
        ("torch.jit._pickle", "restore_type_tag") => Known::RestoreTypeTag,
        ("torch.jit._pickle", _) if name.starts_with("build_") => Known::BuildList,
        ("torch.serialization", "_get_layout") => Known::GetLayout,
        ("collections", "OrderedDict" | "defaultdict" | "Counter")
        | ("builtins" | "__builtin__", "dict") => Known::Mapping,
        ("collections", "deque")
        | ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple") => Known::Sequence,
        ("copy_reg" | "copyreg", "_reconstructor") => Known::Reconstructor,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => {
            Known::NumpyReconstruct
        }
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Known::NumpyScalar,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Known::NumpyFromBuffer,
        ("numpy", "dtype") => Known::NumpyDType,
        ("_codecs", "encode") => Known::CodecsEncode,
        ("torch.storage", "_load_from_bytes") => Known::LoadFromBytes,
        _ => Known::Other,
    }
}

fn known_rebuild(name: &str) -> Known {
    match name {
        "_rebuild_tensor" => Known::RebuildTensor,
        "_rebuild_tensor_v2" => Known::RebuildTensorV2,
        "_rebuild_tensor_v3" => Known::RebuildTensorV3,
        "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor" => Known::RebuildSparse,
        "_rebuild_nested_tensor" => Known::RebuildNested,
        "_rebuild_qtensor" => Known::RebuildQTensor,
        "_rebuild_meta_tensor_no_storage" => Known::RebuildMeta,
        "_rebuild_wrapper_subclass" => Known::RebuildWrapper,
        "_rebuild_device_tensor_from_cpu_tensor" => Known::RebuildFromCpu,
        "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor" => Known::RebuildFromNumpy,
        "_rebuild_parameter" => Known::RebuildParameter,
        "_rebuild_parameter_with_state" => Known::RebuildParameterWithState,
        _ => Known::Other,
    }
}

impl Known {
    /// Whether calling it makes a tensor.
    pub(crate) fn makes_tensor(self) -> bool {
        matches!(
            self,
            Known::RebuildTensor
                | Known::RebuildTensorV2
                | Known::RebuildTensorV3
                | Known::RebuildSparse
                | Known::RebuildNested
                | Known::RebuildJagged
                | Known::RebuildQTensor
                | Known::RebuildMeta
                | Known::RebuildWrapper
                | Known::RebuildFromCpu
                | Known::RebuildFromNumpy
                | Known::RebuildParameter
                | Known::RebuildParameterWithState
                | Known::RebuildFromType
                | Known::RebuildFromTypeV2
                | Known::Uninitialized
        )
    }
}

/// What it means that a file names a global.
pub(crate) fn verdict(module: &str, name: &str) -> Verdict {
    // A dotted name walks through attributes (`torch.nn.functional` + `torch.os.system`): never what torch.save
    // writes for anything on the list.
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if plain && is_expected(module, name) {
        return Verdict::Clean;
    }
    let top = module.split('.').next().unwrap_or("");
    // From protocol 4 on a memory format is pickled by its printed name, in whichever module of torch knows `torch`.
    if top == "torch" && name.strip_prefix("torch.").is_some_and(is_memory_format) {
        return Verdict::Clean;
    }
    let owned =
        matches!(top, "torch" | "numpy" | "") || STANDARD_LIBRARY.binary_search(&top).is_ok();
    if owned {
        Verdict::Dangerous
    } else {
        Verdict::Suspicious
    }
}

fn is_expected(module: &str, name: &str) -> bool {
    match module.split('.').next().unwrap_or("") {
        "torch" => is_expected_torch(module, name),
        "numpy" => is_expected_numpy(module, name),
        // TorchScript's own classes: names in the archive, never imported.
        "__torch__" => true,
        _ => is_expected_python(module, name),
    }
}

fn is_expected_python(module: &str, name: &str) -> bool {
    match module {
        "builtins" | "__builtin__" => matches!(
            name,
            "set"
                | "frozenset"
                | "list"
                | "tuple"
                | "dict"
                | "int"
                | "long"
                | "float"
                | "complex"
                | "bool"
                | "str"
                | "unicode"
                | "bytes"
                | "bytearray"
                | "slice"
                | "range"
                | "xrange"
                | "object"
                | "Ellipsis"
                | "NotImplemented"
        ),
        "collections" => matches!(
            name,
            "OrderedDict"
                | "defaultdict"
                | "deque"
                | "Counter"
                | "ChainMap"
                | "UserDict"
                | "UserList"
        ),
        "argparse" => name == "Namespace",
        "types" => name == "SimpleNamespace",
        "pathlib" | "pathlib._local" => matches!(
            name,
            "Path" | "PosixPath" | "WindowsPath" | "PurePath" | "PurePosixPath" | "PureWindowsPath"
        ),
        "datetime" => matches!(
            name,
            "datetime" | "date" | "time" | "timedelta" | "timezone"
        ),
        "functools" => name == "partial",
        "decimal" | "_decimal" => name == "Decimal",
        "fractions" => name == "Fraction",
        "uuid" => matches!(name, "UUID" | "SafeUUID"),
        "copyreg" | "copy_reg" => name == "_reconstructor",
        "_codecs" => name == "encode",
        _ => false,
    }
}

fn is_expected_numpy(module: &str, name: &str) -> bool {
    match module {
        "numpy" => {
            matches!(
                name,
                "dtype"
                    | "ndarray"
                    | "generic"
                    | "void"
                    | "str_"
                    | "bytes_"
                    | "object_"
                    | "datetime64"
                    | "timedelta64"
                    | "bool_"
                    | "bool"
                    | "half"
                    | "single"
                    | "double"
                    | "longdouble"
                    | "intc"
                    | "intp"
                    | "longlong"
            ) || ["float", "int", "uint", "complex"].iter().any(|kind| {
                name.strip_prefix(kind).is_some_and(|bits| {
                    bits.bytes().all(|b| b.is_ascii_digit()) && !bits.is_empty()
                })
            })
        }
        "numpy.core.multiarray" | "numpy._core.multiarray" => {
            matches!(name, "_reconstruct" | "scalar")
        }
        "numpy.core.numeric" | "numpy._core.numeric" => name == "_frombuffer",
        "numpy.dtypes" => name.ends_with("DType"),
        "numpy.ma" | "numpy.ma.core" => matches!(name, "MaskedArray" | "_mareconstruct"),
        "numpy.random._pickle" => matches!(
            name,
            "__randomstate_ctor" | "__bit_generator_ctor" | "__generator_ctor"
        ),
        "numpy.random" | "numpy.random.mtrand" => name == "RandomState",
        "numpy.random._mt19937" => name == "MT19937",
        "numpy.random._pcg64" => matches!(name, "PCG64" | "PCG64DXSM"),
        "numpy.random._philox" => name == "Philox",
        "numpy.random._sfc64" => name == "SFC64",
        "numpy.random.bit_generator" => {
            matches!(name, "SeedSequence" | "__pyx_unpickle_SeedSequence")
        }
        _ => false,
    }
}

fn is_expected_torch(module: &str, name: &str) -> bool {
    match module {
        "torch" => is_expected_torch_root(name),
        "torch.cuda" | "torch.sparse" | "torch.cuda.sparse" => {
            name.ends_with("Storage") || name.ends_with("Tensor")
        }
        "torch.storage" => matches!(
            name,
            "UntypedStorage" | "TypedStorage" | "_UntypedStorage" | "_TypedStorage"
        ),
        "torch._utils" => known_rebuild(name) != Known::Other,
        "torch._tensor" => matches!(
            name,
            "_rebuild_from_type" | "_rebuild_from_type_v2" | "Tensor"
        ),
        "torch.tensor" => matches!(name, "_rebuild_from_type" | "Tensor"),
        "torch.serialization" => matches!(name, "_get_layout"),
        "torch.nn.parameter" => matches!(
            name,
            "Parameter"
                | "Buffer"
                | "UninitializedParameter"
                | "UninitializedBuffer"
                | "UninitializedTensorMixin"
        ),
        "torch._C" => matches!(
            name,
            "_NNPACK" | "Generator" | "DisableTorchFunctionSubclass"
        ),
        "torch.jit._pickle" => {
            name == "restore_type_tag"
                || matches!(
                    name,
                    "build_intlist"
                        | "build_tensorlist"
                        | "build_doublelist"
                        | "build_boollist"
                        | "build_tensor_from_id"
                )
        }
        "torch.nn.functional" | "torch._C._nn" => is_activation(name),
        "torch.nested._internal.nested_tensor" => {
            matches!(name, "_rebuild_njt" | "NestedTensor")
        }
        // Marks on tensors whose sizes torch.compile treats as unknown, as in every jagged one.
        "torch._dynamo.decorators" => name == "_DimRange",
        "torch.version" | "torch.torch_version" => name == "TorchVersion",
        _ => is_class_of_torch(module, name),
    }
}

fn is_expected_torch_root(name: &str) -> bool {
    crate::tensor::DType::parse(name).is_some()
        || name.ends_with("Storage")
        || (name.ends_with("Tensor") && name != "as_tensor")
        || matches!(
            name,
            "Size"
                | "device"
                | "dtype"
                | "layout"
                | "memory_format"
                | "Generator"
                | "ScriptObject"
                | "strided"
                | "sparse_coo"
                | "sparse_csr"
                | "sparse_csc"
                | "sparse_bsr"
                | "sparse_bsc"
                | "per_tensor_affine"
                | "per_channel_affine"
                | "per_tensor_symmetric"
                | "per_channel_symmetric"
                | "per_channel_affine_float_qparams"
        )
        || is_memory_format(name)
        || is_activation(name)
}

fn is_memory_format(name: &str) -> bool {
    matches!(
        name,
        "contiguous_format" | "channels_last" | "channels_last_3d" | "preserve_format"
    )
}

/// Plain mathematics that models keep as attributes (`self.activation = F.relu`).
fn is_activation(name: &str) -> bool {
    matches!(
        name,
        "relu"
            | "relu_"
            | "relu6"
            | "gelu"
            | "silu"
            | "mish"
            | "elu"
            | "elu_"
            | "selu"
            | "celu"
            | "leaky_relu"
            | "leaky_relu_"
            | "prelu"
            | "rrelu"
            | "glu"
            | "tanh"
            | "sigmoid"
            | "logsigmoid"
            | "softmax"
            | "log_softmax"
            | "softmin"
            | "softplus"
            | "softsign"
            | "softshrink"
            | "hardshrink"
            | "hardswish"
            | "hardsigmoid"
            | "hardtanh"
            | "threshold"
            | "tanhshrink"
            | "dropout"
            | "normalize"
            | "cross_entropy"
            | "nll_loss"
            | "mse_loss"
            | "l1_loss"
            | "smooth_l1_loss"
            | "huber_loss"
            | "kl_div"
            | "binary_cross_entropy"
            | "binary_cross_entropy_with_logits"
            | "sin"
            | "cos"
            | "exp"
            | "log"
            | "sqrt"
            | "abs"
            | "square"
            | "erf"
    )
}

/// Classes that a whole pickled model, optimizer or scheduler consists of.
fn is_class_of_torch(module: &str, name: &str) -> bool {
    const PACKAGES: [&str; 22] = [
        "torch.nn.modules",
        "torch.nn.parallel",
        "torch.nn.quantized",
        "torch.nn.quantizable",
        "torch.nn.intrinsic",
        "torch.nn.qat",
        "torch.nn.utils",
        "torch.ao.nn",
        "torch.ao.quantization",
        "torch.quantization",
        "torch.optim",
        "torch.distributions",
        "torch.amp.grad_scaler",
        "torch.cuda.amp.grad_scaler",
        "torch.utils.data",
        "torch.utils.hooks",
        "torch.distributed._shard",
        "torch.distributed._tensor",
        "torch.distributed.checkpoint",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torch.distributed.device_mesh",
    ];
    let inside = PACKAGES.iter().any(|package| {
        module
            .strip_prefix(package)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let bare = name.trim_start_matches('_');
    inside && bare.starts_with(|c: char| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_modules_is_sorted() {
        assert!(STANDARD_LIBRARY.is_sorted());
    }

    #[test]
    fn verdicts() {
        for (module, name) in [
            ("torch._utils", "_rebuild_tensor_v2"),
            ("torch", "FloatStorage"),
            ("torch", "float8_e4m3fn"),
            ("collections", "OrderedDict"),
            ("torch.nn.modules.conv", "Conv2d"),
            ("torch.nn.modules.linear", "NonDynamicallyQuantizableLinear"),
            ("torch.nn.functional", "relu"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "float64"),
            ("__builtin__", "set"),
            (
                "__torch__.torch.nn.modules.conv.___torch_mangle_0",
                "Conv2d",
            ),
            ("pathlib", "PosixPath"),
            ("functools", "partial"),
        ] {
            assert_eq!(verdict(module, name), Verdict::Clean, "{module} {name}");
        }
        for (module, name) in [
            ("posix", "system"),
            ("os", "system"),
            ("builtins", "eval"),
            ("builtins", "getattr"),
            ("subprocess", "Popen"),
            ("pkgutil", "resolve_name"),
            ("torch.hub", "load"),
            ("torch", "load"),
            ("torch", "as_tensor"),
            ("torch.nn.functional", "torch.os.system"),
            ("torch.nn.modules.module", "warnings.sys.modules"),
            ("torch.nn.modules.conv", "os"),
            ("torch.utils._config_module", "load_config"),
            ("torch.fx.graph_module", "reduce_graph_module"),
            ("numpy", "load"),
            ("numpy.testing._private.utils", "runstring"),
            ("collections", "namedtuple"),
            ("", "eval"),
        ] {
            assert_eq!(verdict(module, name), Verdict::Dangerous, "{module} {name}");
        }
        assert_eq!(verdict("__main__", "Net"), Verdict::Suspicious);
        assert_eq!(
            verdict("torchvision.models.resnet", "ResNet"),
            Verdict::Suspicious
        );
        assert_eq!(
            verdict("omegaconf.dictconfig", "DictConfig"),
            Verdict::Suspicious
        );
    }
}
