//! `inspect man`: the manual, from the same definition as the help.

use std::path::Path;

use clap::CommandFactory as _;

use super::{Exit, Failure};
use crate::cli::Cli;
use crate::ui::{OutputError, Target};

/// Prints the page of the program, or writes the pages of all commands to a folder.
pub(super) fn man(folder: Option<&Path>) -> Result<Exit, Failure> {
    let program = Cli::command();
    let Some(folder) = folder else {
        Target::Stdout.write(|out| clap_mangen::Man::new(program).render(out))?;
        return Ok(Exit::OK);
    };
    let failed = |source| OutputError::Create {
        path: folder.to_owned(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(program, folder).map_err(failed)?;
    Ok(Exit::OK)
}
