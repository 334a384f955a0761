//! What a report says of one file, read back.
//!
//! The common ground of a checkpoint and a saved report: a checkpoint is reported first, in memory, so that both are
//! compared by the same words. Keys that this version does not know are passed over, since a report may only grow
//! within a schema version; a key of the contract that is missing is an error.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the report's schema that is read.
pub(super) const READ_VERSION: u32 = 1;

/// Everything that is compared of one file. Sizes are bytes; `None` is unknown.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Facts {
    /// The file itself.
    pub file: FileFacts,
    /// Its tensors, in file order.
    pub tensors: Vec<TensorFacts>,
    /// Its storages, in file order.
    pub storages: Vec<StorageFacts>,
    /// numpy arrays and scalars.
    #[serde(default)]
    pub numpy_arrays: Vec<NumpyFacts>,
    /// Its sums.
    pub totals: Sums,
    /// Whether it is safe to load.
    pub security: SecurityFacts,
    /// What else is noteworthy.
    pub findings: Vec<FindingFacts>,
    /// What a run showed.
    pub run: Option<RunFacts>,
    /// How much GPU memory it needs.
    pub estimate: Option<EstimateFacts>,
}

/// The file itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// As the user named it.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What kind of file it is.
    pub format: String,
    /// The version of PyTorch that wrote it.
    pub torch_version: Option<String>,
    /// What wrote it.
    pub producer: Option<String>,
    /// Byte order of tensor data.
    pub byte_order: Option<String>,
    /// What the root object is.
    pub object: String,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TensorFacts {
    /// Its name as stored.
    pub name: String,
    /// What it is to the model.
    pub role: String,
    /// PyTorch's name without `torch.`.
    pub dtype: Option<String>,
    /// Sizes.
    pub shape: Option<Vec<u64>>,
    /// Steps in elements.
    pub strides: Option<Vec<u64>>,
    /// Elements.
    pub numel: Option<u64>,
    /// Logical bytes.
    pub bytes: Option<u64>,
    /// Tensors with equal numbers share memory.
    pub storage: Option<u32>,
    /// Where it starts in its storage, in elements.
    pub storage_offset: Option<u64>,
    /// Whether it wants gradients.
    pub requires_grad: Option<bool>,
    /// How it is laid out.
    pub layout: String,
}

/// One storage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StorageFacts {
    /// Its number.
    pub id: u32,
    /// Bytes in memory.
    pub bytes: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// BLAKE3 of its contents, where they were hashed.
    #[serde(default)]
    pub hash: Option<String>,
}

/// A numpy array or scalar.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NumpyFacts {
    /// Its name.
    pub name: String,
    /// numpy's name of its type.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Bytes of its data.
    pub bytes: u64,
}

/// The sums of a file, as the report writes them and as they are read back: groups of them are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Tensors (names).
    pub tensors: u64,
    /// Their elements.
    pub numel: u64,
    /// Their logical bytes.
    pub tensor_bytes: u64,
    /// Every storage once.
    pub storage_bytes: u64,
    /// Counted more than once in `tensor_bytes`.
    pub shared_bytes: u64,
    /// In storages, but reached by no tensor.
    pub slack_bytes: u64,
    /// The file without the storages in it.
    pub overhead_bytes: u64,
}

/// Whether a file is safe to load.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SecurityFacts {
    /// `clean`, `suspicious` or `dangerous`.
    pub verdict: String,
    /// Globals outside the allow-list.
    pub unexpected_globals: Vec<String>,
}

/// Something noteworthy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FindingFacts {
    /// `info`, `warning` or `error`.
    pub severity: String,
    /// A stable code.
    pub code: String,
    /// What it is about; empty for the whole file.
    pub location: String,
    /// One sentence.
    pub message: String,
}

/// What a run showed, times left out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RunFacts {
    /// `cpu`, `cuda:0`, `cuda-sim`.
    pub device: String,
    /// `inference` or `train`.
    pub mode: String,
    /// The method that was called.
    pub method: String,
    /// As libtorch says it.
    pub libtorch_version: String,
    /// Tensors that the method was called with.
    pub inputs: Vec<InputFacts>,
    /// Tensors that it returned.
    pub outputs: Vec<OutputFacts>,
    /// Every module: parents, then their children in order of first use.
    pub modules: Vec<ModuleFacts>,
    /// Operators by kind.
    pub ops: OpsFacts,
    /// Sums.
    pub totals: RunTotalsFacts,
    /// What was measured.
    pub measured: Option<MeasuredFacts>,
}

/// A tensor that a method was called with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct InputFacts {
    /// Its name.
    pub name: String,
    /// PyTorch's name without `torch.`.
    pub dtype: Option<String>,
    /// Sizes.
    pub shape: Option<Vec<u64>>,
}

