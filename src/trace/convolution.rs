//! Convolutions as cuDNN is asked for them, and the workspace that each takes.
//!
//! Which algorithm cuDNN chooses, and what memory that needs while it runs, depends on all of this and on the card. No
//! document says it, so it is measured (`inspect calibrate`) and looked up by the simulated device.

use serde::{Deserialize, Serialize};

/// Which of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// `y` from `x` and `w`; also the gradient of a transposed convolution's input.
    Forward,
    /// The gradient of `x`; also a transposed convolution.
    BackwardData,
    /// The gradient of `w`.
    BackwardFilter,
}

/// What is asked of cuDNN. Sizes are batch first, channels second.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Which of the three.
    pub pass: Pass,
    /// PyTorch's name of `x`'s dtype without `torch.`; `cudnn:` and a number for one that PyTorch has no name for.
    pub dtype: String,
    /// Operations of the graph that it is part of: 1 alone, more with a bias, an addition, an activation.
    pub operations: u32,
    /// Sizes of the input.
    pub x: Vec<i64>,
    /// Strides of the input, elements: its memory format.
    pub x_strides: Vec<i64>,
    /// Sizes of the weight; its second is the input's channels in a group.
    pub w: Vec<i64>,
    /// Sizes of the output.
    pub y: Vec<i64>,
    /// Stride, padding and dilation, one for each spatial dimension.
    pub stride: Vec<i64>,
    /// See `stride`.
    pub padding: Vec<i64>,
    /// See `stride`.
    pub dilation: Vec<i64>,
}

/// A convolution that ran.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvolutionRun {
    /// What was asked for.
    pub convolution: Convolution,
    /// Memory that cuDNN needed while it ran; the most of them where several algorithms were tried.
    pub workspace_bytes: u64,
}
