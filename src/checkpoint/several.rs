//! Checkpoints that are several files: shards become one model, and every fact keeps the file that it comes from.

use std::collections::HashSet;
use std::path::PathBuf;

use compact_str::CompactString;

use super::{
    ByteOrder, Checkpoint, CheckpointParts, Finding, Format, ModelError, ObjectKind, Storage,
};

/// One of the files that a checkpoint consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePart {
    /// What it is called in reports: its name in the checkpoint's folder, or the path that the user gave.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What kind of file it is; `None` where it holds no tensors (an index).
    pub format: Option<Format>,
}

/// Puts the models of several files together.
#[derive(Debug)]
pub struct Assembly {
    parts: CheckpointParts,
    metadata: HashSet<(String, String)>,
    globals: HashSet<String>,
    unexpected: HashSet<String>,
    checkpoints: usize,
}

impl Assembly {
    /// Of nothing yet.
    #[must_use]
    pub fn new(format: Format) -> Assembly {
        Assembly {
            parts: CheckpointParts::new(format, 0),
            metadata: HashSet::new(),
            globals: HashSet::new(),
            unexpected: HashSet::new(),
            checkpoints: 0,
        }
    }

    /// What there is so far.
    #[must_use]
    pub fn parts(&self) -> &CheckpointParts {
        &self.parts
    }

    /// Findings about the whole.
    pub fn findings(&mut self) -> &mut Vec<Finding> {
        &mut self.parts.findings
    }

    /// Adds a file without tensors: all of it is metadata.
    pub fn add_metadata(&mut self, file: FilePart) -> Result<(), ModelError> {
        self.add_file(&file)?;
        self.parts.pickle_bytes = add(self.parts.pickle_bytes, file.bytes)?;
        self.parts.files.push(file);
        Ok(())
    }

    /// Adds the model of one file. Members become `file::member`; names stay as they are.
    pub fn add(&mut self, file: FilePart, checkpoint: Checkpoint) -> Result<(), ModelError> {
        self.add_file(&file)?;
        let one = checkpoint.into_parts();
        let first = u32::try_from(self.parts.storages.len()).map_err(|_| ModelError::Sum)?;
        let index = u32::try_from(self.parts.files.len()).map_err(|_| ModelError::Sum)?;
        self.agree(&one);
        let parts = &mut self.parts;
        parts.code_bytes = add(parts.code_bytes, one.code_bytes)?;
        parts.pickle_bytes = add(parts.pickle_bytes, one.pickle_bytes)?;
        parts.unreferenced_bytes = add(parts.unreferenced_bytes, one.unreferenced_bytes)?;
        let storages = one.storages.into_iter();
        parts
            .storages
            .extend(storages.map(|storage| in_file(storage, index, &file.name)));
        for tensor in one.tensors {
            parts
                .tensors
                .push(tensor.behind(first).ok_or(ModelError::Sum)?);
        }
        parts.composites.extend(one.composites);
        parts.numpy_arrays.extend(one.numpy_arrays);
        parts.modules.extend(one.modules);
        if parts.methods.is_empty() {
            parts.methods = one.methods;
        }
        parts.programs.extend(one.programs);
        let findings = one.findings.into_iter();
        parts
            .findings
            .extend(findings.map(|finding| located(finding, &file.name)));
        for pair in one.metadata {
            if self.metadata.insert(pair.clone()) {
                parts.metadata.push(pair);
            }
        }
        let security = &mut parts.security;
        security.verdict = security.verdict.max(one.security.verdict);
        union(
            &mut self.globals,
            &mut security.globals,
            one.security.globals,
        );
        union(
            &mut self.unexpected,
            &mut security.unexpected_globals,
            one.security.unexpected_globals,
        );
        parts.files.push(file);
        self.checkpoints += 1;
        Ok(())
    }

    /// The whole, checked.
    pub fn finish(self) -> Result<Checkpoint, ModelError> {
        Checkpoint::new(self.parts)
    }

    /// The byte order of all tensor data, which the reader has checked to be one.
    pub fn set_byte_order(&mut self, order: Option<ByteOrder>) {
        self.parts.byte_order = order;
    }

    fn add_file(&mut self, file: &FilePart) -> Result<(), ModelError> {
        self.parts.file_bytes = add(self.parts.file_bytes, file.bytes)?;
        Ok(())
    }

    /// Keeps what all files say alike; where they differ, there is nothing to say of the whole.
    fn agree(&mut self, one: &CheckpointParts) {
        let parts = &mut self.parts;
        if self.checkpoints == 0 {
            parts.object = one.object;
            parts.torch_version.clone_from(&one.torch_version);
            parts.producer.clone_from(&one.producer);
            return;
        }
        if parts.object != one.object {
            parts.object = ObjectKind::Other;
        }
        if parts.torch_version != one.torch_version {
            parts.torch_version = None;
        }
        if parts.producer != one.producer {
            parts.producer = None;
        }
    }
}

impl Checkpoint {
    /// What the reader found, without what followed from it.
    fn into_parts(mut self) -> CheckpointParts {
        self.parts.findings.truncate(self.read_findings);
        self.parts
    }
}

fn add(a: u64, b: u64) -> Result<u64, ModelError> {
    a.checked_add(b).ok_or(ModelError::Sum)
}

fn in_file(storage: Storage, index: u32, name: &str) -> Storage {
    let member: CompactString = [name, "::", storage.member()].concat().into();
    storage.in_file(index, member)
}

fn located(finding: Finding, name: &str) -> Finding {
    let location = if finding.location.is_empty() {
        name.to_owned()
    } else {
        [name, "::", &finding.location].concat()
    };
    Finding {
        location,
        ..finding
    }
}

/// Adds what is not known yet, in order.
fn union(known: &mut HashSet<String>, all: &mut Vec<String>, new: Vec<String>) {
    for one in new {
        if known.insert(one.clone()) {
            all.push(one);
        }
    }
}
