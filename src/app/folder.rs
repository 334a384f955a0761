//! `inspect FOLDER`: a row for every checkpoint in it.

use std::fs::Metadata;
use std::path::Path;

use super::inspect::{distrust, incomplete, said};
use super::{Context, Exit, Failure, parts, spare, table_for};
use crate::cli::{Inspect, ReportFormat};
use crate::format::{self, Members, ReadOptions};
use crate::report::summary::{FolderSummary, SummaryRow};
use crate::ui::Stages as _;

/// The checkpoints of the one folder that was named; `None` where it is a checkpoint itself.
pub(super) fn sole(inspect: &Inspect) -> Result<Option<(&Path, Members)>, Failure> {
    let [path] = inspect.files.as_slice() else {
        return Ok(None);
    };
    let members = format::several_checkpoints(path);
    let members = members.map_err(|error| Failure::unreadable(path, error))?;
    Ok(members.map(|members| (path.as_path(), members)))
}

/// Reads one after the other and shows a row for each; one that fails does not stop the others.
pub(super) fn summarize(
    (path, members): (&Path, Members),
    inspect: &Inspect,
    context: &Context,
) -> Result<Exit, Failure> {
    let show = &inspect.show;
    if let Some(why) = asks_for_one(inspect) {
        let path = path.display();
        let message = format!("`{path}` is a folder of several checkpoints: {why}");
        return Err(Failure::input(message).hint("name one"));
    }
    let paths: Vec<&Path> = members
        .checkpoints
        .iter()
        .map(|one| one.path.as_path())
        .collect();
    show.target.check(&paths)?;
    let (mut rows, mut failures) = read(&members, inspect, context);
    if let Some(index) = failures.iter().position(Failure::ends_all) {
        return Err(failures.swap_remove(index));
    }
    for (name, why) in members.refused {
        let shown = path.join(&name).display().to_string();
        failures.push(Failure::input(format!("cannot read `{shown}`: {why}")));
        rows.push(SummaryRow::failed(name, None, why));
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    let summary = FolderSummary::new(path.display().to_string(), rows, members.other_entries);
    show.target.write(|out| match show.format {
        ReportFormat::Json => summary.json(out),
        ReportFormat::Markdown => summary.markdown(show.units, out),
        ReportFormat::Csv => summary.csv(out),
        ReportFormat::Table | ReportFormat::Html => {
            let table = table_for(&show.target, context.ui);
            summary.table(&table, show.units, out)
        }
    })?;
    let mut worst = Exit::OK;
    for failure in failures {
        worst = worst.max(failure.exit);
        failure.show(&context.ui);
    }
    Ok(worst)
}

/// Why what was asked for is of one checkpoint only, where it is.
fn asks_for_one(inspect: &Inspect) -> Option<&'static str> {
    let data = inspect.show.data;
    let runs = inspect.run.is_some() || inspect.needs_run.is_some();
    if runs || inspect.signature.is_some() || inspect.merge {
        Some("only one can be run or shown in full")
    } else if data.verify || data.hash || data.stats {
        Some("their data is not read")
    } else if inspect.show.format == ReportFormat::Html {
        Some("there is no page for all of them")
    } else {
        None
    }
}

/// The rows of all that can be opened, and what is wrong with some.
fn read(
    members: &Members,
    inspect: &Inspect,
    context: &Context,
) -> (Vec<SummaryRow>, Vec<Failure>) {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut progress = context.ui.progress();
    let total = members.checkpoints.len() as u64;
    for (done, member) in members.checkpoints.iter().enumerate() {
        progress.stage("reading checkpoints", done as u64, Some(total));
        match format::read(&member.path, &ReadOptions::default()) {
            Ok(checkpoint) => {
                let spared = spare(&inspect.writes(), &parts(&checkpoint));
                failures.extend(spared.err().map(Failure::from));
                failures.extend(distrust(&member.path, &checkpoint, inspect.trust));
                failures.extend(incomplete(&member.path, said(&checkpoint)));
                rows.push(SummaryRow::of(member.name.clone(), &checkpoint));
            }
            Err(error) => {
                let failure = Failure::unreadable(&member.path, error);
                let bytes = member.path.metadata().ok().filter(Metadata::is_file);
                let bytes = bytes.map(|data| data.len());
                let why = failure.last_cause();
                rows.push(SummaryRow::failed(member.name.clone(), bytes, why));
                failures.push(failure);
            }
        }
    }
    (rows, failures)
}
