//! The inputs that a program was exported with.

use super::super::error::FormatError;
use super::super::torch::archive::TorchArchive;
use super::super::torch::rebuild::Graph;
use super::super::torch::security::{Reach, Watch};
use super::super::torch::value::{Inputs, Value, convert};
use super::records::{self, Nested};
use super::schema::{ExportedProgram, InputSpec};

/// What the program was exported with, as a tuple of the values that it is called with; `None` where the file does not
/// say.
///
/// # Errors
/// Where the file cannot be read.
pub(crate) fn sample_inputs(archive: &TorchArchive<'_>) -> Result<Option<Inputs>, FormatError> {
    let models = records::models(archive);
    let Some((name, program)) = models.first() else {
        return Ok(None);
    };
    let Some(member) = records::sample_inputs(archive, name).filter(|member| member.bytes > 0)
    else {
        return Ok(None);
    };
    let exported: ExportedProgram = records::parse(archive, program)?;
    let inner = records::inner(archive, member)?;
    let pickled = inner.needed("data.pkl")?;
    let mut watch = Watch::default();
    let pickle = inner.pickle(pickled, &mut watch, Reach::Loaded)?;
    let records = Nested::of(&inner, member, member.name);
    let (value, storages) = convert(&Graph::new(&pickle), member.name, &records)?;
    let mut leaves = Vec::new();
    flatten(value, &mut leaves);
    let specs = exported.graph_module.signature.input_specs.iter();
    let users = specs.filter_map(|spec| match spec {
        InputSpec::User(argument) => Some(!argument.names().is_empty()),
        InputSpec::Value(_) => Some(false),
        _ => None,
    });
    // Numbers and texts that the program always has are no arguments of it.
    let given = users
        .zip(leaves)
        .filter(|(named, _)| *named)
        .map(|(_, leaf)| leaf);
    Ok(Some(Inputs {
        value: Value::Tuple(given.collect()),
        storages,
        byte_order: Some(inner.byte_order()?),
        security: watch.finish().0,
    }))
}

/// The leaves of lists, tuples and dictionaries, in the order in which PyTorch flattens them.
fn flatten(value: Value, leaves: &mut Vec<Value>) {
    match value {
        Value::List(items) | Value::Tuple(items) => {
            for item in items {
                flatten(item, leaves);
            }
        }
        Value::Dict(pairs) => {
            for (_, item) in pairs {
                flatten(item, leaves);
            }
        }
        leaf => leaves.push(leaf),
    }
}
