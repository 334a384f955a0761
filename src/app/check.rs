//! `inspect check FILE`: the CI gate.

use std::path::{Path, PathBuf};

use clap::Parser as _;

use super::diff::Progress;
use super::inspect::{self, Examined};
use super::{Context, Exit, Failure, table_for};
use crate::check::{
    Baseline, BaselineError, Budget, BudgetError, Deny, FileCheck, RuleError, Rules, RunOptions,
    Subject, Verdict, all_findings, all_known, check as check_one, read_budgets,
};
use crate::cli::{CheckCommand, CheckFormat, Cli, Command, Inspect};
use crate::diff::{Opened, Scan, scan};
use crate::format;
use crate::report::an_item_a_line;
use crate::report::check::{CheckReport, annotations, junit, sarif};
use crate::ui::{Target, Ui};

/// Set to `true` by the runner of GitHub Actions.
const GITHUB: &str = "GITHUB_ACTIONS";

/// Findings that say why an estimate is not the best there is.
const ESTIMATE_CODES: [&str; 2] = ["estimate-from-cpu", "no-estimate"];

/// Checks every file and reports what came of it.
pub(super) fn check(command: &CheckCommand, context: &Context) -> Result<Exit, Failure> {
    command.target.check(&command.files)?;
    let mut gate = Gate {
        command,
        context,
        report: CheckReport { files: Vec::new() },
        worst: Exit::OK,
    };
    match (&command.budget, &command.baseline) {
        (Some(budget), _) => gate.budgets(budget)?,
        (None, Some(baseline)) => gate.baseline(baseline)?,
        (None, None) => {
            for file in &command.files {
                let rules = gate.rules();
                gate.file(file, &command.options, None, None, &rules)?;
            }
        }
    }
    gate.finish()
}

/// A check under way.
struct Gate<'a> {
    command: &'a CheckCommand,
    context: &'a Context,
    report: CheckReport,
    worst: Exit,
}

