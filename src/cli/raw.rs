//! Arguments as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, ArgGroup, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use regex::Regex;

use super::calibrate::CalibrateArgs;
use super::gate::{CheckArgs, DiffArgs};
use super::input::{BatchArgument, parse_argument};
use super::resolve::{BasisArg, ProfileArg, ReplayFormat, ReportFormat, SortKey};
use super::validate::ValidateArgs;
use super::values::{
    DurationArg, parse_autocast, parse_cast, parse_device, parse_dtype, parse_memory,
};
use crate::check::is_calibration;
use crate::engine::protocol::{Argument, Device, Lifetimes, Loss, Optimizer, OptimizerImpl};
use crate::estimate::{Bound, Profile};
use crate::simulate::AllocConf;
use crate::tensor::DType;
use crate::ui::ColorChoice;
use crate::units::ByteSize;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// What is in a PyTorch checkpoint, and what it does with an input.
#[derive(Debug, Parser)]
#[command(
    name = "inspect",
    version,
    long_version = super::LONG_VERSION,
    styles = STYLES,
    max_term_width = 80,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    override_usage = "inspect <FILE>... [--input SPEC]... [OPTIONS]\n       inspect <COMMAND>",
    after_help = "Exit codes: 0 done, 1 the answer is no, 2 bad usage or a file that cannot be \
                  read or trusted, 3 no engine or it failed, 130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<RawCommand>,
    #[command(flatten)]
    pub(super) inspect: InspectArgs,
    #[command(flatten)]
    pub(super) terminal: TerminalArgs,
}

/// A line without a command.
#[derive(Debug, Parser)]
struct Plain {
    #[command(flatten)]
    inspect: InspectArgs,
    #[command(flatten)]
    terminal: TerminalArgs,
}

impl Cli {
    /// Reads a line of arguments, the program's name first. To define all commands takes as long as to list a small
    /// file, so a line that names none is read without them; help, version and what is wrong are left to the whole.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
        let line: Vec<OsString> = line.into_iter().collect();
        let mut words = line.iter().filter_map(|word| word.to_str());
        if !words.any(RawCommand::has_subcommand)
            && let Ok(Plain { inspect, terminal }) = Plain::try_parse_from(&line)
        {
            return Ok(Cli {
                command: None,
                inspect,
                terminal,
            });
        }
        Cli::try_parse_from(line)
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum RawCommand {
    /// Find the largest batch that fits into a GPU's memory.
    Fit(Box<FitArgs>),
    /// What changed between two checkpoints, or two saved reports.
    Diff(DiffArgs),
    /// For CI: compare with a baseline or a budget; exit with 1 on a regression.
    Check(Box<CheckArgs>),
    /// Compare the estimate with a measurement; exit with 1 where it is off.
    Validate(Box<ValidateArgs>),
    /// Measure a GPU: what `--profile FILE` then knows of it anywhere.
    Calibrate(Box<CalibrateArgs>),
    /// Say what is installed: engine, libtorch, devices.
    Doctor(DoctorArgs),
    /// Replay a PyTorch memory snapshot or a saved trace on the memory model.
    Replay(ReplayArgs),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page, or write the pages of all commands.
    Man {
        /// Write `inspect.1`, `inspect-check.1`, ... to this folder.
        #[arg(short, long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// A pickle of `torch.cuda.memory._dump_snapshot`, or a saved trace.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) file: PathBuf,
    /// What if the card had this much memory, such as 8GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(super) memory: Option<ByteSize>,
    /// What if the allocator had these settings, as in PYTORCH_ALLOC_CONF.
    #[arg(long, value_name = "CONF", value_parser = parse_alloc_conf)]
    pub(super) alloc_conf: Option<String>,
    /// Also look for the least memory with which it still runs.
    #[arg(long)]
    pub(super) smallest: bool,
    /// Only the N largest groups of live memory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) top: Option<u32>,
    #[command(flatten)]
    pub(super) report: ReportArgs<ReplayFormat>,
}

/// The format of a report, where it goes, and how it writes sizes.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct ReportArgs<F: ValueEnum + Send + Sync + 'static> {
    /// The report's format.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub(super) format: F,
    /// Write the report to this file; `-` is stdout.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) output: Option<PathBuf>,
    /// Sizes in KiB, MiB, ... (iec), kB, MB, ... (si), or exact.
    #[arg(long, value_enum, value_name = "UNITS", default_value = "iec")]
    pub(super) units: UnitsArg,
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Print the answer as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("any_input").args(["inputs", "inputs_file"]).multiple(true))]
pub(super) struct InspectArgs {
    /// Checkpoints to look at, or a folder of them; a file named like a command
    /// is `./diff`.
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(super) files: Vec<PathBuf>,
    /// The files are parts of one model: look at them as one.
    #[arg(long, conflicts_with_all = ["any_input", "signature"])]
    pub(super) merge: bool,
    #[command(flatten)]
    pub(super) inputs: InputArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) gpu: GpuArgs,
    #[command(flatten)]
    pub(super) sim: SimArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) show: ShowArgs,
}

