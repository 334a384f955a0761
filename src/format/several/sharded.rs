//! An index with its shards, and several files as one model.
//!
//! The index is believed in nothing: the tensors are those of the shards, and where the index says otherwise that is a
//! finding. Shards are read one after the other and may be of any format that is one file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::super::error::FormatError;
use super::super::torch::rows::push_finding;
use super::super::{ReadOptions, read_source};
use super::folder::Folder;
use super::in_file;
use super::index::Index;
use crate::checkpoint::{
    Assembly, ByteOrder, Checkpoint, FilePart, FileRanks, Finding, Format, ObjectKind, Severity,
    Tensor,
};
use crate::limits;
use crate::source::Source;

/// Name of the finding for a shard that is not there: the checkpoint is incomplete.
pub(crate) const MISSING_SHARD: &str = "missing-shard";

/// Reads the shards of the index at `path`.
pub(crate) fn read_index(path: &Path, source: &Source) -> Result<Checkpoint, FormatError> {
    let folder = Folder::of(path)?;
    let index = Index::parse(source.bytes())?;
    let mut model = Model::new(Format::ShardedIndex);
    model.assembly.add_metadata(FilePart {
        name: file_name(path),
        path: path.to_owned(),
        bytes: source.len(),
        format: None,
        ranks: FileRanks::default(),
    })?;
    let mut missing = Vec::new();
    for name in index.shards() {
        match folder.file(name)? {
            Some(path) => model.add(Part::plain(name, &path))?,
            None => missing.push(name),
        }
    }
    let mut findings = Vec::new();
    missing_shards(&index, &missing, &mut findings);
    extra_shards(&index, &folder, &mut findings)?;
    keys(&index, &model, &missing, &mut findings);
    if missing.is_empty() {
        total(&index, &model, &mut findings);
    }
    model.finish(findings)
}

/// Reads several files as one model, in the order given.
pub(crate) fn merge(paths: &[PathBuf]) -> Result<Checkpoint, FormatError> {
    if paths.len() > limits::SHARDS {
        return Err(FormatError::Limit {
            what: "the files of one model".to_owned(),
            limit: limits::SHARDS as u64,
        });
    }
    let mut model = Model::new(Format::ShardedIndex);
    for path in paths {
        model.add(Part::plain(&path.display().to_string(), path))?;
    }
    model.finish(Vec::new())
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

/// One of the files of a model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'p> {
    /// What it is called in reports.
    pub(super) name: &'p str,
    /// Where it is.
    pub(super) path: &'p Path,
    /// Whose it is.
    pub(super) ranks: FileRanks,
    /// What stands before every name in it, where names of several files are the same.
    pub(super) prefix: Option<&'p str>,
}

impl<'p> Part<'p> {
    fn plain(name: &'p str, path: &'p Path) -> Part<'p> {
        Part {
            name,
            path,
            ranks: FileRanks::default(),
            prefix: None,
        }
    }
}

/// The shards read so far.
pub(super) struct Model {
    assembly: Assembly,
    byte_order: Option<ByteOrder>,
    /// The names of the shards, each with how many tensors there are up to its end.
    shards: Vec<(String, usize)>,
    /// What the whole is and who made it, where that is known.
    about: Option<(ObjectKind, Option<String>)>,
}

impl Model {
    pub(super) fn new(format: Format) -> Model {
        Model {
            assembly: Assembly::new(format),
            byte_order: None,
            shards: Vec::new(),
            about: None,
        }
    }

    /// Says what the whole is, whatever its files are.
    pub(super) fn set_about(&mut self, object: ObjectKind, producer: Option<String>) {
        self.about = Some((object, producer));
    }

    pub(super) fn add(&mut self, part: Part<'_>) -> Result<(), FormatError> {
        let (name, path) = (part.name, part.path);
        let read = || {
            let source = Source::open(path)?;
            let checkpoint = read_source(&source, &ReadOptions::default())?;
            Ok((source.len(), checkpoint))
        };
        let (bytes, checkpoint) = read().map_err(|error| in_file(name, error))?;
        self.same_order(name, &checkpoint)?;
        let file = FilePart {
            name: name.to_owned(),
            path: path.to_owned(),
            bytes,
            format: Some(checkpoint.format()),
            ranks: part.ranks,
        };
        match part.prefix {
            Some(prefix) => self.assembly.add_under(prefix, file, checkpoint)?,
            None => self.assembly.add(file, checkpoint)?,
        }
        let end = self.assembly.parts().tensors.len();
        self.shards.push((name.to_owned(), end));
        Ok(())
    }

    /// Numbers are read in one byte order for the whole model.
    fn same_order(&mut self, name: &str, checkpoint: &Checkpoint) -> Result<(), FormatError> {
        let Some(order) = checkpoint.byte_order() else {
            return Ok(());
        };
        let known = *self.byte_order.get_or_insert(order);
        if known == order {
            return Ok(());
        }
        let error = FormatError::Structure {
            part: "the byte order".to_owned(),
            expected: format!("{}, as in the files before it", known.name()),
            found: order.name().to_owned(),
        };
        Err(in_file(name, error))
    }

