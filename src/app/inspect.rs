//! `inspect FILE...`: look at checkpoints, and run them where inputs are given.

use std::path::{Path, PathBuf};

use super::diff::{Progress, not_a_report};
use super::run::{self, Ran};
use super::{Context, Exit, Failure, estimates, folder, parts, save, simulated, spare, table_for};
use crate::checkpoint::{Checkpoint, Finding, Severity, Verdict};
use crate::cli::{DataUse, GpuPlan, Inspect, ReportFormat, RunPlan, Show, SortKey};
use crate::diff::Facts;
use crate::engine::protocol::{Device, Mode};
use crate::estimate::Estimate;
use crate::format::{self, FormatError, ReadOptions};
use crate::report::{
    CastSizes, Csv, Document, ExactReport, Html, Json, Markdown, Order, Render, RunAnalysis,
    RunOrder, RunReport, RunView, RunViewOptions, View, ViewOptions,
};
use crate::statistics;

/// One file with everything that was found out about it.
struct Looked<'a> {
    path: &'a Path,
    checkpoint: Checkpoint,
    ran: Option<Ran>,
    estimate: Option<Estimate>,
    signature: Option<String>,
}

/// What is known of one file and its run, as the report says it.
pub(super) struct Examined {
    pub(super) facts: Facts,
    pub(super) checkpoint: Checkpoint,
    /// What decides the exit code: a run that failed, a model that does not fit.
    pub(super) failure: Option<Failure>,
}

/// Looks at one file without showing it.
pub(super) fn examine(
    path: &Path,
    inspect: &Inspect,
    context: &Context,
) -> Result<Examined, Failure> {
    let (looked, failure) = look(path, inspect, context)?;
    let show = Show {
        format: ReportFormat::Json,
        ..inspect.show.clone()
    };
    let document = document(&looked, &show, &ViewOptions::default());
    let facts = Facts::of_report(&document.report).map_err(|error| not_a_report(path, error))?;
    drop(document);
    Ok(Examined {
        facts,
        checkpoint: looked.checkpoint,
        failure,
    })
}

/// Looks at every file; a file that fails is reported and the others go on.
pub(super) fn inspect(inspect: &Inspect, context: &Context) -> Result<Exit, Failure> {
    save::check(&inspect.save, &inspect.files)?;
    if let Some(several) = folder::sole(inspect)? {
        return folder::summarize(several, inspect, context);
    }
    if let (Some(option), None, None, [first, ..]) = (
        inspect.needs_run,
        &inspect.run,
        &inspect.sample_run,
        inspect.files.as_slice(),
    ) {
        return Err(without_inputs(option, first));
    }
    let mut worst = Exit::OK;
    let mut looked = Vec::new();
    let merged = inspect.merge.then(|| merged_name(&inspect.files));
    let paths: Vec<&Path> = match &merged {
        Some(name) => vec![name],
        None => inspect.files.iter().map(PathBuf::as_path).collect(),
    };
    for path in paths {
        match look(path, inspect, context) {
            Ok((one, failure)) => {
                if let Some(failure) = failure {
                    worst = worst.max(failure.exit);
                    failure.show(&context.ui);
                }
                looked.push(one);
            }
            Err(failure) if failure.ends_all() => return Err(failure),
            Err(failure) => {
                worst = worst.max(failure.exit);
                failure.show(&context.ui);
            }
        }
    }
    if !looked.is_empty() {
        show(&looked, inspect, context)?;
    }
    for one in &looked {
        for failure in distrust(one.path, &one.checkpoint, inspect.trust)
            .into_iter()
            .chain(damage(one))
            .chain(incomplete(one.path, said(&one.checkpoint)))
        {
            worst = worst.max(failure.exit);
            failure.show(&context.ui);
        }
    }
    // The process ends here: giving back the memory of 100,000 tensors one by one would take a tenth of its time.
    std::mem::forget(looked);
    Ok(worst)
}

