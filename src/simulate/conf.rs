//! The allocator's settings: `PYTORCH_ALLOC_CONF`, read exactly as PyTorch 2.11 reads it.
//!
//! Owns the grammar and its errors. The grammar is looser than its documentation: the text is cut into tokens at
//! `,`, `:`, `[` and `]`, white space vanishes, and a separator's *kind* is never looked at (`max_split_size_mb,128`
//! works). Numbers are read as C's `strtoull` and `strtod` do, so `50abc` is 50. Two passes read the same tokens:
//! the device-independent keys first, then CUDA's own, and an unknown key is an error of the first pass.
//!
//! Setting again at run time ([`AllocConf::reparse`]) forgets `max_split_size_mb`, `roundup_power2_divisions`,
//! `garbage_collection_threshold` and `max_non_split_rounding_mb` where the new text does not repeat them;
//! everything else stays.

mod number;
mod tokens;

use tokens::Tokens;

use super::{MIB, MIN_LARGE_BYTES};

/// Size classes of `roundup_power2_divisions`: below 2 MiB, 2-4 MiB, ..., 32 GiB and above.
pub const DIVISION_CLASSES: usize = 16;

/// Log2 of the lower edge of size class 0 plus one class: sizes below 2 MiB share class 0.
const FIRST_CLASS_LOG2: u32 = 20;

/// Most threads that may register pinned memory.
const MAX_REGISTER_THREADS: u64 = 128;

const CLOSING_BRACKET: &str =
    "Expected closing bracket ']' in ConfigTokenizer but reached end of config";

/// Which allocator the settings ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// The caching allocator that this module models.
    #[default]
    Native,
    /// CUDA's own stream-ordered pool; not modelled.
    CudaMallocAsync,
}

/// The settings that decide what the caching allocator does.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocConf {
    /// Size of a segment shared by requests between 1 and 10 MiB (`large_segment_size_mb`, default 20 MiB).
    pub large_segment_bytes: u64,
    /// Blocks of at least this size are never split (`max_split_size_mb`); `None`: every block may be.
    pub max_split_bytes: Option<u64>,
    /// How much larger than an oversize request its block may be (`max_non_split_rounding_mb`).
    pub max_non_split_rounding_bytes: u64,
    /// Steps between powers of two to which sizes are rounded, for each size class; 0 and 1: off.
    pub roundup_power2_divisions: [u64; DIVISION_CLASSES],
    /// Share of the memory limit above which unused blocks are released (`garbage_collection_threshold`); 0: off.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow by mapping pages (`expandable_segments`).
    pub expandable_segments: bool,
    /// Share of the device this process may take (`per_process_memory_fraction`); read once, at creation.
    pub per_process_memory_fraction: f64,
    /// The allocator asked for (`backend`).
    pub backend: Backend,
}

impl Default for AllocConf {
    fn default() -> Self {
        Self {
            large_segment_bytes: 20 * MIB,
            max_split_bytes: None,
            max_non_split_rounding_bytes: 20 * MIB,
            roundup_power2_divisions: [0; DIVISION_CLASSES],
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            per_process_memory_fraction: 1.0,
            backend: Backend::Native,
        }
    }
}

/// Why a settings text was refused, in PyTorch's own words where it has any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocConfError {
    /// A key that neither pass knows.
    #[error("Unrecognized key '{key}' in Accelerator allocator config.")]
    UnknownKey {
        /// The token where a key was expected.
        key: String,
    },
    /// A boolean that is neither `True` nor `False`.
    #[error("Expected 'True' or 'False' at index {index} in ConfigTokenizer but got '{token}'")]
    NotBool {
        /// Index of the token.
        index: usize,
        /// The token.
        token: String,
    },
    /// A number that does not start like one.
    #[error("`{token}` is not a number: expected digits ({function})")]
    NotNumber {
        /// The token.
        token: String,
        /// The C++ function that fails on it.
        function: &'static str,
    },
    /// A number outside the range of its type.
    #[error("`{token}` is out of range ({function})")]
    OutOfRange {
        /// The token.
        token: String,
        /// The C++ function that fails on it.
        function: &'static str,
    },
    /// The text ends where a token was expected.
    #[error(
        "Index out of bounds in ConfigTokenizer: the settings end where token {index} was expected"
    )]
    Ends {
        /// Index of the missing token.
        index: usize,
    },
    /// A list without its closing bracket.
    #[error("{CLOSING_BRACKET}")]
    NoClosingBracket,
    /// `large_segment_size_mb` of 10 or less.
    #[error("CachingAllocator option large_segment_size_mb must be > 10 MB")]
    LargeSegmentTooSmall,
    /// A size below the large segment's.
    #[error("CachingAllocator option {key} too small, must be >= {minimum_mib}")]
    TooSmall {
        /// `max_split_size_mb` or `max_non_split_rounding_mb`.
        key: &'static str,
        /// The large segment size in MiB.
        minimum_mib: u64,
    },
    /// A threshold outside (0, 1).
    #[error("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")]
    Threshold,
    /// One division for all sizes that is no power of two.
    #[error("For roundups, the divisions has to be power of 2")]
    Division,
    /// A division in a list that is neither 0 nor a power of two.
    #[error("For roundups, the divisions has to be power of 2 or 0 to disable roundup")]
    ListDivision,
    /// A size in a list that is no power of two.
    #[error("For roundups, the intervals have to be power of 2")]
    Interval,
    /// A fraction outside [0, 1].
    #[error("per_process_memory_fraction is invalid, set it in [0.0, 1.0]")]
    Fraction,
    /// A backend that is neither `native` nor `cudaMallocAsync`.
    #[error("Unknown allocator backend, options are native and cudaMallocAsync")]
    UnknownBackend,
    /// A pinned reserve segment of nothing.
    #[error("Pinned reserve segment size has to be greater than 0")]
    ReserveSegment,
    /// A thread count that is no power of two.
    #[error("Number of register threads has to be power of 2, got {0}")]
    RegisterThreads(u64),
    /// More threads than PyTorch allows.
    #[error(
        "Number of register threads should be less than or equal to {MAX_REGISTER_THREADS}, got {0}"
    )]
    TooManyRegisterThreads(u64),
}

