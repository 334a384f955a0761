//! Builds the stand-in libraries of the simulated CUDA device.
//!
//! Reads which NVIDIA libraries and functions the libtorch at hand imports ([`imports`]), compiles what is written by
//! hand in `src/torch/cuda_sim/`, generates the rest ([`source`]), and links one shared library for each. The results
//! and `cuda_sim_libs.rs`, which embeds them, go to `OUT_DIR`; `src/engine/stand_ins.rs` includes that file. No NVIDIA
//! header or library is needed.
//!
//! Where there is nothing to simulate (another system than Linux, a libtorch without CUDA, another CUDA version), the
//! list is empty and `UNAVAILABLE` says why.

pub(crate) mod imports;
pub(crate) mod source;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use imports::{DRIVER_SONAME, ImportError, Imports, stem};

/// The hand-written libraries declare CUDA 13's types: `libcudart.so.13` is the only runtime that they can replace.
const RUNTIME_SONAME: &str = "libcudart.so.13";

/// Why the stand-ins could not be built.
#[derive(Debug)]
pub(crate) enum BuildError {
    /// libtorch's import tables.
    Imports(ImportError),
    /// A file of the build.
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// No C compiler was found.
    Compiler(cc::Error),
    /// The compiler or linker failed.
    Command { command: String, output: String },
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Imports(error) => write!(f, "{error}"),
            Self::Io { path, source } => write!(f, "cannot use `{}`: {source}", path.display()),
            Self::Compiler(error) => {
                write!(f, "no C compiler for the simulated CUDA device: {error}")
            }
            Self::Command { command, output } => write!(f, "`{command}` failed:\n{output}"),
        }
    }
}

impl From<ImportError> for BuildError {
    fn from(error: ImportError) -> Self {
        Self::Imports(error)
    }
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> BuildError + '_ {
    move |source| BuildError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Generates and compiles one stand-in for every NVIDIA library that the libtorch in `lib` imports.
pub(crate) fn build(lib: &Path) {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let source = manifest.join("src/torch/cuda_sim");
    println!("cargo:rerun-if-changed={}", source.display());
    for name in ["libtorch_cuda.so", "libtorch_cpu.so"] {
        println!("cargo:rerun-if-changed={}", lib.join(name).display());
    }
    let linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    let result = if linux {
        build_all(lib, &source, &out)
    } else {
        unavailable(&out, "it needs Linux")
    };
    if let Err(error) = result {
        panic!("the simulated CUDA device cannot be built: {error}");
    }
}

/// Builds everything into `out`.
pub(crate) fn build_all(lib: &Path, source: &Path, out: &Path) -> Result<(), BuildError> {
    let imports = imports::read(lib)?;
    if !imports.keys().any(|soname| stem(soname) == "libcudart") {
        return unavailable(out, "this libtorch was built without CUDA");
    }
    if !imports.contains_key(RUNTIME_SONAME) {
        let found = imports
            .keys()
            .find(|soname| stem(soname) == "libcudart")
            .map_or("", String::as_str);
        return unavailable(
            out,
            &format!("this libtorch needs `{found}`; the simulated device is `{RUNTIME_SONAME}`"),
        );
    }
    let folder = out.join("cuda_sim");
    std::fs::create_dir_all(&folder).map_err(io_error(&folder))?;
    let compiler = Compiler::find(source)?;
    let order = preload_order(&imports);
    for soname in &order {
        build_library(&compiler, soname, &imports, source, &folder)?;
    }
    build_recorder(&compiler, source, &folder)?;
    write_index(out, &folder, &order, &torch_version(lib), None)
}

/// The driver first, since all others are linked to it, then the runtime, then the rest by name.
fn preload_order(imports: &Imports) -> Vec<String> {
    let mut order: Vec<String> = imports.keys().cloned().collect();
    order.sort_by_key(|soname| {
        (
            soname != DRIVER_SONAME,
            soname != RUNTIME_SONAME,
            soname.clone(),
        )
    });
    order
}

/// A libtorch that cannot be simulated: an empty list, and the reason.
fn unavailable(out: &Path, reason: &str) -> Result<(), BuildError> {
    write_index(out, out, &[], "", Some(reason))
}

/// libtorch's own statement of its version, empty where its headers are not beside it.
fn torch_version(lib: &Path) -> String {
    let header = lib.join("../include/torch/headeronly/version.h");
    let text = std::fs::read_to_string(header).unwrap_or_default();
    let part = |name: &str| {
        let value = text.lines().find_map(|line| {
            line.strip_prefix("#define TORCH_VERSION_")?
                .strip_prefix(name)
        })?;
        Some(value.trim().to_owned())
    };
    let parts: Option<Vec<String>> = ["MAJOR ", "MINOR ", "PATCH "]
        .into_iter()
        .map(part)
        .collect();
    parts.map(|parts| parts.join(".")).unwrap_or_default()
}

/// What is preloaded beside the real cuDNN, to see which convolutions it runs.
const RECORDER: &str = "libinspect_cudnn_record.so";

fn build_recorder(compiler: &Compiler, source: &Path, folder: &Path) -> Result<(), BuildError> {
    let mut link = compiler.command();
    link.args([
        "-shared",
        "-Wl,-s",
        "-Wl,--no-undefined",
        "-Wl,--build-id=none",
    ])
    .arg(format!("-Wl,-soname,{RECORDER}"))
    .arg(source.join("cudnn_record/record.c"))
    .arg(source.join("cudnn/descriptor.c"))
    .arg("-o")
    .arg(folder.join(RECORDER));
    run(link.args(["-lpthread", "-ldl"]))
}

/// Writes `cuda_sim_libs.rs`.
fn write_index(
    out: &Path,
    folder: &Path,
    order: &[String],
    version: &str,
    unavailable: Option<&str>,
) -> Result<(), BuildError> {
    let mut text = String::from("// Generated by the build script.\n");
    text.push_str("/// The stand-ins: soname and content, in preload order. Empty where there is nothing to simulate.\n");
    text.push_str("pub(super) static LIBS: &[(&str, &[u8])] = &[\n");
    for soname in order {
        let _ = writeln!(
            text,
            "    ({soname:?}, include_bytes!({:?})),",
            folder.join(soname).to_string_lossy()
        );
    }
    let _ = writeln!(text, "];");
    let recorder = match unavailable {
        None => format!(
            "Some(include_bytes!({:?}))",
            folder.join(RECORDER).to_string_lossy()
        ),
        Some(_) => "None".to_owned(),
    };
    let _ = writeln!(text, "/// The recorder of cuDNN's convolutions.");
    let _ = writeln!(
        text,
        "pub(super) static RECORDER: Option<&[u8]> = {recorder};"
    );
    let _ = writeln!(
        text,
        "/// The version of the libtorch that they were made for."
    );
    let _ = writeln!(text, "pub(super) static TORCH_VERSION: &str = {version:?};");
    let _ = writeln!(text, "/// Why there are none.");
    let _ = writeln!(
        text,
        "pub(super) static UNAVAILABLE: Option<&str> = {unavailable:?};"
    );
    let path = out.join("cuda_sim_libs.rs");
    std::fs::write(&path, text).map_err(io_error(&path))
}

/// The C compiler, and the arguments that every stand-in is built with.
struct Compiler {
    tool: cc::Tool,
    include: PathBuf,
}

impl Compiler {
    fn find(include: &Path) -> Result<Self, BuildError> {
        let tool = cc::Build::new()
            .warnings(false)
            .try_get_compiler()
            .map_err(BuildError::Compiler)?;
        Ok(Self {
            tool,
            include: include.to_owned(),
        })
    }

