//! What front and engine say to each other: one JSON request line on the engine's stdin, JSON lines on its stdout.
//!
//! ```text
//! front                          engine
//!   | -- Request ----------------> |   one line, then stdin is closed
//!   | <-- hello ------------------ |   first, before anything is loaded
//!   | <-- progress --------------- |   any number, at any time
//!   | <-- trace lines ------------ |   any number: every object that does not begin with `{"type":`
//!   | <-- done  or  failed ------- |   last; anything after it, or no such line, is an error
//! ```
//!
//! With [`Request::copy`] a copy of the engine has the same exchange about its own task on the engine's stdin.
//!
//! Every line is one JSON object; those of this module have the key `type` in front. This module owns the words of that exchange and
//! nothing else: no process, no reading, no model. Trace lines belong to [`crate::trace`] and pass through as text.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::trace::{ConvolutionRun, Probe, ReadBack, Reads};

/// Version of the exchange. Both sides must say the same number.
pub const PROTOCOL: u32 = 1;

/// Names the version and wire types a binary was compiled from; front and engine must agree.
pub const BUILD_ID: &str = env!("INSPECT_BUILD_ID");

/// The one thing the front asks of an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL`] of the front.
    pub protocol: u32,
    /// What to do.
    pub task: Task,
    /// Threads inside libtorch; `None` leaves libtorch's own choice.
    pub threads: Option<u32>,
    /// What a copy of the engine does at the same time, made once libtorch and the device's libraries are loaded; it
    /// speaks this protocol on the engine's stdin, which is a socket then. Where it cannot be made it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<Task>,
}

/// What the engine is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Task {
    /// Only say hello: `inspect doctor`.
    Hello,
    /// Load the module and say the schema of a method.
    Signature {
        /// The TorchScript file.
        file: PathBuf,
        /// `forward` unless the user says otherwise.
        method: String,
    },
    /// Load the module and run it.
    Run(Box<RunRequest>),
    /// Measure the GPU itself.
    Probe {
        /// A real GPU, or the simulated device.
        device: Device,
    },
}

/// One run of one model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The TorchScript file.
    pub file: PathBuf,
    /// A state_dict to load into the module before running.
    pub weights: Option<PathBuf>,
    /// `forward` unless the user says otherwise.
    pub method: String,
    /// What the method is called with.
    pub inputs: Inputs,
    /// Inference or training.
    pub mode: Mode,
    /// Where the model runs.
    pub device: Device,
    /// Convert the weights to this dtype first (PyTorch's name without `torch.`).
    pub cast: Option<String>,
    /// Run under autocast with this dtype (PyTorch's name without `torch.`).
    pub autocast: Option<String>,
    /// Seed of every random number: fills, dropout.
    pub seed: u64,
    /// `PYTORCH_ALLOC_CONF` for a CUDA or simulated CUDA allocator.
    pub alloc_conf: Option<String>,
    /// For the simulated device: what the model's operators read in a run on the CPU, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub read_backs: Vec<ReadBack>,
    /// How long values live.
    #[serde(default)]
    pub lifetimes: Lifetimes,
    /// On a CUDA device: run everything once before it is recorded, so that what is loaded at first use is loaded then,
    /// and take times from the device.
    #[serde(default)]
    pub measures: bool,
    /// For the simulated device: workspaces of convolutions that were measured on a card.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub convolutions: Vec<ConvolutionRun>,
}

/// How long a run keeps the values between its operators.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Lifetimes {
    /// Until their last use, as TorchScript's interpreter does.
    #[default]
    TorchScript,
    /// As long as a variable of a running function names them, as in an eager Python module.
    Python,
}

impl Lifetimes {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lifetimes::TorchScript => "torchscript",
            Lifetimes::Python => "python",
        }
    }
}

/// Inference, or training with everything it needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Eval mode, no gradients, one forward.
    Inference,
    /// Train mode: forward, backward and an optimizer step.
    Training {
        /// The optimizer, with torch.optim's own defaults.
        optimizer: Optimizer,
        /// How torch.optim applies it; `None` is what torch.optim does on that device.
        implementation: Option<OptimizerImpl>,
        /// What is differentiated.
        loss: Loss,
        /// Training steps, at least one.
        steps: u32,
    },
}

/// The optimizers, by torch.optim's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// `SGD(lr)`: no state.
    Sgd,
    /// `SGD(lr, momentum=0.9)`.
    SgdMomentum,
    /// `SGD(lr, momentum=0.9, nesterov=True)`.
    Nesterov,
    /// `Adam`.
    Adam,
    /// `AdamW`.
    Adamw,
    /// `RMSprop`.
    Rmsprop,
    /// `Adagrad`.
    Adagrad,
}