impl AllocConf {
    /// Reads settings as PyTorch does when a process starts.
    pub fn parse(text: &str) -> Result<Self, AllocConfError> {
        Self::default().reparse(text)
    }

    /// Reads settings as PyTorch does when they are set again at run time: what stays and what is forgotten is in
    /// the module's documentation. On an error nothing changes.
    pub fn reparse(&self, text: &str) -> Result<Self, AllocConfError> {
        let tokens = Tokens::new(text);
        let mut conf = Self {
            max_split_bytes: None,
            roundup_power2_divisions: [0; DIVISION_CLASSES],
            garbage_collection_threshold: 0.0,
            ..self.clone()
        };
        conf.read_large_segment(&tokens)?;
        conf.max_non_split_rounding_bytes = conf.large_segment_bytes;
        conf.read_device_independent(&tokens)?;
        conf.read_cuda(&tokens)?;
        Ok(conf)
    }

    /// The large segment size counts for the other keys' limits wherever it stands, so it is looked up first; the last
    /// one wins.
    fn read_large_segment(&mut self, tokens: &Tokens) -> Result<(), AllocConfError> {
        for index in 0..tokens.len() {
            if tokens.get(index)? == "large_segment_size_mb" {
                let mib = tokens.unsigned(index + 2)?;
                if mib <= MIN_LARGE_BYTES / MIB {
                    return Err(AllocConfError::LargeSegmentTooSmall);
                }
                self.large_segment_bytes = mebibytes(mib);
            }
        }
        Ok(())
    }

    fn read_device_independent(&mut self, tokens: &Tokens) -> Result<(), AllocConfError> {
        let mut index = 0;
        while index < tokens.len() {
            let key = tokens.get(index)?;
            let value = index + 2;
            index = match key {
                "large_segment_size_mb" => {
                    tokens.get(value)?;
                    value
                }
                "max_split_size_mb" => {
                    let bytes =
                        self.at_least_large(tokens.unsigned(value)?, "max_split_size_mb")?;
                    self.max_split_bytes = Some(bytes);
                    value
                }
                "max_non_split_rounding_mb" => {
                    self.max_non_split_rounding_bytes =
                        self.at_least_large(tokens.unsigned(value)?, "max_non_split_rounding_mb")?;
                    value
                }
                "garbage_collection_threshold" => {
                    let threshold = tokens.float(value)?;
                    if !(threshold > 0.0 && threshold < 1.0) {
                        return Err(AllocConfError::Threshold);
                    }
                    self.garbage_collection_threshold = threshold;
                    value
                }
                "roundup_power2_divisions" => self.read_divisions(tokens, value)?,
                "expandable_segments" => {
                    self.expandable_segments = tokens.boolean(value)?;
                    value
                }
                "pinned_use_background_threads" => {
                    tokens.boolean(value)?;
                    value
                }
                _ if is_cuda_key(key) => tokens.skip_value(value)?,
                _ => {
                    return Err(AllocConfError::UnknownKey {
                        key: key.to_owned(),
                    });
                }
            };
            index += 2;
        }
        Ok(())
    }

