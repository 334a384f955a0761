//! The real allocator: `driver.cpp`, built against libtorch, run as a child on the simulated CUDA runtime.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use super::rows::ROW;
use super::traces::Op;

/// Whether the engine was built, and with it libtorch and the simulated device.
fn engine_built() -> bool {
    cfg!(feature = "torch")
}

/// Where things are: the driver, and what its libraries are called.
pub(crate) struct Driver {
    program: PathBuf,
}

/// The driver, built at the first call; `None` (and a line that says why) where there is no libtorch.
pub(crate) fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| match build() {
            Ok(driver) => Some(driver),
            Err(why) => {
                // With the engine built, everything is there: then a skipped comparison is a failure.
                assert!(!engine_built(), "{why}");
                println!("skipped: {why}");
                None
            }
        })
        .as_ref()
}

fn build() -> Result<Driver, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let torch = std::env::var_os("LIBTORCH").map_or(root.join(".libtorch/torch"), PathBuf::from);
    let libraries = torch.join("lib");
    if !libraries.join("libc10_cuda.so").exists() {
        return Err(format!("no libc10_cuda.so in {}", libraries.display()));
    }
    let stand_in = stand_in()?;
    let source = root.join("tests/allocator");
    let headers = torch.join("../nvidia/cu13/include");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("allocator_driver");
    // Another test program may be running the one from before.
    let new = program.with_extension(std::process::id().to_string());
    let mut compiler = Command::new("c++");
    compiler
        .args(["-O2", "-std=c++17", "-Wall", "-Wextra", "-o"])
        .arg(&new)
        .arg(source.join("driver.cpp"))
        .arg("-I")
        .arg(&source);
    for system in [&torch.join("include"), &headers] {
        compiler.arg("-isystem").arg(system);
    }
    // The stand-in comes first, so that its soname is taken before libc10_cuda.so asks for NVIDIA's.
    compiler.arg("-Wl,--no-as-needed,--allow-shlib-undefined");
    compiler.args(["libcuda.so.1", "libcudart.so.13"].map(|name| stand_in.join(name)));
    for name in ["libc10_cuda.so", "libc10.so"] {
        compiler.arg(libraries.join(name));
    }
    for path in [&stand_in, &libraries] {
        compiler.arg(format!("-Wl,-rpath,{}", path.display()));
    }
    let output = compiler.output().map_err(|e| format!("c++: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::rename(&new, &program).map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(Driver { program })
}

/// The folder of the stand-in libraries: the build script's, or the one that `INSPECT_CUDA_SIM_LIBRARIES` names.
fn stand_in() -> Result<PathBuf, String> {
    let built = Path::new(env!("OUT_DIR")).join("cuda_sim");
    let named = std::env::var_os("INSPECT_CUDA_SIM_LIBRARIES").map(PathBuf::from);
    let folder = named.unwrap_or(built);
    if folder.join("libcudart.so.13").exists() {
        Ok(folder)
    } else {
        Err(format!("no simulated CUDA runtime in {}", folder.display()))
    }
}

impl Driver {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_remove("PYTORCH_ALLOC_CONF");
        command.env_remove("PYTORCH_CUDA_ALLOC_CONF");
        command
    }

    /// Feeds operations to the real allocator; its rows can be read while it runs, then its snapshot.
    pub(crate) fn run<I>(&self, settings: &str, total_bytes: u64, order: &str, ops: I) -> Run
    where
        I: Iterator<Item = Op> + Send + 'static,
    {
        let mut child = self
            .command()
            .env("PYTORCH_ALLOC_CONF", settings)
            .env("INSPECT_CUDA_SIM_TOTAL_BYTES", total_bytes.to_string())
            .env("INSPECT_CUDA_SIM_ADDR", order)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = BufWriter::with_capacity(1 << 16, child.stdin.take().unwrap());
        std::thread::spawn(move || {
            // Fails where the driver has ended: the reader notices.
            let written = ops.map(|op| writeln!(input, "{op}")).find(Result::is_err);
            written
                .unwrap_or(Ok(()))
                .and_then(|()| writeln!(input, "s"))
        });
        let output = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
        Run { child, output }
    }

    /// How long the real allocator takes for allocations and frees alone, on the default stream: count and
    /// nanoseconds.
    pub(crate) fn time(&self, ops: &[Op]) -> (u64, u64) {
        let mut child = self
            .command()
            .arg("--time")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = BufWriter::new(child.stdin.take().unwrap());
        for op in ops {
            writeln!(input, "{op}").unwrap();
        }
        drop(input);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (count, ns) = text.trim().split_once(' ').unwrap();
        (count.parse().unwrap(), ns.parse().unwrap())
    }

    /// What the real library makes of settings texts: `ok ...`, `error ...` or `std ...` for each.
    pub(crate) fn settings(&self, texts: &[String]) -> Vec<String> {
        let mut child = self
            .command()
            .arg("--settings")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let text = texts.join("\n") + "\n";
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        let answers = String::from_utf8(output.stdout).unwrap();
        answers.lines().map(str::to_owned).collect()
    }
}

/// A running driver.
pub(crate) struct Run {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Run {
    /// The answer to the next operation.
    pub(crate) fn row(&mut self) -> [i64; ROW] {
        let mut bytes = [0; ROW * 8];
        self.output
            .read_exact(&mut bytes)
            .expect("the driver ended early");
        let mut row = [0; ROW];
        for (value, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
            *value = i64::from_ne_bytes(*bytes);
        }
        row
    }

    /// Segments and blocks after the last operation, by address.
    pub(crate) fn snapshot(mut self) -> Vec<i64> {
        let mut bytes = Vec::new();
        self.output.read_to_end(&mut bytes).unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut numbers = bytes.as_chunks().0.iter().map(|b| i64::from_ne_bytes(*b));
        let mut take = |count| -> Vec<i64> { numbers.by_ref().take(count).collect() };
        let count = take(1)[0];
        let mut segments: Vec<Vec<i64>> = Vec::new();
        for _ in 0..count {
            let mut segment = take(6);
            for _ in 0..segment[5] {
                let mut block = take(4);
                if block[3] == 0 {
                    // A free block's requested size is what is left of its last owner.
                    block[1] = 0;
                }
                segment.extend(block);
            }
            segments.push(segment);
        }
        segments.sort();
        let mut all = vec![count];
        all.extend(segments.into_iter().flatten());
        all
    }
}
