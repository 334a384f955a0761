//! Storages and tensors, valid by construction.

use std::fmt;

use compact_str::CompactString;

use super::ModelError;
use super::chunks::Chunks;
use crate::tensor::{self, DType, Dims};

/// The number of a storage: its place in file order. Tensors with equal numbers share memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(u32);

impl StorageId {
    /// The id of the storage at this place.
    #[must_use]
    pub fn new(index: u32) -> StorageId {
        StorageId(index)
    }

    /// The place in [`super::Checkpoint::storages`].
    #[must_use]
    pub fn index(self) -> usize {
        // u32 always fits: targets have at least 32-bit pointers.
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// The number as reports show it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// What a tensor is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Trained weights.
    Parameter,
    /// State that is not trained (running_mean, ...).
    Buffer,
    /// A constant of TorchScript code.
    Constant,
    /// State of an optimizer.
    Optimizer,
    /// Anything else.
    Tensor,
}

impl Role {
    /// Every role, in the order of reports.
    pub const ALL: [Role; 5] = [
        Role::Parameter,
        Role::Buffer,
        Role::Constant,
        Role::Optimizer,
        Role::Tensor,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::Buffer => "buffer",
            Role::Constant => "constant",
            Role::Optimizer => "optimizer",
            Role::Tensor => "tensor",
        }
    }
}

/// How a role is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoleSource {
    /// The file says.
    File,
    /// From the name and place.
    Inferred,
}

impl RoleSource {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RoleSource::File => "file",
            RoleSource::Inferred => "inferred",
        }
    }
}

/// How a tensor, or the tensor that this is a part of, is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// An ordinary view of a storage.
    Strided,
    /// Part of a sparse COO tensor.
    SparseCoo,
    /// Part of a sparse CSR tensor.
    SparseCsr,
    /// Part of a sparse CSC tensor.
    SparseCsc,
    /// Part of a sparse BSR tensor.
    SparseBsr,
    /// Part of a sparse BSC tensor.
    SparseBsc,
    /// Quantized values.
    Quantized,
    /// Part of a nested tensor.
    Nested,
    /// A shape without data.
    Meta,
    /// A lazy parameter that has no shape yet.
    Uninitialized,
    /// In several pieces, each in a storage of its own.
    Chunked,
}

impl Layout {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Layout::Strided => "strided",
            Layout::SparseCoo => "sparse_coo",
            Layout::SparseCsr => "sparse_csr",
            Layout::SparseCsc => "sparse_csc",
            Layout::SparseBsr => "sparse_bsr",
            Layout::SparseBsc => "sparse_bsc",
            Layout::Quantized => "quantized",
            Layout::Nested => "nested",
            Layout::Meta => "meta",
            Layout::Uninitialized => "uninitialized",
            Layout::Chunked => "chunked",
        }
    }
}

/// What a reader found out about a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageParts {
    /// The dtype it was declared with; `None` for untyped storages.
    pub dtype: Option<DType>,
    /// Its size in memory.
    pub bytes: u64,
    /// What it takes up in the file: less than `bytes` when compressed, 0 when it is not there.
    pub file_bytes: u64,
    /// The device it was saved from (`cpu`, `cuda:0`), where the file says.
    pub device: Option<CompactString>,
    /// Where it is in the file: the record's name, or the key in formats without names.
    pub member: CompactString,
    /// Where and how its bytes are in the file.
    pub data: StorageData,
    /// CRC-32 of its bytes, where the file says.
    pub crc32: Option<u32>,
}

/// Where and how a storage's bytes are in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageData {
    /// From this offset on, as they are in memory.
    Raw {
        /// The first byte.
        offset: u64,
    },
    /// From this offset on, compressed with deflate to [`StorageParts::file_bytes`].
    Deflated {
        /// The first byte.
        offset: u64,
    },
    /// In the file as text of a pickle of protocol 0 to 2, where every byte is a character.
    Text,
    /// Not in the file.
    Absent,
}

/// BLAKE3 of a storage's bytes as they are in memory, in the file's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A piece of memory that tensors view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    parts: StorageParts,
    used_bytes: u64,
    tensors: u64,
    file: Option<u32>,
    content: Option<Box<Content>>,
}

/// What is known of the bytes of a storage once they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Content {
    hash: ContentHash,
    duplicate_of: Option<StorageId>,
}

impl Storage {
    /// A storage that no tensor uses yet.
    #[must_use]
    pub fn new(parts: StorageParts) -> Storage {
        Storage {
            parts,
            used_bytes: 0,
            tensors: 0,
            file: None,
            content: None,
        }
    }

    /// The same storage as part of a checkpoint of several files.
    pub(crate) fn in_file(mut self, index: u32, member: CompactString) -> Storage {
        self.file = Some(index);
        self.parts.member = member;
        self
    }