    fn read_cuda(&mut self, tokens: &Tokens) -> Result<(), AllocConfError> {
        let mut index = 0;
        while index < tokens.len() {
            let value = index + 2;
            index = match tokens.get(index)? {
                "backend" => {
                    self.backend = match tokens.get(value)? {
                        "native" => Backend::Native,
                        "cudaMallocAsync" => Backend::CudaMallocAsync,
                        _ => return Err(AllocConfError::UnknownBackend),
                    };
                    value
                }
                "release_lock_on_cudamalloc"
                | "release_lock_on_hipmalloc"
                | "pinned_use_cuda_host_register"
                | "pinned_use_hip_host_register"
                | "graph_capture_record_stream_reuse" => {
                    tokens.boolean(value)?;
                    value
                }
                "pinned_num_register_threads" => {
                    let threads = tokens.unsigned(value)?;
                    if !threads.is_power_of_two() {
                        return Err(AllocConfError::RegisterThreads(threads));
                    }
                    if threads > MAX_REGISTER_THREADS {
                        return Err(AllocConfError::TooManyRegisterThreads(threads));
                    }
                    value
                }
                "pinned_reserve_segment_size_mb" => {
                    if tokens.unsigned(value)? == 0 {
                        return Err(AllocConfError::ReserveSegment);
                    }
                    value
                }
                "per_process_memory_fraction" => {
                    let fraction = tokens.float(value)?;
                    if !(0.0..=1.0).contains(&fraction) {
                        return Err(AllocConfError::Fraction);
                    }
                    self.per_process_memory_fraction = fraction;
                    value
                }
                _ => tokens.skip_value(value)?,
            };
            index += 2;
        }
        Ok(())
    }

    /// A size in MiB that may not be below the large segment's, in bytes.
    fn at_least_large(&self, mib: u64, key: &'static str) -> Result<u64, AllocConfError> {
        let minimum_mib = self.large_segment_bytes / MIB;
        if mib < minimum_mib {
            return Err(AllocConfError::TooSmall { key, minimum_mib });
        }
        Ok(mebibytes(mib))
    }

    /// One division for all classes, or a list `[SIZE:DIVISIONS,...,>:DIVISIONS]`; returns the index of its last
    /// token.
    fn read_divisions(&mut self, tokens: &Tokens, value: usize) -> Result<usize, AllocConfError> {
        if tokens.get(value)? != "[" {
            let divisions = tokens.unsigned(value)?;
            if !divisions.is_power_of_two() {
                return Err(AllocConfError::Division);
            }
            self.roundup_power2_divisions = [divisions; DIVISION_CLASSES];
            return Ok(value);
        }
        let (mut index, mut last_class, mut first) = (value + 1, 0, true);
        while index < tokens.len() && tokens.get(index)? != "]" {
            let divisions = tokens.unsigned(index + 2)?;
            if divisions != 0 && !divisions.is_power_of_two() {
                return Err(AllocConfError::ListDivision);
            }
            let table = &mut self.roundup_power2_divisions;
            if tokens.get(index)? == ">" {
                table
                    .iter_mut()
                    .skip(last_class + 1)
                    .for_each(|d| *d = divisions);
            } else {
                let mib = tokens.unsigned(index)?;
                if !mib.is_power_of_two() {
                    return Err(AllocConfError::Interval);
                }
                last_class = usize::try_from(mib.ilog2())
                    .unwrap_or(DIVISION_CLASSES)
                    .min(DIVISION_CLASSES - 1);
                let from = if first { 0 } else { last_class };
                let classes = table.iter_mut().take(last_class + 1).skip(from);
                classes.for_each(|d| *d = divisions);
                first = false;
            }
            index += 3;
            // A separator, whatever it is; only the bracket ends the list.
            if tokens.get(index)? != "]" {
                index += 1;
            }
        }
        if index < tokens.len() {
            Ok(index)
        } else {
            Err(AllocConfError::NoClosingBracket)
        }
    }

    /// The divisions that count for a request of `bytes`.
    #[inline]
    pub(super) fn divisions(&self, bytes: u64) -> u64 {
        let log2 = bytes.checked_ilog2().unwrap_or(0);
        let class = log2.saturating_sub(FIRST_CLASS_LOG2).min(15) as usize;
        self.roundup_power2_divisions[class]
    }
}

/// Mebibytes as bytes; PyTorch clamps so that the product fits.
fn mebibytes(mib: u64) -> u64 {
    mib.min(u64::MAX / MIB) * MIB
}

/// Keys that the device-independent pass leaves to CUDA's.
fn is_cuda_key(key: &str) -> bool {
    matches!(
        key,
        "backend"
            | "release_lock_on_cudamalloc"
            | "release_lock_on_hipmalloc"
            | "pinned_use_cuda_host_register"
            | "pinned_use_hip_host_register"
            | "graph_capture_record_stream_reuse"
            | "pinned_reserve_segment_size_mb"
            | "pinned_num_register_threads"
            | "per_process_memory_fraction"
    )
}

#[cfg(test)]
mod tests;
