//! What needs the engine: runs in libtorch, on the CPU and on the simulated CUDA device.

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
