//! Parts of a file, gone through piece by piece in bounded memory, several at a time.

use std::io::{self, BufReader, Read};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::super::error::{FormatError, MemberFault};
use super::super::pickle::cut;
use crate::checkpoint::{Storage, StorageData};
use crate::source::Source;

/// How much is read at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// A part of the file, and what it becomes in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent<'n> {
    /// What it is called in messages.
    pub(super) member: &'n str,
    /// The first byte.
    pub(super) offset: u64,
    /// Bytes in the file.
    pub(super) stored_bytes: u64,
    /// Bytes in memory.
    pub(super) bytes: u64,
    /// Whether it is compressed.
    pub(super) deflated: bool,
}

impl<'n> Extent<'n> {
    /// Where a storage is; `None` when it is not in the file.
    pub(super) fn of_storage(storage: &'n Storage) -> Option<Extent<'n>> {
        let (offset, deflated) = match storage.data() {
            StorageData::Raw { offset } => (offset, false),
            StorageData::Deflated { offset } => (offset, true),
            StorageData::Text | StorageData::Absent => return None,
        };
        Some(Extent {
            member: storage.member(),
            offset,
            stored_bytes: storage.file_bytes(),
            bytes: storage.bytes(),
            deflated,
        })
    }

    /// Its bytes as they are in the file.
    pub(super) fn mapped<'s>(&self, source: &'s Source) -> Result<&'s [u8], FormatError> {
        let range = usize::try_from(self.offset)
            .ok()
            .zip(usize::try_from(self.stored_bytes).ok());
        range
            .and_then(|(start, len)| source.bytes().get(start..start.checked_add(len)?))
            .ok_or_else(|| self.fault(self.out_of(source)))
    }

    /// Hands out its bytes as they are in memory, and checks that there are as many as there should be.
    pub(super) fn stream(
        &self,
        source: &Source,
        each: impl FnMut(&[u8]),
    ) -> Result<(), FormatError> {
        let section = Section {
            source,
            offset: self.offset,
            left: self.stored_bytes,
        };
        let total = if self.deflated {
            let buffered = BufReader::with_capacity(CHUNK_BYTES, section);
            let inflated = flate2::bufread::DeflateDecoder::new(buffered);
            // One more than there should be is enough to see that there are too many.
            pieces(inflated.take(self.bytes.saturating_add(1)), each)
                .map_err(|error| self.fault(MemberFault::Inflate(error.to_string())))?
        } else {
            pieces(section, each).map_err(|_| self.fault(self.out_of(source)))?
        };
        if total == self.bytes {
            return Ok(());
        }
        Err(self.fault(if self.deflated {
            let expected = self.bytes;
            MemberFault::Inflate(format!("{total} bytes came out, expected {expected}"))
        } else {
            self.out_of(source)
        }))
    }

    fn fault(&self, fault: MemberFault) -> FormatError {
        FormatError::Member {
            member: cut(self.member),
            offset: Some(self.offset),
            fault,
        }
    }

    fn out_of(&self, source: &Source) -> MemberFault {
        MemberFault::OutOfFile {
            end: self.offset.saturating_add(self.stored_bytes),
            file_bytes: source.len(),
        }
    }
}

/// A reader of a part of the file.
struct Section<'s> {
    source: &'s Source,
    offset: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let count = self
            .source
            .read_at(self.offset, buffer.get_mut(..room).unwrap_or(&mut []))?;
        self.offset = self.offset.saturating_add(count as u64);
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

/// Hands out what a reader gives, and says how much that was.
fn pieces(mut reader: impl Read, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let mut total = 0_u64;
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => return Ok(total),
            Ok(count) => {
                total = total.saturating_add(count as u64);
                each(chunk.get(..count).unwrap_or(&[]));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Does the same work on every item, on all cores; results are in the order of the items.
pub(crate) fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            match items.get(index) {
                Some(item) => done.push((index, work(item))),
                None => return done,
            }
        }
    };
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        workers
            .into_iter()
            .flat_map(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
