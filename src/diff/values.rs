//! The numbers of two checkpoints, compared.
//!
//! Done here and not by the engine: what is in the files is enough, so no libtorch has to be started, every format that
//! can be listed can be compared, and the bytes are read where they are mapped, on all cores. Bytes that are equal are
//! not looked at twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::matching::{Matching, Pair};
use crate::checkpoint::{Checkpoint, Tensor};
use crate::format::on_all_cores;
use crate::numbers::{Decoder, Items, NoItems, Number};
use crate::source::Source;

/// How the numbers of a tensor differ.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ValueChange {
    /// Items that differ; NaN equals NaN, and 0 equals minus 0.
    pub different: u64,
    /// Items in all.
    pub numel: u64,
    /// Largest difference between finite numbers; unknown for packed and quantized dtypes.
    pub max_abs: Option<f64>,
    /// Largest difference between finite numbers, divided by the larger of their magnitudes: at most 2.
    pub max_rel: Option<f64>,
    /// Items that are NaN now and were not.
    pub nan_appeared: u64,
    /// Items that were NaN and are not now.
    pub nan_gone: u64,
    /// Items that are infinite now and were finite.
    pub inf_appeared: u64,
}

/// Tensors whose numbers could not be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotCompared {
    /// Its name in the new file.
    pub name: String,
    /// Why.
    pub why: String,
}

/// What comparing all numbers gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values {
    /// Tensors whose numbers are equal.
    pub equal: u64,
    /// Those that differ, by place in the new file.
    pub different: HashMap<usize, ValueChange>,
    /// Those that could not be compared, in the order of the new file.
    pub not_compared: Vec<NotCompared>,
}

/// A checkpoint whose bytes are at hand.
#[derive(Debug, Clone, Copy)]
pub struct Opened<'a> {
    /// The file.
    pub source: &'a Source,
    /// What is in it.
    pub checkpoint: &'a Checkpoint,
}

enum Outcome {
    Equal,
    Different(ValueChange),
    NotCompared(String),
}

/// Compares the numbers of every pair; `progress` hears how many bytes of how many are done, from any thread.
pub fn compare(
    old: Opened<'_>,
    new: Opened<'_>,
    matching: &Matching,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Values {
    let tensors = |pair: &Pair| {
        let old = old.checkpoint.tensors().get(pair.old)?;
        Some((old, new.checkpoint.tensors().get(pair.new)?))
    };
    let sizes = matching.pairs.iter().filter_map(tensors);
    let total = sizes
        .map(|(_, new)| new.bytes())
        .fold(0, u64::saturating_add);
    let done = AtomicU64::new(0);
    let outcomes = on_all_cores(&matching.pairs, |pair| {
        let (before, after) = tensors(pair)?;
        let outcome = compare_one((old, before), (new, after));
        let bytes = after.bytes();
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        progress(before.saturating_add(bytes), total);
        Some((outcome, after.name()))
    });
    let mut values = Values::default();
    for (pair, outcome) in matching.pairs.iter().zip(outcomes) {
        match outcome {
            None => {}
            Some((Outcome::Equal, _)) => values.equal += 1,
            Some((Outcome::Different(change), _)) => {
                values.different.insert(pair.new, change);
            }
            Some((Outcome::NotCompared(why), name)) => values.not_compared.push(NotCompared {
                name: name.to_owned(),
                why,
            }),
        }
    }
    values
}

fn compare_one(old: (Opened<'_>, &Tensor), new: (Opened<'_>, &Tensor)) -> Outcome {
    let (before, after) = (old.1, new.1);
    if before.shape() != after.shape() {
        return Outcome::NotCompared("its shape is another".to_owned());
    }
    let (old_items, new_items) = match (items(old, "old"), items(new, "new")) {
        (Err(why), _) | (_, Err(why)) => return Outcome::NotCompared(why),
        (Ok(Some(old)), Ok(Some(new))) => (old, new),
        _ => return Outcome::Equal,
    };
    let same_dtype = before.dtype() == after.dtype();
    let same_bytes = same_dtype && old_items.big_endian() == new_items.big_endian();
    let runs = (old_items.run(), new_items.run());
    let contiguous = old_items.is_contiguous() && new_items.is_contiguous();
    if let (true, (Some(a), Some(b))) = (same_bytes && contiguous, runs)
        && a == b
    {
        return Outcome::Equal;
    }
    let decoder = |tensor: &Tensor| tensor.dtype().and_then(Decoder::of);
    let Some((a, b)) = decoder(before).zip(decoder(after)) else {
        return opaque(&old_items, &new_items, same_bytes && contiguous, before);
    };
    if a.parts() != b.parts() {
        return Outcome::NotCompared("one is complex, the other is not".to_owned());
    }
    let mut tally = Tally::default();
    for (a_at, b_at) in old_items.offsets().zip(new_items.offsets()) {
        let (Some(a_item), Some(b_item)) = (old_items.item(a_at), new_items.item(b_at)) else {
            return Outcome::NotCompared("its view is larger than its storage".to_owned());
        };
        if same_bytes && a_item == b_item {
            continue;
        }
        tally.item((&old_items, a, a_item), (&new_items, b, b_item));
    }
    tally.outcome(before.numel())
}

/// The items of one side; `None` where it has no items at all.
fn items<'a>(
    (opened, tensor): (Opened<'a>, &'a Tensor),
    which: &str,
) -> Result<Option<Items<'a>>, String> {
    match (tensor.numel(), tensor.shape()) {
        (0, Some(_)) => return Ok(None),
        (_, None) => return Err(format!("it has no shape in the {which} file")),
        _ => {}
    }
    let items = Items::of(opened.source, opened.checkpoint, tensor);
    items.map(Some).map_err(|why| match why {
        NoItems::NotInFile => format!("its numbers are not in the {which} file"),
        NoItems::Unreadable(error) => format!("the {which} file: {error}"),
    })
}

