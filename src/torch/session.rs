//! A run in progress: its phases, and its events on their way to the front.

use std::fs::File;
use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inspect_checkpoint::engine::protocol::{Device, FailureKind};
use inspect_checkpoint::trace::{AllocatorStats, Category, Event, PhaseName, Stat, TensorRef};
use tch::Tensor;

use crate::failure::Failure;
use crate::ffi::{self, Values, cuda, recording};
use crate::inputs::Chosen;
use crate::output::Output;
use crate::record::{Decoder, Malformed};
use crate::signature::Method;
use crate::target::Target;

/// How often a phase that goes on is looked at, and how many words of it are recorded before they are written meanwhile:
/// writing takes a core from the model, so that what is little is written when the phase is over.
const LOOK: Duration = Duration::from_millis(20);
const MANY_WORDS: usize = 1 << 17;

/// Where the events of a run go.
struct Sink<'a, W: Write> {
    output: &'a mut Output<W>,
    decoder: Decoder,
}

impl<W: Write> Sink<'_, W> {
    /// Writes what was recorded since the last time.
    fn flush(&mut self) -> Result<(), Failure> {
        let (decoder, output) = (&mut self.decoder, &mut *self.output);
        recording::drain(|words| {
            decoder.decode(words, |event| output.event(&event).map_err(Failure::from))
        })?
    }
}

/// Also after a panic elsewhere: what was written is whole lines.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run in progress.
pub(crate) struct Session<'a> {
    sink: Arc<Mutex<Sink<'a, File>>>,
    /// Its device.
    pub(crate) target: Target,
    /// Whether it is only run: nothing is recorded, and the front hears nothing of it.
    silent: bool,
    /// Whether times are the device's own.
    pub(crate) timed: bool,
}

impl From<Malformed> for Failure {
    fn from(error: Malformed) -> Self {
        Failure::new(FailureKind::Internal, error.to_string())
    }
}

impl<'a> Session<'a> {
    /// A run whose events go to `output`.
    pub(crate) fn new(output: &'a mut Output<File>, target: Target) -> Self {
        Session {
            sink: Arc::new(Mutex::new(Sink {
                output,
                decoder: Decoder::default(),
            })),
            target,
            silent: false,
            timed: false,
        }
    }

    /// A run before the one that counts: the front hears nothing of it. Recording must not have begun.
    pub(crate) fn warm_up(output: &'a mut Output<File>, target: Target) -> Self {
        Session {
            silent: true,
            ..Session::new(output, target)
        }
    }

    fn sink(&self) -> MutexGuard<'_, Sink<'a, File>> {
        lock(&self.sink)
    }

