//! The simulated CUDA device: its stand-in libraries, and how an engine is started on it.
//!
//! Owns: the libraries that the build script embedded, putting them where the dynamic linker finds them, the
//! environment that describes the device, and the check that a libtorch is one that they can serve. Must not: start
//! anything or load libtorch.
//!
//! Each library is written to a memory file (`memfd_create`) and named in `LD_PRELOAD` as `/proc/self/fd/N`. The linker
//! reads a preloaded library's own name (`DT_SONAME`), so when libtorch asks for `libcudart.so.13` the stand-in is
//! already there under that name, and libtorch's own search path, which would find NVIDIA's library first, is not even
//! looked at. Nothing is written to disk, and nothing is left behind after a crash. The memory files must stay open
//! until the engine has started; they are inherited by it on purpose.
//!
//! The variables that describe the device are documented in `src/torch/cuda_sim/README.md`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

// The build script reads the same tables, with more of this file.
#[path = "../torch/build/cuda_sim/imports.rs"]
mod imports;

#[cfg(feature = "torch")]
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/cuda_sim_libs.rs"));
}

#[cfg(not(feature = "torch"))]
mod embedded {
    pub(super) static LIBS: &[(&str, &[u8])] = &[];
    pub(super) static RECORDER: Option<&[u8]> = None;
    pub(super) static TORCH_VERSION: &str = "";
    pub(super) static UNAVAILABLE: Option<&str> =
        Some("this build has no engine (feature `torch`)");
}

/// The recorder's name in messages.
const RECORDER: &str = "libinspect_cudnn_record.so";

/// Why there is no simulated CUDA device.
#[derive(Debug, thiserror::Error)]
pub enum StandInError {
    /// The build has no stand-ins.
    #[error("no simulated CUDA device: {reason}")]
    Unavailable {
        /// Why the build script made none.
        reason: &'static str,
    },
    /// A library could not be put into memory.
    #[error(
        "cannot put the stand-in `{library}` ({size_bytes} bytes) into a memory file: {source}"
    )]
    Memory {
        /// Its soname.
        library: &'static str,
        /// Its size.
        size_bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
    /// libtorch could not be read.
    #[error("cannot tell which CUDA libraries this libtorch needs: {message}")]
    Libtorch {
        /// What failed, with the path.
        message: String,
    },
    /// libtorch needs libraries that the stand-ins do not replace.
    #[error(
        "the libtorch in `{}` needs {}, which the simulated CUDA device does not replace: it was made for torch {made_for}",
        folder.display(), list(missing)
    )]
    OtherLibtorch {
        /// Where that libtorch is.
        folder: PathBuf,
        /// The sonames without a stand-in.
        missing: Vec<String>,
        /// The version that they were made for.
        made_for: &'static str,
    },
    /// libtorch has no CUDA in it.
    #[error("the libtorch in `{}` has no CUDA (no `libtorch_cuda.so`)", folder.display())]
    NoCuda {
        /// Where that libtorch is.
        folder: PathBuf,
    },
}

fn list(names: &[String]) -> String {
    names
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Where new segments of device memory get their addresses: drivers differ, and ties between equal free blocks in
/// PyTorch's allocator are decided by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressOrder {
    /// Each above the last.
    #[default]
    Up,
    /// Each below the last.
    Down,
    /// The lowest that is free.
    Reuse,
}

/// The device that the engine will see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedDevice {
    /// What `torch.cuda.get_device_name` says.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessor_count: u32,
    /// Capacity: an allocation beyond it fails.
    pub total_bytes: u64,
    /// Taken before the first allocation, by the CUDA context.
    pub base_bytes: u64,
    /// L2 cache; `None` takes that of a common card with this compute capability.
    pub l2_bytes: Option<u64>,
    /// Order of addresses.
    pub address_order: AddressOrder,
}

impl SimulatedDevice {
    /// The environment that describes it to the stand-ins.
    #[must_use]
    pub fn env(&self) -> Vec<(String, OsString)> {
        let (major, minor) = self.compute_capability;
        let order = match self.address_order {
            AddressOrder::Up => "up",
            AddressOrder::Down => "down",
            AddressOrder::Reuse => "reuse",
        };
        let mut env = vec![
            ("NAME", self.name.clone()),
            ("CC", format!("{major}.{minor}")),
            ("SMS", self.multiprocessor_count.to_string()),
            ("TOTAL_BYTES", self.total_bytes.to_string()),
            ("BASE_BYTES", self.base_bytes.to_string()),
            ("ADDR", order.to_owned()),
        ];
        if let Some(bytes) = self.l2_bytes {
            env.push(("L2_BYTES", bytes.to_string()));
        }
        env.into_iter()
            .map(|(key, value)| (format!("INSPECT_CUDA_SIM_{key}"), value.into()))
            .collect()
    }
}

/// The stand-ins, ready to be preloaded. Keep it until the engine has started.
#[derive(Debug)]
pub struct StandIns {
    files: Vec<File>,
}

impl StandIns {
    /// Puts the embedded libraries into memory files.
    pub fn open() -> Result<Self, StandInError> {
        match embedded::UNAVAILABLE {
            Some(reason) => Err(StandInError::Unavailable { reason }),
            None => Self::from_libraries(embedded::LIBS),
        }
    }

