//! A pickle that is not a torch file: `pickle.dump`, with the data of tensors inside it.
//!
//! `torch.load` unpickles it all the same before it finds out, so what it names counts in full.

use super::super::error::FormatError;
use super::embedded::Embedded;
use super::legacy::{Cursor, trailing};
use super::rebuild::Graph;
use super::rows::{Place, Rows};
use super::security::{Reach, Watch};
use super::storage::StorageTable;
use super::walk::{Context, walk};
use crate::checkpoint::{Checkpoint, CheckpointParts, Format, Severity, Storage};

/// Reads a plain pickle.
pub(crate) fn read(data: &[u8]) -> Result<Checkpoint, FormatError> {
    let mut parts = CheckpointParts::new(Format::Pickle, data.len() as u64);
    let mut watch = Watch::default();
    let mut cursor = Cursor { data, position: 0 };
    let pickle = cursor.parse("the pickle")?;
    let embedded = Embedded::find(&pickle, &mut watch)?;
    let vouched = embedded.vouched.as_slice();
    watch.look_except(&pickle, "the pickle", Reach::Loaded, vouched);
    parts.byte_order = embedded.byte_order;
    parts.pickle_bytes = (cursor.position as u64).saturating_sub(embedded.file_bytes());
    trailing(&cursor, &mut watch);
    let graph = Graph::with_embedded(&pickle, &embedded);
    let mut rows = Rows::new(pickle.consumed() as u64);
    let mut table = StorageTable::default();
    let context = Context {
        member: "the pickle",
        records: &embedded,
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
    let listed = table.storages().iter().map(Storage::file_bytes);
    let listed = listed.fold(0, u64::saturating_add);
    parts.unreferenced_bytes = embedded.file_bytes().saturating_sub(listed);
    let (security, findings) = watch.finish();
    super::finish_parts(&mut parts, table, rows, security, findings);
    Ok(Checkpoint::new(parts)?)
}