/// `inspect fit`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("any_input").args(["inputs"]).multiple(true))]
#[command(
    group = ArgGroup::new("capacity").args(["memory", "profile"]).required(true).multiple(true),
    override_usage = "inspect fit <FILE> --input <SPEC>... --memory <SIZE> [OPTIONS]"
)]
pub(super) struct FitArgs {
    /// A TorchScript file or an exported program.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) file: PathBuf,
    /// One argument of the model, as in a run, with `B` for the batch:
    /// `Bx3x224x224`; once for each.
    #[arg(
        long = "input",
        value_name = "SPEC",
        required = true,
        allow_hyphen_values = true
    )]
    pub(super) inputs: Vec<BatchArgument>,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) gpu: GpuArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) report: ReportArgs<ReplayFormat>,
}

/// What the model is called with, and where.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to run")]
#[group(skip)]
pub(super) struct SpecArgs {
    /// One argument of the model: `[NAME=]DIMS[:DTYPE][@FILL]`, a number, true,
    /// false, none or a text; once for each. `1x3x224x224`,
    /// `ids=1x128:int64@0..30522`, `[]:float32`.
    #[arg(long = "input", value_name = "SPEC", value_parser = parse_argument,
          allow_hyphen_values = true)]
    pub(super) inputs: Vec<Argument>,
    /// Real inputs: a `.pt` with a tensor, tuple, list or dict, or a `.json`
    /// that nests SPECs.
    #[arg(long = "inputs", value_name = "FILE", conflicts_with = "inputs",
          value_hint = ValueHint::FilePath)]
    pub(super) inputs_file: Option<PathBuf>,
    /// Where to run: cpu, cuda[:N] or cuda-sim.
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = parse_device)]
    pub(super) device: Device,
}

/// What the model is called with, and what is kept of the run.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to run")]
#[group(skip)]
pub(super) struct InputArgs {
    #[command(flatten)]
    pub(super) specs: SpecArgs,
    /// Print the method's schema.
    #[arg(long)]
    pub(super) signature: bool,
    /// Save the trace of the run on the GPU, real or simulated (with --no-sim:
    /// of the CPU's), for `inspect replay`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) save_trace: Option<PathBuf>,
    /// Save the GPU memory of the run as a PyTorch memory snapshot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) save_snapshot: Option<PathBuf>,
    /// Only list an exported program, which otherwise runs with the inputs that
    /// its file keeps.
    #[arg(long, conflicts_with_all = ["any_input", "save_trace", "save_snapshot", "cast", "autocast",
                                      "weights", "lifetimes", "no_sim", "bound", "ops"])]
    pub(super) no_run: bool,
}

/// How the model is run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "What to run")]
#[group(skip)]
pub(super) struct RunArgs {
    /// The method to call.
    #[arg(long, value_name = "NAME", default_value = "forward")]
    pub(super) method: String,
    /// Forward, backward and an optimizer step instead of inference.
    #[arg(long)]
    pub(super) train: bool,
    /// The optimizer, with torch.optim's defaults.
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        default_value = "sgd",
        requires = "train"
    )]
    pub(super) optimizer: Optimizer,
    /// How torch.optim applies it [default: what torch.optim does on the device].
    #[arg(long, value_enum, value_name = "KIND", requires = "train")]
    pub(super) optimizer_impl: Option<OptimizerImpl>,
    /// What is differentiated.
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value = "mean",
        requires = "train"
    )]
    pub(super) loss: Loss,
    /// Training steps.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "train",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) steps: u32,
    /// Convert the weights to this dtype first.
    #[arg(long, value_name = "DTYPE", value_parser = parse_cast)]
    pub(super) cast: Option<DType>,
    /// Run under autocast with this dtype.
    #[arg(long, value_name = "DTYPE", value_parser = parse_autocast)]
    pub(super) autocast: Option<DType>,
    /// Load this state_dict into the model before running.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) weights: Option<PathBuf>,
    /// How long values live: until their last use, as TorchScript runs them, or
    /// as long as an eager Python module's variables hold them.
    #[arg(long, value_enum, value_name = "KIND", default_value = "torchscript")]
    pub(super) lifetimes: Lifetimes,
}

/// The GPU that the estimate is for.
#[derive(Debug, Args)]
#[command(next_help_heading = "GPU memory")]
pub(super) struct GpuArgs {
    /// The card to estimate for and fit into, such as rtx-4090 or h100, or a
    /// file of `inspect calibrate`.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_profile, value_hint = ValueHint::FilePath)]
    pub(super) profile: Option<ProfileArg>,
    /// Memory to fit into, such as 8GiB.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(super) memory: Option<ByteSize>,
    /// Settings of PyTorch's allocator, as in PYTORCH_ALLOC_CONF.
    #[arg(long, value_name = "CONF", value_parser = parse_alloc_conf)]
    pub(super) alloc_conf: Option<String>,
    /// What the estimate is made from: libtorch's CUDA code on the simulated
    /// device, or the CPU's run [default: the device, where there is one].
    #[arg(long, value_enum, value_name = "KIND")]
    pub(super) basis: Option<BasisArg>,
}

