//! The run on the simulated CUDA device, and the estimate made from it.
//!
//! Beside a run on the CPU it goes on at the same time, in a second engine: it computes nothing, so it is done first.

mod device;

use std::path::Path;
use std::sync::atomic::AtomicBool;

pub(super) use device::{
    Pair, Simulated, SimulatedRun, UNLIMITED_BYTES, planted_workspace, run_on, run_with,
};

use super::run::{self, Ran};
use super::{Context, Exit, Failure, estimates, save};
use crate::checkpoint::{Checkpoint, Finding, Format, Severity};
use crate::cli::{BasisArg, GpuPlan, Inspect, RunPlan};
use crate::engine::protocol::{Device, Progress, RunRequest};
use crate::engine::stand_ins;
use crate::estimate::Estimate;
use crate::trace::read_backs;
use crate::ui::Stages as _;
use device::{panicked, run_pair};

/// What came of the run or runs that were asked for.
pub(super) struct Outcome {
    /// The run to report.
    pub(super) ran: Option<Ran>,
    /// The estimate.
    pub(super) estimate: Option<Estimate>,
    /// Why there is no estimate where one was wanted, or not the best there is.
    pub(super) no_estimate: Option<Finding>,
    /// What decides the exit code: a run that failed, a model that does not fit.
    pub(super) failure: Option<Failure>,
}

/// Runs a model where it was asked to, and on the simulated device beside it.
pub(super) fn run_both(
    path: &Path,
    checkpoint: &Checkpoint,
    plan: &RunPlan,
    inspect: &Inspect,
    context: &Context,
) -> Result<Outcome, Failure> {
    let wants_cpu = inspect.gpu.as_ref().and_then(|gpu| gpu.basis) == Some(BasisArg::CpuTrace);
    if wants_cpu && plan.device != Device::Cpu {
        return Err(Failure::input(format!(
            "`--basis cpu-trace` is made from a run on the CPU, not on `{}`",
            plan.device
        )));
    }
    let request = run::request(path, checkpoint, plan, inspect.trust)?;
    context.interrupt.by_flag(|interrupted| {
        if plan.device == Device::CudaSim {
            return alone(checkpoint, &request, inspect, context, interrupted);
        }
        let Some(gpu) = &inspect.gpu else {
            let ran = run::run(request, inspect, context, interrupted)?;
            let failure = save::write(&inspect.save, &ran.trace).err();
            return Ok(Outcome {
                ran: Some(ran),
                estimate: None,
                no_estimate: None,
                failure,
            });
        };
        let missing = stand_ins::unavailable().filter(|_| gpu.basis.is_none());
        if request.device == Device::Cpu && (wants_cpu || missing.is_some()) {
            let why = missing.map(instead);
            let mut request = request;
            request.mode = estimates::mode_on_cuda(&request.mode);
            let ran = run::run(request.clone(), inspect, context, interrupted)?;
            return from_cpu(checkpoint, &request, gpu, inspect, ran, why);
        }
        both(checkpoint, &request, gpu, inspect, context, interrupted)
    })
}

