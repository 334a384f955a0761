//! Checkpoints that are several files: shards become one model, and every fact keeps the file that it comes from.

use std::collections::HashSet;
use std::path::PathBuf;

use compact_str::CompactString;

use super::{
    ByteOrder, Checkpoint, CheckpointParts, Finding, Format, ModelError, ObjectKind, Security,
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
    /// Which of the processes that saved it the file belongs to, where its name says.
    pub ranks: FileRanks,
}

/// Which process wrote a file, and which part of the model: as far as the file's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileRanks {
    /// Of all processes.
    pub rank: Option<u64>,
    /// Of those that hold different parts of every layer.
    pub model_parallel: Option<u64>,
    /// Of those that hold different parts of the optimizer's state.
    pub data_parallel: Option<u64>,
    /// The layer that the file holds.
    pub layer: Option<u64>,
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
        let name = file.name.clone();
        let index = self.begin_file(file)?;
        let mut one = checkpoint.into_parts();
        for finding in &mut one.findings {
            finding.location = located(&finding.location, &name);
        }
        for storage in &mut one.storages {
            let member: CompactString = [&name, "::", storage.member()].concat().into();
            *storage = storage.clone().in_file(index, member);
        }
        self.absorb(one)
    }

    /// The same, with the file's own name before everything that has a name in it.
    pub fn add_under(
        &mut self,
        prefix: &str,
        file: FilePart,
        mut checkpoint: Checkpoint,
    ) -> Result<(), ModelError> {
        let under = |name: &str| match name {
            "" => prefix.to_owned(),
            name => [prefix, ".", name].concat(),
        };
        let parts = &mut checkpoint.parts;
        for tensor in &mut parts.tensors {
            let name = under(tensor.name());
            tensor.rename(&name);
        }
        for whole in &mut parts.composites {
            whole.name = under(&whole.name);
            whole.parts = whole.parts.iter().map(|part| under(part)).collect();
        }
        for array in &mut parts.numpy_arrays {
            array.name = under(&array.name);
        }
        for module in &mut parts.modules {
            module.path = under(&module.path);
        }
        self.add(file, checkpoint)
    }

    /// Adds a file of which the contents follow, and says which of the files it is.
    pub(crate) fn begin_file(&mut self, file: FilePart) -> Result<u32, ModelError> {
        let index = u32::try_from(self.parts.files.len()).map_err(|_| ModelError::Sum)?;
        self.add_file(&file)?;
        self.parts.files.push(file);
        Ok(index)
    }

    /// Adds something that was found in a file; its storages know which.
    pub(crate) fn absorb(&mut self, one: CheckpointParts) -> Result<(), ModelError> {
        let first = u32::try_from(self.parts.storages.len()).map_err(|_| ModelError::Sum)?;
        self.agree(&one);
        let parts = &mut self.parts;
        parts.code_bytes = add(parts.code_bytes, one.code_bytes)?;
        parts.pickle_bytes = add(parts.pickle_bytes, one.pickle_bytes)?;
        parts.unreferenced_bytes = add(parts.unreferenced_bytes, one.unreferenced_bytes)?;
        parts.storages.extend(one.storages);
        for tensor in one.tensors {
            parts
                .tensors
                .push(tensor.behind(first).ok_or(ModelError::Sum)?);
        }
        parts.composites.extend(one.composites);
        parts.objects.extend(one.objects);
        parts.numpy_arrays.extend(one.numpy_arrays);
        parts.modules.extend(one.modules);
        if parts.methods.is_empty() {
            parts.methods = one.methods;
        }
        parts.programs.extend(one.programs);
        parts.findings.extend(one.findings);
        for pair in one.metadata {
            if self.metadata.insert(pair.clone()) {
                parts.metadata.push(pair);
            }
        }
        self.secure(one.security);
        self.checkpoints += 1;
        Ok(())
    }

    /// Adds what another stream of the checkpoint names.
    pub(crate) fn secure(&mut self, one: Security) {
        let security = &mut self.parts.security;
        security.verdict = security.verdict.max(one.verdict);
        union(&mut self.globals, &mut security.globals, one.globals);
        union(
            &mut self.unexpected,
            &mut security.unexpected_globals,
            one.unexpected_globals,
        );
    }

    /// What there is so far, for what only the whole can know.
    pub(crate) fn parts_mut(&mut self) -> &mut CheckpointParts {
        &mut self.parts
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

/// A place in one of several files.
pub(crate) fn located(location: &str, name: &str) -> String {
    if location.is_empty() {
        name.to_owned()
    } else {
        [name, "::", location].concat()
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
