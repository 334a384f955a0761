//! The zip of `torch.package`: objects together with the Python code that they need.
//!
//! | record | what it is |
//! |---|---|
//! | `<package>/<resource>` | a pickle (`save_pickle`), text or bytes |
//! | `<module>.py` | Python source, which runs when something imports it |
//! | `.data/<n>.storage` | one storage; pickles refer to it by its number |
//! | `.data/ts_code/<id>/data.pkl`, `constants.pkl` | a TorchScript module inside, with its code in `.data/ts_code/code/` |
//! | `.data/extern_modules` | modules that come from where it is loaded, one a line |
//! | `.data/python_version`, `.data/version`, `byteorder` | a line of text each |
//!
//! Every pickle is read and named `member::path`. A package runs the Python sources in it, so it is never clean where
//! it has any. (PyTorch 2.11, `torch/package/package_exporter.py`.)

use super::super::super::error::FormatError;
use super::super::super::pickle::{GlobalId, Node, Pickle, cut, parse_with_budget};
use super::super::super::zip::Member;
use super::super::records::{Offsets, has_extension, is_pickle_name, looks_like_pickle};
use super::super::rows::{Place, Rows};
use super::super::script::Classes;
use super::super::security::Reach;
use super::super::walk::{Context, walk};
use super::{Graph, Reading, TorchArchive, trailing};
use crate::checkpoint::{
    Checkpoint, CheckpointParts, Format, ObjectKind, Severity, StoredObject, Verdict,
};

/// Where the package keeps what is its own.
const OWN: &str = ".data/";

/// Where it keeps TorchScript modules.
const SCRIPTS: &str = ".data/ts_code/";

/// The code of all of them.
const SCRIPT_CODE: &str = ".data/ts_code/code/";

/// Modules, and Python sources, that one finding names.
const NAMED: usize = 8;

/// Functions that a package's own reader calls with what it has in the archive, and that do no more than to take it out.
const UNPACKERS: [(&str, &str); 1] = [("torch.jit._script", "unpackage_script_module")];

/// What a record of a package is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The contents of a storage.
    Storage,
    /// Code of TorchScript, or where it came from.
    ScriptCode,
    /// A TorchScript module.
    Script,
    /// What is beside a TorchScript module: its constants.
    ScriptConstants,
    /// Python source.
    Source,
    /// A line of text that the package keeps for itself.
    Own,
    /// A pickle by its name, or anything else that was saved.
    Resource,
}

impl Part {
    fn of(name: &str) -> Part {
        if name.starts_with(SCRIPT_CODE) || has_extension(name, &["debug_pkl"]) {
            return Part::ScriptCode;
        }
        if let Some(rest) = name.strip_prefix(SCRIPTS) {
            return match rest.split_once('/') {
                Some((_, "data.pkl")) => Part::Script,
                Some((_, "constants.pkl")) => Part::ScriptConstants,
                _ => Part::Own,
            };
        }
        if name.starts_with(OWN) {
            return if has_extension(name, &["storage"]) {
                Part::Storage
            } else {
                Part::Own
            };
        }
        match name {
            "byteorder" | "version" => Part::Own,
            _ if has_extension(name, &["py"]) => Part::Source,
            _ => Part::Resource,
        }
    }
}

impl<'a> TorchArchive<'a> {
    /// Reads every pickle of a `torch.package` archive.
    pub(crate) fn read_package(&self) -> Result<Checkpoint, FormatError> {
        let mut parts = CheckpointParts::new(Format::TorchPackage, self.file_bytes);
        let mut reading = self.start(&mut parts)?;
        let classes = self.classes_in(SCRIPT_CODE, SCRIPTS, &mut reading.watch)?;
        let all = self.archive.members().iter();
        let pickles = all.clone().filter(|member| {
            let part = self.inside(member).map(Part::of);
            matches!(
                part,
                Some(Part::Script | Part::ScriptConstants | Part::Resource)
            )
        });
        let pickle_bytes = pickles.map(|member| member.stored_bytes);
        let mut rows = Rows::new(pickle_bytes.fold(0, u64::saturating_add));
        let mut sources = Vec::new();
        for member in all {
            let Some(name) = self.inside(member) else {
                continue;
            };
            match Part::of(name) {
                Part::Source => sources.push(name),
                Part::Script => {
                    let place = (&mut reading, &mut rows);
                    self.packed(member, place, Some(&classes), Place::Modules)?;
                }
                Part::ScriptConstants => {
                    let place = (&mut reading, &mut rows);
                    self.packed(member, place, Some(&classes), Place::Constant)?;
                }
                Part::Resource => {
                    let place = (&mut reading, &mut rows);
                    if let Some(object) = self.resource(member, name, place)? {
                        parts.objects.push(object);
                    }
                }
                Part::Storage | Part::ScriptCode | Part::Own => {}
            }
        }
        parts.object = ObjectKind::Other;
        runs_code(&sources, &mut reading);
        self.named_modules(&mut reading)?;
        self.finish_package(parts, reading, rows)
    }