    /// Every tensor with its shard.
    fn tensors(&self) -> impl Iterator<Item = (&Tensor, &str)> {
        let mut begin = 0;
        self.shards.iter().flat_map(move |(name, end)| {
            let own = self.assembly.parts().tensors.get(begin..*end);
            begin = *end;
            let own = own.unwrap_or_default().iter();
            own.map(move |tensor| (tensor, name.as_str()))
        })
    }

    pub(super) fn finish(mut self, mut findings: Vec<Finding>) -> Result<Checkpoint, FormatError> {
        self.twice(&mut findings);
        self.assembly.findings().extend(findings);
        self.assembly.set_byte_order(self.byte_order);
        if let Some((object, producer)) = self.about {
            let parts = self.assembly.parts_mut();
            (parts.object, parts.producer) = (object, producer);
        }
        Ok(self.assembly.finish()?)
    }

    /// Names that several files use: loading one after the other keeps the last.
    fn twice(&self, findings: &mut Vec<Finding>) {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        for (tensor, shard) in self.tensors() {
            let first = *seen.entry(tensor.name()).or_insert(shard);
            if first != shard {
                let message = format!("it is in `{first}` and in `{shard}`");
                let warning = Severity::Warning;
                push_finding(
                    findings,
                    warning,
                    "duplicate-tensor",
                    tensor.name(),
                    message,
                );
            }
        }
    }
}

fn missing_shards(index: &Index, missing: &[&str], findings: &mut Vec<Finding>) {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    for (_, shard) in index.keys() {
        let count = counts.entry(shard).or_default();
        *count = count.saturating_add(1);
    }
    for name in missing {
        let count = counts.get(name).copied().unwrap_or(0);
        let message = format!("the index says that {count} tensors are in it, but it is not there");
        push_finding(findings, Severity::Error, MISSING_SHARD, name, message);
    }
}

/// Files that are named like the shards, digits aside, and are none of them: left from another save.
pub(crate) fn lookalikes<'n>(
    index: &Index,
    names: &'n [String],
) -> impl Iterator<Item = &'n str> + use<'n> {
    let pattern = |name: &str| -> String {
        let kind = |letter: char| {
            if letter.is_ascii_digit() { '0' } else { letter }
        };
        name.chars().map(kind).collect()
    };
    let shards: HashSet<String> = index.shards().into_iter().map(str::to_owned).collect();
    let patterns: HashSet<String> = shards.iter().map(|name| pattern(name)).collect();
    let names = names.iter().map(String::as_str);
    names.filter(move |name| !shards.contains(*name) && patterns.contains(&pattern(name)))
}

fn extra_shards(
    index: &Index,
    folder: &Folder,
    findings: &mut Vec<Finding>,
) -> Result<(), FormatError> {
    for name in lookalikes(index, &folder.names()?.0) {
        let message = "it is named like a shard, but the index does not name it".to_owned();
        push_finding(findings, Severity::Warning, "extra-shard", name, message);
    }
    Ok(())
}

/// Where the index and the shards disagree on what is where.
fn keys(index: &Index, model: &Model, missing: &[&str], findings: &mut Vec<Finding>) {
    let mut found: HashMap<&str, &str> = model
        .tensors()
        .map(|(tensor, shard)| (tensor.name(), shard))
        .collect();
    // What is stored as several tensors has one key.
    for whole in &model.assembly.parts().composites {
        let part = whole.parts.first().and_then(|part| found.get(&**part));
        if let Some(shard) = part.copied() {
            found.insert(&whole.name, shard);
        }
    }
    let missing: HashSet<&str> = missing.iter().copied().collect();
    let mut known = HashSet::new();
    for (key, shard) in index.keys() {
        known.insert(key);
        let message = match found.get(key) {
            Some(other) if *other == shard => continue,
            _ if missing.contains(shard) => continue,
            Some(other) => format!("the index says it is in `{shard}`, but it is in `{other}`"),
            None => format!("the index says it is in `{shard}`, but it is in no shard"),
        };
        push_finding(findings, Severity::Warning, "index-mismatch", key, message);
    }
    for (tensor, shard) in model.tensors() {
        let listed = prefixes(tensor.name()).any(|prefix| known.contains(prefix));
        if !listed {
            let message = format!("it is in `{shard}`, but not in the index");
            let (warning, name) = (Severity::Warning, tensor.name());
            push_finding(findings, warning, "index-mismatch", name, message);
        }
    }
}

/// A name, and the names of what it may be a part of.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        name.rsplit_once('.').map(|(before, _)| before)
    })
}

fn total(index: &Index, model: &Model, findings: &mut Vec<Finding>) {
    let Some(said) = index.total_bytes() else {
        return;
    };
    let parts = model.assembly.parts();
    let tensors = parts.tensors.iter().map(Tensor::bytes);
    let tensors = tensors.fold(0, u64::saturating_add);
    let storages = parts.storages.iter().map(crate::checkpoint::Storage::bytes);
    let storages = storages.fold(0, u64::saturating_add);
    if said != tensors && said != storages {
        let message = format!("the index says {said} bytes in all, the tensors have {tensors}");
        push_finding(
            findings,
            Severity::Info,
            "index-total",
            "total_size",
            message,
        );
    }
}
