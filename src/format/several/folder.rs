//! The files of a folder, and no others.
//!
//! What a file says of other files is not trusted: a name is opened only where it stays in the folder, links included.
//! The one exception is how the Hugging Face hub keeps its downloads, `snapshots/<revision>/<name>` as links to
//! `blobs/<hash>` beside `snapshots`.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::super::error::{FormatError, MemberFault};
use super::super::pickle::cut;
use crate::limits;
use crate::source::SourceError;

/// A folder whose files belong together.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Without links.
    real: PathBuf,
    /// Where links may lead besides.
    blobs: Option<PathBuf>,
}

impl Folder {
    /// The folder at this path.
    pub(crate) fn open(path: &Path) -> Result<Folder, FormatError> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let real = path.canonicalize().map_err(|source| SourceError::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?;
        let snapshots = real.parent().filter(|up| up.ends_with("snapshots"));
        let blobs = snapshots.and_then(Path::parent).map(|up| up.join("blobs"));
        Ok(Folder {
            path: path.to_owned(),
            real,
            blobs,
        })
    }

    /// The folder of a file.
    pub(crate) fn of(file: &Path) -> Result<Folder, FormatError> {
        Folder::open(file.parent().unwrap_or(Path::new(".")))
    }

    /// As the user named it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where a file of this name is, without links; `None` where there is none.
    pub(crate) fn file(&self, name: &str) -> Result<Option<PathBuf>, FormatError> {
        let outside = || FormatError::Member {
            member: cut(name),
            offset: None,
            fault: MemberFault::Outside,
        };
        let relative = Path::new(name);
        let inside = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !inside || name.is_empty() || name.contains(['\0', '\\']) {
            return Err(outside());
        }
        let path = self.path.join(relative);
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(SourceError::Io {
                    action: "open",
                    path,
                    source,
                }
                .into());
            }
        };
        let blob = self.blobs.as_ref();
        if real.starts_with(&self.real) || blob.is_some_and(|blobs| real.starts_with(blobs)) {
            Ok(Some(real))
        } else {
            Err(outside())
        }
    }

    /// The names of everything in it, sorted; those that are not UTF-8 are left out and counted.
    pub(crate) fn names(&self) -> Result<(Vec<String>, u64), FormatError> {
        let failed = |source| SourceError::Io {
            action: "list",
            path: self.path.clone(),
            source,
        };
        let (mut names, mut other) = (Vec::new(), 0_u64);
        for (count, entry) in self.path.read_dir().map_err(failed)?.enumerate() {
            if count >= limits::FOLDER_ENTRIES {
                return Err(FormatError::Limit {
                    what: "the entries of the folder".to_owned(),
                    limit: limits::FOLDER_ENTRIES as u64,
                });
            }
            match entry.map_err(failed)?.file_name().into_string() {
                Ok(name) => names.push(name),
                Err(_) => other = other.saturating_add(1),
            }
        }
        names.sort_unstable();
        Ok((names, other))
    }
}
