//! A run in words: lines that every format for people shows.

use std::fmt::Write as _;

use super::RunReport;
use super::exact::{TensorShape, known};
use crate::estimate::AtPeak;
use crate::report::grid::Fact;
use crate::report::layout::shape_text;
use crate::report::text_table::Look;
use crate::text::{self, escape};
use crate::trace::flops::Work;
use crate::units::{Units, count, duration_ns, grouped};

/// Tensors live at the peak that are told.
const MAX_LIVE: usize = 4;

/// Columns of a value that is no tensor.
const MAX_VALUE: usize = 60;

/// Inputs, outputs and names of operators that are told one by one.
const MAX_NAMED: usize = 6;

/// What a run was given, returned, computed and needed.
pub(in crate::report) fn facts(run: &RunReport<'_>, units: Units) -> Vec<Fact> {
    let mode = match run.mode {
        "train" => "training",
        other => other,
    };
    let about = format!(
        "{} on {}, `{}`, libtorch {}",
        escape(mode),
        escape(run.device),
        escape(run.method),
        escape(run.libtorch_version)
    );
    let plain = |name, text| Fact::new(name, text, Look::Plain);
    let mut facts = vec![
        plain("Run", about),
        plain("Input", inputs_text(run, units)),
        plain("Output", outputs_text(run, units)),
        plain("Compute", compute_text(run)),
    ];
    facts.extend(peak_text(run, units).map(|text| plain("Peak", text)));
    if let Some(peak) = run.measured.as_ref().and_then(|one| one.at_peak.as_ref()) {
        facts.push(Fact::new("", holds_text(peak, units), Look::Dim));
        facts.push(Fact::new("Largest", largest_text(peak, units), Look::Dim));
    }
    if !run.ops.without_flops.is_empty() {
        let names = run.ops.without_flops.iter();
        let names = some(names.map(|name| format!("`{}`", escape(name))));
        let text = format!("no FLOPs are known of {names}");
        facts.push(Fact::new("Missing", text, Look::Warn));
    }
    facts
}

/// The tensors by name, then the arguments without any, by value.
fn inputs_text(run: &RunReport<'_>, units: Units) -> String {
    let is_of = |name: &str, argument: &str| {
        let rest = name.strip_prefix(argument);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let others = run.arguments.iter().filter(|argument| {
        let mut tensors = run.inputs.iter();
        !tensors.any(|input| is_of(&input.name, argument.name))
    });
    let others = others.map(|argument| {
        let default = if argument.given { "" } else { " (default)" };
        let value = text::cut(&escape(argument.value), MAX_VALUE);
        format!("{} = {value}{default}", escape(argument.name))
    });
    let tensors = run.inputs.iter().map(|input| {
        let tensor = match (input.dtype, input.shape, input.bytes) {
            (Some(dtype), Some(shape), Some(bytes)) => {
                let tensor = TensorShape {
                    dtype,
                    shape,
                    bytes,
                };
                tensor_text(&tensor, units)
            }
            _ => "unknown".to_owned(),
        };
        named(&input.name, &tensor)
    });
    some(tensors.chain(others))
}

fn outputs_text(run: &RunReport<'_>, units: Units) -> String {
    let outputs = run.outputs.iter();
    some(outputs.map(|output| named(output.path, &tensor_text(&output.tensor, units))))
}

/// `118 M`; `≥118 M` where a part is not known; blank for none.
pub(super) fn work_text(work: Work) -> String {
    match known(work) {
        None => "unknown".to_owned(),
        Some(work) if work.macs == 0 => String::new(),
        Some(work) if work.incomplete => format!("≥{}", count(work.macs)),
        Some(work) => count(work.macs),
    }
}

fn tensor_text(tensor: &TensorShape<'_>, units: Units) -> String {
    format!(
        "{} {}, {}",
        shape_text(tensor.shape),
        escape(tensor.dtype),
        units.bytes(tensor.bytes)
    )
}

fn named(name: &str, text: &str) -> String {
    if name.is_empty() {
        text.to_owned()
    } else {
        format!("{} {text}", escape(name))
    }
}

/// The first few, and how many more.
fn some(texts: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.collect();
    if texts.is_empty() {
        return "no tensors".to_owned();
    }
    let more = texts.len().saturating_sub(MAX_NAMED);
    if more > 0 {
        texts.truncate(MAX_NAMED);
        texts.push(format!("and {more} more"));
    }
    texts.join("; ")
}

fn compute_text(run: &RunReport<'_>) -> String {
    let totals = run.totals;
    let mut text = match (totals.macs, totals.flops) {
        (Some(macs), Some(flops)) => {
            let least = if run.ops.without_flops.is_empty() {
                ""
            } else {
                "at least "
            };
            format!(
                "{least}{} MACs = {} FLOPs forward",
                grouped(macs),
                grouped(flops)
            )
        }
        _ => "unknown FLOPs forward".to_owned(),
    };
    if let Some(flops) = totals.backward_flops {
        let _ = write!(text, ", {} backward", grouped(flops));
    }
    let _ = write!(
        text,
        "; {} operators; {}",
        grouped(run.ops.total),
        duration_ns(totals.time_ns)
    );
    text
}

/// When the peak was, what it was made of, and its largest tensors.
fn peak_text(run: &RunReport<'_>, units: Units) -> Option<String> {
    let measured = run.measured.as_ref()?;
    let peak = measured.at_peak.as_ref()?;
    let mut text = format!("{} requested", units.bytes(peak.requested_bytes?));
    if let Some(reserved) = measured.peak_reserved_bytes {
        let _ = write!(
            text,
            ", {} allocated, {} reserved",
            units.bytes(measured.peak_allocated_bytes),
            units.bytes(reserved)
        );
    }
    if let Some(phase) = peak.phase {
        let _ = write!(text, ", in {phase}");
    }
    if let Some(step) = peak.step {
        let _ = write!(text, " of step {step}");
    }
    if let Some(op) = &peak.op {
        let _ = write!(text, ", `{}`", escape(op));
    }
    if let Some(module) = peak.module.as_deref().filter(|module| !module.is_empty()) {
        let _ = write!(text, " of `{}`", escape(module));
    }
    let _ = write!(text, " ({})", measured.source);
    Some(text)
}

/// `parameters 44.6 MiB + activations 6.1 MiB`.
fn holds_text(peak: &AtPeak, units: Units) -> String {
    let parts: Vec<String> = peak
        .categories
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(category, bytes)| format!("{} {}", category.label(), units.bytes(*bytes)))
        .collect();
    parts.join(" + ")
}

fn largest_text(peak: &AtPeak, units: Units) -> String {
    let named = peak.live.iter().map(|live| {
        let mut text = units.bytes(live.bytes);
        if let Some(shape) = &live.shape {
            let _ = write!(text, " {}", shape_text(shape));
        }
        match (&live.name, live.module.as_deref(), &live.op) {
            (Some(name), _, _) if !name.is_empty() => {
                let _ = write!(text, " `{}`", escape(name));
            }
            (_, module, Some(op)) => {
                let _ = write!(text, " of `{}`", escape(op));
                if let Some(module) = module.filter(|module| !module.is_empty()) {
                    let _ = write!(text, " in `{}`", escape(module));
                }
            }
            _ => {
                let _ = write!(text, " {}", live.category.label());
            }
        }
        text
    });
    let largest: Vec<String> = named.take(MAX_LIVE).collect();
    largest.join("; ")
}
