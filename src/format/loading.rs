//! The archive that libtorch loads, as pieces of the file, so that what nobody reads is not read.

use super::detect::{self, Detected};
use super::error::FormatError;
use super::torch::archive::{Kind, TorchArchive};
use super::{ReadOptions, export, read_source};
use crate::checkpoint::{Checkpoint, StorageData};
use crate::source::Source;

/// An archive in pieces, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loadable {
    /// What is not in the file.
    pub head: Vec<u8>,
    /// Where the archive's bytes are, in order.
    pub pieces: Vec<Piece>,
}

/// A run of bytes of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// In [`Loadable::head`] instead of the file.
    pub in_head: bool,
    /// Whether it is the data of tensors, as it is in memory.
    pub is_data: bool,
    /// Its first byte there.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// What libtorch is to load for the file: itself, or the TorchScript of an exported program, whose constants of type
/// `device` are then this one. With `data_apart`, the data of tensors is in pieces of its own.
///
/// # Errors
/// Where an exported program cannot be read, or uses what TorchScript has no word for. Whatever else is wrong with a
/// file is libtorch's to say.
pub fn loadable(source: &Source, device: &str, data_apart: bool) -> Result<Loadable, FormatError> {
    let exported = matches!(detect::detect(source.bytes()), Ok(Detected::Zip))
        && TorchArchive::open(source.bytes())
            .is_ok_and(|archive| archive.kind() == Kind::ExportedProgram);
    let listing = || read_source(source, &ReadOptions::default());
    if exported {
        return export::torchscript(source, &listing()?, device);
    }
    let listing = data_apart.then(listing).and_then(Result::ok);
    let mut data: Vec<(u64, u64)> = listing
        .iter()
        .flat_map(Checkpoint::storages)
        .filter_map(|storage| match storage.data() {
            StorageData::Raw { offset } => Some((offset, storage.file_bytes())),
            _ => None,
        })
        .collect();
    data.sort_unstable();
    let mut pieces = Vec::new();
    let mut position = 0_u64;
    let mut add = |from: u64, to: u64, is_data: bool| {
        if to > from {
            pieces.push(Piece {
                in_head: false,
                is_data,
                offset: from,
                bytes: to.saturating_sub(from),
            });
        }
    };
    for (offset, bytes) in data {
        let end = offset.saturating_add(bytes);
        // Data that two names describe differently is read once.
        let from = offset.max(position);
        add(position, from, false);
        add(from, end, true);
        position = position.max(end);
    }
    add(position, source.len(), false);
    Ok(Loadable {
        head: Vec::new(),
        pieces,
    })
}
