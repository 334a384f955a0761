//! The estimate for people: the verdict first, then where the peak is, what holds it, and the phases.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::Table;
use super::grid::{Fact, Grid, numbers, phase_text, words};
use super::layout::shape_text;
use super::text_table::{Cell, Fit, Look};
use crate::estimate::{AtPeak, Basis, Estimate, LiveTensor, PhaseFigures};
use crate::text::escape;
use crate::trace::Category;
use crate::units::Units;

/// Tensors alive at the peak that are shown one by one.
const MAX_LIVE: usize = 8;

impl Table {
    /// What a run needs on a GPU.
    pub(super) fn estimate(
        &self,
        estimate: &Estimate,
        units: Units,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        writeln!(out)?;
        self.all_facts(&facts(estimate, units), out)?;
        for grid in grids(estimate, units) {
            writeln!(out)?;
            self.grid(&grid, out)?;
        }
        Ok(())
    }
}

/// What a run needs on a GPU, in words.
pub(super) fn facts(estimate: &Estimate, units: Units) -> Vec<Fact> {
    let (verdict, look) = verdict_text(estimate, units);
    let mut facts = vec![Fact::new("GPU", verdict, look)];
    if let Some((text, look)) = eager_text(estimate, units) {
        facts.push(Fact::new("Eager", text, look));
    }
    if let Some(text) = fits_text(estimate, units) {
        let look = match estimate.fits {
            Some(true) => Look::Good,
            Some(false) => Look::Bad,
            None => Look::Warn,
        };
        facts.push(Fact::new("Fits", text, look));
    }
    if let Some(interval) = &estimate.interval {
        let text = format!(
            "{} to {} reserved: {}",
            units.bytes(interval.low_reserved_bytes),
            units.bytes(interval.high_reserved_bytes),
            interval.why
        );
        facts.push(Fact::new("Range", text, Look::Plain));
    }
    if let Some(peak) = &estimate.at_peak {
        if peak.event.is_some() {
            facts.push(Fact::new("Peak at", where_text(peak), Look::Plain));
        }
        let held = held_text(peak, units);
        if !held.is_empty() {
            facts.push(Fact::new("Held by", held, Look::Plain));
        }
    }
    if let Some(total) = estimate.rule_of_thumb.total {
        let text = format!("{} by the rule of thumb", units.bytes(total));
        facts.push(Fact::new("By hand", text, Look::Dim));
    }
    for text in &estimate.assumptions {
        facts.push(Fact::new("Assumed", escape(text), Look::Dim));
    }
    for op in &estimate.coverage.value_dependent_ops {
        let text = format!(
            "values that `{}` reads are not computed: sizes that depend on them may be low",
            escape(op)
        );
        facts.push(Fact::new("Missing", text, Look::Warn));
    }
    for function in &estimate.coverage.not_modelled_functions {
        facts.push(Fact::new("Missing", escape(function), Look::Dim));
    }
    facts
}

/// The phases, and the largest tensors at the peak.
pub(super) fn grids(estimate: &Estimate, units: Units) -> Vec<Grid> {
    let live = estimate.at_peak.as_ref().map(|peak| live(peak, units));
    std::iter::once(phases(estimate, units))
        .chain(live)
        .collect()
}

fn phases(estimate: &Estimate, units: Units) -> Grid {
    let highest = estimate
        .phases
        .iter()
        .map(|phase| phase.peak_allocated_bytes)
        .max();
    let row = |phase: &PhaseFigures| {
        let look = if Some(phase.peak_allocated_bytes) == highest {
            Look::Strong
        } else {
            Look::Plain
        };
        let cell = |text| Cell::new(text, look);
        vec![
            cell(phase_text(phase.name, phase.step)),
            cell(units.bytes(phase.start_requested_bytes)),
            cell(units.bytes(phase.peak_requested_bytes)),
            cell(units.bytes(phase.peak_allocated_bytes)),
            cell(
                phase
                    .peak_reserved_bytes
                    .map_or_else(unknown, |bytes| units.bytes(bytes)),
            ),
            cell(units.bytes(phase.end_requested_bytes)),
        ]
    };
    Grid {
        columns: vec![
            words("Phase", Fit::Keep),
            numbers("At start", Fit::Drop(1)),
            numbers("Peak requested", Fit::Drop(2)),
            numbers("Peak allocated", Fit::Keep),
            numbers("Peak reserved", Fit::Keep),
            numbers("At end", Fit::Drop(0)),
        ],
        rows: estimate.phases.iter().map(row).collect(),
        notes: Vec::new(),
    }
}

