//! `inspect calibrate`: arguments, and what they mean.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::raw::GpuArgs;
use super::raw::{LimitArgs, RunArgs, SpecArgs, parse_profile};
use super::resolve::{EngineLimits, GpuPlan, ProfileArg, RunInputs, RunPlan, target};
use crate::ui::Target;

/// `inspect calibrate`.
#[derive(Debug, Args)]
#[command(
    mut_arg("device", |device| device.default_value("cuda")),
    override_usage = "inspect calibrate [OPTIONS]\n       \
                      inspect calibrate <FILE>... --input <SPEC>... [--train] [OPTIONS]",
    group = clap::ArgGroup::new("any_input").args(["inputs", "inputs_file"]).multiple(true)
)]
pub(super) struct CalibrateArgs {
    /// Models whose convolutions are measured: cuDNN's workspaces depend on the
    /// network, its input and, for the backward pass, `--train`.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Write the calibration to this file; `-` is stdout.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Keep the convolutions that the file has already, of the same card.
    #[arg(long, requires = "output")]
    add: bool,
    #[command(flatten)]
    inputs: SpecArgs,
    #[command(flatten)]
    run: RunArgs,
    /// The card that the simulated device is like, with `--device cuda-sim`.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_profile, value_hint = ValueHint::FilePath)]
    profile: Option<ProfileArg>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// `inspect calibrate`.
#[derive(Debug, Clone)]
pub struct Calibrate {
    /// The models to run.
    pub files: Vec<PathBuf>,
    /// How each is run; its inputs are the file itself where none are given.
    pub run: RunPlan,
    /// Whether inputs were given.
    pub has_inputs: bool,
    /// Keep what the output has.
    pub add: bool,
    /// The card that the simulated device is like.
    pub gpu: GpuPlan,
    /// Limits of the engine.
    pub limits: EngineLimits,
    /// Accept dangerous files.
    pub trust: bool,
    /// Where the calibration goes.
    pub target: Target,
}

impl CalibrateArgs {
    pub(super) fn resolve(self) -> Calibrate {
        let device = self.inputs.device;
        let inputs = self.inputs.resolve();
        let has_inputs = !matches!(&inputs, RunInputs::Specs(specs) if specs.is_empty());
        let gpu = GpuArgs {
            profile: self.profile,
            memory: None,
            alloc_conf: None,
            basis: None,
        };
        Calibrate {
            files: self.files,
            run: self.run.resolve(inputs, device),
            has_inputs,
            add: self.add,
            gpu: gpu.resolve(),
            limits: self.limits.resolve(),
            trust: self.limits.trust,
            target: target(self.output),
        }
    }
}
