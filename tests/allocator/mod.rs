//! Random traces, and PyTorch's real allocator to compare with, for the simulator's tests.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    dead_code,
    missing_docs,
    reason = "each test program uses a part of it"
)]

pub(crate) mod cases;
pub(crate) mod real;
pub(crate) mod rows;
pub(crate) mod traces;
