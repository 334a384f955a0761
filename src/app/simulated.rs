//! The run on the simulated CUDA device, and the estimate made from it.
//!
//! Beside a run on the CPU it goes on at the same time, in a second engine: it computes nothing, so it is done first.

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::run::{self, Ran};
use super::{Context, Exit, Failure, estimates, limited_options, save};
use crate::checkpoint::{Checkpoint, Finding, Format, Severity};
use crate::cli::{BasisArg, EngineLimits, GpuPlan, Inspect, RunPlan};
use crate::engine::protocol::{
    Device, FailureKind, Lifetimes, PROTOCOL, Progress, Request, RunRequest, Task,
};
use crate::engine::stand_ins::{self, AddressOrder, SimulatedDevice, StandIns};
use crate::engine::{Answer, EngineError, EngineOptions, Observer, ask, ask_both};
use crate::estimate::{Estimate, Profile, SegmentOrder};
use crate::trace::memory::MemoryTimeline;
use crate::trace::{Trace, TraceReader, read_backs};
use crate::ui::Stages as _;

/// Capacity of a run that is to show what is needed, whatever the card: far above any real one, below what the
/// simulated device's addresses can span.
pub(super) const UNLIMITED_BYTES: u64 = 4 << 40;

/// What a test wants a simulated device that stands for a real one to do otherwise: bytes of workspace that every
/// convolution asks cuDNN for.
const PLANTED_WORKSPACE: &str = "INSPECT_TEST_CONV_WORKSPACE_BYTES";

/// What the stand-ins are told of it.
pub(super) fn planted_workspace() -> Option<(String, OsString)> {
    std::env::var_os(PLANTED_WORKSPACE)
        .map(|bytes| ("INSPECT_CUDA_SIM_CONV_WORKSPACE_BYTES".to_owned(), bytes))
}

/// A run on the simulated device.
pub(super) struct Simulated {
    /// What the engine said; none where memory ran out.
    pub(super) answer: Option<Answer>,
    /// What it saw.
    pub(super) trace: Trace,
    /// libtorch's own words where memory ran out.
    pub(super) out_of_memory: Option<String>,
}

impl Simulated {
    /// Whether no operator read a value that nobody knew.
    fn reads_known(&self) -> bool {
        let answer = self.answer.iter();
        let mut reads = answer.flat_map(|answer| &answer.done.reads);
        reads.all(|reads| reads.unknown == 0)
    }
}

/// Collects the trace; progress belongs to the run that the user watches.
struct Collector<'a> {
    reader: TraceReader,
    progress: &'a mut dyn FnMut(&Progress),
}

impl<'a> Collector<'a> {
    fn new(progress: &'a mut dyn FnMut(&Progress)) -> Self {
        Collector {
            reader: TraceReader::new(),
            progress,
        }
    }
}

impl Observer for Collector<'_> {
    fn progress(&mut self, progress: &Progress) {
        (self.progress)(progress);
    }

    fn trace_line(&mut self, line: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.reader.line(line).map_err(Into::into)
    }
}

/// Runs `request` on the simulated device. A model that fits the card's capacity is run once; one that does not is run
/// again with that capacity, since PyTorch empties its cache and tries again before it gives up.
pub(super) fn run(
    request: &RunRequest,
    gpu: &GpuPlan,
    limits: EngineLimits,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let first = run_with(request, gpu, limits, UNLIMITED_BYTES, progress, interrupted)?;
    at_capacity(first, request, gpu, limits, progress, interrupted)
}

/// The run that was made without a limit, or another one within the card's capacity where it does not fit there.
fn at_capacity(
    first: Simulated,
    request: &RunRequest,
    gpu: &GpuPlan,
    limits: EngineLimits,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let Some(capacity) = gpu.capacity_bytes() else {
        return Ok(first);
    };
    let gpu = &estimates::for_run(gpu, &first.trace);
    let context = gpu.profile.context_bytes.unwrap_or(0);
    let reserved = MemoryTimeline::of(&first.trace).peak_reserved.unwrap_or(0);
    if reserved.saturating_add(context) <= capacity {
        return Ok(first);
    }
    run_with(request, gpu, limits, capacity, progress, interrupted)
}

