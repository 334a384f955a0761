//! The exact report: the JSON contract as types, in the order in which keys are written.

use serde::Serialize;

use super::RunReport;
use super::parts::{ChunkReport, ObjectReport, RanksReport};
use crate::checkpoint::{
    ByteOrder, Checkpoint, Composite, Finding, Format, NumpyArray, Statistics, Storage, StorageId,
    Sum, Tensor, Totals, Verified,
};
use crate::diff::Sums;
use crate::estimate::Estimate;
use crate::tensor::DType;

/// Version of the report's schema; changes within it are additive.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything that is known about one file. Sizes are exact bytes; `None` is unknown.
#[derive(Debug, Serialize)]
pub struct ExactReport<'a> {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Who wrote the report.
    pub tool: Tool,
    /// The file itself.
    pub file: FileReport<'a>,
    /// Every tensor, in file order.
    pub tensors: TensorList<'a>,
    /// Every storage, in file order.
    pub storages: StorageList<'a>,
    /// Objects that are no tensors and have a name of their own; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectReport<'a>>,
    /// Tensors that are stored as several; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub composites: Vec<CompositeReport<'a>>,
    /// numpy arrays and scalars, which are no tensors; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numpy_arrays: Vec<NumpyReport<'a>>,
    /// Exported programs; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<super::ProgramReport<'a>>,
    /// The sums.
    pub totals: TotalsReport<'a>,
    /// Whether it is safe to load.
    pub security: SecurityReport<'a>,
    /// What the checksums say; left out where nobody asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<VerifiedReport>,
    /// What else is noteworthy.
    pub findings: Vec<FindingReport>,
    /// What a run showed.
    pub run: Option<RunReport<'a>>,
    /// How much GPU memory it needs.
    pub estimate: Option<&'a Estimate>,
}

/// Every tensor, made when asked for: a checkpoint has 100,000 of them.
#[derive(Debug, Clone, Copy)]
pub struct TensorList<'a> {
    tensors: &'a [Tensor],
    statistics: &'a [Option<Statistics>],
}

impl<'a> TensorList<'a> {
    /// The tensor at this place.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<TensorReport<'a>> {
        let statistics = self.statistics.get(index).and_then(Option::as_ref);
        self.tensors.get(index).map(|one| tensor(one, statistics))
    }
}

impl Serialize for TensorList<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tensors = (0..self.tensors.len()).filter_map(|index| self.get(index));
        serializer.collect_seq(tensors)
    }
}

/// Every storage, made when asked for.
#[derive(Debug, Clone, Copy)]
pub struct StorageList<'a> {
    storages: &'a [Storage],
    hashed: bool,
}

impl StorageList<'_> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.storages.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.storages.is_empty()
    }

    /// What all of them take up in the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let sizes = self.storages.iter().map(Storage::file_bytes);
        sizes.fold(0, u64::saturating_add)
    }
}

impl Serialize for StorageList<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let storages = self.storages.iter().enumerate();
        serializer.collect_seq(storages.map(|(id, one)| storage(id, one, self.hashed)))
    }
}

/// Who wrote a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// `inspect`.
    pub name: &'static str,
    /// This program's version.
    pub version: &'static str,
}

impl Tool {
    /// This program.
    pub const THIS: Tool = Tool {
        name: "inspect",
        version: env!("CARGO_PKG_VERSION"),
    };
}

/// The file itself.
#[derive(Debug, Serialize)]
pub struct FileReport<'a> {
    /// As the user named it.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What kind of file it is.
    pub format: &'static str,
    /// The version of PyTorch that wrote it.
    pub torch_version: Option<&'a str>,
    /// What wrote it.
    pub producer: Option<&'a str>,
    /// Byte order of tensor data.
    pub byte_order: Option<&'static str>,
    /// What the root object is.
    pub object: &'static str,
    /// The files that it consists of; left out where it is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PartReport<'a>>,
}

