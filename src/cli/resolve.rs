//! What the arguments mean.

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use regex::Regex;

use super::calibrate::Calibrate;
use super::gate::{CheckCommand, DiffCommand};
use super::input::BatchArgument;
use super::raw::{
    Cli, FitArgs, GpuArgs, InputArgs, InspectArgs, LimitArgs, RawCommand, ReplayArgs, ReportArgs,
    RunArgs, ShowArgs, SpecArgs, UnitsArg,
};
use super::validate::Validate;
use crate::engine::protocol::{Argument, Device, Lifetimes, Mode};
use crate::estimate::{Bound, DEFAULT_PROFILE, Profile};
use crate::simulate::{AllocConf, AllocConfError};
use crate::tensor::DType;
use crate::ui::{Target, Ui, Verbosity};
use crate::units::Units;

/// What the user wants.
#[derive(Debug, Clone)]
pub enum Command {
    /// Look at checkpoints, and perhaps run one.
    Inspect(Box<Inspect>),
    /// Find the largest batch that fits.
    Fit(Box<Fit>),
    /// Replay a recording of GPU memory.
    Replay(Replay),
    /// Compare the estimate with a measurement.
    Validate(Box<Validate>),
    /// Say what changed.
    Diff(DiffCommand),
    /// Compare with a baseline or a budget.
    Check(Box<CheckCommand>),
    /// Measure a GPU.
    Calibrate(Box<Calibrate>),
    /// Say what is installed.
    Doctor {
        /// As JSON.
        json: bool,
    },
    /// Print a completion script.
    Completions(clap_complete::Shell),
    /// Print the manual page, or write all of them to a folder.
    Man(Option<PathBuf>),
}

/// `inspect replay FILE`.
#[derive(Debug, Clone)]
pub struct Replay {
    /// The snapshot or trace.
    pub file: PathBuf,
    /// Capacity to try.
    pub memory_bytes: Option<u64>,
    /// Allocator settings to try, already checked.
    pub alloc_conf: Option<String>,
    /// Look for the least memory with which it still runs.
    pub smallest: bool,
    /// Groups of live memory to list.
    pub top: Option<usize>,
    /// The report's format.
    pub format: ReplayFormat,
    /// Where it goes.
    pub target: Target,
    /// How sizes are written.
    pub units: Units,
}

/// `inspect fit FILE`.
#[derive(Debug, Clone)]
pub struct Fit {
    /// The TorchScript file.
    pub file: PathBuf,
    /// The arguments, with the batch open; at least one depends on it.
    pub inputs: Vec<BatchArgument>,
    /// How it is run; its inputs are filled in batch by batch.
    pub run: RunPlan,
    /// The GPU to fit into.
    pub gpu: GpuPlan,
    /// Limits of the engine.
    pub limits: EngineLimits,
    /// Accept dangerous files.
    pub trust: bool,
    /// The report's format.
    pub format: ReplayFormat,
    /// Where it goes.
    pub target: Target,
    /// How sizes are written.
    pub units: Units,
}

/// What an estimate is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BasisArg {
    /// The simulated CUDA device; without one there is no estimate.
    CudaSim,
    /// The run on the CPU, put through the memory model.
    CpuTrace,
}

impl BasisArg {
    /// As it is typed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BasisArg::CudaSim => "cuda-sim",
            BasisArg::CpuTrace => "cpu-trace",
        }
    }
}

/// A replay's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReplayFormat {
    /// For a terminal.
    Table,
    /// The whole report for programs.
    Json,
}