/// A run on the simulated device, and what is known of the same run with an eager Python module's lifetimes.
pub(super) struct Pair {
    /// The run that was asked for.
    pub(super) simulated: Simulated,
    /// The other one; none where it is the one that was asked for.
    pub(super) eager: Option<Result<Simulated, Failure>>,
}

/// Runs `request` as [`run`] does, and beside it as an eager Python module would keep its values: with nothing but the
/// lifetimes different, so that its peak can be said too.
fn run_pair(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    gpu: &GpuPlan,
    limits: EngineLimits,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Pair, Failure> {
    // An exported program lets go of every value after its last use, in Python too.
    let differs = request.lifetimes == Lifetimes::TorchScript
        && checkpoint.format() != Format::ExportedProgram;
    if !differs {
        let simulated = run(request, gpu, limits, progress, interrupted)?;
        return Ok(Pair {
            simulated,
            eager: None,
        });
    }
    let device = SimulatedRun::unlimited(gpu, limits);
    let (first, eager) = run_both_lifetimes(request, &device, progress, interrupted)?;
    let simulated = at_capacity(first, request, gpu, limits, progress, interrupted)?;
    Ok(Pair {
        simulated,
        eager: Some(eager),
    })
}

fn panicked() -> Failure {
    Failure::new(
        Exit::ENGINE,
        anyhow::anyhow!("the thread of the simulated run panicked"),
    )
}

/// Runs `request` on a simulated device of so much memory, once.
pub(super) fn run_with(
    request: &RunRequest,
    gpu: &GpuPlan,
    limits: EngineLimits,
    capacity: u64,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let device = SimulatedRun {
        gpu,
        limits,
        capacity,
        env: Vec::new(),
    };
    run_on(request, &device, progress, interrupted)
}

/// A simulated device and the engine on it.
pub(super) struct SimulatedRun<'a> {
    /// The card.
    pub(super) gpu: &'a GpuPlan,
    /// Limits of the engine.
    pub(super) limits: EngineLimits,
    /// Memory of the device, bytes.
    pub(super) capacity: u64,
    /// What else the stand-ins are told, in their environment.
    pub(super) env: Vec<(String, OsString)>,
}

impl<'a> SimulatedRun<'a> {
    /// A device with memory for everything.
    fn unlimited(gpu: &'a GpuPlan, limits: EngineLimits) -> Self {
        SimulatedRun {
            gpu,
            limits,
            capacity: UNLIMITED_BYTES,
            env: Vec::new(),
        }
    }

    /// How its engine is started for `request`. The libraries must be kept until it runs.
    fn options(&self, request: &RunRequest) -> Result<(EngineOptions, StandIns), Failure> {
        let stand_ins = StandIns::open().map_err(|error| engine_failure(error.into()))?;
        let mut options = limited_options(self.limits, weights_bytes(request));
        options.preload = stand_ins.preload();
        options.env = card_env(&self.gpu.profile, self.capacity);
        options.env.extend(self.env.iter().cloned());
        if let Some(conf) = &self.gpu.alloc_conf {
            options
                .env
                .push(("PYTORCH_CUDA_ALLOC_CONF".to_owned(), conf.into()));
        }
        Ok((options, stand_ins))
    }

    /// What its engine is asked.
    fn task(&self, request: &RunRequest) -> Task {
        let mut request = request.clone();
        request.device = Device::CudaSim;
        request.alloc_conf.clone_from(&self.gpu.alloc_conf);
        if let Some(measured) = &self.gpu.profile.measured {
            request.convolutions.clone_from(&measured.convolutions);
        }
        Task::Run(Box::new(request))
    }
}

fn engine_failure(error: anyhow::Error) -> Failure {
    Failure::new(Exit::ENGINE, error)
}

/// A request to an engine that computes nothing.
fn request_of(task: Task, copy: Option<Task>) -> Request {
    Request {
        protocol: PROTOCOL,
        task,
        threads: Some(1),
        copy,
    }
}

