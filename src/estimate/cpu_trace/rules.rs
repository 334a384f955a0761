//! What CUDA does differently, one row a rule.
//!
//! | the CPU | CUDA | source |
//! |---|---|---|
//! | memory that no tensor ever shows: oneDNN's reordered weights, packing of GEMMs | none | oneDNN is the CPU's; `aten/src/ATen/native/mkldnn` |
//! | buffers inside `slow_conv*`, `thnn_conv2d`, `mkldnn_*`, freed there: columns of im2col | none: cuDNN | `aten/src/ATen/native/ConvolutionMM2d.cpp` |
//! | numbers of up to 8 bytes made as tensors: step counters, operands of `mul_` and `div` | stay on the host | `torch/optim/optimizer.py`; wrapped numbers are kernel arguments |
//! | the noise of `dropout` has the input's dtype | a mask of one byte an element | `aten/src/ATen/native/cuda/Dropout.cu`: `native_dropout` |
//! | flash attention's buffer for the threads | none | `aten/src/ATen/native/cpu/FlashAttentionKernel.cpp` |
//! | flash attention keeps logsumexp always | only where gradients are wanted | `aten/src/ATen/native/transformers/cuda/attention.cu`: `compute_logsumexp` |
//! | attention with dropout by parts: scaled query and key, scores, probabilities, mask | one kernel that keeps output and logsumexp | [`super::attention`] |
//! | nothing for matrix products | a cuBLAS workspace for each thread that multiplies: 8,519,680 B, 32 MiB on compute capability 9.0; 1 MiB for cuBLASLt with the first bias | `aten/src/ATen/cuda/CublasHandlePool.cpp` |
//! | `embedding_dense_backward`, `index_put_` with accumulation: in place | sorted and original positions, 8 bytes each an index, and as much for the sort | `aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu`, `Indexing.cu` |

use super::attention::{Part, logsumexp_bytes};
use crate::trace::{Arg, PhaseName, Sig, Trace};

/// What becomes of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// CUDA makes it, too.
    Keep,
    /// CUDA needs no such memory.
    Drop,
    /// CUDA makes one of this many bytes.
    Resize(u64),
}

/// An allocation of the CPU, with what is known of its whole life.
#[derive(Debug, Clone)]
pub struct Made<'a> {
    /// Requested bytes.
    pub bytes: u64,
    /// Operators that were open, outermost first.
    pub ops: Vec<&'a str>,
    /// The phase it was made in.
    pub phase: Option<PhaseName>,
    /// The first tensor seen in it; none where it never showed as one.
    pub sig: Option<&'a Sig>,
    /// Whether the engine says what it is.
    pub labelled: bool,
    /// Whether it was freed before the outermost operator ended.
    pub temporary: bool,
    /// Whether the run trains.
    pub training: bool,
    /// What it is to a call of attention that CUDA computes in one kernel.
    pub attention: Option<Part>,
}

/// Bytes of numbers that stay on the host.
const SCALAR_BYTES: u64 = 8;

/// Operators that are kernels of the CPU's own, by a part of their names.
const CPU_KERNELS: &[&str] = &["slow_conv", "thnn_conv", "mkldnn_"];

const FLASH_CPU: &str = "scaled_dot_product_flash_attention_for_cpu";