    /// Writes what was recorded since the last time.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.sink().flush()
    }

    /// Writes an event behind all that was recorded.
    fn event(&mut self, event: &Event) -> Result<(), Failure> {
        if self.silent {
            return Ok(());
        }
        Ok(self.sink().output.event(event)?)
    }

    /// Runs `body` as a phase: its events between a `phase` and a `phase_end`, also when it fails.
    pub(crate) fn phase<T>(
        &mut self,
        name: PhaseName,
        step: Option<u32>,
        body: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.silent {
            self.sink().output.progress("warming up")?;
            return body(self);
        }
        let stage = step.map_or_else(
            || name.name().to_owned(),
            |step| format!("{}, step {step}", name.name()),
        );
        self.sink().output.progress(&stage)?;
        self.flush()?;
        let before = if self.target.on_cuda() {
            cuda::reset_peaks()?;
            Some((cuda::stats()?, cuda::memory_since(0)?.end))
        } else {
            None
        };
        if self.timed {
            cuda::moment()?;
        }
        self.event(&Event::Phase {
            t: recording::now(),
            name,
            step,
        })?;
        let watch = self.target.device == Device::CudaSim
            && matches!(name, PhaseName::Forward | PhaseName::Backward);
        if watch {
            ffi::simulated::watch_reads(true)?;
        }
        let result = self.streaming(body);
        if watch {
            ffi::simulated::watch_reads(false)?;
        }
        // Not where the device has failed: what failed there is said, not what fails because of it.
        let device_ns = match (self.timed, &result) {
            (true, Ok(_)) => Some(cuda::moment()?),
            _ => None,
        };
        let t = recording::now();
        self.flush()?;
        let (stats, device) = match before {
            Some((stats, used)) => (
                Some(difference(&stats, &cuda::stats()?)),
                Some(cuda::memory_since(used)?),
            ),
            None => (None, None),
        };
        self.event(&Event::PhaseEnd {
            t,
            stats,
            device,
            device_ns,
        })?;
        result
    }

    /// Runs `body` while a thread writes what is recorded meanwhile: the front reads a long run as it goes on.
    fn streaming<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.timed {
            return body(self); // writing would wait for the device
        }
        let sink = Arc::clone(&self.sink);
        std::thread::scope(|scope| {
            let (running, ended) = mpsc::channel::<()>();
            let writer = scope.spawn(move || {
                while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    if recording::words() > MANY_WORDS {
                        lock(&sink).flush()?;
                    }
                }
                Ok(())
            });
            let result = body(self);
            drop(running);
            let written = writer.join().unwrap_or_else(|_| {
                Err(Failure::new(
                    FailureKind::Internal,
                    "the thread that writes the recording panicked",
                ))
            });
            result.and_then(|result| written.map(|()| result))
        })
    }

    /// Whether values are computed where reading them costs nothing.
    pub(crate) fn computes_on_host(&self) -> bool {
        self.target.device == Device::Cpu
    }

    /// Says what the memory of a tensor is for; tensors elsewhere than on the recorded device have none of it.
    pub(crate) fn label(
        &mut self,
        tensor: &Tensor,
        category: Category,
        name: &str,
    ) -> Result<(), Failure> {
        if self.silent {
            return Ok(());
        }
        let found = recording::tensor_ref(tensor)?;
        self.flush()?;
        if let Some(TensorRef {
            sig,
            alloc: Some(id),
        }) = found
        {
            self.event(&Event::Label {
                id,
                sig: Some(sig),
                category,
                name: name.to_owned(),
            })?;
        }
        Ok(())
    }

    /// Says what the method is called with.
    pub(crate) fn arguments(&mut self, method: &Method, chosen: &Chosen) -> Result<(), Failure> {
        if self.silent {
            return Ok(());
        }
        for (index, (argument, given)) in method.arguments.iter().zip(&chosen.given).enumerate() {
            let mut tensors = Vec::new();
            for (place, tensor) in chosen.values.tensors_of(index)? {
                let name = match place.as_str() {
                    "" => argument.name.clone(),
                    place => format!("{}.{place}", argument.name),
                };
                self.label(&tensor, Category::Inputs, &name)?;
                if let Some(found) = recording::tensor_ref(&tensor)? {
                    tensors.push((place, found));
                }
            }
            self.flush()?;
            self.event(&Event::Argument {
                name: argument.name.clone(),
                ty: argument.ty.clone(),
                value: chosen.values.text(index)?,
                given: *given,
                tensors,
            })?;
        }
        Ok(())
    }

    /// Says what the method returned.
    pub(crate) fn outputs(&mut self, values: &Values) -> Result<(), Failure> {
        if self.silent {
            return Ok(());
        }
        for (path, tensor) in values.tensors()? {
            let found = recording::tensor_ref(&tensor)?;
            self.flush()?;
            if let Some(tensor) = found {
                self.event(&Event::Output { path, tensor })?;
            }
        }
        Ok(())
    }
}

fn difference(before: &cuda::Stats, after: &cuda::Stats) -> AllocatorStats {
    let stat = |before: cuda::Stat, after: cuda::Stat| Stat {
        current: after.current,
        peak: after.peak,
        start: before.current,
    };
    AllocatorStats {
        requested_bytes: stat(before.requested, after.requested),
        allocated_bytes: stat(before.allocated, after.allocated),
        active_bytes: stat(before.active, after.active),
        reserved_bytes: stat(before.reserved, after.reserved),
        num_alloc_retries: after.retries,
        num_ooms: after.ooms,
    }
}
