//! Folders of `torch.distributed.checkpoint`.
//!
//! | file | what it is |
//! |---|---|
//! | `.metadata` | a pickle: names, whole shapes, and where each piece is ([`metadata`]) |
//! | `__<rank>_<n>.distcp` | what one process saved: entries one behind the other, each a `torch.save` archive of one piece of a tensor, or of an object |
//!
//! The metadata is believed as far as the files bear it out: entries lie in their files and not in each other, and the
//! piece in an entry has the shape and dtype that are said of it. A tensor is listed whole, with its pieces
//! ([`crate::checkpoint::Chunk`]); pieces that are not there, or overlap, are findings.

mod coverage;
mod entries;
mod metadata;
mod plan;

use std::path::Path;

use super::super::error::FormatError;
use super::super::torch::legacy::{Cursor, trailing};
use super::super::torch::rebuild::{Graph, View};
use super::super::torch::rows::{Place, Rows, push_finding};
use super::super::torch::security::Watch;
use super::folder::Folder;
use crate::checkpoint::{
    Assembly, Checkpoint, Chunk, FilePart, FileRanks, Finding, Format, Layout, ObjectKind,
    Severity, Tensor,
};
use crate::limits;
use crate::source::Source;
use crate::tensor::contiguous_strides;
use coverage::Coverage;
use entries::Entries;
use metadata::{Item, Metadata, STREAM, TensorFacts};
use plan::Plan;

/// The name of the metadata.
pub(crate) const METADATA: &str = ".metadata";

/// What the names of the files with the data end with.
const ENDING: &str = ".distcp";

/// Name of the finding for elements of a tensor that are in no chunk.
pub(crate) const MISSING_CHUNK: &str = "missing-chunk";

/// Name of the finding for elements of a tensor that are in two chunks.
pub(crate) const OVERLAPPING_CHUNKS: &str = "overlapping-chunks";

/// Whether a folder is a distributed checkpoint, with its metadata or without.
pub(crate) fn is_dcp(path: &Path) -> bool {
    is_metadata(&path.join(METADATA)) || has_parts(path)
}

/// Whether a file is the metadata of a distributed checkpoint, by the class that its pickle starts with.
pub(crate) fn is_metadata(path: &Path) -> bool {
    let Ok(source) = Source::open(path) else {
        return false;
    };
    let head = source.bytes().get(..HEAD_BYTES.min(source.bytes().len()));
    let class = b"checkpoint.metadata";
    head.unwrap_or_default()
        .windows(class.len())
        .any(|bytes| bytes == class)
}

/// Bytes of the metadata in which its class is named.
const HEAD_BYTES: usize = 256;

fn has_parts(path: &Path) -> bool {
    let names = Folder::open(path).and_then(|folder| folder.names());
    names.is_ok_and(|(names, _)| names.iter().any(|name| is_part(name)))
}

fn is_part(name: &str) -> bool {
    name.starts_with("__") && name.ends_with(ENDING)
}

/// The process that wrote a file, by its name.
fn ranks(name: &str) -> FileRanks {
    let own = name.rsplit('/').next().unwrap_or(name);
    let rank = own
        .strip_prefix("__")
        .and_then(|rest| rest.split('_').next());
    FileRanks {
        rank: rank.and_then(|rank| rank.parse().ok()),
        ..FileRanks::default()
    }
}

/// The error for a file that is only a part of a distributed checkpoint, and cannot be read without the rest.
pub(crate) fn part_alone(path: &Path) -> Option<FormatError> {
    let name = path.file_name()?.to_str()?;
    is_part(name).then(|| FormatError::NotACheckpoint {
        what: "a part of a distributed checkpoint".to_owned(),
        hint: Some("name its folder: what is where in the parts is in its `.metadata`"),
    })
}

/// Reads the distributed checkpoint that is this folder.
pub(crate) fn read(path: &Path) -> Result<Checkpoint, FormatError> {
    let folder = Folder::open(path)?;
    let Some(metadata) = folder.file(METADATA)? else {
        return Err(without_metadata(&folder));
    };
    let source = Source::open(&metadata)?;
    let mut assembly = Assembly::new(Format::Dcp);
    assembly.add_metadata(FilePart {
        name: METADATA.to_owned(),
        path: metadata,
        bytes: source.len(),
        format: None,
        ranks: FileRanks::default(),
    })?;
    read_all(&folder, source.bytes(), assembly)
}