impl Optimizer {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Optimizer::Sgd => "sgd",
            Optimizer::SgdMomentum => "sgd-momentum",
            Optimizer::Nesterov => "nesterov",
            Optimizer::Adam => "adam",
            Optimizer::Adamw => "adamw",
            Optimizer::Rmsprop => "rmsprop",
            Optimizer::Adagrad => "adagrad",
        }
    }
}

/// How torch.optim applies an optimizer to its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerImpl {
    /// One multi-tensor call for all parameters.
    Foreach,
    /// One parameter after the other.
    Loop,
    /// One fused kernel.
    Fused,
}

impl OptimizerImpl {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            OptimizerImpl::Foreach => "foreach",
            OptimizerImpl::Loop => "loop",
            OptimizerImpl::Fused => "fused",
        }
    }
}

/// What is differentiated in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Mean of every floating output, summed.
    Mean,
    /// Sum of every floating output, summed.
    Sum,
    /// Cross entropy of the first output against class 0.
    #[value(name = "cross_entropy")]
    CrossEntropy,
}

impl Loss {
    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::Mean => "mean",
            Loss::Sum => "sum",
            Loss::CrossEntropy => "cross_entropy",
        }
    }
}

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// libtorch on the CPU.
    Cpu,
    /// A real GPU, by index.
    Cuda(u32),
    /// The simulated CUDA device.
    CudaSim,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::CudaSim => f.write_str("cuda-sim"),
        }
    }
}

/// What a method is called with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// Values made from SPECs.
    Arguments(Vec<Argument>),
    /// A `.pt` file holding a tensor, tuple, list or dict of real values, or an exported program's file, for the inputs
    /// that it was exported with.
    File(PathBuf),
}

/// One argument of the method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    /// The schema's name for it; `None` goes by position.
    pub name: Option<String>,
    /// Its value.
    pub value: InputValue,
}

/// A SPEC, or a nest of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputValue {
    /// One value.
    Spec(InputSpec),
    /// A list or tuple: the schema says which.
    List(Vec<InputValue>),
    /// A dict with string keys, in the order written.
    Dict(Vec<(String, InputValue)>),
}

/// One value as typed. `3` is a number or a tensor of size 3, `none` is `None` or a string: the schema's type
/// decides, in the engine, so every reading the text allows is here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// The text without `NAME=`: the value where the schema wants a string, and what messages show.
    pub text: String,
    /// The text read as a tensor, where it can be.
    pub tensor: Option<TensorSpec>,
    /// The text read as a plain value, where it can be.
    pub scalar: Option<Scalar>,
}

/// A tensor to be made: `DIMS[:DTYPE][@FILL]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Sizes, outermost first; empty for a 0-dim tensor.
    pub dims: Vec<u64>,
    /// PyTorch's name without `torch.`; `None` is float32.
    pub dtype: Option<String>,
    /// `None`: `randn` for floating and complex, zeros for integers, ones for bool.
    pub fill: Option<Fill>,
}

/// The values of a tensor to be made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// Normal, mean 0, deviation 1.
    Randn,
    /// Uniform in 0..1.
    Rand,
    /// 0, 1, 2, ...
    Arange,
    /// Uniform in `low..high`, end excluded.
    Range {
        /// Smallest value.
        low: Number,
        /// First value that is too large.
        high: Number,
    },
    /// All the same.
    Constant(Number),
}

/// A number as typed: `3` is an integer, `3.0` is not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// Without point or exponent.
    Int(i64),
    /// With one.
    Float(f64),
}

/// A plain value for an argument that is no tensor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    /// `none`.
    None,
    /// `true`, `false`.
    Bool(bool),
    /// `3`, `0.5`.
    Number(Number),
}

/// The lines an engine writes besides trace lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// First line.
    Hello(Hello),
    /// How far it is.
    Progress(Progress),
    /// Last line: it worked.
    Done(Box<Done>),
    /// Last line: it did not, and why.
    Failed(Failed),
}

/// Who the engine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the engine.
    pub protocol: u32,
    /// [`BUILD_ID`] of the engine.
    pub build_id: String,
    /// As libtorch says it: `2.11.0`.
    pub libtorch_version: String,
    /// Devices it could run on: `cpu`, `cuda:0`, `cuda-sim`.
    pub devices: Vec<DeviceInfo>,
    /// Whether the engine has confined itself; `None` where it did not try.
    pub sandbox: Option<String>,
}

/// One device an engine could use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `cpu`, `cuda:0`, `cuda-sim`.
    pub id: String,
    /// The device's own name (`NVIDIA H200`), where it has one.
    pub name: Option<String>,
    /// Memory of the device, where known.
    pub total_bytes: Option<u64>,
    /// Why it cannot be used, where that is so.
    pub unavailable: Option<String>,
}