/// One of several files.
#[derive(Debug, Serialize)]
pub struct PartReport<'a> {
    /// Its name in the folder, or its path as the user gave it.
    pub name: &'a str,
    /// Its size.
    pub bytes: u64,
    /// What kind of file it is; `None` where it holds no tensors.
    pub format: Option<&'static str>,
    /// Tensors' storages in it.
    pub storages: u64,
    /// Which process it belongs to; left out where its name does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksReport>,
}

/// One tensor.
#[derive(Debug, Serialize)]
pub struct TensorReport<'a> {
    /// Its name as stored.
    pub name: &'a str,
    /// What it is to the model.
    pub role: &'static str,
    /// How that is known.
    pub role_source: &'static str,
    /// PyTorch's name without `torch.`.
    pub dtype: Option<&'static str>,
    /// Sizes, outermost first.
    pub shape: Option<&'a [u64]>,
    /// Steps in elements.
    pub strides: Option<&'a [u64]>,
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
    pub layout: &'static str,
    /// Statistics of its values.
    pub stats: Option<&'a Statistics>,
    /// The pieces that it is stored in; left out where the file does not keep it in pieces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<ChunkReport<'a>>,
}

/// One storage.
#[derive(Debug, Serialize)]
pub struct StorageReport<'a> {
    /// Its number.
    pub id: usize,
    /// The dtype it was declared with.
    pub dtype: Option<&'static str>,
    /// Bytes in memory.
    pub bytes: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// The device it was saved from.
    pub device: Option<&'a str>,
    /// Where it is in the file.
    pub member: &'a str,
    /// Bytes that tensors reach.
    pub used_bytes: u64,
    /// Tensors that view it.
    pub tensors: u64,
    /// The contents, where they were hashed.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentReport>,
}

/// A storage's contents.
#[derive(Debug, Serialize)]
pub struct ContentReport {
    /// BLAKE3 of its bytes, in hexadecimal; `None` where the file does not hold them.
    pub hash: Option<String>,
    /// The first storage with the same bytes, where that is another one.
    pub duplicate_of: Option<u32>,
}

/// A tensor that is stored as several.
#[derive(Debug, Serialize)]
pub struct CompositeReport<'a> {
    /// Its name.
    pub name: &'a str,
    /// How it is made up.
    pub layout: &'static str,
    /// The dtype of the whole.
    pub dtype: Option<&'static str>,
    /// The shape of the whole.
    pub shape: Option<&'a [u64]>,
    /// Elements of the whole.
    pub numel: Option<u64>,
    /// The names of the tensors that it is stored as.
    pub parts: &'a [String],
    /// Their logical bytes.
    pub bytes: u64,
}

/// A numpy array or scalar.
#[derive(Debug, Serialize)]
pub struct NumpyReport<'a> {
    /// Its name.
    pub name: &'a str,
    /// numpy's name of its type (`float64`), or its type string where it has no other.
    pub dtype: &'a str,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: &'a [u64],
    /// Bytes of its data, which are in the pickle.
    pub bytes: u64,
}

/// What comparing the data with its checksums gave.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct VerifiedReport {
    /// Records whose checksum was compared.
    pub records: u64,
    /// Their bytes in memory.
    pub bytes: u64,
    /// Records, or storages of other formats, without a checksum.
    pub unchecked: u64,
    /// Records that are damaged.
    pub damaged: u64,
}

impl VerifiedReport {
    fn of(verified: Verified) -> Self {
        VerifiedReport {
            records: verified.records,
            bytes: verified.bytes,
            unchecked: verified.unchecked,
            damaged: verified.damaged,
        }
    }
}

/// All sums.
#[derive(Debug, Serialize)]
pub struct TotalsReport<'a> {
    /// Of the whole file.
    #[serde(flatten)]
    pub sums: Sums,
    /// By role.
    #[serde(serialize_with = "as_map")]
    pub by_role: Vec<(&'static str, SumReport)>,
    /// By dtype.
    #[serde(serialize_with = "as_map")]
    pub by_dtype: Vec<(&'static str, SumReport)>,
    /// Bytes of the file by what they are.
    pub by_class: ClassBytes,
    /// What `by_class.optimizer` consists of; left out where that is nothing.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    pub optimizer_by_kind: Vec<(&'a str, u64)>,
}

/// The sum of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SumReport {
    /// Tensors.
    pub tensors: u64,
    /// Elements.
    pub numel: u64,
    /// Logical bytes.
    pub bytes: u64,
}

