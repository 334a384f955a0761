//! The client side of the engine process.

pub mod protocol;
