//! Baselines: what a file and its run were when somebody last agreed with it.
//!
//! JSON that is read in reviews: sorted, one value a line, no machine's paths, no times, and nothing that changes with the
//! version of this program. Keys are only added within a schema version; a test reads the first one for ever.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::options::RunOptions;
use crate::diff::{Facts, TensorFacts, metrics};

/// Version of the baseline's schema.
pub const BASELINE_VERSION: u32 = 1;

/// What a baseline says it is.
const KIND: &str = "inspect-baseline";

/// Tensors and modules that a baseline lists one by one; of more, those of one prefix are summed up.
const MOST_LISTED: usize = 2000;

/// Parts of a name that are told apart, at most.
const MOST_PARTS: usize = 64;

/// A baseline. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// [`BASELINE_VERSION`].
    pub schema_version: u32,
    /// What this is: `inspect-baseline`.
    pub kind: String,
    /// The file's name, without its folder.
    pub file: String,
    /// How it was run.
    pub options: RunOptions,
    /// The libtorch that ran it; none without a run.
    pub libtorch_version: Option<String>,
    /// What the estimate was made from; none without one.
    pub basis: Option<String>,
    /// The card that the estimate is for.
    pub profile: Option<String>,
    /// All numbers; `None` where one was not known.
    pub metrics: BTreeMap<String, Option<u64>>,
    /// Memory at the allocated peak by what it is for.
    pub at_peak: BTreeMap<String, u64>,
    /// Findings that are known and agreed with.
    pub findings: Vec<KnownFinding>,
    /// Parts of a name after which tensors are summed up; none where each is listed.
    pub depth: Option<usize>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, KnownTensor>,
    /// What modules did in the run, by path.
    pub modules: BTreeMap<String, KnownModule>,
}

/// A finding, without the numbers in its words.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KnownFinding {
    /// Its code.
    pub code: String,
    /// What it is about.
    pub about: String,
}

/// A tensor, or the sum of those below a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownTensor {
    /// What it is to the model; with several tensors that of the first.
    pub role: String,
    /// PyTorch's name without `torch.`; unknown, or several.
    pub dtype: Option<String>,
    /// Sizes; unknown, or several tensors.
    pub shape: Option<Vec<u64>>,
    /// Elements, where no shape says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numel: Option<u64>,
    /// Logical bytes.
    pub bytes: Option<u64>,
}

/// What a module did in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownModule {
    /// Floating-point operations forward, with children.
    pub flops: Option<u64>,
    /// Bytes that it returned, where no module is below it, or that operators in it did.
    pub activation_bytes: u64,
}

/// Why a baseline cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// Not JSON, or not a baseline.
    #[error("it is no baseline of `inspect check`")]
    Format(#[source] serde_json::Error),
    /// JSON of something else.
    #[error("it is JSON, but no baseline of `inspect check`: {0}")]
    Other(&'static str),
    /// Another schema.
    #[error("the baseline has schema version {found}, expected {BASELINE_VERSION}")]
    Version {
        /// What it says.
        found: u64,
    },
    /// A number that nobody counts, so that nothing would be compared with it.
    #[error("it has the metric `{name}`, which does not exist")]
    Metric {
        /// The key.
        name: String,
        /// The one that is spelled most like it.
        similar: Option<String>,
    },
    /// Other options.
    #[error("the baseline was made with {baseline}, this check asks for {given}")]
    Options {
        /// The baseline's.
        baseline: String,
        /// Those on the command line.
        given: String,
    },
    /// Another libtorch, basis or card.
    #[error("the baseline was made with {what} {baseline}, this run with {current}")]
    Conditions {
        /// What is another.
        what: &'static str,
        /// The baseline's.
        baseline: String,
        /// This run's.
        current: String,
    },
}

impl BaselineError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        let text = match self {
            BaselineError::Metric {
                similar: Some(similar),
                ..
            } => return format!("did you mean `{similar}`? `--update-baseline` writes it anew"),
            BaselineError::Format(_)
            | BaselineError::Other(_)
            | BaselineError::Version { .. }
            | BaselineError::Metric { .. } => "`--update-baseline` writes it anew",
            BaselineError::Options { .. } => {
                "leave the options out to repeat the baseline's run, or add `--update-baseline`"
            }
            BaselineError::Conditions { .. } => {
                "this is no regression of the model: `--update-baseline` makes a baseline of this run"
            }
        };
        text.to_owned()
    }
}

