//! What each operator is to the count: by formula, left out by convention, free of arithmetic, or unknown.
//!
//! The tables name operators without namespace, trailing underscore (in place), `_foreach_` and `_copy`; backward
//! operators follow their forward where that is left out by convention.

use super::formulas::Formula;

/// What an operator is, for those who group operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpClass {
    /// Counted by formula.
    Counted,
    /// Computes, but is left out of FLOPs by convention.
    ByConvention,
    /// Views, allocates, copies or describes.
    Free,
    /// Everything else: made of others, or not known.
    Other,
}

impl OpClass {
    /// The class of an operator such as `aten::relu`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match rule(name) {
            Rule::Formula(_) => OpClass::Counted,
            Rule::ByConvention => OpClass::ByConvention,
            Rule::Free => OpClass::Free,
            Rule::Unknown => OpClass::Other,
        }
    }
}

/// How to count an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// By formula.
    Formula(Formula),
    /// Arithmetic that is left out by convention.
    ByConvention,
    /// No arithmetic.
    Free,
    /// In no table.
    Unknown,
}

/// The rule for an operator such as `aten::conv2d`.
pub(super) fn rule(name: &str) -> Rule {
    // The interpreter reports some of its own operators without their namespace (`chunk`).
    let (namespace, base) = name.split_once("::").unwrap_or(("aten", name));
    match namespace {
        "aten" => aten(base),
        "quantized" | "_quantized" => quantized(base),
        "mkldnn" | "mkl" => mkldnn(base),
        "prepacked" | "mkldnn_prepacked" => prepacked(base),
        "onednn" if base.starts_with("linear_") && !base.contains("prepack") => {
            Rule::Formula(Formula::Packed)
        }
        "torchvision" => torchvision(base),
        "prim" if !base.contains("MKLDNN") && !base.contains("Group") => Rule::Free,
        "profiler" => Rule::Free,
        _ => Rule::Unknown,
    }
}

fn aten(base: &str) -> Rule {
    if let Some(formula) = formula(base) {
        return Rule::Formula(formula);
    }
    if base.starts_with("__") && base.ends_with("__") {
        return Rule::ByConvention; // operators of Python: and, or, shifts
    }
    let plain = base.strip_prefix("_foreach_").unwrap_or(base);
    let plain = plain.strip_suffix('_').unwrap_or(plain);
    let plain = plain.strip_suffix("_copy").unwrap_or(plain);
    if is_in(FREE, plain) {
        return Rule::Free;
    }
    let forward = plain
        .strip_suffix("_backward_data")
        .or_else(|| plain.strip_suffix("_backward"))
        .unwrap_or(plain);
    if is_in(BY_CONVENTION, plain)
        || is_in(BY_CONVENTION, forward)
        || is_in(FREE, forward)
        || plain.starts_with("special_")
        || plain.starts_with("bitwise_")
        || plain.starts_with("logical_")
    {
        return Rule::ByConvention;
    }
    Rule::Unknown
}

