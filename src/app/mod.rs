//! The stages of a run, and the one map from outcomes to exit codes.
//!
//! [`main`] reads the arguments and hands over to one function a command; each returns an [`Exit`] or a [`Failure`],
//! which is shown here and nowhere else.

mod calibrate;
mod check;
mod diff;
mod doctor;
mod estimates;
mod exit;
mod fit;
mod folder;
mod inspect;
mod interrupt;
mod man;
mod probe;
mod program;
mod replay;
mod run;
mod save;
mod simulated;
mod validate;

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;

pub use exit::{Exit, Failure};

use crate::checkpoint::Checkpoint;
use crate::cli::{Cli, Command, EngineLimits};
use crate::engine::{DEFAULT_TIMEOUT, EngineOptions, PROGRAM_VARIABLE, default_memory_bytes};
use crate::report::Table;
use crate::ui::{OutputError, Target, Ui};
use interrupt::Interrupt;

/// What every command has at hand.
pub(crate) struct Context {
    ui: Ui,
    interrupt: Interrupt,
}

/// An engine without limits: the one beside this program, or the one the environment names.
fn engine_options() -> EngineOptions {
    EngineOptions {
        program: std::env::var_os(PROGRAM_VARIABLE)
            .filter(|path| !path.is_empty())
            .map(Into::into),
        ..EngineOptions::default()
    }
}

/// An engine within what the user allows, else within what this machine has and `untouched_bytes`: memory that is asked
/// for and never written.
fn limited_options(limits: EngineLimits, untouched_bytes: u64) -> EngineOptions {
    let default = || default_memory_bytes().map(|bytes| bytes.saturating_add(untouched_bytes));
    EngineOptions {
        timeout: limits.timeout.or(Some(DEFAULT_TIMEOUT)),
        memory_limit: limits.memory_bytes.or_else(default),
        ..engine_options()
    }
}

/// Does what the arguments say.
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match Cli::read(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers; where they cannot be printed there is nobody to tell.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::INPUT
            } else {
                Exit::OK
            };
        }
    };
    let ui = cli.ui();
    let result = Interrupt::install()
        .map_err(|error| Failure::new(Exit::INPUT, error))
        .and_then(|interrupt| dispatch(cli.resolve(), &Context { ui, interrupt }));
    result.unwrap_or_else(|failure| {
        failure.show(&ui);
        failure.exit
    })
}

fn dispatch(mut command: Command, context: &Context) -> Result<Exit, Failure> {
    let writes = command.writes();
    spare(&writes, &command.reads())?;
    once(&writes)?;
    command.gpu().map_or(Ok(()), calibrate::load)?;
    match command {
        Command::Inspect(inspect) => inspect::inspect(&inspect, context),
        Command::Fit(options) => fit::fit(&options, context),
        Command::Replay(options) => replay::replay(&options),
        Command::Validate(options) => validate::validate(&options, context),
        Command::Diff(options) => diff::diff(&options, context),
        Command::Check(options) => check::check(&options, context),
        Command::Calibrate(options) => calibrate::calibrate(&options, context),
        Command::Doctor { json } => doctor::doctor(json, context),
        Command::Completions(shell) => completions(shell),
        Command::Man(folder) => man::man(folder.as_deref()),
    }
}

/// Checks that files can be written to and are none of those that are read, before any work is done for them.
fn spare<P: AsRef<Path>>(writes: &[Target], reads: &[P]) -> Result<(), OutputError> {
    writes.iter().try_for_each(|target| target.check(reads))
}

/// Refuses two outputs in one file.
fn once(writes: &[Target]) -> Result<(), OutputError> {
    for (index, target) in writes.iter().enumerate() {
        let mut others = writes.iter().skip(index + 1);
        if let Some(path) = others.find_map(|other| target.same_file(other)) {
            return Err(OutputError::Twice(path.to_owned()));
        }
    }
    Ok(())
}

/// The files of a checkpoint that is several, which only reading it tells.
fn parts(checkpoint: &Checkpoint) -> Vec<&Path> {
    let files = checkpoint.files().iter();
    files.map(|file| file.path.as_path()).collect()
}

fn completions(shell: clap_complete::Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "inspect", &mut script);
    Target::Stdout.write(|out| out.write_all(&script))?;
    Ok(Exit::OK)
}

/// A table for where it goes.
fn table_for(target: &Target, ui: Ui) -> Table {
    Table {
        width: ui.stdout_width(),
        color: *target == Target::Stdout && ui.stdout_color(),
    }
}
