//! The safe face of the C++ shim: every `unsafe` of the engine is here.
//!
//! One Rust type per opaque C++ type, each owning it; every call that can fail returns the shim's text as
//! [`TorchError`]. Tensors cross as `tch` tensors.
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
pub(crate) mod barred;
mod c;
pub(crate) mod convolution;
pub(crate) mod cuda;
mod module;
pub(crate) mod recording;
pub(crate) mod simulated;
mod values;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use tch::Tensor;

pub(crate) use module::{Module, NamedTensor, Schema};
pub(crate) use values::{Value, Values, call_op};

/// Copies this process: its number in the original, nothing in the copy. Refused where there is more than one thread: the
/// others would be gone in the copy, and what they hold would be held for ever.
#[cfg(target_os = "linux")]
pub(crate) fn fork() -> std::io::Result<Option<i32>> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(std::io::Error::other(format!(
            "{threads} threads are running"
        )));
    }
    // SAFETY: this is the only thread.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => Ok(None),
        copy => Ok(Some(copy)),
    }
}

/// Copies this process; only where there is a simulated device.
#[cfg(not(target_os = "linux"))]
pub(crate) fn fork() -> std::io::Result<Option<i32>> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// What libtorch says went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct TorchError {
    /// Whether it was an allocation that failed.
    pub(crate) out_of_memory: bool,
    /// libtorch's text, without its C++ frames.
    pub(crate) message: String,
}

type Result<T> = std::result::Result<T, TorchError>;

/// Runs one call of the shim and turns its code and text into a result.
fn call(body: impl FnOnce(c::Error) -> c_int) -> Result<()> {
    let mut text: *mut c_char = ptr::null_mut();
    match body(&raw mut text) {
        0 => Ok(()),
        kind => Err(TorchError {
            out_of_memory: kind == 2,
            message: take_text(text).unwrap_or_else(|| "no reason given".into()),
        }),
    }
}

/// Takes over a text that the shim allocated.
fn take_text(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the shim returns NUL-terminated text from malloc, which nobody else holds.
    let owned = unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: as above; it is not used afterwards.
    unsafe { c::shim_free_text(text) };
    Some(owned)
}

/// A Rust text for C; an inner NUL cannot be in any name that libtorch knows.
fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| TorchError {
        out_of_memory: false,
        message: format!("`{}` has a NUL in it", text.escape_debug()),
    })
}

fn pointer(tensor: &Tensor) -> *const c_void {
    tensor.as_ptr().cast()
}

/// Ends the process at once. Left to itself it would run the destructors of libtorch's thousands of static objects, which
/// take longer than a small model does.
pub(crate) fn leave(status: u8) -> ! {
    unsafe extern "C" {
        fn _exit(status: c_int) -> !;
    }
    // SAFETY: POSIX's function; what this process had to say is written and flushed.
    unsafe { _exit(c_int::from(status)) }
}

/// The version that the shim was compiled against.
pub(crate) fn libtorch_version() -> String {
    // SAFETY: a static string.
    unsafe { CStr::from_ptr(c::shim_libtorch_version()) }
        .to_string_lossy()
        .into_owned()
}

/// One executor for all devices: no fusion, no profiling.
pub(crate) fn plain_executor() -> Result<()> {
    // SAFETY: `call` gives a valid place for the error.
    call(|e| unsafe { c::shim_plain_executor(e) })
}

/// Opens libtorch's CUDA half; the number of devices, or none where this libtorch has no such half.
pub(crate) fn open_cuda() -> Result<Option<u32>> {
    let (mut found, mut devices) = (0, 0);
    // SAFETY: both places live through the call.
    call(|e| unsafe { c::shim_open_cuda(&raw mut found, &raw mut devices, e) })?;
    Ok((found != 0).then(|| u32::try_from(devices).unwrap_or(0)))
}

/// Switches autocast on or off for a device type.
pub(crate) fn set_autocast(device: &str, scalar_type: i8, on: bool) -> Result<()> {
    let device = c_text(device)?;
    // SAFETY: the text lives through the call.
    call(|e| unsafe {
        c::shim_set_autocast(
            device.as_ptr(),
            c_int::from(scalar_type),
            c_int::from(on),
            e,
        )
    })
}

/// libtorch's number for a tensor's dtype, and numel x element size. `tch` has no word for some dtypes.
pub(crate) fn tensor_info(tensor: &Tensor) -> Result<(i32, u64)> {
    let (mut scalar_type, mut bytes) = (0, 0);
    // SAFETY: tensor and places are alive.
    call(|e| unsafe {
        c::shim_tensor_info(pointer(tensor), &raw mut scalar_type, &raw mut bytes, e)
    })?;
    Ok((scalar_type, u64::try_from(bytes).unwrap_or(0)))
}

/// What two handles of one tensor have in common, and two views of one storage have not.
pub(crate) fn identity(tensor: &Tensor) -> Result<usize> {
    let mut identity = 0;
    // SAFETY: tensor and place are alive.
    call(|e| unsafe { c::shim_tensor_identity(pointer(tensor), &raw mut identity, e) })?;
    Ok(identity)
}

/// What `parameter.grad = None` does.
pub(crate) fn clear_grad(tensor: &Tensor) -> Result<()> {
    // SAFETY: the tensor is alive.
    call(|e| unsafe { c::shim_tensor_clear_grad(pointer(tensor), e) })
}

/// For each tensor the place of its group, in the order in which torch.optim goes through devices and dtypes.
pub(crate) fn group_places(tensors: &[Tensor]) -> Result<Vec<usize>> {
    let pointers: Vec<*const c_void> = tensors.iter().map(pointer).collect();
    let mut places = vec![0; pointers.len()];
    // SAFETY: both arrays have as many elements as said, and live through the call.
    call(|e| unsafe {
        c::shim_group_tensors(pointers.as_ptr(), pointers.len(), places.as_mut_ptr(), e)
    })?;
    Ok(places)
}