    /// Reads one pickle, and names what it holds `member::path`.
    fn packed(
        &self,
        member: &Member<'a>,
        (reading, rows): (&mut Reading, &mut Rows),
        classes: Option<&Classes>,
        place: Place,
    ) -> Result<Pickle<'a>, FormatError> {
        let name = self.inside(member).unwrap_or(member.name);
        let contents = self.archive.read(member)?;
        let pickle = parse_with_budget(contents, member.stored_bytes)
            .map_err(|source| super::super::pickle_error(&cut(name), source))?;
        let vouched = unpackers(&pickle);
        let watch = &mut reading.watch;
        watch.look_except(&pickle, &cut(name), Reach::Loaded, &vouched);
        trailing(&pickle, member, &cut(name), watch);
        let context = Context {
            member: name,
            records: &self.folder(".data"),
            table: &mut reading.data,
            rows,
            classes,
        };
        walk(&Graph::new(&pickle), context, &[name, "::"].concat(), place)?;
        Ok(pickle)
    }

    /// Looks into something that was saved: what is no pickle is text or bytes of the user's.
    fn resource(
        &self,
        member: &Member<'a>,
        name: &str,
        (reading, rows): (&mut Reading, &mut Rows),
    ) -> Result<Option<StoredObject>, FormatError> {
        let object = |value: String| StoredObject {
            name: name.to_owned(),
            value,
            member: member.name.to_owned(),
            offset: member.data_offset,
            bytes: member.stored_bytes,
        };
        if !is_pickle_name(name) && !looks_like_pickle(&self.archive.read(member)?) {
            return Ok(Some(object("text or bytes".to_owned())));
        }
        let before = (rows.len(), reading.data.storages().len());
        let pickle = self.packed(member, (reading, rows), None, Place::Plain)?;
        let held = (rows.len(), reading.data.storages().len()) != before;
        Ok((!held).then(|| object(shown(&pickle))))
    }

    /// Modules that come from elsewhere.
    fn named_modules(&self, reading: &mut Reading) -> Result<(), FormatError> {
        let Some(record) = self.record(".data/extern_modules") else {
            return Ok(());
        };
        let contents = self.archive.read(record)?;
        let text = String::from_utf8_lossy(&contents);
        let modules: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        if !modules.is_empty() {
            let message = format!(
                "{} modules are taken from where it is loaded: {}",
                modules.len(),
                some(&modules)
            );
            let watch = &mut reading.watch;
            watch.find(
                Severity::Info,
                "extern-modules",
                ".data/extern_modules",
                message,
            );
        }
        let mocks = self.record("_mock.py").is_some();
        if mocks {
            let message = "some modules are mocked: their names are there, and using them fails";
            let watch = &mut reading.watch;
            watch.find(
                Severity::Info,
                "mocked-modules",
                "_mock.py",
                message.to_owned(),
            );
        }
        Ok(())
    }

    /// Adds up the sizes of everything.
    fn finish_package(
        &self,
        mut parts: CheckpointParts,
        mut reading: Reading,
        rows: Rows,
    ) -> Result<Checkpoint, FormatError> {
        let mut used = Offsets::of(reading.data.storages());
        for member in self.archive.members() {
            if member.stored_bytes > 0 && used.contains(member.data_offset) {
                continue;
            }
            let bytes = match self.inside(member).map(Part::of) {
                Some(Part::ScriptCode | Part::Source) => &mut parts.code_bytes,
                Some(Part::Storage) | None => {
                    reading.watch.unreferenced(member);
                    &mut parts.unreferenced_bytes
                }
                Some(_) => &mut parts.pickle_bytes,
            };
            *bytes = bytes.saturating_add(member.stored_bytes);
        }
        let (security, findings) = reading.watch.finish();
        super::super::finish_parts(&mut parts, reading.data, rows, security, findings);
        Ok(Checkpoint::new(parts)?)
    }
}

/// An object as Python writes it; a TorchScript module by where it is.
fn shown(pickle: &Pickle<'_>) -> String {
    if let Node::Persistent(id) = pickle.node(pickle.root())
        && let [.., function, arguments] = *pickle.items(id)
        && let [module] = *pickle.items(arguments)
        && pickle.is_global(function, "torch.jit._script", "unpackage_script_module")
    {
        let module = cut(&pickle.key_text(module));
        return format!("TorchScript in {SCRIPTS}{module}");
    }
    cut(&pickle.repr(pickle.root()))
}

/// Functions of PyTorch's that take something out of a package.
fn unpackers(pickle: &Pickle<'_>) -> Vec<GlobalId> {
    let known = |id: &GlobalId| {
        let name = pickle.global_name(*id);
        name.is_some_and(|(module, name)| UNPACKERS.contains(&(&*module, &*name)))
    };
    pickle.globals().filter(known).collect()
}

/// Python sources run when what is pickled needs them.
fn runs_code(sources: &[&str], reading: &mut Reading) {
    let Some(first) = sources.first() else {
        return;
    };
    let watch = &mut reading.watch;
    watch.raise(Verdict::Suspicious);
    watch.find(
        Severity::Warning,
        "package-code",
        &cut(first),
        format!(
            "{} Python sources are in the package: loading it runs those that its objects need: {}",
            sources.len(),
            some(sources)
        ),
    );
}

/// The first few names.
fn some(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED).map(|name| cut(name)).collect();
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(", "))
}