impl Gate<'_> {
    fn rules(&self) -> Rules {
        Rules {
            limits: self.command.limits.clone(),
            tolerance: self.command.tolerance.clone(),
            deny: self.command.deny.clone(),
            strict: self.command.strict,
        }
    }

    /// One file against its baseline.
    fn baseline(&mut self, path: &Path) -> Result<(), Failure> {
        let command = self.command;
        let [file] = command.files.as_slice() else {
            let message = "`--baseline` is of one file".to_owned();
            return Err(Failure::input(message)
                .hint("check several files with `--budget`, or one after the other"));
        };
        let target = Target::File(path.to_owned());
        if command.update_baseline {
            target.check(&command.files)?;
        }
        let known = match read_baseline(path) {
            Ok(known) => known,
            // A baseline that cannot be read is what is being written anew; anything else is not.
            Err(failure) if command.update_baseline => {
                if !may_be_baseline(path) {
                    let message = format!(
                        "`{}` is there and no baseline: it was not overwritten",
                        path.display()
                    );
                    return Err(Failure::input(message)
                        .hint("give the baseline another name, or delete the file first"));
                }
                self.context
                    .ui
                    .warning(&format!("{}; it is written anew", failure.one_line()));
                None
            }
            Err(failure) => return Err(failure),
        };
        if !command.update_baseline {
            let Some(baseline) = known else {
                let message = format!("there is no baseline `{}`", path.display());
                return Err(Failure::input(message).hint("`--update-baseline` writes it"));
            };
            let options = same_options(&baseline, &command.options)
                .map_err(|error| no_baseline(path, error))?;
            let rules = self.rules();
            self.file(file, &options, Some((&baseline, path)), None, &rules)?;
            return Ok(());
        }
        let options = match &known {
            // Without options of its own an update repeats the run.
            Some(known) if command.options.is_empty() => known.options.clone(),
            _ => command.options.clone(),
        };
        if let Some(absolute) = options.absolute_path() {
            let message = format!(
                "a baseline cannot keep the path `{absolute}`, which means nothing on another machine"
            );
            return Err(Failure::input(message)
                .hint("give it relative to the folder that the check is run in"));
        }
        self.update(file, path, &options)
    }

    /// Writes a baseline, and checks the file against it: absolute limits and denied findings still count.
    fn update(&mut self, file: &Path, path: &Path, options: &RunOptions) -> Result<(), Failure> {
        let examined = self.examine(file, options)?;
        // What must not be loaded is nothing to agree with.
        if let Some(failure) = inspect::distrust(file, &examined.checkpoint, self.command.trust) {
            return Err(failure);
        }
        // What has no run must not become a baseline of one.
        if let Some(failure) = examined
            .failure
            .as_ref()
            .filter(|failure| failure.exit != Exit::NO)
        {
            failure.show(&self.context.ui);
            self.worst = self.worst.max(failure.exit);
            return Ok(());
        }
        let scan = self.scan(file, &examined, &self.command.deny)?;
        let found = all_findings(&examined.facts, scan.as_ref());
        let baseline = Baseline::of(&examined.facts, options.clone(), all_known(&found));
        Target::File(path.to_owned()).write(|out| an_item_a_line(&baseline, out))?;
        self.context
            .ui
            .info(&format!("baseline `{}` written", path.display()));
        let rules = self.rules();
        self.judge(
            file,
            &examined,
            options,
            Some((&baseline, path)),
            None,
            &rules,
        )
    }

    /// Every file of a budget, or those of them that were named.
    fn budgets(&mut self, path: &Path) -> Result<(), Failure> {
        let text = read_text(path, "budget")?;
        let budgets = read_budgets(&text).map_err(|error| no_budget(path, error))?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let mut matched = vec![false; self.command.files.len()];
        for budget in &budgets {
            for file in self
                .files_of(budget, &folder, &mut matched)
                .map_err(|error| no_budget(path, error))?
            {
                let mut rules = self.rules();
                rules.limits.clone_from(&budget.limits);
                rules.deny.extend(budget.deny.iter().cloned());
                self.file(&file, &budget.options, None, Some(&budget.name), &rules)?;
            }
        }
        for (file, matched) in self.command.files.iter().zip(matched) {
            if !matched {
                let message = format!("`{}` has no budget in `{}`", file.display(), path.display());
                self.context.ui.warning(&message);
                // A file that nothing limits is let through, unless everything has to be said for.
                if self.command.strict {
                    self.worst = self.worst.max(Exit::NO);
                }
            }
        }
        Ok(())
    }

    /// The files of one budget, as the user would name them.
    fn files_of(
        &self,
        budget: &Budget,
        folder: &Path,
        matched: &mut [bool],
    ) -> Result<Vec<PathBuf>, BudgetError> {
        if self.command.files.is_empty() {
            let files = budget.files(folder)?;
            return Ok(files.into_iter().map(|file| folder.join(file)).collect());
        }
        let mut files = Vec::new();
        for (file, matched) in self.command.files.iter().zip(matched) {
            if budget.has(&relative(file, folder)) {
                *matched = true;
                files.push(file.clone());
            }
        }
        Ok(files)
    }

    /// Reads, runs and checks one file; one that fails is said, and the others go on.
    fn file(
        &mut self,
        file: &Path,
        options: &RunOptions,
        baseline: Option<(&Baseline, &Path)>,
        budget: Option<&str>,
        rules: &Rules,
    ) -> Result<(), Failure> {
        match self.examine(file, options) {
            Ok(examined) => self.judge(file, &examined, options, baseline, budget, rules),
            Err(failure) if failure.exit == Exit::INTERRUPTED => Err(failure),
            Err(failure) => {
                let against = baseline.map(|(_, path)| path.display().to_string());
                self.not_checked(file, against.as_deref().or(budget), &failure);
                Ok(())
            }
        }
    }

    /// A file that could not be read or run, told on stderr and in the report.
    fn not_checked(&mut self, file: &Path, against: Option<&str>, failure: &Failure) {
        failure.show(&self.context.ui);
        self.worst = self.worst.max(failure.exit);
        self.report.files.push(FileCheck::not_checked(
            file.display().to_string(),
            against.map(str::to_owned),
            failure.one_line(),
        ));
    }

    fn examine(&self, file: &Path, options: &RunOptions) -> Result<Examined, Failure> {
        let mut inspect = inspect_command(options)?;
        inspect.files = vec![file.to_owned()];
        inspect.limits = self.command.engine;
        inspect.trust = self.command.trust;
        inspect::examine(file, &inspect, self.context)
    }

    fn scan(
        &self,
        file: &Path,
        examined: &Examined,
        deny: &[Deny],
    ) -> Result<Option<Scan>, Failure> {
        if !deny.iter().any(Deny::reads_numbers) {
            return Ok(None);
        }
        let source = format::open_data(file, &examined.checkpoint)
            .map_err(|error| Failure::unreadable(file, error))?;
        let opened = Opened {
            source: &source,
            checkpoint: &examined.checkpoint,
        };
        let progress = Progress::new(self.context.ui, "looking for NaN, bytes");
        Ok(Some(scan(opened, &|done, total| {
            progress.show(done, total);
        })))
    }

    fn judge(
        &mut self,
        file: &Path,
        examined: &Examined,
        options: &RunOptions,
        baseline: Option<(&Baseline, &Path)>,
        budget: Option<&str>,
        rules: &Rules,
    ) -> Result<(), Failure> {
        let path = baseline.map(|(_, path)| path.display().to_string());
        let against = path.as_deref().or(budget);
        // A run that failed has nothing to compare; a model that does not fit has, and is a finding.
        if let Some(failure) = &examined.failure {
            if failure.exit != Exit::NO {
                self.not_checked(file, against, failure);
                return Ok(());
            }
            self.worst = self.worst.max(failure.exit);
            failure.show(&self.context.ui);
        }
        let facts = &examined.facts;
        if let Some((baseline, path)) = baseline {
            baseline.belongs(facts).map_err(|error| {
                let estimate = matches!(&error, BaselineError::Conditions { what, .. } if what.starts_with("an estimate"));
                let failure = no_baseline(path, error);
                // Why this run's estimate is another, where that is known.
                let why = facts.findings.iter().find(|one| ESTIMATE_CODES.contains(&one.code.as_str()));
                match why.filter(|_| estimate) {
                    Some(finding) => failure.detail(finding.message.clone()),
                    None => failure,
                }
            })?;
        }
        let scan = self.scan(file, examined, &rules.deny)?;
        let subject = Subject {
            facts,
            options,
            baseline: baseline.map(|(baseline, _)| baseline),
            against,
        };
        let found = all_findings(facts, scan.as_ref());
        let mut checked = check_one(subject, rules, found).map_err(|error: RuleError| {
            let hint = error.hint();
            Failure::new(Exit::INPUT, error).hint(hint)
        })?;
        if let Some(failure) = inspect::distrust(file, &examined.checkpoint, self.command.trust) {
            self.worst = self.worst.max(failure.exit);
            failure.show(&self.context.ui);
            checked.verdict = Verdict::Fail;
            checked.notes.push(failure.one_line());
        }
        if checked.verdict == Verdict::Fail {
            self.worst = self.worst.max(Exit::NO);
        }
        self.report.files.push(checked);
        Ok(())
    }

    /// Shows what was checked.
    fn finish(self) -> Result<Exit, Failure> {
        let (command, report, ui) = (self.command, &self.report, self.context.ui);
        if report.files.is_empty() {
            if self.worst == Exit::OK {
                let message = "no file was checked".to_owned();
                return Err(Failure::input(message).hint("none of the files has a budget"));
            }
            return Ok(self.worst);
        }
        command.target.write(|out| match command.format {
            CheckFormat::Table => report.table(
                &table_for(&command.target, ui),
                command.units,
                command.all,
                out,
            ),
            CheckFormat::Json => report.json(out),
            CheckFormat::Markdown => report.markdown(command.units, command.all, out),
            CheckFormat::Junit => junit(report, out),
            CheckFormat::Sarif => sarif(report, out),
        })?;
        if std::env::var_os(GITHUB).is_some_and(|value| value == "true") {
            ui.commands(&annotations(report));
        }
        hint(report, command, ui);
        Ok(self.worst)
    }
}

