//! Which bytes of a storage its tensors reach.

use super::{CheckpointParts, ModelError, Tensor};

/// Intervals that one storage's views may be split into before the answer becomes the span from the first to the
/// last byte that a view reaches: a bound on work, not on what is listed.
const MAX_RUNS: u64 = 1 << 16;

/// How a storage is used.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// Bytes that at least one tensor reaches.
    pub(super) bytes: u64,
    /// Tensors that view it.
    pub(super) tensors: u64,
}

/// The usage of every storage, in order.
pub(super) fn of_storages(parts: &CheckpointParts) -> Result<Vec<Usage>, ModelError> {
    let mut usage = vec![Usage::default(); parts.storages.len()];
    // Indices of tensors by storage, in one sorted list instead of a list a storage.
    let mut views: Vec<(usize, &Tensor)> = Vec::with_capacity(parts.tensors.len());
    for tensor in parts.tensors.iter().flat_map(Tensor::stored) {
        let Some(id) = tensor.storage() else { continue };
        let slot = usage
            .get_mut(id.index())
            .ok_or_else(|| ModelError::NoSuchStorage {
                name: tensor.name().to_owned(),
                storage: id.index(),
                storages: parts.storages.len(),
            })?;
        slot.tensors = slot.tensors.saturating_add(1);
        views.push((id.index(), tensor));
    }
    if !views.is_sorted_by_key(|(id, _)| *id) {
        views.sort_by_key(|(id, _)| *id);
    }
    for group in views.chunk_by(|a, b| a.0 == b.0) {
        let Some((id, _)) = group.first() else {
            continue;
        };
        let bytes = parts.storages.get(*id).map_or(0, super::Storage::bytes);
        if let Some(slot) = usage.get_mut(*id) {
            slot.bytes = reached(group, bytes).min(bytes);
        }
    }
    Ok(usage)
}

/// Bytes of a storage that a group of its views reaches.
fn reached(group: &[(usize, &Tensor)], storage_bytes: u64) -> u64 {
    if let [(_, only)] = group {
        // By far the most frequent case: one tensor on a storage of its own.
        if only.bytes() == storage_bytes && only.is_contiguous() {
            return storage_bytes;
        }
    }
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut budget = MAX_RUNS;
    for (_, tensor) in group {
        View::of(tensor).push_runs(&mut runs, &mut budget);
    }
    union(runs)
}

/// Total length of a union of half-open intervals.
fn union(mut runs: Vec<(u64, u64)>) -> u64 {
    runs.sort_unstable();
    let (mut total, mut covered) = (0_u64, 0_u64);
    for (begin, end) in runs {
        let begin = begin.max(covered);
        if end > begin {
            total = total.saturating_add(end - begin);
            covered = end;
        }
    }
    total
}

/// A view as a start and nested repetitions of a contiguous run, all in bytes.
struct View {
    begin: u64,
    run: u64,
    /// (stride, count), smallest stride first.
    repeats: Vec<(u64, u64)>,
}

impl View {
    fn of(tensor: &Tensor) -> View {
        let empty = View {
            begin: 0,
            run: 0,
            repeats: Vec::new(),
        };
        let (Some(dtype), Some(shape), Some(strides)) =
            (tensor.dtype(), tensor.shape(), tensor.strides())
        else {
            return empty;
        };
        if tensor.numel() == 0 {
            return empty;
        }
        if let Some(per_byte) = dtype.values_per_byte() {
            let begin = tensor.storage_offset() / per_byte;
            return View {
                begin,
                run: tensor.bytes(),
                repeats: Vec::new(),
            };
        }
        let item = dtype.item_bytes();
        let mut repeats: Vec<(u64, u64)> = shape
            .iter()
            .zip(strides)
            .filter(|&(&size, &stride)| size > 1 && stride > 0)
            .map(|(&size, &stride)| (stride.saturating_mul(item), size))
            .collect();
        repeats.sort_unstable();
        let mut run = item;
        // Fold dimensions whose step is at most the run so far into it: no gap between their repetitions.
        let folded = repeats
            .iter()
            .take_while(|&&(stride, count)| {
                let whole = stride <= run;
                if whole {
                    run = run.saturating_add(stride.saturating_mul(count.saturating_sub(1)));
                }
                whole
            })
            .count();
        repeats.drain(..folded);
        View {
            begin: tensor.storage_offset().saturating_mul(item),
            run,
            repeats,
        }
    }

