//! The tasks: say hello, say a schema, run a model once and write down everything.

use std::fs::File;
use std::io::{self, BufRead};

use inspect_checkpoint::engine::protocol::{
    BUILD_ID, Device, DeviceInfo, Done, FailureKind, Gap, Hello, Inputs, Lifetimes, Message, Mode,
    ModuleTensor, ModuleTensorRole, NotModelled, PROTOCOL, Request, RunRequest, Task,
};
use inspect_checkpoint::format::{self, FormatError};
use inspect_checkpoint::source::Source;
use inspect_checkpoint::trace::{Category, Event, Header, PhaseName, Reads, TRACE_VERSION};
use tch::Tensor;

use crate::data::with_causes;
use crate::dtype;
use crate::failure::Failure;
use crate::ffi::{self, Module, NamedTensor, Values, cuda, recording};
use crate::inputs;
use crate::output::Output;
use crate::probe;
use crate::process;
use crate::sandbox::{self, Needs};
use crate::session::Session;
use crate::signature::Method;
use crate::target::Target;
use crate::train;
use crate::weights;

type Stdout = Output<File>;

/// Reads the request, does it, and ends with `done` or `failed`. The exit status: 0, or 1 where there is nobody to tell.
pub(crate) fn main() -> u8 {
    let Ok(stdout) = process::begin() else {
        return 1;
    };
    let mut output = Output::new(stdout);
    let mut copy = None;
    let ended = serve(&mut output, &mut copy).and_then(|message| Ok(output.message(&message)?));
    let ended = match ended {
        Err(Failure::Told(failed)) => output
            .message(&Message::Failed(*failed))
            .map_err(Failure::from),
        other => other,
    };
    u8::from(ended.is_err()) // the front has gone
}

/// Does what is asked. `copy` is the copy of this process that does the rest of it; where this is the copy, `output` is
/// the copy's own.
fn serve(output: &mut Stdout, copy: &mut Option<process::Copy>) -> Result<Message, Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let mut request: Request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => {
            output.message(&Message::Hello(hello(Vec::new())))?;
            return Err(Failure::new(
                FailureKind::BadRequest,
                format!("the request cannot be read: {error}"),
            ));
        }
    };
    let devices = if matches!(request.task, Task::Hello) {
        devices()
    } else {
        vec![cpu()]
    };
    let target = open_target(&request.task);
    if let Some(task) = request.copy.take() {
        match process::split() {
            Ok(process::Split::Original(made)) => *copy = Some(made),
            Ok(process::Split::Copy(answers)) => {
                *output = Output::new(answers);
                request.task = task;
            }
            // Nobody answers for it then, and the front asks another engine.
            Err(_) => {}
        }
    }
    // Before this process is confined, and before it uses the card.
    let used_before = match &request.task {
        Task::Probe { .. } => ffi::cuda::used_before().ok().flatten(),
        _ => None,
    };
    let mut greeting = hello(devices);
    greeting.sandbox = Some(sandbox::confine(&needs(&request.task)));
    output.message(&Message::Hello(greeting))?;
    if request.protocol != PROTOCOL {
        return Err(Failure::new(
            FailureKind::BadRequest,
            format!("expected protocol {PROTOCOL}, found {}", request.protocol),
        ));
    }
    if let Some(threads) = request.threads {
        tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
    }
    ffi::plain_executor()?;
    let mut done = Done::default();
    let outcome = perform(output, request.task, target, used_before, &mut done);
    if let Some(path) = sandbox::attempt() {
        return Err(Failure::new(
            FailureKind::ModelError,
            format!(
                "the model tried to write the file `{path}`; it was not allowed to, and nothing was written"
            ),
        ));
    }
    outcome?;
    done.trace_lines = output.trace_lines;
    Ok(Message::Done(Box::new(done)))
}

fn perform(
    output: &mut Stdout,
    task: Task,
    target: Result<Target, Failure>,
    used_before: Option<u64>,
    done: &mut Done,
) -> Result<(), Failure> {
    match task {
        Task::Hello => {}
        Task::Signature { file, method } => {
            output.progress("loading")?;
            let module = load(&file, "cpu", "cpu", true)?;
            done.signature = Some(Method::of(&module, &method)?.signature);
        }
        Task::Run(run) => run_task(output, &run, target?, done)?,
        Task::Probe { .. } => {
            done.probe = Some(Box::new(probe::probe(output, target?, used_before)?));
        }
    }
    Ok(())
}

