//! The records of an exported program: what they are called, which versions of them are read, and where their storages
//! lie.

use serde::Deserialize;

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::cut;
use super::super::torch::archive::{Folder, TorchArchive};
use super::super::torch::storage::{Declared, Records};
use super::super::zip::Member;
use super::schema::Version;
use crate::checkpoint::{StorageData, StorageParts};

/// The programs of the archive: name, record.
pub(super) fn models<'t, 'a>(archive: &'t TorchArchive<'a>) -> Vec<(String, &'t Member<'a>)> {
    if let Some(member) = archive
        .bare_record(OLD_PROGRAM)
        .or_else(|| archive.record(OLD_PROGRAM))
    {
        return vec![("model".to_owned(), member)];
    }
    let named = archive.members().iter().filter_map(|member| {
        let name = archive.inside(member)?.strip_prefix("models/")?;
        Some((name.strip_suffix(".json")?.to_owned(), member))
    });
    named.collect()
}

const OLD_PROGRAM: &str = "serialized_exported_program.json";

/// What the parts of one model are called.
pub(super) struct Names {
    pub(super) weights_config: String,
    pub(super) constants_config: String,
    /// Pickled weights, constants and inputs, by what the versions of torch called them.
    pub(super) weights: [String; 3],
    pub(super) constants: [String; 3],
    pub(super) inputs: [String; 3],
}

impl Names {
    pub(super) fn of(model: &str) -> Names {
        let all = |folder: &str, old: &str| {
            [
                format!("data/{folder}/{model}.pt"),
                format!("serialized_{old}.pt"),
                format!("serialized_{old}.json"),
            ]
        };
        Names {
            weights_config: format!("data/weights/{model}_weights_config.json"),
            constants_config: format!("data/constants/{model}_constants_config.json"),
            weights: all("weights", "state_dict"),
            constants: all("constants", "constants"),
            inputs: all("sample_inputs", "example_inputs"),
        }
    }
}

/// A record by its name, in the archive's folder or outside of all.
pub(super) fn find<'t, 'a>(archive: &'t TorchArchive<'a>, name: &str) -> Option<&'t Member<'a>> {
    archive.record(name).or_else(|| archive.bare_record(name))
}

/// Sample inputs of a model.
pub(super) fn sample_inputs<'t, 'a>(
    archive: &'t TorchArchive<'a>,
    model: &str,
) -> Option<&'t Member<'a>> {
    let names = Names::of(model).inputs;
    names.iter().find_map(|name| find(archive, name))
}

/// Reads the JSON of a program.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(
    archive: &TorchArchive<'_>,
    member: &Member<'_>,
) -> Result<T, FormatError> {
    let text = archive.read(member)?;
    serde_json::from_slice(&text).map_err(|error| FormatError::Structure {
        part: format!("`{}`", cut(member.name)),
        expected: "JSON of torch.export's schema".to_owned(),
        found: cut(&error.to_string()),
    })
}

/// A `torch.save` file that is a record: its storages lie inside the record.
pub(super) struct Nested<'t, 'a> {
    folder: Folder<'t, 'a>,
    /// Where the record's data starts in the file.
    base: u64,
    /// The record's name.
    record: &'t str,
}

/// A record that is a `torch.save` file.
pub(super) fn inner<'a>(
    archive: &TorchArchive<'a>,
    member: &Member<'a>,
) -> Result<TorchArchive<'a>, FormatError> {
    if member.deflated {
        return Err(FormatError::Unsupported {
            what: format!(
                "an archive within the archive that is compressed (`{}`)",
                cut(member.name)
            ),
            hint: Some("write the file anew without compression"),
        });
    }
    TorchArchive::open(archive.stored(member)).map_err(|error| FormatError::Part {
        file: cut(member.name),
        source: Box::new(error),
    })
}

impl<'t, 'a> Nested<'t, 'a> {
    pub(super) fn of(inner: &'t TorchArchive<'a>, member: &Member<'a>, record: &'t str) -> Self {
        Nested {
            folder: inner.folder("data"),
            base: member.data_offset,
            record,
        }
    }
}

impl Records for Nested<'_, '_> {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        let parts = self.folder.locate(declared)?;
        let moved = |offset: u64| offset.saturating_add(self.base);
        Ok(StorageParts {
            member: [self.record, "::", &parts.member].concat().into(),
            data: match parts.data {
                StorageData::Raw { offset } => StorageData::Raw {
                    offset: moved(offset),
                },
                StorageData::Deflated { offset } => StorageData::Deflated {
                    offset: moved(offset),
                },
                other => other,
            },
            ..parts
        })
    }
}

/// A storage that is a whole record.
pub(super) struct Whole<'t, 'a> {
    pub(super) archive: &'t TorchArchive<'a>,
}

impl Records for Whole<'_, '_> {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        let record = find(self.archive, &declared.key)
            .ok_or_else(|| TensorFault::NoRecord(cut(&declared.key)))?;
        declared.in_record(record, &declared.key)
    }
}

/// The newest version of the schema: of torch 2.4 to 2.11.
const SCHEMA_MAJOR: u64 = 8;

/// An error where the file's layout is one that nobody here knows; PyTorch refuses it too.
pub(super) fn known_version(version: &Version, member: &Member<'_>) -> Result<(), FormatError> {
    let (major, shown) = match version {
        Version::Parts { major, minor } => (*major, format!("{major}.{minor}")),
        Version::Number(number) => (*number, number.to_string()),
        Version::Unknown => return Ok(()),
    };
    if major <= SCHEMA_MAJOR {
        return Ok(());
    }
    Err(FormatError::Structure {
        part: format!("`{}`", cut(member.name)),
        expected: format!("version {SCHEMA_MAJOR} of torch.export's schema, or an older one"),
        found: shown,
    })
}

/// The one version of the archive's layout; the record with it came with torch 2.8.
const ARCHIVE_VERSION: &str = "0";

/// An error where the archive is laid out in a way that nobody here knows; PyTorch refuses it too.
pub(super) fn known_archive(archive: &TorchArchive<'_>) -> Result<(), FormatError> {
    let Some(member) = archive.record("archive_version") else {
        return Ok(());
    };
    let text = archive.read(member)?;
    let version = String::from_utf8_lossy(&text);
    if version.trim() == ARCHIVE_VERSION {
        return Ok(());
    }
    Err(FormatError::Structure {
        part: format!("`{}`", cut(member.name)),
        expected: format!("version {ARCHIVE_VERSION} of an archive of programs"),
        found: cut(version.trim()),
    })
}
