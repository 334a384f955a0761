//! What the records of an archive are, by their names.

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
