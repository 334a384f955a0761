//! What PyTorch's pickles hold: tensors, storages, modules, and how safe they are.
//!
//! * [`globals`]: what a global means and whether it is expected
//! * [`storage`]: storages, each once
//! * [`rebuild`]: what torch's rebuild functions would make
//! * [`walk`]: naming everything
//! * [`script`]: the code of TorchScript
//! * [`archive`], [`legacy`], [`tar`], [`plain`]: the containers, from today's zip to the oldest
//! * [`embedded`]: storages inside a plain pickle

pub(crate) mod archive;
mod embedded;
pub(crate) mod globals;
pub(crate) mod legacy;
mod nodes;
mod numpy;
pub(crate) mod plain;
pub(crate) mod rebuild;
mod records;
pub(crate) mod rows;
pub(crate) mod script;
pub(crate) mod security;
mod stdlib;
pub(crate) mod storage;
pub(crate) mod tar;
pub(crate) mod value;
pub(crate) mod walk;

use super::error::FormatError;
use super::pickle::{PickleError, cut};
use crate::checkpoint::{CheckpointParts, Finding, Layout, Security, Severity, Verdict};

/// An error in a pickle, with what it names up to there that would be dangerous.
pub(crate) fn pickle_error(member: &str, source: PickleError) -> FormatError {
    let names = source
        .globals
        .iter()
        .filter(|(module, name)| globals::verdict(module, name) == Verdict::Dangerous)
        .map(|(module, name)| format!("`{}.{}`", cut(module), cut(name)))
        .collect();
    FormatError::Pickle {
        member: member.to_owned(),
        names,
        source: Box::new(source),
    }
}

/// Puts what was read together, and adds the findings that follow from it.
pub(crate) fn finish_parts(
    parts: &mut CheckpointParts,
    table: storage::StorageTable,
    rows: rows::Rows,
    security: Security,
    findings: Vec<Finding>,
) {
    parts.findings = findings;
    look_at_storages(&table, &mut parts.findings);
    for tensor in &rows.tensors {
        if tensor.layout() == Layout::Uninitialized {
            rows::push_finding(
                &mut parts.findings,
                Severity::Info,
                "uninitialized",
                tensor.name(),
                "a lazy parameter without a shape yet: 0 bytes".to_owned(),
            );
        }
    }
    parts.security = security;
    parts.tensors = rows.tensors;
    parts.composites = rows.composites;
    parts.numpy_arrays = rows.numpy_arrays;
    parts.modules = rows.modules;
    parts.storages = table.into_storages();
}

/// Adds a finding for every storage that is not what the pickle says of it.
fn look_at_storages(table: &storage::StorageTable, findings: &mut Vec<Finding>) {
    for (id, declared) in &table.larger_records {
        if let Some(storage) = table.storages().get(id.index()) {
            rows::push_finding(
                findings,
                Severity::Warning,
                "larger-record",
                storage.member(),
                format!(
                    "the record has {} bytes, the pickle says {declared}",
                    storage.bytes()
                ),
            );
        }
    }
    for id in &table.several_dtypes {
        if let Some(storage) = table.storages().get(id.index()) {
            rows::push_finding(
                findings,
                Severity::Info,
                "several-dtypes",
                storage.member(),
                "tensors declare this storage with different dtypes".to_owned(),
            );
        }
    }
    let mut skipped = table.storages().iter().filter(|s| s.is_skipped());
    if let Some(first) = skipped.next() {
        rows::push_finding(
            findings,
            Severity::Warning,
            "no-data",
            first.member(),
            format!(
                "no data in file: {} storages were saved without their contents (torch.serialization.skip_data)",
                skipped.count().saturating_add(1)
            ),
        );
    }
}
