//! The object of a `torch.save` archive by itself: as plain values, as a storage, or asked something.

use super::super::super::error::FormatError;
use super::super::super::pickle::Pickle;
use super::super::embedded::{STREAM, storage_of_root};
use super::super::security::{Reach, Watch};
use super::super::value::{Inputs, convert};
use super::{Graph, TorchArchive};
use crate::checkpoint::{ByteOrder, CheckpointParts, Format, StorageParts};

impl<'a> TorchArchive<'a> {
    /// Asks the object of a `torch.save` archive something.
    pub(crate) fn object<T>(&self, ask: impl FnOnce(&Pickle<'a>) -> T) -> Result<T, FormatError> {
        let member = self.needed("data.pkl")?;
        Ok(ask(&self.pickle(
            member,
            &mut Watch::default(),
            Reach::Hidden,
        )?))
    }

    /// Reads the object of a `torch.save` archive as plain values.
    pub(crate) fn read_inputs(&self) -> Result<Inputs, FormatError> {
        let mut parts = CheckpointParts::new(Format::TorchZip, self.file_bytes);
        let mut reading = self.start(&mut parts)?;
        let member = self.needed("data.pkl")?;
        let pickle = self.pickle(member, &mut reading.watch, Reach::Loaded)?;
        let records = self.folder("data");
        let (value, storages) = convert(&Graph::new(&pickle), "data.pkl", &records)?;
        Ok(Inputs {
            value,
            storages,
            byte_order: parts.byte_order,
            security: reading.watch.finish().0,
        })
    }

    /// Reads a `torch.save` archive whose object is one storage.
    pub(crate) fn read_storage(
        &self,
        watch: &mut Watch,
    ) -> Result<(StorageParts, Option<ByteOrder>), FormatError> {
        let mut parts = CheckpointParts::new(Format::TorchZip, self.file_bytes);
        self.start(&mut parts)?;
        let member = self.needed("data.pkl")?;
        let pickle = self.pickle(member, watch, Reach::Loaded)?;
        let storage = storage_of_root(&pickle, &self.folder("data"), STREAM)?;
        Ok((storage, parts.byte_order))
    }
}
