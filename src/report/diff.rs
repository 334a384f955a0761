//! What `inspect diff` prints: tables for people, the whole difference as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::grid::{Fact, Grid, numbers, words};
use super::layout::shape_text;
use super::page::{Numbers, Page, Part, delta_look, difference};
use super::table::guides;
use super::text_table::{Cell, Fit, Look};
use super::{Markdown, SCHEMA_VERSION, Table, Tool, an_item_a_line};
use crate::diff::metrics::{self, Unit};
use crate::diff::{
    Change, Contents, Diff, FindingFacts, MatchedBy, ModuleChange, ModuleRun, ModuleRunChange,
    NumberChange, RunDiff, ShapeFacts, TensorChange, TensorSide, TextChange, ValueChange,
};
use crate::text::escape;
use crate::units::{Units, grouped};

/// What to show of a difference.
#[derive(Debug, Clone, Copy)]
pub struct DiffView {
    /// How sizes are written.
    pub units: Units,
    /// Levels of the tree of modules; `None` is as many as fit.
    pub depth: Option<usize>,
    /// Rows of each list; `None` is `ROWS`.
    pub top: Option<usize>,
    /// Every row.
    pub all: bool,
}

/// Rows of a list that a table shows.
const ROWS: usize = 20;

/// Levels of the tree of modules, at most, where nobody asked for more.
const LEVELS: usize = 4;

/// The JSON of `inspect diff`.
#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    tool: Tool,
    #[serde(flatten)]
    diff: &'a Diff,
}

/// Writes a difference as JSON, a change a line.
pub fn json(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    let document = Document {
        schema_version: SCHEMA_VERSION,
        tool: Tool::THIS,
        diff,
    };
    an_item_a_line(&document, out)
}

/// Writes a difference for a terminal.
pub fn table(diff: &Diff, table: &Table, view: DiffView, out: &mut dyn Write) -> io::Result<()> {
    table.page(&page(diff, view), out)
}

/// Writes a difference as Markdown.
pub fn markdown(diff: &Diff, view: DiffView, out: &mut dyn Write) -> io::Result<()> {
    Markdown::page(&page(diff, view), out)
}

impl DiffView {
    fn rows(&self) -> usize {
        match (self.all, self.top) {
            (true, _) => usize::MAX,
            (false, top) => top.unwrap_or(ROWS),
        }
    }

    /// What a list leaves out.
    fn rest(&self, all: usize) -> Option<String> {
        let more = all.saturating_sub(self.rows());
        (more > 0).then(|| format!("… and {} more: `--all` shows them", grouped(more as u64)))
    }
}

fn page(diff: &Diff, view: DiffView) -> Page {
    let mut page = Page {
        title: format!("{} → {}", diff.old.path, diff.new.path),
        answer: answer(diff),
        look: if diff.identical {
            Look::Good
        } else {
            Look::Warn
        },
        parts: Vec::new(),
    };
    page.facts(properties("Changed", &diff.properties));
    page.grid(tensors(diff, view));
    page.grid(modules(diff, view));
    page.grid(metric_grid("File", &diff.metrics, view.units));
    if let Some(run) = &diff.run {
        run_parts(run, view, &mut page);
    }
    page.facts(facts(diff));
    page.parts.extend(guesses(diff).map(Part::Note));
    page.parts
        .extend(diff.notes.iter().cloned().map(Part::Note));
    page
}

fn answer(diff: &Diff) -> String {
    let mut parts = Vec::new();
    for change in Change::ALL {
        if let Some(count) = diff.totals.changes.get(change.name()) {
            let word = match change {
                Change::Role => "with another role",
                Change::Layout => "laid out otherwise",
                Change::RequiresGrad => "with or without gradients",
                Change::Value => "with other numbers",
                other => other.name(),
            };
            parts.push(format!("{} {word}", grouped(*count)));
        }
    }
    let unchanged = grouped(diff.totals.unchanged);
    let tensors = if diff.totals.unchanged == 1 {
        "tensor"
    } else {
        "tensors"
    };
    let equal = match diff.contents {
        Contents::No => format!("{unchanged} {tensors} equal by name, shape and dtype"),
        Contents::Hashes => format!("{unchanged} {tensors} equal, contents by hash"),
        Contents::Values => format!("{unchanged} {tensors} equal, number by number"),
    };
    if diff.identical {
        return format!("no difference: {equal}");
    }
    if parts.is_empty() {
        return equal;
    }
    parts.push(format!("{unchanged} unchanged"));
    parts.join(", ")
}

