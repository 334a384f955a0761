//! Runs at one batch after the other, all on the same device.

use std::sync::atomic::AtomicBool;

use super::simulated::Simulated;
use super::{Context, Failure, estimates, run, simulated};
use crate::cli::{BasisArg, EngineLimits, GpuPlan};
use crate::engine::protocol::{Device, Lifetimes, Mode, Progress, RunRequest};
use crate::engine::stand_ins;
use crate::estimate::cpu_trace::as_cuda;
use crate::estimate::{Basis, context_text};
use crate::simulate::DeviceLimits;
use crate::trace::Trace;
use crate::trace::memory::MemoryTimeline;
use crate::ui::Stages as _;

/// One run with limited memory.
pub(super) struct Probe {
    /// What it did; up to the failure where memory ran out.
    pub(super) trace: Trace,
    /// Whether it came to its end.
    pub(super) fits: bool,
    /// Highest reserved bytes.
    pub(super) peak_reserved_bytes: Option<u64>,
}

/// Runs a model with the memory of a GPU.
pub(super) struct Prober<'a> {
    gpu: &'a GpuPlan,
    limits: EngineLimits,
    basis: Basis,
}

impl<'a> Prober<'a> {
    pub(super) fn new(gpu: &'a GpuPlan, limits: EngineLimits) -> Self {
        let basis = match (gpu.basis, stand_ins::unavailable()) {
            (Some(BasisArg::CudaSim), _) | (None, None) => Basis::CudaSim,
            (Some(BasisArg::CpuTrace), _) | (None, Some(_)) => Basis::CpuTrace,
        };
        Prober { gpu, limits, basis }
    }

    /// The memory to fit into.
    pub(super) fn capacity_bytes(&self) -> u64 {
        let capacity = self.gpu.capacity_bytes();
        capacity.unwrap_or(self.gpu.profile.total_bytes)
    }

    /// What of it the allocator can have.
    pub(super) fn device_limits(&self) -> DeviceLimits {
        let context = self.gpu.profile.context_bytes.unwrap_or(0);
        DeviceLimits {
            total_bytes: self.capacity_bytes().saturating_sub(context),
        }
    }

    /// What the runs are.
    pub(super) fn basis(&self) -> Basis {
        self.basis
    }

    /// Where the runs are.
    pub(super) fn device(&self) -> Device {
        match self.basis {
            Basis::CudaSim => Device::CudaSim,
            _ => Device::Cpu,
        }
    }

    /// Whether a run shows what really happens, and not only what the memory model makes of it.
    pub(super) fn verifies(&self) -> bool {
        self.basis == Basis::CudaSim
    }

    /// What a run takes for granted.
    pub(super) fn assumptions(&self, mode: &Mode, lifetimes: Lifetimes) -> Vec<String> {
        let mut all = vec![
            estimates::assumption(mode),
            lifetimes_text(lifetimes).to_owned(),
        ];
        if self.basis == Basis::CpuTrace {
            all.push(estimates::FROM_CPU.to_owned());
        }
        all.extend(context_text(Some(&self.gpu.profile)));
        all
    }

    /// One run.
    pub(super) fn probe(
        &self,
        request: &RunRequest,
        batch: u64,
        context: &Context,
        interrupted: &AtomicBool,
    ) -> Result<Probe, Failure> {
        let mut progress = context.ui.progress();
        progress.stage(&format!("running batch {batch}"), 0, None);
        if self.basis == Basis::CudaSim {
            let mut silent = |_: &Progress| {};
            let capacity = self.capacity_bytes();
            let Simulated {
                trace,
                out_of_memory,
                ..
            } = simulated::run_with(
                request,
                self.gpu,
                self.limits,
                capacity,
                &mut silent,
                interrupted,
            )?;
            return Ok(probe(trace, out_of_memory.is_none()));
        }
        let mut request = request.clone();
        request.device = Device::Cpu;
        request.mode = estimates::mode_on_cuda(&request.mode);
        let ran = run::run_with(request, None, self.limits, context, interrupted)?;
        let card = estimates::card(self.gpu, self.device_limits())?;
        let converted = as_cuda(&ran.trace, &card);
        Ok(probe(converted.trace, converted.out_of_memory.is_none()))
    }
}

fn probe(trace: Trace, fits: bool) -> Probe {
    Probe {
        peak_reserved_bytes: MemoryTimeline::of(&trace).peak_reserved,
        fits,
        trace,
    }
}

/// How long values live in the runs.
fn lifetimes_text(lifetimes: Lifetimes) -> &'static str {
    match lifetimes {
        Lifetimes::TorchScript => {
            "values live until their last use, as TorchScript runs them; an eager Python module keeps them longer and \
             may fit a smaller batch only: `--lifetimes python`"
        }
        Lifetimes::Python => estimates::AS_PYTHON,
    }
}
