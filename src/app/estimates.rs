//! The questions behind an estimate, and the estimate from whatever there is: a run on the simulated device, a run on
//! the CPU, or the file alone.

use super::Failure;
use super::simulated::Pair;
use crate::checkpoint::Checkpoint;
use crate::cli::GpuPlan;
use crate::engine::protocol::{Gap, Lifetimes, Mode, NotModelled, OptimizerImpl, RunRequest};
use crate::estimate::cpu_trace::{Card, Converted, as_cuda};
use crate::estimate::{Basis, Estimate, OptimizerState, Question, RuleOfThumb, Training};
use crate::simulate::{AllocConf, DeviceLimits};
use crate::trace::Trace;
use crate::trace::memory::MemoryTimeline;

/// What a run with Python's lifetimes takes for granted.
pub(super) const AS_PYTHON: &str =
    "values live as long as the variables of an eager Python module would hold them";

/// What a run takes for granted of how long its values live; nothing where TorchScript's interpreter decides it.
fn as_python(lifetimes: Lifetimes) -> Option<String> {
    (lifetimes == Lifetimes::Python).then(|| AS_PYTHON.to_owned())
}

/// What a CPU's run takes for granted.
pub(super) const FROM_CPU: &str =
    "made from the CPU's run: rules stand for what CUDA's kernels do differently";

/// The estimate from a run on the simulated device.
pub(super) fn from_simulated(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    gpu: &GpuPlan,
    pair: &Pair,
) -> Result<Estimate, Failure> {
    let simulated = &pair.simulated;
    let gpu = &for_run(gpu, &simulated.trace);
    let memory = MemoryTimeline::of(&simulated.trace);
    let mut assumptions = vec![assumption(&request.mode)];
    assumptions.extend(as_python(request.lifetimes));
    let eager = match &pair.eager {
        None => None,
        Some(Ok(eager)) => Some(MemoryTimeline::of(&eager.trace)),
        Some(Err(failure)) => {
            assumptions.push(format!(
                "the peak of an eager Python module is not known: {}",
                failure.one_line()
            ));
            None
        }
    };
    let done = simulated.answer.iter();
    let question = Question {
        not_modelled_functions: done
            .flat_map(|answer| &answer.done.not_modelled)
            .map(not_modelled)
            .collect(),
        reads: simulated
            .answer
            .iter()
            .flat_map(|answer| answer.done.reads.clone())
            .collect(),
        assumptions,
        eager: eager.as_ref(),
        ..question(checkpoint, Some(&simulated.trace), &request.mode, gpu)?
    };
    let trace = &simulated.trace;
    Ok(Estimate::of_run(Basis::CudaSim, trace, &memory, &question))
}

/// The estimate from a run on the CPU, and what that run becomes on a CUDA device. A model that does not fit the
/// card's capacity is put through the allocator again with that capacity, which empties its cache before it gives up.
pub(super) fn from_cpu(
    checkpoint: &Checkpoint,
    request: &RunRequest,
    gpu: &GpuPlan,
    trace: &Trace,
) -> Result<(Estimate, Converted), Failure> {
    let gpu = &for_run(gpu, trace);
    let mut converted = as_cuda(trace, &card(gpu, DeviceLimits::UNLIMITED)?);
    let mut memory = MemoryTimeline::of(&converted.trace);
    if let Some(capacity) = gpu.capacity_bytes() {
        let context = gpu.profile.context_bytes.unwrap_or(0);
        let reserved = memory.peak_reserved.unwrap_or(0);
        if reserved.saturating_add(context) > capacity {
            let total_bytes = capacity.saturating_sub(context);
            converted = as_cuda(trace, &card(gpu, DeviceLimits { total_bytes })?);
            memory = MemoryTimeline::of(&converted.trace);
        }
    }
    let mut assumptions = vec![assumption(&request.mode), FROM_CPU.to_owned()];
    assumptions.extend(as_python(request.lifetimes));
    let without_rule = converted.without_rule.iter();
    let question = Question {
        ops_without_rule: without_rule.clone().map(|(_, count)| count).sum(),
        not_modelled_functions: without_rule
            .map(|(name, count)| format!("{name} ({count} calls): its memory on CUDA has no rule"))
            .collect(),
        assumptions,
        ..question(checkpoint, Some(trace), &request.mode, gpu)?
    };
    let estimate = Estimate::of_run(Basis::CpuTrace, &converted.trace, &memory, &question);
    Ok((estimate, converted))
}

