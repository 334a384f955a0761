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
    fixed_place();
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

/// Links the front to run at the place that it is linked for: moving it elsewhere would mean 20,000 addresses to
/// correct, and 100 pages to copy, at every start. Libraries, stack and heap stay where the system puts them.
fn fixed_place() {
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo:rustc-link-arg-bin=inspect=-no-pie");
    }
}
