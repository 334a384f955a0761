//! Random traces, and PyTorch's real allocator to compare with, for the simulator's tests.

#![allow(
    dead_code,
    missing_docs,
    reason = "each test program uses a part of it"
)]

pub mod cases;
pub mod real;
pub mod rows;
pub mod traces;