/// Opens the libraries of the device that the task wants: nothing more can be opened once the engine is confined.
fn open_target(task: &Task) -> Result<Target, Failure> {
    Target::open(match task {
        Task::Run(run) => run.device,
        Task::Probe { device } => *device,
        Task::Hello | Task::Signature { .. } => Device::Cpu,
    })
}

/// What the task reads and uses.
fn needs(task: &Task) -> Needs {
    match task {
        Task::Hello => Needs::default(),
        Task::Probe { device } => Needs {
            files: Vec::new(),
            gpu: matches!(device, Device::Cuda(_)),
        },
        Task::Signature { file, .. } => Needs {
            files: vec![file.clone()],
            gpu: false,
        },
        Task::Run(run) => {
            let mut files = vec![run.file.clone()];
            files.extend(run.weights.clone());
            if let Inputs::File(inputs) = &run.inputs {
                files.push(inputs.clone());
            }
            Needs {
                files,
                gpu: matches!(run.device, Device::Cuda(_)),
            }
        }
    }
}

fn hello(devices: Vec<DeviceInfo>) -> Hello {
    Hello {
        protocol: PROTOCOL,
        build_id: BUILD_ID.to_owned(),
        libtorch_version: ffi::libtorch_version(),
        devices,
        sandbox: None,
    }
}

fn cpu() -> DeviceInfo {
    DeviceInfo {
        id: "cpu".to_owned(),
        name: None,
        total_bytes: None,
        unavailable: None,
    }
}

/// Every device this libtorch could use; opening CUDA takes a quarter of a second, so only when asked.
fn devices() -> Vec<DeviceInfo> {
    let mut all = vec![cpu()];
    let mut cuda = DeviceInfo {
        id: "cuda".to_owned(),
        name: None,
        total_bytes: None,
        unavailable: None,
    };
    match ffi::open_cuda() {
        Ok(None) => cuda.unavailable = Some("this libtorch was built without CUDA".to_owned()),
        Ok(Some(0)) => cuda.unavailable = Some("no GPU, or no driver for it".to_owned()),
        Ok(Some(_)) => {
            "cuda:0".clone_into(&mut cuda.id);
            cuda.total_bytes = cuda::memory_info().ok().map(|(_, total)| total);
        }
        Err(error) => cuda.unavailable = Some(error.message),
    }
    all.push(cuda);
    all
}

/// Loads a module to a device; what an exported program says of devices means `run_on`.
fn load(
    file: &std::path::Path,
    device: &str,
    run_on: &str,
    skip_data: bool,
) -> Result<Module, Failure> {
    let path = file.to_str().ok_or_else(|| {
        Failure::new(
            FailureKind::Load,
            "libtorch opens only files whose path is UTF-8",
        )
    })?;
    let failed = |error: &dyn std::error::Error| {
        let message = format!("`{path}` cannot be read: {}", with_causes(error));
        Failure::new(FailureKind::Load, message)
    };
    let source = Source::open(file).map_err(|error| failed(&error))?;
    let archive = format::loadable(&source, run_on, skip_data).map_err(|error| match error {
        FormatError::NotRunnable { .. } => {
            Failure::new(FailureKind::Unsupported, error.to_string())
        }
        error => failed(&error),
    })?;
    Module::load(path, &archive, device, skip_data)
        .map_err(|error| Failure::torch(FailureKind::Load, &error))
}

fn run_task(
    output: &mut Stdout,
    run: &RunRequest,
    target: Target,
    done: &mut Done,
) -> Result<(), Failure> {
    let seed = || tch::manual_seed(i64::from_ne_bytes(run.seed.to_ne_bytes()));
    seed();
    if run.measures && target.on_cuda() {
        warm_up(output, run, target)?;
        seed();
    }
    recording::start(target.torch_name())?;
    output.event(&Event::Header(Header {
        version: TRACE_VERSION,
        device: run.device.to_string(),
        libtorch_version: ffi::libtorch_version(),
        mode: match run.mode {
            Mode::Inference => "inference".to_owned(),
            Mode::Training { .. } => "train".to_owned(),
        },
        method: run.method.clone(),
        alloc_conf: run.alloc_conf.clone(),
    }))?;
    let mut session = Session::new(output, target);
    if run.measures && target.on_cuda() {
        recording::device_times()?;
        session.timed = true;
    }
    for read in &run.read_backs {
        ffi::simulated::add_read_back(read)?;
    }
    for known in &run.convolutions {
        ffi::convolution::answer(known)?;
    }
    let outcome = run_phases(&mut session, run, done);
    if run.device == Device::CudaSim {
        done.not_modelled = not_modelled()?;
        done.reads = ffi::simulated::reads()?
            .into_iter()
            .map(|(op, answered, unknown)| Reads {
                op,
                answered,
                unknown,
            })
            .collect();
    }
    recording::stop()?;
    session.flush()?;
    if target.on_cuda() {
        done.convolutions = ffi::convolution::runs()?;
    }
    outcome
}