    /// Adds this view's runs, or its whole span once the budget is used up.
    fn push_runs(&self, runs: &mut Vec<(u64, u64)>, budget: &mut u64) {
        if self.run == 0 {
            return;
        }
        let count = self
            .repeats
            .iter()
            .fold(1_u64, |product, &(_, count)| product.saturating_mul(count));
        if count > *budget {
            runs.push((self.begin, self.begin.saturating_add(self.span())));
            return;
        }
        *budget -= count;
        let mut starts = vec![self.begin];
        for &(stride, count) in &self.repeats {
            let inner = starts.clone();
            for step in 1..count {
                let shift = stride.saturating_mul(step);
                starts.extend(inner.iter().map(|s| s.saturating_add(shift)));
            }
        }
        runs.extend(starts.into_iter().map(|s| (s, s.saturating_add(self.run))));
    }

    fn span(&self) -> u64 {
        self.repeats
            .iter()
            .fold(self.run, |span, &(stride, count)| {
                span.saturating_add(stride.saturating_mul(count.saturating_sub(1)))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Checkpoint, CheckpointParts, Format, Layout, Role, RoleSource, Storage, StorageData,
        StorageId, StorageParts, Tensor, TensorParts,
    };
    use crate::tensor::{DType, Dims};

    type View<'a> = (&'a [u64], &'a [u64], u64);

    /// A checkpoint of one storage of `bytes` bytes and these float32 views: (shape, strides, offset).
    fn one_storage(bytes: u64, views: &[View<'_>]) -> Checkpoint {
        let mut parts = CheckpointParts::new(Format::TorchZip, bytes + 100);
        parts.storages.push(Storage::new(StorageParts {
            dtype: Some(DType::Float32),
            bytes,
            file_bytes: bytes,
            device: None,
            member: "data/0".into(),
            data: StorageData::Raw { offset: 64 },
            crc32: None,
        }));
        for (i, (shape, strides, offset)) in views.iter().enumerate() {
            let tensor = TensorParts {
                name: format!("t{i}").into(),
                role: Role::Parameter,
                role_source: RoleSource::Inferred,
                dtype: Some(DType::Float32),
                shape: Some(Dims::from_slice(shape)),
                strides: Dims::from_slice(strides),
                storage: Some(StorageId::new(0)),
                storage_offset: *offset,
                requires_grad: None,
                layout: Layout::Strided,
            };
            parts
                .tensors
                .push(Tensor::new(tensor, Some(bytes)).unwrap());
        }
        Checkpoint::new(parts).unwrap()
    }

    #[test]
    fn shared_and_slack_are_exact() {
        // (views, used bytes) on 40 bytes.
        let cases: [(&[View<'_>], u64); 7] = [
            (&[(&[10], &[1], 0)], 40),
            (&[(&[4, 4], &[2, 1], 0)], 40),
            (&[(&[5], &[2], 0)], 20),
            (&[(&[5], &[2], 0), (&[5], &[2], 1)], 40),
            (&[(&[2, 5], &[1, 2], 0)], 40),
            (&[(&[1000, 1000], &[0, 0], 3)], 4),
            (&[(&[0], &[1], 3), (&[2, 2], &[5, 1], 1)], 16),
        ];
        for (views, used) in cases {
            let checkpoint = one_storage(40, views);
            let totals = checkpoint.totals();
            assert_eq!(checkpoint.storages()[0].used_bytes(), used, "{views:?}");
            assert_eq!(totals.slack_bytes, 40 - used);
            assert_eq!(
                totals.tensor_bytes - totals.shared_bytes + totals.slack_bytes,
                totals.storage_bytes
            );
            assert_eq!(totals.by_class.parameters, used);
            assert_eq!(totals.by_class.padding, 100);
        }
    }

    #[test]
    fn a_view_outside_its_storage_cannot_be_made() {
        let tensor = TensorParts {
            name: "w".into(),
            role: Role::Tensor,
            role_source: RoleSource::File,
            dtype: Some(DType::Float32),
            shape: Some(Dims::from_slice(&[4])),
            strides: Dims::from_slice(&[1]),
            storage: Some(StorageId::new(0)),
            storage_offset: 1,
            requires_grad: None,
            layout: Layout::Strided,
        };
        assert!(Tensor::new(tensor, Some(16)).is_err());
    }
}
