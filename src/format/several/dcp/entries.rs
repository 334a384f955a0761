//! The entries of the files: one `torch.save` archive behind the other.

use std::path::PathBuf;

use super::super::super::error::FormatError;
use super::super::super::pickle::cut;
use super::super::super::torch::archive::{Kind, TorchArchive};
use super::super::super::torch::rows::push_finding;
use super::super::folder::Folder;
use super::super::in_file;
use super::super::sharded::MISSING_SHARD;
use super::metadata::{ChunkFacts, Metadata, Stored, TensorFacts, sizes_text};
use super::plan::{Claim, FilePlan, Plan};
use super::ranks;
use crate::checkpoint::{
    Assembly, ByteOrder, CheckpointParts, Chunk, FilePart, Finding, Format, Severity, StoredObject,
    Tensor,
};
use crate::source::Source;

/// What was found in the entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// The piece in each entry, by its place in the metadata.
    views: Vec<Option<Tensor>>,
    byte_order: Option<ByteOrder>,
}

/// One file while its entries are read.
struct File<'f> {
    name: &'f str,
    data: &'f [u8],
    index: u32,
}

impl Entries {
    /// Of files that nobody has read.
    pub(super) fn new(metadata: &Metadata<'_>) -> Entries {
        Entries {
            views: vec![None; metadata.stored.len()],
            byte_order: None,
        }
    }

    pub(super) fn byte_order(&self) -> Option<ByteOrder> {
        self.byte_order
    }

    /// Reads the files of a folder, one after the other.
    pub(super) fn read(
        &mut self,
        folder: &Folder,
        (metadata, plan): (&Metadata<'_>, &Plan<'_>),
        assembly: &mut Assembly,
        findings: &mut Vec<Finding>,
    ) -> Result<(), FormatError> {
        for file in &plan.files {
            let Some(path) = folder.file(file.name)? else {
                missing(file, metadata, findings);
                continue;
            };
            self.file((file, path), (metadata, plan), assembly, findings)
                .map_err(|error| in_file(file.name, error))?;
        }
        Ok(())
    }

