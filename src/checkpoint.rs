//! The model of a file: storages, tensors, aliasing, roles, metadata, findings.