/// Dtypes whose bytes alone can be compared.
fn opaque(old: &Items<'_>, new: &Items<'_>, same_bytes: bool, tensor: &Tensor) -> Outcome {
    let (true, Some(a), Some(b)) = (same_bytes, old.run(), new.run()) else {
        let dtype = tensor.dtype().map_or("unknown", crate::tensor::DType::name);
        return Outcome::NotCompared(format!("numbers of {dtype} are compared byte by byte only"));
    };
    let size = old.item_bytes().max(1);
    let pairs = a.chunks(size).zip(b.chunks(size));
    let different = pairs.filter(|(a, b)| a != b).count() as u64;
    Outcome::Different(ValueChange {
        different,
        numel: tensor.numel(),
        max_abs: None,
        max_rel: None,
        nan_appeared: 0,
        nan_gone: 0,
        inf_appeared: 0,
    })
}

/// Differences so far.
#[derive(Default)]
struct Tally {
    different: u64,
    max_abs: f64,
    max_rel: f64,
    nan_appeared: u64,
    nan_gone: u64,
    inf_appeared: u64,
}

impl Tally {
    fn item(&mut self, old: (&Items<'_>, Decoder, &[u8]), new: (&Items<'_>, Decoder, &[u8])) {
        let (mut equal, mut was_nan, mut is_nan) = (true, false, false);
        let (mut was_inf, mut is_inf) = (false, false);
        let (mut difference, mut before, mut after) = (0_f64, 0_f64, 0_f64);
        for part in 0..old.1.parts() {
            let number = |(items, decoder, item): (&Items<'_>, Decoder, &[u8])| {
                items.number(decoder, item, part)
            };
            let Some((was, is)) = number(old).zip(number(new)) else {
                continue;
            };
            let (was_value, is_value) = (was.value(), is.value());
            equal &= same(was, is);
            was_nan |= was_value.is_nan();
            is_nan |= is_value.is_nan();
            was_inf |= was_value.is_infinite();
            is_inf |= is_value.is_infinite();
            difference = joined(difference, apart(was, is));
            before = joined(before, was_value);
            after = joined(after, is_value);
        }
        if equal {
            return;
        }
        self.different += 1;
        self.nan_appeared += u64::from(is_nan && !was_nan);
        self.nan_gone += u64::from(was_nan && !is_nan);
        self.inf_appeared += u64::from(is_inf && !was_inf && !was_nan);
        if difference.is_finite() && before.is_finite() && after.is_finite() {
            self.max_abs = self.max_abs.max(difference);
            self.max_rel = self.max_rel.max(difference / before.max(after));
        }
    }

