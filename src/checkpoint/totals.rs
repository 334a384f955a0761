//! The sums of a checkpoint, and the check that they add up.

use compact_str::CompactString;

use super::{CheckpointParts, ModelError, Role, Storage};
use crate::limits;
use crate::tensor::DType;

/// Tensors, elements and logical bytes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// How many tensors.
    pub tensors: u64,
    /// How many elements.
    pub numel: u64,
    /// Logical bytes.
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, numel: u64, bytes: u64) -> Result<(), ModelError> {
        self.tensors = add(self.tensors, 1)?;
        self.numel = add(self.numel, numel)?;
        self.bytes = add(self.bytes, bytes)?;
        Ok(())
    }
}

/// Bytes of the file by what they are; adds up to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByClass {
    /// Storages whose first tensor is a parameter.
    pub parameters: u64,
    /// ... a buffer.
    pub buffers: u64,
    /// ... optimizer state.
    pub optimizer: u64,
    /// ... anything else.
    pub other_tensors: u64,
    /// Storages whose bytes are those of an earlier one; `None` until they were hashed, and then in no other class.
    pub duplicates: Option<u64>,
    /// Data that no tensor reaches.
    pub slack: u64,
    /// TorchScript sources and debug records.
    pub code: u64,
    /// Pickles and other metadata records.
    pub pickle: u64,
    /// Headers, directory, padding.
    pub padding: u64,
}

/// All sums of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// How many tensors (names).
    pub tensors: u64,
    /// Their elements.
    pub numel: u64,
    /// Their logical bytes: shared memory counted as often as it is named.
    pub tensor_bytes: u64,
    /// Every storage once.
    pub storage_bytes: u64,
    /// Counted more than once in `tensor_bytes`.
    pub shared_bytes: u64,
    /// In storages, but reached by no tensor.
    pub slack_bytes: u64,
    /// The file without the storages in it.
    pub overhead_bytes: u64,
    /// By role, in the order of [`Role::ALL`]; only roles that occur.
    pub by_role: Vec<(Role, Sum)>,
    /// By dtype, in order of first appearance; only dtypes that occur.
    pub by_dtype: Vec<(DType, Sum)>,
    /// Bytes of the file by what they are.
    pub by_class: ByClass,
    /// What [`ByClass::optimizer`] consists of, by the last part of the tensors' names (`exp_avg`), in order of first
    /// appearance; more than [`limits::OPTIMIZER_KINDS`] are summed up as `other`.
    pub optimizer_kinds: Vec<(CompactString, u64)>,
}

/// Whether the bytes of storages are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// Nobody has read them.
    Unread,
    /// Their hashes are known.
    Hashed,
}

fn add(a: u64, b: u64) -> Result<u64, ModelError> {
    a.checked_add(b).ok_or(ModelError::Sum)
}

/// Adds to the sum of one of a few kinds.
fn add_to<K: PartialEq>(
    sums: &mut Vec<(K, Sum)>,
    kind: K,
    numel: u64,
    bytes: u64,
) -> Result<(), ModelError> {
    let known = sums.iter_mut().find(|(known, _)| *known == kind);
    if let Some((_, sum)) = known {
        return sum.add(numel, bytes);
    }
    let mut sum = Sum::default();
    sum.add(numel, bytes)?;
    sums.push((kind, sum));
    Ok(())
}

/// Works out all sums. Storages must know their usage already.
pub(super) fn of(parts: &CheckpointParts, contents: Contents) -> Result<Totals, ModelError> {
    let mut totals = Totals::default();
    let mut by_role: Vec<(Role, Sum)> = Vec::new();
    let mut by_dtype: Vec<(DType, Sum)> = Vec::new();
    let mut in_storages = 0_u64;
    // The class of a storage is that of the most important tensor in it: role, and place of the tensor.
    let mut roles: Vec<Option<(Role, u32)>> = vec![None; parts.storages.len()];
    for (index, tensor) in parts.tensors.iter().enumerate() {
        let (numel, bytes) = (tensor.numel(), tensor.bytes());
        totals.tensors = add(totals.tensors, 1)?;
        totals.numel = add(totals.numel, numel)?;
        totals.tensor_bytes = add(totals.tensor_bytes, bytes)?;
        add_to(&mut by_role, tensor.role(), numel, bytes)?;
        if let Some(dtype) = tensor.dtype() {
            add_to(&mut by_dtype, dtype, numel, bytes)?;
        }
        for view in tensor.stored() {
            let Some(role) = view.storage().and_then(|id| roles.get_mut(id.index())) else {
                continue;
            };
            in_storages = add(in_storages, view.bytes())?;
            if role.is_none_or(|(known, _)| tensor.role() < known) {
                *role = Some((tensor.role(), u32::try_from(index).unwrap_or(u32::MAX)));
            }
        }
    }
    by_role.sort_by_key(|(role, _)| *role);
    totals.by_role = by_role;
    totals.by_dtype = by_dtype;
    let mut used = 0_u64;
    for storage in &parts.storages {
        totals.storage_bytes = add(totals.storage_bytes, storage.bytes())?;
        used = add(used, storage.used_bytes())?;
    }
    // Expanded and overlapping views reach a byte more than once too.
    totals.shared_bytes = in_storages.saturating_sub(used);
    totals.slack_bytes = totals.storage_bytes.saturating_sub(used);
    (totals.by_class, totals.optimizer_kinds) = by_class(parts, &roles, contents)?;
    let in_file = parts
        .storages
        .iter()
        .try_fold(0, |sum, s| add(sum, s.file_bytes()))?;
    totals.overhead_bytes = parts
        .file_bytes
        .checked_sub(in_file)
        .ok_or(ModelError::Overlap {
            parts_bytes: in_file,
            file_bytes: parts.file_bytes,
        })?;
    Ok(totals)
}

