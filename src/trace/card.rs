//! What a GPU says of itself, and what was measured on it: see `inspect calibrate`.

use serde::{Deserialize, Serialize};

/// A card as CUDA's driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardFacts {
    /// NVIDIA's name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory, bytes.
    pub total_bytes: u64,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// CUDA version of the driver, such as 13000.
    pub driver_version: Option<u32>,
    /// Version of cuDNN, such as 91900.
    pub cudnn_version: Option<u32>,
}

/// The device after the first use of a library.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryUse {
    /// `context` and `kernels` (PyTorch's own), then `cublas`, `cublaslt`, `cudnn`, `cufft`, `cusolver`.
    pub library: String,
    /// The process's memory outside the caching allocator, bytes; grows from one to the next.
    pub used_bytes: Option<u64>,
    /// Memory in the caching allocator that the library keeps, bytes.
    pub workspace_bytes: u64,
    /// Why it could not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Everything that is measured on a card without a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The card.
    pub card: CardFacts,
    /// Memory that others had taken before this process came, bytes; none where NVIDIA's management library does not
    /// say, and then it is counted with the context.
    pub used_before_bytes: Option<u64>,
    /// Each library in turn.
    pub libraries: Vec<LibraryUse>,
    /// Addresses of segments in the order in which the driver made them.
    pub segment_addresses: Vec<u64>,
}
