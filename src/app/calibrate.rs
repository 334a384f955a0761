//! `inspect calibrate`: measures a GPU, and what cuDNN needs there for the convolutions of the models given.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::simulated::{self, SimulatedRun};
use super::{Context, Exit, Failure, limited_options, run};
use crate::cli::{Calibrate, GpuPlan};
use crate::engine::protocol::{Device, PROTOCOL, Request, RunRequest, Task};
use crate::engine::stand_ins::StandIns;
use crate::engine::{Answer, ask, nvidia_driver};
use crate::estimate::{Calibration, SegmentOrder};
use crate::report::an_item_a_line;
use crate::text::escape;
use crate::trace::{ConvolutionRun, TraceReader};
use crate::ui::Target;
use crate::units::{Units, count};

/// Reads the calibration that a plan names, where it names one.
pub(super) fn load(gpu: &mut GpuPlan) -> Result<(), Failure> {
    if let Some(path) = &gpu.calibration {
        gpu.profile = read(path)?.profile();
    }
    Ok(())
}

fn read(path: &Path) -> Result<Calibration, Failure> {
    let parse = || -> anyhow::Result<Calibration> { Ok(Calibration::parse(&fs::read(path)?)?) };
    parse().map_err(|error| {
        let context = format!("cannot use `{}` as a calibration", path.display());
        Failure::new(Exit::INPUT, error.context(context))
            .hint("`inspect calibrate -o FILE` writes one on a machine with a GPU")
    })
}

/// Measures and writes the file.
pub(super) fn calibrate(options: &Calibrate, context: &Context) -> Result<Exit, Failure> {
    if options.run.device == Device::Cpu {
        return Err(Failure::input(
            "a calibration is measured on a GPU, not on `cpu`".to_owned(),
        ));
    }
    if options.files.is_empty() && options.has_inputs {
        return Err(Failure::input(
            "there is an input, but no model to run with it".to_owned(),
        ));
    }
    // Everything that can be wrong without a GPU comes first.
    let before = known(options)?;
    let requests = options
        .files
        .iter()
        .map(|file| run::read_to_run(file, &options.run, options.trust))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut found, missed) = context.interrupt.by_flag(|interrupted| {
        let card = Measuring {
            options,
            context,
            interrupted,
        };
        card.all(&requests)
    })?;
    if let Some(before) = before {
        if !before.is_like(&found) {
            return Err(Failure::input(format!(
                "the calibration that is there is of {} with libtorch {}, and this is {} with libtorch {}",
                before.card.name, before.libtorch_version, found.card.name, found.libtorch_version
            ))
            .hint("write to another file, or leave `--add` out"));
        }
        found.add(before.convolutions);
    }
    options.target.write(|out| an_item_a_line(&found, out))?;
    for line in summary(&found).lines() {
        context.ui.info(line);
    }
    for file in missed {
        context.ui.info(&format!(
            "`{}` ran convolutions, and none by cuDNN",
            file.display()
        ));
    }
    Ok(Exit::OK)
}

/// The calibration that is added to.
fn known(options: &Calibrate) -> Result<Option<Calibration>, Failure> {
    match &options.target {
        Target::File(path) if options.add && path.exists() => read(path).map(Some),
        _ => Ok(None),
    }
}

/// The GPU while it is measured.
struct Measuring<'a> {
    options: &'a Calibrate,
    context: &'a Context,
    interrupted: &'a AtomicBool,
}