fn by_class(
    parts: &CheckpointParts,
    roles: &[Option<(Role, u32)>],
    contents: Contents,
) -> Result<(ByClass, Vec<(CompactString, u64)>), ModelError> {
    let mut class = ByClass {
        code: parts.code_bytes,
        pickle: parts.pickle_bytes,
        slack: parts.unreferenced_bytes,
        duplicates: (contents == Contents::Hashed).then_some(0),
        ..ByClass::default()
    };
    let mut kinds = Vec::new();
    for (storage, role) in parts.storages.iter().zip(roles) {
        let used = used_file_bytes(storage);
        let field = match (role, &mut class.duplicates) {
            (Some(_), Some(duplicates)) if storage.duplicate_of().is_some() => duplicates,
            (Some((Role::Parameter, _)), _) => &mut class.parameters,
            (Some((Role::Buffer, _)), _) => &mut class.buffers,
            (Some((Role::Optimizer, tensor)), _) => {
                let tensor = usize::try_from(*tensor).unwrap_or(usize::MAX);
                let name = parts.tensors.get(tensor).map_or("", super::Tensor::name);
                add_kind(&mut kinds, optimizer_kind(name), used)?;
                &mut class.optimizer
            }
            (Some((Role::Constant | Role::Tensor, _)), _) => &mut class.other_tensors,
            (None, _) => &mut class.slack,
        };
        *field = add(*field, used)?;
        class.slack = add(class.slack, storage.file_bytes().saturating_sub(used))?;
    }
    let known = [
        class.parameters,
        class.buffers,
        class.optimizer,
        class.other_tensors,
        class.duplicates.unwrap_or(0),
        class.slack,
        class.code,
        class.pickle,
    ]
    .into_iter()
    .try_fold(0, add)?;
    class.padding = parts
        .file_bytes
        .checked_sub(known)
        .ok_or(ModelError::Overlap {
            parts_bytes: known,
            file_bytes: parts.file_bytes,
        })?;
    Ok((class, kinds))
}

/// What an optimizer keeps a tensor as: the last part of its name that is no number.
fn optimizer_kind(name: &str) -> &str {
    let is_word = |part: &&str| !part.is_empty() && !part.bytes().all(|b| b.is_ascii_digit());
    name.rsplit('.').find(is_word).unwrap_or(OTHER_KIND)
}

/// Optimizer state without a name of its own.
const OTHER_KIND: &str = "other";

fn add_kind(
    kinds: &mut Vec<(CompactString, u64)>,
    kind: &str,
    bytes: u64,
) -> Result<(), ModelError> {
    let known = kinds.iter().any(|(name, _)| name == kind);
    let kind = if known || kinds.len() < limits::OPTIMIZER_KINDS {
        kind
    } else {
        OTHER_KIND
    };
    match kinds.iter_mut().find(|(name, _)| name == kind) {
        Some((_, sum)) => *sum = add(*sum, bytes)?,
        None => kinds.push((kind.into(), bytes)),
    }
    Ok(())
}

/// The share of a storage's bytes in the file that tensors reach; in proportion when it is compressed.
fn used_file_bytes(storage: &Storage) -> u64 {
    if storage.bytes() == 0 {
        return 0;
    }
    if storage.file_bytes() == storage.bytes() {
        return storage.used_bytes();
    }
    let share = u128::from(storage.file_bytes()).saturating_mul(u128::from(storage.used_bytes()))
        / u128::from(storage.bytes());
    u64::try_from(share)
        .unwrap_or(u64::MAX)
        .min(storage.file_bytes())
}