/// Reads a file and runs it where that is wanted. A run that fails leaves the listing, which is shown all the same.
fn look<'a>(
    path: &'a Path,
    inspect: &Inspect,
    context: &Context,
) -> Result<(Looked<'a>, Option<Failure>), Failure> {
    let checkpoint = if inspect.merge {
        format::read_merged(&inspect.files)
    } else {
        format::read(path, &ReadOptions::default())
    };
    let checkpoint = checkpoint.map_err(|error| Failure::unreadable(path, error))?;
    spare(&inspect.writes(), &parts(&checkpoint))?;
    let signature = match &inspect.signature {
        Some(method) => Some(run::signature(path, &checkpoint, method)?),
        None => None,
    };
    let mut looked = Looked {
        path,
        checkpoint,
        ran: None,
        estimate: None,
        signature,
    };
    read_all(&mut looked, inspect.show.data, context)
        .map_err(|error| Failure::unreadable(path, error))?;
    let sample = run::keeps_inputs(&looked.checkpoint);
    let own = inspect.sample_run.as_ref().filter(|_| sample);
    let Some(plan) = inspect.run.as_ref().or(own) else {
        if let Some(option) = inspect.needs_run {
            return Err(without_inputs(option, path));
        }
        let failure = without_run(&mut looked, inspect)?;
        return Ok((looked, failure));
    };
    if distrust(path, &looked.checkpoint, inspect.trust).is_some() {
        // Said once, after the report.
        return Ok((looked, None));
    }
    match simulated::run_both(path, &looked.checkpoint, plan, inspect, context) {
        Ok(outcome) => {
            if let Some(ran) = &outcome.ran {
                let differences = run::compare_listing(&looked.checkpoint, ran, plan.cast);
                looked.checkpoint.add_findings(differences);
            }
            looked.checkpoint.add_findings(outcome.no_estimate);
            looked.ran = outcome.ran;
            looked.estimate = outcome.estimate;
            Ok((looked, outcome.failure))
        }
        Err(failure) if failure.exit == Exit::INTERRUPTED => Err(failure),
        Err(failure) if inspect.run.is_none() && !asked_for(plan, inspect) => {
            looked.checkpoint.add_findings([Finding {
                severity: Severity::Warning,
                code: "not-run",
                location: String::new(),
                message: format!("the program was not run: {}", failure.one_line()),
            }]);
            Ok((looked, None))
        }
        Err(failure) => Ok((looked, Some(failure))),
    }
}

/// The error for an option that only a run gives a meaning, where there is nothing to run a file with.
fn without_inputs(option: &str, path: &Path) -> Failure {
    let message = format!(
        "`{option}` needs `--input` or `--inputs`: `{}` is not run without",
        path.display()
    );
    Failure::input(message).hint("only an exported program may keep inputs of its own")
}

/// Whether an option asks for the run of a file with inputs of its own.
fn asked_for(plan: &RunPlan, inspect: &Inspect) -> bool {
    let gpu = inspect.gpu.as_ref();
    let limits = inspect.limits;
    inspect.needs_run.is_some()
        || limits.timeout.is_some()
        || limits.memory_bytes.is_some()
        || plan.mode != Mode::Inference
        || plan.device != Device::Cpu
        || plan.method != "forward"
        || gpu.is_some_and(|gpu| gpu.profile_given || gpu.memory_bytes.is_some())
}

/// The estimate from the file alone, where a GPU or training was asked for. What is known may be too much already.
fn without_run(looked: &mut Looked<'_>, inspect: &Inspect) -> Result<Option<Failure>, Failure> {
    let asked = |gpu: &&GpuPlan| {
        inspect.mode != Mode::Inference || gpu.profile_given || gpu.memory_bytes.is_some()
    };
    let Some(gpu) = inspect.gpu.as_ref().filter(asked) else {
        return Ok(None);
    };
    let estimate = estimates::without_run(&looked.checkpoint, &inspect.mode, gpu)?;
    let too_much = estimate.fits == Some(false);
    looked.estimate = Some(estimate);
    Ok(too_much.then(|| simulated::not_fitting(looked.path, None)))
}

