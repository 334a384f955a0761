//! Which engine is started, and within which limits.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::error::EngineError;
use super::protocol::Device;

/// Name of the engine's program, beside the front.
pub const PROGRAM: &str = "inspect-torch";

/// Names another engine.
pub const PROGRAM_VARIABLE: &str = "INSPECT_ENGINE";

/// Tells the engine the front's process, so that it does not outlive it.
pub const FRONT_VARIABLE: &str = "INSPECT_FRONT";

/// How an engine is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// Another engine than the one beside this program ([`PROGRAM_VARIABLE`]).
    pub program: Option<PathBuf>,
    /// Libraries the dynamic linker loads first, in this order.
    pub preload: Vec<PathBuf>,
    /// Environment variables added to this program's own.
    pub env: Vec<(String, OsString)>,
    /// Most memory the engine may ask the system for.
    pub memory_limit: Option<u64>,
    /// Longest time from start to last line.
    pub timeout: Option<Duration>,
}

impl EngineOptions {
    /// The engine's path: [`EngineOptions::program`], else the file beside this program.
    pub fn locate(&self) -> Result<PathBuf, EngineError> {
        let path = match &self.program {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .map_err(EngineError::NoOwnPath)?
                .with_file_name(PROGRAM),
        };
        if path.is_file() {
            Ok(path)
        } else {
            Err(EngineError::NotFound { tried: path })
        }
    }

    /// The command that starts it, without its pipes.
    pub(super) fn command(&self, program: &Path) -> Result<Command, EngineError> {
        let mut command = Command::new(program);
        command.env(FRONT_VARIABLE, std::process::id().to_string());
        if std::env::var_os("OMP_WAIT_POLICY").is_none() {
            // Spinning threads make a busy machine several times slower.
            command.env("OMP_WAIT_POLICY", "passive");
        }
        if !self.preload.is_empty() {
            command.env("LD_PRELOAD", self.preload_list()?);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Shows the engine this GPU and no other, counted among those that the environment shows this process.
    pub fn show_gpu(&mut self, device: Device) {
        const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
        if let Device::Cuda(index) = device {
            let shown = std::env::var(VISIBLE).ok();
            let gpu = nth_gpu(index, shown.as_deref());
            self.env.push((VISIBLE.to_owned(), gpu.into()));
        }
    }

    /// `LD_PRELOAD`: ours first, then the user's.
    fn preload_list(&self) -> Result<OsString, EngineError> {
        let mut list = OsString::new();
        for path in &self.preload {
            if path
                .as_os_str()
                .as_encoded_bytes()
                .iter()
                .any(|byte| b" :\t\n".contains(byte))
            {
                return Err(EngineError::PreloadPath { path: path.clone() });
            }
            if !list.is_empty() {
                list.push(":");
            }
            list.push(path);
        }
        if let Some(own) = std::env::var_os("LD_PRELOAD") {
            list.push(":");
            list.push(own);
        }
        Ok(list)
    }
}

/// What names the GPU with this number to CUDA, where `shown` lists those that there are; CUDA's word for none where it is
/// not among them.
fn nth_gpu(index: u32, shown: Option<&str>) -> String {
    match shown {
        None => index.to_string(),
        Some(list) => {
            let mut all = list.split(',').map(str::trim);
            let gpu = all.nth(usize::try_from(index).unwrap_or(usize::MAX));
            gpu.filter(|gpu| !gpu.is_empty()).unwrap_or("-1").to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_counted_among_those_that_are_shown() {
        for (index, shown, gpu) in [
            (0, None, "0"),
            (3, None, "3"),
            (0, Some("2,0"), "2"),
            (1, Some("2, GPU-8932f937"), "GPU-8932f937"),
            (2, Some("2,0"), "-1"),
            (0, Some(""), "-1"),
        ] {
            assert_eq!(nth_gpu(index, shown), gpu, "{index} {shown:?}");
        }
    }

    #[test]
    fn a_path_the_linker_would_split_is_refused() {
        let options = EngineOptions {
            preload: vec!["/a/b.so".into(), "/a folder/c.so".into()],
            ..EngineOptions::default()
        };
        assert!(matches!(
            options.command(Path::new("x")),
            Err(EngineError::PreloadPath { path }) if path == Path::new("/a folder/c.so")
        ));
    }

    #[test]
    fn a_missing_engine_is_named_with_its_path() {
        let options = EngineOptions {
            program: Some("/nowhere/inspect-torch".into()),
            ..EngineOptions::default()
        };
        let error = options.locate().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the engine `inspect-torch` was not found: no file at `/nowhere/inspect-torch`"
        );
        assert!(error.hint().is_some());
    }
}
