//! Ctrl-C: at once while nothing has to be cleaned up, by a flag while an engine runs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::exit::Exit;

/// What the user's Ctrl-C does.
#[derive(Debug)]
pub(super) struct Interrupt {
    pressed: Arc<AtomicBool>,
    at_once: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on an interrupt ends the program with [`Exit::INTERRUPTED`].
    pub(super) fn install() -> io::Result<Self> {
        let interrupt = Interrupt {
            pressed: Arc::new(AtomicBool::new(false)),
            at_once: Arc::new(AtomicBool::new(true)),
        };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let code = i32::from(Exit::INTERRUPTED.0);
            flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupt.at_once))?;
            flag::register(signal, Arc::clone(&interrupt.pressed))?;
        }
        Ok(interrupt)
    }

    /// Runs `work`, which must look at the flag and end soon after it is set.
    pub(super) fn by_flag<T>(&self, work: impl FnOnce(&AtomicBool) -> T) -> T {
        self.at_once.store(false, Ordering::SeqCst);
        let result = work(&self.pressed);
        self.at_once.store(true, Ordering::SeqCst);
        result
    }
}
