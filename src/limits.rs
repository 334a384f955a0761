//! Bounds on the work and memory that a file can cause, each with its reason.
//!
//! They exist for hostile files: a file of a few megabytes must be read or refused within 2 s and 200 MB. None of
//! them is near what a real checkpoint needs.

/// Memory for the objects of one pickle, whatever its size: half of the 200 MB that any small file may cost.
pub const PICKLE_MEMORY_BYTES: u64 = 96 << 20;

/// More memory for objects for every byte the pickle takes up in the file: real pickles need 3 to 8.
pub const PICKLE_MEMORY_PER_BYTE: u64 = 12;

/// Inflated size of a metadata record, and of all of them together, whatever their compressed size: the pickle of
/// 300,000 tensors.
pub const INFLATED_BYTES: u64 = 40 << 20;

/// Inflated size of metadata records for every compressed byte, where that is more: real pickles compress 10 times.
pub const INFLATED_PER_BYTE: u64 = 20;

/// Parameters, buffers, methods, arguments and calls of the code of a TorchScript archive: the largest models have some
/// ten thousand.
pub const CODE_ITEMS: u64 = 400_000;

/// Inflated size of a recording of GPU memory for every compressed byte: real ones compress 10 to 40 times.
pub const RECORDING_PER_GZIP_BYTE: u64 = 100;

/// Memo slots that are kept as a plain table; a pickle that names larger ones (they count up from 0 in every real
/// one) is served from a map.
pub const MEMO_TABLE_SLOTS: u64 = 1 << 24;

/// Characters of a name that an error or finding shows: the file may hold megabytes.
pub const SHOWN_CHARS: usize = 120;

/// Objects visited while naming tensors: shared objects are visited once a name, so references can multiply
/// without bound (2^60 paths from 900 bytes).
pub const WALK_VISITS: u64 = 1_000_000;

/// More objects for every byte of pickle: without sharing, a visit takes up at least one.
pub const WALK_VISITS_PER_BYTE: u64 = 2;

/// Different globals of one pickle: a model of every class in PyTorch names about 1,000.
pub const GLOBALS: usize = 65_536;

/// Bytes of all names together, whatever the file's size: nesting makes names quadratic.
pub const NAME_BYTES: u64 = 48 << 20;

/// More bytes of names for every byte of pickle.
pub const NAME_BYTES_PER_BYTE: u64 = 4;

/// Dimensions of a tensor: the most that libtorch's iterators take.
pub const TENSOR_DIMENSIONS: usize = 64;

/// Entries of a zip directory or tar.
pub const ARCHIVE_MEMBERS: u64 = 2_000_000;

/// Bytes of a safetensors header: the format's own bound.
pub const SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;

/// Pickles, one behind the other, that are looked at in bytes which PyTorch ignores.
pub const HIDDEN_PICKLES: usize = 64;

/// Nesting of values in a file of inputs: converted by recursion.
pub const INPUT_DEPTH: u32 = 64;

/// Values in a file of inputs.
pub const INPUT_VALUES: u64 = 1_000_000;

/// Findings of one kind that are listed one by one; more are summed up in one.
pub const FINDINGS_PER_KIND: usize = 20;

/// Named tensors, whatever the pickle's size: each costs about 300 bytes.
pub const ROWS: u64 = 200_000;

/// Bytes of pickle for each further named tensor: a second name of a known tensor takes up at least 6.
pub const PICKLE_BYTES_PER_ROW: u64 = 6;

/// Kinds of optimizer state that are told apart: an optimizer keeps 1 to 5.
pub const OPTIMIZER_KINDS: usize = 16;

/// Bytes of an index of shards: the largest models have 100,000 tensors, 10 MB of text.
pub const INDEX_BYTES: u64 = 64 << 20;

/// Files of one checkpoint: the largest models have some hundred shards.
pub const SHARDS: usize = 4096;

/// Entries of a folder that are looked at.
pub const FOLDER_ENTRIES: usize = 100_000;

/// Bytes of tensors that statistics are made of, whatever the file's size: views of one storage can be many, and one view
/// can be larger than any storage.
pub const STATISTICS_BYTES: u64 = 1 << 30;

/// More bytes of tensors for every byte of storages: real files name a storage once or twice.
pub const STATISTICS_PER_BYTE: u64 = 16;

/// Bytes of a compressed storage that is inflated for statistics; PyTorch compresses none.
pub const STATISTICS_INFLATED_BYTES: u64 = 1 << 30;

/// Names, chunks and places in the metadata of a distributed checkpoint, whatever its size.
pub const DCP_ENTRIES: usize = 10_000;

/// Bytes of that metadata for each further one: a second mention of a known chunk takes up at least 2, a real one 30.
pub const DCP_BYTES_PER_ENTRY: usize = 16;

/// Bytes of a file that names the newest checkpoint of a folder.
pub const TAG_BYTES: u64 = 4096;

/// Comparisons of chunks of tensors with each other, to find those that overlap: chunks along one dimension need one each.
pub const CHUNK_COMPARISONS: u64 = 4_000_000;