fn formula(base: &str) -> Option<Formula> {
    use Formula as F;
    Some(match base {
        "mm" | "_int_mm" | "_scaled_mm" | "bmm" => F::MatMul { first: 0 },
        "addmm" | "addmm_" | "_addmm_activation" | "baddbmm" | "baddbmm_" | "addbmm"
        | "addbmm_" => F::MatMul { first: 1 },
        "mv" => F::MatVec { first: 0 },
        "addmv" | "addmv_" => F::MatVec { first: 1 },
        "dot" | "vdot" => F::Dot,
        "linear" | "mkldnn_linear" => F::Linear,
        "linear_backward" | "mkldnn_linear_backward" => F::LinearBackward,
        "_weight_int8pack_mm"
        | "_weight_int4pack_mm"
        | "_weight_int4pack_mm_for_cpu"
        | "_dyn_quant_matmul_4bit"
        | "fbgemm_linear_fp16_weight"
        | "fbgemm_linear_fp16_weight_fp32_activation"
        | "fbgemm_linear_int8_weight"
        | "fbgemm_linear_int8_weight_fp32_activation" => F::Packed,
        "conv1d"
        | "conv2d"
        | "conv3d"
        | "_convolution_mode"
        | "cudnn_convolution"
        | "cudnn_convolution_relu"
        | "cudnn_convolution_add_relu"
        | "miopen_convolution"
        | "miopen_convolution_relu"
        | "miopen_convolution_add_relu"
        | "miopen_depthwise_convolution"
        | "mkldnn_convolution"
        | "_mps_convolution"
        | "thnn_conv2d"
        | "_slow_conv2d_forward"
        | "slow_conv3d"
        | "slow_conv3d_forward"
        | "slow_conv_dilated2d"
        | "slow_conv_dilated3d"
        | "_conv_depthwise2d"
        | "conv_depthwise3d"
        | "_nnpack_spatial_convolution" => F::Conv { transposed: false },
        "conv_transpose1d"
        | "conv_transpose2d"
        | "conv_transpose3d"
        | "cudnn_convolution_transpose"
        | "miopen_convolution_transpose"
        | "_mps_convolution_transpose"
        | "slow_conv_transpose2d"
        | "slow_conv_transpose3d" => F::Conv { transposed: true },
        "convolution" | "_convolution" | "convolution_overrideable" => F::ConvGeneral,
        "convolution_backward" | "convolution_backward_overrideable" | "_slow_conv2d_backward" => {
            F::ConvBackward
        }
        "conv_tbc" => F::ConvTbc,
        "_scaled_dot_product_flash_attention"
        | "_scaled_dot_product_flash_attention_for_cpu"
        | "_scaled_dot_product_efficient_attention"
        | "_scaled_dot_product_cudnn_attention"
        | "_scaled_dot_product_fused_attention_overrideable"
        | "_triton_scaled_dot_attention" => F::Attention,
        "_flash_attention_forward" | "_efficient_attention_forward" => F::AttentionByLength,
        "_scaled_dot_product_flash_attention_backward"
        | "_scaled_dot_product_flash_attention_for_cpu_backward"
        | "_scaled_dot_product_efficient_attention_backward"
        | "_scaled_dot_product_cudnn_attention_backward"
        | "_scaled_dot_product_fused_attention_overrideable_backward" => F::AttentionBackward,
        "_native_multi_head_attention" | "_triton_multi_head_attention" => F::MultiHead,
        "_transformer_encoder_layer_fwd" => F::EncoderLayer,
        "mkldnn_rnn_layer" => F::Recurrent {
            weights: 2,
            times: 1,
        },
        "mkldnn_rnn_layer_backward" => F::Recurrent {
            weights: 2,
            times: 2,
        },
        "_cudnn_rnn" | "miopen_rnn" => F::Recurrent {
            weights: 1,
            times: 1,
        },
        "_cudnn_rnn_backward" | "miopen_rnn_backward" => F::Recurrent {
            weights: 1,
            times: 2,
        },
        "quantized_lstm" => F::PackedLayers { gates: 4 },
        "quantized_gru" => F::PackedLayers { gates: 3 },
        "_cdist_forward" | "_pdist_forward" => F::Distances {
            points: 0,
            distances: None,
        },
        "_cdist_backward" => F::Distances {
            points: 1,
            distances: Some(4),
        },
        "_pdist_backward" => F::Distances {
            points: 1,
            distances: Some(3),
        },
        _ => return None,
    })
}