/// `inspect FILE...`.
#[derive(Debug, Clone)]
pub struct Inspect {
    /// The checkpoints, at least one.
    pub files: Vec<PathBuf>,
    /// Look at all of them as one model.
    pub merge: bool,
    /// How to run them, where that is wanted.
    pub run: Option<RunPlan>,
    /// How to run a file that keeps inputs of its own, where none are given.
    pub sample_run: Option<RunPlan>,
    /// The first option that only a run gives a meaning; none where there is no such option.
    pub needs_run: Option<&'static str>,
    /// Inference or training, with a run or without.
    pub mode: Mode,
    /// Files for what a run recorded.
    pub save: Save,
    /// Print the schema of this method.
    pub signature: Option<String>,
    /// The GPU that the estimate is for; `None` leaves the estimate out.
    pub gpu: Option<GpuPlan>,
    /// Limits of the engine.
    pub limits: EngineLimits,
    /// Accept dangerous files.
    pub trust: bool,
    /// What to show.
    pub show: Show,
}

/// Files for what a run recorded.
#[derive(Debug, Clone, Default)]
pub struct Save {
    /// The trace, as JSON lines.
    pub trace: Option<Target>,
    /// The GPU's memory, as a PyTorch memory snapshot.
    pub snapshot: Option<Target>,
}

impl Save {
    /// The files.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.trace.iter().chain(&self.snapshot)
    }
}

/// One run of a model.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// What the method is called with.
    pub inputs: RunInputs,
    /// The method.
    pub method: String,
    /// Inference or training.
    pub mode: Mode,
    /// Where it runs.
    pub device: Device,
    /// Convert the weights first.
    pub cast: Option<DType>,
    /// Run under autocast.
    pub autocast: Option<DType>,
    /// Load these weights first.
    pub weights: Option<PathBuf>,
    /// How long values live.
    pub lifetimes: Lifetimes,
}

/// Where inputs come from.
#[derive(Debug, Clone)]
pub enum RunInputs {
    /// `--input`, once for each.
    Specs(Vec<Argument>),
    /// `--inputs`.
    File(PathBuf),
    /// Those that the file itself keeps.
    Own,
}

/// What `--profile` names.
#[derive(Debug, Clone)]
pub enum ProfileArg {
    /// A card that this version knows.
    Known(&'static Profile),
    /// A calibration.
    File(PathBuf),
}

/// The GPU that an estimate is for.
#[derive(Debug, Clone)]
pub struct GpuPlan {
    /// The card; the default one until the calibration is read that was given instead.
    pub profile: Profile,
    /// A calibration that describes the card.
    pub calibration: Option<PathBuf>,
    /// Whether the user named it: then the model has to fit.
    pub profile_given: bool,
    /// Memory to fit into.
    pub memory_bytes: Option<u64>,
    /// Settings of PyTorch's allocator, already checked.
    pub alloc_conf: Option<String>,
    /// What the estimate is made from; none is the best there is.
    pub basis: Option<BasisArg>,
    /// The estimate, or one that is never too low.
    pub bound: Bound,
}

impl GpuPlan {
    /// What the model has to fit into, where that was asked.
    #[must_use]
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.memory_bytes
            .or_else(|| self.profile_given.then_some(self.profile.total_bytes))
    }

    /// The allocator's settings.
    pub fn conf(&self) -> Result<AllocConf, AllocConfError> {
        AllocConf::parse(self.alloc_conf.as_deref().unwrap_or_default())
    }
}

/// Limits of the engine process.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineLimits {
    /// Longest time.
    pub timeout: Option<Duration>,
    /// Most memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Threads inside libtorch.
    pub threads: Option<u32>,
}

/// What to show, and where.
#[derive(Debug, Clone)]
pub struct Show {
    /// The report's format.
    pub format: ReportFormat,
    /// Where it goes.
    pub target: Target,
    /// How sizes are written.
    pub units: Units,
    /// Levels of the tree.
    pub depth: Option<usize>,
    /// Only tensors whose name matches.
    pub filter: Option<Regex>,
    /// A list in this order.
    pub sort: Option<SortKey>,
    /// Only the first rows.
    pub top: Option<usize>,
    /// Every row.
    pub all: bool,
    /// Every operator of a run.
    pub ops: bool,
    /// Sizes if cast.
    pub as_dtype: Option<DType>,
    /// What all data is read for.
    pub data: DataUse,
}