fn live(peak: &AtPeak, units: Units) -> Grid {
    let live = &peak.live;
    let title = match peak.event {
        Some(_) => "Largest at the peak",
        None => "Largest",
    };
    let row = |one: &LiveTensor| {
        let name = one.name.as_deref().filter(|name| !name.is_empty());
        let name = name.or(one.module.as_deref()).unwrap_or_default();
        let shape = match (&one.shape, &one.dtype) {
            (Some(shape), Some(dtype)) => {
                format!("{} {}", shape_text(shape), escape(dtype))
            }
            _ => String::new(),
        };
        vec![
            Cell::new(escape(name), Look::Plain),
            Cell::new(units.bytes(one.bytes), Look::Plain),
            Cell::new(one.category.label(), Look::Dim),
            Cell::new(shape, Look::Dim),
            Cell::new(one.op.as_deref().map(escape).unwrap_or_default(), Look::Dim),
        ]
    };
    let mut notes = Vec::new();
    if live.len() > MAX_LIVE {
        let rest: u64 = live.iter().skip(MAX_LIVE).map(|one| one.bytes).sum();
        notes.push(format!(
            "… and {} more, {}: `--format json` has them all",
            live.len() - MAX_LIVE,
            units.bytes(rest)
        ));
    }
    Grid {
        columns: vec![
            words(title, Fit::Cut(20)),
            numbers("Bytes", Fit::Keep),
            words("What", Fit::Keep),
            words("Shape", Fit::Drop(0)),
            words("Made by", Fit::Drop(1)),
        ],
        rows: live.iter().take(MAX_LIVE).map(row).collect(),
        notes,
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// What is known without a run, and that it is not all.
fn without_run_text(estimate: &Estimate, units: Units) -> String {
    let known = estimate.at_peak.iter().flat_map(|peak| &peak.categories);
    let known: Vec<&(Category, u64)> = known.filter(|(_, bytes)| *bytes > 0).collect();
    let sum = known
        .iter()
        .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let names: Vec<String> = known.iter().map(|(category, _)| category.label()).collect();
    let mut text = format!("{} of {}", units.bytes(sum), enumerated(&names));
    if let Some(context) = estimate.context_bytes {
        let _ = write!(text, ", and {} of CUDA context", units.bytes(context));
    }
    if let Some(profile) = &estimate.profile {
        let _ = write!(text, " ({profile})");
    }
    text.push_str("; activations are unknown without a run");
    text
}

/// `a`, `a and b`, `a, b and c`.
fn enumerated(names: &[String]) -> String {
    match names {
        [] => "no weights".to_owned(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

fn verdict_text(estimate: &Estimate, units: Units) -> (String, Look) {
    if estimate.basis == Basis::Static {
        return (without_run_text(estimate, units), Look::Strong);
    }
    let figure = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| units.bytes(bytes));
    let basis = match estimate.basis {
        Basis::CudaSim => "libtorch's own CUDA code on a simulated",
        Basis::CpuTrace => "from the CPU run, for",
        Basis::TraceFile => "from a trace, for",
        Basis::Static => "from the file, for",
    };
    let moment = if estimate.out_of_memory {
        "when memory ran out"
    } else {
        "at the peak"
    };
    let mut text = format!(
        "{} allocated, {} reserved {moment}",
        figure(estimate.peak_allocated_bytes),
        figure(estimate.peak_reserved_bytes)
    );
    if let Some(context) = estimate.context_bytes {
        let _ = write!(text, ", and {} of CUDA context", units.bytes(context));
    }
    if let Some(profile) = &estimate.profile {
        let _ = write!(text, " ({basis} {profile})");
    }
    (text, Look::Strong)
}

/// What an eager Python module would need, where that is something else.
fn eager_text(estimate: &Estimate, units: Units) -> Option<(String, Look)> {
    let eager = estimate.eager.as_ref()?;
    let same = eager.peak_allocated_bytes == estimate.peak_allocated_bytes
        && eager.peak_reserved_bytes == estimate.peak_reserved_bytes;
    if same {
        return None;
    }
    let figure = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| units.bytes(bytes));
    // That run was given all the memory that it asked for, the other one was not.
    let unlimited = if estimate.out_of_memory {
        " with enough memory"
    } else {
        ""
    };
    let reason = if eager.peak_allocated_bytes > estimate.peak_allocated_bytes {
        "an eager module's variables keep values beyond their last use"
    } else {
        "the same module run by Python"
    };
    let mut text = format!(
        "{} allocated, {} reserved{unlimited}: {reason}",
        figure(eager.peak_allocated_bytes),
        figure(eager.peak_reserved_bytes)
    );
    let fits_less = fits_as_torchscript_only(estimate);
    if fits_less {
        text.push_str("; so it does not fit");
    }
    Some((text, if fits_less { Look::Bad } else { Look::Plain }))
}

/// Whether it fits as it was run, and not as an eager module.
fn fits_as_torchscript_only(estimate: &Estimate) -> bool {
    let eager = estimate.eager.as_ref().and_then(|eager| eager.fits);
    estimate.fits == Some(true) && eager == Some(false)
}

fn fits_text(estimate: &Estimate, units: Units) -> Option<String> {
    let total = units.bytes(estimate.device_total_bytes?);
    if estimate.basis == Basis::Static && estimate.fits.is_none() {
        return Some(format!(
            "unknown: this alone fits into {total}, the activations are unknown"
        ));
    }
    let Some(margin) = estimate
        .margin_bytes
        .filter(|_| estimate.fits == Some(true))
    else {
        let answer = if estimate.fits? { "yes," } else { "no, not" };
        return Some(format!("{answer} into {total}"));
    };
    let as_what = if fits_as_torchscript_only(estimate) {
        "as TorchScript only"
    } else {
        "yes"
    };
    let margin = units.bytes(margin);
    let context_counts = estimate.context_bytes.is_some()
        || estimate
            .safe_margin
            .is_some_and(|safe| safe.context_bytes.is_some());
    let left = if context_counts {
        "left"
    } else {
        "left, less the card's CUDA context, which is not known"
    };
    Some(format!("{as_what}, into {total}: {margin} {left}"))
}

fn where_text(peak: &AtPeak) -> String {
    let mut text = peak.phase.unwrap_or("between phases").to_owned();
    if let Some(step) = peak.step {
        let _ = write!(text, " of step {step}");
    }
    if let Some(op) = &peak.op {
        let _ = write!(text, ", `{}`", escape(op));
    }
    if let Some(module) = peak.module.as_deref().filter(|module| !module.is_empty()) {
        let _ = write!(text, " in `{}`", escape(module));
    }
    text
}

fn held_text(peak: &AtPeak, units: Units) -> String {
    let categories = peak.categories.iter();
    let mut parts: Vec<(String, u64)> = categories
        .map(|(category, bytes)| (category.label(), *bytes))
        .collect();
    if let Some(rounding) = peak.rounding {
        parts.push(("rounding".to_owned(), rounding));
    }
    if let Some(cached) = peak.cached_free {
        parts.push(("cached".to_owned(), cached));
    }
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{name} {}", units.bytes(bytes)))
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::cpu_trace::{Card, as_cuda};
    use crate::estimate::{Bound, Question, RuleOfThumb};
    use crate::simulate::{AllocConf, DeviceLimits};
    use crate::trace::memory::MemoryTimeline;
    use crate::trace::{Trace, TraceReader};

    /// One operator that takes 30 MB, on a card of so much memory.
    fn trace(total_bytes: u64) -> Trace {
        let mut reader = TraceReader::new();
        for line in [
            r#"{"header":{"version":1,"device":"cpu","libtorch_version":"2.11.0","mode":"inference","method":"forward"}}"#,
            r#"{"str":{"id":0,"text":"aten::conv2d"}}"#,
            r#"{"sig":{"id":0,"dtype":"float32","shape":[7500000],"bytes":30000000}}"#,
            r#"{"phase":{"t":0,"name":"forward"}}"#,
            r#"{"op":{"t":1,"id":0,"name":0,"args":[]}}"#,
            r#"{"alloc":{"t":2,"id":0,"bytes":30000000,"addr":0}}"#,
            r#"{"end":{"t":4,"id":0,"out":[[0,0]]}}"#,
            r#"{"phase_end":{"t":99}}"#,
        ] {
            reader.line(line).unwrap();
        }
        let card = Card {
            compute_capability: (8, 9),
            conf: AllocConf::default(),
            conf_text: None,
            limits: DeviceLimits { total_bytes },
        };
        as_cuda(&reader.finish().unwrap(), &card).trace
    }

    fn estimate(bound: Bound, total_bytes: u64) -> Estimate {
        let (small, large) = (trace(total_bytes), trace(1 << 30));
        let eager = MemoryTimeline::of(&large);
        let question = Question {
            profile: None,
            capacity_bytes: Some(total_bytes),
            conf: AllocConf::default(),
            bound,
            eager: Some(&eager),
            rule_of_thumb: RuleOfThumb {
                parameters: 0,
                activations_forward: None,
                activations_backward: None,
                optimizer: 0,
                total: None,
            },
            not_modelled_functions: Vec::new(),
            reads: Vec::new(),
            ops_without_rule: 0,
            assumptions: Vec::new(),
        };
        Estimate::of_run(
            Basis::CudaSim,
            &small,
            &MemoryTimeline::of(&small),
            &question,
        )
    }

    #[test]
    fn what_ran_out_of_memory_is_told_from_what_did_not() {
        let text = |estimate: &Estimate| -> Vec<String> {
            let facts = facts(estimate, Units::Iec);
            facts.into_iter().map(|fact| fact.text).collect()
        };
        let short = text(&estimate(Bound::Expected, 20 << 20));
        assert_eq!(short[0], "0 B allocated, 0 B reserved when memory ran out");
        assert!(
            short[1].starts_with("28.6 MiB allocated, 30.0 MiB reserved with enough memory: "),
            "{short:?}"
        );
        let enough = estimate(Bound::Expected, 1 << 30);
        assert!(!enough.out_of_memory);
        let enough = text(&enough);
        assert!(enough[0].contains("reserved at the peak"), "{enough:?}");
    }

    #[test]
    fn the_question_says_which_bound() {
        let (expected, safe) = (
            estimate(Bound::Expected, 1 << 30),
            estimate(Bound::Safe, 1 << 30),
        );
        assert_eq!((expected.bound, safe.bound), ("expected", "safe"));
        assert!(safe.peak_reserved_bytes > expected.peak_reserved_bytes);
        let reserved = |estimate: &Estimate| estimate.eager.unwrap().peak_reserved_bytes;
        assert!(
            reserved(&safe) > reserved(&expected),
            "the eager figure is a safe one, too"
        );
        assert_eq!(
            safe.safe_margin.unwrap().expected_reserved_bytes,
            expected.peak_reserved_bytes.unwrap()
        );
    }
}
