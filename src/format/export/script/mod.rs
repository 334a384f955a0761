//! An exported program as TorchScript.
//!
//! The graph of a `.pt2` is a flat list of operators; each says in which call of which module it was. From that the
//! modules are put together again: a class a module, a method a call, and what flows between them as arguments and
//! results. The result is an archive that libtorch loads like any other, so that everything a run does with TorchScript
//! it does with exported programs. Weights are not copied: the archive is made of pieces of the file and of a head that
//! holds the rest.
//!
//! * [`flow`]: calls of modules, and which values go in and out
//! * [`code`]: a call as TorchScript source
//! * [`operators`]: one operator as an expression
//! * [`tree`]: the modules, their tensors and their pickle
//! * [`archive`]: the zip, in pieces
//!
//! What a run asks of the program is what `ExportedProgram.module()` asks of it: values live until their last use,
//! buffers that the graph changes are written back at its end. Checks of sizes that the exporter put in are left out.

mod archive;
mod code;
mod flow;
mod operators;
mod tree;

pub(super) use operators::quoted;

use super::super::error::FormatError;
use super::super::loading::Loadable;
use super::super::pickle::cut;
use super::super::torch::archive::TorchArchive;
use super::records;
use super::schema::ExportedProgram;
use crate::checkpoint::Checkpoint;
use crate::source::Source;

/// The program of a file as a TorchScript archive whose constants of type `device` are this one.
///
/// # Errors
/// Where the file is no exported program, has several, or uses what TorchScript has no word for.
pub(crate) fn torchscript(
    source: &Source,
    checkpoint: &Checkpoint,
    device: &str,
) -> Result<Loadable, FormatError> {
    let archive = TorchArchive::open(source.bytes())?;
    let models = records::models(&archive);
    let [(_, member)] = models.as_slice() else {
        return Err(unsupported(&format!(
            "an archive of {} programs",
            models.len()
        )));
    };
    let exported: ExportedProgram = records::parse(&archive, member)?;
    let flow = flow::Flow::of(&exported)?;
    let tree = tree::Tree::of(checkpoint, &flow);
    let classes = code::classes(&exported, &flow, &tree, device)?;
    archive::assemble(checkpoint, &tree, &classes, &archive)
}

/// What there is no TorchScript for.
fn unsupported(what: &str) -> FormatError {
    FormatError::NotRunnable { what: cut(what) }
}