/// Reads bytes as the metadata of a distributed checkpoint of which no file is there, and says how many names it has.
pub fn check(data: &[u8]) -> Result<usize, FormatError> {
    let mut watch = Watch::default();
    let mut cursor = Cursor { data, position: 0 };
    let pickle = cursor.pickle(STREAM, &mut watch)?;
    let graph = Graph::new(&pickle);
    let metadata = Metadata::of(&graph)?;
    let mut findings = Vec::new();
    let plan = Plan::of(&metadata, &mut findings)?;
    let entries = Entries::new(&metadata);
    let found = (&entries, &plan);
    let tensors = tensors(&metadata, found, pickle.consumed(), &mut findings)?;
    Ok(tensors.len())
}

fn without_metadata(folder: &Folder) -> FormatError {
    let names = folder.names().map(|(names, _)| names).unwrap_or_default();
    let by_rank = names
        .iter()
        .any(|name| name.starts_with("__") && name.ends_with(METADATA));
    let unfinished = names.iter().any(|name| name.ends_with(".metadata.tmp"));
    FormatError::Structure {
        part: "the folder of a distributed checkpoint".to_owned(),
        expected: format!("a file `{METADATA}` beside its `{ENDING}` files"),
        found: match (by_rank, unfinished) {
            (true, _) => "one `__<rank>.metadata` for each process: it was saved without collectives",
            (false, true) => "only `.metadata.tmp`: saving it was interrupted",
            (false, false) => {
                "none: saving it was interrupted, or the copy left out the name that starts with a dot"
            }
        }
        .to_owned(),
    }
}

fn read_all(
    folder: &Folder,
    data: &[u8],
    mut assembly: Assembly,
) -> Result<Checkpoint, FormatError> {
    let mut watch = Watch::default();
    let mut cursor = Cursor { data, position: 0 };
    let pickle = cursor.pickle(STREAM, &mut watch)?;
    trailing(&cursor, &mut watch);
    let graph = Graph::new(&pickle);
    let metadata = Metadata::of(&graph)?;
    let (security, mut findings) = watch.finish();
    assembly.secure(security);
    let plan = Plan::of(&metadata, &mut findings)?;
    let mut entries = Entries::new(&metadata);
    entries.read(folder, (&metadata, &plan), &mut assembly, &mut findings)?;
    let found = (&entries, &plan);
    let whole = tensors(&metadata, found, pickle.consumed(), &mut findings)?;
    extra_files(folder, &plan, &mut findings)?;
    let object = object(&metadata, &whole);
    let byte_order = entries.byte_order();
    let parts = assembly.parts_mut();
    // What objects hold comes behind what the checkpoint names itself.
    parts.tensors.splice(0..0, whole);
    parts.object = object;
    let version = metadata.version.as_deref();
    parts.producer = Some(match version {
        Some(version) => format!("torch.distributed.checkpoint {version}"),
        None => "torch.distributed.checkpoint".to_owned(),
    });
    parts.byte_order = byte_order;
    parts.findings.extend(findings);
    Ok(assembly.finish()?)
}