/// What all data of a file is read for; listing reads none.
#[derive(Debug, Clone, Copy, Default)]
pub struct DataUse {
    /// Compare it with its checksums.
    pub verify: bool,
    /// Find storages of equal bytes.
    pub hash: bool,
    /// Say what the numbers are like.
    pub stats: bool,
}

/// A report's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// For a terminal.
    Table,
    /// The whole report for programs.
    Json,
    /// For an issue or a wiki.
    Markdown,
    /// Tensors as rows.
    Csv,
    /// One page that needs nothing else.
    Html,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum SortKey {
    /// By name.
    Name,
    /// Largest first.
    Bytes,
    /// As in the file.
    File,
    /// Slowest first; without a run as in the file.
    Time,
}

impl Cli {
    /// The terminal as the user wants it.
    #[must_use]
    pub fn ui(&self) -> Ui {
        let verbosity = match (self.terminal.quiet, self.terminal.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        Ui::new(self.terminal.color, verbosity)
    }

    /// The arguments' meaning.
    #[must_use]
    pub fn resolve(self) -> Command {
        match self.command {
            Some(RawCommand::Fit(args)) => Command::Fit(Box::new(args.resolve())),
            Some(RawCommand::Replay(args)) => Command::Replay(args.resolve()),
            Some(RawCommand::Validate(args)) => Command::Validate(Box::new(args.resolve())),
            Some(RawCommand::Diff(args)) => Command::Diff(args.resolve()),
            Some(RawCommand::Check(args)) => Command::Check(Box::new(args.resolve())),
            Some(RawCommand::Calibrate(args)) => Command::Calibrate(Box::new(args.resolve())),
            Some(RawCommand::Man { output }) => Command::Man(output),
            Some(RawCommand::Doctor(args)) => Command::Doctor { json: args.json },
            Some(RawCommand::Completions { shell }) => Command::Completions(shell),
            None => Command::Inspect(Box::new(self.inspect.resolve())),
        }
    }
}

impl InspectArgs {
    fn resolve(self) -> Inspect {
        let sample_run = match self.files.as_slice() {
            [_] if !self.inputs.signature && !self.inputs.no_run => {
                let device = self.inputs.specs.device;
                Some(self.run.clone().resolve(RunInputs::Own, device))
            }
            _ => None,
        };
        Inspect {
            needs_run: self.needs_run(),
            files: self.files,
            merge: self.merge,
            signature: self.inputs.signature.then(|| self.run.method.clone()),
            mode: self.run.mode(),
            save: Save {
                trace: self
                    .inputs
                    .save_trace
                    .clone()
                    .map(|path| target(Some(path))),
                snapshot: self
                    .inputs
                    .save_snapshot
                    .clone()
                    .map(|path| target(Some(path))),
            },
            sample_run,
            run: self.inputs.resolve(self.run),
            gpu: (!self.sim.no_sim).then(|| GpuPlan {
                bound: self.sim.bound,
                ..self.gpu.resolve()
            }),
            limits: self.limits.resolve(),
            trust: self.limits.trust,
            show: self.show.resolve(),
        }
    }
}

impl InspectArgs {
    /// The first option that was given and says nothing without a run.
    fn needs_run(&self) -> Option<&'static str> {
        let (run, inputs, sim) = (&self.run, &self.inputs, &self.sim);
        let given = [
            ("--ops", self.show.ops),
            ("--cast", run.cast.is_some()),
            ("--autocast", run.autocast.is_some()),
            ("--weights", run.weights.is_some()),
            ("--lifetimes", run.lifetimes != Lifetimes::default()),
            ("--no-sim", sim.no_sim),
            ("--bound", sim.bound != Bound::Expected),
            ("--save-trace", inputs.save_trace.is_some()),
            ("--save-snapshot", inputs.save_snapshot.is_some()),
        ];
        let mut given = given.into_iter().filter(|(_, given)| *given);
        given.next().map(|(name, _)| name)
    }
}

