//! Findings in a check: which are new, and which may not be.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::baseline::KnownFinding;
use crate::diff::{Facts, FindingFacts, Scan};

/// Every code that a finding can have, with what it means.
pub const CODES: &[(&str, &str)] = &[
    ("bad-crc", "a record whose checksum is wrong"),
    ("chunks-not-compared", "chunks too many to compare"),
    (
        "compiled-model",
        "machine code, whose weights are not listed",
    ),
    (
        "composite-chunk",
        "a chunk that is stored as several tensors",
    ),
    (
        "custom-object",
        "an object of an exported program that is no tensor",
    ),
    ("dangerous", "a file that is dangerous to load"),
    ("dangerous-global", "a global that can run any code"),
    (
        "dangerous-opcode",
        "an instruction that `torch.save` never writes",
    ),
    ("deepspeed", "what DeepSpeed says of the whole"),
    ("does-not-fit", "a run that needs more memory than there is"),
    ("dtype-mix", "parameters of several floating dtypes"),
    ("duplicate-entry", "two entries for one piece"),
    (
        "duplicate-storage",
        "storages of equal bytes (with `--hash`)",
    ),
    ("duplicate-tensor", "a tensor that several files hold"),
    ("ema-copy", "averaged copies of the weights"),
    ("engine-listing-differs", "libtorch lists other tensors"),
    ("estimate-from-cpu", "an estimate from the CPU's run"),
    (
        "extern-modules",
        "modules that a package takes from elsewhere",
    ),
    ("extra-shard", "a shard that the index does not name"),
    (
        "fails-on-cuda",
        "an exported program that runs on the CPU only",
    ),
    ("file-operator", "TorchScript code that touches files"),
    ("float64-parameters", "parameters of double precision"),
    ("foreign-class", "a class of another package"),
    ("hidden-global", "a global in a stream that is not loaded"),
    ("hidden-pickle", "a pickle that is not loaded"),
    (
        "index-mismatch",
        "a tensor that is not where the index says",
    ),
    ("index-total", "an index with another size"),
    ("inf", "infinite numbers (reads all data)"),
    ("larger-record", "a record larger than its storage"),
    (
        "memory-snapshot",
        "a memory snapshot, which is no checkpoint",
    ),
    ("missing-chunk", "elements of a tensor in no chunk"),
    ("missing-shard", "a shard that is not there"),
    ("mocked-modules", "modules that a package only names"),
    ("nan", "numbers that are NaN (reads all data)"),
    ("no-data", "tensors without their contents"),
    ("no-estimate", "no estimate of GPU memory"),
    ("not-latest", "a checkpoint that is not the newest"),
    ("not-run", "a program that could not be run"),
    ("opaque-entry", "bytes that are not looked into"),
    ("overlapping-chunks", "elements of a tensor in two chunks"),
    ("package-code", "Python source in a package"),
    ("setstate-code", "TorchScript code that runs on loading"),
    (
        "several-dtypes",
        "a storage that is declared with several dtypes",
    ),
    ("storage-slack", "stored bytes that no tensor reaches"),
    ("suspicious", "a file that is suspicious"),
    ("trailing-data", "bytes behind the end"),
    ("trailing-pickle-data", "bytes behind the end of a pickle"),
    ("uninitialized", "a lazy parameter without a shape"),
    ("unknown-entry", "an entry for nothing that is named"),
    ("unreferenced-record", "a record that nothing refers to"),
    ("unused-bytes", "bytes of a file that no entry is in"),
    ("zip-flags", "an archive with unusual flags"),
];

/// Severities, least first.
const SEVERITIES: [&str; 3] = ["info", "warning", "error"];

/// What may not be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deny {
    /// A finding with this code.
    Code(&'static str),
    /// A finding at least this serious; a place in the list of severities.
    Severity(usize),
}

/// Why a code could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no finding has the code `{name}`: expected {}", Codes)]
pub struct UnknownCode {
    /// What was typed.
    name: String,
}

struct Codes;

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("info, warning or error for any finding at least that serious, or ")?;
        for (index, (code, _)) in CODES.iter().enumerate() {
            write!(f, "{}{code}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Deny {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Deny, UnknownCode> {
        let plural = text.strip_suffix('s').unwrap_or(text);
        if let Some(severity) = SEVERITIES.iter().position(|name| *name == plural) {
            return Ok(Deny::Severity(severity));
        }
        let code = CODES.iter().find(|(code, _)| *code == text);
        code.map(|(code, _)| Deny::Code(code))
            .ok_or_else(|| UnknownCode {
                name: text.to_owned(),
            })
    }
}

impl Deny {
    fn matches(&self, finding: &FindingFacts) -> bool {
        match self {
            Deny::Code(code) => finding.code == *code,
            Deny::Severity(least) => {
                let severity = SEVERITIES.iter().position(|name| *name == finding.severity);
                severity.is_none_or(|severity| severity >= *least)
            }
        }
    }

    /// Whether all numbers have to be read for it.
    #[must_use]
    pub fn reads_numbers(&self) -> bool {
        matches!(self, Deny::Code("nan" | "inf"))
    }
}

/// A finding of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckedFinding {
    /// The finding.
    #[serde(flatten)]
    pub finding: FindingFacts,
    /// Whether the baseline does not know it; without a baseline all are new.
    pub new: bool,
    /// Whether it fails the check.
    pub denied: bool,
}

