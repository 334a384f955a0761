//! Tensors of a checkpoint, handed to libtorch: `--weights` and real inputs.
//!
//! The file is read by the package's own reader, which never imports or calls anything; libtorch's unpickler, which
//! reads neither state_dicts nor training checkpoints, is not used. A file that does not fit is refused as a whole,
//! with every key that is missing, unexpected or of another shape.

use std::collections::HashMap;
use std::path::Path;

use inspect_checkpoint::checkpoint::{ByteOrder, Checkpoint, Layout, Role, Tensor as Stored};
use inspect_checkpoint::engine::protocol::{Failed, FailureKind};
use inspect_checkpoint::format::{self, ReadOptions};
use inspect_checkpoint::source::Source;
use inspect_checkpoint::tensor::DType;
use tch::{Kind, Tensor};

use crate::dtype;
use crate::failure::Failure;
use crate::ffi::{Module, NamedTensor, Value, call_op};

/// A checkpoint whose tensors can be made.
pub(crate) struct Tensors {
    source: Source,
    checkpoint: Checkpoint,
}

impl Tensors {
    /// Reads what is in the file.
    pub(crate) fn open(path: &Path, kind: FailureKind) -> Result<Tensors, Failure> {
        let told = |error: &dyn std::error::Error| {
            let mut message = format!("`{}` cannot be read: {error}", path.display());
            let mut cause = error.source();
            while let Some(error) = cause {
                message = format!("{message}: {error}");
                cause = error.source();
            }
            Failure::new(kind, message)
        };
        let source = Source::open(path).map_err(|error| told(&error))?;
        let checkpoint =
            format::read_source(&source, &ReadOptions::default()).map_err(|error| told(&error))?;
        Ok(Tensors { source, checkpoint })
    }

    /// What is in the file.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// One of its tensors, on the CPU; without `fill` its values are left out.
    pub(crate) fn make(
        &self,
        stored: &Stored,
        fill: bool,
        kind: FailureKind,
    ) -> Result<Tensor, Failure> {
        let refuse = |why: &str| {
            Failure::new(
                kind,
                format!(
                    "tensor `{}` of `{}` cannot be used: {why}",
                    stored.name(),
                    self.source.path().display()
                ),
            )
        };
        let (Some(dtype), Some(shape), Some(strides)) =
            (stored.dtype(), stored.shape(), stored.strides())
        else {
            return Err(refuse("it has no shape yet"));
        };
        if stored.layout() != Layout::Strided {
            return Err(refuse(&format!("its layout is {}", stored.layout().name())));
        }
        let scalar_type = dtype::scalar_type(dtype.name())
            .ok_or_else(|| refuse(&format!("libtorch has no dtype `{}`", dtype.name())))?;
        let signed = |sizes: &[u64]| -> Option<Vec<i64>> {
            sizes.iter().map(|size| i64::try_from(*size).ok()).collect()
        };
        let (Some(shape), Some(strides)) = (signed(shape), signed(strides)) else {
            return Err(refuse("a size above 2^63 - 1"));
        };
        let bytes = self.span(stored, &refuse)?;
        let raw = if fill {
            Tensor::f_from_data_size(bytes, &[signed_len(bytes)], Kind::Uint8)?
        } else {
            Tensor::f_empty([signed_len(bytes)], (Kind::Uint8, tch::Device::Cpu))?
        };
        let number = Value::Int(i64::from(scalar_type));
        let typed = call_op("aten::view", "dtype", &[Value::Tensor(&raw), number])?
            .pop()
            .ok_or_else(|| refuse("libtorch made no view of its bytes"))?;
        Ok(typed.f_as_strided(&shape, &strides, None)?)
    }

    /// The bytes that the tensor reaches.
    fn span(&self, stored: &Stored, refuse: &dyn Fn(&str) -> Failure) -> Result<&[u8], Failure> {
        let storage = stored
            .storage()
            .and_then(|id| self.checkpoint.storage(id))
            .ok_or_else(|| refuse("its data is not in the file"))?;
        if stored.numel() == 0 {
            return Ok(&[]);
        }
        if self.checkpoint.byte_order() == Some(ByteOrder::Big) {
            return Err(refuse("its bytes are in big-endian order"));
        }
        let start = storage
            .data_offset()
            .ok_or_else(|| refuse("its data is compressed, or not in the file"))?;
        let item = stored.dtype().map_or(1, DType::item_bytes);
        let (shape, strides) = (
            stored.shape().unwrap_or_default(),
            stored.strides().unwrap_or_default(),
        );
        let range = || {
            let first = stored
                .storage_offset()
                .checked_mul(item)?
                .checked_add(start)?;
            let last = inspect_checkpoint::tensor::extent(shape, strides, 0)?.checked_mul(item)?;
            let first = usize::try_from(first).ok()?;
            Some(first..first.checked_add(usize::try_from(last).ok()?)?)
        };
        range()
            .and_then(|range| self.source.bytes().get(range))
            .ok_or_else(|| refuse("its data ends before it does"))
    }
}