impl Made<'_> {
    fn inside(&self, part: &str) -> bool {
        self.ops.iter().any(|op| op.contains(part))
    }

    /// What CUDA makes of it; `is_scores` says whether a tensor has as many elements as some attention had scores.
    #[must_use]
    pub fn change(&self, is_scores: impl FnOnce(&Sig) -> bool) -> Change {
        if self.labelled {
            return match self.phase {
                Some(PhaseName::Optimizer) if self.bytes <= SCALAR_BYTES => Change::Drop,
                _ => Change::Keep,
            };
        }
        let Some(sig) = self.sig else {
            return Change::Drop;
        };
        if self.bytes <= SCALAR_BYTES && self.is_number() {
            return Change::Drop;
        }
        if self.temporary && CPU_KERNELS.iter().any(|part| self.inside(part)) {
            return Change::Drop;
        }
        if self.inside(FLASH_CPU) {
            let output = sig.shape.len() == 4;
            return match (output, self.temporary, self.training) {
                (true, _, _) | (false, false, true) => Change::Keep,
                _ => Change::Drop,
            };
        }
        match self.attention {
            Some(Part::Probabilities) if self.training => {
                return Change::Resize(logsumexp_bytes(sig));
            }
            Some(Part::Forward | Part::Probabilities) => return Change::Drop,
            Some(Part::Backward) if is_scores(sig) => return Change::Drop,
            Some(Part::Output | Part::Backward) | None => {}
        }
        let noise = ["aten::dropout", "aten::empty_like"];
        if noise.iter().all(|op| self.ops.contains(op)) {
            return Change::Resize(sig.shape.iter().product());
        }
        Change::Keep
    }

    /// Whether it is a number that some operator or the optimizer wrapped in a tensor.
    fn is_number(&self) -> bool {
        self.phase == Some(PhaseName::Optimizer) || self.inside("aten::_to_copy")
    }
}

/// Whether an operator is a matrix product in cuBLAS.
#[must_use]
pub fn multiplies(op: &str) -> bool {
    matches!(
        op,
        "aten::mm" | "aten::addmm" | "aten::bmm" | "aten::baddbmm" | "aten::addmv" | "aten::mv"
    )
}

/// Whether it adds a bias, which is cuBLASLt's.
#[must_use]
pub fn has_bias(op: &str) -> bool {
    op == "aten::addmm"
}

/// Bytes of a cuBLAS workspace.
#[must_use]
pub fn cublas_workspace_bytes(compute_capability: (u32, u32)) -> u64 {
    if compute_capability == (9, 0) {
        32 << 20
    } else {
        8_519_680
    }
}

/// Bytes of the cuBLASLt workspace.
pub const CUBLASLT_WORKSPACE_BYTES: u64 = 1 << 20;

/// Indices up to which `embedding_dense_backward` sorts nothing.
const UNSORTED_INDICES: u64 = 3072;

/// What CUDA's kernel needs while it runs, besides what the CPU's makes.
#[must_use]
pub fn extra_bytes(op: &str, args: &[Arg], trace: &Trace) -> Option<u64> {
    let numel = |arg: &Arg| {
        let tensors = arg.tensors();
        tensors
            .filter_map(|tensor| trace.sig(tensor))
            .map(|sig| sig.shape.iter().product::<u64>())
            .max()
    };
    let indices = match op {
        "aten::embedding_dense_backward" => {
            numel(args.get(1)?).filter(|count| *count > UNSORTED_INDICES)?
        }
        "aten::_index_put_impl_" if args.get(3) == Some(&Arg::Bool(true)) => numel(args.get(1)?)?,
        _ => return None,
    };
    Some(indices.saturating_mul(4 * SCALAR_BYTES)).filter(|bytes| *bytes > 0)
}

/// Operators whose memory on CUDA differs and has no rule: recurrent nets are one cuDNN call with a reserve of its own,
/// sorts and Fourier transforms take buffers that only their libraries know.
pub const WITHOUT_RULE: &[&str] = &[
    "aten::lstm",
    "aten::gru",
    "aten::rnn_tanh",
    "aten::rnn_relu",
    "aten::sort",
    "aten::argsort",
    "aten::topk",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::nonzero",
    "aten::cumsum",
    "aten::_fft_r2c",
    "aten::_fft_c2r",
    "aten::_fft_c2c",
    "aten::linalg_inv_ex",
    "aten::linalg_svd",
    "aten::_linalg_eigh",
    "aten::embedding_bag",
    "aten::grid_sampler",
];
