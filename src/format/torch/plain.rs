//! A pickle that is not a torch file.
//!
//! `torch.load` unpickles it all the same before it finds out, so what it names counts in full.

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::cut;
use super::legacy::{Cursor, trailing};
use super::rebuild::Graph;
use super::rows::{Place, Rows};
use super::security::Watch;
use super::storage::{Declared, Records, StorageTable};
use super::walk::{Context, walk};
use crate::checkpoint::{Checkpoint, CheckpointParts, Format, Severity, StorageParts};

/// A file without storages.
struct Nothing;

impl Records for Nothing {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        Err(TensorFault::NoRecord(cut(declared.key)))
    }
}

/// Reads a plain pickle.
pub(crate) fn read(data: &[u8]) -> Result<Checkpoint, FormatError> {
    let mut parts = CheckpointParts::new(Format::Pickle, data.len() as u64);
    let mut watch = Watch::default();
    let mut cursor = Cursor { data, position: 0 };
    let pickle = cursor.pickle("the pickle", &mut watch)?;
    parts.pickle_bytes = cursor.position as u64;
    trailing(&cursor, &mut watch);
    let graph = Graph::new(&pickle);
    let mut rows = Rows::new(pickle.consumed() as u64);
    let mut table = StorageTable::default();
    let context = Context {
        member: "the pickle",
        records: &Nothing,
        table: &mut table,
        rows: &mut rows,
        classes: None,
    };
    parts.object = walk(&graph, context, "", Place::Plain)?;
    let snapshot = ["segments", "device_traces"]
        .iter()
        .all(|key| pickle.get(pickle.root(), key).is_some());
    if snapshot {
        watch.find(
            Severity::Info,
            "memory-snapshot",
            "",
            "this is a PyTorch memory snapshot: `inspect replay` reads it".to_owned(),
        );
    }
    let (security, findings) = watch.finish();
    super::finish_parts(&mut parts, table, rows, security, findings);
    Ok(Checkpoint::new(parts)?)
}