impl Baseline {
    /// Reads a baseline.
    pub fn read(text: &[u8]) -> Result<Baseline, BaselineError> {
        #[derive(Deserialize)]
        struct Head {
            schema_version: Option<u64>,
            kind: Option<String>,
            tool: Option<serde::de::IgnoredAny>,
        }
        let head: Head = serde_json::from_slice(text).map_err(BaselineError::Format)?;
        if head.kind.as_deref() != Some(KIND) {
            return Err(BaselineError::Other(match head.tool {
                Some(_) => "it is a report; two reports are compared with `inspect diff`",
                None => "it has no `\"kind\": \"inspect-baseline\"`",
            }));
        }
        match head.schema_version {
            Some(found) if found != u64::from(BASELINE_VERSION) => {
                return Err(BaselineError::Version { found });
            }
            Some(_) => {}
            None => return Err(BaselineError::Other("it has no `schema_version`")),
        }
        serde_json::from_slice(text).map_err(BaselineError::Format)
    }

    /// The baseline of a file as it is.
    #[must_use]
    pub fn of(facts: &Facts, options: RunOptions, findings: Vec<KnownFinding>) -> Baseline {
        let depth = depth_of(&facts.tensors.iter().map(|tensor| tensor.name.as_str()));
        let metrics = metrics::of(facts, options.measured);
        let estimate = facts.estimate.as_ref();
        let at_peak = estimate.and_then(|estimate| estimate.at_peak.as_ref());
        let path = std::path::Path::new(&facts.file.path);
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        Baseline {
            schema_version: BASELINE_VERSION,
            kind: KIND.to_owned(),
            file: name.unwrap_or_default(),
            libtorch_version: facts.run.as_ref().map(|run| run.libtorch_version.clone()),
            basis: estimate.map(|estimate| estimate.basis.clone()),
            profile: estimate.and_then(|estimate| estimate.profile.clone()),
            metrics: metrics
                .into_iter()
                .map(|one| (one.name, one.value))
                .collect(),
            at_peak: at_peak
                .iter()
                .flat_map(|peak| peak.held())
                .map(|(category, bytes)| (category.to_owned(), bytes))
                .collect(),
            findings,
            depth,
            tensors: tensors(facts, depth),
            modules: modules(facts),
            options,
        }
    }

    /// Whether each of its numbers is one that is counted: somebody may have written it by hand.
    pub fn has_known_metrics(&self) -> Result<(), BaselineError> {
        match self.metrics.keys().find(|name| !metrics::exists(name)) {
            None => Ok(()),
            Some(name) => Err(BaselineError::Metric {
                name: name.clone(),
                similar: metrics::similar(name),
            }),
        }
    }

    /// Whether this baseline was made by a run like that of `facts`.
    pub fn belongs(&self, facts: &Facts) -> Result<(), BaselineError> {
        let run = facts.run.as_ref();
        let estimate = facts.estimate.as_ref();
        let basis = estimate.map(|estimate| estimate.basis.as_str());
        let profile = estimate.and_then(|estimate| estimate.profile.as_deref());
        let libtorch = run.map(|run| run.libtorch_version.as_str());
        let pairs = [
            ("libtorch", self.libtorch_version.as_deref(), libtorch),
            ("an estimate from", self.basis.as_deref(), basis),
            ("an estimate for", self.profile.as_deref(), profile),
        ];
        for (what, baseline, current) in pairs {
            if baseline != current {
                let text =
                    |side: Option<&str>| side.map_or("none".to_owned(), |text| format!("`{text}`"));
                return Err(BaselineError::Conditions {
                    what,
                    baseline: text(baseline),
                    current: text(current),
                });
            }
        }
        Ok(())
    }

    /// Its tensors, as far as they are listed.
    #[must_use]
    pub fn tensor_facts(&self) -> Vec<TensorFacts> {
        of_known(&self.tensors)
    }
}

/// How deep names are listed, where listing each would be too much.
fn depth_of<'a>(names: &(impl Iterator<Item = &'a str> + Clone)) -> Option<usize> {
    if names.clone().take(MOST_LISTED + 1).count() <= MOST_LISTED {
        return None;
    }
    let groups = |depth: usize| {
        let prefixes: std::collections::HashSet<&str> =
            names.clone().map(|name| prefix(name, depth)).collect();
        prefixes.len()
    };
    // Deeper is never fewer.
    let few = (1..=MOST_PARTS).take_while(|depth| groups(*depth) <= MOST_LISTED);
    Some(few.last().unwrap_or(1))
}

