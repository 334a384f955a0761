//! The CUDA caching allocator's own figures.

use std::ffi::CStr;

use inspect_checkpoint::trace::{CardFacts, DeviceMemory};

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

/// Memory in use on the device since the last call: at its start `start`, which that call gave.
pub(crate) fn memory_since(start: u64) -> Result<DeviceMemory> {
    let (mut end, mut peak, mut total) = (0_u64, 0_u64, 0_u64);
    // SAFETY: the three places live through the call.
    call(|e| unsafe { c::shim_cuda_memory_seen(&raw mut end, &raw mut peak, &raw mut total, e) })?;
    Ok(DeviceMemory {
        start,
        peak: peak.max(start),
        end,
        total,
    })
}

/// Memory in use on the device before this process uses it; none where that is not known.
pub(crate) fn used_before() -> Result<Option<u64>> {
    let (mut known, mut bytes) = (0, 0_u64);
    // SAFETY: both places live through the call.
    call(|e| unsafe { c::shim_cuda_used_before(&raw mut known, &raw mut bytes, e) })?;
    Ok((known != 0).then_some(bytes))
}

/// Waits until the device has come to this moment; the time since the last such moment on the device itself, ns.
pub(crate) fn moment() -> Result<u64> {
    let mut elapsed_ns = 0_u64;
    // SAFETY: the place lives through the call.
    call(|e| unsafe { c::shim_cuda_moment(&raw mut elapsed_ns, e) })?;
    Ok(elapsed_ns)
}

/// Waits for everything that the device was given to do.
pub(crate) fn synchronize() -> Result<()> {
    // SAFETY: no arguments.
    call(|e| unsafe { c::shim_cuda_synchronize(e) })
}

/// Gives back what nobody uses: cuBLAS's workspaces and the allocator's unused segments.
pub(crate) fn release() -> Result<()> {
    // SAFETY: no arguments.
    call(|e| unsafe { c::shim_cuda_release(e) })
}

/// The first visible card.
pub(crate) fn card() -> Result<CardFacts> {
    let mut raw = c::Card {
        name: [0; 256],
        major: 0,
        minor: 0,
        multiprocessors: 0,
        driver_version: 0,
        cudnn_version: 0,
        total_bytes: 0,
        l2_bytes: 0,
    };
    // SAFETY: the place lives through the call.
    call(|e| unsafe { c::shim_cuda_card(&raw mut raw, e) })?;
    // SAFETY: the shim has set all of it to 0 and the driver ends its text with one.
    let name = unsafe { CStr::from_ptr(raw.name.as_ptr()) };
    let number = |value: i32| u32::try_from(value).unwrap_or(0);
    let version = |value: i32| Some(number(value)).filter(|version| *version > 0);
    Ok(CardFacts {
        name: name.to_string_lossy().into_owned(),
        compute_capability: (number(raw.major), number(raw.minor)),
        multiprocessors: number(raw.multiprocessors),
        total_bytes: raw.total_bytes,
        l2_bytes: raw.l2_bytes,
        driver_version: version(raw.driver_version),
        cudnn_version: version(raw.cudnn_version),
    })
}
