//! The terminal: messages, progress, colour. The only place that prints.
//!
//! stdout is the report and nothing else; messages and progress go to stderr. What a stream looks like (colour,
//! width, progress) is decided once, here, per stream. A closed pipe is no error: whoever read has seen enough.

use std::fmt::Display;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text::escape;

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How much is said on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors, warnings, progress.
    #[default]
    Normal,
    /// Also what is done on the way.
    Verbose,
}

/// Width of a report that does not go to a terminal.
const DEFAULT_WIDTH: usize = 120;

/// The narrowest width that is laid out for; a narrower terminal wraps.
const MIN_WIDTH: usize = 60;

/// Work shorter than this draws no progress.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);

/// The user's terminal.
#[derive(Debug, Clone, Copy)]
pub struct Ui {
    color: ColorChoice,
    verbosity: Verbosity,
}

impl Ui {
    /// A terminal with the user's wishes.
    #[must_use]
    pub fn new(color: ColorChoice, verbosity: Verbosity) -> Self {
        Ui { color, verbosity }
    }

    /// Whether a report that goes to stdout is coloured.
    #[must_use]
    pub fn stdout_color(&self) -> bool {
        self.color_on(io::stdout().is_terminal())
    }

    fn color_on(self, terminal: bool) -> bool {
        match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                terminal
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                    && std::env::var_os("TERM").is_none_or(|value| value != "dumb")
            }
        }
    }

    /// Columns of a report on stdout: the terminal's, else `COLUMNS`, else 120.
    #[must_use]
    pub fn stdout_width(&self) -> usize {
        terminal_size::terminal_size_of(io::stdout())
            .map(|(width, _)| usize::from(width.0))
            .or_else(|| std::env::var("COLUMNS").ok()?.trim().parse().ok())
            .unwrap_or(DEFAULT_WIDTH)
            .max(MIN_WIDTH)
    }

    /// `error: ...`, its causes one a line, what another program said about it, and at most one hint.
    pub fn error(&self, message: &str, causes: &[String], quoted: &[String], hint: Option<&str>) {
        let message = escape(message);
        let mut text = format!("{} {message}\n", self.label("error", AnsiColor::Red));
        for cause in causes {
            text.push_str("  caused by: ");
            text.push_str(&escape(cause));
            text.push('\n');
        }
        for (index, line) in quoted.iter().enumerate() {
            text.push_str(if index == 0 { "  caused by: " } else { "    " });
            text.push_str(&escape(line));
            text.push('\n');
        }
        if let Some(hint) = hint {
            text.push('\n');
            text.push_str(&self.label("hint", AnsiColor::Cyan));
            text.push(' ');
            text.push_str(&escape(hint));
            text.push('\n');
        }
        to_stderr(&text);
    }

    /// `warning: ...`, unless quiet.
    pub fn warning(&self, message: &str) {
        if self.verbosity > Verbosity::Quiet {
            to_stderr(&format!(
                "{} {message}\n",
                self.label("warning", AnsiColor::Yellow)
            ));
        }
    }

    /// What was done besides the report, unless quiet.
    pub fn info(&self, message: &str) {
        if self.verbosity > Verbosity::Quiet {
            to_stderr(&format!("{}\n", escape(message)));
        }
    }

    /// What the user can do about the answer, unless quiet.
    pub fn hint(&self, message: &str) {
        if self.verbosity > Verbosity::Quiet {
            to_stderr(&format!(
                "{} {message}\n",
                self.label("hint", AnsiColor::Cyan)
            ));
        }
    }

    /// Lines for the program that runs this one, which reads them from stderr too.
    pub fn commands(&self, lines: &str) {
        let _ = self;
        to_stderr(lines);
    }

    /// What is done on the way, with `-v` only.
    pub fn verbose(&self, message: impl Display) {
        if self.verbosity >= Verbosity::Verbose {
            to_stderr(&format!("{}\n", escape(&message.to_string())));
        }
    }

    fn label(self, text: &str, color: AnsiColor) -> String {
        if self.color_on(io::stderr().is_terminal()) {
            let style = Style::new().bold().fg_color(Some(color.into()));
            format!("{style}{text}:{style:#}")
        } else {
            format!("{text}:")
        }
    }

    /// Progress of one piece of work: on a terminal only, after 300 ms, cleared when dropped.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            bar: None,
            allowed: self.verbosity > Verbosity::Quiet && io::stderr().is_terminal(),
            started: Instant::now(),
        }
    }
}

/// Writes to stderr; when that fails there is nobody left to tell.
fn to_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Receives how far a piece of work is.
pub trait Stages {
    /// `done` of `total` units of `stage` are finished.
    fn stage(&mut self, stage: &str, done: u64, total: Option<u64>);
}

/// A progress line on stderr.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    allowed: bool,
    started: Instant,
}