/// The card with the context that such a run needs, where that was measured.
pub(super) fn for_run(gpu: &GpuPlan, trace: &Trace) -> GpuPlan {
    GpuPlan {
        profile: gpu.profile.for_run(&trace.texts),
        ..gpu.clone()
    }
}

/// The card that a CPU's run is converted for.
pub(super) fn card(gpu: &GpuPlan, limits: DeviceLimits) -> Result<Card, Failure> {
    Ok(Card {
        compute_capability: gpu.profile.compute_capability,
        conf: conf(gpu)?,
        conf_text: gpu.alloc_conf.clone(),
        limits,
    })
}

/// The allocator's settings.
pub(super) fn conf(gpu: &GpuPlan) -> Result<AllocConf, Failure> {
    gpu.conf()
        .map_err(|error| Failure::input(error.to_string()))
}

/// The run as CUDA would do it: torch.optim takes its multi-tensor form there.
pub(super) fn mode_on_cuda(mode: &Mode) -> Mode {
    let mut mode = mode.clone();
    if let Mode::Training { implementation, .. } = &mut mode {
        implementation.get_or_insert(OptimizerImpl::Foreach);
    }
    mode
}

/// What is known without a run.
pub(super) fn without_run(
    checkpoint: &Checkpoint,
    mode: &Mode,
    gpu: &GpuPlan,
) -> Result<Estimate, Failure> {
    let training = match mode {
        Mode::Inference => None,
        Mode::Training {
            optimizer,
            implementation,
            ..
        } => OptimizerState::find(optimizer.name()).map(|optimizer| Training {
            optimizer,
            fused: *implementation == Some(OptimizerImpl::Fused),
        }),
    };
    let question = question(checkpoint, None, mode, gpu)?;
    Ok(Estimate::without_run(checkpoint, training, &question))
}

fn question<'a>(
    checkpoint: &Checkpoint,
    trace: Option<&Trace>,
    mode: &Mode,
    gpu: &'a GpuPlan,
) -> Result<Question<'a>, Failure> {
    let copies = match mode {
        Mode::Inference => None,
        Mode::Training { optimizer, .. } => {
            OptimizerState::find(optimizer.name()).map(OptimizerState::copies)
        }
    };
    Ok(Question {
        profile: Some(&gpu.profile),
        capacity_bytes: gpu.capacity_bytes(),
        conf: conf(gpu)?,
        bound: gpu.bound,
        eager: None,
        rule_of_thumb: RuleOfThumb::of(checkpoint, trace, copies),
        not_modelled_functions: Vec::new(),
        ops_without_rule: 0,
        reads: Vec::new(),
        assumptions: Vec::new(),
    })
}

fn not_modelled(function: &NotModelled) -> String {
    let gap = match function.gap {
        Gap::Outputs => "its outputs are not modelled",
        Gap::UnknownSize => "its size is known to NVIDIA's library only: taken as 0",
        Gap::LowerBound => "its size is a lower bound",
    };
    format!("{} ({}): {gap}", function.function, function.library)
}

/// What a run takes for granted.
pub(super) fn assumption(mode: &Mode) -> String {
    match mode {
        Mode::Inference => "inference: eval mode, no gradients, one forward".to_owned(),
        Mode::Training {
            optimizer,
            implementation,
            loss,
            steps,
        } => format!(
            "training: {steps} step{}, loss {}, optimizer {} {}",
            if *steps == 1 { "" } else { "s" },
            loss.name(),
            optimizer.name(),
            implementation.map_or("as torch.optim runs it on CUDA (foreach)", |kind| kind
                .name()),
        ),
    }
}
