//! Budgets: absolute limits by file and pattern, several models at once.
//!
//! ```json
//! [
//!   {"files": "models/*.pt", "max": {"file_bytes": "120MB", "parameters": "12M"}, "deny": ["storage-slack"]},
//!   {"files": "models/resnet18.pt", "options": {"input": ["1x3x224x224"]}, "max": {"peak_reserved": "1GiB"}}
//! ]
//! ```
//!
//! Patterns are relative to the folder of the budget file. `*` stays within a folder, `**` does not.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;

use super::findings::{Deny, UnknownCode};
use super::limit::{Bound, Limit, LimitError};
use super::options::RunOptions;

/// Folders that a pattern goes down into, at most.
const MOST_FOLDERS: usize = 64;

/// One entry of a budget file.
#[derive(Debug, Clone)]
pub struct Budget {
    /// What it is called in reports.
    pub name: String,
    /// How its files are run.
    pub options: RunOptions,
    /// Absolute limits.
    pub limits: Vec<Limit>,
    /// What may not be found in them.
    pub deny: Vec<Deny>,
    patterns: Vec<Pattern>,
}

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    matcher: GlobMatcher,
}

/// Why a budget file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BudgetError {
    /// Not JSON, or of other keys.
    #[error("it is no list of budgets")]
    Format(#[source] serde_json::Error),
    /// No entry at all: it would pass whatever happens.
    #[error("it has no budgets")]
    Empty,
    /// An entry that limits nothing.
    #[error("budget `{0}` limits nothing")]
    NoLimit(String),
    /// An entry for no file.
    #[error("budget {0} names no files")]
    NoFiles(usize),
    /// A pattern that cannot be read.
    #[error("budget `{name}` has the pattern `{pattern}`")]
    Pattern {
        /// The entry.
        name: String,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        source: globset::Error,
    },
    /// A pattern of which no file is.
    #[error("budget `{name}`: no file matches `{pattern}` in `{}`", .folder.display())]
    NoMatch {
        /// The entry.
        name: String,
        /// The pattern.
        pattern: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// A limit that cannot be read.
    #[error("budget `{name}`")]
    Limit {
        /// The entry.
        name: String,
        /// What is wrong with it.
        source: LimitError,
    },
    /// A limit relative to a baseline.
    #[error(
        "budget `{name}` has the limit `{metric}={text}`, which is relative: budgets have no baseline"
    )]
    Relative {
        /// The entry.
        name: String,
        /// The number.
        metric: String,
        /// The limit.
        text: String,
    },
    /// A code that no finding has.
    #[error("budget `{name}`")]
    Code {
        /// The entry.
        name: String,
        /// What is wrong with it.
        source: UnknownCode,
    },
    /// A folder that cannot be read.
    #[error("folder `{}` cannot be read", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl BudgetError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            BudgetError::Format(_) | BudgetError::Empty => Some(
                r#"write a list such as [{"files": "models/*.pt", "max": {"file_bytes": "120MB"}}]"#,
            ),
            BudgetError::NoLimit(_) => Some("give it `max` or `deny`"),
            BudgetError::NoMatch { .. } => {
                Some("patterns are relative to the folder of the budget file")
            }
            BudgetError::Relative { .. } => Some("`--baseline` compares with what a file was"),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    files: OneOrMore,
    #[serde(default)]
    options: RunOptions,
    #[serde(default)]
    max: BTreeMap<String, String>,
    #[serde(default)]
    deny: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// Reads a budget file.
pub fn read(text: &[u8]) -> Result<Vec<Budget>, BudgetError> {
    let entries: Vec<Entry> = serde_json::from_slice(text).map_err(BudgetError::Format)?;
    if entries.is_empty() {
        return Err(BudgetError::Empty);
    }
    let numbered = entries.into_iter().enumerate();
    numbered
        .map(|(index, entry)| budget(index + 1, entry))
        .collect()
}

fn budget(number: usize, entry: Entry) -> Result<Budget, BudgetError> {
    let files = match entry.files {
        OneOrMore::One(file) => vec![file],
        OneOrMore::More(files) => files,
    };
    let Some(first) = files.first() else {
        return Err(BudgetError::NoFiles(number));
    };
    let name = entry.name.unwrap_or_else(|| first.clone());
    let pattern = |text: &String| -> Result<Pattern, BudgetError> {
        let glob = GlobBuilder::new(text.trim_start_matches("./"))
            .literal_separator(true)
            .build();
        let glob = glob.map_err(|source| BudgetError::Pattern {
            name: name.clone(),
            pattern: text.clone(),
            source,
        })?;
        Ok(Pattern {
            text: text.clone(),
            matcher: glob.compile_matcher(),
        })
    };
    let limit = |(metric, text): (&String, &String)| -> Result<Limit, BudgetError> {
        let limit = Limit::new(metric, text).map_err(|source| BudgetError::Limit {
            name: name.clone(),
            source,
        })?;
        if matches!(limit.bound, Bound::Absolute(_)) {
            return Ok(limit);
        }
        Err(BudgetError::Relative {
            name: name.clone(),
            metric: metric.clone(),
            text: text.clone(),
        })
    };
    let deny = |code: &String| -> Result<Deny, BudgetError> {
        code.parse().map_err(|source| BudgetError::Code {
            name: name.clone(),
            source,
        })
    };
    let budget = Budget {
        patterns: files.iter().map(pattern).collect::<Result<_, _>>()?,
        limits: entry.max.iter().map(limit).collect::<Result<_, _>>()?,
        deny: entry.deny.iter().map(deny).collect::<Result<_, _>>()?,
        options: entry.options,
        name: name.clone(),
    };
    if budget.limits.is_empty() && budget.deny.is_empty() {
        return Err(BudgetError::NoLimit(name));
    }
    Ok(budget)
}