impl Stages for Progress {
    fn stage(&mut self, stage: &str, done: u64, total: Option<u64>) {
        if !self.allowed || (self.bar.is_none() && self.started.elapsed() < PROGRESS_DELAY) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let template = if total.is_some() {
            "{spinner} {msg} {wide_bar} {pos}/{len}"
        } else {
            "{spinner} {msg} {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_message(escape(stage));
        bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Where a report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, written beside itself and then renamed.
    File(PathBuf),
}

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// A folder where a file should be.
    #[error("`{}` is a folder, expected a file to write to", .0.display())]
    Directory(PathBuf),
    /// What is read would be replaced.
    #[error("`{}` is read here: it is not overwritten", .0.display())]
    Input(PathBuf),
    /// Two reports would go there.
    #[error("`{}` is to be written twice", .0.display())]
    Twice(PathBuf),
    /// There is no folder that it could be in.
    #[error("`{}` cannot be written: there is no folder `{}`", .path.display(), .folder.display())]
    NoFolder {
        /// The file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// The folder does not take new files.
    #[error("`{}` cannot be written", .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Writing stopped half way; a file that was there before is untouched.
    #[error("writing `{}` failed", .path.display())]
    Write {
        /// The file, or `stdout`.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl OutputError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            OutputError::NoFolder { folder, .. } => {
                Some(format!("`mkdir -p {}` makes it", folder.display()))
            }
            OutputError::Input(_) | OutputError::Twice(_) => {
                Some("give the output another name".to_owned())
            }
            _ => None,
        }
    }
}

impl Target {
    /// The file, where both write to the same one; a device takes any number of writers.
    #[must_use]
    pub fn same_file(&self, other: &Target) -> Option<&Path> {
        let (Target::File(one), Target::File(other)) = (self, other) else {
            return None;
        };
        let place = |path: &Path| {
            path.canonicalize()
                .or_else(|_| std::path::absolute(path))
                .ok()
        };
        let special = fs::metadata(one).is_ok_and(|meta| !meta.is_file());
        (!special && place(one) == place(other)).then_some(one)
    }

    /// Checks that the target can be written and is none of the files that are read, before any work is done for it.
    pub fn check<P: AsRef<Path>>(&self, inputs: &[P]) -> Result<(), OutputError> {
        let Target::File(path) = self else {
            return Ok(());
        };
        if let Ok(target) = path.canonicalize() {
            let is_target =
                |input: &P| input.as_ref().canonicalize().ok().as_ref() == Some(&target);
            if inputs.iter().any(is_target) {
                return Err(OutputError::Input(path.clone()));
            }
        }
        temporary(path).map(drop)
    }

    /// Writes a whole report. A closed stdout counts as written.
    pub fn write(
        &self,
        render: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        match self {
            Target::Stdout => {
                let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
                let result = render(&mut out).and_then(|()| out.flush());
                match result {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        // Dropping the writer would try once more.
                        let _ = out.into_parts();
                        Ok(())
                    }
                    other => other.map_err(|source| OutputError::Write {
                        path: "stdout".into(),
                        source,
                    }),
                }
            }
            Target::File(path) => write_file(path, render),
        }
    }
}

/// An empty file beside `path`, gone when dropped.
fn temporary(path: &Path) -> Result<tempfile::NamedTempFile, OutputError> {
    if path.is_dir() {
        return Err(OutputError::Directory(path.to_owned()));
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |source| OutputError::Create {
        path: path.to_owned(),
        source,
    };
    match fs::metadata(folder) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OutputError::NoFolder {
                path: path.to_owned(),
                folder: folder.to_owned(),
            });
        }
        Err(error) => return Err(failed(error)),
    }
    tempfile::Builder::new()
        .prefix(".inspect-")
        .tempfile_in(folder)
        // The error itself names the temporary file, which says nothing to the user and differs every time.
        .map_err(|error| failed(error.kind().into()))
}

fn write_file(
    path: &Path,
    render: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), OutputError> {
    let failed = |source| OutputError::Write {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        // A device or a pipe (`/dev/null`) is written to, not replaced.
        let mut file = fs::File::create(path).map_err(failed)?;
        return render(&mut file).map_err(failed);
    }
    let mut file = temporary(path)?;
    {
        let mut out = BufWriter::with_capacity(1 << 16, file.as_file_mut());
        render(&mut out)
            .and_then(|()| out.flush())
            .map_err(failed)?;
    }
    set_mode(path, file.as_file()).map_err(failed)?;
    file.persist(path)
        .map(drop)
        .map_err(|error| failed(error.error))
}

/// Gives the new file the permissions that an ordinary new file, or the file it replaces, has.
fn set_mode(path: &Path, file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = if let Ok(old) = fs::metadata(path) {
        old.permissions().mode() & 0o777
    } else {
        let mask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(mask);
        0o666 & !mask.bits()
    };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &[&Path] = &[];

    #[test]
    fn what_is_read_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.pt");
        fs::write(&path, b"weights").unwrap();
        let target = Target::File(folder.path().join(".").join("model.pt"));
        let checked = target.check(&[Path::new("other.pt"), &path]);
        assert!(matches!(checked, Err(OutputError::Input(_))));
        target.check(&["other.pt"]).unwrap();
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let target = Target::File(path.clone());
        target.check(NONE).unwrap();
        assert!(!path.exists(), "a check leaves nothing");
        target.write(|out| out.write_all(b"one")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let failed = target.write(|out| {
            out.write_all(b"two")?;
            Err(io::Error::other("disk full"))
        });
        assert!(matches!(failed, Err(OutputError::Write { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_said_first() {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::File(folder.path().to_owned());
        assert!(matches!(target.check(NONE), Err(OutputError::Directory(_))));
        let target = Target::File(folder.path().join("no/such/folder.json"));
        let error = target.check(NONE).unwrap_err();
        assert!(matches!(error, OutputError::NoFolder { .. }));
        assert!(error.hint().unwrap().contains("no/such` makes it"));
        Target::File("/dev/null".into())
            .write(|out| out.write_all(b"x"))
            .unwrap();
    }
}
