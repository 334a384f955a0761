//! The model of a file: storages, tensors, aliasing, roles, metadata, findings.
//!
//! Owns the facts that every report is made from, in the words of PyTorch: a **storage** is memory, a **tensor** is a
//! named view of one. It knows nothing of formats or of how facts are shown.
//!
//! Invariants, all checked when a [`Checkpoint`] is made:
//! * a storage's id is its place in [`Checkpoint::storages`]; a tensor names a storage that exists;
//! * a tensor's view lies inside its storage;
//! * the totals add up: `tensor_bytes - shared_bytes + slack_bytes = storage_bytes` (tensors without a storage aside),
//!   and `by_class` and `storages + overhead` both give the file's size.

mod chunks;
mod duplicates;
mod findings;
mod objects;
pub mod program;
pub(crate) mod several;
mod statistics;
mod tensor;
mod totals;
mod usage;

use std::fmt;

pub use chunks::Chunk;
pub use objects::StoredObject;
pub use several::{Assembly, FilePart, FileRanks};
pub use statistics::{Statistics, Value};
pub use tensor::{
    ContentHash, Layout, Quantizer, Role, RoleSource, Storage, StorageData, StorageId,
    StorageParts, Tensor, TensorParts,
};
pub use totals::{ByClass, Sum, Totals};

use crate::tensor::DType;
use totals::Contents;

/// What comparing a file's bytes with its checksums gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verified {
    /// Records whose checksum was compared.
    pub records: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Records, or storages of formats without checksums, that there is nothing to compare with.
    pub unchecked: u64,
    /// Records that are damaged: each has a finding.
    pub damaged: u64,
}

/// What kind of file it is, by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A TorchScript archive (`torch.jit.save`), mobile ones included.
    TorchScript,
    /// `torch.save` since 1.6: a zip with `data.pkl`.
    TorchZip,
    /// `torch.save` from 0.1.10 to 1.5: a stream of pickles, then the storages.
    TorchLegacy,
    /// `torch.save` before 0.1.10: a tar.
    TorchTar,
    /// `torch.package`.
    TorchPackage,
    /// A pickle that is not a torch file.
    Pickle,
    /// safetensors.
    Safetensors,
    /// `torch.export.save` (`.pt2`).
    ExportedProgram,
    /// A folder of `torch.distributed.checkpoint`.
    Dcp,
    /// A folder that DeepSpeed saved.
    DeepSpeed,
    /// An index of shards (`*.index.json`).
    ShardedIndex,
}

impl Format {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::TorchScript => "torchscript",
            Format::TorchZip => "torch-zip",
            Format::TorchLegacy => "torch-legacy",
            Format::TorchTar => "torch-tar",
            Format::TorchPackage => "torch-package",
            Format::Pickle => "pickle",
            Format::Safetensors => "safetensors",
            Format::ExportedProgram => "exported-program",
            Format::Dcp => "dcp",
            Format::DeepSpeed => "deepspeed",
            Format::ShardedIndex => "sharded-index",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the root object of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A module, pickled whole or as TorchScript.
    Module,
    /// A dictionary of tensors by name.
    StateDict,
    /// A dictionary that holds state_dicts beside other things (optimizer, epoch, ...).
    Checkpoint,
    /// One tensor.
    Tensor,
    /// Anything else.
    Other,
}

impl ObjectKind {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ObjectKind::Module => "module",
            ObjectKind::StateDict => "state_dict",
            ObjectKind::Checkpoint => "checkpoint",
            ObjectKind::Tensor => "tensor",
            ObjectKind::Other => "other",
        }
    }
}

/// The byte order of the tensor data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// `little` or `big`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ByteOrder::Little => "little",
            ByteOrder::Big => "big",
        }
    }
}

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Probably not what the author meant.
    Warning,
    /// The file must not be trusted.
    Error,
}

impl Severity {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// Something noteworthy about a file that does not stop it from being read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How serious it is.
    pub severity: Severity,
    /// A stable kebab-case code (`storage-slack`).
    pub code: &'static str,
    /// The tensor, member or offset it is about; empty for the whole file.
    pub location: String,
    /// One sentence.
    pub message: String,
}

/// Whether a file is safe to load with PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Verdict {
    /// Only what `torch.save` writes, and harmless standard classes.
    #[default]
    Clean,
    /// Classes of other packages, hidden streams, or code that touches files.
    Suspicious,
    /// Loading it with Python's pickle would reach functions that can do anything.
    Dangerous,
}

impl Verdict {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Suspicious => "suspicious",
            Verdict::Dangerous => "dangerous",
        }
    }
}

/// The globals that a file's pickles name, and what that means.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// Every global named in a stream that PyTorch would load, as `module name`, in order of first appearance.
    pub globals: Vec<String>,
    /// Those outside the allow-list.
    pub unexpected_globals: Vec<String>,
    /// The worst of all observations.
    pub verdict: Verdict,
}

/// A module of a TorchScript archive or of a pickled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its path from the root, joined by dots; empty for the root.
    pub path: String,
    /// Its class as stored (`torch.nn.modules.conv.Conv2d`, `__torch__.Net`).
    pub class: String,
}