/// What a finding is about, without numbers that change from file to file.
#[must_use]
pub(super) fn known(finding: &FindingFacts) -> KnownFinding {
    let (place, offset) = match finding.location.split_once(", byte ") {
        Some((place, _)) => (place, true),
        None => (finding.location.as_str(), false),
    };
    // One place can name several globals: the first that a message quotes tells them apart.
    let quoted = finding.message.split('`').nth(1).filter(|_| offset);
    KnownFinding {
        code: finding.code.clone(),
        about: match quoted {
            Some(quoted) => format!("{quoted} in {place}"),
            None => place.to_owned(),
        },
    }
}

/// Findings of a list as a baseline keeps them: sorted, each once.
#[must_use]
pub fn all_known(findings: &[FindingFacts]) -> Vec<KnownFinding> {
    let mut list: Vec<KnownFinding> = findings.iter().map(known).collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// The findings of a report, and those that only a check makes.
#[must_use]
pub fn all(facts: &Facts, scan: Option<&Scan>) -> Vec<FindingFacts> {
    let mut list = facts.findings.clone();
    list.extend(verdict(facts));
    list.extend(dtype_mix(facts));
    list.extend(does_not_fit(facts));
    for one in scan.iter().flat_map(|scan| &scan.not_finite) {
        for (code, count, what) in [("nan", one.nan, "NaN"), ("inf", one.inf, "infinite")] {
            if count > 0 {
                let message = format!("{count} of its numbers are {what}");
                list.push(finding("error", code, &one.name, message));
            }
        }
    }
    for one in scan.iter().flat_map(|scan| &scan.not_read) {
        let message = format!("whether it holds NaN is not known: {}", one.why);
        list.push(finding("error", "nan", &one.name, message));
    }
    list
}

fn finding(severity: &str, code: &str, location: &str, message: String) -> FindingFacts {
    FindingFacts {
        severity: severity.to_owned(),
        code: code.to_owned(),
        location: location.to_owned(),
        message,
    }
}

fn verdict(facts: &Facts) -> Option<FindingFacts> {
    let verdict = facts.security.verdict.as_str();
    let severity = match verdict {
        "clean" => return None,
        "suspicious" => "warning",
        _ => "error",
    };
    let globals = &facts.security.unexpected_globals;
    let names = match globals.first() {
        Some(first) => format!(": it names `{first}`"),
        None => String::new(),
    };
    let message = format!("the file is {verdict} to load{names}");
    Some(finding(severity, verdict, "", message))
}

/// Parameters of several floating dtypes: often a layer that was forgotten in a conversion.
fn dtype_mix(facts: &Facts) -> Option<FindingFacts> {
    let floating = |dtype: &str| dtype.starts_with("float") || dtype == "bfloat16";
    let mut dtypes: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for tensor in &facts.tensors {
        let dtype = tensor.dtype.as_deref().filter(|dtype| floating(dtype));
        if let Some(dtype) = dtype.filter(|_| tensor.role == "parameter") {
            dtypes.entry(dtype).or_insert((0, &tensor.name)).0 += 1;
        }
    }
    if dtypes.len() < 2 {
        return None;
    }
    let rare = dtypes.values().min_by_key(|(count, _)| *count);
    let parts: Vec<String> = dtypes
        .iter()
        .map(|(dtype, (count, _))| format!("{count} of {dtype}"))
        .collect();
    let location = rare.map_or("", |(_, name)| *name);
    let message = format!(
        "parameters have several floating dtypes: {}",
        parts.join(", ")
    );
    Some(finding("warning", "dtype-mix", location, message))
}

fn does_not_fit(facts: &Facts) -> Option<FindingFacts> {
    let estimate = facts.estimate.as_ref()?;
    (estimate.fits == Some(false)).then(|| {
        let message = "it does not fit into the memory that was asked for".to_owned();
        finding("error", "does-not-fit", "", message)
    })
}

/// Which findings are new, and which of those are denied.
#[must_use]
pub(super) fn check(
    findings: Vec<FindingFacts>,
    baseline: Option<&[KnownFinding]>,
    deny: &[Deny],
) -> Vec<CheckedFinding> {
    let checked = findings.into_iter().map(|finding| {
        let seen = baseline.is_some_and(|list| list.contains(&known(&finding)));
        // Somebody asked whether it fits: the answer counts, whatever it was before.
        let asked = finding.code == "does-not-fit";
        let denied = asked || (!seen && deny.iter().any(|deny| deny.matches(&finding)));
        CheckedFinding {
            finding,
            new: !seen,
            denied,
        }
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn sources(folder: &Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, all);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// A code that is not in the list could not be denied.
    #[test]
    fn the_list_names_every_code() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut text = String::new();
        for folder in ["checkpoint", "format", "app"] {
            sources(&root.join(folder), &mut text);
        }
        let code = regex::Regex::new(
            r#"(?:code: |CODE: &str = |Severity::\w+,\s+)"([a-z0-9]+(?:-[a-z0-9]+)*)""#,
        )
        .unwrap();
        let used: BTreeSet<&str> = code
            .captures_iter(&text)
            .filter_map(|found| found.get(1).map(|name| name.as_str()))
            .collect();
        assert!(used.len() > 15, "{used:?}");
        let listed: BTreeSet<&str> = CODES.iter().map(|(code, _)| *code).collect();
        let missing: Vec<_> = used.difference(&listed).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(CODES.is_sorted(), "readers look for a code by name");
    }

    #[test]
    fn what_a_finding_is_about_does_not_move() {
        let of = |location: &str, message: &str| {
            known(&finding("error", "x", location, message.to_owned())).about
        };
        assert_eq!(
            of("data.pkl, byte 12", "`os.system` is bad"),
            "os.system in data.pkl"
        );
        assert_eq!(
            of("emb.weight", "its storage has 4,096 bytes"),
            "emb.weight"
        );
    }
}
