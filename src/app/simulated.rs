//! The run on the simulated CUDA device, and the estimate made from it.

use std::error::Error;
use std::sync::atomic::AtomicBool;

use super::{Exit, Failure, engine_options};
use crate::checkpoint::Checkpoint;
use crate::cli::{EngineLimits, GpuPlan};
use crate::engine::protocol::{
    Device, FailureKind, Gap, Mode, NotModelled, PROTOCOL, Progress, Request, RunRequest, Task,
};
use crate::engine::stand_ins::{AddressOrder, SimulatedDevice, StandIns};
use crate::engine::{Answer, EngineError, Observer, ask};
use crate::estimate::{Estimate, Profile, Question, RuleOfThumb, optimizer_copies};
use crate::trace::memory::MemoryTimeline;
use crate::trace::{Trace, TraceReader};

/// Capacity of a run that is to show what is needed, whatever the card: far above any real one, below what the
/// simulated device's addresses can span.
const UNLIMITED_BYTES: u64 = 4 << 40;

/// A run on the simulated device.
pub(super) struct Simulated {
    /// What the engine said; none where memory ran out.
    pub(super) answer: Option<Answer>,
    /// What it saw.
    pub(super) trace: Trace,
    /// libtorch's own words where memory ran out.
    pub(super) out_of_memory: Option<String>,
}

/// Collects the trace; progress belongs to the run that the user watches.
struct Collector<'a> {
    reader: TraceReader,
    progress: &'a mut dyn FnMut(&Progress),
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
    let Some(capacity) = gpu.capacity_bytes() else {
        return Ok(first);
    };
    let context = gpu.profile.context_bytes.unwrap_or(0);
    let reserved = MemoryTimeline::of(&first.trace).peak_reserved.unwrap_or(0);
    if reserved.saturating_add(context) <= capacity {
        return Ok(first);
    }
    run_with(request, gpu, limits, capacity, progress, interrupted)
}

fn run_with(
    request: &RunRequest,
    gpu: &GpuPlan,
    limits: EngineLimits,
    capacity: u64,
    progress: &mut dyn FnMut(&Progress),
    interrupted: &AtomicBool,
) -> Result<Simulated, Failure> {
    let engine_failure = |error: anyhow::Error| Failure::new(Exit::ENGINE, error);
    let stand_ins = StandIns::open().map_err(|error| engine_failure(error.into()))?;
    let mut options = engine_options();
    options.timeout = limits.timeout;
    options.memory_limit = limits.memory_bytes;
    options.preload = stand_ins.preload();
    options.env = device(gpu.profile, capacity).env();
    if let Some(conf) = &gpu.alloc_conf {
        options
            .env
            .push(("PYTORCH_CUDA_ALLOC_CONF".to_owned(), conf.into()));
    }
    let mut request = request.clone();
    request.device = Device::CudaSim;
    let request = Request {
        protocol: PROTOCOL,
        task: Task::Run(Box::new(request)),
        threads: Some(1), // it computes nothing
    };
    let mut collector = Collector {
        reader: TraceReader::new(),
        progress,
    };
    let outcome = ask(&request, &options, &mut collector, interrupted);
    let (answer, out_of_memory) = match outcome {
        Ok(answer) => (Some(answer), None),
        Err(EngineError::Failed(failed)) if failed.kind == FailureKind::OutOfMemory => {
            (None, Some(failed.message))
        }
        Err(error) => return Err(error.into()),
    };
    let trace = collector.reader.finish().map_err(|error| {
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

fn device(profile: &Profile, capacity: u64) -> SimulatedDevice {
    SimulatedDevice {
        name: profile.title.to_owned(),
        compute_capability: profile.compute_capability,
        multiprocessor_count: profile.multiprocessor_count,
        total_bytes: capacity,
        base_bytes: profile.context_bytes.unwrap_or(0),
        l2_bytes: None,
        address_order: AddressOrder::Up,
    }
}

/// The estimate from such a run.
pub(super) fn estimate(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    gpu: &GpuPlan,
    simulated: &Simulated,
) -> Result<Estimate, Failure> {
    let memory = MemoryTimeline::of(&simulated.trace);
    let conf = gpu
        .conf()
        .map_err(|error| Failure::input(error.to_string()))?;
    let copies = match &request.mode {
        Mode::Inference => None,
        Mode::Training { optimizer, .. } => Some(optimizer_copies(optimizer.name())),
    };
    let question = Question {
        profile: Some(gpu.profile),
        capacity_bytes: gpu.capacity_bytes(),
        conf,
        rule_of_thumb: RuleOfThumb::of(checkpoint, Some(&simulated.trace), copies),
        not_modelled_functions: simulated
            .answer
            .iter()
            .flat_map(|answer| &answer.done.not_modelled)
            .map(not_modelled)
            .collect(),
        assumptions: assumptions(request),
    };
    Ok(Estimate::simulated(&simulated.trace, &memory, &question))
}

fn not_modelled(function: &NotModelled) -> String {
    let gap = match function.gap {
        Gap::Outputs => "its outputs are not modelled",
        Gap::UnknownSize => "its size is known to NVIDIA's library only: taken as 0",
        Gap::LowerBound => "its size is a lower bound",
    };
    format!("{} ({}): {gap}", function.function, function.library)
}

fn assumptions(request: &RunRequest) -> Vec<String> {
    match &request.mode {
        Mode::Inference => vec!["inference: eval mode, no gradients, one forward".to_owned()],
        Mode::Training {
            optimizer,
            implementation,
            loss,
            steps,
        } => vec![format!(
            "training: {steps} step{}, loss {}, optimizer {} {}",
            if *steps == 1 { "" } else { "s" },
            loss.name(),
            optimizer.name(),
            implementation.map_or("as torch.optim runs it on CUDA (foreach)", |kind| kind
                .name()),
        )],
    }
}
