//! Compiles `src/torch/shim/` and links it, with libtorch, into the engine alone.
//!
//! Nothing here may reach the front: cargo is told link arguments for the binary `inspect-torch` only, and the shim's
//! archive is given as one of them instead of as a library of the package.

use std::path::Path;

const SOURCES: [&str; 5] = ["module", "values", "record", "settings", "cuda"];

/// Builds the shim against the libtorch whose libraries are in `lib`.
pub(crate) fn build(lib: &Path) {
    let include = lib.join("../include");
    assert!(
        include.join("torch/script.h").is_file(),
        "libtorch's headers are not beside its libraries: expected `{}`",
        include.join("torch/script.h").display()
    );
    println!("cargo:rerun-if-changed=src/torch/shim");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .cargo_metadata(false)
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .opt_level(2)
        .debug(false)
        // Header assertions of debug builds fire inside recording callbacks.
        .define("NDEBUG", None)
        .flag("-isystem")
        .flag(&include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .include("src/torch/shim/cuda");
    for source in SOURCES {
        build.file(format!("src/torch/shim/{source}.cpp"));
    }
    build.compile("inspect_shim");
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let arguments = [
        // Whole: the operators that mark modules register themselves.
        "-Wl,--whole-archive".to_owned(),
        format!("{out}/libinspect_shim.a"),
        "-Wl,--no-whole-archive".to_owned(),
        format!("-L{}", lib.display()),
        // Not libtorch.so: it needs libtorch_cuda.so, which is opened at run time, and only where it is wanted.
        "-Wl,--as-needed".to_owned(),
        "-ltorch_cpu".to_owned(),
        "-lc10".to_owned(),
        "-lstdc++".to_owned(),
        "-ldl".to_owned(),
        format!("-Wl,-rpath,{}", lib.display()),
    ];
    for argument in arguments {
        println!("cargo:rustc-link-arg-bin=inspect-torch={argument}");
    }
}