/// A tensor that a method returned.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OutputFacts {
    /// Where in the result.
    pub path: String,
    /// The tensor.
    #[serde(flatten)]
    pub tensor: ShapeFacts,
}

/// A tensor without its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShapeFacts {
    /// PyTorch's name without `torch.`.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Elements times element size.
    pub bytes: u64,
}

/// One module of a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ModuleFacts {
    /// Its path; empty for the root.
    pub path: String,
    /// Its class; unknown where it was never called.
    pub class: Option<String>,
    /// Calls.
    pub calls: u64,
    /// Tensors that the last call returned.
    pub outputs: Vec<ShapeFacts>,
    /// What each call returned, where they differ.
    #[serde(default)]
    pub outputs_of_calls: Option<Vec<CallFacts>>,
    /// Floating-point operations forward, with children.
    pub flops: Option<u64>,
    /// Kept for the backward pass, with children.
    pub saved_bytes: Option<u64>,
    /// Operators that it calls itself.
    #[serde(default)]
    pub functions: Vec<FunctionFacts>,
}

/// What several calls of a module returned alike.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct CallFacts {
    /// How many calls.
    pub calls: u64,
    /// Tensors that each returned.
    pub outputs: Vec<ShapeFacts>,
}

/// Calls of one operator by one module.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FunctionFacts {
    /// Name such as `aten::add_`.
    pub op: String,
    /// Calls.
    pub calls: u64,
    /// Results of each call.
    pub outputs: Vec<ShapeFacts>,
}

/// Operators by kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OpsFacts {
    /// Outermost operators.
    pub total: u64,
    /// By name.
    pub kinds: BTreeMap<String, OpKindFacts>,
}

/// One kind of operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct OpKindFacts {
    /// Calls.
    pub count: u64,
    /// Floating-point operations of all calls.
    pub flops: Option<u64>,
}

/// Sums of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct RunTotalsFacts {
    /// Floating-point operations of the forward pass.
    pub flops: Option<u64>,
    /// Floating-point operations of the backward pass.
    pub backward_flops: Option<u64>,
}

/// What was measured.
#[expect(clippy::struct_field_names, reason = "the contract's names")]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MeasuredFacts {
    /// Most bytes asked for.
    pub peak_requested_bytes: Option<u64>,
    /// Most bytes in blocks handed out.
    pub peak_allocated_bytes: Option<u64>,
    /// Most bytes got from the device.
    pub peak_reserved_bytes: Option<u64>,
}

/// How much GPU memory a run needs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct EstimateFacts {
    /// Made from what.
    pub basis: String,
    /// The card.
    pub profile: Option<String>,
    /// Phases in order.
    pub phases: Vec<PhaseFacts>,
    /// Highest requested.
    pub peak_requested_bytes: Option<u64>,
    /// Highest allocated.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest reserved.
    pub peak_reserved_bytes: Option<u64>,
    /// The peaks of an eager Python module; reports of earlier versions do not have them.
    #[serde(default)]
    pub eager: Option<EagerFacts>,
    /// The moment of the peak.
    pub at_peak: Option<AtPeakFacts>,
    /// Whether it fits, where that was asked.
    pub fits: Option<bool>,
}

/// The peaks of an eager Python module.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EagerFacts {
    /// Highest allocated.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest reserved.
    pub peak_reserved_bytes: Option<u64>,
}

/// One phase.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PhaseFacts {
    /// `load`, `inputs`, `forward`, `backward`, `optimizer`.
    pub name: String,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// Highest requested.
    pub peak_requested_bytes: Option<u64>,
    /// Highest allocated.
    pub peak_allocated_bytes: Option<u64>,
    /// Highest reserved.
    pub peak_reserved_bytes: Option<u64>,
}

