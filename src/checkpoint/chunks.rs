//! Tensors that are stored in pieces: each a part of the whole in a storage of its own, in any of a checkpoint's files.
//!
//! The whole is one tensor with its own name, dtype and shape. Whoever needs memory goes through [`Tensor::stored`]: the
//! tensor itself, or the pieces that are there.

use compact_str::CompactString;

use super::{StorageId, Tensor};
use crate::tensor::Dims;

/// A piece of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Where in the whole it starts, in every dimension.
    pub offsets: Dims,
    /// Its size in every dimension.
    pub sizes: Dims,
    /// Which file it is in.
    pub file: CompactString,
    /// Where in the file its entry starts; `None` where nothing says so.
    pub file_offset: Option<u64>,
    /// Bytes that the entry takes up in the file.
    pub file_bytes: Option<u64>,
    /// The piece as a view of its storage; `None` where it is not there or cannot be seen.
    pub view: Option<Tensor>,
}

/// All pieces of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunks {
    list: Vec<Chunk>,
    complete: bool,
}

impl Chunks {
    /// The same where other storages come first; `None` where there are too many.
    pub(super) fn behind(mut self, storages: u32) -> Option<Chunks> {
        for chunk in &mut self.list {
            if let Some(view) = chunk.view.take() {
                chunk.view = Some(view.behind(storages)?);
            }
        }
        Some(self)
    }
}

impl Tensor {
    /// The same tensor in pieces. `complete` says whether they are all there and cover every element exactly once.
    #[must_use]
    pub fn in_chunks(mut self, list: Vec<Chunk>, complete: bool) -> Tensor {
        self.chunks = Some(Box::new(Chunks { list, complete }));
        self
    }

    /// The pieces that it is stored in, as the file lists them; empty for one that is stored as it is.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        self.chunks.as_ref().map_or(&[], |chunks| &chunks.list)
    }

    /// Whether all of it is in the file, as far as its pieces go.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.chunks.as_ref().is_none_or(|chunks| chunks.complete)
    }

    /// The views of storages that it consists of: itself, or its pieces.
    pub fn stored(&self) -> impl Iterator<Item = &Tensor> {
        let whole = self.storage().is_some() || self.chunks.is_none();
        let pieces = self.chunks().iter().filter(move |_| !whole);
        whole
            .then_some(self)
            .into_iter()
            .chain(pieces.filter_map(|chunk| chunk.view.as_ref()))
    }

    /// The storages that it views.
    pub fn storages(&self) -> impl Iterator<Item = StorageId> {
        self.stored().filter_map(Tensor::storage)
    }
}
