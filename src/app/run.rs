//! Running a model: the request, the engine, and what its answer says about our own listing.

use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::{Context, Exit, Failure, limited_options, program};
use crate::checkpoint::{Checkpoint, Finding, Format, ObjectKind, Role, Severity, Tensor, Verdict};
use crate::cli::{EngineLimits, Inspect, RunInputs, RunPlan, parse_json};
use crate::engine::protocol::{
    Device, Inputs, Lifetimes, Mode, ModuleTensor, ModuleTensorRole, Optimizer, OptimizerImpl,
    PROTOCOL, Progress, Request, RunRequest, Task,
};
use crate::engine::{Answer, Observer, ask, nvidia_driver};
use crate::format::{self, ReadOptions};
use crate::tensor::DType;
use crate::trace::{Trace, TraceError, TraceReader};
use crate::ui::{self, Stages};

/// The seed of every random number in a run.
const SEED: u64 = 0;

/// What came of a run.
pub(super) struct Ran {
    /// The engine's own words.
    pub(super) answer: Answer,
    /// What it saw.
    pub(super) trace: Trace,
}

/// Sends trace lines to their reader and progress to the terminal.
pub(super) struct Collector {
    pub(super) reader: TraceReader,
    progress: ui::Progress,
}

impl Collector {
    /// For an engine that is about to start.
    pub(super) fn new(context: &Context) -> Self {
        let mut progress = context.ui.progress();
        progress.stage("starting the engine", 0, None);
        Collector {
            reader: TraceReader::new(),
            progress,
        }
    }
}

impl Observer for Collector {
    fn progress(&mut self, progress: &Progress) {
        self.progress
            .stage(&progress.stage, progress.done, progress.total);
    }

    fn trace_line(&mut self, line: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.reader.line(line).map_err(Into::into)
    }
}

/// Reads a file that is to be run, and says what its run asks of an engine: with its own inputs where it keeps some and
/// none are given.
pub(super) fn read_to_run(path: &Path, plan: &RunPlan, trust: bool) -> Result<RunRequest, Failure> {
    let checkpoint = format::read(path, &ReadOptions::default())
        .map_err(|error| Failure::unreadable(path, error))?;
    let none_given = matches!(&plan.inputs, RunInputs::Specs(specs) if specs.is_empty());
    if !none_given {
        return request(path, &checkpoint, plan, trust);
    }
    runnable(path, &checkpoint, trust)?;
    if !keeps_inputs(&checkpoint) {
        let message = format!("`{}` needs an input to run", path.display());
        return Err(Failure::input(message)
            .hint("`--input 1x3x224x224`; only an exported program may keep inputs of its own"));
    }
    let mut own = plan.clone();
    own.inputs = RunInputs::File(path.to_owned());
    request(path, &checkpoint, &own, trust)
}

/// Whether a file has inputs of its own to run it with.
pub(super) fn keeps_inputs(checkpoint: &Checkpoint) -> bool {
    let mut programs = checkpoint.programs().iter();
    programs.any(|program| program.has_sample_inputs)
}

/// What a run of a TorchScript file asks of an engine; an error where the file must not or cannot be run.
pub(super) fn request(
    path: &Path,
    checkpoint: &Checkpoint,
    plan: &RunPlan,
    trust: bool,
) -> Result<RunRequest, Failure> {
    runnable(path, checkpoint, trust)?;
    trainable(&plan.mode)?;
    if checkpoint.format() == Format::ExportedProgram && plan.lifetimes == Lifetimes::Python {
        return Err(Failure::input(
            "`--lifetimes python` is for TorchScript: an exported program has no Python variables, and lets go of every value after its last use"
                .to_owned(),
        ));
    }
    let request = run_request(path, plan)?;
    program::takes(checkpoint, &request)?;
    Ok(request)
}

/// Runs it on the CPU or a real GPU.
pub(super) fn run(
    request: RunRequest,
    inspect: &Inspect,
    context: &Context,
    interrupted: &AtomicBool,
) -> Result<Ran, Failure> {
    let gpu = inspect.gpu.as_ref();
    let conf = gpu.and_then(|gpu| gpu.alloc_conf.clone());
    run_with(request, conf, inspect.limits, context, interrupted)
}