/// Runs `request` on such a device, once.
pub(super) fn run_on(
    request: &RunRequest,
    device: &SimulatedRun<'_>,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let (options, _stand_ins) = device.options(request)?;
    let asked = request_of(device.task(request), None);
    let mut collector = Collector::new(progress);
    let outcome = ask(&asked, &options, &mut collector, interrupted);
    simulated(outcome, collector.reader)
}

/// Runs `request`, and at the same time once more as an eager Python module would keep its values, in a copy of the same
/// engine.
fn run_both_lifetimes(
    request: &RunRequest,
    device: &SimulatedRun<'_>,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<(Simulated, Result<Simulated, Failure>), Failure> {
    let eager = RunRequest {
        lifetimes: Lifetimes::Python,
        ..request.clone()
    };
    let (options, _stand_ins) = device.options(request)?;
    let asked = request_of(device.task(request), Some(device.task(&eager)));
    let mut silent = |_: &Progress| {};
    let (mut collector, mut beside) = (Collector::new(progress), Silent::default());
    let outcome = ask_both(&asked, &options, &mut collector, &mut beside, interrupted);
    let (answer, copied) = match outcome {
        Ok((answer, copied)) => (Ok(answer), Some(copied)),
        Err(error) => (Err(error), None),
    };
    let first = simulated(answer, collector.reader)?;
    let eager = match copied {
        // A copy that could not be made has said nothing.
        None | Some(Err(EngineError::NoHello { .. })) => {
            run_on(&eager, device, &mut silent, interrupted)
        }
        Some(copied) => simulated(copied, beside.reader),
    };
    Ok((first, eager))
}

/// Reads a trace that nobody watches.
#[derive(Default)]
struct Silent {
    reader: TraceReader,
}

impl Observer for Silent {
    fn progress(&mut self, _progress: &Progress) {}

    fn trace_line(&mut self, line: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.reader.line(line).map_err(Into::into)
    }
}

/// What came of a run.
fn simulated(
    outcome: Result<Answer, EngineError>,
    reader: TraceReader,
) -> Result<Simulated, Failure> {
    let (answer, out_of_memory) = match outcome {
        Ok(answer) => (Some(answer), None),
        // The host's own memory is another matter than the card's.
        Err(EngineError::Failed(failed))
            if failed.kind == FailureKind::OutOfMemory
                && !failed.message.contains("DefaultCPUAllocator") =>
        {
            (None, Some(failed.message))
        }
        Err(error) => return Err(error.into()),
    };
    let trace = reader.finish().map_err(|error| {
        engine_failure(
            anyhow::Error::new(error).context("the simulated device's trace is not complete"),
        )
    })?;
    Ok(Simulated {
        answer,
        trace,
        out_of_memory,
    })
}

/// The model's weights are given memory before and after they are moved, and never read.
fn weights_bytes(request: &RunRequest) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let weights = request.weights.as_deref().map_or(0, size);
    size(&request.file)
        .saturating_add(weights)
        .saturating_mul(4)
}

/// The environment of an engine on a simulated device that is like this card, with so much memory.
pub(super) fn card_env(profile: &Profile, capacity: u64) -> Vec<(String, OsString)> {
    let measured = profile.measured.as_ref();
    let card = SimulatedDevice {
        name: profile.title.clone().into_owned(),
        compute_capability: profile.compute_capability,
        multiprocessor_count: profile.multiprocessor_count,
        total_bytes: capacity,
        base_bytes: profile.context_bytes.unwrap_or(0),
        l2_bytes: measured.map(|measured| measured.card.l2_bytes),
        address_order: match measured.and_then(|measured| measured.segment_order) {
            Some(SegmentOrder::Down) => AddressOrder::Down,
            Some(SegmentOrder::Up) | None => AddressOrder::Up,
        },
    };
    let mut env = card.env();
    // Kernels that libtorch compiles while running are neither compiled nor kept here.
    env.push(("USE_PYTORCH_KERNEL_CACHE".to_owned(), "0".into()));
    env
}

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
    use crate::engine::protocol::Failed;
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
