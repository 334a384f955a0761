//! As much of JSON Schema (draft 7) as the schema of SARIF uses; a word that is not known here ends the test.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value};

/// A schema with its definitions.
pub struct Schema {
    root: Value,
}

/// Words that say nothing about what is valid.
const SILENT: [&str; 7] = [
    "$schema",
    "$id",
    "title",
    "description",
    "default",
    "definitions",
    // Of dates and references, of which reports hold none but one that another test looks at.
    "format",
];

impl Schema {
    /// The standard's own schema of SARIF 2.1.0, which a crate that tests depend on is made from.
    pub fn sarif() -> Schema {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let say = |args: &[&str]| {
            let mut command = Command::new(&cargo);
            let said = command
                .args(args)
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .output()
                .unwrap();
            assert!(
                said.status.success(),
                "{}",
                String::from_utf8_lossy(&said.stderr)
            );
            String::from_utf8(said.stdout).unwrap()
        };
        let version = say(&["-vV"]);
        let host = version
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .unwrap();
        // What was built with these tests is here; what other platforms and features need may not be.
        let metadata = say(&[
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--locked",
            "--no-default-features",
            "--filter-platform",
            host,
        ]);
        let metadata: Value = serde_json::from_str(&metadata).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let package = packages
            .iter()
            .find(|one| one["name"] == "serde-sarif")
            .unwrap();
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let path = manifest.with_file_name("src").join("schema.json");
        let root = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        Schema { root }
    }

    /// Everything that is wrong with a document.
    pub fn faults(&self, document: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        self.check(&self.root, document, "", &mut faults);
        faults
    }

    fn check(&self, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let rules = schema.as_object().unwrap();
        for (word, rule) in rules {
            let valid = match word.as_str() {
                "$ref" => {
                    let place = rule.as_str().unwrap().strip_prefix('#').unwrap();
                    self.check(self.root.pointer(place).unwrap(), value, at, faults);
                    true
                }
                "type" => is(rule.as_str().unwrap(), value),
                "enum" => rule.as_array().unwrap().contains(value),
                "required" => {
                    let names = rule.as_array().unwrap().iter();
                    value.is_object()
                        && names
                            .into_iter()
                            .all(|name| value.get(name.as_str().unwrap()).is_some())
                }
                "properties" => {
                    for (name, value) in Schema::keys(rules, value, true) {
                        self.check(&rule[name], value, &format!("{at}/{name}"), faults);
                    }
                    true
                }
                "additionalProperties" => {
                    for (name, value) in Schema::keys(rules, value, false) {
                        match rule {
                            Value::Bool(true) => {}
                            Value::Bool(false) => {
                                faults.push(format!("{at}/{name}: there is no such key"));
                            }
                            rule => self.check(rule, value, &format!("{at}/{name}"), faults),
                        }
                    }
                    true
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(rule, item, &format!("{at}/{index}"), faults);
                    }
                    true
                }
                "minItems" => value
                    .as_array()
                    .is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap()),
                "uniqueItems" => value.as_array().is_none_or(|list| {
                    (1..list.len()).all(|end| !list[..end].contains(&list[end]))
                }),
                "minimum" => value
                    .as_f64()
                    .is_none_or(|number| number >= rule.as_f64().unwrap()),
                "maximum" => value
                    .as_f64()
                    .is_none_or(|number| number <= rule.as_f64().unwrap()),
                "pattern" => {
                    let pattern = regex::Regex::new(rule.as_str().unwrap()).unwrap();
                    value.as_str().is_none_or(|text| pattern.is_match(text))
                }
                "anyOf" => self.matching(rule, value) > 0,
                "oneOf" => self.matching(rule, value) == 1,
                silent => {
                    assert!(SILENT.contains(&silent), "`{silent}` is not known here");
                    true
                }
            };
            if !valid {
                faults.push(format!("{at}: `{word}` of {value}"));
            }
        }
    }

    /// How many of several schemas a value is valid by.
    fn matching(&self, schemas: &Value, value: &Value) -> usize {
        let valid = |schema: &&Value| {
            let mut faults = Vec::new();
            self.check(schema, value, "", &mut faults);
            faults.is_empty()
        };
        schemas.as_array().unwrap().iter().filter(valid).count()
    }

    /// The keys that a schema names, or those that it does not.
    fn keys<'a>(
        rules: &'a Map<String, Value>,
        value: &'a Value,
        named: bool,
    ) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let known = |name: &str| {
            let properties = rules.get("properties");
            properties.is_some_and(|properties| properties.get(name).is_some())
        };
        let all = value.as_object().into_iter().flatten();
        all.filter(move |(name, _)| known(name) == named)
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("`{other}` is no type that is known here"),
    }
}