/// The same without the rest of the command line; `alloc_conf` counts on a GPU only.
pub(super) fn run_with(
    mut request: RunRequest,
    alloc_conf: Option<String>,
    limits: EngineLimits,
    context: &Context,
    interrupted: &AtomicBool,
) -> Result<Ran, Failure> {
    let device = request.device;
    let on_gpu = matches!(device, Device::Cuda(_));
    request.alloc_conf = alloc_conf.filter(|_| on_gpu);
    let mut options = limited_options(limits, 0);
    options.show_gpu(device);
    if let Some(conf) = &request.alloc_conf {
        let conf = ("PYTORCH_CUDA_ALLOC_CONF".to_owned(), conf.into());
        options.env.push(conf);
    }
    let request = Request {
        protocol: PROTOCOL,
        task: Task::Run(Box::new(request)),
        threads: limits.threads,
        copy: None,
    };
    let mut collector = Collector::new(context);
    let answer = ask(&request, &options, &mut collector, interrupted)
        .map_err(|error| error.on_device(device, nvidia_driver()))?;
    let trace = collector.reader.finish().map_err(unfinished)?;
    let ran = Ran { answer, trace };
    context.ui.verbose(format_args!(
        "{} events, {} operators, {} allocations",
        ran.trace.events.len(),
        ran.trace.op_count,
        ran.trace.allocations.len()
    ));
    Ok(ran)
}

pub(super) fn unfinished(error: TraceError) -> Failure {
    let error = anyhow::Error::new(error).context("the engine's trace is not complete");
    Failure::new(Exit::ENGINE, error)
}

/// Whether a file holds code, and code that may be run.
fn runnable(path: &Path, checkpoint: &Checkpoint, trust: bool) -> Result<(), Failure> {
    let name = path.display();
    let has_code = matches!(
        checkpoint.format(),
        Format::TorchScript | Format::ExportedProgram
    );
    if !has_code {
        let object = match checkpoint.object() {
            ObjectKind::Other => String::new(),
            object => format!("{} ", object.name()),
        };
        let message = format!(
            "`{name}` cannot be run: it is a {object}file of format {}, which holds no code",
            checkpoint.format()
        );
        return Err(Failure::input(message).hint(
            "save the model with `torch.jit.script(model).save(...)`, `torch.jit.trace(model, x).save(...)`, or \
             `torch.export.save(torch.export.export(model, (x,)), ...)`",
        ));
    }
    if checkpoint.security().verdict != Verdict::Clean && !trust {
        let message = format!(
            "`{name}` was not run: it is {}",
            checkpoint.security().verdict.name()
        );
        return Err(Failure::input(message).hint("`--trust` runs it all the same"));
    }
    Ok(())
}

/// Whether torch.optim has what was asked for, on any device.
fn trainable(mode: &Mode) -> Result<(), Failure> {
    match mode {
        Mode::Training {
            optimizer: Optimizer::Rmsprop,
            implementation: Some(OptimizerImpl::Fused),
            ..
        } => Err(
            Failure::input("torch.optim.RMSprop has no fused implementation".to_owned())
                .hint("`--optimizer-impl foreach` is what it takes on CUDA by itself"),
        ),
        _ => Ok(()),
    }
}

fn run_request(path: &Path, plan: &RunPlan) -> Result<RunRequest, Failure> {
    Ok(RunRequest {
        file: path.to_owned(),
        weights: plan.weights.clone(),
        method: plan.method.clone(),
        inputs: inputs(path, &plan.inputs)?,
        mode: plan.mode.clone(),
        device: plan.device,
        cast: plan.cast.map(|dtype| dtype.name().to_owned()),
        autocast: plan.autocast.map(|dtype| dtype.name().to_owned()),
        seed: SEED,
        lifetimes: plan.lifetimes,
        read_backs: Vec::new(),
        alloc_conf: None,
        measures: matches!(plan.device, Device::Cuda(_)),
        convolutions: Vec::new(),
    })
}

fn inputs(file: &Path, inputs: &RunInputs) -> Result<Inputs, Failure> {
    let path = match inputs {
        RunInputs::Specs(arguments) => return Ok(Inputs::Arguments(arguments.clone())),
        RunInputs::Own => return Ok(Inputs::File(file.to_owned())),
        RunInputs::File(path) => path,
    };
    let failed = |error: anyhow::Error| {
        let context = format!("cannot read inputs from `{}`", path.display());
        Failure::new(Exit::INPUT, error.context(context))
    };
    if path.extension().is_none_or(|extension| extension != "json") {
        return match fs::metadata(path) {
            Ok(_) => Ok(Inputs::File(path.clone())),
            Err(error) => Err(failed(error.into())),
        };
    }
    let text = fs::read(path).map_err(|error| failed(error.into()))?;
    let document = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let arguments = parse_json(&document).map_err(|error| failed(error.into()))?;
    Ok(Inputs::Arguments(arguments))
}