/// The first parts of a name.
fn prefix(name: &str, depth: usize) -> &str {
    let end = name.match_indices('.').nth(depth.saturating_sub(1));
    end.map_or(name, |(end, _)| name.get(..end).unwrap_or(name))
}

/// Tensors by name, or by prefix where that is asked for.
#[must_use]
pub(super) fn tensors(facts: &Facts, depth: Option<usize>) -> BTreeMap<String, KnownTensor> {
    let mut list: BTreeMap<String, KnownTensor> = BTreeMap::new();
    for tensor in &facts.tensors {
        let one = KnownTensor {
            role: tensor.role.clone(),
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            numel: None,
            bytes: tensor.bytes,
        };
        let name = depth.map_or(tensor.name.as_str(), |depth| prefix(&tensor.name, depth));
        match list.get_mut(name) {
            Some(sum) => sum.add(&one),
            None => {
                list.insert(name.to_owned(), one);
            }
        }
    }
    list
}

impl KnownTensor {
    fn elements(&self) -> Option<u64> {
        self.numel
            .or_else(|| crate::tensor::numel(self.shape.as_deref()?))
    }

    fn add(&mut self, other: &KnownTensor) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        let numel = sum(self.elements(), other.elements());
        self.shape = None;
        if self.dtype != other.dtype {
            self.dtype = None;
        }
        self.numel = numel;
        self.bytes = sum(self.bytes, other.bytes);
    }
}

/// Tensors by name as facts, to be matched.
#[must_use]
pub(super) fn of_known(tensors: &BTreeMap<String, KnownTensor>) -> Vec<TensorFacts> {
    let tensor = |(name, known): (&String, &KnownTensor)| TensorFacts {
        name: name.clone(),
        role: known.role.clone(),
        dtype: known.dtype.clone(),
        shape: known.shape.clone(),
        strides: None,
        numel: known.elements(),
        bytes: known.bytes,
        storage: None,
        storage_offset: None,
        requires_grad: None,
        layout: String::new(),
    };
    tensors.iter().map(tensor).collect()
}

/// What modules did; the shallow ones where there are too many.
#[must_use]
pub(super) fn modules(facts: &Facts) -> BTreeMap<String, KnownModule> {
    let Some(run) = &facts.run else {
        return BTreeMap::new();
    };
    let activations: BTreeMap<&str, u64> = metrics::activations(run).into_iter().collect();
    let mut all: Vec<(usize, String, KnownModule)> = run
        .modules
        .iter()
        .map(|module| {
            let depth = module.path.split('.').count();
            let known = KnownModule {
                flops: module.flops,
                activation_bytes: activations.get(module.path.as_str()).copied().unwrap_or(0),
            };
            (depth, module.path.clone(), known)
        })
        .collect();
    all.sort_by_key(|(depth, ..)| *depth);
    all.truncate(MOST_LISTED);
    all.into_iter()
        .map(|(_, path, known)| (path, known))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tensors_are_summed_up_by_prefix() {
        let names: Vec<String> = (0..3000)
            .map(|index| format!("model.layers.{}.weight{}", index % 30, index))
            .collect();
        assert_eq!(depth_of(&names.iter().map(String::as_str)), Some(3));
        assert_eq!(depth_of(&names.iter().take(2000).map(String::as_str)), None);
        assert_eq!(prefix("model.layers.3.weight", 3), "model.layers.3");
        assert_eq!(prefix("bias", 3), "bias");
    }

    #[test]
    fn other_json_is_told_apart() {
        let read = |text: &str| Baseline::read(text.as_bytes()).unwrap_err();
        assert!(matches!(read("{"), BaselineError::Format(_)));
        assert!(matches!(read("[]"), BaselineError::Format(_)));
        assert!(matches!(read("{}"), BaselineError::Other(_)));
        let report = r#"{"schema_version":1,"tool":{},"file":{}}"#;
        assert!(read(report).to_string().contains("inspect diff"));
        let newer = r#"{"schema_version":2,"kind":"inspect-baseline"}"#;
        assert!(matches!(read(newer), BaselineError::Version { found: 2 }));
        let cut = r#"{"schema_version":1,"kind":"inspect-baseline"}"#;
        assert!(matches!(read(cut), BaselineError::Format(_)));
    }
}
