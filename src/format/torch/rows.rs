//! What a walk through a pickle collects.

use super::super::error::{FormatError, TensorFault};
use super::super::pickle::cut;
use super::rebuild::View;
use crate::checkpoint::{
    Composite, Finding, Layout, Module, NumpyArray, Role, RoleSource, Severity, Tensor, TensorParts,
};
use crate::limits;
use crate::tensor::Dims;

/// What a tensor at a place is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Anywhere that says nothing about it.
    Plain,
    /// A state_dict: buffers are known by their names.
    StateDict,
    /// Under an optimizer.
    Optimizer,
    /// Registered as a parameter.
    Parameter,
    /// Registered as a buffer.
    Buffer,
    /// The module tree itself, above parameters and buffers.
    Modules,
    /// An attribute of an object: visited once.
    Attribute,
    /// A constant of TorchScript.
    Constant,
}

/// Names of buffers that PyTorch's own modules register.
const BUFFER_NAMES: [&str; 3] = ["running_mean", "running_var", "num_batches_tracked"];

impl Place {
    /// The role of a tensor of this name, and how it is known.
    fn role(self, name: &str) -> (Role, RoleSource) {
        match self {
            Place::Plain => (Role::Tensor, RoleSource::Inferred),
            Place::StateDict => {
                let is_last = |last: &&str| {
                    let before = name.strip_suffix(*last);
                    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
                };
                if BUFFER_NAMES.iter().any(is_last) {
                    (Role::Buffer, RoleSource::Inferred)
                } else {
                    (Role::Parameter, RoleSource::Inferred)
                }
            }
            Place::Optimizer => (Role::Optimizer, RoleSource::Inferred),
            Place::Parameter => (Role::Parameter, RoleSource::File),
            Place::Buffer => (Role::Buffer, RoleSource::File),
            Place::Modules | Place::Attribute => (Role::Tensor, RoleSource::File),
            Place::Constant => (Role::Constant, RoleSource::File),
        }
    }
}

/// Tensors and what belongs to them, in the order found.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) composites: Vec<Composite>,
    pub(crate) numpy_arrays: Vec<NumpyArray>,
    pub(crate) modules: Vec<Module>,
    name_bytes: u64,
    name_limit: u64,
    row_limit: u64,
}

impl Rows {
    /// Room in proportion to the pickles that the names come from.
    pub(crate) fn new(pickle_bytes: u64) -> Rows {
        Rows {
            tensors: Vec::new(),
            composites: Vec::new(),
            numpy_arrays: Vec::new(),
            modules: Vec::new(),
            name_bytes: 0,
            name_limit: limits::NAME_BYTES
                .saturating_add(pickle_bytes.saturating_mul(limits::NAME_BYTES_PER_BYTE)),
            row_limit: limits::ROWS.saturating_add(pickle_bytes / limits::PICKLE_BYTES_PER_ROW),
        }
    }

    /// Makes room for about this many tensors.
    pub(crate) fn reserve(&mut self, tensors: usize) {
        self.tensors.reserve(tensors);
    }

    /// How many things have been found.
    pub(crate) fn len(&self) -> usize {
        self.tensors
            .len()
            .saturating_add(self.composites.len())
            .saturating_add(self.numpy_arrays.len())
            .saturating_add(self.modules.len())
    }

    /// Counts a name towards the bounds.
    pub(crate) fn charge(&mut self, name: &str) -> Result<(), FormatError> {
        self.name_bytes = self.name_bytes.saturating_add(name.len() as u64);
        let rows = self.len() as u64;
        if self.name_bytes > self.name_limit {
            return Err(FormatError::Limit {
                what: "the names of all tensors, in bytes,".to_owned(),
                limit: self.name_limit,
            });
        }
        if rows > self.row_limit {
            return Err(FormatError::Limit {
                what: "the names of tensors".to_owned(),
                limit: self.row_limit,
            });
        }
        Ok(())
    }

    /// Adds a tensor.
    pub(crate) fn add(
        &mut self,
        member: &str,
        name: &str,
        view: View,
        place: Place,
        layout: Layout,
    ) -> Result<(), FormatError> {
        self.charge(name)?;
        let (role, role_source) = place.role(name);
        let (storage_bytes, quantizer) = (view.storage_bytes, view.quantizer);
        let parts = TensorParts {
            name: name.into(),
            role,
            role_source,
            dtype: Some(view.dtype),
            shape: Some(view.shape),
            strides: view.strides,
            storage: view.storage,
            storage_offset: view.offset,
            requires_grad: view.requires_grad,
            layout,
        };
        let tensor =
            Tensor::new(parts, storage_bytes).map_err(|error| tensor_error(member, name, error))?;
        self.tensors.push(tensor.quantized(quantizer));
        Ok(())
    }

    /// Adds a lazy parameter or buffer, which has no shape yet.
    pub(crate) fn add_uninitialized(
        &mut self,
        name: &str,
        place: Place,
        requires_grad: Option<bool>,
    ) -> Result<(), FormatError> {
        self.charge(name)?;
        let (role, role_source) = place.role(name);
        let parts = TensorParts {
            name: name.into(),
            role,
            role_source,
            dtype: None,
            shape: None,
            strides: Dims::new(),
            storage: None,
            storage_offset: 0,
            requires_grad,
            layout: Layout::Uninitialized,
        };
        self.tensors.push(Tensor::new(parts, None)?);
        Ok(())
    }
}

/// Adds a finding; the last one of a kind says that there are more.
pub(crate) fn push_finding(
    findings: &mut Vec<Finding>,
    severity: Severity,
    code: &'static str,
    location: &str,
    message: String,
) {
    let known = findings.iter().filter(|f| f.code == code).count();
    if known > limits::FINDINGS_PER_KIND {
        return;
    }
    let more = known == limits::FINDINGS_PER_KIND;
    findings.push(Finding {
        severity,
        code,
        location: if more {
            String::new()
        } else {
            location.to_owned()
        },
        message: if more {
            "there are more of this kind".to_owned()
        } else {
            message
        },
    });
}

fn tensor_error(member: &str, name: &str, error: crate::checkpoint::ModelError) -> FormatError {
    use crate::checkpoint::ModelError;
    let fault = match error {
        ModelError::OutOfStorage {
            needed_bytes,
            storage_bytes,
            ..
        } => TensorFault::OutOfStorage {
            needed_bytes,
            storage_bytes,
        },
        ModelError::TooLarge { .. } => TensorFault::TooLarge,
        other => return other.into(),
    };
    FormatError::Tensor {
        member: member.to_owned(),
        name: cut(name),
        fault,
    }
}