fn signed_len(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// A key that does not fit, and why.
#[derive(Debug, PartialEq, Eq)]
enum Misfit {
    Missing(String),
    Unexpected(String),
    Shape {
        key: String,
        expected: Vec<u64>,
        found: Option<Vec<u64>>,
    },
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Misfit::Missing(key) => write!(f, "missing: {key}"),
            Misfit::Unexpected(key) => write!(f, "unexpected: {key}"),
            Misfit::Shape {
                key,
                expected,
                found: Some(found),
            } => write!(
                f,
                "another shape: {key}, expected {expected:?}, found {found:?}"
            ),
            Misfit::Shape {
                key,
                expected,
                found: None,
            } => write!(f, "another shape: {key}, expected {expected:?}, found none"),
        }
    }
}

/// Most keys that a failure lists.
const MAX_LISTED: usize = 100;

/// Loads a state_dict into the module, as `load_state_dict(strict=True)` does. Values are copied only with `fill`.
pub(crate) fn load(
    module: &Module,
    tensors: &[NamedTensor],
    path: &Path,
    fill: bool,
) -> Result<(), Failure> {
    let weights = Tensors::open(path, FailureKind::Load)?;
    let wanted: Vec<(&str, Vec<u64>)> = tensors
        .iter()
        .map(|one| (one.name.as_str(), shape_of(&one.tensor)))
        .collect();
    let found = weights.checkpoint().tensors();
    let prefix = prefix(&wanted, found);
    let by_key: HashMap<&str, &Stored> = found
        .iter()
        .filter_map(|one| Some((one.name().strip_prefix(prefix.as_str())?, one)))
        .collect();
    let misfits = misfits(&wanted, found, &by_key, &prefix);
    if !misfits.is_empty() {
        return Err(refusal(path, &misfits));
    }
    if !fill {
        return Ok(());
    }
    for (key, _) in &wanted {
        if let Some(stored) = by_key.get(key) {
            let tensor = weights.make(stored, true, FailureKind::Load)?;
            module.assign(key, &tensor)?;
        }
    }
    Ok(())
}

fn shape_of(tensor: &Tensor) -> Vec<u64> {
    tensor
        .size()
        .iter()
        .map(|size| u64::try_from(*size).unwrap_or(0))
        .collect()
}

/// What stands before the module's keys in the file: nothing, the wrappers that PyTorch's own classes add (`module.`
/// of DataParallel, `_orig_mod.` of compiled modules), or the place of the state_dict in a checkpoint (`model.`). The
/// one under which most keys are found.
fn prefix(wanted: &[(&str, Vec<u64>)], found: &[Stored]) -> String {
    let Some((first, _)) = wanted.first() else {
        return String::new();
    };
    let names: std::collections::HashSet<&str> = found.iter().map(Stored::name).collect();
    let hits = |prefix: &str| {
        wanted
            .iter()
            .filter(|(key, _)| names.contains(format!("{prefix}{key}").as_str()))
            .count()
    };
    let mut best = (hits(""), String::new());
    for one in found.iter().filter(|one| one.role() != Role::Optimizer) {
        let Some(prefix) = one.name().strip_suffix(first) else {
            continue;
        };
        if !prefix.ends_with('.') {
            continue;
        }
        let count = hits(prefix);
        if count > best.0 {
            best = (count, prefix.to_owned());
        }
    }
    best.1
}

fn misfits(
    wanted: &[(&str, Vec<u64>)],
    found: &[Stored],
    by_key: &HashMap<&str, &Stored>,
    prefix: &str,
) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    for (key, expected) in wanted {
        match by_key.get(key) {
            // Added to batch norm after files without it were written; PyTorch fills it in.
            None if key.ends_with("num_batches_tracked") => {}
            None => misfits.push(Misfit::Missing((*key).to_owned())),
            Some(stored) if stored.shape() != Some(expected) => misfits.push(Misfit::Shape {
                key: (*key).to_owned(),
                expected: expected.clone(),
                found: stored.shape().map(<[u64]>::to_vec),
            }),
            Some(_) => {}
        }
    }
    let known: std::collections::HashSet<&str> = wanted.iter().map(|(key, _)| *key).collect();
    for one in found.iter().filter(|one| one.role() != Role::Optimizer) {
        let unexpected = match one.name().strip_prefix(prefix) {
            Some(key) => !known.contains(key),
            None => false, // beside the state_dict, not in it
        };
        if unexpected {
            misfits.push(Misfit::Unexpected(one.name().to_owned()));
        }
    }
    misfits
}

fn refusal(path: &Path, misfits: &[Misfit]) -> Failure {
    let count = |is: fn(&Misfit) -> bool| misfits.iter().filter(|one| is(one)).count();
    let parts = [
        (count(|one| matches!(one, Misfit::Missing(_))), "missing"),
        (
            count(|one| matches!(one, Misfit::Unexpected(_))),
            "unexpected",
        ),
        (
            count(|one| matches!(one, Misfit::Shape { .. })),
            "of another shape",
        ),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let mut detail: Vec<String> = misfits
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    if misfits.len() > MAX_LISTED {
        detail.push(format!("and {} more", misfits.len() - MAX_LISTED));
    }
    Failure::Told(Box::new(Failed {
        kind: FailureKind::Load,
        message: format!(
            "`{}` does not fit the module: keys {}",
            path.display(),
            parts.join(", ")
        ),
        detail,
        signature: None,
    }))
}