/// The tensors as wholes, in the order of the metadata.
fn tensors(
    metadata: &Metadata<'_>,
    (entries, plan): (&Entries, &Plan<'_>),
    pickle_bytes: usize,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Tensor>, FormatError> {
    let mut rows = Rows::new(pickle_bytes as u64);
    let mut budget = limits::CHUNK_COMPARISONS;
    for (item, places) in metadata.items.iter().zip(&plan.entries) {
        let Some(facts) = &item.tensor else {
            if places.contains(&None) {
                let message = "it is named, but no file is said to have it".to_owned();
                push_finding(findings, Severity::Error, MISSING_CHUNK, item.name, message);
            }
            continue;
        };
        let coverage = Coverage::of(&facts.shape, &facts.chunks, &mut budget);
        look_at(item, facts, &coverage, findings);
        let chunks: Vec<Chunk> = facts
            .chunks
            .iter()
            .zip(places)
            .map(|(chunk, place)| entries.chunk(chunk, *place, metadata))
            .collect();
        lost(item, &chunks, findings);
        let complete = coverage.is_exact() && chunks.iter().all(|chunk| chunk.view.is_some());
        whole(&mut rows, item.name, facts, chunks, complete)?;
    }
    Ok(rows.tensors)
}

fn look_at(item: &Item<'_>, facts: &TensorFacts, coverage: &Coverage, findings: &mut Vec<Finding>) {
    let chunk = |index: usize| {
        facts
            .chunks
            .get(index)
            .map_or_else(String::new, ToString::to_string)
    };
    if let Some((first, second)) = coverage.overlap {
        let message = format!("its chunks {} and {} overlap", chunk(first), chunk(second));
        let error = Severity::Error;
        push_finding(findings, error, OVERLAPPING_CHUNKS, item.name, message);
    }
    if coverage.missing > 0 {
        let message = format!(
            "{} of its {} elements are in no chunk",
            coverage.missing,
            crate::tensor::numel(&facts.shape).unwrap_or(u64::MAX)
        );
        push_finding(findings, Severity::Error, MISSING_CHUNK, item.name, message);
    }
    if !coverage.compared {
        let message = "it has too many chunks beside each other to compare all of them: whether some overlap is not known";
        let info = Severity::Info;
        push_finding(
            findings,
            info,
            "chunks-not-compared",
            item.name,
            message.to_owned(),
        );
    }
}

/// Chunks that no entry is for.
fn lost(item: &Item<'_>, chunks: &[Chunk], findings: &mut Vec<Finding>) {
    for chunk in chunks.iter().filter(|chunk| chunk.file_offset.is_none()) {
        let place = metadata::sizes_text(&chunk.offsets);
        let message = format!("no file is said to have its chunk at {place}");
        push_finding(findings, Severity::Error, MISSING_CHUNK, item.name, message);
    }
}

/// Adds a tensor: as it is stored where it is in one piece, else in chunks.
fn whole(
    rows: &mut Rows,
    name: &str,
    facts: &TensorFacts,
    chunks: Vec<Chunk>,
    complete: bool,
) -> Result<(), FormatError> {
    let one = match chunks.as_slice() {
        [only] if complete && only.sizes == facts.shape => only.view.as_ref(),
        _ => None,
    };
    let mut view = View {
        dtype: facts.dtype,
        shape: facts.shape.clone(),
        strides: contiguous_strides(&facts.shape).unwrap_or_default(),
        storage: None,
        storage_bytes: None,
        offset: 0,
        requires_grad: facts.requires_grad,
        layout: Layout::Chunked,
        quantizer: None,
    };
    if let Some(one) = one {
        view.storage = one.storage();
        view.strides = one.strides().unwrap_or_default().into();
        view.offset = one.storage_offset();
        view.quantizer = one.quantizer();
        view.layout = one.layout();
    }
    let layout = view.layout;
    rows.add(STREAM, name, view, place(name), layout)?;
    if let Some(tensor) = rows.tensors.pop() {
        rows.tensors.push(tensor.in_chunks(chunks, complete));
    }
    Ok(())
}

/// What a tensor is to the model, by the names that training code gives the parts of its checkpoints.
fn place(name: &str) -> Place {
    let mut outer = name.split('.').take(2);
    if outer.any(|part| part.starts_with("optim")) {
        Place::Optimizer
    } else {
        Place::StateDict
    }
}

fn object(metadata: &Metadata<'_>, whole: &[Tensor]) -> ObjectKind {
    let more = whole.len() < metadata.items.len();
    let optimizer = metadata
        .items
        .iter()
        .any(|item| place(item.name) == Place::Optimizer);
    match (whole.is_empty(), more || optimizer) {
        (true, _) => ObjectKind::Other,
        (false, true) => ObjectKind::Checkpoint,
        (false, false) => ObjectKind::StateDict,
    }
}

/// Files that look like parts and are none: left from another save.
fn extra_files(
    folder: &Folder,
    plan: &Plan<'_>,
    findings: &mut Vec<Finding>,
) -> Result<(), FormatError> {
    for name in folder.names()?.0.iter().filter(|name| is_part(name)) {
        if !plan.has_file(name) {
            let message = format!("it is named like a part, but `{METADATA}` does not name it");
            push_finding(findings, Severity::Warning, "extra-shard", name, message);
        }
    }
    Ok(())
}