fn properties(name: &'static str, list: &[TextChange]) -> Vec<Fact> {
    let none = || "none".to_owned();
    let text = |side: &Option<String>| side.as_deref().map_or_else(none, escape);
    let fact = |change: &TextChange| {
        let text = format!(
            "{}: {} → {}",
            change.what,
            text(&change.old),
            text(&change.new)
        );
        Fact::new(name, text, Look::Warn)
    };
    list.iter().map(fact).collect()
}

fn tensors(diff: &Diff, view: DiffView) -> Grid {
    let mut list: Vec<&TensorChange> = diff.tensors.iter().collect();
    let size = |change: &TensorChange| change.delta_bytes.map_or(u64::MAX, i64::unsigned_abs);
    // Where nothing grew the order is the file's.
    list.sort_by_key(|change| std::cmp::Reverse(size(change)));
    let shown = list.iter().take(view.rows());
    Grid {
        columns: vec![
            words("Change", Fit::Keep),
            words("Tensor", Fit::Cut(22)),
            words("What", Fit::Cut(16)),
            numbers("Bytes", Fit::Keep),
        ],
        rows: shown.map(|change| tensor_row(change, view.units)).collect(),
        notes: view.rest(list.len()).into_iter().collect(),
    }
}

fn tensor_row(change: &TensorChange, units: Units) -> Vec<Cell> {
    let look = match change.change {
        Change::Added => Look::Good,
        Change::Removed => Look::Bad,
        _ => Look::Warn,
    };
    let names: Vec<&str> = change
        .changes
        .iter()
        .map(|one| match one {
            Change::RequiresGrad => "gradients",
            other => other.name(),
        })
        .collect();
    let name = match &change.old {
        Some(old) if old.name != change.name => format!("{} → {}", old.name, change.name),
        _ => change.name.clone(),
    };
    let mut what = match (&change.old, &change.new) {
        (Some(old), Some(new)) => sides_text(old, new),
        (Some(one), None) | (None, Some(one)) => {
            format!("{} {}", dtype_text(one), size_text(one))
        }
        (None, None) => String::new(),
    };
    if let Some(values) = &change.values {
        what = format!("{what}, {}", values_text(values));
    }
    vec![
        Cell::new(names.join(", "), look),
        Cell::new(escape(&name), Look::Plain),
        Cell::new(what, Look::Plain),
        Cell::new(
            match change.delta_bytes {
                Some(0) => String::new(),
                None => "unknown".to_owned(),
                delta => difference(delta, true, units),
            },
            delta_look(change.delta_bytes),
        ),
    ]
}

fn dtype_text(side: &TensorSide) -> String {
    escape(side.dtype.as_deref().unwrap_or("unknown"))
}

fn size_text(side: &TensorSide) -> String {
    let shape = side.shape.as_deref();
    shape.map_or_else(|| "unknown".to_owned(), shape_text)
}

/// A tensor of both files, what differs as it was and as it is.
fn sides_text(old: &TensorSide, new: &TensorSide) -> String {
    let dtypes = (dtype_text(old), dtype_text(new));
    let sizes = (size_text(old), size_text(new));
    let both = |(old, new): &(String, String)| {
        if old == new {
            old.clone()
        } else {
            format!("{old} → {new}")
        }
    };
    let tensor = if dtypes.0 != dtypes.1 && sizes.0 != sizes.1 {
        format!("{} {} → {} {}", dtypes.0, sizes.0, dtypes.1, sizes.1)
    } else {
        format!("{} {}", both(&dtypes), both(&sizes))
    };
    let mut parts = Vec::new();
    for (old, new) in [(&old.role, &new.role), (&old.layout, &new.layout)] {
        if old != new {
            parts.push(format!("{} → {}", escape(old), escape(new)));
        }
    }
    if let (Some(before), Some(after)) = (&old.strides, &new.strides)
        && old.shape == new.shape
        && before != after
    {
        let (before, after) = (shape_text(before), shape_text(after));
        parts.push(format!("strides {before} → {after}"));
    }
    match (old.requires_grad, new.requires_grad) {
        (Some(false), Some(true)) => parts.push("now with gradients".to_owned()),
        (Some(true), Some(false)) => parts.push("now without gradients".to_owned()),
        _ => {}
    }
    match (&old.tied_to, &new.tied_to) {
        (Some(old), None) => parts.push(format!("no longer tied to {}", escape(old))),
        (None, Some(new)) => parts.push(format!("now tied to {}", escape(new))),
        (Some(old), Some(new)) if old != new => {
            parts.push(format!("tied to {} → {}", escape(old), escape(new)));
        }
        _ => {}
    }
    // What is as it was would only take the room of what is not.
    if parts.is_empty() || dtypes.0 != dtypes.1 || sizes.0 != sizes.1 {
        parts.insert(0, tensor);
    }
    parts.join(", ")
}