    fn outcome(self, numel: u64) -> Outcome {
        if self.different == 0 {
            return Outcome::Equal;
        }
        Outcome::Different(ValueChange {
            different: self.different,
            numel,
            max_abs: Some(self.max_abs),
            max_rel: Some(self.max_rel),
            nan_appeared: self.nan_appeared,
            nan_gone: self.nan_gone,
            inf_appeared: self.inf_appeared,
        })
    }
}

fn same(a: Number, b: Number) -> bool {
    if let (Number::Int(a), Number::Int(b)) = (a, b) {
        return a == b;
    }
    let (a, b) = (a.value(), b.value());
    let infinite = a.is_infinite() && a.to_bits() == b.to_bits();
    infinite || (a.is_nan() && b.is_nan()) || (a - b) == 0.0
}

/// The magnitude of a complex number, part by part; the first part costs no square root.
fn joined(magnitude: f64, part: f64) -> f64 {
    if magnitude == 0.0 {
        part.abs()
    } else {
        magnitude.hypot(part)
    }
}

/// How far two numbers are apart; integers exactly, before rounding to a float.
fn apart(a: Number, b: Number) -> f64 {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => (a - b).unsigned_abs() as f64,
        _ => (a.value() - b.value()).abs(),
    }
}

/// A tensor with numbers that are none, or not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFinite {
    /// Its name.
    pub name: String,
    /// Items that are NaN.
    pub nan: u64,
    /// Items that are infinite.
    pub inf: u64,
}

/// What reading all numbers of a checkpoint gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Tensors with NaN or infinities, in file order.
    pub not_finite: Vec<NotFinite>,
    /// Tensors whose numbers could not be read, in file order.
    pub not_read: Vec<NotCompared>,
}

/// Looks for NaN and infinities in all floating tensors; `progress` as in [`compare`].
pub fn scan(file: Opened<'_>, progress: &(dyn Fn(u64, u64) + Sync)) -> Scan {
    let tensors = file.checkpoint.tensors();
    let total = tensors
        .iter()
        .map(Tensor::bytes)
        .fold(0, u64::saturating_add);
    let done = AtomicU64::new(0);
    let found = on_all_cores(tensors, |tensor| {
        let outcome = scan_one(file, tensor);
        let bytes = tensor.bytes();
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        progress(before.saturating_add(bytes), total);
        outcome
    });
    let mut scan = Scan::default();
    for (tensor, outcome) in tensors.iter().zip(found) {
        let name = tensor.name().to_owned();
        match outcome {
            Ok((0, 0)) => {}
            Ok((nan, inf)) => scan.not_finite.push(NotFinite { name, nan, inf }),
            Err(why) => scan.not_read.push(NotCompared { name, why }),
        }
    }
    scan
}

fn scan_one(file: Opened<'_>, tensor: &Tensor) -> Result<(u64, u64), String> {
    let floating = |dtype: &crate::tensor::DType| dtype.is_floating_point() || dtype.is_complex();
    let Some(dtype) = tensor.dtype().filter(floating) else {
        return Ok((0, 0));
    };
    if tensor.numel() == 0 {
        return Ok((0, 0));
    }
    let Some(decoder) = Decoder::of(dtype) else {
        return Err(format!("numbers of {} are not read", dtype.name()));
    };
    let items = Items::of(file.source, file.checkpoint, tensor).map_err(|why| match why {
        NoItems::NotInFile => "its numbers are not in the file".to_owned(),
        NoItems::Unreadable(error) => error,
    })?;
    let (mut nan, mut inf) = (0, 0);
    for offset in items.offsets() {
        let Some(item) = items.item(offset) else {
            return Err("its view is larger than its storage".to_owned());
        };
        let values = (0..decoder.parts()).filter_map(|part| items.number(decoder, item, part));
        let (mut any_nan, mut any_inf) = (false, false);
        for number in values {
            any_nan |= number.value().is_nan();
            any_inf |= number.value().is_infinite();
        }
        nan += u64::from(any_nan);
        inf += u64::from(any_inf && !any_nan);
    }
    Ok((nan, inf))
}
