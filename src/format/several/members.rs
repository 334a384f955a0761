//! What a folder is: one checkpoint of several files, or several checkpoints.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::super::detect::{Detected, detect};
use super::super::error::FormatError;
use super::super::torch::archive::{Kind, TorchArchive};
use super::folder::Folder;
use super::index::Index;
use super::sharded::lookalikes;
use crate::source::Source;

/// Endings of names by which people mean checkpoints: what has one and cannot be read is an error.
const ENDINGS: [&str; 11] = [
    ".pt",
    ".pth",
    ".pt2",
    ".ptl",
    ".bin",
    ".ckpt",
    ".safetensors",
    ".pkl",
    ".pickle",
    ".pth.tar",
    INDEX_ENDING,
];

/// What the names of all indices end with.
const INDEX_ENDING: &str = ".index.json";

/// A checkpoint in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name in the folder.
    pub name: String,
    /// Where it is; a link is followed only within the folder.
    pub path: PathBuf,
}

/// The checkpoints of a folder, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// One for each checkpoint: shards belong to their index.
    pub checkpoints: Vec<Member>,
    /// Names of checkpoints that cannot be looked at, with the reason.
    pub refused: Vec<(String, String)>,
    /// Everything else in the folder.
    pub other_entries: u64,
}

/// Looks through a folder, without its subfolders.
pub fn members(path: &Path) -> Result<Members, FormatError> {
    let folder = Folder::open(path)?;
    let (names, unreadable_names) = folder.names()?;
    let mut members = Members {
        other_entries: unreadable_names,
        ..Members::default()
    };
    let shards = shards(&folder, &names);
    for name in names.iter().filter(|name| !shards.contains(*name)) {
        let wanted = ENDINGS.iter().any(|ending| name.ends_with(ending));
        match folder.file(name) {
            Ok(Some(real)) if wanted || is_checkpoint(&real) => {
                members.checkpoints.push(Member {
                    name: name.clone(),
                    path: folder.path().join(name),
                });
            }
            Ok(None) if wanted => {
                let why = "a link to nothing".to_owned();
                members.refused.push((name.clone(), why));
            }
            Err(error) if wanted => members.refused.push((name.clone(), error.to_string())),
            Ok(_) | Err(_) => members.other_entries = members.other_entries.saturating_add(1),
        }
    }
    Ok(members)
}

/// The index that the folder consists of, where it holds nothing else.
pub(crate) fn sole_index(members: &Members) -> Option<&Path> {
    match (members.checkpoints.as_slice(), members.refused.as_slice()) {
        ([only], []) if only.name.ends_with(INDEX_ENDING) => Some(&only.path),
        _ => None,
    }
}

/// The files that the indices of a folder speak for.
fn shards(folder: &Folder, names: &[String]) -> HashSet<String> {
    let mut shards = HashSet::new();
    for name in names.iter().filter(|name| name.ends_with(INDEX_ENDING)) {
        let index = folder
            .file(name)
            .ok()
            .flatten()
            .and_then(|path| Source::open(&path).ok())
            .and_then(|source| Index::parse(source.bytes()).ok());
        let Some(index) = index else { continue };
        shards.extend(lookalikes(&index, names).map(str::to_owned));
        shards.extend(index.shards().into_iter().map(str::to_owned));
    }
    shards
}

/// Whether a file is a checkpoint by its content, whatever its name.
fn is_checkpoint(path: &Path) -> bool {
    let Ok(source) = Source::open(path) else {
        return false;
    };
    match detect(source.bytes()) {
        Ok(Detected::Safetensors | Detected::Legacy | Detected::Index) => true,
        Ok(Detected::Zip) => TorchArchive::open(source.bytes())
            .is_ok_and(|archive| !matches!(archive.kind(), Kind::Other)),
        // Any archive is a tar, and many things are pickles: those need the ending too.
        Ok(Detected::Tar | Detected::Pickle) | Err(_) => false,
    }
}
