//! A path as bytes.
//!
//! Owns opening a file and mapping it into memory. Nothing is read until it is touched, whatever the file's size. Knows
//! nothing of formats.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Why a path could not be opened as bytes.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The operating system said no.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// A folder.
    #[error("`{}` is a folder", .0.display())]
    Directory(PathBuf),
    /// A pipe, socket or device.
    #[error("`{}` is not a regular file", .0.display())]
    NotRegular(PathBuf),
}

/// A file's bytes.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(memmap2::Mmap, File),
    Owned(Vec<u8>),
    /// Several files that are one checkpoint: no bytes of its own.
    Several(Vec<Source>),
}

impl Source {
    /// Opens and maps a regular file.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let fail = |action| {
            move |source| SourceError::Io {
                action,
                path: path.to_owned(),
                source,
            }
        };
        // Looked at before it is opened: opening a pipe would wait for a writer.
        let metadata = std::fs::metadata(path).map_err(fail("open"))?;
        if metadata.is_dir() {
            return Err(SourceError::Directory(path.to_owned()));
        }
        if !metadata.is_file() {
            return Err(SourceError::NotRegular(path.to_owned()));
        }
        let file = File::open(path).map_err(fail("open"))?;
        let length = file.metadata().map_err(fail("open"))?.len();
        let bytes = if length == 0 {
            Bytes::Owned(Vec::new())
        } else {
            Bytes::Mapped(map(&file).map_err(fail("map"))?, file)
        };
        Ok(Source {
            path: path.to_owned(),
            bytes,
        })
    }

    /// Bytes that are in memory already.
    #[must_use]
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Source {
        Source {
            path: path.to_owned(),
            bytes: Bytes::Owned(bytes),
        }
    }

    /// Several files that are one checkpoint, in the order of its files. Its own bytes are none: [`Source::part`] has
    /// them.
    #[must_use]
    pub fn several(path: &Path, parts: Vec<Source>) -> Source {
        Source {
            path: path.to_owned(),
            bytes: Bytes::Several(parts),
        }
    }

    /// One of several files; the file itself where it is asked for no part.
    #[must_use]
    pub fn part(&self, index: Option<usize>) -> Option<&Source> {
        match (&self.bytes, index) {
            (Bytes::Several(parts), Some(index)) => parts.get(index),
            (Bytes::Several(_), None) | (_, Some(_)) => None,
            (_, None) => Some(self),
        }
    }

    /// Where the bytes come from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map, _) => map,
            Bytes::Owned(bytes) => bytes,
            Bytes::Several(_) => &[],
        }
    }

    /// Has the system map all pages at once, where it can: for files of which nearly every page is read, this saves a
    /// fault a page.
    pub(crate) fn map_all(&self) {
        #[cfg(target_os = "linux")]
        if let Bytes::Mapped(map, _) = &self.bytes {
            // Older systems (before Linux 5.14) do not know it, and map page by page.
            let _ = map.advise(memmap2::Advice::PopulateRead);
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Reads bytes from an offset on into `buffer`, as many as there are up to its length. Unlike [`Source::bytes`] this
    /// keeps nothing in memory: for going through a whole file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        #[cfg(unix)]
        if let Bytes::Mapped(_, file) = &self.bytes {
            return std::os::unix::fs::FileExt::read_at(file, buffer, offset);
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let mut rest = self.bytes().get(start..).unwrap_or(&[]);
        io::Read::read(&mut rest, buffer)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }
}

#[allow(unsafe_code)]
fn map(file: &File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and private to this process; bytes are only ever read as plain integers, so a
    // file that another process changes meanwhile gives other values but no broken invariant. (A file cut short
    // meanwhile raises SIGBUS, as with every tool that maps files.)
    unsafe { memmap2::Mmap::map(file) }
}
