//! The options of a run as a baseline and a budget keep them.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// What is run, and how; only what is not the default is there, so that equal runs have equal options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunOptions {
    /// `--input`, once for each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<String>,
    /// `--inputs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs: Option<String>,
    /// `--device`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `--method`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// `--train`.
    #[serde(skip_serializing_if = "is_false")]
    pub train: bool,
    /// `--optimizer`; always there with `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// `--optimizer-impl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer_impl: Option<String>,
    /// `--loss`; always there with `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// `--steps`; always there with `train`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// `--cast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cast: Option<String>,
    /// `--autocast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autocast: Option<String>,
    /// `--weights`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// `--lifetimes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifetimes: Option<String>,
    /// `--profile NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// `--profile FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// `--memory`, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// `--alloc-conf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alloc_conf: Option<String>,
    /// `--basis`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basis: Option<String>,
    /// `--bound`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<String>,
    /// `--no-sim`.
    #[serde(skip_serializing_if = "is_false")]
    pub no_sim: bool,
    /// `--measured`.
    #[serde(skip_serializing_if = "is_false")]
    pub measured: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

impl RunOptions {
    /// What is run beside a baseline of `known`: that run again, where nothing asks for another. `--measured` is no run
    /// of its own, so the baseline's is measured.
    #[must_use]
    pub fn or_again(&self, known: &RunOptions) -> RunOptions {
        let no_run = RunOptions {
            measured: self.measured,
            ..RunOptions::default()
        };
        if *self != no_run {
            return self.clone();
        }
        RunOptions {
            measured: self.measured || known.measured,
            ..known.clone()
        }
    }

    /// Whether something is measured, and nothing says what to run: the file may keep inputs of its own.
    #[must_use]
    pub fn measures_nothing(&self) -> bool {
        self.measured && self.input.is_empty() && self.inputs.is_none()
    }

    /// The files that it reads besides the checkpoint.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let files = self.inputs.iter().chain(&self.weights);
        let profile = self.profile.iter().filter(|card| is_calibration(card));
        files.chain(&self.calibration).chain(profile).map(Path::new)
    }

    /// The first of its files that is not relative: it means nothing on another machine.
    #[must_use]
    pub fn absolute_path(&self) -> Option<&Path> {
        self.files().find(|path| path.is_absolute())
    }

    /// The arguments of `inspect FILE` that mean the same; `--measured` is none of them.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut list: Vec<String> = self
            .input
            .iter()
            .map(|spec| format!("--input={spec}"))
            .collect();
        let steps = self.steps.map(|steps| steps.to_string());
        let values = [
            ("inputs", &self.inputs),
            ("device", &self.device),
            ("method", &self.method),
            ("optimizer", &self.optimizer),
            ("optimizer-impl", &self.optimizer_impl),
            ("loss", &self.loss),
            ("steps", &steps),
            ("cast", &self.cast),
            ("autocast", &self.autocast),
            ("weights", &self.weights),
            ("lifetimes", &self.lifetimes),
            ("profile", &self.profile),
            ("profile", &self.calibration),
            ("memory", &self.memory),
            ("alloc-conf", &self.alloc_conf),
            ("basis", &self.basis),
            ("bound", &self.bound),
        ];
        for (name, value) in values {
            list.extend(value.as_ref().map(|value| format!("--{name}={value}")));
        }
        for (name, given) in [("train", self.train), ("no-sim", self.no_sim)] {
            list.extend(given.then(|| format!("--{name}")));
        }
        list
    }

    /// All of them as text for a message.
    #[must_use]
    pub fn text(&self) -> String {
        let mut list = self.arguments();
        list.extend(self.measured.then(|| "--measured".to_owned()));
        match list.as_slice() {
            [] => "no run".to_owned(),
            list => {
                // As people type them.
                let typed: Vec<String> = list.iter().map(|one| one.replacen('=', " ", 1)).collect();
                format!("`{}`", typed.join(" "))
            }
        }
    }
}

/// Whether what `--profile` names is a file and not a card: it has a folder, or `.json` at its end.
#[must_use]
pub fn is_calibration(profile: &str) -> bool {
    let is_json = Path::new(profile)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    is_json || profile.contains(std::path::MAIN_SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_is_read_whatever_names_it() {
        let files = |profile: &str| {
            let options = RunOptions {
                profile: Some(profile.to_owned()),
                ..RunOptions::default()
            };
            options.files().map(Path::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(files("gpu.json"), [Path::new("gpu.json")]);
        assert_eq!(files("cards/gpu"), [Path::new("cards/gpu")]);
        assert!(files("rtx-4090").is_empty());
    }

    #[test]
    fn only_what_is_not_the_default_is_kept() {
        let none = RunOptions::default();
        assert_eq!(serde_json::to_string(&none).unwrap(), "{}");
        assert!(none.arguments().is_empty());
        let text = r#"{"input":["1x3"],"train":true,"optimizer":"adam","loss":"mean","steps":2}"#;
        let options: RunOptions = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&options).unwrap(), text);
        assert_eq!(
            options.arguments(),
            [
                "--input=1x3",
                "--optimizer=adam",
                "--loss=mean",
                "--steps=2",
                "--train"
            ]
        );
        assert!(serde_json::from_str::<RunOptions>(r#"{"speed":1}"#).is_err());
    }

    #[test]
    fn measuring_is_no_run_of_its_own() {
        let of = |text: &str| serde_json::from_str::<RunOptions>(text).unwrap();
        let known = of(r#"{"input":["1x3"],"train":true}"#);
        let (nothing, measured) = (of("{}"), of(r#"{"measured":true}"#));
        assert_eq!(nothing.or_again(&known), known);
        let both = of(r#"{"input":["1x3"],"train":true,"measured":true}"#);
        assert_eq!(measured.or_again(&known), both);
        assert_eq!(measured.or_again(&both), both);
        assert_eq!(nothing.or_again(&both), both);
        let other = of(r#"{"input":["2x3"],"measured":true}"#);
        assert_eq!(other.or_again(&known), other);
        assert!(measured.measures_nothing() && !both.measures_nothing());
    }
}
