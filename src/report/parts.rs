//! What reports say of checkpoints that are several files: whose they are, pieces of tensors, objects with a name.

use serde::Serialize;

use super::ExactReport;
use super::layout::shape_text;
use crate::checkpoint::{Chunk, FileRanks, StorageId, StoredObject, Tensor};
use crate::text::{self, escape};
use crate::units::{Units, grouped};

/// A piece of a tensor.
#[derive(Debug, Serialize)]
pub struct ChunkReport<'a> {
    /// Where in the whole it starts.
    pub offsets: &'a [u64],
    /// Its sizes.
    pub sizes: &'a [u64],
    /// The file that it is said to be in; `None` where nothing says so.
    pub file: Option<&'a str>,
    /// Where its entry starts in the file.
    pub file_offset: Option<u64>,
    /// Bytes of the entry.
    pub file_bytes: Option<u64>,
    /// The storage that it is in; `None` where that is not there.
    pub storage: Option<u32>,
}

impl<'a> ChunkReport<'a> {
    pub(super) fn of(chunk: &'a Chunk) -> Self {
        ChunkReport {
            offsets: &chunk.offsets,
            sizes: &chunk.sizes,
            file: chunk.file_offset.map(|_| chunk.file.as_str()),
            file_offset: chunk.file_offset,
            file_bytes: chunk.file_bytes,
            storage: chunk
                .view
                .as_ref()
                .and_then(Tensor::storage)
                .map(StorageId::number),
        }
    }
}

/// An object that is no tensor.
#[derive(Debug, Serialize)]
pub struct ObjectReport<'a> {
    /// Its name.
    pub name: &'a str,
    /// A number or text as Python writes it, or what it is (`<dict>`).
    pub value: &'a str,
    /// Which file or member it is in.
    pub member: &'a str,
    /// Where it starts there.
    pub offset: u64,
    /// Bytes that it takes up.
    pub bytes: u64,
}

impl<'a> ObjectReport<'a> {
    pub(super) fn of(object: &'a StoredObject) -> Self {
        ObjectReport {
            name: &object.name,
            value: &object.value,
            member: &object.member,
            offset: object.offset,
            bytes: object.bytes,
        }
    }
}

/// Which process a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RanksReport {
    /// Of all processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Of those that hold different parts of every layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_parallel: Option<u64>,
    /// Of those that hold different parts of the optimizer's state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel: Option<u64>,
    /// The layer that it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
}

impl RanksReport {
    pub(super) fn of(ranks: FileRanks) -> Option<Self> {
        let FileRanks {
            rank,
            model_parallel,
            data_parallel,
            layer,
        } = ranks;
        (ranks != FileRanks::default()).then_some(RanksReport {
            rank,
            model_parallel,
            data_parallel,
            layer,
        })
    }

    fn text(self) -> String {
        let parts = [
            ("rank", self.rank),
            ("model-parallel rank", self.model_parallel),
            ("data-parallel rank", self.data_parallel),
            ("layer", self.layer),
        ];
        let known = parts
            .iter()
            .filter_map(|(what, number)| Some(format!("{what} {}", (*number)?)));
        known.collect::<Vec<String>>().join(", ")
    }
}

/// Files that a report for people names.
const MAX_FILES: usize = 8;

/// Objects that a report for people names.
const MAX_OBJECTS: usize = 6;

/// Columns of a name or value.
const SHOWN_WIDTH: usize = 40;

/// `2 files: `a` 1.2 KiB (rank 0), ...`; nothing where there is but one.
fn files_text(report: &ExactReport<'_>, units: Units) -> Option<String> {
    let files = &report.file.files;
    let mut shown: Vec<String> = files
        .iter()
        .take(MAX_FILES)
        .map(|file| {
            let name = text::cut(&escape(file.name), SHOWN_WIDTH);
            let ranks = file.ranks.map(|ranks| format!(" ({})", ranks.text()));
            format!(
                "`{name}` {}{}",
                units.bytes(file.bytes),
                ranks.unwrap_or_default()
            )
        })
        .collect();
    let more = files.len().saturating_sub(MAX_FILES) as u64;
    if more > 0 {
        shown.push(format!("and {} more", grouped(more)));
    }
    let all = files.len() as u64;
    (!files.is_empty()).then(|| format!("{}: {}", grouped(all), shown.join(", ")))
}

/// `3 that are no tensors: `step` 3, ...`; nothing where there are none.
fn objects_text(report: &ExactReport<'_>) -> Option<String> {
    let objects = &report.objects;
    let mut shown: Vec<String> = objects
        .iter()
        .take(MAX_OBJECTS)
        .map(|object| {
            let name = text::cut(&escape(object.name), SHOWN_WIDTH);
            let value = text::cut(&escape(object.value), SHOWN_WIDTH);
            format!("`{name}` {value}")
        })
        .collect();
    let more = objects.len().saturating_sub(MAX_OBJECTS) as u64;
    if more > 0 {
        shown.push(format!("and {} more", grouped(more)));
    }
    let all = objects.len() as u64;
    (!objects.is_empty()).then(|| format!("{}: {}", grouped(all), shown.join(", ")))
}

/// numpy arrays that a report for people names.
const MAX_ARRAYS: usize = 4;

/// `2 arrays, 128 B in the pickle: `x` 3×4 float64, ...`; nothing where there are none.
fn numpy_text(report: &ExactReport<'_>, units: Units) -> Option<String> {
    let arrays = &report.numpy_arrays;
    let bytes = arrays
        .iter()
        .fold(0, |sum: u64, array| sum.saturating_add(array.bytes));
    let mut shown: Vec<String> = arrays
        .iter()
        .take(MAX_ARRAYS)
        .map(|array| {
            let name = text::cut(&escape(array.name), SHOWN_WIDTH);
            let dtype = text::cut(&escape(array.dtype), SHOWN_WIDTH);
            format!("`{name}` {} {dtype}", shape_text(array.shape))
        })
        .collect();
    if arrays.len() > MAX_ARRAYS {
        shown.push(format!(
            "and {} more",
            grouped((arrays.len() - MAX_ARRAYS) as u64)
        ));
    }
    let plural = if arrays.len() == 1 { "" } else { "s" };
    (!arrays.is_empty()).then(|| {
        format!(
            "{} array{plural}, {} in the pickle: {}",
            grouped(arrays.len() as u64),
            units.bytes(bytes),
            shown.join(", ")
        )
    })
}

/// What else there is to say, under headings: files, objects, numpy arrays.
pub(super) fn more_facts(
    report: &ExactReport<'_>,
    units: Units,
) -> impl Iterator<Item = (&'static str, String)> {
    let facts = [
        ("Files", files_text(report, units)),
        ("Objects", objects_text(report)),
        ("Numpy", numpy_text(report, units)),
    ];
    facts
        .into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
}