/// Packed weights stand in a trace as the tensor they hold, where they could be unpacked; a layer that needs only input
/// and output has a formula without.
fn quantized(base: &str) -> Rule {
    use Formula as F;
    if base.contains("prepack") || base.contains("unpack") || base.contains("offsets") {
        return Rule::Free;
    }
    // `conv2d_relu`, `conv2d_add_relu`, `conv_transpose3d_dynamic`; also what packed weights are asked for.
    let conv = ["_dynamic", "_relu", "_add"]
        .iter()
        .fold(base, |name, suffix| {
            name.strip_suffix(suffix).unwrap_or(name)
        });
    match conv {
        "conv1d" | "conv2d" | "conv3d" => return Rule::Formula(F::Conv { transposed: false }),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => {
            return Rule::Formula(F::Conv { transposed: true });
        }
        _ if base.starts_with("conv") => return Rule::Free,
        _ => {}
    }
    match base {
        "linear"
        | "linear_relu"
        | "linear_leaky_relu"
        | "linear_tanh"
        | "linear_dynamic"
        | "linear_relu_dynamic"
        | "linear_dynamic_fp16"
        | "linear_relu_dynamic_fp16"
        | "linear_dynamic_fp16_unpacked_weight" => Rule::Formula(F::Packed),
        "matmul" => Rule::Formula(F::MatMul { first: 0 }),
        "quantized_lstm_cell_dynamic" => Rule::Formula(F::PackedCell { gates: 4 }),
        "quantized_gru_cell_dynamic" => Rule::Formula(F::PackedCell { gates: 3 }),
        "quantized_rnn_relu_cell_dynamic" | "quantized_rnn_tanh_cell_dynamic" => {
            Rule::Formula(F::PackedCell { gates: 1 })
        }
        _ => {
            let plain = base
                .trim_end_matches("_out")
                .trim_end_matches("_relu")
                .trim_end_matches("_scalar");
            let known = plain.starts_with("batch_norm")
                || plain.starts_with("embedding")
                || is_in(BY_CONVENTION, plain)
                || is_in(FREE, plain);
            if known {
                Rule::ByConvention
            } else {
                Rule::Unknown
            }
        }
    }
}

/// Layers whose weights a mobile or CPU library keeps in a form of its own.
fn prepacked(base: &str) -> Rule {
    match base {
        "conv2d_clamp_run" | "conv2d_run" => Rule::Formula(Formula::Conv { transposed: false }),
        "conv2d_transpose_clamp_run" => Rule::Formula(Formula::Conv { transposed: true }),
        "linear_clamp_run" | "linear_run" => Rule::Formula(Formula::Packed),
        _ if base.contains("prepack") => Rule::Free,
        _ => Rule::Unknown,
    }
}

fn mkldnn(base: &str) -> Rule {
    match base {
        "_convolution_pointwise" | "_convolution_pointwise_" => {
            Rule::Formula(Formula::Conv { transposed: false })
        }
        "_convolution_transpose_pointwise" => Rule::Formula(Formula::Conv { transposed: true }),
        "_linear_pointwise" | "_mkl_linear" => Rule::Formula(Formula::Packed),
        _ if base.starts_with("_reorder") || base.starts_with("_mkl_reorder") => Rule::Free,
        _ => Rule::Unknown,
    }
}

fn torchvision(base: &str) -> Rule {
    match base {
        "deform_conv2d" => Rule::Formula(Formula::Conv { transposed: false }),
        "nms" | "roi_align" | "roi_pool" | "ps_roi_align" | "ps_roi_pool" => Rule::ByConvention,
        _ => Rule::Unknown,
    }
}

fn is_in(table: &[&str], name: &str) -> bool {
    table.binary_search(&name).is_ok()
}

