//! What is in a PyTorch checkpoint, what it does with an input, and how much GPU memory it needs.
//!
//! This library never links libtorch. It reads checkpoints ([`source`], [`mod@format`], [`checkpoint`]), reads the
//! traces that the engine `inspect-torch` records ([`trace`], [`engine`]), models the CUDA caching allocator
//! ([`simulate`]), estimates GPU memory ([`estimate`]) and renders reports ([`report`]).
//!
//! Data flows one way; `x -> y` means x may import y:
//!
//! ```text
//! tensor, ui  -> units, text                  simulate -> trace, units
//! source      -> units                        estimate -> simulate, trace, checkpoint, units
//! checkpoint  -> tensor, units                report   -> estimate, simulate, checkpoint, diff, check, validate, units,
//!                                                         text
//! format      -> source, checkpoint, tensor,  engine   -> trace
//!                simulate, trace (recordings)
//! trace       -> tensor, units                cli      -> units, tensor, ui, and the words that arguments name:
//!                                                         engine::protocol, estimate (profiles), simulate (conf),
//!                                                         check (limits, options)
//! diff        -> numbers, format, source,      check    -> diff, units
//!                checkpoint, tensor            validate -> estimate, simulate, trace, check (tolerance)
//! statistics  -> numbers, format, source,      numbers  -> format, source, checkpoint,
//!                checkpoint, tensor                        tensor
//! app         -> everything
//! ```

pub mod app;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod diff;
pub mod engine;
pub mod estimate;
pub mod format;
pub mod limits;
pub mod memory;
mod numbers;
pub mod report;
pub mod simulate;
pub mod source;
pub mod statistics;
pub mod tensor;
pub mod text;
pub mod trace;
pub mod ui;
pub mod units;
pub mod validate;
