//! The estimate for a terminal: the verdict first, then where the peak is, what holds it, and the phases.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::Table;
use super::layout::shape_text;
use super::text_table::{self, Cell, Column, Fit, Look, Side};
use crate::estimate::{AtPeak, Basis, Estimate, LiveTensor, category_label};
use crate::text::escape;
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
        let (verdict, look) = verdict_text(estimate, units);
        self.fact("GPU", &verdict, look, out)?;
        if let Some(text) = fits_text(estimate, units) {
            let look = if estimate.fits == Some(true) {
                Look::Good
            } else {
                Look::Bad
            };
            self.fact("Fits", &text, look, out)?;
        }
        if let Some(interval) = &estimate.interval {
            let text = format!(
                "{} to {} reserved: {}",
                units.bytes(interval.low_reserved_bytes),
                units.bytes(interval.high_reserved_bytes),
                interval.why
            );
            self.fact("Range", &text, Look::Plain, out)?;
        }
        if let Some(peak) = &estimate.at_peak {
            self.fact("Peak at", &where_text(peak), Look::Plain, out)?;
            self.fact("Held by", &held_text(peak, units), Look::Plain, out)?;
        }
        let rule = &estimate.rule_of_thumb;
        if let Some(total) = rule.total {
            let text = format!("{} by the rule of thumb", units.bytes(total));
            self.fact("By hand", &text, Look::Dim, out)?;
        }
        for text in &estimate.assumptions {
            self.fact("Assumed", &escape(text), Look::Dim, out)?;
        }
        for op in &estimate.coverage.value_dependent_ops {
            let text = format!(
                "`{}` has a size that depends on values: may be low",
                escape(op)
            );
            self.fact("Missing", &text, Look::Warn, out)?;
        }
        for function in &estimate.coverage.not_modelled_functions {
            self.fact("Missing", &escape(function), Look::Dim, out)?;
        }
        writeln!(out)?;
        self.phases(estimate, units, out)?;
        if let Some(peak) = &estimate.at_peak {
            writeln!(out)?;
            self.live(&peak.live, units, out)?;
        }
        Ok(())
    }

    fn phases(&self, estimate: &Estimate, units: Units, out: &mut dyn Write) -> io::Result<()> {
        let column = |title, side, fit| Column { title, side, fit };
        let columns = [
            column("Phase", Side::Left, Fit::Keep),
            column("At start", Side::Right, Fit::Drop(1)),
            column("Peak requested", Side::Right, Fit::Drop(2)),
            column("Peak allocated", Side::Right, Fit::Keep),
            column("Peak reserved", Side::Right, Fit::Keep),
            column("At end", Side::Right, Fit::Drop(0)),
        ];
        let highest = estimate
            .phases
            .iter()
            .map(|phase| phase.peak_allocated_bytes)
            .max();
        let rows: Vec<Vec<Cell>> = estimate
            .phases
            .iter()
            .map(|phase| {
                let name = match phase.step {
                    Some(step) => format!("{} {step}", phase.name),
                    None => phase.name.to_owned(),
                };
                let look = if Some(phase.peak_allocated_bytes) == highest {
                    Look::Strong
                } else {
                    Look::Plain
                };
                vec![
                    Cell::new(name, look),
                    Cell::new(units.bytes(phase.start_requested_bytes), look),
                    Cell::new(units.bytes(phase.peak_requested_bytes), look),
                    Cell::new(units.bytes(phase.peak_allocated_bytes), look),
                    Cell::new(
                        phase
                            .peak_reserved_bytes
                            .map_or_else(unknown, |bytes| units.bytes(bytes)),
                        look,
                    ),
                    Cell::new(units.bytes(phase.end_requested_bytes), look),
                ]
            })
            .collect();
        text_table::write(&columns, &rows, self.width, self.color, out)
    }

    fn live(&self, live: &[LiveTensor], units: Units, out: &mut dyn Write) -> io::Result<()> {
        let column = |title, side, fit| Column { title, side, fit };
        let columns = [
            column("Largest at the peak", Side::Left, Fit::Cut(20)),
            column("Bytes", Side::Right, Fit::Keep),
            column("What", Side::Left, Fit::Keep),
            column("Shape", Side::Left, Fit::Drop(0)),
            column("Made by", Side::Left, Fit::Drop(1)),
        ];
        let rows: Vec<Vec<Cell>> = live
            .iter()
            .take(MAX_LIVE)
            .map(|one| {
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
                    Cell::new(category_label(one.category).replace('_', " "), Look::Dim),
                    Cell::new(shape, Look::Dim),
                    Cell::new(one.op.as_deref().map(escape).unwrap_or_default(), Look::Dim),
                ]
            })
            .collect();
        text_table::write(&columns, &rows, self.width, self.color, out)?;
        if live.len() > MAX_LIVE {
            let rest: u64 = live.iter().skip(MAX_LIVE).map(|one| one.bytes).sum();
            let note = format!(
                "… and {} more, {}: `--format json` has them all",
                live.len() - MAX_LIVE,
                units.bytes(rest)
            );
            writeln!(out, "{}", self.paint(&note, Look::Dim))?;
        }
        Ok(())
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn verdict_text(estimate: &Estimate, units: Units) -> (String, Look) {
    let figure = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| units.bytes(bytes));
    let basis = match estimate.basis {
        Basis::CudaSim => "libtorch's own CUDA code on a simulated",
        Basis::CpuTrace => "from the CPU run, for",
        Basis::TraceFile => "from a trace, for",
        Basis::Static => "without a run, for",
    };
    let mut text = format!(
        "{} allocated, {} reserved at the peak",
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

fn fits_text(estimate: &Estimate, units: Units) -> Option<String> {
    let total = units.bytes(estimate.device_total_bytes?);
    match (estimate.fits?, estimate.margin_bytes) {
        (true, Some(margin)) => Some(format!("yes, into {total}: {} left", units.bytes(margin))),
        (true, None) => Some(format!("yes, into {total}")),
        (false, _) => Some(format!("no, not into {total}")),
    }
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
    let mut parts: Vec<(&str, u64)> = peak
        .categories
        .iter()
        .map(|(category, bytes)| (category_label(*category), *bytes))
        .collect();
    parts.push(("rounding", peak.rounding));
    if let Some(cached) = peak.cached_free {
        parts.push(("cached", cached));
    }
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{} {}", name.replace('_', " "), units.bytes(bytes)))
        .collect();
    parts.join(", ")
}