impl Module {
    /// The class without its package: `Conv2d`. TorchScript's mangling (`___torch_mangle_3`) is dropped with it.
    #[must_use]
    pub fn class_name(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or(&self.class)
    }
}

/// A tensor that is stored as several tensors: its parts are listed under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Composite {
    /// The name of the whole; its parts are `name.indices`, ...
    pub name: String,
    /// How it is made up.
    pub layout: Layout,
    /// The dtype of the whole, where the file says.
    pub dtype: Option<DType>,
    /// The shape of the whole, where the file says.
    pub shape: Option<crate::tensor::Dims>,
    /// The names of its parts.
    pub parts: Vec<String>,
    /// Logical bytes of its parts.
    pub bytes: u64,
}

/// A numpy array or scalar inside a checkpoint: memory, but no tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumpyArray {
    /// Its name, as a tensor's.
    pub name: String,
    /// numpy's name of its type (`float32`), or its type string where there is no such name (`U5`).
    pub dtype: String,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Bytes of its data.
    pub bytes: u64,
}

/// One argument of a method of a TorchScript module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Its type as TorchScript writes it (`Tensor`, `Optional[int]`, `List[Tensor]`).
    pub type_name: String,
    /// The default as written, where it has one.
    pub default: Option<String>,
}

/// The schema of a method of a TorchScript module's root, read from its code without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// Its arguments, `self` left out.
    pub arguments: Vec<Argument>,
    /// The type it returns.
    pub returns: String,
}

/// What a reader found; [`Checkpoint::new`] checks that it adds up.
#[derive(Debug, Clone)]
pub struct CheckpointParts {
    /// What kind of file it is.
    pub format: Format,
    /// What the root object is.
    pub object: ObjectKind,
    /// The version of PyTorch that wrote it, where it says.
    pub torch_version: Option<String>,
    /// What wrote it, where it says.
    pub producer: Option<String>,
    /// The byte order of tensor data, where known.
    pub byte_order: Option<ByteOrder>,
    /// The size of the file, of all files together where there are several.
    pub file_bytes: u64,
    /// The files of a checkpoint that is several; empty for one that is a single file.
    pub files: Vec<FilePart>,
    /// Bytes of code (TorchScript sources, debug records).
    pub code_bytes: u64,
    /// Bytes of pickles and other metadata records as stored.
    pub pickle_bytes: u64,
    /// Bytes of data records that nothing refers to.
    pub unreferenced_bytes: u64,
    /// The storages in file order.
    pub storages: Vec<Storage>,
    /// The tensors in file order.
    pub tensors: Vec<Tensor>,
    /// Tensors that are stored as several.
    pub composites: Vec<Composite>,
    /// Objects that are no tensors and have a name of their own.
    pub objects: Vec<StoredObject>,
    /// numpy arrays.
    pub numpy_arrays: Vec<NumpyArray>,
    /// Modules, parents before children.
    pub modules: Vec<Module>,
    /// Methods of a TorchScript root module.
    pub methods: Vec<Method>,
    /// Exported programs.
    pub programs: Vec<program::Program>,
    /// Whether the file is safe to load.
    pub security: Security,
    /// What else is noteworthy.
    pub findings: Vec<Finding>,
    /// Free-form metadata that the file carries (safetensors' `__metadata__`), in file order.
    pub metadata: Vec<(String, String)>,
}

impl CheckpointParts {
    /// Parts of an empty file of this format and size.
    #[must_use]
    pub fn new(format: Format, file_bytes: u64) -> CheckpointParts {
        CheckpointParts {
            format,
            object: ObjectKind::Other,
            torch_version: None,
            producer: None,
            byte_order: None,
            file_bytes,
            files: Vec::new(),
            code_bytes: 0,
            pickle_bytes: 0,
            unreferenced_bytes: 0,
            storages: Vec::new(),
            tensors: Vec::new(),
            composites: Vec::new(),
            objects: Vec::new(),
            numpy_arrays: Vec::new(),
            modules: Vec::new(),
            methods: Vec::new(),
            programs: Vec::new(),
            security: Security::default(),
            findings: Vec::new(),
            metadata: Vec::new(),
        }
    }
}

/// Facts that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A view that does not lie in its storage.
    #[error("tensor `{name}` needs {needed_bytes} bytes of its storage, which has {storage_bytes}")]
    OutOfStorage {
        /// The tensor.
        name: String,
        /// What its view reaches.
        needed_bytes: u64,
        /// What there is.
        storage_bytes: u64,
    },
    /// A shape whose element count or bytes exceed 2^64 - 1.
    #[error("tensor `{name}` has a shape too large for 64 bits: {shape}")]
    TooLarge {
        /// The tensor.
        name: String,
        /// Its shape, cut.
        shape: String,
    },
    /// As many strides as sizes are needed.
    #[error("tensor `{name}` has {sizes} sizes but {strides} strides")]
    StrideCount {
        /// The tensor.
        name: String,
        /// Sizes.
        sizes: usize,
        /// Strides.
        strides: usize,
    },
    /// A tensor of a storage that is not listed.
    #[error("tensor `{name}` refers to storage {storage}, of {storages}")]
    NoSuchStorage {
        /// The tensor.
        name: String,
        /// What it refers to.
        storage: usize,
        /// How many there are.
        storages: usize,
    },
    /// Sums over the whole file exceed 2^64 - 1.
    #[error("the sizes of all tensors together exceed 64 bits")]
    Sum,
    /// Parts of the file that are together larger than the file.
    #[error(
        "the parts of the file add up to {parts_bytes} bytes, but the file has {file_bytes}: records overlap"
    )]
    Overlap {
        /// The sum.
        parts_bytes: u64,
        /// The file.
        file_bytes: u64,
    },
}