    /// The same storage where its archive starts at this byte of the file.
    pub(crate) fn behind(mut self, bytes: u64) -> Storage {
        self.parts.data = match self.parts.data {
            StorageData::Raw { offset } => StorageData::Raw {
                offset: offset.saturating_add(bytes),
            },
            StorageData::Deflated { offset } => StorageData::Deflated {
                offset: offset.saturating_add(bytes),
            },
            other => other,
        };
        self
    }

    /// Which of [`super::Checkpoint::files`] it is in; `None` where there is but one.
    #[must_use]
    pub fn file(&self) -> Option<usize> {
        self.file.and_then(|index| usize::try_from(index).ok())
    }

    pub(super) fn set_content(
        &mut self,
        hash: Option<ContentHash>,
        duplicate_of: Option<StorageId>,
    ) {
        self.content = hash.map(|hash| Box::new(Content { hash, duplicate_of }));
    }

    pub(super) fn set_usage(&mut self, used_bytes: u64, tensors: u64) {
        self.used_bytes = used_bytes;
        self.tensors = tensors;
    }

    /// The dtype it was declared with; `None` for untyped storages.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.parts.dtype
    }

    /// Its size in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.bytes
    }

    /// What it takes up in the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.parts.file_bytes
    }

    /// The device it was saved from, where the file says.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.parts.device.as_deref()
    }

    /// Where it is in the file.
    #[must_use]
    pub fn member(&self) -> &str {
        &self.parts.member
    }

    /// Where its bytes start in the file, when they are there as they are in memory (not compressed, not left out).
    #[must_use]
    pub fn data_offset(&self) -> Option<u64> {
        match self.parts.data {
            StorageData::Raw { offset } => Some(offset),
            StorageData::Deflated { .. } | StorageData::Text | StorageData::Absent => None,
        }
    }

    /// Where and how its bytes are in the file.
    #[must_use]
    pub fn data(&self) -> StorageData {
        self.parts.data
    }

    /// CRC-32 of its bytes, where the file says.
    #[must_use]
    pub fn crc32(&self) -> Option<u32> {
        self.parts.crc32
    }

    /// The hash of its bytes; `None` before they were read, and where the file does not hold them.
    #[must_use]
    pub fn hash(&self) -> Option<ContentHash> {
        self.content.as_ref().map(|content| content.hash)
    }

    /// The first storage with the same bytes, where their hashes are known and it is another one.
    #[must_use]
    pub fn duplicate_of(&self) -> Option<StorageId> {
        self.content.as_ref()?.duplicate_of
    }

    /// Whether its contents were left out by `torch.serialization.skip_data`, which writes 0 as the checksum. (The
    /// checksum of real data is 0 once in 4 billion storages.)
    #[must_use]
    pub fn is_skipped(&self) -> bool {
        self.parts.crc32 == Some(0) && self.parts.bytes > 0
    }

    /// How many of its bytes at least one tensor reaches.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// How many tensors (names) view it.
    #[must_use]
    pub fn tensors(&self) -> u64 {
        self.tensors
    }
}

/// What a reader found out about a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorParts {
    /// Its name as stored.
    pub name: CompactString,
    /// What it is to the model.
    pub role: Role,
    /// How that is known.
    pub role_source: RoleSource,
    /// Its element type; `None` only when uninitialized.
    pub dtype: Option<DType>,
    /// Its shape; `None` only when uninitialized.
    pub shape: Option<Dims>,
    /// Its strides in elements; empty for packed and uninitialized ones.
    pub strides: Dims,
    /// The storage it views; `None` for meta and uninitialized tensors.
    pub storage: Option<StorageId>,
    /// Where in the storage it starts, in elements.
    pub storage_offset: u64,
    /// Whether it wants gradients, where the file says.
    pub requires_grad: Option<bool>,
    /// How it is laid out.
    pub layout: Layout,
}

/// How the integers of a quantized tensor become numbers: `(integer - zero_point) * scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantizer {
    /// The bits of the scale, a float64.
    scale_bits: u64,
    /// The integer that stands for 0.
    zero_point: i64,
}

impl Quantizer {
    /// Of the whole tensor.
    #[must_use]
    pub fn new(scale: f64, zero_point: i64) -> Quantizer {
        Quantizer {
            scale_bits: scale.to_bits(),
            zero_point,
        }
    }

    /// The number that an integer stands for.
    #[must_use]
    pub fn value(self, integer: f64) -> f64 {
        (integer - self.zero_point as f64) * f64::from_bits(self.scale_bits)
    }
}

/// A named view of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    parts: TensorParts,
    quantizer: Option<Quantizer>,
    pub(super) chunks: Option<Box<Chunks>>,
    numel: u64,
    bytes: u64,
}