/// The run that was asked for, and the one on the simulated device at the same time.
fn both(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    gpu: &GpuPlan,
    inspect: &Inspect,
    context: &Context,
    interrupted: &AtomicBool,
) -> Result<Outcome, Failure> {
    let (ran, simulated) = std::thread::scope(|scope| {
        let beside = scope.spawn(move || {
            run_pair(
                checkpoint,
                request,
                gpu,
                inspect.limits,
                &mut |_| {},
                interrupted,
            )
        });
        let ran = run::run(request.clone(), inspect, context, interrupted);
        (ran, beside.join())
    });
    let ran = ran.map_err(|failure| explained(failure, checkpoint, request.device))?;
    let simulated = match simulated.unwrap_or_else(|_| Err(panicked())) {
        Ok(pair) if pair.simulated.reads_known() => Ok(pair),
        Err(failure) if read_backs(&ran.trace).is_empty() => Err(failure),
        // The CPU run knows what the model reads on the device: once more, with its answers.
        _ => run_pair(
            checkpoint,
            &RunRequest {
                read_backs: read_backs(&ran.trace),
                ..request.clone()
            },
            gpu,
            inspect.limits,
            &mut |_| {},
            interrupted,
        ),
    };
    match simulated {
        Ok(pair) => {
            let estimate = estimates::from_simulated(checkpoint, request, gpu, &pair)?;
            let simulated = pair.simulated;
            // A real GPU's own trace says more than the simulated one's.
            let real = matches!(request.device, Device::Cuda(_));
            let trace = if real { &ran.trace } else { &simulated.trace };
            let failure = save::write(&inspect.save, trace)
                .err()
                .or_else(|| does_not_fit(&request.file, &estimate, &simulated));
            Ok(Outcome {
                ran: Some(ran),
                estimate: Some(estimate),
                no_estimate: None,
                failure,
            })
        }
        Err(failure) if gpu.basis.is_none() && request.device == Device::Cpu => {
            let reason = failure.one_line();
            let why = match checkpoint.format() {
                Format::ExportedProgram => fails_on_cuda(&reason),
                _ => instead(&reason),
            };
            from_cpu(checkpoint, request, gpu, inspect, ran, Some(why))
        }
        Err(failure) => {
            let not_saved = save::write(&inspect.save, &ran.trace).err();
            Ok(Outcome {
                ran: Some(ran),
                estimate: None,
                no_estimate: Some(no_estimate(&failure)),
                failure: not_saved,
            })
        }
    }
}

/// Why there is no run on the simulated device.
fn instead(reason: &str) -> Finding {
    Finding {
        severity: Severity::Info,
        code: "estimate-from-cpu",
        location: String::new(),
        message: format!("the GPU memory estimate is made from the CPU's run: {reason}"),
    }
}

/// Why an exported program that ran on the CPU has no run on the simulated device.
fn fails_on_cuda(reason: &str) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "fails-on-cuda",
        location: String::new(),
        message: format!(
            "as it was exported, the program runs on the CPU and not on a CUDA device, {}: {}. The estimate is made \
             from the CPU's run",
            OnCuda::of(reason).why,
            reason.trim_end_matches('.')
        ),
    }
}

/// What is another matter on a CUDA device than where a program was exported.
struct OnCuda {
    why: &'static str,
    hint: &'static str,
}

impl OnCuda {
    /// By libtorch's own words.
    fn of(reason: &str) -> OnCuda {
        if reason.contains("RNN backward can only be called in training mode") {
            OnCuda {
                why: "where the backward pass of cuDNN's recurrent networks needs training mode, and it was exported in \
                      eval mode",
                hint: "export it after `model.train()`, or run it on the CPU: the estimate is then made from that run",
            }
        } else {
            OnCuda {
                why: "where operators lay out their results in other ways",
                hint: "export it on a CUDA device, or run it on the CPU: the estimate is then made from that run",
            }
        }
    }
}

/// The failure of a run: where an exported program's own code fails on a CUDA device, real or simulated, with what the
/// device has to do with it.
pub(super) fn explained(failure: Failure, checkpoint: &Checkpoint, device: Device) -> Failure {
    let exported = checkpoint.format() == Format::ExportedProgram;
    if device == Device::Cpu || !exported || !failure.is_of_model() {
        return failure;
    }
    let on_cuda = OnCuda::of(&failure.one_line());
    let context = format!(
        "as it was exported, the program does not run on a CUDA device, {}",
        on_cuda.why
    );
    failure.context(context).hint(on_cuda.hint)
}

/// The estimate from a run on the CPU.
fn from_cpu(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    gpu: &GpuPlan,
    inspect: &Inspect,
    ran: Ran,
    why: Option<Finding>,
) -> Result<Outcome, Failure> {
    let (estimate, converted) = estimates::from_cpu(checkpoint, request, gpu, &ran.trace)?;
    let fits = estimate.fits != Some(false) && converted.out_of_memory.is_none();
    let failure = save::write(&inspect.save, &converted.trace)
        .err()
        .or_else(|| (!fits).then(|| not_fitting(&request.file, converted.out_of_memory)));
    Ok(Outcome {
        ran: Some(ran),
        estimate: Some(estimate),
        no_estimate: why,
        failure,
    })
}

