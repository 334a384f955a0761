//! `inspect diff` and `inspect check`: arguments, and what they mean.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueHint};

use super::raw::{GpuArgs, LimitArgs, ReportArgs, RunArgs, SimArgs, SpecArgs};
use super::resolve::{EngineLimits, ProfileArg, count};
use crate::check::{CODES, Deny, Limit, RunOptions, Tolerance};
use crate::diff::metrics::CATALOGUE;
use crate::engine::protocol::{Argument, Device, InputValue, Lifetimes};
use crate::estimate::Bound;
use crate::ui::Target;
use crate::units::Units;

/// `inspect diff`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one flag of the command line each"
)]
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// A checkpoint, or a report saved with `--format json -o FILE`.
    #[arg(value_name = "OLD", value_hint = ValueHint::FilePath)]
    old: PathBuf,
    /// Another.
    #[arg(value_name = "NEW", value_hint = ValueHint::FilePath)]
    new: PathBuf,
    /// Read all data and compare the numbers themselves.
    #[arg(long)]
    values: bool,
    /// Read all data and compare by hashes: renamed tensors are known for sure.
    #[arg(long)]
    hash: bool,
    /// Exit with 1 where anything differs.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    report: ReportArgs<DiffFormat>,
    /// Levels of the tree of modules [default: as many as fit a screen].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// Rows of each list [default: 20].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
          conflicts_with = "all")]
    top: Option<u32>,
    /// Every row.
    #[arg(long)]
    all: bool,
}

/// `inspect check`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("any_input").args(["inputs", "inputs_file"]).multiple(true),
    group = ArgGroup::new("gate").args(["baseline", "budget", "max", "deny"]).required(true).multiple(true),
    override_usage = "inspect check <FILE> --baseline <FILE> [OPTIONS]\n       \
                      inspect check --budget <FILE> [FILE]... [OPTIONS]\n       \
                      inspect check <FILE>... --max <METRIC=LIMIT> [--deny <CODE>] [OPTIONS]",
    after_long_help = words_help(),
)]
pub(super) struct CheckArgs {
    /// Checkpoints; with --budget those of its files that are named, or all.
    #[arg(value_name = "FILE", required_unless_present = "budget",
          value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    gate: GateArgs,
    #[command(flatten)]
    inputs: SpecArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    gpu: GpuArgs,
    #[command(flatten)]
    sim: SimArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten, next_help_heading = "What to show")]
    report: ReportArgs<CheckFormat>,
    /// Also what is as it was.
    #[arg(long, help_heading = "What to show")]
    all: bool,
}

/// What `--max` and `--deny` can name.
fn words_help() -> String {
    let mut text = "Metrics of --max (`_bytes` may be left out):\n".to_owned();
    for kind in CATALOGUE {
        let _ = writeln!(text, "  {:<29}  {}", kind.name, kind.about);
    }
    text.push_str("\nCodes of --deny, besides info, warning and error:\n");
    for (code, about) in CODES {
        let _ = writeln!(text, "  {code:<22}  {about}");
    }
    text
}

/// What is compared with what.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to check")]
#[group(skip)]
struct GateArgs {
    /// Compare with this baseline; its options repeat its run.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    baseline: Option<PathBuf>,
    /// Write the baseline anew from this run.
    #[arg(long, requires = "baseline")]
    update_baseline: bool,
    /// How far a number may go: `peak_reserved=+2%`, `file_bytes=120MB`,
    /// `parameters=12M`; once for each.
    #[arg(long, value_name = "METRIC=LIMIT")]
    max: Vec<Limit>,
    /// How far exact numbers without --max may grow, such as 0 or 2%.
    #[arg(long, value_name = "T", default_value = "0", requires = "baseline")]
    tolerance: Tolerance,
    /// Absolute limits for several files.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["baseline", "max", "inputs", "inputs_file", "train", "measured",
                                "method", "profile", "memory", "alloc_conf", "basis", "bound", "device"])]
    budget: Option<PathBuf>,
    /// Fail on new findings with this code (`storage-slack`, `dtype-mix`,
    /// `nan`, ...), or as serious as `warning`; once for each.
    #[arg(long, value_name = "CODE")]
    deny: Vec<Deny>,
    /// Fail where the baseline is out of date, improvements included.
    #[arg(long)]
    strict: bool,
    /// Also check what was measured, 5% more allowed.
    #[arg(long)]
    measured: bool,
}

/// A difference's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum DiffFormat {
    /// For a terminal.
    Table,
    /// The whole difference for programs.
    Json,
    /// For a pull request.
    Markdown,
}

/// A check's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckFormat {
    /// For a terminal.
    Table,
    /// Everything for programs.
    Json,
    /// For a pull request or a job summary.
    Markdown,
    /// For a CI server: a case a number.
    Junit,
    /// For code scanning: findings and regressions.
    Sarif,
}