/// What to do about a regression that was meant.
fn hint(report: &CheckReport, command: &CheckCommand, ui: Ui) {
    let regressed = |file: &FileCheck| {
        file.checks
            .iter()
            .any(|check| check.verdict == Verdict::Fail)
    };
    if command.baseline.is_some() && !command.update_baseline && report.files.iter().any(regressed)
    {
        ui.hint("where the change is meant, `--update-baseline` accepts it; review the baseline's difference with the change");
    }
}

/// The command that looks at a file with these options.
fn inspect_command(options: &RunOptions) -> Result<Inspect, Failure> {
    let mut arguments = vec!["inspect".to_owned()];
    arguments.extend(options.arguments());
    arguments.push("./FILE".to_owned());
    let wrong = |error: clap::Error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        let line = line.strip_prefix("error: ").unwrap_or(line);
        Failure::input(format!(
            "the options {} cannot be used: {line}",
            options.text()
        ))
    };
    match Cli::try_parse_from(arguments).map_err(wrong)?.resolve() {
        Command::Inspect(inspect) => Ok(*inspect),
        other => Err(Failure::input(format!(
            "the options mean another command: {other:?}"
        ))),
    }
}

/// The options of the baseline, unless others are given.
fn same_options(baseline: &Baseline, given: &RunOptions) -> Result<RunOptions, BaselineError> {
    if given.is_empty() || *given == baseline.options {
        return Ok(baseline.options.clone());
    }
    Err(BaselineError::Options {
        baseline: baseline.options.text(),
        given: given.text(),
    })
}

