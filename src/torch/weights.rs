//! `--weights`: a state_dict into a module, as `load_state_dict(strict=True)` does.
//!
//! The file is read by the package's own reader, which never imports or calls anything; libtorch's unpickler, which
//! reads neither state_dicts nor training checkpoints, is not used. A file that does not fit is refused as a whole,
//! with every key that is missing, unexpected or of another shape or layout.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use inspect_checkpoint::checkpoint::{Checkpoint, Layout, Role, Tensor as Stored};
use inspect_checkpoint::engine::protocol::{Failed, FailureKind};
use inspect_checkpoint::format::{self, ReadOptions};
use inspect_checkpoint::source::Source;
use tch::Tensor;

use crate::data::{Data, Unusable, View, with_causes};
use crate::failure::Failure;
use crate::ffi::{Module, NamedTensor};

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
    Layout {
        key: String,
        layout: &'static str,
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
            Misfit::Layout { key, layout } => write!(
                f,
                "another layout: {key}, expected strided, found {layout}; libtorch does not copy one into the other"
            ),
        }
    }
}

/// Most keys that a failure lists.
const MAX_LISTED: usize = 100;

/// Loads a state_dict into the module. Values are copied only with `fill`.
pub(crate) fn load(
    module: &Module,
    tensors: &[NamedTensor],
    path: &Path,
    fill: bool,
) -> Result<(), Failure> {
    let unreadable = |error: &dyn std::error::Error| {
        let message = format!(
            "`{}` cannot be read: {}",
            path.display(),
            with_causes(error)
        );
        Failure::new(FailureKind::Load, message)
    };
    let source = Source::open(path).map_err(|error| unreadable(&error))?;
    let checkpoint = format::read_source(&source, &ReadOptions::default())
        .map_err(|error| unreadable(&error))?;
    let wanted: Vec<(&str, Vec<u64>)> = tensors
        .iter()
        .map(|one| (one.name.as_str(), shape_of(&one.tensor)))
        .collect();
    let prefix = prefix(&wanted, checkpoint.tensors());
    let by_key: HashMap<&str, &Stored> = checkpoint
        .tensors()
        .iter()
        .filter_map(|one| Some((one.name().strip_prefix(prefix.as_str())?, one)))
        .collect();
    let misfits = misfits(&wanted, &checkpoint, &by_key, &prefix);
    if !misfits.is_empty() {
        return Err(refusal(path, &misfits));
    }
    if !fill {
        return Ok(());
    }
    let data = Data::new(&source, checkpoint.byte_order());
    for (key, _) in &wanted {
        if let Some(stored) = by_key.get(key) {
            let tensor = make(&data, &checkpoint, stored).map_err(|error| match error {
                Unusable::Stored(why) => Failure::new(
                    FailureKind::Load,
                    format!(
                        "tensor `{}` of `{}` cannot be used: {why}",
                        stored.name(),
                        path.display()
                    ),
                ),
                Unusable::Torch(failure) => failure,
            })?;
            module.assign(key, &tensor)?;
        }
    }
    Ok(())
}

fn make(data: &Data<'_>, checkpoint: &Checkpoint, stored: &Stored) -> Result<Tensor, Unusable> {
    let refuse = |why: &str| Unusable::Stored(why.to_owned());
    let (Some(dtype), Some(shape), Some(strides)) =
        (stored.dtype(), stored.shape(), stored.strides())
    else {
        return Err(refuse("it has no shape yet"));
    };
    let storage = stored
        .storage()
        .and_then(|id| checkpoint.storage(id))
        .ok_or_else(|| refuse("its data is not in the file"))?;
    let view = View {
        dtype,
        shape,
        strides,
        offset: stored.storage_offset(),
        storage,
    };
    data.tensor(view, true)
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
    let names: HashSet<&str> = found.iter().map(Stored::name).collect();
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
    checkpoint: &Checkpoint,
    by_key: &HashMap<&str, &Stored>,
    prefix: &str,
) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    // Tensors that are several in the file, by the name of the whole.
    let whole: HashMap<&str, &'static str> = checkpoint
        .composites()
        .iter()
        .filter_map(|one| Some((one.name.strip_prefix(prefix)?, one.layout.name())))
        .collect();
    for (key, expected) in wanted {
        match by_key.get(key) {
            None if whole.contains_key(key) => misfits.push(Misfit::Layout {
                key: (*key).to_owned(),
                layout: whole.get(key).copied().unwrap_or_default(),
            }),
            // Added to batch norm after files without it were written; PyTorch fills it in.
            None if key.ends_with("num_batches_tracked") => {}
            None => misfits.push(Misfit::Missing((*key).to_owned())),
            Some(stored) if stored.shape() != Some(expected) => misfits.push(Misfit::Shape {
                key: (*key).to_owned(),
                expected: expected.clone(),
                found: stored.shape().map(<[u64]>::to_vec),
            }),
            Some(stored) if !matches!(stored.layout(), Layout::Strided | Layout::Meta) => {
                misfits.push(Misfit::Layout {
                    key: (*key).to_owned(),
                    layout: stored.layout().name(),
                });
            }
            Some(_) => {}
        }
    }
    let known: HashSet<&str> = wanted.iter().map(|(key, _)| *key).collect();
    let is_part = |key: &str| {
        let whole_key = key.rsplit_once('.').map(|(whole, _)| whole);
        whole_key.is_some_and(|key| whole.contains_key(key) && known.contains(key))
    };
    let found = checkpoint.tensors().iter();
    for one in found.filter(|one| one.role() != Role::Optimizer) {
        let unexpected = match one.name().strip_prefix(prefix) {
            Some(key) => !known.contains(key) && !is_part(key),
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
        (
            count(|one| matches!(one, Misfit::Layout { .. })),
            "of another layout",
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
