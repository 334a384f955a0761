//! Whether inputs are what an exported program takes.

use super::{Exit, Failure};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::program::{Port, PortKind, Program};
use crate::engine::protocol::{Argument, InputValue};

/// An exported program has checked its sizes when it was exported, and operators in it hold them as numbers: inputs of
/// other sizes would give wrong results, or errors far from their cause. An error names the argument.
pub(super) fn takes(checkpoint: &Checkpoint, arguments: &[Argument]) -> Result<(), Failure> {
    let [program] = checkpoint.programs() else {
        return Ok(());
    };
    let inputs: Vec<&Port> = program
        .inputs
        .iter()
        .filter(|input| !input.name.is_empty())
        .collect();
    for (place, argument) in arguments.iter().enumerate() {
        let input = match &argument.name {
            Some(name) => inputs.iter().find(|input| input.name == *name),
            None => inputs.get(place),
        };
        // What is too much, or has no such name, the engine says with the signature.
        let (Some(input), InputValue::Spec(spec)) = (input, &argument.value) else {
            continue;
        };
        let (PortKind::Tensor { shape, .. }, Some(given)) = (&input.kind, &spec.tensor) else {
            continue;
        };
        if let Some(why) = mismatch(program, shape, &given.dims) {
            let message = format!(
                "argument `{}` is {}, and the program was exported for {}: {why}",
                input.name,
                joined(given.dims.iter().map(u64::to_string)),
                joined(shape.iter().cloned())
            );
            let hint = "`torch.export.export(..., dynamic_shapes=...)` leaves sizes open";
            return Err(Failure::new(Exit::ENGINE, anyhow::Error::msg(message)).hint(hint));
        }
    }
    Ok(())
}

fn joined(sizes: impl Iterator<Item = String>) -> String {
    let sizes: Vec<String> = sizes.collect();
    if sizes.is_empty() {
        "a scalar".to_owned()
    } else {
        sizes.join("x")
    }
}

fn mismatch(program: &Program, shape: &[String], given: &[u64]) -> Option<String> {
    if shape.len() != given.len() {
        return Some(format!(
            "{} dimensions instead of {}",
            given.len(),
            shape.len()
        ));
    }
    shape
        .iter()
        .zip(given)
        .enumerate()
        .find_map(|(dimension, (size, given))| {
            if let Ok(fixed) = size.parse::<u64>() {
                return (fixed != *given)
                    .then(|| format!("dimension {dimension} is fixed at {fixed}"));
            }
            let symbol = program.symbols.iter().find(|symbol| symbol.name == *size)?;
            let given = i64::try_from(*given).unwrap_or(i64::MAX);
            let least = symbol.min.filter(|min| given < *min);
            let most = symbol.max.filter(|max| given > *max);
            // An exporter that was given no bound writes 0 or 2, which says that 1 would have been another program.
            least
                .map(|min| format!("dimension {dimension} is at least {min}"))
                .or_else(|| most.map(|max| format!("dimension {dimension} is at most {max}")))
        })
}
