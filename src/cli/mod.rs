//! The command line: arguments as typed ([`Cli`]), and what they mean ([`Command`]).
//!
//! Two levels: clap fills the raw structs, [`Cli::resolve`] turns them into values that the rest of the program can
//! use without asking again. Nothing here opens a file or prints.

mod input;
mod raw;
mod resolve;
mod values;

pub use input::{BatchArgument, SpecError, parse_argument, parse_json, parse_spec};
pub use raw::Cli;
pub use resolve::{
    BasisArg, Command, DataUse, EngineLimits, Fit, GpuPlan, Inspect, Replay, ReplayFormat,
    ReportFormat, RunInputs, RunPlan, Save, Show, SortKey,
};
pub use values::{DurationArg, ParseDurationError};
