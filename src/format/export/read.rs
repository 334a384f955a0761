//! Listing the tensors of an exported program.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::cut;
use super::super::torch::archive::TorchArchive;
use super::super::torch::finish_parts;
use super::super::torch::rebuild::{Graph, View};
use super::super::torch::rows::{Place, Rows};
use super::super::torch::security::{Reach, Watch};
use super::super::torch::storage::{Declared, StorageTable};
use super::super::torch::walk::{Context, walk};
use super::super::zip::Member;
use super::program;
use super::records::{
    Names, Nested, Whole, find, inner, known_archive, known_version, models, parse, sample_inputs,
};
use super::schema::{ExportedProgram, InputSpec, Payload, PayloadConfig, Size, TensorMeta};
use crate::checkpoint::{
    Checkpoint, CheckpointParts, Format, Layout, Module, ObjectKind, Role, Severity, Tensor,
};
use crate::limits;
use crate::tensor::{self, Dims};

/// Reads an exported program. Runs nothing.
pub(crate) fn read(archive: &TorchArchive<'_>) -> Result<Checkpoint, FormatError> {
    known_archive(archive)?;
    let mut reading = Reading::new(archive)?;
    let models = models(archive);
    for (name, member) in &models {
        reading.model(name, member)?;
    }
    reading.finish(!models.is_empty())
}

/// Everything collected while reading.
struct Reading<'t, 'a> {
    archive: &'t TorchArchive<'a>,
    parts: CheckpointParts,
    watch: Watch,
    table: StorageTable,
    rows: Rows,
    /// Records with storages inside, and the storages from which on they are.
    nested: Vec<&'t Member<'a>>,
}

impl<'t, 'a> Reading<'t, 'a> {
    fn new(archive: &'t TorchArchive<'a>) -> Result<Reading<'t, 'a>, FormatError> {
        let mut parts = CheckpointParts::new(Format::ExportedProgram, archive.file_bytes());
        parts.byte_order = Some(archive.byte_order()?);
        parts.object = ObjectKind::Module;
        let mut watch = Watch::default();
        archive.look_at_container(&mut watch);
        let json = archive
            .members()
            .iter()
            .filter(|m| m.name.contains(".json"));
        let text_bytes = json.fold(0_u64, |sum, m| sum.saturating_add(m.stored_bytes));
        Ok(Reading {
            archive,
            parts,
            watch,
            table: StorageTable::default(),
            rows: Rows::new(text_bytes),
            nested: Vec::new(),
        })
    }

    fn model(&mut self, name: &str, member: &'t Member<'a>) -> Result<(), FormatError> {
        let exported: ExportedProgram = parse(self.archive, member)?;
        known_version(&exported.schema_version, member)?;
        let names = Names::of(name);
        let first = self.rows.tensors.len();
        self.tensors(
            &names.weights_config,
            "data/weights",
            &names.weights,
            Place::StateDict,
        )?;
        let constants = self.rows.tensors.len();
        self.tensors(
            &names.constants_config,
            "data/constants",
            &names.constants,
            Place::Constant,
        )?;
        self.all_there(&exported, first, member)?;
        self.roles(&exported, first, constants);
        self.modules(&exported);
        let inputs = sample_inputs(self.archive, name);
        if let Some(inputs) = inputs {
            self.look_into(inputs)?;
        }
        if self.parts.torch_version.is_none() {
            self.parts.torch_version.clone_from(&exported.torch_version);
        }
        let program = program::facts(name, &exported, inputs.is_some());
        self.parts
            .methods
            .push(program::method(&program, &exported));
        self.parts.programs.push(program);
        Ok(())
    }

