//! The trace of a run: what the engine `inspect-torch` saw libtorch do, event by event.
//!
//! Owns the versioned wire types ([`Event`]), their strict reader ([`TraceReader`]) and the folding of a stream of
//! events into one [`Trace`]. It knows nothing of libtorch: the engine writes these lines, a saved trace file
//! (`--save-trace`) holds the same lines, and everything behind the trace is pure Rust.
//!
//! # Format
//!
//! JSON lines, one event a line, each an object with one key that names the event (`{"op": {...}}`). The first line
//! is the header. Repeated text and repeated tensor metadata are sent once ([`Event::Str`], [`Event::Sig`]) and
//! referred to by number afterwards. Times are nanoseconds since the header, sizes bytes.
//!
//! | event | meaning |
//! |---|---|
//! | `header` | version, device, libtorch version, mode, inputs |
//! | `str`, `sig` | a text; dtype and shape of a tensor |
//! | `phase`, `phase_end` | `load`, `inputs`, `forward`, `backward`, `optimizer`; at the end the allocator's own statistics |
//! | `enter`, `exit` | a module's method is called and returns, with its output tensors |
//! | `op`, `end` | an operator starts with its arguments and ends with its outputs; operators nest |
//! | `node`, `node_end` | an autograd node of the backward pass, with the sequence number of its forward op |
//! | `alloc`, `free` | memory from the device's allocator |
//! | `extern` | memory that was there before recording began |
//! | `segment` | the CUDA caching allocator takes memory from or gives it back to the device |
//! | `label` | what a piece of memory is for, where the engine knows (a parameter and its name, ...) |
//! | `argument` | what the method was called with, argument by argument |
//! | `output` | a tensor that the method returned, by its place in the result |
//!
//! # Invariants
//!
//! Numbers of `str`, `sig`, `op`, `alloc` count up from 0 without gaps, `free` names a live `alloc`, and `op`/`end`,
//! `enter`/`exit`, `node`/`node_end` nest properly on each thread. [`TraceReader`] refuses a line that breaks one.

mod args;
mod card;
mod convolution;
pub mod flops;
pub mod memory;
pub mod modules;
pub mod ops;
mod read;
mod read_back;

pub use args::{Arg, TensorRef};
pub use card::{CardFacts, LibraryUse, Probe};
pub use convolution::{Convolution, ConvolutionRun, Pass};
pub use read::{Allocation, OpKind, Sig, Trace, TraceError, TraceReader};
pub use read_back::{ReadBack, ReadValue, Reads, read_backs};

use serde::{Deserialize, Serialize};

/// Version of the trace format; readers accept only this one.
pub const TRACE_VERSION: u32 = 1;

/// What part of a run an event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseName {
    /// Reading the model and bringing it to the device.
    Load,
    /// Making the inputs.
    Inputs,
    /// The forward call.
    Forward,
    /// Loss and backward pass.
    Backward,
    /// The optimizer's step.
    Optimizer,
}

impl PhaseName {
    /// The name as reports write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PhaseName::Load => "load",
            PhaseName::Inputs => "inputs",
            PhaseName::Forward => "forward",
            PhaseName::Backward => "backward",
            PhaseName::Optimizer => "optimizer",
        }
    }
}

/// What a piece of memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// A parameter of the module.
    Parameters,
    /// A buffer of the module (running statistics, constants).
    Buffers,
    /// An input of the run.
    Inputs,
    /// An operator's output that outlives it. In training also what autograd saved for the backward pass.
    Activations,
    /// The gradient of a parameter.
    Gradients,
    /// State of the optimizer.
    OptimizerState,
    /// Freed inside the operator that allocated it.
    Temporaries,
    /// A library's scratch memory that stays (cuBLAS).
    Workspaces,
    /// Everything else.
    Other,
}

impl Category {
    /// The name as the JSON report writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Category::Parameters => "parameters",
            Category::Buffers => "buffers",
            Category::Inputs => "inputs",
            Category::Activations => "activations",
            Category::Gradients => "gradients",
            Category::OptimizerState => "optimizer_state",
            Category::Temporaries => "temporaries",
            Category::Workspaces => "workspaces",
            Category::Other => "other",
        }
    }

    /// The name for people.
    #[must_use]
    pub fn label(self) -> String {
        self.name().replace('_', " ")
    }
}

/// A segment event of the CUDA caching allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentAction {
    /// cudaMalloc.
    Alloc,
    /// cudaFree.
    Free,
    /// Pages mapped into an expandable segment.
    Map,
    /// Pages unmapped from an expandable segment.
    Unmap,
    /// The device had no memory left; `bytes` is what was asked for.
    Oom,
}

/// Current value, peak since the phase began, and totals of one allocator statistic, in bytes or counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stat {
    /// Value at the end of the phase.
    pub current: u64,
    /// Highest value within the phase.
    pub peak: u64,
    /// Value at the start of the phase.
    pub start: u64,
}

/// The allocator's own statistics of a phase (`getDeviceStats`, all pools).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AllocatorStats {
    /// Bytes asked for by the callers.
    pub requested_bytes: Stat,
    /// Bytes in blocks handed out.
    pub allocated_bytes: Stat,
    /// Bytes in blocks handed out or waiting for a stream.
    pub active_bytes: Stat,
    /// Bytes got from the device.
    pub reserved_bytes: Stat,
    /// Failed device allocations that emptied the cache and tried again, over the whole run.
    pub num_alloc_retries: u64,
    /// Out-of-memory errors, over the whole run.
    pub num_ooms: u64,
}

