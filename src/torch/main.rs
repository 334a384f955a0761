//! The engine `inspect-torch`: loads a TorchScript module, runs it in libtorch and writes the trace.
//!
//! It is a child of the front `inspect`, and speaks the protocol of `inspect_checkpoint::engine::protocol`: one
//! request on stdin, JSON lines on stdout. It decides nothing about reports; it says what happened.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod data;
mod dtype;
mod failure;
mod ffi;
mod inputs;
mod optim;
mod output;
mod probe;
mod process;
mod record;
mod run;
mod sandbox;
mod session;
mod signature;
mod target;
mod train;
mod weights;

fn main() {
    ffi::leave(run::main())
}
