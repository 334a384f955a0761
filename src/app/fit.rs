//! `inspect fit FILE`: the largest batch that fits into a GPU's memory.
//!
//! Two small runs give every allocation as a function of the batch; the memory model finds the largest batch that
//! fits; runs at that batch and the next one show whether it is right. Where it is not, real runs go on searching.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::probe::{Probe, Prober};
use super::program::{self, Batches};
use super::{Context, Exit, Failure, estimates, run, simulated, table_for};
use crate::checkpoint::Checkpoint;
use crate::cli::{BatchArgument, Fit, GpuPlan, ReplayFormat};
use crate::engine::protocol::{Inputs, RunRequest};
use crate::estimate::fit::{MAX_BATCH, Scaling};
use crate::format::{self, ReadOptions};
use crate::report::fit::{FitReport, TriedBatch, table};
use crate::report::{SCHEMA_VERSION, Tool};
use crate::simulate::{AllocConf, DeviceLimits};

/// Runs at most: the model is right at once, or off by a few; doubling from there finds any batch.
const MAX_RUNS: usize = 40;

/// Finds the largest batch and reports it.
pub(super) fn fit(options: &Fit, context: &Context) -> Result<Exit, Failure> {
    // Memory that the context takes is none that a batch can have.
    let options = &Fit {
        gpu: GpuPlan {
            profile: options.gpu.profile.with_some_context(),
            ..options.gpu.clone()
        },
        ..options.clone()
    };
    if !options.inputs.iter().any(BatchArgument::has_batch) {
        return Err(
            Failure::input("no input has the dimension `B`, the batch to find".to_owned())
                .hint("write `B` where the batch stands, such as `--input Bx3x224x224`"),
        );
    }
    let checkpoint = format::read(&options.file, &ReadOptions::default())
        .map_err(|error| Failure::unreadable(&options.file, error))?;
    let request = run::request(&options.file, &checkpoint, &options.run, options.trust)?;
    let batches = program::batches(&checkpoint, &options.inputs)?;
    let conf = estimates::conf(&options.gpu)?;
    let started = Instant::now();
    let found = context.interrupt.by_flag(|interrupted| {
        let mut search = Search {
            options,
            checkpoint: &checkpoint,
            batches,
            request,
            prober: Prober::new(&options.gpu, options.limits),
            conf,
            context,
            interrupted,
            runs: BTreeMap::new(),
        };
        let (batch, verified) = search.search()?;
        Ok::<_, Failure>(search.report(batch, verified))
    })?;
    context.ui.verbose(format_args!(
        "{} runs in {:.1} s",
        found.tried.len(),
        started.elapsed().as_secs_f64()
    ));
    let shown = table_for(&options.target, context.ui);
    options.target.write(|out| match options.format {
        ReplayFormat::Table => table(&found, &shown, options.units, out),
        ReplayFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &found)?;
            writeln!(out)
        }
    })?;
    Ok(match found.batch {
        Some(_) => Exit::OK,
        None => Exit::NO,
    })
}

struct Search<'a> {
    options: &'a Fit,
    checkpoint: &'a Checkpoint,
    /// Those that the program takes.
    batches: Batches,
    request: RunRequest,
    prober: Prober<'a>,
    conf: AllocConf,
    context: &'a Context,
    interrupted: &'a AtomicBool,
    /// Every run, by batch.
    runs: BTreeMap<u64, Probe>,
}

