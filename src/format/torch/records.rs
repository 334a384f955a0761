//! What the records of an archive are, by their names, and which of them storages use.

use crate::checkpoint::{Storage, StorageData};

/// What a record is to the sizes of a file.
pub(super) enum Record {
    /// TorchScript's sources, and where they came from.
    Code,
    /// Pickles and lines of text.
    Metadata,
    /// The contents of a storage.
    Data,
}

impl Record {
    pub(super) fn of(inside: Option<&str>, whole: &str) -> Record {
        let Some(name) = inside else {
            return if is_pickle_name(whole) {
                Record::Metadata
            } else {
                Record::Data
            };
        };
        let folder = name.split('/').next().unwrap_or("");
        if folder == "code" || has_extension(name, &["debug_pkl"]) {
            return Record::Code;
        }
        let data = ["data", "constants", "traced_inputs", "bytecode", "tensors"];
        if name.contains('/') && data.contains(&folder) {
            Record::Data
        } else {
            Record::Metadata
        }
    }
}

/// Whether a name is one that pickles have.
pub(super) fn is_pickle_name(name: &str) -> bool {
    has_extension(name, &["pkl", "pickle", "p", "pk"])
}

/// Whether a name ends in one of these extensions, in any case.
pub(super) fn has_extension(name: &str, extensions: &[&str]) -> bool {
    std::path::Path::new(name)
        .extension()
        .is_some_and(|found| extensions.iter().any(|e| found.eq_ignore_ascii_case(e)))
}

/// The start of a pickle of protocol 2 to 5.
pub(super) fn looks_like_pickle(contents: &[u8]) -> bool {
    matches!(contents.get(..2), Some([0x80, 2..=5]))
}

/// Where storages start in the file, in order.
pub(super) struct Offsets {
    sorted: Vec<u64>,
    /// Past the one that was found last: the next is mostly the one behind it.
    next: usize,
}

impl Offsets {
    pub(super) fn of(storages: &[Storage]) -> Offsets {
        let mut sorted: Vec<u64> = Vec::with_capacity(storages.len());
        sorted.extend(storages.iter().filter_map(|storage| match storage.data() {
            StorageData::Raw { offset } | StorageData::Deflated { offset } => Some(offset),
            StorageData::Text | StorageData::Absent => None,
        }));
        sorted.sort_unstable();
        Offsets { sorted, next: 0 }
    }

    /// Whether a storage starts at this byte.
    pub(super) fn contains(&mut self, offset: u64) -> bool {
        let place = if self.sorted.get(self.next) == Some(&offset) {
            Ok(self.next)
        } else {
            self.sorted.binary_search(&offset)
        };
        if let Ok(place) = place {
            self.next = place.saturating_add(1);
        }
        place.is_ok()
    }
}
