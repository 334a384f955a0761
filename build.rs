//! Builds the engine's shim where the feature `torch` is on; the front needs nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