/// How tensors of other names were found, where that is a guess.
fn guesses(diff: &Diff) -> impl Iterator<Item = String> {
    let count = |how: MatchedBy| {
        let tensors = diff.tensors.iter();
        tensors.filter(|one| one.matched_by == Some(how)).count()
    };
    let all = [
        (count(MatchedBy::NameEnding), "the end of their names"),
        (count(MatchedBy::Position), "their shape and place"),
    ];
    let guessed = all.into_iter().filter(|(count, _)| *count > 0);
    guessed.map(|(count, by)| {
        let (count, tensors) = match count {
            1 => ("1".to_owned(), "tensor was"),
            count => (grouped(count as u64), "tensors were"),
        };
        let surely = match diff.contents {
            Contents::No => ": `--hash` knows by their contents",
            Contents::Hashes | Contents::Values => "",
        };
        format!("{count} renamed {tensors} matched by {by}{surely}")
    })
}

fn values_text(values: &ValueChange) -> String {
    let mut text = format!(
        "{} of {} differ",
        grouped(values.different),
        grouped(values.numel)
    );
    if let (Some(abs), Some(rel)) = (values.max_abs, values.max_rel) {
        text = format!("{text}, by {abs:.3e} at most, {rel:.3e} relative");
    }
    for (count, what) in [
        (values.nan_appeared, "NaN appeared"),
        (values.nan_gone, "NaN went"),
        (values.inf_appeared, "infinities appeared"),
    ] {
        if count > 0 {
            text = format!("{text}, {} {what}", grouped(count));
        }
    }
    text
}

fn modules(diff: &Diff, view: DiffView) -> Grid {
    let list = &diff.modules;
    let fits = |depth: usize| list.iter().filter(|one| one.depth <= depth).count() <= view.rows();
    let depth = match (view.all, view.depth) {
        (_, Some(depth)) => depth,
        (true, None) => usize::MAX,
        (false, None) => (1..=LEVELS).rev().find(|depth| fits(*depth)).unwrap_or(1),
    };
    let all: Vec<&ModuleChange> = list.iter().filter(|one| one.depth <= depth).collect();
    let shown: Vec<&ModuleChange> = all.iter().take(view.rows()).copied().collect();
    let mut table = Numbers::new("Bytes by module", view.units);
    for (index, module) in shown.iter().enumerate() {
        let below = shown.get(index + 1..).unwrap_or_default();
        let more: Vec<bool> = (1..=module.depth)
            .map(|level| goes_on(below, level))
            .collect();
        let name = match module.path.as_str() {
            "" => "all",
            path if module.depth == 1 => path,
            path => path.rsplit_once('.').map_or(path, |(_, name)| name),
        };
        let sides = (Some(module.old_bytes), Some(module.new_bytes));
        table.row(guides(&more), name, sides, Some(module.delta_bytes), true);
    }
    let deepest = list.iter().map(|one| one.depth).max().unwrap_or(0);
    let levels = (deepest > depth)
        .then(|| format!("{depth} of {deepest} levels: `--depth {deepest}` shows all"));
    let mut grid = table.finish(view.rest(all.len()));
    grid.notes.extend(levels);
    grid
}

/// Whether a row of this level follows before one of a lower level does.
fn goes_on(below: &[&ModuleChange], level: usize) -> bool {
    let mut rows = below.iter().map(|one| one.depth);
    rows.find(|depth| *depth <= level) == Some(level)
}

fn metric_grid(title: &'static str, list: &[NumberChange], units: Units) -> Grid {
    let mut table = Numbers::new(title, units);
    for change in list {
        let kind = metrics::find(&change.metric);
        let bytes = kind.is_some_and(|(kind, _)| kind.unit == Unit::Bytes);
        let sides = (change.old, change.new);
        table.row(String::new(), &change.metric, sides, change.delta, bytes);
    }
    table.finish(None)
}