impl Tensor {
    /// Checks that the view lies inside its storage, of `storage_bytes` bytes, and works out its size.
    pub fn new(parts: TensorParts, storage_bytes: Option<u64>) -> Result<Tensor, ModelError> {
        let (Some(dtype), Some(shape)) = (parts.dtype, parts.shape.as_deref()) else {
            return Ok(Tensor {
                parts,
                quantizer: None,
                chunks: None,
                numel: 0,
                bytes: 0,
            });
        };
        let too_large = || ModelError::TooLarge {
            name: parts.name.to_string(),
            shape: cut_shape(shape),
        };
        let numel = tensor::numel(shape).ok_or_else(too_large)?;
        let bytes = dtype.tensor_bytes(shape).ok_or_else(too_large)?;
        if parts.strides.len() != shape.len() {
            return Err(ModelError::StrideCount {
                name: parts.name.into_string(),
                sizes: shape.len(),
                strides: parts.strides.len(),
            });
        }
        if let Some(storage_bytes) = storage_bytes {
            let needed_bytes = needed(&parts, dtype, shape, bytes).ok_or_else(too_large)?;
            if needed_bytes > storage_bytes {
                return Err(ModelError::OutOfStorage {
                    name: parts.name.into_string(),
                    needed_bytes,
                    storage_bytes,
                });
            }
        }
        Ok(Tensor {
            parts,
            quantizer: None,
            chunks: None,
            numel,
            bytes,
        })
    }

    /// The same tensor, with what the file says elsewhere of its role.
    #[must_use]
    pub fn with_role(mut self, role: Role) -> Tensor {
        self.parts.role = role;
        self.parts.role_source = RoleSource::File;
        self
    }

    /// The same tensor, quantized as a whole.
    #[must_use]
    pub fn quantized(mut self, quantizer: Option<Quantizer>) -> Tensor {
        self.quantizer = quantizer;
        self
    }

    /// How its integers become numbers; `None` where it is not quantized, or not as a whole.
    #[must_use]
    pub fn quantizer(&self) -> Option<Quantizer> {
        self.quantizer
    }

    /// The same tensor where other storages come first; `None` where there are too many.
    pub(crate) fn behind(mut self, storages: u32) -> Option<Tensor> {
        if let Some(id) = self.parts.storage {
            self.parts.storage = Some(StorageId(id.0.checked_add(storages)?));
        }
        if let Some(chunks) = self.chunks.take() {
            self.chunks = Some(Box::new(chunks.behind(storages)?));
        }
        Some(self)
    }

    /// Gives it another name.
    pub(super) fn rename(&mut self, name: &str) {
        self.parts.name = name.into();
    }

    /// Its name as stored.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// What it is to the model.
    #[must_use]
    pub fn role(&self) -> Role {
        self.parts.role
    }

    /// How the role is known.
    #[must_use]
    pub fn role_source(&self) -> RoleSource {
        self.parts.role_source
    }

    /// Its element type; `None` only when uninitialized.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.parts.dtype
    }

    /// Its shape; `None` only when uninitialized.
    #[must_use]
    pub fn shape(&self) -> Option<&[u64]> {
        self.parts.shape.as_deref()
    }

    /// Its strides in elements, as many as sizes; `None` only when uninitialized.
    #[must_use]
    pub fn strides(&self) -> Option<&[u64]> {
        self.parts.shape.as_ref().map(|_| &*self.parts.strides)
    }

    /// How many elements it has; 0 when uninitialized.
    #[must_use]
    pub fn numel(&self) -> u64 {
        self.numel
    }

    /// Its logical size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The storage it views; `None` for meta and uninitialized tensors.
    #[must_use]
    pub fn storage(&self) -> Option<StorageId> {
        self.parts.storage
    }

    /// Where in the storage it starts, in elements.
    #[must_use]
    pub fn storage_offset(&self) -> u64 {
        self.parts.storage_offset
    }

    /// Whether it wants gradients, where the file says.
    #[must_use]
    pub fn requires_grad(&self) -> Option<bool> {
        self.parts.requires_grad
    }

    /// How it is laid out.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.parts.layout
    }

    /// Whether its elements lie in the storage in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.parts
            .shape
            .as_ref()
            .is_some_and(|shape| tensor::is_contiguous(shape, &self.parts.strides))
    }
}

/// How many bytes from the storage's start the view needs.
fn needed(parts: &TensorParts, dtype: DType, shape: &[u64], bytes: u64) -> Option<u64> {
    match dtype.values_per_byte() {
        // Packed rows are contiguous; strides of packed types count values, not bytes.
        Some(per_byte) => bytes.checked_add(parts.storage_offset / per_byte),
        None => tensor::extent(shape, &parts.strides, parts.storage_offset)?
            .checked_mul(dtype.item_bytes()),
    }
}

/// A shape as text, cut after eight sizes.
fn cut_shape(shape: &[u64]) -> String {
    let mut text: Vec<String> = shape.iter().take(8).map(u64::to_string).collect();
    if shape.len() > 8 {
        text.push(format!("... ({} dimensions)", shape.len()));
    }
    format!("[{}]", text.join(", "))
}