/// The schema of a method, as the archive's code says it: nothing is run.
pub(super) fn signature(
    path: &Path,
    checkpoint: &Checkpoint,
    method: &str,
) -> Result<String, Failure> {
    let methods = checkpoint.methods();
    if let Some(found) = methods.iter().find(|found| found.name == method) {
        let arguments: Vec<String> = found
            .arguments
            .iter()
            .map(|argument| {
                let default = argument.default.as_ref();
                let default = default.map(|value| format!("={value}")).unwrap_or_default();
                format!("{} {}{default}", argument.type_name, argument.name)
            })
            .collect();
        return Ok(format!(
            "{method}({}) -> {}",
            arguments.join(", "),
            found.returns
        ));
    }
    let message = format!("`{}` has no method `{method}`", path.display());
    if methods.is_empty() {
        return Err(Failure::input(message)
            .hint("only TorchScript modules and exported programs have methods"));
    }
    let names: Vec<&str> = methods.iter().map(|method| method.name.as_str()).collect();
    Err(Failure::new(Exit::ENGINE, anyhow::Error::msg(message))
        .hint(format!("it has `{}`", names.join("`, `"))))
}

/// Differences between our listing and libtorch's own list of the loaded module.
/// Weights that the run has cast have its dtype there.
pub(super) fn compare_listing(
    checkpoint: &Checkpoint,
    ran: &Ran,
    cast: Option<DType>,
) -> Vec<Finding> {
    let Some(theirs) = &ran.answer.done.module_tensors else {
        return Vec::new();
    };
    let exported = checkpoint.format() == Format::ExportedProgram;
    let role_when_run = |tensor: &Tensor| match tensor.role() {
        // Constants of an exported program are buffers of the module that it is run as.
        Role::Constant if exported => Role::Buffer,
        role => role,
    };
    let mut ours: HashMap<&str, _> = HashMap::new();
    for tensor in checkpoint.tensors() {
        if matches!(role_when_run(tensor), Role::Parameter | Role::Buffer) {
            ours.insert(tensor.name(), tensor);
        }
    }
    let mut findings = Vec::new();
    for tensor in theirs {
        let difference = match ours.remove(tensor.name.as_str()) {
            None => Some(format!(
                "libtorch has {}, the file's listing has none",
                describe(tensor)
            )),
            Some(own) => {
                let role = match tensor.role {
                    ModuleTensorRole::Parameter => Role::Parameter,
                    ModuleTensorRole::Buffer => Role::Buffer,
                };
                let (dtype, bytes) = when_cast(own, cast);
                let same = role_when_run(own) == role
                    && dtype.map(DType::name) == Some(tensor.dtype.as_str())
                    && own.shape() == Some(tensor.shape.as_slice())
                    && bytes == tensor.bytes;
                (!same).then(|| {
                    format!(
                        "libtorch has {}, the file's listing has a {} of {:?} {:?} with {} bytes",
                        describe(tensor),
                        own.role().name(),
                        own.dtype().map_or("unknown", DType::name),
                        own.shape().unwrap_or_default(),
                        own.bytes()
                    )
                })
            }
        };
        findings.extend(difference.map(|message| differs(&tensor.name, message)));
    }
    let order = checkpoint.tensors().iter().map(Tensor::name);
    for name in order.filter(|name| ours.contains_key(name)) {
        findings.push(differs(
            name,
            "the file's listing has it, libtorch does not".to_owned(),
        ));
    }
    findings
}

/// Dtype and bytes of a tensor once floating ones are cast, as `Module.to(dtype)` does.
fn when_cast(tensor: &Tensor, cast: Option<DType>) -> (Option<DType>, u64) {
    let dtype = tensor.dtype();
    let floating = |dtype: DType| dtype.is_floating_point() || dtype.is_complex();
    match cast.filter(|_| dtype.is_some_and(floating)) {
        None => (dtype, tensor.bytes()),
        Some(cast) => (Some(cast), tensor.numel().saturating_mul(cast.item_bytes())),
    }
}

fn describe(tensor: &ModuleTensor) -> String {
    let role = match tensor.role {
        ModuleTensorRole::Parameter => "parameter",
        ModuleTensorRole::Buffer => "buffer",
    };
    format!(
        "a {role} of {} {:?} with {} bytes",
        tensor.dtype, tensor.shape, tensor.bytes
    )
}

fn differs(name: &str, message: String) -> Finding {
    Finding {
        severity: Severity::Warning,
        code: "engine-listing-differs",
        location: name.to_owned(),
        message,
    }
}
