//! What needs the engine: runs in libtorch, on the CPU and on the simulated CUDA device.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panic and says why it skips; clippy excuses functions marked #[test], not their helpers"
)]

#[path = "../archive/mod.rs"]
mod archive;
#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod calibrate;
mod cuda_sim;
mod estimate;
mod exported;
mod first_run;
mod gate;
mod runs;
mod simulated_traces;
mod train;
mod validate;
