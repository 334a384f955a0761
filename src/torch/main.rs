//! The engine: `inspect-torch`.

fn main() {}
