//! Why a file was not read.

use super::pickle::PickleError;
use crate::checkpoint::ModelError;
use crate::source::SourceError;

/// Why a file was not read: what, where, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The path could not be opened.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The facts in the file contradict each other.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Not a file of a format this tool reads.
    #[error("not a checkpoint: it is {what}")]
    NotACheckpoint {
        /// What it is instead.
        what: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
    /// A file of PyTorch's that this version names but does not read.
    #[error("{what} cannot be read yet")]
    Unsupported {
        /// What it is.
        what: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
    /// An exported program with something that there is no TorchScript for.
    #[error("the exported program cannot be run here, because of {what}")]
    NotRunnable {
        /// What that is.
        what: String,
    },
    /// The file ends too early.
    #[error("the file is truncated: {what} needs {needed_bytes} bytes, the file has {file_bytes}")]
    Truncated {
        /// What does not fit.
        what: String,
        /// The least size of the file with which it would fit.
        needed_bytes: u64,
        /// The size of the file.
        file_bytes: u64,
    },
    /// The beginning of a zip without its end.
    #[error(
        "the file is truncated: a zip archive starts at byte 0, but its directory, which comes last, is not in the {file_bytes} bytes of the file"
    )]
    NoDirectory {
        /// The size of the file.
        file_bytes: u64,
    },
    /// A fault in a zip archive.
    #[error("member `{member}`{}: {fault}", at(*.offset))]
    Member {
        /// The member's name.
        member: String,
        /// Where its header is.
        offset: Option<u64>,
        /// What is wrong.
        fault: MemberFault,
    },
    /// A fault in the directory or the framing of an archive.
    #[error("{what}, at byte {offset}")]
    Archive {
        /// What is wrong.
        what: String,
        /// Where.
        offset: u64,
    },
    /// A fault in a pickle.
    #[error("in `{member}`: {source}")]
    Pickle {
        /// The member, or the file's part, that the pickle is.
        member: String,
        /// Whether what was read so far names something dangerous.
        names: Vec<String>,
        /// What is wrong.
        source: Box<PickleError>,
    },
    /// A tensor that cannot be.
    #[error("in `{member}`: tensor `{name}`: {fault}")]
    Tensor {
        /// The pickle it is in.
        member: String,
        /// The tensor.
        name: String,
        /// What is wrong.
        fault: TensorFault,
    },
    /// A part of the file that is not what its format says.
    #[error("{part}: expected {expected}, found {found}")]
    Structure {
        /// Which part.
        part: String,
        /// What the format says.
        expected: String,
        /// What is there.
        found: String,
    },
    /// One of the files of a checkpoint that is several.
    #[error("in its file `{file}`")]
    Part {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<FormatError>,
    },
    /// One of the entries that a file consists of.
    #[error("in the entry of `{name}`, at byte {offset}")]
    Entry {
        /// Whose entry.
        name: String,
        /// Where it starts.
        offset: u64,
        /// What is wrong with it.
        source: Box<FormatError>,
    },
    /// More work than a file of this size may cause.
    #[error("{what} exceed the bound of {limit}")]
    Limit {
        /// What there is too much of.
        what: String,
        /// The bound.
        limit: u64,
    },
}

