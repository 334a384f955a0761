//! What a checkpoint holds besides tensors, where it has a place and a name of its own.

use super::Checkpoint;

/// An object that is no tensor, kept under a name of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its name.
    pub name: String,
    /// What it is: a number or text as Python writes it, or its kind (`dict`).
    pub value: String,
    /// Which file or member it is in.
    pub member: String,
    /// Where it starts there.
    pub offset: u64,
    /// Bytes that it takes up.
    pub bytes: u64,
}

impl Checkpoint {
    /// Objects that are no tensors and have a name of their own, in the file's order.
    #[must_use]
    pub fn objects(&self) -> &[StoredObject] {
        &self.parts.objects
    }
}
