//! `inspect diff OLD NEW`: what changed between two checkpoints or saved reports.

use std::path::Path;
use std::sync::Mutex;

use super::inspect::{self, SaidFinding};
use super::{Context, Exit, Failure, parts, table_for};
use crate::checkpoint::Checkpoint;
use crate::cli::{DiffCommand, DiffFormat};
use crate::diff::{Contents, Diff, Facts, Matching, Opened, ReportError, Values, compare};
use crate::format::{self, ReadOptions};
use crate::report::ExactReport;
use crate::report::diff::{DiffView, json, markdown, table};
use crate::source::Source;
use crate::ui::{Stages as _, Ui};

/// One side.
struct Side {
    facts: Facts,
    /// The file itself, unless it is a saved report.
    file: Option<(Source, Checkpoint)>,
}

/// Compares two files and says what differs.
pub(super) fn diff(options: &DiffCommand, context: &Context) -> Result<Exit, Failure> {
    let old = read(&options.old, options.hash)?;
    let new = read(&options.new, options.hash)?;
    for (_, checkpoint) in old.file.iter().chain(&new.file) {
        options.target.check(&parts(checkpoint))?;
    }
    let matching = Matching::of(&old.facts, &new.facts);
    let values = if options.values {
        Some(values(&old, &new, &matching, options, context.ui)?)
    } else {
        None
    };
    let mut diff = Diff::new(&old.facts, &new.facts, &matching, values.as_ref());
    if diff.contents == Contents::No {
        let both_files = old.file.is_some() && new.file.is_some();
        diff.notes.insert(0, contents_not_compared(both_files));
    }
    let view = DiffView {
        units: options.units,
        depth: options.depth,
        top: options.top,
        all: options.all,
    };
    options.target.write(|out| match options.format {
        DiffFormat::Table => table(&diff, &table_for(&options.target, context.ui), view, out),
        DiffFormat::Json => json(&diff, out),
        DiffFormat::Markdown => markdown(&diff, view, out),
    })?;
    let mut worst = if options.exit_code && !diff.identical {
        Exit::NO
    } else {
        Exit::OK
    };
    for (path, side) in [(&options.old, &old), (&options.new, &new)] {
        if let Some(failure) = distrusted(path, side) {
            context.ui.warning(&failure.one_line());
        }
        if let Some(failure) = incomplete(path, side) {
            worst = worst.max(failure.exit);
            failure.show(&context.ui);
        }
    }
    Ok(worst)
}

/// That contents may differ where nothing else does, and what helps.
fn contents_not_compared(both_files: bool) -> String {
    let how = if both_files {
        "`--hash` or `--values` does that"
    } else {
        "a saved report holds no numbers, and hashes only where `--hash` wrote it"
    };
    format!("the tensors' contents were not compared: {how}")
}

/// Why a side must not be loaded, where that is so.
fn distrusted(path: &Path, side: &Side) -> Option<Failure> {
    let (_, checkpoint) = side.file.as_ref()?;
    inspect::distrust(path, checkpoint, false)
}

/// Why a side is not all of a checkpoint, where that is so: what it lacks is no difference.
fn incomplete(path: &Path, side: &Side) -> Option<Failure> {
    let findings = side.facts.findings.iter();
    let said = findings.map(|finding| SaidFinding {
        code: &finding.code,
        location: &finding.location,
        message: &finding.message,
    });
    inspect::incomplete(path, said)
}

/// Reads a checkpoint or a saved report, by what is in the file.
fn read(path: &Path, hash: bool) -> Result<Side, Failure> {
    let unreadable = |error| Failure::unreadable(path, error);
    let report = Source::open(path)
        .ok()
        .filter(|source| Facts::looks_like_report(source.bytes()));
    if let Some(source) = report {
        let mut facts = Facts::read(source.bytes()).map_err(|error| not_a_report(path, error))?;
        facts.file.path = path.display().to_string();
        return Ok(Side { facts, file: None });
    }
    let mut checkpoint = format::read(path, &ReadOptions::default()).map_err(unreadable)?;
    let source = format::open_data(path, &checkpoint).map_err(unreadable)?;
    if hash {
        let hashes = format::hash(&source, &checkpoint).map_err(unreadable)?;
        checkpoint
            .set_hashes(hashes)
            .map_err(|error| unreadable(error.into()))?;
    }
    let report = ExactReport::new(path.display().to_string(), &checkpoint);
    let facts = Facts::of_report(&report).map_err(|error| not_a_report(path, error))?;
    Ok(Side {
        facts,
        file: Some((source, checkpoint)),
    })
}

/// A report that cannot be read.
pub(super) fn not_a_report(path: &Path, error: ReportError) -> Failure {
    let hint = error.hint();
    let error = anyhow::Error::new(error).context(format!("cannot compare `{}`", path.display()));
    let failure = Failure::new(Exit::INPUT, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Compares the numbers, with progress.
fn values(
    old: &Side,
    new: &Side,
    matching: &Matching,
    options: &DiffCommand,
    ui: Ui,
) -> Result<Values, Failure> {
    fn opened<'a>(side: &'a Side, path: &Path) -> Result<Opened<'a>, Failure> {
        let (source, checkpoint) = side.file.as_ref().ok_or_else(|| {
            let message = format!("`{}` is a report, which holds no numbers", path.display());
            Failure::input(message).hint("`--values` compares two checkpoints")
        })?;
        Ok(Opened { source, checkpoint })
    }
    let (old, new) = (opened(old, &options.old)?, opened(new, &options.new)?);
    let progress = Progress::new(ui, "comparing numbers, bytes");
    Ok(compare(old, new, matching, &|done, total| {
        progress.show(done, total);
    }))
}

/// Progress that several threads tell of.
pub(super) struct Progress<'a> {
    line: Mutex<crate::ui::Progress>,
    stage: &'a str,
}

impl<'a> Progress<'a> {
    pub(super) fn new(ui: Ui, stage: &'a str) -> Self {
        Progress {
            line: Mutex::new(ui.progress()),
            stage,
        }
    }

    /// What one thread is at; where another one draws, this one goes on.
    pub(super) fn show(&self, done: u64, total: u64) {
        if let Ok(mut line) = self.line.try_lock() {
            line.stage(self.stage, done, Some(total));
        }
    }
}