/// What is wrong with a member of an archive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberFault {
    /// No local header where the directory says.
    #[error("the directory says there is a record here, but there is none")]
    NoRecord,
    /// Directory and local header disagree: readers would see different files.
    #[error("its local header says {what} {local}, the directory says {central}")]
    Mismatch {
        /// Which field.
        what: &'static str,
        /// In the local header.
        local: String,
        /// In the directory.
        central: String,
    },
    /// The data does not fit into the file.
    #[error("its data ends at byte {end}, the file has {file_bytes}")]
    OutOfFile {
        /// Where it would end.
        end: u64,
        /// The size of the file.
        file_bytes: u64,
    },
    /// Two members share bytes.
    #[error("it overlaps member `{0}`")]
    Overlap(String),
    /// Two members of one name: readers differ in which one they take.
    #[error("it is in the archive more than once")]
    Duplicate,
    /// Encrypted.
    #[error("it is encrypted")]
    Encrypted,
    /// A compression that PyTorch does not read.
    #[error("compression method {0}, expected 0 (stored) or 8 (deflate)")]
    Compression(u16),
    /// A stored member whose two sizes differ.
    #[error("it is stored uncompressed, but its sizes are {stored} and {bytes}")]
    StoredSizes {
        /// In the file.
        stored: u64,
        /// In memory.
        bytes: u64,
    },
    /// Damaged: the checksum differs.
    #[error("its CRC-32 is {found:08x}, expected {expected:08x}: the record is damaged")]
    Crc {
        /// What the directory says.
        expected: u32,
        /// What its bytes give.
        found: u32,
    },
    /// Data that cannot be inflated.
    #[error("its compressed data is damaged: {0}")]
    Inflate(String),
    /// A declared size that no compressed data of this length can have.
    #[error("{stored} compressed bytes cannot hold {bytes}: the size is forged")]
    ForgedSize {
        /// In the file.
        stored: u64,
        /// Declared.
        bytes: u64,
    },
    /// A metadata record that inflates to more than one of its size may.
    #[error("it inflates to {bytes} bytes from {stored}, more than the bound of {limit}")]
    Bomb {
        /// In the file.
        stored: u64,
        /// Inflated.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// A member that is needed.
    #[error("it is not in the archive")]
    Missing,
    /// A file of a checkpoint that is not in the checkpoint's folder.
    #[error("it leads out of the checkpoint's folder")]
    Outside,
    /// A link, or a name that leaves the folder.
    #[error("{0}")]
    Unsafe(String),
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorFault {
    /// An argument of the wrong kind.
    #[error("{what} is {found}, expected {expected}")]
    Argument {
        /// Which.
        what: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A size, stride or offset below zero.
    #[error("{what} is {value}")]
    Negative {
        /// Which.
        what: &'static str,
        /// Its value.
        value: i64,
    },
    /// More dimensions than libtorch has.
    #[error("{0} dimensions, at most {limit}", limit = crate::limits::TENSOR_DIMENSIONS)]
    Dimensions(usize),
    /// A dtype or storage class that is not PyTorch's.
    #[error("`{0}` is not a dtype of PyTorch 2.11")]
    UnknownDType(String),
    /// A record smaller than the storage it should hold.
    #[error("storage `{member}` needs {needed_bytes} bytes, its record has {record_bytes}")]
    ShortRecord {
        /// The record.
        member: String,
        /// What the pickle says.
        needed_bytes: u64,
        /// What is there.
        record_bytes: u64,
    },
    /// A storage without a record.
    #[error("storage `{0}` is not in the file")]
    NoRecord(String),
    /// A shape too large for 64 bits.
    #[error("its size exceeds 64 bits")]
    TooLarge,
    /// A view that leaves its storage.
    #[error("it needs {needed_bytes} bytes of its storage, which has {storage_bytes}")]
    OutOfStorage {
        /// What the view reaches.
        needed_bytes: u64,
        /// What there is.
        storage_bytes: u64,
    },
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

impl FormatError {
    /// The same error, of an entry of the file.
    pub(crate) fn in_entry(self, name: &str, offset: u64) -> FormatError {
        match self {
            // What says where it is in the file needs no more.
            FormatError::Truncated { .. } => self,
            source => FormatError::Entry {
                name: super::pickle::cut(name),
                offset,
                source: Box::new(source),
            },
        }
    }

    /// What the user can do about it, where there is something.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            FormatError::NotACheckpoint { hint, .. } | FormatError::Unsupported { hint, .. } => {
                hint.map(str::to_owned)
            }
            FormatError::Truncated { .. } | FormatError::NoDirectory { .. } => Some(
                "the download or copy was probably interrupted: fetch the file again".to_owned(),
            ),
            FormatError::Member {
                fault: MemberFault::Crc { .. } | MemberFault::Inflate(_) | MemberFault::NoRecord,
                ..
            } => Some("the file was damaged on its way: fetch it again".to_owned()),
            FormatError::Member {
                fault:
                    MemberFault::Duplicate | MemberFault::Overlap(_) | MemberFault::Mismatch { .. },
                ..
            } => Some(
                "readers disagree on what such an archive holds; it was not written by PyTorch"
                    .to_owned(),
            ),
            FormatError::Part { source, .. } | FormatError::Entry { source, .. } => source.hint(),
            FormatError::Member {
                fault: MemberFault::Outside,
                ..
            } => Some("keep all files of the checkpoint in one folder".to_owned()),
            FormatError::Pickle { names, .. } if !names.is_empty() => Some(format!(
                "do not load it with PyTorch: before that point it names {}",
                names.join(", ")
            )),
            _ => None,
        }
    }
}
