//! Compiles `src/torch/shim/` and links it, with libtorch, into the engine alone.
//!
//! Nothing here may reach the front: cargo is told link arguments for the binary `inspect-torch` only, and the shim's
//! archive is given as one of them instead of as a library of the package.

use std::path::{Path, PathBuf};

use crate::build_id::Fnv;

/// The sources, joined into two units: libtorch's headers take half a minute however little follows them, and two cores
/// share the work.
const UNITS: [&[&str]; 2] = [
    &["record", "read_back", "cuda", "train", "settings"],
    &["module", "values", "variables", "rnn"],
];

/// Builds the shim against the libtorch whose libraries are in `lib`.
pub(crate) fn build(lib: &Path) {
    let include = lib.join("../include");
    assert!(
        include.join("torch/script.h").is_file(),
        "libtorch's headers are not beside its libraries: expected `{}`",
        include.join("torch/script.h").display()
    );
    println!("cargo:rerun-if-changed=src/torch/shim");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let objects = std::thread::scope(|scope| {
        UNITS
            .map(|sources| scope.spawn(|| object(sources, &include, &out)))
            .map(|unit| unit.join().expect("a unit of the shim compiles"))
    });
    // Objects, not an archive: a linker leaves nothing out of them, and the operators that mark modules register
    // themselves without being called.
    let mut arguments = objects.map(|path| path.display().to_string()).to_vec();
    arguments.extend([
        format!("-L{}", lib.display()),
        // Not libtorch.so: it needs libtorch_cuda.so, which is opened at run time, and only where it is wanted.
        "-Wl,--as-needed".to_owned(),
        "-ltorch_cpu".to_owned(),
        "-lc10".to_owned(),
        "-lstdc++".to_owned(),
        "-ldl".to_owned(),
        format!("-Wl,-rpath,{}", lib.display()),
    ]);
    for argument in arguments {
        println!("cargo:rustc-link-arg-bin=inspect-torch={argument}");
    }
}

/// The object of one unit, compiled unless an earlier build made it of the very same text: this script runs again for
/// much smaller reasons.
fn object(sources: &[&str], include: &Path, out: &Path) -> PathBuf {
    let files = sources.iter().map(|source| format!("{source}.cpp"));
    let mut hash = Fnv::new();
    for file in files
        .clone()
        .chain(["shim.h", "common.h", "../cuda_sim/sim.h"].map(String::from))
    {
        let path = Path::new("src/torch/shim").join(file);
        hash.bytes(&std::fs::read(path).expect("a source file can be read"));
    }
    hash.bytes(include.as_os_str().as_encoded_bytes());
    hash.bytes(&std::fs::read(include.join("torch/headeronly/version.h")).unwrap_or_default());
    hash.bytes(include_bytes!("shim.rs"));
    let folder = out
        .join("shim")
        .join(format!("{}-{:016x}", sources[0], hash.value()));
    let made = folder.join("made");
    if let Ok(object) = std::fs::read_to_string(&made) {
        return PathBuf::from(object);
    }
    std::fs::create_dir_all(&folder).expect("the build's own folder can be written");
    let unit = folder.join("unit.cpp");
    let lines: Vec<String> = files.map(|file| format!("#include \"{file}\"\n")).collect();
    std::fs::write(&unit, lines.concat()).expect("the build's own folder can be written");
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
        // Guessing which class is behind a virtual call pulls in what only libtorch's CUDA libraries define.
        .flag_if_supported("-fno-devirtualize")
        .flag("-isystem")
        .flag(include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .include("src/torch/shim/cuda")
        .include("src/torch/shim")
        .out_dir(&folder)
        .file(&unit);
    let object = build
        .compile_intermediates()
        .pop()
        .expect("one unit makes one object");
    std::fs::write(&made, object.display().to_string())
        .expect("the build's own folder can be written");
    object
}