    fn command(&self) -> Command {
        let mut command = self.tool.to_command();
        command.args([
            "-std=gnu11",
            "-O2",
            "-g0",
            "-fPIC",
            "-fvisibility=hidden",
            "-fno-strict-aliasing",
        ]);
        command
            .args(["-Wall", "-Wextra", "-Werror"])
            .arg("-I")
            .arg(&self.include);
        command
    }

    fn compile(&self, source: &Path, object: &Path) -> Result<(), BuildError> {
        run(self.command().arg("-c").arg(source).arg("-o").arg(object))
    }
}

fn run(command: &mut Command) -> Result<(), BuildError> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|source| BuildError::Io {
        path: command.get_program().into(),
        source,
    })?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(BuildError::Command {
        command: shown,
        output,
    })
}

/// The hand-written sources of a library: the C files of the folder that is named as it is, without `lib` and version.
fn hand_written(source: &Path, soname: &str) -> Result<Vec<PathBuf>, BuildError> {
    let folder = source.join(stem(soname).trim_start_matches("lib"));
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(io_error(&folder))? {
        let path = entry.map_err(io_error(&folder))?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn build_library(
    compiler: &Compiler,
    soname: &str,
    imports: &Imports,
    source: &Path,
    folder: &Path,
) -> Result<(), BuildError> {
    let library = &imports[soname];
    let mut objects = Vec::new();
    let mut written = BTreeSet::new();
    for file in hand_written(source, soname)? {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let object = folder.join(format!("{soname}.{name}.o"));
        compiler.compile(&file, &object)?;
        written.extend(imports::defined(&object)?);
        objects.push(object);
    }
    let generated = folder.join(format!("{soname}.generated.c"));
    std::fs::write(&generated, source::c_source(soname, library, &written))
        .map_err(io_error(&generated))?;
    let object = folder.join(format!("{soname}.generated.o"));
    compiler.compile(&generated, &object)?;
    objects.push(object);
    let script = folder.join(format!("{soname}.map"));
    std::fs::write(&script, source::version_script(library, &written))
        .map_err(io_error(&script))?;
    let mut link = compiler.command();
    link.arg("-shared")
        .arg("-o")
        .arg(folder.join(soname))
        .args(&objects);
    if soname != DRIVER_SONAME {
        link.arg(folder.join(DRIVER_SONAME));
    }
    link.arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script={}", script.display()));
    link.args([
        "-Wl,-s",
        "-Wl,--no-undefined",
        "-Wl,--build-id=none",
        "-Wl,-z,noseparate-code",
        "-Wl,-z,relro",
    ]);
    run(link.args(["-lpthread", "-ldl"]))
}
