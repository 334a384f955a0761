//! The front: `inspect`.

fn main() {}
