//! The build script: the engine's C++ shim and the simulated CUDA device's stand-in libraries.
//!
//! Without the feature `torch` it only names the build. With it, libtorch's folder comes from torch-sys
//! (`DEP_TCH_LIBTORCH_LIB`), so shim, stand-ins and `tch` always agree on one libtorch.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a build script talks to cargo on stdout and fails by panic"
)]

mod build_id;
#[cfg(feature = "torch")]
mod cuda_sim;
#[cfg(feature = "torch")]
mod shim;

fn main() {
    println!("cargo:rerun-if-changed=src/torch/build");
    build_id::emit();
    #[cfg(feature = "torch")]
    {
        let lib = std::path::PathBuf::from(
            std::env::var_os("DEP_TCH_LIBTORCH_LIB")
                .expect("torch-sys did not say where libtorch is"),
        );
        shim::build(&lib);
        cuda_sim::build(&lib);
    }
}
