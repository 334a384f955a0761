//! An engine on the simulated CUDA device: how it is started, and what came of its run.

use std::error::Error;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::super::{Exit, Failure, estimates, limited_options};
use crate::checkpoint::{Checkpoint, Format};
use crate::cli::{EngineLimits, GpuPlan};
use crate::engine::protocol::{
    Device, FailureKind, Lifetimes, PROTOCOL, Progress, Request, RunRequest, Task,
};
use crate::engine::stand_ins::{AddressOrder, SimulatedDevice, StandIns};
use crate::engine::{Answer, EngineError, EngineOptions, Observer, ask, ask_both};
use crate::estimate::{Profile, SegmentOrder};
use crate::trace::memory::MemoryTimeline;
use crate::trace::{Trace, TraceReader};

/// Capacity of a run that is to show what is needed, whatever the card: far above any real one, below what the
/// simulated device's addresses can span.
pub(in crate::app) const UNLIMITED_BYTES: u64 = 4 << 40;

/// What a test wants a simulated device that stands for a real one to do otherwise: bytes of workspace that every
/// convolution asks cuDNN for.
const PLANTED_WORKSPACE: &str = "INSPECT_TEST_CONV_WORKSPACE_BYTES";

/// What the stand-ins are told of it.
pub(in crate::app) fn planted_workspace() -> Option<(String, OsString)> {
    std::env::var_os(PLANTED_WORKSPACE)
        .map(|bytes| ("INSPECT_CUDA_SIM_CONV_WORKSPACE_BYTES".to_owned(), bytes))
}

/// A run on the simulated device.
pub(in crate::app) struct Simulated {
    /// What the engine said; none where memory ran out.
    pub(in crate::app) answer: Option<Answer>,
    /// What it saw.
    pub(in crate::app) trace: Trace,
    /// libtorch's own words where memory ran out.
    pub(in crate::app) out_of_memory: Option<String>,
}

impl Simulated {
    /// Whether no operator read a value that nobody knew.
    pub(super) fn reads_known(&self) -> bool {
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

/// The run that was made without a limit, or another one within the card's capacity where it does not fit there, since
/// PyTorch empties its cache and tries again before it gives up.
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
pub(in crate::app) struct Pair {
    /// The run that was asked for.
    pub(in crate::app) simulated: Simulated,
    /// The other one; none where it is the one that was asked for.
    pub(in crate::app) eager: Option<Result<Simulated, Failure>>,
}

/// Runs `request`, and beside it as an eager Python module would keep its values: with nothing but the
/// lifetimes different, so that its peak can be said too.
pub(super) fn run_pair(
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
    let device = SimulatedRun::new(gpu, limits, UNLIMITED_BYTES);
    let (first, eager) = if differs {
        let (first, eager) = run_both_lifetimes(request, &device, progress, interrupted)?;
        (first, Some(eager))
    } else {
        (run_on(request, &device, progress, interrupted)?, None)
    };
    let simulated = at_capacity(first, request, gpu, limits, progress, interrupted)?;
    Ok(Pair { simulated, eager })
}

pub(super) fn panicked() -> Failure {
    Failure::new(
        Exit::ENGINE,
        anyhow::anyhow!("the thread of the simulated run panicked"),
    )
}

/// Runs `request` on a simulated device of so much memory, once.
pub(in crate::app) fn run_with(
    request: &RunRequest,
    gpu: &GpuPlan,
    limits: EngineLimits,
    capacity: u64,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let device = SimulatedRun::new(gpu, limits, capacity);
    run_on(request, &device, progress, interrupted)
}

/// A simulated device and the engine on it.
pub(in crate::app) struct SimulatedRun<'a> {
    /// The card.
    pub(in crate::app) gpu: &'a GpuPlan,
    /// Limits of the engine.
    pub(in crate::app) limits: EngineLimits,
    /// Memory of the device, bytes.
    pub(in crate::app) capacity: u64,
    /// What else the stand-ins are told, in their environment.
    pub(in crate::app) env: Vec<(String, OsString)>,
}

impl<'a> SimulatedRun<'a> {
    /// A device of so much memory.
    pub(in crate::app) fn new(gpu: &'a GpuPlan, limits: EngineLimits, capacity: u64) -> Self {
        SimulatedRun {
            gpu,
            limits,
            capacity,
            env: Vec::new(),
        }
    }

    /// How its engine is started for `task`; what is preloaded is not in it.
    pub(in crate::app) fn options(&self, task: &Task) -> EngineOptions {
        let mut options = limited_options(self.limits, weights_bytes(task));
        options.env = card_env(&self.gpu.profile, self.capacity);
        options.env.extend(self.env.iter().cloned());
        if let Some(conf) = &self.gpu.alloc_conf {
            options
                .env
                .push(("PYTORCH_CUDA_ALLOC_CONF".to_owned(), conf.into()));
        }
        options
    }

    /// What its engine is asked.
    pub(in crate::app) fn task(&self, request: &RunRequest) -> Task {
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

/// How an engine is started on such a device. The libraries must be kept until it runs.
fn started(
    device: &SimulatedRun<'_>,
    asked: &Request,
) -> Result<(EngineOptions, StandIns), Failure> {
    let stand_ins = StandIns::open().map_err(|error| engine_failure(error.into()))?;
    let mut options = device.options(&asked.task);
    options.preload = stand_ins.preload();
    Ok((options, stand_ins))
}

/// Runs `request` on such a device, once.
pub(in crate::app) fn run_on(
    request: &RunRequest,
    device: &SimulatedRun<'_>,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let asked = request_of(device.task(request), None);
    let (options, _stand_ins) = started(device, &asked)?;
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
    let asked = request_of(device.task(request), Some(device.task(&eager)));
    let (options, _stand_ins) = started(device, &asked)?;
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
fn weights_bytes(task: &Task) -> u64 {
    let Task::Run(request) = task else {
        return 0;
    };
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let weights = request.weights.as_deref().map_or(0, size);
    size(&request.file)
        .saturating_add(weights)
        .saturating_mul(4)
}

/// The environment of an engine on a simulated device that is like this card, with so much memory.
fn card_env(profile: &Profile, capacity: u64) -> Vec<(String, OsString)> {
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
