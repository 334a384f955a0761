//! The recording of this process.

use inspect_checkpoint::trace::TensorRef;

use super::{Result, Tensor, c, c_int, c_text, call, pointer, ptr};

/// Starts recording allocations on `cpu` or `cuda`.
pub(crate) fn start(device: &str) -> Result<()> {
    let device = c_text(device)?;
    // SAFETY: the text lives through the call.
    call(|e| unsafe { c::shim_record_start(device.as_ptr(), e) })
}

/// Takes the times of modules, operators and autograd nodes from the device from now on; each drain waits for it.
pub(crate) fn device_times() -> Result<()> {
    // SAFETY: no arguments.
    call(|e| unsafe { c::shim_record_device_times(e) })
}

/// Stops; another recording may begin.
pub(crate) fn stop() -> Result<()> {
    // SAFETY: no arguments.
    call(|e| unsafe { c::shim_record_stop(e) })
}

/// Also records operators and modules.
pub(crate) fn operators(on: bool) -> Result<()> {
    // SAFETY: no arguments.
    call(|e| unsafe { c::shim_record_operators(c_int::from(on), e) })
}

/// Time since the start, ns.
pub(crate) fn now() -> u64 {
    // SAFETY: no arguments.
    u64::try_from(unsafe { c::shim_record_now() }).unwrap_or(0)
}

/// Words recorded since the last drain.
pub(crate) fn words() -> usize {
    // SAFETY: no arguments.
    unsafe { c::shim_record_words() }
}

/// Hands the words recorded so far to `read`.
pub(crate) fn drain<T>(read: impl FnOnce(&[i64]) -> T) -> Result<T> {
    let (mut words, mut count) = (ptr::null(), 0);
    // SAFETY: both places live through the call.
    call(|e| unsafe { c::shim_record_drain(&raw mut words, &raw mut count, e) })?;
    if count == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: the words stay valid until the next drain, and only this thread drains.
    Ok(read(unsafe { std::slice::from_raw_parts(words, count) }))
}

/// A tensor as the trace writes it; the events that its numbers refer to are in the next drain.
pub(crate) fn tensor_ref(tensor: &Tensor) -> Result<Option<TensorRef>> {
    let (mut sig, mut alloc) = (-1, -1);
    // SAFETY: tensor and places are alive.
    call(|e| unsafe {
        c::shim_record_tensor_of(pointer(tensor), &raw mut sig, &raw mut alloc, e)
    })?;
    Ok(u32::try_from(sig).ok().map(|sig| TensorRef {
        sig,
        alloc: u32::try_from(alloc).ok(),
    }))
}
