//! The zip of `torch.save` (since 1.6) and of `torch.jit.save`.
//!
//! | record | what it is |
//! |---|---|
//! | `data.pkl` | the object; tensors refer to `data/<key>` |
//! | `data/<key>` | one storage |
//! | `constants.pkl`, `constants/<key>` | TorchScript's constants; their presence is what makes an archive TorchScript |
//! | `code/**.py`, `*.debug_pkl` | TorchScript's code and where it came from |
//! | `bytecode.pkl`, `mobile_debug_handles.pkl` | the code for mobile interpreters |
//! | `version`, `.format_version`, `byteorder`, `.storage_alignment`, `.data/serialization_id` | a line of text each |
//!
//! All records lie under one folder, that of the directory's first member, whatever its name.

mod object;
mod package;

use std::borrow::Cow;

use super::super::error::{FormatError, MemberFault, TensorFault};
use super::super::pickle::{Pickle, cut, parse_with_budget};
use super::super::zip::{Archive, Member, canonical_number};
use super::rebuild::Graph;
use super::records::{Offsets, Record, has_extension, is_pickle_name, looks_like_pickle};
use super::rows::{Place, Rows};
use super::script::Classes;
use super::security::{Reach, Watch};
use super::storage::{Declared, Records, StorageTable};
use super::walk::{Context, walk};
use crate::checkpoint::{
    ByteOrder, Checkpoint, CheckpointParts, Format, ObjectKind, Severity, StorageParts, Verdict,
};

/// The newest archive version that PyTorch 2.11 reads, and the oldest.
const VERSIONS: std::ops::RangeInclusive<u64> = 1..=10;

/// How far from the end of a file PyTorch looks for the end of an archive (miniz, `mz_zip_reader_locate_header_sig`):
/// the longest comment.
const SEARCHED_BYTES: u64 = 65_535;

/// An archive, and the folder that its records are in.
pub(crate) struct TorchArchive<'a> {
    archive: Archive<'a>,
    root: &'a str,
    file_bytes: u64,
}

/// Storages as records of a folder of the archive.
pub(crate) struct Folder<'t, 'a> {
    torch: &'t TorchArchive<'a>,
    name: &'static str,
    /// Whether the archive keeps the folder's records by number.
    numbered: bool,
}

impl Records for Folder<'_, '_> {
    fn locate(&self, declared: &Declared<'_>) -> Result<StorageParts, TensorFault> {
        let member = || [self.name, "/", &declared.key].concat();
        let number = canonical_number(&declared.key).filter(|_| self.numbered);
        let record = match number {
            Some(number) => self.torch.archive.numbered_member(number),
            None => self.torch.record(&member()),
        };
        let record = record.ok_or_else(|| TensorFault::NoRecord(cut(&member())))?;
        match self.torch.inside(record) {
            Some(name) => declared.in_record(record, name),
            None => declared.in_record(record, &member()),
        }
    }
}

/// Everything collected while reading.
struct Reading {
    watch: Watch,
    data: StorageTable,
    pickle_bytes: u64,
}

impl<'a> TorchArchive<'a> {
    /// Checks the archive and finds its folder.
    pub(crate) fn open(data: &'a [u8]) -> Result<TorchArchive<'a>, FormatError> {
        let archive = Archive::open(data)?;
        let root = archive
            .members()
            .first()
            .and_then(|first| first.name.split_once('/'))
            .map_or("", |(root, _)| root);
        Ok(TorchArchive {
            archive,
            root,
            file_bytes: data.len() as u64,
        })
    }

    pub(crate) fn record(&self, name: &str) -> Option<&Member<'a>> {
        let mut whole =
            String::with_capacity(self.root.len().saturating_add(name.len()).saturating_add(1));
        whole.push_str(self.root);
        whole.push('/');
        whole.push_str(name);
        self.archive.member(&whole)
    }