/// The baseline at a path; `None` where there is none.
fn read_baseline(path: &Path) -> Result<Option<Baseline>, Failure> {
    let text = match read_file(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, "baseline", error)),
    };
    Baseline::read(&text)
        .map(Some)
        .map_err(|error| no_baseline(path, error))
}

fn read_text(path: &Path, what: &str) -> Result<Vec<u8>, Failure> {
    read_file(path).map_err(|error| unreadable(path, what, error))
}

/// A whole file; never a device, which may have no end.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    std::fs::read(path)
}

/// Whether a file is JSON by its first character, or has none.
fn may_be_baseline(path: &Path) -> bool {
    let Ok(text) = read_file(path) else {
        return false;
    };
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    first.is_none_or(|byte| *byte == b'{')
}

fn unreadable(path: &Path, what: &str, error: std::io::Error) -> Failure {
    let error =
        anyhow::Error::new(error).context(format!("cannot read the {what} `{}`", path.display()));
    Failure::new(Exit::INPUT, error)
}

fn no_baseline(path: &Path, error: BaselineError) -> Failure {
    let hint = error.hint();
    let error =
        anyhow::Error::new(error).context(format!("cannot compare with `{}`", path.display()));
    Failure::new(Exit::INPUT, error).hint(hint)
}

fn no_budget(path: &Path, error: BudgetError) -> Failure {
    let hint = error.hint();
    let error =
        anyhow::Error::new(error).context(format!("cannot use the budget `{}`", path.display()));
    let failure = Failure::new(Exit::INPUT, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// A file as a budget in this folder names it.
fn relative(file: &Path, folder: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = if folder.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        folder.to_owned()
    };
    let (file, folder) = (absolute(file), absolute(&folder));
    file.strip_prefix(&folder)
        .map_or(file.clone(), Path::to_owned)
}