/// Does everything once, so that kernels and libraries are loaded when it is measured, and gives all memory back. What
/// fails here fails again where it is recorded.
fn warm_up(output: &mut Stdout, run: &RunRequest, target: Target) -> Result<(), Failure> {
    let mut once = run.clone();
    if let Mode::Training { steps, .. } = &mut once.mode {
        *steps = 1;
    }
    let mut session = Session::warm_up(output, target);
    let _ = run_phases(&mut session, &once, &mut Done::default());
    Ok(cuda::release()?)
}

fn run_phases(session: &mut Session<'_>, run: &RunRequest, done: &mut Done) -> Result<(), Failure> {
    let (module, mut tensors) =
        session.phase(PhaseName::Load, None, |session| load_phase(session, run))?;
    done.module_tensors = Some(
        tensors
            .iter()
            .map(module_tensor)
            .collect::<Result<_, _>>()?,
    );
    // What is held here would outlive a buffer that the model replaces; an optimizer holds parameters.
    match run.mode {
        Mode::Inference => tensors.clear(),
        Mode::Training { .. } => tensors.retain(|one| !one.is_buffer),
    }
    let method = Method::of(&module, &run.method)?;
    done.signature = Some(method.signature.clone());
    let arguments = session.phase(PhaseName::Inputs, None, |session| {
        let place = session.target.place;
        let chosen = match &run.inputs {
            Inputs::Arguments(given) => inputs::arguments(&module, &method, given, place)?,
            Inputs::File(path) => inputs::file::arguments(&module, &method, path, place)?,
        };
        session.arguments(&method, &chosen)?;
        Ok(chosen.values)
    })?;
    module.mark(run.lifetimes == Lifetimes::Python)?;
    let call = Call {
        module: &module,
        method: &method,
        arguments: &arguments,
        device: session.target.torch_name(),
        autocast: run.autocast.as_deref().map(scalar_type).transpose()?,
    };
    match run.mode {
        Mode::Inference => {
            let _no_grad = tch::no_grad_guard();
            let outputs = session.phase(PhaseName::Forward, None, |_session| {
                call.autocast(true)?;
                let outputs = train::recorded(|| call.run());
                call.autocast(false)?;
                outputs
            })?;
            session.outputs(&outputs)?;
        }
        Mode::Training {
            optimizer,
            implementation,
            loss,
            steps,
        } => {
            let plan = train::Plan {
                optimizer,
                implementation,
                loss,
                steps,
            };
            done.trained = train::train(session, &call, &tensors, plan)?;
        }
    }
    Ok(())
}

/// A method with its arguments, to be called as often as the run wants.
pub(crate) struct Call<'a> {
    module: &'a Module,
    method: &'a Method,
    arguments: &'a Values,
    device: &'static str,
    autocast: Option<i8>,
}

impl Call<'_> {
    /// Enters or leaves autocast, where the run asks for it.
    pub(crate) fn autocast(&self, on: bool) -> Result<(), Failure> {
        if let Some(dtype) = self.autocast {
            ffi::set_autocast(self.device, dtype, on)?;
        }
        Ok(())
    }

    /// Calls the method once.
    pub(crate) fn run(&self) -> Result<Values, Failure> {
        let signature = &self.method.signature;
        self.module
            .run(&signature.method, self.arguments)
            .map_err(
                |error| match Failure::torch(FailureKind::ModelError, &error) {
                    Failure::Told(mut told) => {
                        told.signature = Some(signature.clone());
                        Failure::Told(told)
                    }
                    output @ Failure::Output(_) => output,
                },
            )
    }
}