    /// The tensors that a config lists, or else those of a pickled state_dict.
    fn tensors(
        &mut self,
        config: &str,
        folder: &str,
        pickled: &[String],
        place: Place,
    ) -> Result<(), FormatError> {
        let Some(member) = find(self.archive, config) else {
            let record = pickled.iter().find_map(|name| find(self.archive, name));
            return match record {
                Some(record) if record.bytes > 0 => self.state_dict(record, "", place),
                Some(_) => Ok(()),
                // PyTorch loads no program without, however few tensors it has.
                None => Err(self.archive.missing(config)),
            };
        };
        let payloads: PayloadConfig = parse(self.archive, member)?;
        for (name, value) in payloads.config {
            let payload = Payload::deserialize(&value).map_err(|error| FormatError::Structure {
                part: format!("`{}`, tensor `{}`", cut(config), cut(&name)),
                expected: "what torch.export's schema says of a payload".to_owned(),
                found: cut(&error.to_string()),
            })?;
            self.payload(&name, &payload, folder, place)?;
        }
        Ok(())
    }

    fn payload(
        &mut self,
        name: &str,
        payload: &Payload,
        folder: &str,
        place: Place,
    ) -> Result<(), FormatError> {
        let record = [folder, "/", &payload.path_name].concat();
        let place = if payload.is_param {
            Place::Parameter
        } else {
            place
        };
        let Some(meta) = payload.tensor_meta.as_ref().filter(|_| !payload.use_pickle) else {
            let archive = self.archive;
            return match find(archive, &record) {
                Some(member) if payload.use_pickle => self.state_dict(member, name, place),
                Some(_) => {
                    self.watch.find(
                        Severity::Info,
                        "custom-object",
                        &record,
                        format!(
                            "`{}` is an object of a class of its own, not a tensor",
                            cut(name)
                        ),
                    );
                    Ok(())
                }
                None => Err(tensor_error(
                    folder,
                    name,
                    TensorFault::NoRecord(cut(&record)),
                )),
            };
        };
        let view = self
            .view(&record, meta)
            .map_err(|fault| tensor_error(folder, name, fault))?;
        let layout = view.layout;
        self.rows.add(folder, name, view, place, layout)
    }

    /// The tensor of a record that is its storage.
    fn view(&mut self, record: &str, meta: &TensorMeta) -> Result<View, TensorFault> {
        let dtype = meta
            .dtype()
            .ok_or_else(|| TensorFault::UnknownDType(format!("number {}", meta.dtype)))?;
        let shape = sizes(&meta.sizes, "a size")?;
        if shape.len() > limits::TENSOR_DIMENSIONS {
            return Err(TensorFault::TooLarge);
        }
        let strides = sizes(&meta.strides, "a stride")?;
        let offset = match &meta.storage_offset {
            Some(offset) => size(offset, "its storage offset")?,
            None => 0,
        };
        // Sparse and mkldnn tensors are pickled: what is written as bytes is strided.
        if !matches!(meta.layout, None | Some(0 | STRIDED)) {
            return Err(TensorFault::Argument {
                what: "its layout",
                expected: "strided",
                found: format!("number {}", meta.layout.unwrap_or_default()),
            });
        }
        if meta
            .device
            .as_ref()
            .is_some_and(|device| device.kind == "meta")
        {
            return Ok(View {
                dtype,
                shape,
                strides,
                storage: None,
                storage_bytes: None,
                offset,
                requires_grad: meta.requires_grad,
                layout: Layout::Meta,
                quantizer: None,
            });
        }
        let extent = tensor::extent(&shape, &strides, offset).ok_or(TensorFault::TooLarge)?;
        let declared = Declared {
            key: record.into(),
            dtype: Some(dtype),
            bytes: extent
                .checked_mul(dtype.item_bytes())
                .ok_or(TensorFault::TooLarge)?,
            device: None,
            view: None,
        };
        let records = Whole {
            archive: self.archive,
        };
        let (storage, bytes) = self.table.get(&declared, &records)?;
        Ok(View {
            dtype,
            shape,
            strides,
            storage: Some(storage),
            storage_bytes: Some(bytes),
            offset,
            requires_grad: meta.requires_grad,
            layout: Layout::Strided,
            quantizer: None,
        })
    }