    /// The recorder of convolutions alone, to be preloaded beside the real cuDNN.
    pub fn recorder() -> Result<Self, StandInError> {
        let content = embedded::RECORDER.ok_or(StandInError::Unavailable {
            reason: embedded::UNAVAILABLE.unwrap_or("this build has no recorder of convolutions"),
        })?;
        Self::from_libraries(&[(RECORDER, content)])
    }

    /// These and those of `others`, which come behind.
    #[must_use]
    pub fn and(mut self, others: StandIns) -> Self {
        self.files.extend(others.files);
        self
    }

    fn from_libraries(libraries: &[(&'static str, &[u8])]) -> Result<Self, StandInError> {
        let files = libraries
            .iter()
            .map(|(library, content)| {
                memory_file(library, content).map_err(|source| StandInError::Memory {
                    library,
                    size_bytes: content.len() as u64,
                    source,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { files })
    }

    /// What `LD_PRELOAD` of the engine must name, in this order.
    #[must_use]
    pub fn preload(&self) -> Vec<PathBuf> {
        #[cfg(unix)]
        {
            use std::os::fd::AsRawFd as _;
            self.files
                .iter()
                .map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
                .collect()
        }
        #[cfg(not(unix))]
        Vec::new()
    }
}

/// A file in memory that a child process inherits: without close-on-exec.
#[cfg(target_os = "linux")]
fn memory_file(name: &str, content: &[u8]) -> std::io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let mut file = File::from(memfd_create(name, MemfdFlags::empty())?);
    file.write_all(content)?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn memory_file(_name: &str, _content: &[u8]) -> std::io::Result<File> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}

/// The embedded stand-ins, soname and content, in preload order. Empty where [`unavailable`] says why.
#[must_use]
pub fn libraries() -> &'static [(&'static str, &'static [u8])] {
    embedded::LIBS
}

/// Whether this build can simulate a device at all; the reason where it cannot.
#[must_use]
pub fn unavailable() -> Option<&'static str> {
    embedded::UNAVAILABLE
}

/// Checks that the libtorch in `folder` (the one with `libtorch_cpu.so`) needs no library without a stand-in.
pub fn check_libtorch(folder: &Path) -> Result<(), StandInError> {
    let libraries = imports::libtorch_libraries(folder).map_err(|error| unreadable(&error))?;
    if !libraries
        .iter()
        .any(|path| path.ends_with("libtorch_cuda.so"))
    {
        return Err(StandInError::NoCuda {
            folder: folder.to_owned(),
        });
    }
    let mut missing = Vec::new();
    for path in libraries {
        for soname in imports::needed(&path).map_err(|error| unreadable(&error))? {
            let known = embedded::LIBS.iter().any(|(library, _)| *library == soname);
            if !known && !missing.contains(&soname) {
                missing.push(soname);
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    missing.sort();
    Err(StandInError::OtherLibtorch {
        folder: folder.to_owned(),
        missing,
        made_for: embedded::TORCH_VERSION,
    })
}

fn unreadable(error: &imports::ImportError) -> StandInError {
    StandInError::Libtorch {
        message: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_describes_the_device() {
        let device = SimulatedDevice {
            name: "A card".into(),
            compute_capability: (12, 0),
            multiprocessor_count: 170,
            total_bytes: 32 << 30,
            base_bytes: 500 << 20,
            l2_bytes: None,
            address_order: AddressOrder::Down,
        };
        let env = device.env();
        let get = |key: &str| {
            let found = env.iter().find(|(name, _)| name == key).expect(key);
            found.1.to_str().unwrap().to_owned()
        };
        assert_eq!(get("INSPECT_CUDA_SIM_CC"), "12.0");
        assert_eq!(get("INSPECT_CUDA_SIM_TOTAL_BYTES"), "34359738368");
        assert_eq!(get("INSPECT_CUDA_SIM_ADDR"), "down");
        assert_eq!(get("INSPECT_CUDA_SIM_NAME"), "A card");
        assert!(
            env.iter()
                .all(|(name, _)| name != "INSPECT_CUDA_SIM_L2_BYTES")
        );
    }

    /// A real library from memory, preloaded into a real child: `cat` then maps the memory file as code.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_memory_file_can_be_preloaded() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps
            .split_whitespace()
            .find(|word| word.contains("/libgcc_s.so"))
            .expect("libgcc_s is loaded");
        let content = std::fs::read(library).unwrap();
        let stand_ins = StandIns::from_libraries(&[("libgcc_s.so.1", &content)]).unwrap();
        let preload = stand_ins.preload();
        assert_eq!(preload.len(), 1);
        let output = std::process::Command::new("cat")
            .arg("/proc/self/maps")
            .env("LD_PRELOAD", &preload[0])
            .output()
            .unwrap();
        let maps = String::from_utf8(output.stdout).unwrap();
        assert!(
            maps.lines()
                .any(|line| line.contains("r-xp") && line.contains("memfd:libgcc_s.so.1")),
            "{maps}"
        );
    }

    #[test]
    fn a_folder_without_libtorch_has_no_cuda() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
        let error = check_libtorch(folder).unwrap_err();
        assert!(matches!(error, StandInError::NoCuda { .. }), "{error}");
        assert!(
            check_libtorch(Path::new("/nonexistent"))
                .unwrap_err()
                .to_string()
                .contains("/nonexistent")
        );
    }
}