    /// A record outside every folder, as `torch.export.save` wrote them before torch 2.8.
    pub(crate) fn bare_record(&self, name: &str) -> Option<&Member<'a>> {
        self.archive.member(name)
    }

    /// The storages in a folder.
    pub(crate) fn folder(&self, folder: &'static str) -> Folder<'_, 'a> {
        let numbered = self.archive.numbered_folder().is_some_and(|numbered| {
            numbered
                .strip_prefix(self.root)
                .and_then(|rest| rest.strip_prefix('/'))
                == Some(folder)
        });
        Folder {
            torch: self,
            name: folder,
            numbered,
        }
    }

    /// A member's name inside the folder; `None` for members outside.
    pub(crate) fn inside<'m>(&self, member: &'m Member<'a>) -> Option<&'m str> {
        member.name.strip_prefix(self.root)?.strip_prefix('/')
    }

    /// A one-line record.
    pub(crate) fn line(&self, name: &str) -> Result<Option<String>, FormatError> {
        let Some(record) = self.record(name) else {
            return Ok(None);
        };
        let contents = self.archive.read(record)?;
        Ok(Some(cut(String::from_utf8_lossy(&contents).trim())))
    }

    /// What the archive is, by the records in it.
    pub(crate) fn kind(&self) -> Kind {
        let has = |name: &str| self.record(name).is_some();
        if has(".data/extern_modules") || has(".data/python_version") {
            return Kind::Package;
        }
        if has("archive_format")
            || has("models/model.json")
            || has("serialized_exported_program.json")
            || has("archive_version")
            || self
                .bare_record("serialized_exported_program.json")
                .is_some()
        {
            return Kind::ExportedProgram;
        }
        if has("constants.pkl") || has("bytecode.pkl") {
            return Kind::Script;
        }
        if has("data.pkl") {
            return Kind::Pickle;
        }
        Kind::Other
    }

    /// All records of the archive, in the directory's order.
    pub(crate) fn members(&self) -> &[Member<'a>] {
        self.archive.members()
    }

    /// A record's bytes, inflated where they are compressed.
    pub(crate) fn read(&self, member: &Member<'a>) -> Result<Cow<'a, [u8]>, FormatError> {
        self.archive.read(member)
    }

    /// A record's bytes as they are in the file.
    pub(crate) fn stored(&self, member: &Member<'a>) -> &'a [u8] {
        self.archive.stored(member)
    }

    /// The size of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The names of all members, for saying what the archive is instead.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.archive.members().iter().map(|m| m.name)
    }

    pub(crate) fn pickle(
        &self,
        member: &Member<'a>,
        watch: &mut Watch,
        reach: Reach,
    ) -> Result<Pickle<'a>, FormatError> {
        let contents = self.archive.read(member)?;
        let name = self.inside(member).unwrap_or(member.name);
        let pickle = parse_with_budget(contents, member.stored_bytes)
            .map_err(|source| super::pickle_error(&cut(name), source))?;
        watch.look(&pickle, &cut(name), reach);
        Ok(pickle)
    }

    /// Reads a `torch.save` archive.
    pub(crate) fn read_pickle(&self) -> Result<Checkpoint, FormatError> {
        let (parts, _) = self.pickle_parts("")?;
        Ok(Checkpoint::new(parts)?)
    }

    /// What is in a `torch.save` archive, named under a prefix, and its object as Python writes it, cut.
    pub(crate) fn pickle_parts(
        &self,
        prefix: &str,
    ) -> Result<(CheckpointParts, String), FormatError> {
        let mut parts = CheckpointParts::new(Format::TorchZip, self.file_bytes);
        let mut reading = self.start(&mut parts)?;
        let member = self.needed("data.pkl")?;
        let pickle = self.pickle(member, &mut reading.watch, Reach::Loaded)?;
        trailing(
            &pickle,
            member,
            self.inside(member).unwrap_or(""),
            &mut reading.watch,
        );
        let graph = Graph::new(&pickle);
        let mut rows = Rows::new(member.stored_bytes);
        rows.reserve(self.archive.members().len());
        reading.data.reserve(self.archive.members().len());
        let context = Context {
            member: "data.pkl",
            records: &self.folder("data"),
            table: &mut reading.data,
            rows: &mut rows,
            classes: None,
        };
        parts.object = walk(&graph, context, prefix, Place::Plain)?;
        let shown = cut(&pickle.repr(pickle.root()));
        Ok((self.finish(parts, reading, rows)?, shown))
    }

    /// Reads a TorchScript archive: modules, constants, code headers. Runs nothing.
    pub(crate) fn read_script(&self) -> Result<Checkpoint, FormatError> {
        let mut parts = CheckpointParts::new(Format::TorchScript, self.file_bytes);
        let mut reading = self.start(&mut parts)?;
        let classes = self.classes_in("code/", "", &mut reading.watch)?;
        let member = self.needed("data.pkl")?;
        let pickle = self.pickle(member, &mut reading.watch, Reach::Loaded)?;
        trailing(&pickle, member, "data.pkl", &mut reading.watch);
        let graph = Graph::new(&pickle);
        let mut rows = Rows::new(member.stored_bytes);
        rows.reserve(self.archive.members().len());
        reading.data.reserve(self.archive.members().len());
        let context = Context {
            member: "data.pkl",
            records: &self.folder("data"),
            table: &mut reading.data,
            rows: &mut rows,
            classes: Some(&classes),
        };
        parts.object = match walk(&graph, context, "", Place::Modules)? {
            ObjectKind::Other => ObjectKind::Module,
            kind => kind,
        };
        if let Some(root) = rows.modules.first()
            && let Some(class) = classes.get(&root.class)
        {
            parts.methods = class
                .methods
                .iter()
                .filter(|m| !m.name.starts_with("__"))
                .cloned()
                .collect();
        }
        self.constants(&mut reading, &mut rows, &classes)?;
        Ok(Checkpoint::new(self.finish(parts, reading, rows)?)?)
    }

    /// Records that both kinds have: version and byte order.
    fn start(&self, parts: &mut CheckpointParts) -> Result<Reading, FormatError> {
        let mut watch = Watch::default();
        let version = match self.line("version")? {
            Some(version) => Some(version),
            None => self.line(".data/version")?,
        };
        if let Some(version) = version {
            match version.parse::<u64>() {
                Ok(number) if VERSIONS.contains(&number) => {}
                _ => {
                    return Err(FormatError::Structure {
                        part: "the archive's version".to_owned(),
                        expected: format!("{} to {}", VERSIONS.start(), VERSIONS.end()),
                        found: format!("`{version}`"),
                    });
                }
            }
        }
        parts.byte_order = Some(self.byte_order()?);
        self.look_at_container(&mut watch);
        Ok(Reading {
            watch,
            data: StorageTable::default(),
            pickle_bytes: 0,
        })
    }

    /// The byte order of tensor data, little where the archive does not say.
    pub(crate) fn byte_order(&self) -> Result<ByteOrder, FormatError> {
        match self.line("byteorder")?.as_deref() {
            None | Some("little") => Ok(ByteOrder::Little),
            Some("big") => Ok(ByteOrder::Big),
            Some(other) => Err(FormatError::Structure {
                part: "the record `byteorder`".to_owned(),
                expected: "`little` or `big`".to_owned(),
                found: format!("`{other}`"),
            }),
        }
    }

    /// What is odd about the zip itself.
    pub(crate) fn look_at_container(&self, watch: &mut Watch) {
        for (member, bits) in &self.archive.odd_flags {
            watch.find(
                Severity::Warning,
                "zip-flags",
                member,
                format!("its general purpose flags 0x{bits:04x} are unusual; PyTorch ignores them"),
            );
        }
        if self.archive.end < self.file_bytes {
            watch.raise(Verdict::Suspicious);
            watch.find(
                Severity::Warning,
                "trailing-data",
                &format!("byte {}", self.archive.end),
                match self.file_bytes.saturating_sub(self.archive.end) {
                    rest if rest > SEARCHED_BYTES => {
                        format!(
                            "{rest} bytes follow the archive; PyTorch does not find it before them"
                        )
                    }
                    rest => format!("{rest} bytes follow the archive; PyTorch ignores them"),
                },
            );
        }
    }

    pub(crate) fn needed(&self, name: &str) -> Result<&Member<'a>, FormatError> {
        self.record(name).ok_or_else(|| self.missing(name))
    }

    /// The error for a record that is not there.
    pub(crate) fn missing(&self, name: &str) -> FormatError {
        FormatError::Member {
            member: format!("{}/{name}", cut(self.root)),
            offset: None,
            fault: MemberFault::Missing,
        }
    }

    /// The classes of the code in a folder, which is part of another.
    fn classes_in(
        &self,
        folder: &str,
        above: &str,
        watch: &mut Watch,
    ) -> Result<Classes, FormatError> {
        let mut classes = Classes::default();
        for member in self.archive.members() {
            let Some(name) = self.inside(member) else {
                continue;
            };
            if name.starts_with(folder) && has_extension(name, &["py"]) {
                let code = self.archive.read(member)?;
                let own = name.strip_prefix(above).unwrap_or(name);
                classes.add(own, &String::from_utf8_lossy(&code))?;
            }
        }
        for (operator, member) in &classes.file_operators {
            watch.raise(Verdict::Suspicious);
            watch.find(
                Severity::Warning,
                "file-operator",
                member,
                format!("its code calls `{operator}`, which reads or writes files"),
            );
        }
        for (name, class) in classes.sorted() {
            if !class.has_setstate {
                continue;
            }
            let calls: Vec<&str> = class
                .setstate_calls
                .iter()
                .map(String::as_str)
                .filter(|call| !is_packing(call))
                .collect();
            if !calls.is_empty() {
                watch.raise(Verdict::Suspicious);
                watch.find(
                    Severity::Warning,
                    "setstate-code",
                    &cut(name),
                    format!(
                        "`__setstate__` calls {}: that runs when PyTorch loads the file",
                        cut(&calls.join(", "))
                    ),
                );
            }
        }
        Ok(classes)
    }

    fn constants(
        &self,
        reading: &mut Reading,
        rows: &mut Rows,
        classes: &Classes,
    ) -> Result<(), FormatError> {
        let Some(member) = self.record("constants.pkl") else {
            return Ok(());
        };
        let pickle = self.pickle(member, &mut reading.watch, Reach::Loaded)?;
        trailing(&pickle, member, "constants.pkl", &mut reading.watch);
        let graph = Graph::new(&pickle);
        // Keys of constants count from 0 again, in a folder of their own.
        let mut table = std::mem::take(&mut reading.data);
        table.enter_folder();
        let context = Context {
            member: "constants.pkl",
            records: &self.folder("constants"),
            table: &mut table,
            rows,
            classes: Some(classes),
        };
        walk(&graph, context, "constants", Place::Constant)?;
        reading.data = table;
        Ok(())
    }

    /// Looks at every other record and adds up sizes.
    fn finish(
        &self,
        mut parts: CheckpointParts,
        mut reading: Reading,
        rows: Rows,
    ) -> Result<CheckpointParts, FormatError> {
        let mut used = Offsets::of(reading.data.storages());
        for member in self.archive.members() {
            // Records do not overlap, but empty ones may start where the next one does.
            if member.stored_bytes > 0 && used.contains(member.data_offset) {
                continue;
            }
            let name = self.inside(member);
            match Record::of(name, member.name) {
                Record::Code => {
                    parts.code_bytes = parts.code_bytes.saturating_add(member.stored_bytes);
                }
                Record::Metadata => {
                    reading.pickle_bytes = reading.pickle_bytes.saturating_add(member.stored_bytes);
                    self.look_at_metadata(member, name, &mut reading.watch)?;
                }
                Record::Data => {
                    parts.unreferenced_bytes =
                        parts.unreferenced_bytes.saturating_add(member.stored_bytes);
                    reading.watch.unreferenced(member);
                }
            }
        }
        parts.pickle_bytes = reading.pickle_bytes;
        let (security, findings) = reading.watch.finish();
        super::finish_parts(&mut parts, reading.data, rows, security, findings);
        Ok(parts)
    }

    /// Checks a record that is read by someone, and looks into further pickles.
    fn look_at_metadata(
        &self,
        member: &Member<'a>,
        name: Option<&str>,
        watch: &mut Watch,
    ) -> Result<(), FormatError> {
        let read_already = matches!(
            name,
            Some("data.pkl" | "constants.pkl" | "version" | "byteorder" | ".data/version")
        );
        if read_already {
            return Ok(());
        }
        let shown = name.unwrap_or(member.name);
        let own = matches!(
            name,
            Some("bytecode.pkl" | "mobile_debug_handles.pkl" | "traced_inputs.pkl")
        );
        let contents = self.archive.read(member)?;
        if !is_pickle_name(shown) && !looks_like_pickle(&contents) {
            return Ok(());
        }
        let reach = if name == Some("bytecode.pkl") {
            Reach::Loaded
        } else {
            Reach::Hidden
        };
        match parse_with_budget(contents, member.stored_bytes) {
            Ok(pickle) => {
                watch.look(&pickle, &cut(shown), reach);
                if !own {
                    watch.raise(Verdict::Suspicious);
                    watch.find(
                        Severity::Warning,
                        "hidden-pickle",
                        &cut(shown),
                        "a pickle that PyTorch does not load".to_owned(),
                    );
                }
                Ok(())
            }
            Err(source) if own => Err(super::pickle_error(&cut(shown), source)),
            Err(_) => Ok(()),
        }
    }
}

/// What an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pickle,
    Script,
    Package,
    ExportedProgram,
    Other,
}

/// Operators that put quantized weights into the form that kernels take.
fn is_packing(call: &str) -> bool {
    call.starts_with("ops.quantized.")
        || call.starts_with("ops.prepacked.")
        || matches!(
            call,
            "torch.dict"
                | "torch.list"
                | "torch.len"
                | "torch.append"
                | "torch.tensor"
                | "torch.quantize_per_tensor"
        )
}

/// What follows the pickle in its record: nothing in what PyTorch writes.
fn trailing(pickle: &Pickle<'_>, member: &Member<'_>, name: &str, watch: &mut Watch) {
    let rest = member.bytes.saturating_sub(pickle.consumed() as u64);
    if rest == 0 {
        return;
    }
    watch.raise(Verdict::Suspicious);
    watch.find(
        Severity::Warning,
        "trailing-pickle-data",
        name,
        format!(
            "{rest} bytes follow the pickle at byte {}; PyTorch ignores them",
            pickle.consumed()
        ),
    );
    if let Ok(hidden) = super::super::pickle::parse(pickle.rest()) {
        watch.look(
            &hidden,
            &format!("{name} (after the first pickle)"),
            Reach::Hidden,
        );
    }
}
