//! The archive that libtorch loads, as pieces of the file, so that what nobody reads is not read.

use std::collections::HashMap;

use super::detect::{self, Detected};
use super::error::FormatError;
use super::torch::archive::{Kind, TorchArchive};
use super::zip::Archive;
use super::zip::write::{Record, Zip};
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
    if let Some(listing) = &listing
        && let Some(unpacked) = unpacked(source, listing)
    {
        return Ok(unpacked);
    }
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

/// Compressed data up to this many bytes stays as it is: so little is really read.
const SMALL_BYTES: u64 = 1 << 16;

/// The archive with its compressed data as if it were not: data that nobody reads need not be unpacked either. None where
/// there is none.
fn unpacked(source: &Source, listing: &Checkpoint) -> Option<Loadable> {
    // Whether data is compressed, by its place.
    let data: HashMap<u64, bool> = listing
        .storages()
        .iter()
        .filter_map(|storage| match storage.data() {
            StorageData::Deflated { offset } if storage.bytes() > SMALL_BYTES => {
                Some((offset, true))
            }
            StorageData::Raw { offset } => Some((offset, false)),
            _ => None,
        })
        .collect();
    if !data.values().any(|deflated| *deflated) {
        return None;
    }
    let archive = Archive::open(source.bytes()).ok()?;
    let mut zip = Zip::default();
    for member in archive.members() {
        let place = data.get(&member.data_offset);
        let as_data = member.deflated && place == Some(&true);
        let record = Record {
            name: member.name,
            deflated: member.deflated && !as_data,
            crc32: member.crc32,
            stored_bytes: if as_data {
                member.bytes
            } else {
                member.stored_bytes
            },
            bytes: member.bytes,
        };
        let is_data = as_data || place == Some(&false);
        zip.add_piece(record, member.data_offset, is_data);
    }
    Some(zip.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The archive's bytes, with zeros for the data of tensors where it is left out.
    fn bytes(source: &Source, loadable: &Loadable) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in &loadable.pieces {
            let of = |bytes: &[u8]| -> Vec<u8> {
                let bytes = bytes.iter().skip(usize::try_from(piece.offset).unwrap());
                let length = usize::try_from(piece.bytes).unwrap();
                bytes.take(length).copied().collect()
            };
            all.extend(match (piece.is_data, piece.in_head) {
                (true, _) => vec![0; usize::try_from(piece.bytes).unwrap()],
                (false, true) => of(&loadable.head),
                (false, false) => of(source.bytes()),
            });
        }
        all
    }

    #[test]
    fn compressed_data_is_not_unpacked_where_nobody_reads_it() {
        let source = Source::open("fixtures/resnet18.pt".as_ref()).unwrap();
        let whole = loadable(&source, "cpu", false).unwrap();
        assert_eq!(bytes(&source, &whole), source.bytes());
        let apart = loadable(&source, "cpu", true).unwrap();
        let data = apart.pieces.iter().filter(|piece| piece.is_data);
        let largest = data.map(|piece| piece.bytes).max().unwrap();
        assert_eq!(largest, 512 * 512 * 9 * 4);
        // What libtorch finds: the same tensors in storages of the same sizes.
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(copy.path(), bytes(&source, &apart)).unwrap();
        let options = ReadOptions::default();
        let listing = read_source(&source, &options).unwrap();
        let again = read_source(&Source::open(copy.path()).unwrap(), &options).unwrap();
        assert_eq!(again.tensors(), listing.tensors());
        let sizes = |checkpoint: &Checkpoint| -> Vec<u64> {
            let storages = checkpoint.storages().iter();
            storages.map(crate::checkpoint::Storage::bytes).collect()
        };
        assert_eq!(sizes(&again), sizes(&listing));
    }
}