fn run_parts(run: &RunDiff, view: DiffView, page: &mut Page) {
    page.facts(properties("Run", &run.conditions));
    page.grid(metric_grid("Run", &run.metrics, view.units));
    let mut held = Numbers::new("At the peak", view.units);
    for change in &run.at_peak {
        let name = change.category.replace('_', " ");
        held.row(
            String::new(),
            &name,
            (change.old, change.new),
            change.delta,
            true,
        );
    }
    page.grid(held.finish(None));
    page.grid(module_runs(run, view));
    let mut ops = Numbers::new("Calls of operators", view.units);
    for change in run.ops.iter().take(view.rows()) {
        let delta = crate::diff::delta(change.old, change.new);
        let sides = (Some(change.old), Some(change.new));
        ops.row(String::new(), &change.op, sides, Some(delta), false);
    }
    page.grid(ops.finish(view.rest(run.ops.len())));
}

fn module_runs(run: &RunDiff, view: DiffView) -> Grid {
    let outputs = |side: Option<&ModuleRun>| -> String {
        let Some(side) = side else {
            return String::new();
        };
        let text = |one: &ShapeFacts| format!("{} {}", escape(&one.dtype), shape_text(&one.shape));
        let all: Vec<String> = side.outputs.iter().map(text).collect();
        let calls = if side.calls == 1 {
            String::new()
        } else {
            format!(" x{}", side.calls)
        };
        format!("{}{calls}", all.join(", "))
    };
    let flops = |change: &ModuleRunChange| {
        let of = |side: &Option<ModuleRun>| side.as_ref().map_or(Some(0), |side| side.flops);
        Some(crate::diff::delta(of(&change.old)?, of(&change.new)?))
    };
    let row = |change: &ModuleRunChange| {
        let word = match (&change.old, &change.new) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        let path = if change.path.is_empty() {
            "the whole"
        } else {
            &change.path
        };
        let delta = flops(change);
        vec![
            Cell::new(word, Look::Warn),
            Cell::new(escape(path), Look::Plain),
            Cell::new(outputs(change.old.as_ref()), Look::Dim),
            Cell::new(outputs(change.new.as_ref()), Look::Plain),
            Cell::new(
                match delta {
                    Some(0) => String::new(),
                    delta => difference(delta, false, view.units),
                },
                delta_look(delta),
            ),
        ]
    };
    Grid {
        columns: vec![
            words("Change", Fit::Keep),
            words("Module of the run", Fit::Cut(24)),
            words("Returned", Fit::Drop(1)),
            words("Returns", Fit::Drop(0)),
            numbers("FLOPs", Fit::Keep),
        ],
        rows: run.modules.iter().take(view.rows()).map(row).collect(),
        notes: view.rest(run.modules.len()).into_iter().collect(),
    }
}

/// What is no table: other contents, findings, and what could not be compared.
fn facts(diff: &Diff) -> Vec<Fact> {
    let mut facts = Vec::new();
    for name in &diff.numpy_arrays {
        facts.push(Fact::new(
            "Numpy",
            format!("`{}` differs", escape(name)),
            Look::Warn,
        ));
    }
    let finding = |name, look, finding: &FindingFacts| {
        let place = match finding.location.as_str() {
            "" => String::new(),
            location => format!("`{}`: ", escape(location)),
        };
        let text = format!("{place}{} [{}]", escape(&finding.message), finding.code);
        Fact::new(name, text, look)
    };
    facts.extend(
        diff.new_findings
            .iter()
            .map(|one| finding("New", Look::Warn, one)),
    );
    facts.extend(
        diff.gone_findings
            .iter()
            .map(|one| finding("Gone", Look::Good, one)),
    );
    for one in &diff.not_compared {
        let text = format!("`{}`: {}", escape(&one.name), escape(&one.why));
        facts.push(Fact::new("Unknown", text, Look::Warn));
    }
    if let Some(equal) = diff.totals.equal_values {
        let tensors = if equal == 1 { "tensor" } else { "tensors" };
        let text = format!("the numbers of {} {tensors}", grouped(equal));
        facts.push(Fact::new("Equal", text, Look::Plain));
    }
    facts
}