impl Measuring<'_> {
    /// The card, then one model after the other; and the models with convolutions that cuDNN did not run.
    fn all<'b>(&self, requests: &'b [RunRequest]) -> Result<(Calibration, Vec<&'b Path>), Failure> {
        let device = self.options.run.device;
        let (answer, _) = self.ask(Task::Probe { device })?;
        let probe = answer.done.probe.ok_or_else(|| {
            Failure::new(
                Exit::ENGINE,
                anyhow::anyhow!("the engine did not say what it measured"),
            )
        })?;
        let mut convolutions: Vec<ConvolutionRun> = Vec::new();
        let mut missed = Vec::new();
        for request in requests {
            let (answer, reader) = self.ask(Task::Run(Box::new(request.clone())))?;
            let trace = reader.finish().map_err(run::unfinished)?;
            let ran = answer.done.convolutions.unwrap_or_default();
            let has_some = trace.texts.iter().any(|text| text == "aten::convolution");
            if ran.is_empty() && has_some {
                missed.push(request.file.as_path());
            }
            convolutions.extend(ran);
        }
        let libtorch = answer.hello.libtorch_version;
        Ok((Calibration::new(libtorch, *probe, convolutions), missed))
    }

    /// One task on the GPU, or on the simulated device.
    fn ask(&self, task: Task) -> Result<(Answer, TraceReader), Failure> {
        let (device, limits) = (self.options.run.device, self.options.limits);
        let simulated = device == Device::CudaSim;
        let opened = if simulated {
            StandIns::recorder().and_then(|recorder| Ok(recorder.and(StandIns::open()?)))
        } else {
            StandIns::recorder()
        };
        let preloaded =
            opened.map_err(|error| Failure::new(Exit::ENGINE, anyhow::Error::new(error)))?;
        let (task, mut options) = if simulated {
            let gpu = &self.options.gpu;
            let mut card = SimulatedRun::new(gpu, limits, gpu.profile.total_bytes);
            card.env.extend(simulated::planted_workspace());
            let task = match task {
                Task::Run(run) => card.task(&run),
                task => task,
            };
            let options = card.options(&task);
            (task, options)
        } else {
            let mut options = limited_options(limits, 0);
            options.show_gpu(device);
            (task, options)
        };
        options.preload = preloaded.preload();
        let request = Request {
            protocol: PROTOCOL,
            task,
            threads: limits.threads,
            copy: None,
        };
        let mut collector = run::Collector::new(self.context);
        let answer = ask(&request, &options, &mut collector, self.interrupted)
            .map_err(|error| error.on_device(device, nvidia_driver()))?;
        Ok((answer, collector.reader))
    }
}

/// What was measured, for people.
fn summary(found: &Calibration) -> String {
    let bytes = |bytes: u64| Units::Iec.bytes(bytes);
    let card = &found.card;
    let mut text = format!(
        "{}  compute capability {}.{}, {} multiprocessors, {}\n",
        escape(&card.name),
        card.compute_capability.0,
        card.compute_capability.1,
        card.multiprocessors,
        bytes(card.total_bytes)
    );
    for library in &found.libraries {
        let _ = match (&library.unavailable, library.used_bytes) {
            (Some(reason), _) => writeln!(
                text,
                "  {:<9} not measured: {}",
                library.library,
                escape(reason)
            ),
            (None, used) => writeln!(
                text,
                "  {:<9} {} outside the allocator, {} kept inside it",
                library.library,
                used.map_or("unknown".to_owned(), bytes),
                bytes(library.workspace_bytes)
            ),
        };
    }
    let _ = match found.segment_order {
        Some(SegmentOrder::Up) => writeln!(text, "  segments  each new one lies above the last"),
        Some(SegmentOrder::Down) => writeln!(text, "  segments  each new one lies below the last"),
        None => writeln!(text, "  segments  in no one order"),
    };
    let with = found
        .convolutions
        .iter()
        .filter(|run| run.workspace_bytes > 0);
    let largest = found
        .convolutions
        .iter()
        .map(|run| run.workspace_bytes)
        .max();
    let _ = write!(
        text,
        "  {} convolutions, {} with a workspace",
        count(found.convolutions.len() as u64),
        count(with.count() as u64)
    );
    if let Some(largest) = largest.filter(|bytes| *bytes > 0) {
        let _ = write!(text, ", the largest {}", bytes(largest));
    }
    text
}