/// The simulated device alone: its run is the one to report.
fn alone(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    inspect: &Inspect,
    context: &Context,
    interrupted: &AtomicBool,
) -> Result<Outcome, Failure> {
    let Some(gpu) = &inspect.gpu else {
        return Err(Failure::input(
            "`--device cuda-sim` and `--no-sim` exclude each other".to_owned(),
        ));
    };
    let mut progress = context.ui.progress();
    let mut show = |now: &Progress| progress.stage(&now.stage, now.done, now.total);
    let pair = run_pair(
        checkpoint,
        request,
        gpu,
        inspect.limits,
        &mut show,
        interrupted,
    )
    .map_err(|failure| explained(failure, checkpoint, Device::CudaSim))?;
    let estimate = estimates::from_simulated(checkpoint, request, gpu, &pair)?;
    let simulated = pair.simulated;
    let failure = save::write(&inspect.save, &simulated.trace)
        .err()
        .or_else(|| does_not_fit(&request.file, &estimate, &simulated));
    let ran = simulated.answer.map(|answer| Ran {
        answer,
        trace: simulated.trace,
    });
    Ok(Outcome {
        ran,
        estimate: Some(estimate),
        no_estimate: None,
        failure,
    })
}

fn does_not_fit(path: &Path, estimate: &Estimate, simulated: &Simulated) -> Option<Failure> {
    let fits = estimate.fits != Some(false) && simulated.out_of_memory.is_none();
    (!fits).then(|| not_fitting(path, simulated.out_of_memory.clone()))
}

/// The answer is no; `words` are the allocator's own where memory ran out.
pub(super) fn not_fitting(path: &Path, words: Option<String>) -> Failure {
    let mut error = anyhow::anyhow!("`{}` does not fit", path.display());
    if let Some(words) = words {
        error = anyhow::Error::msg(words).context(error.to_string());
    }
    Failure::new(Exit::NO, error)
}

fn no_estimate(failure: &Failure) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "no-estimate",
        location: String::new(),
        message: format!("no GPU memory estimate: {}", failure.one_line()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineError;
    use crate::engine::protocol::Failed;
    use crate::engine::protocol::FailureKind;
    use crate::format::{self, ReadOptions};

    fn failed(kind: FailureKind, message: &str) -> Failure {
        Failure::from(EngineError::Failed(Box::new(Failed {
            kind,
            message: message.to_owned(),
            detail: Vec::new(),
            signature: None,
        })))
    }

    #[test]
    fn what_a_device_has_to_do_with_a_failure_is_said() {
        let read = |path: &str| format::read(Path::new(path), &ReadOptions::default()).unwrap();
        let program = read("fixtures/exported/tiny_cnn.pt2");
        let eval = "cudnn RNN backward can only be called in training mode";
        let said = |words: &str| {
            let failure = failed(FailureKind::ModelError, words);
            explained(failure, &program, Device::CudaSim).one_line()
        };
        let layout = said("expected stride 4");
        assert!(layout.contains("does not run on a CUDA device, where operators lay out"));
        assert!(layout.ends_with(": expected stride 4"), "{layout}");
        let mode = said(eval);
        assert!(
            mode.contains("needs training mode") && mode.contains(eval),
            "{mode}"
        );
        assert!(!mode.contains("lay out"), "{mode}");
        assert!(fails_on_cuda(eval).message.contains("needs training mode"));
        // What is no fault of the device's is not explained with it.
        let input = explained(
            failed(FailureKind::InputMismatch, "no"),
            &program,
            Device::CudaSim,
        );
        assert_eq!(input.one_line(), "no");
        let script = read("fixtures/mlp.pt");
        let of_model = || failed(FailureKind::ModelError, "no");
        let own = explained(of_model(), &script, Device::CudaSim);
        assert_eq!(own.one_line(), "no");
        let on_cpu = explained(of_model(), &program, Device::Cpu);
        assert_eq!(on_cpu.one_line(), "no");
    }
}