/// Bytes of the file by what they are; adds up to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClassBytes {
    /// Parameters.
    pub parameters: u64,
    /// Buffers.
    pub buffers: u64,
    /// Optimizer state.
    pub optimizer: u64,
    /// Constants and other tensors.
    pub other_tensors: u64,
    /// Storages whose bytes are those of an earlier one; left out unless hashed, and then in no other class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// Data that no tensor reaches.
    pub slack: u64,
    /// TorchScript code.
    pub code: u64,
    /// Pickles and other metadata.
    pub pickle: u64,
    /// Headers, directory, padding.
    pub padding: u64,
}

impl ClassBytes {
    /// The classes with their names, in order.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("parameters", self.parameters),
            ("buffers", self.buffers),
            ("optimizer", self.optimizer),
            ("other tensors", self.other_tensors),
            ("duplicates", self.duplicates.unwrap_or(0)),
            ("slack", self.slack),
            ("code", self.code),
            ("pickle", self.pickle),
            ("padding", self.padding),
        ]
    }
}

/// Whether a file is safe to load.
#[derive(Debug, Serialize)]
pub struct SecurityReport<'a> {
    /// Globals that its pickles name.
    pub globals: &'a [String],
    /// Those outside the allow-list.
    pub unexpected_globals: &'a [String],
    /// `clean`, `suspicious` or `dangerous`.
    pub verdict: &'static str,
}

/// Something noteworthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindingReport {
    /// `info`, `warning` or `error`.
    pub severity: &'static str,
    /// A stable code.
    pub code: &'static str,
    /// What it is about; empty for the whole file.
    pub location: String,
    /// One sentence.
    pub message: String,
}

impl<'a> ExactReport<'a> {
    /// The report on a file that was not run.
    #[must_use]
    pub fn new(path: String, checkpoint: &'a Checkpoint) -> Self {
        ExactReport {
            schema_version: SCHEMA_VERSION,
            tool: Tool::THIS,
            file: FileReport {
                path,
                bytes: checkpoint.file_bytes(),
                format: checkpoint.format().name(),
                torch_version: checkpoint.torch_version(),
                producer: checkpoint.producer(),
                byte_order: checkpoint.byte_order().map(ByteOrder::name),
                object: checkpoint.object().name(),
                files: files(checkpoint),
            },
            tensors: TensorList {
                tensors: checkpoint.tensors(),
                statistics: checkpoint.statistics(),
            },
            storages: StorageList {
                storages: checkpoint.storages(),
                hashed: checkpoint.totals().by_class.duplicates.is_some(),
            },
            totals: totals(checkpoint.totals()),
            objects: checkpoint.objects().iter().map(ObjectReport::of).collect(),
            composites: checkpoint.composites().iter().map(composite).collect(),
            numpy_arrays: checkpoint.numpy_arrays().iter().map(numpy_array).collect(),
            programs: checkpoint
                .programs()
                .iter()
                .map(super::ProgramReport::of)
                .collect(),
            security: SecurityReport {
                globals: &checkpoint.security().globals,
                unexpected_globals: &checkpoint.security().unexpected_globals,
                verdict: checkpoint.security().verdict.name(),
            },
            verified: checkpoint.verified().map(VerifiedReport::of),
            findings: checkpoint.findings().iter().map(finding).collect(),
            run: None,
            estimate: None,
        }
    }
}

fn files(checkpoint: &Checkpoint) -> Vec<PartReport<'_>> {
    let mut counts = vec![0_u64; checkpoint.files().len()];
    for file in checkpoint.storages().iter().filter_map(Storage::file) {
        if let Some(count) = counts.get_mut(file) {
            *count += 1;
        }
    }
    let files = checkpoint.files().iter().zip(counts);
    files
        .map(|(file, storages)| PartReport {
            name: &file.name,
            bytes: file.bytes,
            format: file.format.map(Format::name),
            storages,
            ranks: RanksReport::of(file.ranks),
        })
        .collect()
}

