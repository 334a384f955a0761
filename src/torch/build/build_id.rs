//! The build id: which version and wire types a binary was compiled from.

use std::path::PathBuf;

/// Files that define what front and engine say to each other; a change in any of them makes another build id.
const WIRE: [&str; 3] = [
    "src/engine/protocol.rs",
    "src/trace/args.rs",
    "src/trace/mod.rs",
];

/// Tells rustc `INSPECT_BUILD_ID`, the package's version and a hash of the files in [`WIRE`].
pub(crate) fn emit() {
    let root = PathBuf::from(
        std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"),
    );
    let mut hash = Fnv::new();
    for name in WIRE {
        let path = root.join(name);
        println!("cargo:rerun-if-changed={name}");
        let text = std::fs::read_to_string(&path).expect("a source file can be read");
        text.lines()
            .filter(|line| is_wire(line.trim_start()))
            .for_each(|line| hash.bytes(line.as_bytes()));
    }
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo sets CARGO_PKG_VERSION");
    println!("cargo:rustc-env=INSPECT_BUILD_ID={version}-{:016x}", hash.0);
}

/// Comments and the list of modules say nothing to the other side; a change there needs no new engine.
fn is_wire(line: &str) -> bool {
    !["//", "mod ", "pub mod ", "use ", "pub use "]
        .iter()
        .any(|start| line.starts_with(start))
}

/// FNV-1a, 64 bits: no dependency, and nobody attacks a build id.
pub(crate) struct Fnv(u64);

impl Fnv {
    pub(crate) fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// What was added up so far.
    #[cfg(feature = "torch")]
    pub(crate) fn value(&self) -> u64 {
        self.0
    }
}