/// A checked model of one file.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    parts: CheckpointParts,
    totals: Totals,
    verified: Option<Verified>,
    /// Of every tensor, in order; empty until they were made.
    statistics: Vec<Option<Statistics>>,
    /// How many of the findings the reader made.
    read_findings: usize,
}

impl Checkpoint {
    /// Checks that the parts fit together, works out who uses which storage, and the totals.
    pub fn new(mut parts: CheckpointParts) -> Result<Checkpoint, ModelError> {
        let usage = usage::of_storages(&parts)?;
        for (storage, used) in parts.storages.iter_mut().zip(&usage) {
            storage.set_usage(used.bytes, used.tensors);
        }
        let totals = totals::of(&parts, Contents::Unread)?;
        let read_findings = parts.findings.len();
        let wasted = findings::of(&parts);
        parts.findings.extend(wasted);
        Ok(Checkpoint {
            parts,
            totals,
            verified: None,
            statistics: Vec::new(),
            read_findings,
        })
    }

    /// Notes the hash of every storage's bytes, in order; `None` where there are no bytes. Storages of equal bytes are
    /// named in findings, and [`ByClass::duplicates`] says what the copies take up in the file.
    pub fn set_hashes(
        &mut self,
        hashes: impl IntoIterator<Item = Option<ContentHash>>,
    ) -> Result<(), ModelError> {
        let findings = duplicates::set(&mut self.parts, hashes);
        self.parts.findings.extend(findings);
        self.totals = totals::of(&self.parts, Contents::Hashed)?;
        Ok(())
    }

    /// Notes what the file's checksums say.
    pub fn set_verified(&mut self, verified: Verified, findings: Vec<Finding>) {
        self.verified = Some(verified);
        self.parts.findings.extend(findings);
    }

    /// What the file's checksums say, where they were compared.
    #[must_use]
    pub fn verified(&self) -> Option<Verified> {
        self.verified
    }

    /// What kind of file it is.
    #[must_use]
    pub fn format(&self) -> Format {
        self.parts.format
    }

    /// What the root object is.
    #[must_use]
    pub fn object(&self) -> ObjectKind {
        self.parts.object
    }

    /// The version of PyTorch that wrote it, where it says.
    #[must_use]
    pub fn torch_version(&self) -> Option<&str> {
        self.parts.torch_version.as_deref()
    }

    /// What wrote it, where it says.
    #[must_use]
    pub fn producer(&self) -> Option<&str> {
        self.parts.producer.as_deref()
    }

    /// The byte order of tensor data, where known.
    #[must_use]
    pub fn byte_order(&self) -> Option<ByteOrder> {
        self.parts.byte_order
    }

    /// The size of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.parts.file_bytes
    }

    /// The files of a checkpoint that is several; empty for one that is a single file.
    #[must_use]
    pub fn files(&self) -> &[FilePart] {
        &self.parts.files
    }

    /// The tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.parts.tensors
    }

    /// The storages in file order; a storage's id is its index.
    #[must_use]
    pub fn storages(&self) -> &[Storage] {
        &self.parts.storages
    }

    /// The storage with this id.
    #[must_use]
    pub fn storage(&self, id: StorageId) -> Option<&Storage> {
        self.parts.storages.get(id.index())
    }

    /// Tensors that are stored as several (sparse, nested).
    #[must_use]
    pub fn composites(&self) -> &[Composite] {
        &self.parts.composites
    }

    /// numpy arrays, which are memory but no tensors.
    #[must_use]
    pub fn numpy_arrays(&self) -> &[NumpyArray] {
        &self.parts.numpy_arrays
    }

    /// Modules, parents before children; empty where the file holds none.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.parts.modules
    }

    /// Methods of a TorchScript root module.
    #[must_use]
    pub fn methods(&self) -> &[Method] {
        &self.parts.methods
    }

    /// Exported programs; most files have none.
    #[must_use]
    pub fn programs(&self) -> &[program::Program] {
        &self.parts.programs
    }

    /// The sums.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether the file is safe to load.
    #[must_use]
    pub fn security(&self) -> &Security {
        &self.parts.security
    }

    /// What else is noteworthy, in the order found.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.parts.findings
    }

    /// Free-form metadata that the file carries.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.parts.metadata
    }

    /// Adds findings that a later stage made (`--verify`, `--hash`).
    pub fn add_findings(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.parts.findings.extend(findings);
    }
}
