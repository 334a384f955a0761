//! Notices system calls that the sandbox bars with a signal.
//!
//! The handler lets the call fail with EPERM and keeps the path it was about: TorchScript's own `aten::save` does not
//! look whether its file could be opened. It touches nothing but static atomics and the interrupted call's registers.

use std::ffi::{c_int, c_void};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Longest path that is kept.
const LONGEST_PATH: usize = 255;

static BARRED: AtomicBool = AtomicBool::new(false);
static PATH: [AtomicU8; LONGEST_PATH] = [const { AtomicU8::new(0) }; LONGEST_PATH];

/// Installs the handler; to be called before the filters that raise the signal.
pub(crate) fn watch() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction: no handler, empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_barred as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the action lives through the call, and the handler has the signature that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The path of the first barred call.
pub(crate) fn path() -> Option<String> {
    BARRED.load(Ordering::SeqCst).then(|| {
        let bytes: Vec<u8> = PATH
            .iter()
            .map(|byte| byte.load(Ordering::SeqCst))
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

extern "C" fn on_barred(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    let context = context.cast::<libc::ucontext_t>();
    if context.is_null() {
        return;
    }
    // SAFETY: the kernel hands a handler of SA_SIGINFO a valid ucontext_t, alive until it returns.
    unsafe {
        if !BARRED.load(Ordering::SeqCst) {
            let from = argument(context, usize::from(!path_comes_first(number(context))));
            keep(from);
            BARRED.store(true, Ordering::SeqCst);
        }
        answer(context, libc::EPERM);
    }
}

/// Whether a call's first argument is the path; the others have a folder there and the path after it.
fn path_comes_first(call: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    let old = matches!(
        call,
        libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_unlink
            | libc::SYS_rename
            | libc::SYS_mkdir
            | libc::SYS_rmdir
            | libc::SYS_symlink
            | libc::SYS_link
            | libc::SYS_mknod
    );
    #[cfg(not(target_arch = "x86_64"))]
    let old = false;
    old || matches!(call, libc::SYS_truncate | libc::SYS_symlinkat)
}

/// The number of the interrupted call.
///
/// # Safety
///
/// `context` is the one the kernel handed to a handler.
#[cfg(target_arch = "x86_64")]
unsafe fn number(context: *mut libc::ucontext_t) -> i64 {
    // SAFETY: as the caller says; the register's number is within `gregs`.
    unsafe { (&(*context).uc_mcontext.gregs)[usize::try_from(libc::REG_RAX).unwrap_or(0)] }
}

/// The number of the interrupted call.
///
/// # Safety
///
/// `context` is the one the kernel handed to a handler.
#[cfg(target_arch = "aarch64")]
unsafe fn number(context: *mut libc::ucontext_t) -> i64 {
    // SAFETY: as the caller says; register 8 holds the number.
    unsafe { (&(*context).uc_mcontext.regs)[8].cast_signed() }
}

/// Keeps a NUL-terminated text.
///
/// # Safety
///
/// `from` is null or what a system call was given as a path.
unsafe fn keep(from: *const u8) {
    if from.is_null() {
        return;
    }
    for (at, place) in PATH.iter().enumerate() {
        // SAFETY: as the caller says; reading stops at the NUL.
        let byte = unsafe { *from.add(at) };
        place.store(byte, Ordering::SeqCst);
        if byte == 0 {
            break;
        }
    }
}

/// # Safety
///
/// `context` is the one the kernel handed to a handler.
#[cfg(target_arch = "x86_64")]
unsafe fn argument(context: *mut libc::ucontext_t, index: usize) -> *const u8 {
    let register = if index == 0 {
        libc::REG_RDI
    } else {
        libc::REG_RSI
    };
    // SAFETY: as the caller says; the registers' numbers are within `gregs`.
    let value = unsafe { (&(*context).uc_mcontext.gregs)[usize::try_from(register).unwrap_or(0)] };
    value as *const u8
}

/// # Safety
///
/// `context` is the one the kernel handed to a handler.
#[cfg(target_arch = "x86_64")]
unsafe fn answer(context: *mut libc::ucontext_t, errno: c_int) {
    // SAFETY: as the caller says; the register's number is within `gregs`.
    unsafe {
        (&mut (*context).uc_mcontext.gregs)[usize::try_from(libc::REG_RAX).unwrap_or(0)] =
            -i64::from(errno);
    }
}

/// # Safety
///
/// `context` is the one the kernel handed to a handler.
#[cfg(target_arch = "aarch64")]
unsafe fn argument(context: *mut libc::ucontext_t, index: usize) -> *const u8 {
    // SAFETY: as the caller says; there are 31 registers.
    unsafe { (&(*context).uc_mcontext.regs)[index] as *const u8 }
}

/// # Safety
///
/// `context` is the one the kernel handed to a handler.
#[cfg(target_arch = "aarch64")]
unsafe fn answer(context: *mut libc::ucontext_t, errno: c_int) {
    // SAFETY: as the caller says.
    unsafe { (&mut (*context).uc_mcontext.regs)[0] = (-i64::from(errno)).cast_unsigned() }
}