/// How far the engine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What it does now: `loading`, `running forward`.
    pub stage: String,
    /// Finished units of this stage.
    pub done: u64,
    /// All units of this stage, where known.
    pub total: Option<u64>,
}

/// The end of a task that worked. A run's results are its trace lines.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// How many trace lines were written: the front counts them too.
    pub trace_lines: u64,
    /// The schema of the method.
    pub signature: Option<Signature>,
    /// libtorch's own `named_parameters` and `named_buffers` of the loaded module, in its order.
    pub module_tensors: Option<Vec<ModuleTensor>>,
    /// On the simulated device: library functions that were called without being fully modelled, by name.
    #[serde(default)]
    pub not_modelled: Vec<NotModelled>,
    /// On the simulated device: operators that read a value there, by name.
    #[serde(default)]
    pub reads: Vec<Reads>,
    /// What training came to, where values are computed on the host.
    #[serde(default)]
    pub trained: Option<Trained>,
    /// Convolutions that cuDNN ran, where the engine was started with the recorder.
    #[serde(default)]
    pub convolutions: Option<Vec<ConvolutionRun>>,
    /// What was measured on the GPU itself.
    #[serde(default)]
    pub probe: Option<Box<Probe>>,
}

/// A library function that the simulated device does not fully model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NotModelled {
    /// Soname of its library.
    pub library: String,
    /// Its name.
    pub function: String,
    /// What is missing.
    pub gap: Gap,
}

/// What a function of the simulated device lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// It may have outputs, which stay as the caller left them.
    Outputs,
    /// The size it answers is known to NVIDIA's library only; 0 was answered.
    UnknownSize,
    /// The size it answers is a lower bound.
    LowerBound,
}

/// The values that training ended with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trained {
    /// The loss of every step; `None` where it is no finite number.
    pub losses: Vec<Option<f64>>,
    /// Every parameter after the last step, in the optimizer's order.
    pub parameters: Vec<ParameterValues>,
}

/// A parameter's values in short: enough to see that two runs ended alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParameterValues {
    /// Its path in the module.
    pub name: String,
    /// Sum of all elements in float64; `None` where it is no finite number.
    pub sum: Option<f64>,
    /// The first elements.
    pub first: Vec<Option<f64>>,
}

/// The forward schema, or another method's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The method's name.
    pub method: String,
    /// The module's class as the archive names it.
    pub class: Option<String>,
    /// Arguments without `self`.
    pub arguments: Vec<SignatureArgument>,
    /// Type of what it returns, in TorchScript's words.
    pub returns: String,
}

/// One argument of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignatureArgument {
    /// Its name.
    pub name: String,
    /// Its type in TorchScript's words: `Tensor`, `Optional[int]`.
    pub ty: String,
    /// Its default in TorchScript's words, where it has one.
    pub default: Option<String>,
}

/// A parameter or buffer as libtorch names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleTensor {
    /// Its path in the module.
    pub name: String,
    /// Parameter or buffer.
    pub role: ModuleTensorRole,
    /// PyTorch's name without `torch.`.
    pub dtype: String,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
    /// Elements times element size; quantized and sub-byte types as libtorch counts them.
    pub bytes: u64,
}

/// What libtorch calls a tensor of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleTensorRole {
    /// In `named_parameters`.
    Parameter,
    /// In `named_buffers`.
    Buffer,
}

/// The end of a task that did not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The kind of trouble.
    pub kind: FailureKind,
    /// One sentence: libtorch's own message cut to its reason.
    pub message: String,
    /// More lines that help: the model's own stack, the schema.
    #[serde(default)]
    pub detail: Vec<String>,
    /// The schema of the method, where inputs did not fit it.
    #[serde(default)]
    pub signature: Option<Signature>,
}

/// Kinds of trouble an engine can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The file could not be loaded by libtorch.
    Load,
    /// Wrong number, kind, shape or names of inputs.
    InputMismatch,
    /// The module has no such method.
    NoSuchMethod,
    /// The model's own code failed with these inputs.
    ModelError,
    /// The device, or the limit put on the engine, has no more memory.
    OutOfMemory,
    /// Asked for what this libtorch or this device cannot do.
    Unsupported,
    /// The request could not be understood.
    BadRequest,
    /// A fault of the engine itself.
    Internal,
}

impl fmt::Display for Signature {
    /// As TorchScript writes a schema: `forward(Tensor x, int n=3) -> Tensor`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.method)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", argument.ty, argument.name)?;
            if let Some(default) = &argument.default {
                write!(f, "={default}")?;
            }
        }
        write!(f, ") -> {}", self.returns)
    }
}
