//! The command line: arguments as typed ([`Cli`]), and what they mean ([`Command`]).
//!
//! Two levels: clap fills the raw structs, [`Cli::resolve`] turns them into values that the rest of the program can
//! use without asking again. Nothing here opens a file or prints.

mod calibrate;
mod files;
mod gate;
mod input;
mod raw;
mod resolve;
mod validate;
mod values;

pub use calibrate::Calibrate;
pub use gate::{CheckCommand, CheckFormat, DiffCommand, DiffFormat};
pub use input::{BatchArgument, SpecError, parse_argument, parse_json, parse_spec};
pub use raw::Cli;
pub use resolve::{
    BasisArg, Command, DataUse, EngineLimits, Fit, GpuPlan, Inspect, ProfileArg, Replay,
    ReplayFormat, ReportFormat, RunInputs, RunPlan, Save, Show, SortKey,
};
pub use validate::Validate;
pub use values::{DurationArg, ParseDurationError};

/// What `--version` says: this program, what it is built from, and what its engine is made for.
pub const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nbuild    ",
    env!("INSPECT_BUILD_ID"),
    "\nprotocol 1",
    "\nlibtorch 2.11.0, which the engine is made for; `inspect doctor` says what is there",
);

#[cfg(test)]
mod tests {
    use super::LONG_VERSION;
    use crate::engine::protocol::PROTOCOL;

    #[test]
    fn the_version_names_the_protocol() {
        let line = format!("\nprotocol {PROTOCOL}\n");
        assert!(LONG_VERSION.contains(&line), "{LONG_VERSION}");
    }
}