fn tensor<'a>(tensor: &'a Tensor, stats: Option<&'a Statistics>) -> TensorReport<'a> {
    // An uninitialized tensor has no shape yet, so its size is unknown and not 0.
    let known = tensor.shape().is_some();
    TensorReport {
        name: tensor.name(),
        role: tensor.role().name(),
        role_source: tensor.role_source().name(),
        dtype: tensor.dtype().map(DType::name),
        shape: tensor.shape(),
        strides: tensor.strides(),
        numel: known.then(|| tensor.numel()),
        bytes: known.then(|| tensor.bytes()),
        storage: tensor.storage().map(StorageId::number),
        storage_offset: tensor.storage().map(|_| tensor.storage_offset()),
        requires_grad: tensor.requires_grad(),
        layout: tensor.layout().name(),
        stats,
        chunks: tensor.chunks().iter().map(ChunkReport::of).collect(),
    }
}

fn storage(id: usize, storage: &Storage, hashed: bool) -> StorageReport<'_> {
    StorageReport {
        content: hashed.then(|| ContentReport {
            hash: storage.hash().map(|hash| hash.to_string()),
            duplicate_of: storage.duplicate_of().map(StorageId::number),
        }),
        id,
        dtype: storage.dtype().map(DType::name),
        bytes: storage.bytes(),
        file_bytes: storage.file_bytes(),
        device: storage.device(),
        member: storage.member(),
        used_bytes: storage.used_bytes(),
        tensors: storage.tensors(),
    }
}

fn totals(totals: &Totals) -> TotalsReport<'_> {
    let class = totals.by_class;
    TotalsReport {
        sums: Sums {
            tensors: totals.tensors,
            numel: totals.numel,
            tensor_bytes: totals.tensor_bytes,
            storage_bytes: totals.storage_bytes,
            shared_bytes: totals.shared_bytes,
            slack_bytes: totals.slack_bytes,
            overhead_bytes: totals.overhead_bytes,
        },
        by_role: totals
            .by_role
            .iter()
            .map(|(role, group)| (role.name(), sum(*group)))
            .collect(),
        by_dtype: totals
            .by_dtype
            .iter()
            .map(|(dtype, group)| (dtype.name(), sum(*group)))
            .collect(),
        by_class: ClassBytes {
            parameters: class.parameters,
            buffers: class.buffers,
            optimizer: class.optimizer,
            other_tensors: class.other_tensors,
            duplicates: class.duplicates,
            slack: class.slack,
            code: class.code,
            pickle: class.pickle,
            padding: class.padding,
        },
        optimizer_by_kind: totals
            .optimizer_kinds
            .iter()
            .map(|(kind, bytes)| (kind.as_str(), *bytes))
            .collect(),
    }
}

fn composite(whole: &Composite) -> CompositeReport<'_> {
    CompositeReport {
        name: &whole.name,
        layout: whole.layout.name(),
        dtype: whole.dtype.map(DType::name),
        shape: whole.shape.as_deref(),
        numel: whole.shape.as_deref().and_then(crate::tensor::numel),
        parts: &whole.parts,
        bytes: whole.bytes,
    }
}

fn numpy_array(array: &NumpyArray) -> NumpyReport<'_> {
    NumpyReport {
        name: &array.name,
        dtype: &array.dtype,
        shape: &array.shape,
        bytes: array.bytes,
    }
}

fn sum(sum: Sum) -> SumReport {
    SumReport {
        tensors: sum.tensors,
        numel: sum.numel,
        bytes: sum.bytes,
    }
}

fn finding(finding: &Finding) -> FindingReport {
    FindingReport {
        severity: finding.severity.name(),
        code: finding.code,
        location: finding.location.clone(),
        message: finding.message.clone(),
    }
}

/// Serializes pairs as an object, in their order.
fn as_map<S: serde::Serializer, T: Serialize + Copy>(
    pairs: &[(&str, T)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().copied())
}