/// Whether there is an estimate, and which.
#[derive(Debug, Args)]
#[command(next_help_heading = "GPU memory")]
pub(super) struct SimArgs {
    /// No estimate: no run on the simulated CUDA device beside the CPU's.
    #[arg(long, conflicts_with = "basis")]
    pub(super) no_sim: bool,
    /// The estimate of a run, or one that should never be too low.
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value = "expected",
        conflicts_with = "no_sim"
    )]
    pub(super) bound: Bound,
}

/// A name is one that this version knows.
pub(super) fn parse_profile(text: &str) -> Result<ProfileArg, String> {
    match Profile::find(text) {
        Ok(profile) => Ok(ProfileArg::Known(profile)),
        Err(_) if is_calibration(text) => Ok(ProfileArg::File(text.into())),
        Err(error) => Err(format!(
            "{error}; or the file of a calibration, with `.json` at its end"
        )),
    }
}

fn parse_alloc_conf(text: &str) -> Result<String, String> {
    AllocConf::parse(text)
        .map(|_| text.to_owned())
        .map_err(|error| error.to_string())
}

/// Limits of the engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Longest time the engine may take, such as 90s or 5m [default: 10m].
    #[arg(long, value_name = "DUR")]
    pub(super) timeout: Option<DurationArg>,
    /// Most memory the engine may take, such as 8GiB [default: all of this
    /// machine's].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(super) memory_limit: Option<ByteSize>,
    /// Threads inside libtorch [default: libtorch's choice].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) threads: Option<u32>,
    /// Accept a file in spite of a dangerous verdict.
    #[arg(long)]
    pub(super) trust: bool,
}

/// What to show.
#[derive(Debug, Args)]
#[command(next_help_heading = "What to show")]
pub(super) struct ShowArgs {
    #[command(flatten)]
    pub(super) report: ReportArgs<ReportFormat>,
    /// Levels of the tree [default: as many as fit a screen or two].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) depth: Option<u32>,
    /// Only tensors whose name matches.
    #[arg(long, value_name = "REGEX")]
    pub(super) filter: Option<Regex>,
    /// A list in this order instead of a tree.
    #[arg(long, value_enum, value_name = "KEY")]
    pub(super) sort: Option<SortKey>,
    /// Only the first N rows; the largest, without --sort.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) top: Option<u32>,
    /// Every row: repeated layers are not collapsed, nothing is left out.
    #[arg(long)]
    pub(super) all: bool,
    /// Also every operator of the run, in order.
    #[arg(long)]
    pub(super) ops: bool,
    #[command(flatten)]
    pub(super) data: DataArgs,
    /// Also the sizes if floating tensors were cast to this dtype.
    #[arg(long = "as", value_name = "DTYPE", value_parser = parse_dtype)]
    pub(super) as_dtype: Option<DType>,
}

/// What all data is read for.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct DataArgs {
    /// Read all data and compare it with the file's checksums.
    #[arg(long)]
    pub(super) verify: bool,
    /// Read all data: min, max, mean, std, NaN, Inf and zeros of every tensor.
    #[arg(long)]
    pub(super) stats: bool,
    /// Read all data and name storages with the same bytes.
    #[arg(long)]
    pub(super) hash: bool,
}

/// `--units`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum UnitsArg {
    /// MiB = 2^20 bytes.
    Iec,
    /// MB = 10^6 bytes.
    Si,
    /// Exact bytes.
    Bytes,
}

/// What the terminal sees.
#[derive(Debug, Args)]
#[command(next_help_heading = "Terminal")]
pub(super) struct TerminalArgs {
    /// When to use colour.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        global = true
    )]
    pub(super) color: ColorChoice,
    /// Errors only on stderr.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Also what is done on the way.
    #[arg(short, long, global = true, action = ArgAction::SetTrue)]
    pub(super) verbose: bool,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Cli;

    #[test]
    fn a_line_without_a_command_means_the_same_without_the_commands() {
        let lines = [
            "a.pt",
            "a.pt b.pt --top 3 -q --color never",
            "a.pt --input 1x3 --train",
            "dif a.pt",
            "diff a.pt b.pt",
            "-- diff",
            "--help",
            "--bogus",
            "",
        ];
        for line in lines {
            let words = ["inspect"].into_iter().chain(line.split_whitespace());
            let read = Cli::read(words.clone().map(Into::into));
            let [read, whole] = [read, Cli::try_parse_from(words)]
                .map(|cli| cli.map_err(|error| error.to_string()));
            assert_eq!(format!("{read:?}"), format!("{whole:?}"), "{line}");
        }
    }

    #[test]
    fn clap_finds_no_fault() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_eighty_columns() {
        let mut command = Cli::command().term_width(80);
        command.build();
        let mut texts = vec![command.render_help(), command.render_long_help()];
        for sub in command.get_subcommands_mut() {
            texts.push(sub.render_long_help());
        }
        for text in texts {
            for line in text.to_string().lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}
