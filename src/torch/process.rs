//! The engine as a child: it keeps stdout to itself, and does not outlive the front.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::process::{Pid, WaitOptions, waitpid};

use crate::ffi;

/// The copy of this process, until it has ended: the front hears the end of both.
pub(crate) struct Copy(Pid);

impl Drop for Copy {
    fn drop(&mut self) {
        // How it ended is for the front to see, on the copy's own channel.
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// What this process is after it was copied.
pub(crate) enum Split {
    /// The original.
    Original(Copy),
    /// The copy, and where it answers: the socket that was stdin.
    Copy(File),
}

/// Makes a copy of this process, which must have one thread only. Stdin is the copy's alone afterwards.
pub(crate) fn split() -> io::Result<Split> {
    let answers = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let nothing = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    #[cfg(target_os = "linux")]
    let original = rustix::process::getpid();
    if let Some(copy) = ffi::fork()?.and_then(Pid::from_raw) {
        return Ok(Split::Original(Copy(copy)));
    }
    // The copy ends with the original; where that has ended already there is nobody to work for.
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};
        let asked = set_parent_process_death_signal(Some(Signal::KILL));
        if asked.is_err() || getppid() != Some(original) {
            ffi::leave(1);
        }
    }
    Ok(Split::Copy(answers))
}

/// Takes stdout away from everything else in the process and hands it out: what libtorch or its libraries print goes to
/// stderr, where it cannot be taken for the protocol. On Linux the engine also dies with its front, however that ends.
pub(crate) fn begin() -> io::Result<File> {
    die_with_front()?;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr().as_fd())?;
    Ok(File::from(own))
}

/// Asks the kernel to kill this process when the front's thread that waits for it is gone; where that happened before
/// it could be asked, there is nobody to work for.
fn die_with_front() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use inspect_checkpoint::engine::FRONT_VARIABLE;
        use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

        // Started by hand it has no front.
        let Some(front) = std::env::var(FRONT_VARIABLE)
            .ok()
            .and_then(|front| front.parse().ok())
            .and_then(Pid::from_raw)
        else {
            return Ok(());
        };
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(front) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe));
        }
    }
    Ok(())
}