    fn file(
        &mut self,
        (file, path): (&FilePlan<'_>, PathBuf),
        (metadata, plan): (&Metadata<'_>, &Plan<'_>),
        assembly: &mut Assembly,
        findings: &mut Vec<Finding>,
    ) -> Result<(), FormatError> {
        let source = Source::open(&path)?;
        let begun = FilePart {
            name: file.name.to_owned(),
            path,
            bytes: source.len(),
            format: Some(Format::Dcp),
            ranks: ranks(file.name),
        };
        let open = File {
            name: file.name,
            data: source.bytes(),
            index: assembly.begin_file(begun)?,
        };
        let entries = file.entries.iter();
        let entries = entries.filter_map(|index| Some((*index, metadata.stored.get(*index)?)));
        let (mut end, mut before) = (0_u64, "the start of the file");
        let mut unused = 0_u64;
        for (index, stored) in entries {
            if stored.offset < end {
                return Err(FormatError::Archive {
                    what: format!(
                        "the entry of `{}` overlaps that of `{}`, which ends at byte {end}",
                        cut(stored.name),
                        cut(before)
                    ),
                    offset: stored.offset,
                });
            }
            unused = unused.saturating_add(stored.offset.saturating_sub(end));
            let claim = plan.claims.get(index).copied().unwrap_or(Claim::None);
            let read = self.entry(
                &open,
                (index, stored),
                (claim, metadata),
                assembly,
                findings,
            );
            read.map_err(|error| error.in_entry(stored.name, stored.offset))?;
            end = stored.offset.saturating_add(stored.bytes);
            before = stored.name;
        }
        unused = unused.saturating_add(source.len().saturating_sub(end));
        if unused > 0 {
            let message = format!("no entry is in {unused} of its bytes");
            push_finding(findings, Severity::Info, "unused-bytes", file.name, message);
        }
        let parts = assembly.parts_mut();
        parts.unreferenced_bytes = parts.unreferenced_bytes.saturating_add(unused);
        Ok(())
    }

    /// Reads one entry. What it names counts as what PyTorch loads.
    fn entry(
        &mut self,
        file: &File<'_>,
        (index, stored): (usize, &Stored<'_>),
        (claim, metadata): (Claim, &Metadata<'_>),
        assembly: &mut Assembly,
        findings: &mut Vec<Finding>,
    ) -> Result<(), FormatError> {
        let data = bytes_of(file.data, stored)?;
        if !stored.transforms.is_empty() || !data.starts_with(b"PK\x03\x04") {
            opaque(file, stored, assembly, findings);
            return Ok(());
        }
        let archive = TorchArchive::open(data)?;
        if archive.kind() != Kind::Pickle {
            opaque(file, stored, assembly, findings);
            return Ok(());
        }
        let (mut parts, shown) = archive.pickle_parts(stored.name)?;
        self.same_order(parts.byte_order)?;
        settle(&mut parts, file, stored, findings);
        let first = assembly.parts().storages.len();
        if let Claim::Chunk(item, chunk) = claim {
            let facts = metadata
                .items
                .get(item)
                .and_then(|item| item.tensor.as_ref());
            let chunk = facts.and_then(|facts| facts.chunks.get(chunk));
            if let Some((facts, chunk)) = facts.zip(chunk) {
                if !parts.composites.is_empty() {
                    let message = "its chunk is stored as several tensors, listed under its name";
                    let info = Severity::Info;
                    push_finding(
                        findings,
                        info,
                        "composite-chunk",
                        stored.name,
                        message.to_owned(),
                    );
                }
                let view = piece(&mut parts, (facts, chunk))?;
                let first = u32::try_from(first).unwrap_or(u32::MAX);
                let view = view.and_then(|view| view.behind(first));
                if let Some(slot) = self.views.get_mut(index) {
                    *slot = view;
                }
            }
        } else {
            parts.objects.push(StoredObject {
                name: stored.name.to_owned(),
                value: shown,
                member: file.name.to_owned(),
                offset: stored.offset,
                bytes: stored.bytes,
            });
        }
        Ok(assembly.absorb(parts)?)
    }

    /// Numbers are read in one byte order for the whole checkpoint.
    fn same_order(&mut self, order: Option<ByteOrder>) -> Result<(), FormatError> {
        let Some(order) = order else { return Ok(()) };
        let known = *self.byte_order.get_or_insert(order);
        if known == order {
            return Ok(());
        }
        Err(FormatError::Structure {
            part: "the byte order".to_owned(),
            expected: format!("{}, as in the entries before it", known.name()),
            found: order.name().to_owned(),
        })
    }

    /// A chunk of a tensor with what was found of it.
    pub(super) fn chunk(
        &self,
        facts: &ChunkFacts,
        entry: Option<usize>,
        metadata: &Metadata<'_>,
    ) -> Chunk {
        let stored = entry.and_then(|entry| metadata.stored.get(entry));
        let view = entry.and_then(|entry| self.views.get(entry)).cloned();
        Chunk {
            offsets: facts.offsets.clone(),
            sizes: facts.sizes.clone(),
            file: stored.map_or_else(Default::default, |stored| stored.file.into()),
            file_offset: stored.map(|stored| stored.offset),
            file_bytes: stored.map(|stored| stored.bytes),
            view: view.flatten(),
        }
    }
}

/// The bytes of an entry, which must lie in the file.
fn bytes_of<'f>(data: &'f [u8], stored: &Stored<'_>) -> Result<&'f [u8], FormatError> {
    let end = stored.offset.checked_add(stored.bytes);
    let range = usize::try_from(stored.offset)
        .ok()
        .zip(end.and_then(|end| usize::try_from(end).ok()));
    let bytes = range.and_then(|(begin, end)| data.get(begin..end));
    bytes.ok_or_else(|| FormatError::Truncated {
        what: format!("the entry of `{}`", cut(stored.name)),
        needed_bytes: end.unwrap_or(u64::MAX),
        file_bytes: data.len() as u64,
    })
}

/// Gives what was found in an entry its place in the file and the checkpoint.
fn settle(
    parts: &mut CheckpointParts,
    file: &File<'_>,
    stored: &Stored<'_>,
    findings: &mut Vec<Finding>,
) {
    for storage in &mut parts.storages {
        let begin = storage.data_offset().unwrap_or(0);
        let begin = begin.saturating_add(stored.offset);
        let end = begin.saturating_add(storage.file_bytes());
        let member = compact_str::format_compact!("{}::{begin}:{end}", file.name);
        *storage = storage
            .clone()
            .behind(stored.offset)
            .in_file(file.index, member);
    }
    for finding in std::mem::take(&mut parts.findings) {
        let place = format!("{}::{}", file.name, stored.name);
        let message = match finding.location.as_str() {
            "" => finding.message,
            location => format!("`{}`: {}", cut(location), finding.message),
        };
        push_finding(findings, finding.severity, finding.code, &place, message);
    }
}

/// The piece of a tensor that an entry is, taken out of what was found in it. An entry of a tensor that is stored as
/// several is a whole of its parts.
fn piece(
    parts: &mut CheckpointParts,
    (facts, chunk): (&TensorFacts, &ChunkFacts),
) -> Result<Option<Tensor>, FormatError> {
    if !parts.composites.is_empty() {
        return Ok(None);
    }
    if parts.tensors.len() == 1
        && let Some(tensor) = parts.tensors.pop()
    {
        let fits = tensor.dtype() == Some(facts.dtype) && tensor.shape() == Some(&*chunk.sizes);
        return match (fits, tensor.storage()) {
            (true, Some(_)) => Ok(Some(tensor)),
            (true, None) => Ok(None),
            (false, _) => Err(disagree(facts, chunk, &describe(&tensor))),
        };
    }
    let found = match parts.tensors.len() {
        0 => "no tensor".to_owned(),
        count => format!("{count} tensors"),
    };
    Err(disagree(facts, chunk, &found))
}

fn describe(tensor: &Tensor) -> String {
    let dtype = tensor
        .dtype()
        .map_or("no dtype", crate::tensor::DType::name);
    format!(
        "{} of {dtype}",
        sizes_text(tensor.shape().unwrap_or_default())
    )
}

fn disagree(facts: &TensorFacts, chunk: &ChunkFacts, found: &str) -> FormatError {
    FormatError::Structure {
        part: "what is in it".to_owned(),
        expected: format!(
            "a tensor {} of {}, as in the metadata",
            sizes_text(&chunk.sizes),
            facts.dtype.name()
        ),
        found: found.to_owned(),
    }
}

/// An entry whose bytes are not those of `torch.save`.
fn opaque(
    file: &File<'_>,
    stored: &Stored<'_>,
    assembly: &mut Assembly,
    findings: &mut Vec<Finding>,
) {
    let why = if stored.transforms.is_empty() {
        "they are no archive of `torch.save`".to_owned()
    } else {
        format!("they went through {}", cut(&stored.transforms.join(", ")))
    };
    let place = format!("{}::{}", file.name, stored.name);
    let message = format!("{} bytes that are not looked into: {why}", stored.bytes);
    push_finding(findings, Severity::Warning, "opaque-entry", &place, message);
    let parts = assembly.parts_mut();
    parts.unreferenced_bytes = parts.unreferenced_bytes.saturating_add(stored.bytes);
}

fn missing(file: &FilePlan<'_>, metadata: &Metadata<'_>, findings: &mut Vec<Finding>) {
    let entries = file
        .entries
        .iter()
        .filter_map(|index| metadata.stored.get(*index));
    let bytes = entries
        .map(|stored| stored.bytes)
        .fold(0, u64::saturating_add);
    let message = format!(
        "{} entries of {bytes} bytes are said to be in it, but it is not there",
        file.entries.len()
    );
    push_finding(findings, Severity::Error, MISSING_SHARD, file.name, message);
}