/// The error for a file that must not be loaded.
pub(super) fn distrust(path: &Path, checkpoint: &Checkpoint, trust: bool) -> Option<Failure> {
    let security = checkpoint.security();
    if trust || security.verdict != Verdict::Dangerous {
        return None;
    }
    let mut message = format!("`{}` is dangerous to load", path.display());
    if let Some(first) = security.unexpected_globals.first() {
        message.push_str(": it names `");
        message.push_str(first);
        message.push('`');
    }
    Some(
        Failure::input(message).hint("`--trust` accepts it; loading it in Python can run any code"),
    )
}

/// Goes through all data of a file, where that was asked for.
fn read_all(looked: &mut Looked<'_>, data: DataUse, context: &Context) -> Result<(), FormatError> {
    if !data.verify && !data.hash && !data.stats {
        return Ok(());
    }
    let source = format::open_data(looked.path, &looked.checkpoint)?;
    if data.verify {
        let (verified, findings) = format::verify(&source, &looked.checkpoint)?;
        looked.checkpoint.set_verified(verified, findings);
    }
    if data.hash {
        let hashes = format::hash(&source, &looked.checkpoint)?;
        looked.checkpoint.set_hashes(hashes)?;
    }
    if data.stats {
        let progress = Progress::new(context.ui, "reading numbers, bytes");
        let show = |done, total| progress.show(done, total);
        let (found, findings) = statistics::statistics(&source, &looked.checkpoint, &show);
        looked.checkpoint.set_statistics(found, findings);
    }
    Ok(())
}

/// The error for a file whose data is not what its checksums say.
fn damage(looked: &Looked<'_>) -> Option<Failure> {
    let damaged = looked.checkpoint.verified()?.damaged;
    let plural = if damaged == 1 { "" } else { "s" };
    (damaged > 0).then(|| {
        let path = looked.path.display();
        Failure::input(format!(
            "`{path}` is damaged: {damaged} record{plural} with a wrong checksum"
        ))
        .hint("fetch the file again")
    })
}

/// A finding as every source of findings has it.
pub(super) struct SaidFinding<'a> {
    /// Its stable code.
    pub(super) code: &'a str,
    /// What it is about.
    pub(super) location: &'a str,
    /// One sentence.
    pub(super) message: &'a str,
}

/// The findings of a checkpoint.
pub(super) fn said(checkpoint: &Checkpoint) -> impl Iterator<Item = SaidFinding<'_>> {
    let findings = checkpoint.findings().iter();
    findings.map(|finding| SaidFinding {
        code: finding.code,
        location: &finding.location,
        message: &finding.message,
    })
}

/// The error for a checkpoint that lacks some of its files, as its findings say.
pub(super) fn incomplete<'a>(
    path: &Path,
    mut findings: impl Iterator<Item = SaidFinding<'a>>,
) -> Option<Failure> {
    let first = findings.find(|finding| format::is_incomplete(finding.code))?;
    let (path, place) = (path.display(), first.location);
    if first.code == format::MISSING_SHARD {
        let message = format!("`{path}` is incomplete: `{place}` is missing");
        return Some(Failure::input(message).hint("fetch the missing files"));
    }
    let message = format!("`{path}` is not whole: `{place}`: {}", first.message);
    Some(Failure::input(message).hint("saving it was interrupted, or files of two saves are mixed"))
}

/// What several files that are one model are called.
fn merged_name(files: &[PathBuf]) -> PathBuf {
    let names: Vec<String> = files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(" + ").into()
}

