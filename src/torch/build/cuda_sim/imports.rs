//! What libtorch imports from NVIDIA's libraries.
//!
//! Owns: reading the dynamic section, the dynamic symbol table and the version requirements of libtorch's own libraries,
//! and deciding which library each imported symbol belongs to. Must not: load anything, or need an NVIDIA library.
//!
//! Most of NVIDIA's libraries version their symbols, and the version says the library. The rest (the driver, cuFile,
//! NCCL, cuSPARSELt) is told apart by the prefix of the names, which NVIDIA keeps distinct.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "compiled into the build script and the library, which use different parts"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::endian::Endianness;
use object::read::elf::{Dyn as _, FileHeader as _, Sym as _};
use object::read::{ReadCache, ReadRef};

/// Why the import tables could not be read.
#[derive(Debug)]
pub enum ImportError {
    /// The folder or a library in it could not be read.
    Io {
        /// What was read.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A library is not a 64-bit ELF file, or its tables are damaged.
    Elf {
        /// The library.
        path: PathBuf,
        /// The reader's error.
        source: object::read::Error,
    },
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read `{}`: {source}", path.display()),
            Self::Elf { path, source } => write!(
                f,
                "cannot read the import tables of `{}`: {source}",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ImportError {}

/// What libtorch imports from one NVIDIA library.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Library {
    /// Imported functions, each with its symbol version (empty where the library has none).
    pub symbols: BTreeMap<String, String>,
}

/// The NVIDIA libraries that libtorch needs, by soname.
pub type Imports = BTreeMap<String, Library>;

/// The driver, which all other stand-ins are linked to.
pub const DRIVER_SONAME: &str = "libcuda.so.1";

/// Libraries that libtorch opens by name: always among the stand-ins, so that a machine's real ones are not found.
const OPENED_BY_NAME: &[&str] = &[DRIVER_SONAME, "libnvidia-ml.so.1"];

/// Prefixes of unversioned symbols, longest first where one contains another, and the library's name without version.
const PREFIXES: &[(&str, &str)] = &[
    ("cusparseLt", "libcusparseLt"),
    ("cuFile", "libcufile"),
    ("nccl", "libnccl"),
    ("nvshmem", "libnvshmem_host"),
    ("curand", "libcurand"),
    ("nvrtc", "libnvrtc"),
    ("cupti", "libcupti"),
    ("cu", "libcuda"),
];

/// `libcudart` for `libcudart.so.13`.
pub fn stem(soname: &str) -> &str {
    soname.split_once(".so").map_or(soname, |(stem, _)| stem)
}

fn is_nvidia(soname: &str) -> bool {
    ["libcu", "libnccl", "libnv"]
        .iter()
        .any(|prefix| soname.starts_with(prefix))
}

fn is_libtorch(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let known = ["libtorch", "libc10", "libcaffe2"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    known && path.extension().is_some_and(|extension| extension == "so")
}

/// The libraries of libtorch in a folder, sorted by name.
pub fn libtorch_libraries(folder: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let io_error = |source| ImportError::Io {
        path: folder.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io_error)? {
        let path = entry.map_err(io_error)?.path();
        if is_libtorch(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Dynamic section and undefined symbols of one shared library.
#[derive(Debug, Default)]
struct Tables {
    needed: Vec<String>,
    /// Name, version, and the library that the version belongs to; the last two empty where there is no version.
    undefined: Vec<(String, String, String)>,
}

/// The NVIDIA libraries that a shared library lists as needed.
pub fn needed(path: &Path) -> Result<Vec<String>, ImportError> {
    let mut needed = with_elf(path, |data| read_needed(data))?;
    needed.retain(|soname| is_nvidia(soname));
    Ok(needed)
}

/// Everything that the libtorch in `folder` imports from NVIDIA's libraries. Empty for a libtorch without CUDA.
pub fn read(folder: &Path) -> Result<Imports, ImportError> {
    let mut tables = Vec::new();
    for path in libtorch_libraries(folder)? {
        tables.push(with_elf(&path, |data| {
            Ok(Tables {
                needed: read_needed(data)?,
                undefined: read_undefined(data)?,
            })
        })?);
    }
    let sonames: BTreeSet<&String> = tables
        .iter()
        .flat_map(|table| &table.needed)
        .filter(|soname| is_nvidia(soname))
        .collect();
    let mut imports: Imports = sonames
        .iter()
        .map(|soname| ((*soname).clone(), Library::default()))
        .collect();
    if imports.is_empty() {
        return Ok(imports);
    }
    for soname in OPENED_BY_NAME {
        imports.entry((*soname).to_owned()).or_default();
    }
    for (name, version, library) in tables.iter().flat_map(|table| &table.undefined) {
        let owner = if version.is_empty() {
            let found = PREFIXES
                .iter()
                .find(|(prefix, _)| starts_name(name, prefix));
            found.and_then(|(_, wanted)| {
                imports
                    .keys()
                    .find(|soname| stem(soname) == *wanted)
                    .cloned()
            })
        } else {
            Some(library.clone())
        };
        if let Some(library) = owner.and_then(|soname| imports.get_mut(&soname)) {
            library.symbols.insert(name.clone(), version.clone());
        }
    }
    Ok(imports)
}

/// Whether `prefix` is a whole word at the start of a name: `cuInit` starts with `cu`, `cubic` and `cu` do not.
fn starts_name(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .and_then(|rest| rest.chars().next())
        .is_some_and(|next| {
            next.is_ascii_uppercase()
                || (prefix.starts_with("nv") && (next == '_' || next.is_ascii_lowercase()))
        })
}

fn with_elf<T>(
    path: &Path,
    read: impl FnOnce(&ReadCache<File>) -> Result<T, object::read::Error>,
) -> Result<T, ImportError> {
    let file = File::open(path).map_err(|source| ImportError::Io {
        path: path.to_owned(),
        source,
    })?;
    read(&ReadCache::new(file)).map_err(|source| ImportError::Elf {
        path: path.to_owned(),
        source,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read_needed<'data, R: ReadRef<'data>>(data: R) -> Result<Vec<String>, object::read::Error> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut needed = Vec::new();
    if let Some((entries, link)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        for entry in entries
            .iter()
            .take_while(|entry| entry.tag(endian) != elf::DT_NULL)
        {
            if entry.tag(endian) == elf::DT_NEEDED {
                needed.push(text(entry.string(endian, strings)?));
            }
        }
    }
    Ok(needed)
}

fn read_undefined<'data, R: ReadRef<'data>>(
    data: R,
) -> Result<Vec<(String, String, String)>, object::read::Error> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, data)?;
    let mut undefined = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if !symbol.is_undefined(endian) || symbol.st_name(endian) == 0 {
            continue;
        }
        let name = text(symbol.name(endian, symbols.strings())?);
        let version = match &versions {
            Some(table) => table.version(table.version_index(endian, index).index())?,
            None => None,
        };
        let (version, library) = version.map_or_else(Default::default, |version| {
            (
                text(version.name()),
                version.file().map(text).unwrap_or_default(),
            )
        });
        undefined.push((name, version, library));
    }
    Ok(undefined)
}

/// The functions that an object file defines for others: global and of default visibility.
pub fn defined(path: &Path) -> Result<BTreeSet<String>, ImportError> {
    with_elf(path, |data| {
        let header = FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        let symbols = header
            .sections(endian, data)?
            .symbols(endian, data, elf::SHT_SYMTAB)?;
        let mut found = BTreeSet::new();
        for (_, symbol) in symbols.enumerate() {
            if symbol.st_type() == elf::STT_FUNC
                && !symbol.is_undefined(endian)
                && symbol.st_bind() == elf::STB_GLOBAL
                && symbol.st_visibility() == elf::STV_DEFAULT
            {
                found.insert(text(symbol.name(endian, symbols.strings())?));
            }
        }
        Ok(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_tell_libraries_apart() {
        assert!(starts_name("cuInit", "cu"));
        assert!(!starts_name("cudaMalloc", "cu"));
        assert!(!starts_name("cu", "cu"));
        assert!(starts_name("nvshmem_free", "nvshmem"));
        assert!(starts_name("nvshmemx_mc_ptr", "nvshmem"));
        assert!(starts_name("ncclGetVersion", "nccl"));
    }

    #[test]
    fn stems_drop_the_version() {
        assert_eq!(stem("libcudart.so.13"), "libcudart");
        assert_eq!(stem("libnvshmem_host.so.3"), "libnvshmem_host");
        assert_eq!(stem("odd"), "odd");
    }

    #[test]
    fn only_libtorch_is_read() {
        assert!(is_libtorch(Path::new("lib/libtorch_cuda.so")));
        assert!(is_libtorch(Path::new("libcaffe2_nvrtc.so")));
        assert!(!is_libtorch(Path::new("libgomp.so.1")));
        assert!(is_nvidia("libnvrtc.so.13"));
        assert!(!is_nvidia("libc.so.6"));
    }

    #[test]
    fn what_is_no_library_is_an_error_that_names_it() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let error = needed(path).unwrap_err().to_string();
        assert!(error.contains("Cargo.toml"), "{error}");
        assert!(needed(Path::new("/nonexistent/lib.so")).is_err());
    }
}
