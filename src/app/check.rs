//! `inspect check FILE`: the CI gate.

mod files;

use std::path::{Path, PathBuf};

use clap::Parser as _;

use self::files::{Found, no_baseline, no_budget, relative};
use super::diff::Progress;
use super::inspect::{self, Examined};
use super::{Context, Exit, Failure, parts, spare, table_for};
use crate::check::{
    Baseline, BaselineError, Budget, BudgetError, Check, Deny, FileCheck, Reason, RuleError, Rules,
    RunOptions, Subject, Verdict, all_findings, all_known, check as check_one, read_budgets,
};
use crate::cli::{CheckCommand, CheckFormat, Cli, Command, Inspect};
use crate::diff::metrics::{self, Needs};
use crate::diff::{Opened, Scan, scan};
use crate::format::{self, ReadOptions};
use crate::report::an_item_a_line;
use crate::report::check::{CheckReport, annotations, junit, sarif};
use crate::ui::{Target, Ui};

/// Set to `true` by the runner of GitHub Actions.
const GITHUB: &str = "GITHUB_ACTIONS";

/// Findings that say why an estimate is not the best there is.
const ESTIMATE_CODES: [&str; 2] = ["estimate-from-cpu", "no-estimate"];

/// Checks every file and reports what came of it.
pub(super) fn check(command: &CheckCommand, context: &Context) -> Result<Exit, Failure> {
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
        let found = files::baseline(path);
        if command.update_baseline {
            let options = self.options_of_update(path, found)?;
            if measures_nothing(&options, file) {
                return Err(nothing_measured(path));
            }
            return self.update(file, path, &options);
        }
        let baseline = match found {
            Found::Baseline(baseline) => *baseline,
            Found::Other { failure, .. } => return Err(failure),
            Found::Nothing => {
                let message = format!("there is no baseline `{}`", path.display());
                return Err(Failure::input(message).hint("`--update-baseline` writes it"));
            }
        };
        let asked = command.options.or_again(&baseline.options);
        if measures_nothing(&asked, file) {
            return Err(nothing_measured(path));
        }
        baseline
            .has_known_metrics()
            .and_then(|()| same_options(&baseline, &asked))
            .map_err(|error| no_baseline(path, error))?;
        let rules = self.rules();
        self.file(file, &asked, Some((&baseline, path)), None, &rules)
    }

    /// How a file is run to make its baseline anew: without options of its own as the old one says.
    fn options_of_update(&self, path: &Path, found: Found) -> Result<RunOptions, Failure> {
        let given = &self.command.options;
        let options = match found {
            Found::Baseline(known) => given.or_again(&known.options),
            Found::Nothing => given.clone(),
            // A baseline that cannot be read is what is being written anew; anything else is not.
            Found::Other {
                failure,
                maybe_baseline: true,
            } => {
                let ui = self.context.ui;
                ui.warning(&format!("{}; it is written anew", failure.one_line()));
                given.clone()
            }
            Found::Other { .. } => {
                let message = format!(
                    "`{}` is there and no baseline: it was not overwritten",
                    path.display()
                );
                return Err(Failure::input(message)
                    .hint("give the baseline another name, or delete the file first"));
            }
        };
        if let Some(absolute) = options.absolute_path() {
            let message = format!(
                "a baseline cannot keep the path `{}`, which means nothing on another machine",
                absolute.display()
            );
            return Err(Failure::input(message)
                .hint("give it relative to the folder that the check is run in"));
        }
        Ok(options)
    }

    /// Writes a baseline, and checks the file against it: absolute limits and denied findings still count.
    fn update(&mut self, file: &Path, path: &Path, options: &RunOptions) -> Result<(), Failure> {
        self.spare(file, options)?;
        let mut examined = match self.examine(file, options) {
            Ok(examined) => examined,
            Err(failure) => return self.not_checked(file, Some(&name(path)), failure),
        };
        // What must not be loaded or is not all there is nothing to agree with, and what has no run must not become a
        // baseline of one.
        let distrusted = inspect::distrust(file, &examined.checkpoint, self.command.trust);
        let failed = examined.failure.take_if(|failure| failure.exit != Exit::NO);
        let partial = inspect::incomplete(file, inspect::said(&examined.checkpoint));
        if let Some(failure) = distrusted.or(failed).or(partial) {
            return self.not_checked(file, Some(&name(path)), failure);
        }
        let scan = self.scan(file, &examined, &self.command.deny)?;
        spare(&self.command.writes(), &parts(&examined.checkpoint))?;
        let found = all_findings(&examined.facts, scan.as_ref());
        let baseline = Baseline::of(&examined.facts, options.clone(), all_known(&found));
        Target::File(path.to_owned()).write(|out| an_item_a_line(&baseline, out))?;
        self.context
            .ui
            .info(&format!("baseline `{}` written", path.display()));
        let rules = self.rules();
        self.judge(
            file,
            examined,
            options,
            Some((&baseline, path)),
            None,
            &rules,
        )
    }

    /// Every file of a budget, or those of them that were named.
    fn budgets(&mut self, path: &Path) -> Result<(), Failure> {
        let text = files::budget(path)?;
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
        let unmatched = self.command.files.iter().zip(matched);
        for (file, _) in unmatched.filter(|(_, matched)| !matched) {
            self.without_budget(file, path)?;
        }
        Ok(())
    }

    /// A file that nothing limits: it is let through, unless everything has to be said for.
    fn without_budget(&mut self, file: &Path, budgets: &Path) -> Result<(), Failure> {
        // What is not there is a slip.
        if let Err(error) = std::fs::metadata(file) {
            let error =
                anyhow::Error::new(error).context(format!("cannot open `{}`", file.display()));
            return self.not_checked(file, None, Failure::new(Exit::INPUT, error));
        }
        let (budgets, strict) = (name(budgets), self.command.strict);
        let message = format!("`{}` has no budget in `{budgets}`", file.display());
        self.context.ui.warning(&message);
        if strict {
            self.worst = self.worst.max(Exit::NO);
        }
        let checked = FileCheck::without_budget(name(file), &budgets, strict);
        self.report.files.push(checked);
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
        self.spare(file, options)?;
        match self.examine(file, options) {
            Ok(examined) => self.judge(file, examined, options, baseline, budget, rules),
            Err(failure) => {
                let against = baseline.map(|(_, path)| name(path));
                self.not_checked(file, against.as_deref().or(budget), failure)
            }
        }
    }

    /// A file that could not be read or run, told on stderr and in the report.
    fn not_checked(
        &mut self,
        file: &Path,
        against: Option<&str>,
        failure: Failure,
    ) -> Result<(), Failure> {
        if failure.ends_all() {
            return Err(failure);
        }
        failure.show(&self.context.ui);
        self.worst = self.worst.max(failure.exit);
        self.report.files.push(FileCheck::not_checked(
            name(file),
            against.map(str::to_owned),
            failure.one_line(),
        ));
        Ok(())
    }

    /// Refuses to write where something is read that only a baseline or a budget names.
    fn spare(&self, file: &Path, options: &RunOptions) -> Result<(), Failure> {
        let reads: Vec<&Path> = std::iter::once(file).chain(options.files()).collect();
        Ok(spare(&self.command.writes(), &reads)?)
    }

    fn examine(&self, file: &Path, options: &RunOptions) -> Result<Examined, Failure> {
        let mut inspect = inspect_command(options)?;
        inspect.files = vec![file.to_owned()];
        inspect.limits = self.command.engine;
        inspect.trust = self.command.trust;
        let measured = options.measured.then_some("--measured");
        inspect.needs_run = inspect.needs_run.or(measured);
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
        mut examined: Examined,
        options: &RunOptions,
        baseline: Option<(&Baseline, &Path)>,
        budget: Option<&str>,
        rules: &Rules,
    ) -> Result<(), Failure> {
        let path = baseline.map(|(_, path)| name(path));
        let against = path.as_deref().or(budget);
        // A run that failed has nothing to compare; a model that does not fit has, and is a finding.
        if let Some(failure) = examined.failure.take() {
            if failure.exit != Exit::NO {
                return self.not_checked(file, against, failure);
            }
            self.worst = self.worst.max(failure.exit);
            failure.show(&self.context.ui);
        }
        spare(&self.command.writes(), &parts(&examined.checkpoint))?;
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
        let scan = self.scan(file, &examined, &rules.deny)?;
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
        self.whole_and_harmless(file, &examined, &mut checked);
        if checked.verdict == Verdict::Fail {
            self.worst = self.worst.max(Exit::NO);
        }
        self.report.files.push(checked);
        Ok(())
    }

    /// Fails a file that must not be loaded or is not all there.
    fn whole_and_harmless(&mut self, file: &Path, examined: &Examined, checked: &mut FileCheck) {
        let distrusted = inspect::distrust(file, &examined.checkpoint, self.command.trust);
        let partial = inspect::incomplete(file, inspect::said(&examined.checkpoint));
        for (reason, failure) in [
            (Reason::Dangerous, distrusted),
            (Reason::Incomplete, partial),
        ] {
            let Some(failure) = failure else { continue };
            self.worst = self.worst.max(failure.exit);
            failure.show(&self.context.ui);
            checked.fail(reason);
            checked.notes.push(failure.one_line());
        }
    }

    /// Shows what was checked.
    fn finish(self) -> Result<Exit, Failure> {
        let (command, report, ui) = (self.command, &self.report, self.context.ui);
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

/// What to do about numbers that are too high: a baseline can be made anew, a limit of its own cannot.
fn hint(report: &CheckReport, command: &CheckCommand, ui: Ui) {
    let checks = report.files.iter().flat_map(|file| &file.checks);
    let failed = checks.filter(|check| check.verdict == Verdict::Fail);
    let (limited, grown): (Vec<&Check>, Vec<&Check>) = failed.partition(|check| check.absolute);
    let mut hints = Vec::new();
    if command.baseline.is_some() && !command.update_baseline && !grown.is_empty() {
        hints.push("where the change is meant, `--update-baseline` accepts it; review the baseline's difference with the change".to_owned());
    }
    hints.extend(above_limit(&limited, command));
    if !hints.is_empty() {
        ui.hint(&hints.join("; "));
    }
}

/// What to do about numbers above limits that are the same whatever the baseline says.
fn above_limit(limited: &[&Check], command: &CheckCommand) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    let (mut of_file, mut of_run) = (false, false);
    for check in limited.iter().filter(|check| check.current.is_some()) {
        let needs = metrics::find(&check.metric).map(|(kind, _)| kind.needs);
        match needs {
            Some(Needs::File) => of_file = true,
            _ => of_run = true,
        }
        if !names.contains(&check.metric.as_str()) {
            names.push(&check.metric);
        }
    }
    let first = names.first()?;
    let less = match (of_file, of_run) {
        (true, false) => "make the file smaller",
        (false, _) => "make the run need less",
        (true, true) => "make the file smaller and the run need less",
    };
    let raise = match &command.budget {
        Some(budget) => format!(
            "raise the limit of `{}` in `{}`",
            names.join("`, `"),
            budget.display()
        ),
        None if names.len() == 1 => format!("raise `--max {first}`"),
        None => format!("raise `--max` of `{}`", names.join("`, `")),
    };
    Some(format!("{less}, or {raise}"))
}