/// `inspect diff OLD NEW`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one flag of the command line each"
)]
#[derive(Debug, Clone)]
pub struct DiffCommand {
    /// The old checkpoint or report.
    pub old: PathBuf,
    /// The new one.
    pub new: PathBuf,
    /// Compare numbers.
    pub values: bool,
    /// Compare by hashes.
    pub hash: bool,
    /// Exit with 1 on any difference.
    pub exit_code: bool,
    /// The report's format.
    pub format: DiffFormat,
    /// Where it goes.
    pub target: Target,
    /// How sizes are written.
    pub units: Units,
    /// Levels of the tree.
    pub depth: Option<usize>,
    /// Rows of each list.
    pub top: Option<usize>,
    /// Every row.
    pub all: bool,
}

/// `inspect check FILE...`.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one flag of the command line each"
)]
#[derive(Debug, Clone)]
pub struct CheckCommand {
    /// The checkpoints; none with a budget that names them.
    pub files: Vec<PathBuf>,
    /// The baseline.
    pub baseline: Option<PathBuf>,
    /// Write it anew.
    pub update_baseline: bool,
    /// The budget.
    pub budget: Option<PathBuf>,
    /// Limits of single numbers.
    pub limits: Vec<Limit>,
    /// Of exact numbers without one.
    pub tolerance: Tolerance,
    /// What may not be found.
    pub deny: Vec<Deny>,
    /// Whether an out-of-date baseline fails.
    pub strict: bool,
    /// How the files are run, as far as the command line says.
    pub options: RunOptions,
    /// Limits of the engine.
    pub engine: EngineLimits,
    /// Accept dangerous files.
    pub trust: bool,
    /// The report's format.
    pub format: CheckFormat,
    /// Where it goes.
    pub target: Target,
    /// How sizes are written.
    pub units: Units,
    /// Also what is as it was.
    pub all: bool,
}

impl DiffArgs {
    pub(super) fn resolve(self) -> DiffCommand {
        let (format, target, units) = self.report.resolve();
        DiffCommand {
            old: self.old,
            new: self.new,
            values: self.values,
            hash: self.hash,
            exit_code: self.exit_code,
            format,
            target,
            units,
            depth: self.depth.map(count),
            top: self.top.map(count),
            all: self.all,
        }
    }
}

impl CheckArgs {
    pub(super) fn resolve(self) -> CheckCommand {
        let options = self.options();
        let (format, target, units) = self.report.resolve();
        CheckCommand {
            files: self.files,
            baseline: self.gate.baseline,
            update_baseline: self.gate.update_baseline,
            budget: self.gate.budget,
            limits: self.gate.max,
            tolerance: self.gate.tolerance,
            deny: self.gate.deny,
            strict: self.gate.strict,
            options,
            engine: self.limits.resolve(),
            trust: self.limits.trust,
            format,
            target,
            units,
            all: self.all,
        }
    }

    /// The run as a baseline keeps it: what is not the default, and all of a training run.
    fn options(&self) -> RunOptions {
        // Named one by one, so that a new option cannot be forgotten here.
        let SpecArgs {
            inputs,
            inputs_file,
            device,
        } = &self.inputs;
        let RunArgs {
            method,
            train,
            optimizer,
            optimizer_impl,
            loss,
            steps,
            cast,
            autocast,
            weights,
            lifetimes,
        } = &self.run;
        let GpuArgs {
            profile,
            memory,
            alloc_conf,
            basis,
        } = &self.gpu;
        let SimArgs { no_sim, bound } = &self.sim;
        let (profile, calibration) = match profile {
            Some(ProfileArg::Known(profile)) => (Some(profile.name.clone().into_owned()), None),
            Some(ProfileArg::File(path)) => (None, Some(path.clone())),
            None => (None, None),
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let training = |value: &str| train.then(|| value.to_owned());
        RunOptions {
            input: inputs.iter().map(argument).collect(),
            inputs: path(inputs_file),
            device: (*device != Device::Cpu).then(|| device.to_string()),
            method: (method != "forward").then(|| method.clone()),
            train: *train,
            optimizer: training(optimizer.name()),
            optimizer_impl: optimizer_impl.map(|kind| kind.name().to_owned()),
            loss: training(loss.name()),
            steps: train.then_some(*steps),
            cast: cast.map(|dtype| dtype.name().to_owned()),
            autocast: autocast.map(|dtype| dtype.name().to_owned()),
            weights: path(weights),
            lifetimes: (*lifetimes != Lifetimes::default()).then(|| lifetimes.name().to_owned()),
            profile,
            calibration: path(&calibration),
            memory: memory.map(|size| size.0.to_string()),
            alloc_conf: alloc_conf.clone(),
            basis: basis.map(|basis| basis.name().to_owned()),
            no_sim: *no_sim,
            bound: (*bound != Bound::Expected).then(|| bound.name().to_owned()),
            measured: self.gate.measured,
        }
    }
}

/// An input as it was typed.
fn argument(argument: &Argument) -> String {
    let text = match &argument.value {
        InputValue::Spec(spec) => spec.text.as_str(),
        // The command line makes specs only.
        _ => "",
    };
    match &argument.name {
        Some(name) => format!("{name}={text}"),
        None => text.to_owned(),
    }
}