impl PhaseFacts {
    /// `forward`, `backward.2`.
    #[must_use]
    pub fn key(&self) -> String {
        match self.step {
            Some(step) => format!("{}.{step}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The moment of peak allocated memory.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct AtPeakFacts {
    /// Everything that it says; the categories are read with [`AtPeakFacts::held`].
    #[serde(flatten)]
    all: BTreeMap<String, serde_json::Value>,
}

/// What memory at the peak is for: the contract's categories, and what the allocator adds.
pub const HELD: [&str; 11] = [
    "parameters",
    "buffers",
    "inputs",
    "activations",
    "gradients",
    "optimizer_state",
    "temporaries",
    "workspaces",
    "other",
    "rounding",
    "cached_free",
];

impl AtPeakFacts {
    /// Bytes by what they are for, in the contract's order; what is unknown is left out.
    #[must_use]
    pub fn held(&self) -> Vec<(&'static str, u64)> {
        let known = HELD.iter().filter_map(|name| {
            let bytes = self.all.get(*name)?.as_u64()?;
            Some((*name, bytes))
        });
        known.collect()
    }
}

/// Why a report could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Not JSON, or cut off.
    #[error("the report is not complete JSON")]
    Json(#[source] serde_json::Error),
    /// JSON of something else.
    #[error("it is JSON, but no report of `inspect FILE`: {0}")]
    Other(&'static str),
    /// A schema that this version does not read.
    #[error("the report has schema version {found}, expected {READ_VERSION}")]
    Version {
        /// What it says.
        found: u64,
    },
    /// A key that the contract asks for is missing or of another type.
    #[error("the report lacks what its schema version promises")]
    Contract(#[source] serde_json::Error),
    /// Several reports in one file.
    #[error("the file holds several reports, expected one")]
    Several,
}

impl ReportError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ReportError::Json(_) => Some("write it again with `--format json -o FILE`"),
            ReportError::Other(_) => {
                Some("reports are written with `inspect FILE --format json -o REPORT.json`")
            }
            ReportError::Version { .. } => {
                Some("write the report again with this version of inspect")
            }
            ReportError::Contract(_) => None,
            ReportError::Several => Some("write one report a file"),
        }
    }
}

/// What every document of this program begins with.
#[derive(Deserialize)]
struct Head {
    schema_version: Option<u64>,
    kind: Option<serde_json::Value>,
    tensors: Option<serde::de::IgnoredAny>,
}

impl Facts {
    /// Reads a saved report.
    pub fn read(text: &[u8]) -> Result<Facts, ReportError> {
        let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Head>();
        let head = match documents.next() {
            Some(Ok(head)) => head,
            Some(Err(error)) if error.is_data() => {
                return Err(ReportError::Other("it has other keys"));
            }
            Some(Err(error)) => return Err(ReportError::Json(error)),
            None => return Err(ReportError::Other("it is empty")),
        };
        if head.kind.is_some() {
            return Err(ReportError::Other(
                "it is a baseline, which `inspect check FILE --baseline` compares with",
            ));
        }
        let Some(found) = head.schema_version else {
            return Err(ReportError::Other("it has no `schema_version`"));
        };
        if found != u64::from(READ_VERSION) {
            return Err(ReportError::Version { found });
        }
        if head.tensors.is_none() {
            return Err(ReportError::Other("it lists no tensors"));
        }
        match documents.next() {
            None => {}
            Some(Ok(_)) => return Err(ReportError::Several),
            Some(Err(error)) => return Err(ReportError::Json(error)),
        }
        serde_json::from_slice(text).map_err(ReportError::Contract)
    }

    /// What a report in memory says.
    pub fn of_report(report: &impl Serialize) -> Result<Facts, ReportError> {
        let text = serde_json::to_vec(report).map_err(ReportError::Contract)?;
        serde_json::from_slice(&text).map_err(ReportError::Contract)
    }

    /// Tensors alone, of a file of which nothing else is known: enough to match them.
    #[must_use]
    pub fn of_tensors(tensors: Vec<TensorFacts>) -> Facts {
        Facts {
            file: FileFacts {
                path: String::new(),
                bytes: 0,
                format: String::new(),
                torch_version: None,
                producer: None,
                byte_order: None,
                object: String::new(),
            },
            tensors,
            storages: Vec::new(),
            numpy_arrays: Vec::new(),
            totals: Sums::default(),
            security: SecurityFacts {
                verdict: String::new(),
                unexpected_globals: Vec::new(),
            },
            findings: Vec::new(),
            run: None,
            estimate: None,
        }
    }

    /// The storage with this number.
    #[must_use]
    pub fn storage(&self, id: u32) -> Option<&StorageFacts> {
        let at = usize::try_from(id)
            .ok()
            .and_then(|at| self.storages.get(at));
        at.filter(|storage| storage.id == id)
    }

    /// Whether a file that begins like this is a saved report, or wants to be one: JSON that is no safetensors (which
    /// begins with a length) and no index of shards.
    #[must_use]
    pub fn looks_like_report(text: &[u8]) -> bool {
        let start = text.trim_ascii_start();
        let head = start.get(..start.len().min(4096)).unwrap_or(start);
        start.first() == Some(&b'{')
            && [&b"\"schema_version\""[..], b"\"tool\""]
                .iter()
                .any(|key| head.windows(key.len()).any(|window| window == *key))
    }
}

/// `new - old`, as far as 64 bits reach.
#[must_use]
pub fn delta(old: u64, new: u64) -> i64 {
    let difference = i128::from(new) - i128::from(old);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}