/// Whether something is to be measured, and there is nothing to run the file with.
fn measures_nothing(options: &RunOptions, file: &Path) -> bool {
    // Reading it again is for the rare case only.
    options.measures_nothing()
        && format::read(file, &ReadOptions::default())
            .is_ok_and(|checkpoint| !super::run::keeps_inputs(&checkpoint))
}

/// Something to measure was asked for, and nothing that runs.
fn nothing_measured(path: &Path) -> Failure {
    let message = format!(
        "`--measured` needs a run: neither the command line nor the baseline `{}` has one",
        path.display()
    );
    Failure::input(message).hint("give `--input`, and `--update-baseline` to make a baseline of it")
}

/// A path as the user gave it.
fn name(path: &Path) -> String {
    path.display().to_string()
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
        Command::Inspect(mut inspect) => {
            inspect
                .gpu
                .as_mut()
                .map_or(Ok(()), super::calibrate::load)?;
            Ok(*inspect)
        }
        other => Err(Failure::input(format!(
            "the options mean another command: {other:?}"
        ))),
    }
}

/// Whether what is asked for is what the baseline was made with.
fn same_options(baseline: &Baseline, asked: &RunOptions) -> Result<(), BaselineError> {
    if *asked == baseline.options {
        return Ok(());
    }
    Err(BaselineError::Options {
        baseline: baseline.options.text(),
        given: asked.text(),
    })
}
