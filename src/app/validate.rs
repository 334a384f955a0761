//! `inspect validate FILE`: the estimate beside a measurement.
//!
//! | measured | estimate |
//! |---|---|
//! | a real GPU (`--device cuda`) | the simulated device, else the CPU's run |
//! | somebody's snapshot or saved trace | the same |
//! | the simulated device (`--device cuda-sim`) | the CPU's run, unless `--basis` says otherwise |
//! | the CPU (`--device cpu`) | its tensors by their shapes alone |

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::{Context, Exit, Failure, estimates, replay, run, save, simulated, table_for};
use crate::cli::{BasisArg, GpuPlan, ReplayFormat, Validate};
use crate::engine::protocol::{Device, Progress, RunRequest};
use crate::engine::stand_ins;
use crate::estimate::cpu_trace::as_cuda;
use crate::report::validate::{MeasuredBy, ValidationReport};
use crate::simulate::DeviceLimits;
use crate::simulate::replay::{ReplayOptions, replay as follow};
use crate::trace::{ReadBack, Trace, read_backs};
use crate::ui::Stages as _;
use crate::validate::{Side, Verdict, compare};

/// Compares and reports.
pub(super) fn validate(options: &Validate, context: &Context) -> Result<Exit, Failure> {
    let request = run::read_to_run(&options.file, &options.run, options.trust)?;
    let sides = context.interrupt.by_flag(|interrupted| {
        let sides = Sides {
            options,
            request,
            context,
            interrupted,
        };
        sides.both()
    })?;
    let found = compare(&sides.estimated, &sides.measured, &options.tolerance);
    let right = found.verdict == Verdict::Pass;
    let report = ValidationReport::new(
        options.file.display().to_string(),
        sides.basis,
        sides.by,
        options.tolerance.text.clone(),
        found,
    );
    let shown = table_for(&options.target, context.ui);
    options.target.write(|out| match options.format {
        ReplayFormat::Table => report.table(&shown, options.units, out),
        ReplayFormat::Json => report.json(out),
    })?;
    Ok(if right { Exit::OK } else { Exit::NO })
}

/// What is compared.
struct Compared {
    estimated: Side,
    measured: Side,
    basis: &'static str,
    by: MeasuredBy,
}

/// The estimate and the measurement, on their way.
struct Sides<'a> {
    options: &'a Validate,
    request: RunRequest,
    context: &'a Context,
    interrupted: &'a AtomicBool,
}

impl Sides<'_> {
    fn both(&self) -> Result<Compared, Failure> {
        if let Some(path) = &self.options.snapshot {
            // What cannot be compared is said before anything is run.
            let (measured, by) = recorded(path)?;
            let (estimated, basis) = self.estimate(Vec::new())?;
            return Ok(Compared {
                estimated,
                measured,
                basis,
                by,
            });
        }
        let device = self.request.device;
        let trace = self.measure()?;
        save::write(&self.options.save, &trace)?;
        let conf = estimates::conf(&self.options.gpu)?;
        let measured = Side::of_trace(&trace, &conf);
        let (estimated, basis) = match device {
            Device::Cpu => (Side::of_shapes(&trace), "shapes"),
            Device::Cuda(_) => self.estimate(read_backs(&trace))?,
            Device::CudaSim => self.estimate(Vec::new())?,
        };
        let gpu = estimates::for_run(&self.options.gpu, &trace);
        let estimated = estimated.with_context(gpu.profile.context_bytes);
        let by = MeasuredBy {
            device: trace.header.device.clone(),
            source: match device {
                Device::Cpu => "libtorch CPU allocator",
                Device::Cuda(_) => "CUDACachingAllocator",
                Device::CudaSim => "CUDACachingAllocator on the simulated device",
            },
            path: None,
        };
        Ok(Compared {
            estimated,
            measured,
            basis,
            by,
        })
    }

    /// The run that measures.
    fn measure(&self) -> Result<Trace, Failure> {
        if self.request.device != Device::CudaSim {
            return self.run(self.request.clone());
        }
        // As a real GPU is measured: warm, and asked for what a calibration says of it.
        let mut request = self.request.clone();
        request.measures = true;
        let mut gpu = self.options.gpu.clone();
        gpu.profile.measured = None;
        self.simulate(&request, &gpu, simulated::planted_workspace())
    }

    /// The estimate's run, and what it is made from.
    fn estimate(&self, answers: Vec<ReadBack>) -> Result<(Side, &'static str), Failure> {
        let gpu = &self.options.gpu;
        let measured_by_sim =
            self.options.snapshot.is_none() && self.request.device == Device::CudaSim;
        // The simulated device beside itself would say nothing.
        let instead = measured_by_sim || stand_ins::unavailable().is_some();
        let basis = match gpu.basis {
            Some(basis) => basis,
            None if instead => BasisArg::CpuTrace,
            None => BasisArg::CudaSim,
        };
        let conf = estimates::conf(gpu)?;
        let mut request = self.request.clone();
        let trace = if basis == BasisArg::CudaSim {
            request.read_backs = answers;
            self.simulate(&request, gpu, None)?
        } else {
            request.device = Device::Cpu;
            request.mode = estimates::mode_on_cuda(&request.mode);
            let trace = self.run(request)?;
            as_cuda(&trace, &estimates::card(gpu, DeviceLimits::UNLIMITED)?).trace
        };
        let side = Side::of_trace(&trace, &conf);
        let side = if basis == BasisArg::CpuTrace {
            side.without_ops()
        } else {
            side
        };
        Ok((side, basis.name()))
    }

    /// A run on the CPU or a real GPU.
    fn run(&self, request: RunRequest) -> Result<Trace, Failure> {
        let options = self.options;
        let conf = options.gpu.alloc_conf.clone();
        let ran = run::run_with(
            request,
            conf,
            options.limits,
            self.context,
            self.interrupted,
        )?;
        Ok(ran.trace)
    }

    /// A run on the simulated device, with as much memory as it needs.
    fn simulate(
        &self,
        request: &RunRequest,
        gpu: &GpuPlan,
        planted: Option<(String, std::ffi::OsString)>,
    ) -> Result<Trace, Failure> {
        let options = self.options;
        let mut progress = self.context.ui.progress();
        let mut show = |now: &Progress| progress.stage(&now.stage, now.done, now.total);
        let device = simulated::SimulatedRun {
            gpu,
            limits: options.limits,
            capacity: simulated::UNLIMITED_BYTES,
            env: planted.into_iter().collect(),
        };
        let ran = simulated::run_on(request, &device, &mut show, self.interrupted)?;
        match ran.out_of_memory {
            None => Ok(ran.trace),
            Some(words) => Err(simulated::not_fitting(&options.file, Some(words))),
        }
    }
}

/// A recording as the measuring side.
fn recorded(path: &Path) -> Result<(Side, MeasuredBy), Failure> {
    let (recording, _, format) = replay::read(path)?;
    let replayed = follow(&recording, &ReplayOptions::default())
        .map_err(|error| Failure::new(Exit::INPUT, error))?;
    let side = Side::of_recording(&recording, &replayed.devices).map_err(|error| {
        let hint = error.hint();
        let error =
            anyhow::Error::new(error).context(format!("cannot compare with `{}`", path.display()));
        Failure::new(Exit::INPUT, error).hint(hint)
    })?;
    let by = MeasuredBy {
        device: "cuda".to_owned(),
        source: format,
        path: Some(path.display().to_string()),
    };
    Ok((side, by))
}