/// Views, allocates, fills, copies, pads, or says what a tensor is.
#[rustfmt::skip]
const FREE: &[&str] = &[
    "Bool", "Complex", "Delete", "Float", "FloatImplicit", "Generator", "Int", "IntImplicit", "ScalarImplicit",
    "Size", "_add_batch_dim", "_assert_async", "_assert_scalar", "_assert_tensor_metadata",
    "_autocast_to_full_precision", "_autocast_to_reduced_precision", "_backward", "_cast_Byte", "_cast_Char",
    "_cast_Double", "_cast_Float", "_cast_Half", "_cast_Int", "_cast_Long", "_cast_Short", "_chunk_cat", "_coalesced",
    "_conj", "_convert_weight_to_int4pack", "_convert_weight_to_int4pack_for_cpu", "_copy_from",
    "_copy_from_and_resize", "_cslt_compress", "_cudnn_init_dropout_state", "_cudnn_rnn_flatten_weight",
    "_cufft_clear_plan_cache", "_cufft_get_plan_cache_max_size", "_cufft_get_plan_cache_size",
    "_cufft_set_plan_cache_max_size", "_debug_has_internal_overlap", "_dimI", "_dimV", "_dim_arange",
    "_dyn_quant_pack_4bit_weight", "_efficientzerotensor", "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized", "_functional_assert_async", "_functional_assert_scalar",
    "_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size", "_fused_sdp_choice", "_fw_primal",
    "_get_cpu_capability", "_get_tracing_state", "_has_compatible_shallow_copy_type", "_has_same_storage_numel",
    "_indices", "_infer_size", "_is_zerotensor", "_lazy_clone", "_list_to_tensor", "_local_scalar_dense",
    "_make_dep_token", "_make_dual", "_mkldnn_reshape", "_mkldnn_transpose", "_ncf_unsqueeze", "_ncf_view",
    "_neg_view", "_nested_compute_contiguous_strides_offsets", "_nested_from_padded", "_nested_from_padded_tensor",
    "_nested_get_jagged_dummy", "_nested_get_lengths", "_nested_get_max_seqlen", "_nested_get_min_seqlen",
    "_nested_get_offsets", "_nested_get_ragged_idx", "_nested_get_values", "_nested_tensor_from_mask",
    "_nested_tensor_from_mask_left_aligned", "_nested_tensor_from_tensor_list", "_nested_tensor_size",
    "_nested_tensor_storage_offsets", "_nested_tensor_strides", "_nested_view_from_buffer",
    "_nested_view_from_jagged", "_new_zeros_with_same_feature_meta", "_nnpack_available", "_nnz", "_no_grad_fill",
    "_no_grad_zero", "_pack_padded_sequence", "_pack_sequence", "_pad_circular", "_pad_enum", "_pad_packed_sequence",
    "_pin_memory", "_print", "_propagate_xla_data", "_remove_batch_dim", "_reshape_alias", "_reshape_from_tensor",
    "_resize_output", "_saturate_weight_to_fp16", "_set_item", "_shape_as_tensor", "_stack", "_tensor_to_list",
    "_to_cpu", "_to_dense", "_to_sparse", "_unpack_dual", "_unsafe_view", "_use_cudnn_ctc_loss",
    "_use_cudnn_rnn_flatten_weight", "_use_miopen_ctc_loss", "_validate_compressed_sparse_indices",
    "_validate_sparse_compressed_tensor_args", "_validate_sparse_coo_tensor_args", "_validate_sparse_csc_tensor_args",
    "_validate_sparse_csr_tensor_args", "_values", "_version", "_wrapped_linear_prepack", "adjoint", "alias",
    "align_as", "align_tensors", "align_to", "append", "arange", "as_strided", "as_tensor", "atleast_1d",
    "atleast_2d", "atleast_3d", "backward", "block_diag", "broadcast_tensors", "broadcast_to", "can_cast",
    "cartesian_prod", "cat", "ccol_indices", "channel_shuffle", "chunk", "clone", "coalesce", "col2im", "col_indices",
    "column_stack", "complex", "concat", "concatenate", "confirmed_by_owner", "constant_pad_nd", "contiguous", "copy",
    "copy_sparse_to_sparse", "cpu", "crow_indices", "cuda", "cudnn_is_acceptable", "data", "dense_dim", "detach",
    "device", "diag", "diag_embed", "diagflat", "diagonal", "diagonal_scatter", "dict", "dim", "dsplit", "dstack",
    "element_size", "empty", "empty_like", "empty_permuted", "empty_quantized", "empty_strided", "expand",
    "expand_as", "extend", "eye", "fbgemm_pack_gemm_matrix_fp16", "fbgemm_pack_quantized_matrix", "fft_fftfreq",
    "fft_fftshift", "fft_ifftshift", "fft_rfftfreq", "fill", "fill_diagonal", "flatten", "flatten_dense_tensors",
    "flip", "fliplr", "flipud", "format", "from_file", "full", "full_like", "get", "get_autocast_dtype", "get_device",
    "grad", "has_torch_function", "hsplit", "hstack", "im2col", "imag", "indices", "initial_seed", "insert",
    "int_repr", "is_autocast_cpu_enabled", "is_autocast_enabled", "is_coalesced", "is_complex", "is_conj",
    "is_contiguous", "is_distributed", "is_floating_point", "is_grad_enabled", "is_inference", "is_leaf", "is_neg",
    "is_non_overlapping_and_dense", "is_nonzero", "is_pinned", "is_same_size", "is_scripting", "is_set_to",
    "is_signed", "is_strides_like_format", "item", "items", "keys", "len", "lift", "lift_fresh", "linalg_diagonal",
    "linspace", "list", "logspace", "mH", "mT", "manual_seed", "matrix_H", "meshgrid", "mkldnn_reorder_conv2d_weight",
    "mkldnn_reorder_conv3d_weight", "moveaxis", "movedim", "narrow", "native_channel_shuffle",
    "nested_to_padded_tensor", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "numel",
    "numpy_T", "one_hot", "ones", "ones_like", "output_nr", "pad", "pad_sequence", "permute", "pin_memory",
    "pixel_shuffle", "pixel_unshuffle", "pop", "promote_types", "q_per_channel_axis", "q_per_channel_scales",
    "q_per_channel_zero_points", "q_scale", "q_zero_point", "qscheme", "range", "ravel", "real", "record_stream",
    "refine_names", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "rename", "repeat",
    "repeat_interleave", "replication_pad1d", "replication_pad2d", "replication_pad3d", "requires_grad", "reshape",
    "reshape_as", "resize", "resize_as", "resize_as_sparse", "resolve_conj", "resolve_neg", "result_type",
    "retain_grad", "retains_grad", "roll", "rot90", "row_indices", "row_stack", "scalar_tensor", "seed", "select",
    "select_scatter", "set", "set_data", "set_grad_enabled", "size", "slice", "slice_inverse", "slice_scatter",
    "sparse_dim", "sparse_resize", "split", "split_with_sizes", "squeeze", "stack", "storage_offset", "stride",
    "swapaxes", "swapdims", "sym_constrain_range", "sym_constrain_range_for_size", "sym_is_contiguous", "sym_numel",
    "sym_size", "sym_storage_offset", "sym_stride", "t", "tensor", "tensor_split", "tile", "to", "to_dense",
    "to_mkldnn", "to_padded_tensor", "to_sparse", "to_sparse_csr", "transpose", "tril", "tril_indices", "triu",
    "triu_indices", "type_as", "unbind", "unflatten", "unflatten_dense_tensors", "unfold", "unsafe_chunk",
    "unsafe_split", "unsafe_split_with_sizes", "unsqueeze", "values", "view", "view_as", "view_as_complex",
    "view_as_real", "vsplit", "vstack", "wait", "warn", "zero", "zeros", "zeros_like",
];

