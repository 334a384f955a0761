//! The files that a command reads, and those that it writes: none may be both.

use std::path::{Path, PathBuf};

use super::calibrate::Calibrate;
use super::gate::CheckCommand;
use super::resolve::{Command, GpuPlan, Inspect, RunInputs, RunPlan, Save};
use super::validate::Validate;
use crate::ui::Target;

impl Command {
    /// Every file that the command line names to be read; what those name in turn is known once they are read.
    #[must_use]
    pub fn reads(&self) -> Vec<&Path> {
        match self {
            Command::Inspect(inspect) => inspect.reads(),
            Command::Fit(fit) => with_gpu(with_run(&fit.file, &fit.run), &fit.gpu),
            Command::Calibrate(calibrate) => calibrate.reads(),
            Command::Replay(replay) => vec![&replay.file],
            Command::Validate(validate) => validate.reads(),
            Command::Diff(diff) => vec![&diff.old, &diff.new],
            Command::Check(check) => check.reads(),
            Command::Doctor { .. } | Command::Completions(_) | Command::Man(_) => Vec::new(),
        }
    }

    /// Every place that it writes a file to.
    #[must_use]
    pub fn writes(&self) -> Vec<Target> {
        match self {
            Command::Inspect(inspect) => inspect.writes(),
            Command::Validate(validate) => all(&validate.target, &validate.save),
            Command::Check(check) => check.writes(),
            Command::Fit(fit) => vec![fit.target.clone()],
            Command::Replay(replay) => vec![replay.target.clone()],
            Command::Diff(diff) => vec![diff.target.clone()],
            Command::Calibrate(calibrate) => vec![calibrate.target.clone()],
            Command::Doctor { .. } | Command::Completions(_) | Command::Man(_) => Vec::new(),
        }
    }
}

impl Command {
    /// The GPU that it estimates for.
    pub fn gpu(&mut self) -> Option<&mut GpuPlan> {
        match self {
            Command::Inspect(inspect) => inspect.gpu.as_mut(),
            Command::Fit(fit) => Some(&mut fit.gpu),
            Command::Validate(validate) => Some(&mut validate.gpu),
            Command::Calibrate(calibrate) => Some(&mut calibrate.gpu),
            Command::Replay(_)
            | Command::Diff(_)
            | Command::Check(_)
            | Command::Doctor { .. }
            | Command::Completions(_)
            | Command::Man(_) => None,
        }
    }
}

impl Inspect {
    fn reads(&self) -> Vec<&Path> {
        let files = self.files.iter().map(PathBuf::as_path);
        let calibration = self.gpu.iter().flat_map(|gpu| &gpu.calibration);
        files
            .chain(self.run.iter().flat_map(RunPlan::reads))
            .chain(calibration.map(PathBuf::as_path))
            .collect()
    }

    /// Every place that it writes a file to.
    #[must_use]
    pub fn writes(&self) -> Vec<Target> {
        all(&self.show.target, &self.save)
    }
}

impl Validate {
    fn reads(&self) -> Vec<&Path> {
        let mut all = with_gpu(with_run(&self.file, &self.run), &self.gpu);
        all.extend(self.snapshot.as_deref());
        all
    }
}

impl Calibrate {
    fn reads(&self) -> Vec<&Path> {
        let files = self.files.iter().map(PathBuf::as_path);
        with_gpu(files.chain(self.run.reads()).collect(), &self.gpu)
    }
}

impl CheckCommand {
    /// A baseline that is written anew is read to be replaced.
    fn reads(&self) -> Vec<&Path> {
        let baseline = self.baseline.iter().filter(|_| !self.update_baseline);
        let files = self.files.iter().chain(&self.budget).chain(baseline);
        files
            .map(PathBuf::as_path)
            .chain(self.options.files())
            .collect()
    }

    /// Every place that it writes a file to.
    #[must_use]
    pub fn writes(&self) -> Vec<Target> {
        let baseline = self.baseline.iter().filter(|_| self.update_baseline);
        let baseline = baseline.map(|path| Target::File(path.clone()));
        std::iter::once(self.target.clone())
            .chain(baseline)
            .collect()
    }
}

impl RunPlan {
    fn reads(&self) -> impl Iterator<Item = &Path> {
        let inputs = match &self.inputs {
            RunInputs::Specs(_) | RunInputs::Own => None,
            RunInputs::File(path) => Some(path),
        };
        inputs
            .into_iter()
            .chain(&self.weights)
            .map(PathBuf::as_path)
    }
}

fn with_run<'a>(file: &'a Path, run: &'a RunPlan) -> Vec<&'a Path> {
    std::iter::once(file).chain(run.reads()).collect()
}

fn with_gpu<'a>(mut files: Vec<&'a Path>, gpu: &'a GpuPlan) -> Vec<&'a Path> {
    files.extend(gpu.calibration.as_deref());
    files
}

fn all(target: &Target, save: &Save) -> Vec<Target> {
    std::iter::once(target)
        .chain(save.targets())
        .cloned()
        .collect()
}