impl Budget {
    /// Whether a file is one of this budget's; both relative to the folder of the budget file.
    #[must_use]
    pub fn has(&self, file: &Path) -> bool {
        self.patterns
            .iter()
            .any(|pattern| pattern.matcher.is_match(file))
    }

    /// Its files below a folder, sorted, relative to it; an error where a pattern has none.
    pub fn files(&self, folder: &Path) -> Result<Vec<PathBuf>, BudgetError> {
        let mut files = Vec::new();
        for pattern in &self.patterns {
            let mut found = Vec::new();
            let start = literal_start(&pattern.text);
            walk(folder, &start, MOST_FOLDERS, pattern, &mut found)?;
            if found.is_empty() {
                return Err(BudgetError::NoMatch {
                    name: self.name.clone(),
                    pattern: pattern.text.clone(),
                    folder: here(folder),
                });
            }
            files.append(&mut found);
        }
        files.sort();
        files.dedup();
        Ok(files)
    }
}

/// The folders that a pattern names before its first special character.
fn literal_start(pattern: &str) -> PathBuf {
    let special = |part: &Component<'_>| {
        let text = part.as_os_str().to_string_lossy();
        text.contains(['*', '?', '[', '{', '\\'])
    };
    let parts: Vec<Component<'_>> = Path::new(pattern).components().collect();
    let literal = parts.iter().take_while(|part| !special(part)).count();
    // The last part is a file's name.
    let folders = literal.min(parts.len().saturating_sub(1));
    parts
        .into_iter()
        .take(folders)
        .filter(|part| !matches!(part, Component::CurDir))
        .collect()
}

/// A folder as a path that can be opened: an empty one is where the program runs.
fn here(folder: &Path) -> PathBuf {
    if folder.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        folder.to_owned()
    }
}

/// Files at and below `path` that match; links to folders are not followed.
fn walk(
    root: &Path,
    path: &Path,
    depth: usize,
    pattern: &Pattern,
    found: &mut Vec<PathBuf>,
) -> Result<(), BudgetError> {
    let folder = here(&root.join(path));
    let failed = |source| BudgetError::Folder {
        path: folder.clone(),
        source,
    };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = path.join(entry.file_name());
        if entry.file_type().map_err(failed)?.is_dir() {
            if depth > 0 {
                walk(root, &path, depth - 1, pattern, found)?;
            }
        } else if pattern.matcher.is_match(&path) {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_find_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.pt", "a.pt", "x/c.pt", "x/y/d.pt", "a.txt"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"").unwrap();
        }
        let files = |pattern: &str| {
            let text = format!(r#"[{{"files": "{pattern}", "max": {{"file_bytes": "1MB"}}}}]"#);
            let files = read(text.as_bytes()).unwrap()[0].files(folder.path());
            files.map(|list| {
                list.iter()
                    .map(|one| one.display().to_string())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(files("*.pt").unwrap(), ["a.pt", "b.pt"]);
        assert_eq!(files("./a.pt").unwrap(), ["a.pt"]);
        assert_eq!(files("x/*.pt").unwrap(), ["x/c.pt"]);
        assert_eq!(
            files("**/*.pt").unwrap(),
            ["a.pt", "b.pt", "x/c.pt", "x/y/d.pt"]
        );
        assert_eq!(files("{a,b}.{pt,txt}").unwrap(), ["a.pt", "a.txt", "b.pt"]);
        assert!(matches!(files("*.onnx"), Err(BudgetError::NoMatch { .. })));
        assert!(matches!(
            files("no/folder/*.pt"),
            Err(BudgetError::NoMatch { .. })
        ));
    }

    #[test]
    fn what_would_pass_whatever_happens_is_refused() {
        let error = |text: &str| read(text.as_bytes()).unwrap_err();
        assert!(matches!(error("[]"), BudgetError::Empty));
        assert!(matches!(error("{}"), BudgetError::Format(_)));
        assert!(matches!(
            error(r#"[{"files": "a"}]"#),
            BudgetError::NoLimit(_)
        ));
        assert!(matches!(
            error(r#"[{"files": []}]"#),
            BudgetError::NoFiles(1)
        ));
        assert!(matches!(
            error(r#"[{"files": "a[", "max": {"tensors": "1"}}]"#),
            BudgetError::Pattern { .. }
        ));
        assert!(matches!(
            error(r#"[{"files": "a", "max": {"tensors": "+1"}}]"#),
            BudgetError::Relative { .. }
        ));
        assert!(matches!(
            error(r#"[{"files": "a", "max": {"speed": "1"}}]"#),
            BudgetError::Limit { .. }
        ));
        assert!(matches!(
            error(r#"[{"files": "a", "deny": ["slack"]}]"#),
            BudgetError::Code { .. }
        ));
        assert!(matches!(
            error(r#"[{"files": "a", "limit": "1MB"}]"#),
            BudgetError::Format(_)
        ));
    }
}