/// Memory of a real GPU in use within a phase, by whomever: what the driver says (`cudaMemGetInfo`). Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// At the start of the phase.
    pub start: u64,
    /// The most, asked at the phase's ends and whenever the allocator got more.
    pub peak: u64,
    /// At its end.
    pub end: u64,
    /// What there is.
    pub total: u64,
}

/// One event; see the module documentation for the format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The first line.
    Header(Header),
    /// Text number `id`.
    Str {
        /// Number, counting up from 0.
        id: u32,
        /// The text.
        text: String,
    },
    /// Tensor metadata number `id`.
    Sig {
        /// Number, counting up from 0.
        id: u32,
        /// PyTorch's name without `torch.`.
        dtype: String,
        /// Sizes.
        shape: Vec<u64>,
        /// numel x element size, bytes.
        bytes: u64,
    },
    /// A phase begins.
    Phase {
        /// Time, ns.
        t: u64,
        /// Which.
        name: PhaseName,
        /// Training step, from 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u32>,
    },
    /// The phase that began last is over.
    PhaseEnd {
        /// Time, ns.
        t: u64,
        /// The allocator's own figures, where it has them (CUDA).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stats: Option<AllocatorStats>,
        /// The whole device's memory, where it is a real one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<DeviceMemory>,
        /// Time between the two ends on the device itself, by its own events, ns.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_ns: Option<u64>,
    },
    /// A module's method is called.
    Enter {
        /// Time, ns.
        t: u64,
        /// Path of the module (text number).
        path: u32,
        /// Class of the module (text number).
        class: u32,
        /// Thread.
        #[serde(default, skip_serializing_if = "is_zero")]
        thread: u32,
    },
    /// The method called last on this thread returns.
    Exit {
        /// Time, ns.
        t: u64,
        /// Tensors in what it returned, in order.
        out: Vec<TensorRef>,
        /// Thread.
        #[serde(default, skip_serializing_if = "is_zero")]
        thread: u32,
    },
    /// An operator starts.
    Op {
        /// Time, ns.
        t: u64,
        /// Number, counting up from 0.
        id: u32,
        /// Name such as `aten::conv2d` (text number).
        name: u32,
        /// Autograd's sequence number, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// Arguments in the schema's order.
        args: Vec<Arg>,
        /// Thread.
        #[serde(default, skip_serializing_if = "is_zero")]
        thread: u32,
    },
    /// An operator ends.
    End {
        /// Time, ns.
        t: u64,
        /// The operator's number.
        id: u32,
        /// What it returned.
        out: Vec<Arg>,
    },
    /// An autograd node starts.
    Node {
        /// Time, ns.
        t: u64,
        /// Name such as `ConvolutionBackward0` (text number).
        name: u32,
        /// Sequence number of the forward op that made it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<i64>,
        /// Thread.
        #[serde(default, skip_serializing_if = "is_zero")]
        thread: u32,
    },
    /// The autograd node that started last on this thread ends.
    NodeEnd {
        /// Time, ns.
        t: u64,
        /// Thread.
        #[serde(default, skip_serializing_if = "is_zero")]
        thread: u32,
    },
    /// Memory is handed out.
    Alloc {
        /// Time, ns.
        t: u64,
        /// Number, counting up from 0, shared with `extern`.
        id: u32,
        /// Requested bytes.
        bytes: u64,
        /// Allocated bytes (the block), where the allocator rounds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        block: Option<u64>,
        /// Address.
        addr: u64,
        /// Stream, 0 for the default one.
        #[serde(default, skip_serializing_if = "is_zero_u64")]
        stream: u64,
        /// Thread.
        #[serde(default, skip_serializing_if = "is_zero")]
        thread: u32,
    },
    /// Memory is given back.
    Free {
        /// Time, ns.
        t: u64,
        /// The allocation's number.
        id: u32,
    },
    /// Memory that recording did not see being allocated.
    Extern {
        /// Number, counting up from 0, shared with `alloc`.
        id: u32,
        /// Bytes of the storage.
        bytes: u64,
    },
    /// The caching allocator and the device.
    Segment {
        /// Time, ns.
        t: u64,
        /// What happened.
        action: SegmentAction,
        /// Address.
        addr: u64,
        /// Bytes.
        bytes: u64,
        /// Stream.
        #[serde(default, skip_serializing_if = "is_zero_u64")]
        stream: u64,
    },
    /// What memory is for.
    Label {
        /// The allocation's number.
        id: u32,
        /// Metadata of the tensor in it (`sig` number).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sig: Option<u32>,
        /// Category.
        category: Category,
        /// Name, such as the parameter's.
        name: String,
    },
    /// What the method was called with for one of its arguments, in the schema's order.
    Argument {
        /// Its name.
        name: String,
        /// Its type in TorchScript's words.
        ty: String,
        /// The value as `--input` writes it: `1x3x224x224:float32`, `0.5`, `none`, `[2x3:int64, true]`; long ones cut.
        value: String,
        /// Whether it was given; else it is the schema's default.
        given: bool,
        /// The tensors in it, each with its place: empty, or indices and keys joined by dots.
        tensors: Vec<(String, TensorRef)>,
    },
    /// A tensor that the method returned.
    Output {
        /// Where in the result: empty, or indices, keys and fields joined by dots.
        path: String,
        /// The tensor.
        tensor: TensorRef,
    },
}

/// The first line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`TRACE_VERSION`].
    pub version: u32,
    /// `cpu`, `cuda-sim`, `cuda:0`.
    pub device: String,
    /// Version of libtorch.
    pub libtorch_version: String,
    /// `inference` or `train`.
    pub mode: String,
    /// The method that was called.
    pub method: String,
    /// `PYTORCH_ALLOC_CONF` of a CUDA run, where it was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero_u64(value: &u64) -> bool {
    *value == 0
}
