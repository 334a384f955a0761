//! `inspect validate`: arguments, and what they mean.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueHint};

use super::raw::{GpuArgs, LimitArgs, ReportArgs, RunArgs, SpecArgs};
use super::resolve::{EngineLimits, GpuPlan, ReplayFormat, RunPlan, Save, target};
use crate::check::Tolerance;
use crate::ui::Target;
use crate::units::Units;

/// `inspect validate`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("any_input").args(["inputs", "inputs_file"]).multiple(true),
    override_usage = "inspect validate <FILE> --input <SPEC>... [--device <DEVICE>] [OPTIONS]\n       \
                      inspect validate <FILE> --input <SPEC>... --snapshot <FILE> [OPTIONS]"
)]
pub(super) struct ValidateArgs {
    /// A TorchScript file or an exported program.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Compare with this pickle of `torch.cuda.memory._dump_snapshot`, or saved
    /// trace, instead of a run on the device.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "device")]
    snapshot: Option<PathBuf>,
    /// How far the estimate may be off, such as 5%.
    #[arg(long, value_name = "T", default_value = "5%")]
    tolerance: Tolerance,
    #[command(flatten)]
    inputs: SpecArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Save the trace of the measured run, for `inspect replay`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "snapshot",
          help_heading = "What to run")]
    save_trace: Option<PathBuf>,
    /// Save the GPU memory of the measured run as a PyTorch memory snapshot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "snapshot",
          help_heading = "What to run")]
    save_snapshot: Option<PathBuf>,
    #[command(flatten)]
    gpu: GpuArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    report: ReportArgs<ReplayFormat>,
}

/// `inspect validate FILE`.
#[derive(Debug, Clone)]
pub struct Validate {
    /// The TorchScript file.
    pub file: PathBuf,
    /// How it is run; its device is the one that measures, unless there is a snapshot.
    pub run: RunPlan,
    /// The recording to compare with.
    pub snapshot: Option<PathBuf>,
    /// How far the estimate may be off.
    pub tolerance: Tolerance,
    /// Files for what the measured run recorded.
    pub save: Save,
    /// The GPU that the estimate is for.
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

impl ValidateArgs {
    pub(super) fn resolve(self) -> Validate {
        let device = self.inputs.device;
        let save = |path: Option<PathBuf>| path.map(|path| target(Some(path)));
        let (format, target, units) = self.report.resolve();
        Validate {
            file: self.file,
            run: self.run.resolve(self.inputs.resolve(), device),
            snapshot: self.snapshot,
            tolerance: self.tolerance,
            save: Save {
                trace: save(self.save_trace),
                snapshot: save(self.save_snapshot),
            },
            gpu: self.gpu.resolve(),
            limits: self.limits.resolve(),
            trust: self.limits.trust,
            format,
            target,
            units,
        }
    }
}
