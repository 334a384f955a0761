//! The simulated CUDA device, where this process runs on it.

use inspect_checkpoint::trace::{ReadBack, ReadValue};

use super::{CStr, Result, c, c_char, c_int, c_text, c_void, call};

/// A library function that was called without being fully modelled.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// Soname of its library.
    pub(crate) library: String,
    /// Its name.
    pub(crate) name: String,
    /// Kind of gap, as `src/torch/cuda_sim/README.md` numbers them.
    pub(crate) gap: i32,
}

/// Whether the stand-ins are loaded.
pub(crate) fn loaded() -> bool {
    // SAFETY: no arguments.
    unsafe { c::shim_sim_loaded() != 0 }
}

/// What was called and is not modelled, in no particular order.
pub(crate) fn functions() -> Result<Vec<Function>> {
    extern "C" fn visit(
        context: *mut c_void,
        library: *const c_char,
        name: *const c_char,
        gap: c_int,
        _calls: u64,
    ) {
        // SAFETY: the context is the Vec below, alive through the call; both texts are static in the stand-ins.
        let (all, library, name) = unsafe {
            (
                &mut *context.cast::<Vec<Function>>(),
                CStr::from_ptr(library),
                CStr::from_ptr(name),
            )
        };
        all.push(Function {
            library: library.to_string_lossy().into_owned(),
            name: name.to_string_lossy().into_owned(),
            gap,
        });
    }
    let mut all: Vec<Function> = Vec::new();
    // SAFETY: as said in `visit`.
    call(|e| unsafe { c::shim_sim_functions(visit, (&raw mut all).cast(), e) })?;
    Ok(all)
}

/// Adds the answer to a read that the device cannot know.
pub(crate) fn add_read_back(read: &ReadBack) -> Result<()> {
    let key = c_text(&read.key())?;
    let (kind, bits) = match read.value {
        ReadValue::Count(count) => (0, count.cast_signed()),
        ReadValue::Int(value) => (1, value),
        ReadValue::Bool(value) => (2, i64::from(value)),
        ReadValue::Float(bits) => (3, bits.cast_signed()),
    };
    // SAFETY: the text lives through the call, which copies it.
    call(|e| unsafe { c::shim_read_back_add(key.as_ptr(), kind, bits, e) })
}

/// Whether operators that read are answered and counted from now on.
pub(crate) fn watch_reads(on: bool) -> Result<()> {
    // SAFETY: plain values.
    call(|e| unsafe { c::shim_read_back_watch(c_int::from(on), e) })
}

/// What was read while they were watched: operator, answered reads, unknown reads.
pub(crate) fn reads() -> Result<Vec<(String, u64, u64)>> {
    extern "C" fn visit(context: *mut c_void, op: *const c_char, answered: u64, unknown: u64) {
        // SAFETY: the context is the Vec below, alive through the call; the text lives through this one.
        let (all, op) = unsafe {
            (
                &mut *context.cast::<Vec<(String, u64, u64)>>(),
                CStr::from_ptr(op),
            )
        };
        all.push((op.to_string_lossy().into_owned(), answered, unknown));
    }
    let mut all: Vec<(String, u64, u64)> = Vec::new();
    // SAFETY: as said in `visit`.
    call(|e| unsafe { c::shim_read_back_visit(visit, (&raw mut all).cast(), e) })?;
    Ok(all)
}
