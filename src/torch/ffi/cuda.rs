//! The CUDA caching allocator's own figures.

use super::{Result, c, call};

/// Current value and peak of one statistic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    /// Now.
    pub(crate) current: u64,
    /// Since peaks were reset.
    pub(crate) peak: u64,
}

/// The statistics that reports use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stats {
    /// Requested bytes.
    pub(crate) requested: Stat,
    /// Allocated bytes.
    pub(crate) allocated: Stat,
    /// Active bytes.
    pub(crate) active: Stat,
    /// Reserved bytes.
    pub(crate) reserved: Stat,
    /// Retries after emptying the cache.
    pub(crate) retries: u64,
    /// Out-of-memory errors.
    pub(crate) ooms: u64,
}

/// Reads them.
pub(crate) fn stats() -> Result<Stats> {
    let mut raw = c::DeviceStats::default();
    // SAFETY: the place lives through the call.
    call(|e| unsafe { c::shim_cuda_stats(&raw mut raw, e) })?;
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    let stat = |s: c::Stat| Stat {
        current: unsigned(s.current),
        peak: unsigned(s.peak),
    };
    Ok(Stats {
        requested: stat(raw.requested_bytes),
        allocated: stat(raw.allocated_bytes),
        active: stat(raw.active_bytes),
        reserved: stat(raw.reserved_bytes),
        retries: unsigned(raw.num_alloc_retries),
        ooms: unsigned(raw.num_ooms),
    })
}

/// Starts peaks anew.
pub(crate) fn reset_peaks() -> Result<()> {
    // SAFETY: no arguments.
    call(|e| unsafe { c::shim_cuda_reset_peaks(e) })
}

/// Free and total bytes of the device.
pub(crate) fn memory_info() -> Result<(u64, u64)> {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: both places live through the call.
    call(|e| unsafe { c::shim_cuda_memory_info(&raw mut free, &raw mut total, e) })?;
    Ok((free as u64, total as u64))
}