    /// The tensors of a `torch.save` file that is a record.
    fn state_dict(
        &mut self,
        member: &'t Member<'a>,
        name: &str,
        place: Place,
    ) -> Result<(), FormatError> {
        let record = self.archive.inside(member).unwrap_or(member.name);
        let inner = inner(self.archive, member)?;
        let pickled = inner.needed("data.pkl")?;
        let shown = [record, "::data.pkl"].concat();
        let pickle = inner.pickle(pickled, &mut self.watch, Reach::Loaded)?;
        self.table.enter_folder();
        let records = Nested::of(&inner, member, record);
        let context = Context {
            member: &shown,
            records: &records,
            table: &mut self.table,
            rows: &mut self.rows,
            classes: None,
        };
        walk(&Graph::new(&pickle), context, name, place)?;
        self.table.enter_folder();
        self.nested.push(member);
        Ok(())
    }

    /// Looks at what a pickled record names.
    fn look_into(&mut self, member: &'t Member<'a>) -> Result<(), FormatError> {
        if member.bytes == 0 {
            return Ok(());
        }
        let inner = inner(self.archive, member)?;
        let pickled = inner.needed("data.pkl")?;
        inner.pickle(pickled, &mut self.watch, Reach::Loaded)?;
        Ok(())
    }

    /// An error where the signature binds a tensor that is not among those from `first` on.
    fn all_there(
        &self,
        exported: &ExportedProgram,
        first: usize,
        member: &Member<'_>,
    ) -> Result<(), FormatError> {
        let tensors = self.rows.tensors.get(first..).unwrap_or_default();
        let names: HashSet<&str> = tensors.iter().map(Tensor::name).collect();
        // Sparse and quantized tensors are listed as their parts.
        let has = |name: &str| {
            let part = [name, "."].concat();
            names.contains(name) || names.iter().any(|one| one.starts_with(&part))
        };
        for spec in &exported.graph_module.signature.input_specs {
            let (what, name) = match spec {
                InputSpec::Parameter(bound) => ("parameter", &bound.name),
                InputSpec::Buffer(bound) => ("buffer", &bound.name),
                InputSpec::Constant(bound) => ("constant", &bound.name),
                InputSpec::User(_) | InputSpec::Value(_) | InputSpec::Other(_) => continue,
            };
            if !has(name) {
                return Err(FormatError::Structure {
                    part: format!("`{}`", cut(member.name)),
                    expected: format!("the {what} `{}` among the file's tensors", cut(name)),
                    found: "none of that name".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// What the signature says of the tensors from `first` on; those from `constants` on are not in the state_dict.
    fn roles(&mut self, exported: &ExportedProgram, first: usize, constants: usize) {
        let mut known: HashMap<&str, Role> = HashMap::new();
        for spec in &exported.graph_module.signature.input_specs {
            match spec {
                InputSpec::Parameter(bound) => known.insert(&bound.name, Role::Parameter),
                InputSpec::Buffer(bound) => known.insert(&bound.name, Role::Buffer),
                InputSpec::Constant(bound) => known.insert(&bound.name, Role::Constant),
                InputSpec::User(_) | InputSpec::Value(_) | InputSpec::Other(_) => None,
            };
        }
        let tensors = std::mem::take(&mut self.rows.tensors);
        self.rows.tensors = tensors
            .into_iter()
            .enumerate()
            .map(|(index, tensor)| match known.get(tensor.name()) {
                Some(role) if index >= first => tensor.with_role(*role),
                // Another name of a tensor that the graph knows by one: the config says what it is.
                _ if index >= constants => tensor.with_role(Role::Constant),
                _ => tensor,
            })
            .collect();
    }

    /// The modules that the graph's nodes were in, in the order of the module calls.
    fn modules(&mut self, exported: &ExportedProgram) {
        let classes = program::classes(&exported.graph_module.graph);
        let calls = exported
            .graph_module
            .module_call_graph
            .iter()
            .map(|call| call.fqn.as_str());
        let mut seen: HashSet<&str> = HashSet::new();
        for path in calls {
            if let Some(class) = classes.get(path)
                && seen.insert(path)
            {
                self.rows.modules.push(Module {
                    path: path.to_owned(),
                    class: (*class).to_owned(),
                });
            }
        }
    }

    fn finish(mut self, has_models: bool) -> Result<Checkpoint, FormatError> {
        let compiled = self.account();
        if !has_models && compiled.is_empty() {
            return Err(FormatError::Structure {
                part: "the archive".to_owned(),
                expected: "`models/<name>.json`, the graph of an exported program".to_owned(),
                found: "none".to_owned(),
            });
        }
        if let Some(first) = compiled.first() {
            let plural = if compiled.len() == 1 { "" } else { "s" };
            self.watch.find(
                Severity::Info,
                "compiled-model",
                &cut(first),
                format!(
                    "{} file{plural} of a model compiled by AOTInductor: machine code, whose weights are not listed",
                    compiled.len()
                ),
            );
        }
        let (security, findings) = self.watch.finish();
        finish_parts(&mut self.parts, self.table, self.rows, security, findings);
        Ok(Checkpoint::new(self.parts)?)
    }

    /// Gives every byte of the records to what it is; the names of compiled code.
    fn account(&mut self) -> Vec<&'t str> {
        let storages = self.table.storages();
        let mut spans: Vec<(u64, u64)> = Vec::with_capacity(storages.len());
        spans.extend(storages.iter().filter_map(|storage| {
            storage
                .data_offset()
                .map(|offset| (offset, storage.file_bytes()))
        }));
        spans.sort_unstable();
        let (mut metadata, mut code, mut unreferenced) = (0_u64, 0_u64, 0_u64);
        let mut compiled = Vec::new();
        for member in self.archive.members() {
            let start = spans.partition_point(|(offset, _)| *offset < member.data_offset);
            let end = member.data_offset.saturating_add(member.stored_bytes);
            let inside = spans.get(start..).unwrap_or_default().iter();
            let used = inside
                .take_while(|(offset, _)| *offset < end)
                .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
            let rest = member.stored_bytes.saturating_sub(used);
            let name = self.archive.inside(member).unwrap_or(member.name);
            match kind_of(name) {
                Kind::Compiled => {
                    code = code.saturating_add(rest);
                    compiled.push(name);
                }
                Kind::Data if used == 0 && rest > 0 => {
                    unreferenced = unreferenced.saturating_add(rest);
                    self.watch.unreferenced(member);
                }
                _ => metadata = metadata.saturating_add(rest),
            }
        }
        self.parts.code_bytes = code;
        self.parts.pickle_bytes = metadata;
        self.parts.unreferenced_bytes = unreferenced;
        compiled
    }
}

/// `schema.Layout.Strided`.
const STRIDED: i64 = 7;

/// What a record is to the sizes of a file.
enum Kind {
    Compiled,
    Data,
    Metadata,
}

fn kind_of(name: &str) -> Kind {
    if name.starts_with("data/aotinductor/") {
        return Kind::Compiled;
    }
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
    };
    if numbered("data/weights/weight_") || numbered("data/constants/tensor_") {
        Kind::Data
    } else {
        Kind::Metadata
    }
}

fn tensor_error(member: &str, name: &str, fault: TensorFault) -> FormatError {
    FormatError::Tensor {
        member: member.to_owned(),
        name: cut(name),
        fault,
    }
}

fn sizes(all: &[Size], what: &'static str) -> Result<Dims, TensorFault> {
    all.iter().map(|one| size(one, what)).collect()
}

fn size(one: &Size, what: &'static str) -> Result<u64, TensorFault> {
    match one {
        Size::Int(number) => u64::try_from(*number).map_err(|_| TensorFault::Negative {
            what,
            value: *number,
        }),
        Size::Expression { text, .. } => Err(TensorFault::Argument {
            what,
            expected: "a number",
            found: cut(text),
        }),
    }
}
