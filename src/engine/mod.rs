//! The client side of the engine process `inspect-torch`.
//!
//! The front starts it only when a tensor must be real, asks it one thing and reads JSON lines until `done` or
//! `failed`. It owns the process from start to end: a hostile file or an abort inside libtorch takes down the engine
//! and never the front, nothing is left running, and every way in which an engine can misbehave is an
//! [`EngineError`]. Nothing here knows what a model is; trace lines pass through as text.

mod client;
mod error;
mod limits;
mod options;
mod process;
pub mod protocol;
pub mod stand_ins;

#[cfg(test)]
mod tests;

pub use client::{Answer, Observer, ask, ask_both};
pub use error::{EngineError, Exit, nvidia_driver};
pub use limits::{DEFAULT_TIMEOUT, default_memory_bytes};
pub use options::{EngineOptions, FRONT_VARIABLE, PROGRAM, PROGRAM_VARIABLE};
