//! What holds without libtorch: the reader, the memory model, reports and the command line, with an engine that only
//! repeats what was recorded where one is needed. One program, since each links the whole library.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

#[path = "../allocator/mod.rs"]
mod allocator;
#[path = "../archive/mod.rs"]
mod archive;
#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod cases;
mod cli;
mod distributed;
mod estimate_static;
mod exported;
mod fixtures_manifest;
mod fixtures_truth;
mod formats_corpus;
mod gate;
mod gate_formats;
mod gate_mistakes;
mod hostile;
mod json;
mod large_files;
mod package;
mod readme;
mod replay;
mod replay_snapshot;
mod replay_text;
mod replay_variants;
mod run;
mod several;
mod simulate_properties;
mod simulate_real;
mod simulate_speed;
mod statistics;
mod validate;