impl GpuArgs {
    pub(super) fn resolve(self) -> GpuPlan {
        let profile_given = self.profile.is_some();
        let (profile, calibration) = match self.profile {
            Some(ProfileArg::Known(profile)) => (profile.clone(), None),
            Some(ProfileArg::File(path)) => (DEFAULT_PROFILE, Some(path)),
            None => (DEFAULT_PROFILE, None),
        };
        GpuPlan {
            profile,
            calibration,
            profile_given,
            memory_bytes: self.memory.map(|size| size.0),
            alloc_conf: self.alloc_conf,
            basis: self.basis,
            bound: Bound::Expected,
        }
    }
}

impl LimitArgs {
    pub(super) fn resolve(&self) -> EngineLimits {
        EngineLimits {
            timeout: self.timeout.as_ref().map(|timeout| timeout.0),
            memory_bytes: self.memory_limit.as_ref().map(|limit| limit.0),
            threads: self.threads,
        }
    }
}

impl InputArgs {
    /// `None` without inputs.
    fn resolve(self, run: RunArgs) -> Option<RunPlan> {
        let device = self.specs.device;
        match self.specs.resolve() {
            RunInputs::Specs(specs) if specs.is_empty() => None,
            inputs => Some(run.resolve(inputs, device)),
        }
    }
}

impl SpecArgs {
    pub(super) fn resolve(self) -> RunInputs {
        match self.inputs_file {
            Some(file) => RunInputs::File(file),
            None => RunInputs::Specs(self.inputs),
        }
    }
}

impl RunArgs {
    fn mode(&self) -> Mode {
        if !self.train {
            return Mode::Inference;
        }
        Mode::Training {
            optimizer: self.optimizer,
            implementation: self.optimizer_impl,
            loss: self.loss,
            steps: self.steps,
        }
    }

    pub(super) fn resolve(self, inputs: RunInputs, device: Device) -> RunPlan {
        RunPlan {
            inputs,
            mode: self.mode(),
            method: self.method,
            device,
            cast: self.cast,
            autocast: self.autocast,
            lifetimes: self.lifetimes,
            weights: self.weights,
        }
    }
}

impl FitArgs {
    fn resolve(self) -> Fit {
        let (format, target, units) = self.report.resolve();
        Fit {
            file: self.file,
            inputs: self.inputs,
            run: self
                .run
                .resolve(RunInputs::Specs(Vec::new()), Device::CudaSim),
            gpu: self.gpu.resolve(),
            limits: self.limits.resolve(),
            trust: self.limits.trust,
            format,
            target,
            units,
        }
    }
}

impl ReplayArgs {
    fn resolve(self) -> Replay {
        let (format, target, units) = self.report.resolve();
        Replay {
            file: self.file,
            memory_bytes: self.memory.map(|size| size.0),
            alloc_conf: self.alloc_conf,
            smallest: self.smallest,
            top: self.top.map(count),
            format,
            target,
            units,
        }
    }
}

pub(super) fn count(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// `-` and nothing are stdout.
pub(super) fn target(output: Option<PathBuf>) -> Target {
    match output {
        Some(path) if path.as_os_str() != "-" => Target::File(path),
        _ => Target::Stdout,
    }
}

impl<F: ValueEnum + Send + Sync> ReportArgs<F> {
    pub(super) fn resolve(self) -> (F, Target, Units) {
        let units = match self.units {
            UnitsArg::Iec => Units::Iec,
            UnitsArg::Si => Units::Si,
            UnitsArg::Bytes => Units::Bytes,
        };
        (self.format, target(self.output), units)
    }
}

impl ShowArgs {
    fn resolve(self) -> Show {
        let (format, target, units) = self.report.resolve();
        Show {
            format,
            target,
            units,
            depth: self.depth.map(count),
            filter: self.filter,
            sort: self.sort,
            top: self.top.map(count),
            all: self.all,
            ops: self.ops,
            as_dtype: self.as_dtype,
            data: DataUse {
                verify: self.data.verify,
                hash: self.data.hash,
                stats: self.data.stats,
            },
        }
    }
}