impl Search<'_> {
    /// The largest batch, and whether runs have shown it.
    fn search(&mut self) -> Result<(Option<u64>, bool), Failure> {
        let (least, most) = (self.batches.min, self.most());
        // Some layers take no batch of 1 in training, so 2 is first.
        let first = least.max(2).min(most);
        if !self.fits(first)? {
            let smaller = first > least && self.fits(1)?;
            return Ok((smaller.then_some(1), self.prober.verifies()));
        }
        let (mut runs, mut fails) = (first, None);
        let second = first.saturating_mul(2).min(most);
        if self.fits(second)? {
            runs = second;
        } else {
            fails = Some(second);
        }
        let mut predicted = self.predicted();
        if !self.prober.verifies() {
            let fits_by_model = predicted.unwrap_or(runs).max(runs);
            return Ok((
                Some(fails.map_or(fits_by_model, |fails| fits_by_model.min(fails - 1))),
                false,
            ));
        }
        let mut step = 1;
        while self.runs.len() < MAX_RUNS && fails != Some(runs + 1) && runs < most {
            let batch = next_batch(runs, fails, predicted, step).min(most);
            if predicted == Some(batch) {
                step = 1;
            } else {
                step = step.saturating_mul(2);
            }
            if self.fits(batch)? {
                runs = batch;
            } else {
                fails = Some(batch);
                // The largest runs say most about a batch between them.
                predicted = self.predicted().filter(|_| predicted == Some(batch));
            }
        }
        let at_limit = self.batches.max == Some(runs);
        Ok((Some(runs), fails == Some(runs + 1) || at_limit))
    }

    /// The greatest batch to look at.
    fn most(&self) -> u64 {
        self.batches.max.map_or(MAX_BATCH, |max| max.min(MAX_BATCH))
    }

    /// What the memory model says, from the two largest runs that came to their end.
    fn predicted(&self) -> Option<u64> {
        let scaling = self.scaling()?;
        let largest = scaling.largest(&self.conf, self.prober.device_limits());
        Some(largest.min(self.most()))
    }

    fn scaling(&self) -> Option<Scaling> {
        let mut complete = self.runs.iter().rev().filter(|(_, probe)| probe.fits);
        let high = complete.next()?;
        let low = complete.next()?;
        Scaling::of((*low.0, &low.1.trace), (*high.0, &high.1.trace))
    }

    fn fits(&mut self, batch: u64) -> Result<bool, Failure> {
        if let Some(known) = self.runs.get(&batch) {
            return Ok(known.fits);
        }
        let arguments = self.options.inputs.iter().map(|input| input.at(batch));
        let arguments = arguments
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| Failure::input(error.to_string()))?;
        let mut request = self.request.clone();
        request.inputs = Inputs::Arguments(arguments);
        program::takes(self.checkpoint, &request)?;
        let probe = self
            .prober
            .probe(&request, batch, self.context, self.interrupted)
            .map_err(|failure| {
                simulated::explained(failure, self.checkpoint, self.prober.device())
            })?;
        let fits = probe.fits;
        self.runs.insert(batch, probe);
        Ok(fits)
    }

    fn report(&self, batch: Option<u64>, verified: bool) -> FitReport {
        let gpu = &self.options.gpu;
        let growth = batch.and_then(|batch| self.growth(batch));
        FitReport {
            schema_version: SCHEMA_VERSION,
            tool: Tool::THIS,
            file: self.options.file.display().to_string(),
            basis: self.prober.basis(),
            profile: gpu.profile.name.clone().into_owned(),
            memory_bytes: self.prober.capacity_bytes(),
            context_bytes: gpu.profile.context_bytes,
            batch,
            program_max_batch: self.batches.max,
            verified,
            tried: self
                .runs
                .iter()
                .map(|(batch, probe)| TriedBatch {
                    batch: *batch,
                    peak_reserved_bytes: probe.peak_reserved_bytes.filter(|_| probe.fits),
                    fits: probe.fits,
                })
                .collect(),
            per_sample_bytes: growth.map(|(sample, _)| sample),
            fixed_bytes: growth.map(|(_, fixed)| fixed),
            assumptions: self
                .prober
                .assumptions(&self.request.mode, self.request.lifetimes),
        }
    }

    /// How the requested peak grows around a batch: bytes a sample, and bytes whatever the batch.
    fn growth(&self, batch: u64) -> Option<(u64, u64)> {
        let scaling = self.scaling()?;
        let peak = |batch| {
            let peaks = scaling.peaks(batch, &self.conf, DeviceLimits::UNLIMITED);
            peaks.map(|peaks| peaks.requested_bytes)
        };
        let sample = peak(batch + 1)?.checked_sub(peak(batch)?)?;
        let fixed = peak(batch)?.checked_sub(sample.checked_mul(batch)?)?;
        Some((sample, fixed))
    }
}

/// The next batch to run, between one that fits and one that does not: first where the model says, then away from
/// there in growing steps, never beyond the middle once both ends are known.
fn next_batch(runs: u64, fails: Option<u64>, predicted: Option<u64>, step: u64) -> u64 {
    let Some(fails) = fails else {
        let beyond = if predicted.is_none() { runs } else { step };
        return match predicted {
            Some(predicted) if predicted > runs => predicted,
            _ => runs.saturating_add(beyond).min(MAX_BATCH),
        };
    };
    let middle = runs + (fails - runs) / 2;
    match predicted {
        Some(predicted) if predicted > runs && predicted < fails => predicted,
        Some(predicted) if predicted >= fails => fails.saturating_sub(step).max(middle),
        Some(_) => runs.saturating_add(step).min(middle),
        None => middle,
    }
}

#[cfg(test)]
mod tests {
    use super::next_batch;

    /// Searches for `answer` as [`super::Search::search`] does; the runs that took.
    fn search(answer: u64, predicted: Option<u64>) -> Vec<u64> {
        let (mut runs, mut fails, mut step, mut tried) = (4, None, 1, Vec::new());
        while fails != Some(runs + 1) {
            let batch = next_batch(runs, fails, predicted, step);
            assert!(
                batch > runs && fails.is_none_or(|fails| batch < fails),
                "{tried:?} {batch}"
            );
            step = if predicted == Some(batch) {
                1
            } else {
                step * 2
            };
            tried.push(batch);
            if batch <= answer {
                runs = batch;
            } else {
                fails = Some(batch);
            }
        }
        assert_eq!(runs, answer);
        tried
    }

    #[test]
    fn a_right_prediction_takes_two_runs() {
        assert_eq!(search(412, Some(412)), [412, 413]);
        assert_eq!(search(4, Some(4)), [5]);
    }

    #[test]
    fn a_wrong_prediction_is_put_right() {
        for answer in [4, 5, 100, 399, 400, 401, 403, 411, 5000] {
            for predicted in [None, Some(1), Some(4), Some(400)] {
                assert!(
                    search(answer, predicted).len() < 30,
                    "{answer} {predicted:?}"
                );
            }
        }
    }
}
