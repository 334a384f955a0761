//! The CUDA caching allocator of PyTorch 2.11, exactly, without CUDA and without libtorch.
//!
//! [`Allocator`] takes the calls that PyTorch makes on its allocator (a size and a stream, a block to free,
//! `empty_cache`) and answers with the block, the segments and the statistics that `torch.cuda.memory_stats()` would
//! report, to the byte. [`replay`] feeds it with recorded traces.
//!
//! What it must not do: read files, print, or guess. What the driver decides (addresses) is a parameter
//! ([`Placement`]).
//!
//! Invariants, after every call: requested <= allocated <= active <= reserved; the blocks of a segment
//! cover it without gap or overlap; no two free neighbours; a peak is never below its current value.
//!
//! | module | owns |
//! |---|---|
//! | [`conf`] | the settings text and its errors |
//! | `size` | rounding, size classes, segment sizes |
//! | `allocator` | handing out, freeing, splitting, merging |
//! | `release` | what goes back to the device, and when |
//! | `range` | expandable segments |
//! | `free_list`, `lists` | best fit; the list of every pool and stream |
//! | [`stats`] | statistics |
//! | `device`, `event` | capacity and addresses; what is asked of the device |
//! | `restore`, `forced` | starting from, and following, a recorded state |
//! | [`recording`], [`replay`] | recordings of any origin, and their replay |
//! | `view` | the segments and blocks as a snapshot shows them |

mod allocator;
mod block;
pub mod conf;
mod device;
mod event;
mod forced;
mod free_list;
mod lists;
mod range;
pub mod recording;
mod release;
pub mod replay;
mod restore;
mod size;
pub mod stats;
mod view;

pub use allocator::Allocator;
pub use block::{BlockId, BlockState};
pub use conf::{AllocConf, AllocConfError};
pub use device::{DeviceLimits, FreeRanges, Placement, RecordedPlaces};
pub use event::{DeviceEvent, DeviceRange, NotAllocated, OutOfMemory};
pub use restore::RestoreError;
pub use stats::{Stat, StatKind, Stats};
pub use view::{BlockView, SegmentView};

const MIB: u64 = 1 << 20;

/// Every block's size and address is a multiple of this.
pub const MIN_BLOCK_BYTES: u64 = 512;

/// Rounded sizes up to this go to the small pool.
const SMALL_BYTES: u64 = MIB;

/// Size of the small pool's segments, and its page.
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;

/// From this size on, a segment is made to measure.
const MIN_LARGE_BYTES: u64 = 10 * MIB;

/// Segments made to measure are multiples of this.
const ROUND_LARGE_BYTES: u64 = 2 * MIB;

/// PyTorch's two pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Pool {
    /// Blocks of requests up to 1 MiB.
    #[default]
    Small,
    /// All other blocks.
    Large,
}

impl Pool {
    /// Position in a statistic's (aggregate, small, large).
    #[inline]
    fn stat_index(self) -> usize {
        match self {
            Self::Small => 1,
            Self::Large => 2,
        }
    }
}

/// A CUDA stream, by its handle; 0 is the default stream.
pub type Stream = u64;

/// A private pool (CUDA graphs, `torch.cuda.MemPool`); `(0, 0)` is the default one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PoolId(pub u64, pub u64);
