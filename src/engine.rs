//! The client side of the engine process.