/// Element by element, reductions, normalization, pooling, losses, indexing, sorting, random numbers, quantizing.
#[rustfmt::skip]
const BY_CONVENTION: &[&str] = &[
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_add_relu", "_aminmax",
    "_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale", "_batch_norm_impl_index",
    "_batch_norm_no_update", "_batch_norm_with_update", "_batch_norm_with_update_functional",
    "_choose_qparams_per_tensor", "_coalesce", "_conj_physical", "_convert_indices_from_coo_to_csr",
    "_convert_indices_from_csr_to_coo", "_cummax_helper", "_cummin_helper", "_dirichlet_grad", "_embedding_bag",
    "_embedding_bag_dense", "_embedding_bag_forward_only", "_embedding_bag_per_sample_weights",
    "_embedding_bag_sparse", "_fake_quantize_learnable_per_channel_affine",
    "_fake_quantize_learnable_per_tensor_affine", "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "_fill_mem_eff_dropout_mask", "_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_dropout",
    "_fused_moving_avg_obs_fq_helper", "_fused_rms_norm", "_fused_sgd", "_grad_sum_to_size",
    "_grid_sampler_2d_cpu_fallback", "_index_put_impl", "_is_all_true", "_is_any_true",
    "_jagged_to_padded_dense_forward", "_log_softmax", "_logcumsumexp", "_make_per_channel_quantized_tensor",
    "_make_per_tensor_quantized_tensor", "_masked_scale", "_masked_softmax", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_nested_select", "_nested_sum",
    "_nested_tensor_softmax_with_shape", "_no_grad_embedding_renorm", "_no_grad_normal", "_no_grad_uniform",
    "_padded_dense_to_jagged_forward", "_prelu_kernel", "_safe_softmax", "_sample_dirichlet", "_segment_reduce",
    "_sobol_engine_draw", "_sobol_engine_ff", "_softmax", "_standard_gamma", "_standard_gamma_grad",
    "_thnn_differentiable_gru_cell", "_thnn_differentiable_lstm_cell", "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "_transform_bias_rescale_qkv", "_unique",
    "_unique2", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "_weight_norm", "_weight_norm_differentiable", "_weight_norm_interface", "abs",
    "absolute", "acos", "acosh", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "add", "addcdiv", "addcmul", "addr",
    "affine_grid_generator", "all", "allclose", "alpha_dropout", "amax", "amin", "aminmax", "angle", "any", "arccos",
    "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort", "argwhere",
    "as_strided_scatter", "asin", "asinh", "atan", "atan2", "atanh", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "bartlett_window", "batch_norm", "batch_norm_backward_elemt", "batch_norm_backward_reduce", "batch_norm_elemt",
    "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "batch_norm_stats", "batch_norm_update_stats",
    "bernoulli", "binary_cross_entropy", "binary_cross_entropy_with_logits", "bincount", "binomial",
    "blackman_window", "bucketize", "cauchy", "ceil", "celu", "choose_qparams_optimized", "clamp", "clamp_max",
    "clamp_min", "clip", "conj", "conj_physical", "copysign", "cos", "cosh", "cosine_embedding_loss",
    "cosine_similarity", "count_nonzero", "cross", "cross_entropy_loss", "cudnn_affine_grid_generator",
    "cudnn_batch_norm", "cudnn_grid_sampler", "cummax", "cummaxmin", "cummin", "cumprod", "cumsum",
    "cumulative_trapezoid", "deg2rad", "dequantize", "diff", "digamma", "dist", "div", "divide", "dropout", "elu",
    "embedding", "embedding_bag", "embedding_dense", "embedding_renorm", "embedding_sparse", "eq", "equal", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "exponential", "fake_quantize_per_channel_affine",
    "fake_quantize_per_channel_affine_cachemask", "fake_quantize_per_tensor_affine",
    "fake_quantize_per_tensor_affine_cachemask", "feature_alpha_dropout", "feature_dropout", "fix", "float_power",
    "floor", "floor_divide", "floordiv", "fmax", "fmin", "fmod", "frac", "fractional_max_pool2d",
    "fractional_max_pool3d", "frexp", "frobenius_norm", "fused_moving_avg_obs_fake_quant", "gather", "gcd", "ge",
    "gelu", "geometric", "ger", "glu", "glu_jvp", "gradient", "greater", "greater_equal", "grid_sampler",
    "grid_sampler_2d", "grid_sampler_3d", "group_norm", "gt", "hamming_window", "hann_window", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "hash_tensor", "heaviside", "hinge_embedding_loss", "histc", "huber_loss",
    "hypot", "i0", "igamma", "igammac", "index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce",
    "index_select", "infinitely_differentiable_gelu", "instance_norm", "isclose", "isfinite", "isin", "isinf",
    "isnan", "isneginf", "isposinf", "isreal", "kaiser_window", "kl_div", "kron", "kthvalue", "l1_loss", "layer_norm",
    "lcm", "ldexp", "le", "leaky_relu", "lerp", "less", "less_equal", "lgamma", "linalg_cross", "linalg_norm",
    "linalg_vander", "linalg_vecdot", "linalg_vector_norm", "log", "log10", "log1p", "log2", "log_normal",
    "log_sigmoid", "log_sigmoid_forward", "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logit",
    "logsumexp", "lt", "margin_ranking_loss", "masked_fill", "masked_scatter", "masked_select", "max", "max_pool1d",
    "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices",
    "max_unpool2d", "max_unpool3d", "maximum", "mean", "median", "min", "minimum", "miopen_batch_norm", "mish",
    "mkldnn_adaptive_avg_pool2d", "mkldnn_max_pool2d", "mkldnn_max_pool3d", "mode", "mse_loss", "msort", "mul",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_margin_loss_forward", "multinomial", "multiply",
    "mvlgamma", "nan_to_num", "nanmean", "nanmedian", "nanquantile", "nansum", "native_batch_norm", "native_dropout",
    "native_group_norm", "native_layer_norm", "native_norm", "ne", "neg", "negative", "nextafter", "nll_loss",
    "nll_loss2d", "nll_loss2d_forward", "nll_loss_forward", "nll_loss_nd", "nonzero", "nonzero_numpy",
    "nonzero_static", "norm", "norm_except_dim", "normal", "normal_functional", "not_equal", "outer",
    "pairwise_distance", "poisson", "poisson_nll_loss", "polar", "polygamma", "positive", "pow", "prelu", "prod",
    "quantile", "quantize_per_channel", "quantize_per_tensor", "quantize_per_tensor_dynamic", "quantized_batch_norm",
    "quantized_max_pool1d", "quantized_max_pool2d", "quantized_max_pool3d", "rad2deg", "rand", "rand_like", "randint",
    "randint_like", "randn", "randn_like", "random", "randperm", "reciprocal", "relu", "relu6", "remainder", "renorm",
    "rms_norm", "round", "rrelu", "rrelu_with_noise", "rrelu_with_noise_functional", "rsqrt", "rsub", "scatter",
    "scatter_add", "scatter_reduce", "searchsorted", "segment_reduce", "selu", "sgn", "sigmoid", "sign", "signbit",
    "silu", "sin", "sinc", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax", "softplus", "softshrink", "sort",
    "sqrt", "square", "std", "std_mean", "sub", "subtract", "sum", "sum_to_size", "take", "take_along_dim", "tan",
    "tanh", "threshold", "topk", "trace", "trapezoid", "trapz", "triplet_margin_loss", "true_divide", "trunc",
    "uniform", "unique_consecutive", "unique_dim", "unique_dim_consecutive", "upsample_bicubic2d",
    "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_trilinear3d", "value_selecting_reduction", "var", "var_mean", "where", "xlogy",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_apart() {
        for table in [FREE, BY_CONVENTION] {
            assert!(table.is_sorted());
            assert!(table.windows(2).all(|pair| pair[0] != pair[1]));
        }
        for name in FREE {
            assert!(!is_in(BY_CONVENTION, name), "{name} is in both tables");
            assert!(formula(name).is_none(), "{name} has a formula");
        }
        for name in BY_CONVENTION {
            assert!(formula(name).is_none(), "{name} has a formula");
        }
    }

    #[test]
    fn names_are_found_in_all_their_forms() {
        let by_convention = [
            "aten::relu",
            "aten::relu_",
            "aten::_foreach_add_",
            "aten::gelu_backward",
            "aten::_log_softmax_backward_data",
            "aten::slice_backward",
            "aten::__and__",
            "aten::special_expit",
            "quantized::add_relu",
        ];
        for name in by_convention {
            assert_eq!(rule(name), Rule::ByConvention, "{name}");
        }
        for name in [
            "aten::view",
            "aten::view_copy",
            "aten::resize_",
            "aten::t_",
            "prim::TupleUnpack",
        ] {
            assert_eq!(rule(name), Rule::Free, "{name}");
        }
        for name in [
            "aten::_fft_r2c",
            "aten::linalg_svd",
            "mylib::anything",
            "quantized::anything",
            "anything",
        ] {
            assert_eq!(rule(name), Rule::Unknown, "{name}");
        }
        for name in [
            "quantized::conv2d",
            "quantized::conv1d_relu",
            "quantized::conv3d_add_relu",
            "prepacked::conv2d_clamp_run",
        ] {
            let conv = Formula::Conv { transposed: false };
            assert_eq!(rule(name), Rule::Formula(conv), "{name}");
        }
        let transposed = Formula::Conv { transposed: true };
        assert_eq!(
            rule("quantized::conv_transpose2d_dynamic"),
            Rule::Formula(transposed)
        );
        assert_eq!(rule("quantized::conv2d_prepack"), Rule::Free);
        assert_eq!(rule("quantized::conv2d_stride"), Rule::Free);
        assert_eq!(
            rule("aten::addmm_"),
            Rule::Formula(Formula::MatMul { first: 1 })
        );
    }
}