fn load_phase(
    session: &mut Session<'_>,
    run: &RunRequest,
) -> Result<(Module, Vec<NamedTensor>), Failure> {
    let target = session.target;
    let module = loaded(run, target)?;
    module.train(matches!(run.mode, Mode::Training { .. }))?;
    if let Some(path) = &run.weights {
        weights::load(&module, &module.tensors()?, path, target.place.computes)?;
    }
    let cast = run.cast.as_deref().map(scalar_type).transpose()?;
    if cast.is_some() && !target.on_cuda() {
        // What they were cast from is there beside them for a while.
        label_tensors(session, &module.tensors()?)?;
    }
    let moved = if target.on_cuda() || cast.is_some() {
        module.to(
            target.torch_name(),
            cast,
            run.lifetimes == Lifetimes::Python,
        )
    } else {
        Ok(())
    };
    // Also where memory ran out on the way: what had arrived by then is what held it.
    let tensors = module.tensors()?;
    label_tensors(session, &tensors)?;
    label_constants(session, &module, &tensors)?;
    moved?;
    Ok((module, tensors))
}

/// Says which memory is the module's parameters and buffers.
fn label_tensors(session: &mut Session<'_>, tensors: &[NamedTensor]) -> Result<(), Failure> {
    for one in tensors {
        let category = if one.is_buffer {
            Category::Buffers
        } else {
            Category::Parameters
        };
        session.label(&one.tensor, category, &one.name)?;
    }
    Ok(())
}

/// Loads the module on the CPU, from where `load_phase` moves it as `.to(device)` does; where it has constants, which
/// that leaves behind, straight to the device.
fn loaded(run: &RunRequest, target: Target) -> Result<Module, Failure> {
    let skip_data = !target.place.computes;
    let run_on = if target.on_cuda() { "cuda:0" } else { "cpu" };
    let module = load(&run.file, "cpu", run_on, skip_data)?;
    let stays = |tensor: &Tensor| tensor.dim() > 0;
    if target.on_cuda() && module.constants()?.iter().any(stays) {
        drop(module);
        return load(&run.file, target.torch_name(), run_on, skip_data);
    }
    Ok(module)
}

/// Says what constants are for: the weights of a module that has no parameters because it was frozen, else buffers.
fn label_constants(
    session: &mut Session<'_>,
    module: &Module,
    tensors: &[NamedTensor],
) -> Result<(), Failure> {
    let frozen = tensors.iter().all(|one| one.is_buffer);
    for (index, tensor) in module.constants()?.iter().enumerate() {
        let (scalar_type, _) = ffi::tensor_info(tensor)?;
        let weight = frozen && tensor.dim() > 0 && dtype::is_floating(&dtype::name_of(scalar_type));
        let category = if weight {
            Category::Parameters
        } else {
            Category::Buffers
        };
        session.label(tensor, category, &format!("constant {index}"))?;
    }
    Ok(())
}

fn scalar_type(name: &str) -> Result<i8, Failure> {
    dtype::scalar_type(name).ok_or_else(|| {
        Failure::new(
            FailureKind::Unsupported,
            format!("libtorch has no dtype `{name}`"),
        )
    })
}

fn module_tensor(one: &NamedTensor) -> Result<ModuleTensor, Failure> {
    let tensor = &one.tensor;
    let (kind, bytes) = ffi::tensor_info(tensor)?;
    let shape: Vec<u64> = tensor
        .size()
        .iter()
        .map(|size| u64::try_from(*size).unwrap_or(0))
        .collect();
    Ok(ModuleTensor {
        name: one.name.clone(),
        role: if one.is_buffer {
            ModuleTensorRole::Buffer
        } else {
            ModuleTensorRole::Parameter
        },
        dtype: dtype::name_of(kind),
        bytes,
        shape,
    })
}

/// Library functions whose memory or outputs the simulated device does not model, by name.
fn not_modelled() -> Result<Vec<NotModelled>, Failure> {
    let mut all: Vec<NotModelled> = ffi::simulated::functions()?
        .into_iter()
        .filter_map(|function| {
            let gap = match function.gap {
                1 => Gap::Outputs,
                2 => Gap::UnknownSize,
                3 => Gap::LowerBound,
                _ => return None, // nothing is missing
            };
            Some(NotModelled {
                library: function.library,
                function: function.name,
                gap,
            })
        })
        .collect();
    all.sort();
    Ok(all)
}