/// Renders everything that was found out, in the format and to the place asked for.
fn show(looked: &[Looked<'_>], inspect: &Inspect, context: &Context) -> Result<(), Failure> {
    let show = &inspect.show;
    if show.format == ReportFormat::Table && inspect.signature.is_some() && inspect.run.is_none() {
        return signatures(looked, show);
    }
    let ran = |one: &Looked<'_>| one.ran.is_some() || one.estimate.is_some();
    let renderer = renderer(inspect, looked.iter().any(ran), context);
    let options = view_options(show);
    show.target.write(|out| {
        renderer.begin(out)?;
        for (index, one) in looked.iter().enumerate() {
            let document = document(one, show, &options);
            renderer.document(&document, index == 0, out)?;
        }
        renderer.end(out)
    })?;
    Ok(())
}

/// The schemas alone, one a line.
fn signatures(looked: &[Looked<'_>], show: &Show) -> Result<(), Failure> {
    show.target.write(|out| {
        for one in looked {
            if looked.len() > 1 {
                let path = one.path.display().to_string();
                write!(out, "{}: ", crate::text::escape(&path))?;
            }
            let schema = one.signature.as_deref().unwrap_or_default();
            writeln!(out, "{}", crate::text::escape(schema))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn renderer(inspect: &Inspect, runs: bool, context: &Context) -> Box<dyn Render> {
    let show = &inspect.show;
    match show.format {
        ReportFormat::Table => Box::new(table_for(&show.target, context.ui)),
        ReportFormat::Json => Box::new(Json {
            lines: inspect.files.len() > 1 && !inspect.merge,
        }),
        ReportFormat::Markdown => Box::new(Markdown),
        ReportFormat::Csv => Box::new(Csv {
            cast: show.as_dtype,
            runs,
        }),
        ReportFormat::Html => Box::new(Html),
    }
}

fn view_options(show: &Show) -> ViewOptions {
    ViewOptions {
        depth: show.depth,
        filter: show.filter.clone(),
        order: show.sort.map(|key| match key {
            SortKey::Name => Order::Name,
            SortKey::Bytes => Order::Bytes,
            SortKey::File | SortKey::Time => Order::File,
        }),
        top: show.top,
        all: show.all,
        cast: show.as_dtype,
        tensors: show.format == ReportFormat::Csv || show.data.stats,
    }
}

fn run_view_options(show: &Show) -> RunViewOptions {
    RunViewOptions {
        depth: show.depth,
        // A spreadsheet has no use for several layers in one row.
        all: show.all || show.format == ReportFormat::Csv,
        filter: show.filter.clone(),
        order: show.sort.map(|key| match key {
            SortKey::Name => RunOrder::Name,
            SortKey::Bytes => RunOrder::Bytes,
            SortKey::File => RunOrder::Run,
            SortKey::Time => RunOrder::Time,
        }),
        top: show.top,
        ops: show.ops,
    }
}

fn document<'a>(looked: &'a Looked<'_>, show: &Show, options: &ViewOptions) -> Document<'a> {
    let checkpoint = &looked.checkpoint;
    let declared: Vec<(&str, &str)> = checkpoint
        .modules()
        .iter()
        .map(|module| (module.path.as_str(), module.class_name()))
        .collect();
    let analysis = looked
        .ran
        .as_ref()
        .map(|ran| RunAnalysis::new(&ran.trace, &declared));
    let mut report = ExactReport::new(looked.path.display().to_string(), checkpoint);
    report.run = analysis
        .as_ref()
        .map(|analysis| RunReport::new(analysis, show.ops));
    report.estimate = looked.estimate.as_ref();
    Document {
        checkpoint,
        report,
        view: match show.format {
            // The exact report needs no view.
            ReportFormat::Json => View::default(),
            _ => View::new(checkpoint, options),
        },
        run: analysis
            .as_ref()
            .filter(|_| show.format != ReportFormat::Json)
            .map(|analysis| RunView::new(analysis, &run_view_options(show))),
        units: show.units,
        all: show.all,
        cast: show.as_dtype.map(|dtype| CastSizes::of(checkpoint, dtype)),
        signature: looked.signature.clone(),
    }
}
