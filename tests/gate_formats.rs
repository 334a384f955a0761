//! JUnit and SARIF against their schemas: SARIF with types generated from the standard's schema, JUnit with the rules of
//! the schema that Jenkins publishes, element by element.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panic"
)]

#[macro_use]
mod common;

use std::collections::BTreeSet;

use common::run;
use roxmltree::{Document, Node};
use serde_json::Value;
use serde_sarif::sarif::Sarif;

/// Checks of every kind: passes, regressions, findings, names with everything in them, a file that is not there.
const CHECKS: [&[&str]; 5] = [
    &["check", "fixtures/mlp.pt", "--max", "file_bytes=1MB"],
    &[
        "check",
        "fixtures/mlp.pt",
        "fixtures/slack.pt",
        "--max",
        "tensors=1",
        "--deny",
        "info",
    ],
    &[
        "check",
        "fixtures/hostile/os_system.pt",
        "--deny",
        "dangerous",
    ],
    &[
        "check",
        "fixtures/names.pt",
        "--max",
        "tensors=0",
        "--deny",
        "info",
    ],
    &[
        "check",
        "no/such/<file> & \"more\".pt",
        "fixtures/mlp.pt",
        "--max",
        "tensors=9",
    ],
];

fn reports(format: &str) -> Vec<String> {
    let said = CHECKS.iter().map(|args| {
        let args = [args, &["--format", format][..]].concat();
        let said = run(&args);
        assert_eq!(said.stdout, run(&args).stdout, "two runs, one report");
        said.stdout
    });
    said.collect()
}

/// Everything of one value is in the other.
fn kept(value: &Value, through: &Value, path: &str) {
    match (value, through) {
        (Value::Object(fields), Value::Object(known)) => {
            for (key, value) in fields {
                let path = format!("{path}/{key}");
                let through = known
                    .get(key)
                    .unwrap_or_else(|| panic!("SARIF has no `{path}`"));
                kept(value, through, &path);
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            assert_eq!(items.len(), known.len(), "{path}");
            for (value, through) in items.iter().zip(known) {
                kept(value, through, path);
            }
        }
        _ => assert_eq!(value, through, "{path}"),
    }
}

/// Words of which the standard lists all.
fn words_are_known(value: &Value) {
    let results = value["runs"][0]["results"].as_array().unwrap();
    for result in results {
        let level = result["level"].as_str().unwrap();
        assert!(
            ["none", "note", "warning", "error"].contains(&level),
            "{level}"
        );
        if let Some(state) = result["baselineState"].as_str() {
            assert!(
                ["new", "unchanged", "updated", "absent"].contains(&state),
                "{state}"
            );
        }
    }
    let kind = value["runs"][0]["columnKind"].as_str().unwrap();
    assert!(
        ["utf16CodeUnits", "unicodeCodePoints"].contains(&kind),
        "{kind}"
    );
}

#[test]
fn sarif_is_that_of_the_standard() {
    let mut results = 0;
    for text in reports("sarif") {
        let sarif: Sarif =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["version"], "2.1.0");
        // A key that the standard does not have is lost on the way through its types.
        words_are_known(&value);
        kept(&value, &serde_json::to_value(&sarif).unwrap(), "");
        for run in &sarif.runs {
            let rules = run.tool.driver.rules.iter().flatten();
            let rules: BTreeSet<&str> = rules.map(|rule| rule.id.as_str()).collect();
            for result in run.results.iter().flatten() {
                results += 1;
                let rule = result.rule_id.as_deref().expect("a rule");
                assert!(rules.contains(rule), "{rule}");
                assert!(
                    result
                        .message
                        .text
                        .as_ref()
                        .is_some_and(|text| !text.is_empty())
                );
                // What GitHub's code scanning asks for besides.
                let location = result.locations.as_ref().and_then(|list| list.first());
                let physical = location
                    .and_then(|one| one.physical_location.as_ref())
                    .expect("a place");
                let file = physical
                    .artifact_location
                    .as_ref()
                    .and_then(|file| file.uri.as_ref());
                let file = file.expect("a file");
                assert!(
                    file.is_ascii() && !file.contains([' ', '<', '"', '&']),
                    "{file}"
                );
                assert!(result.partial_fingerprints.is_some());
            }
        }
    }
    assert!(results >= 5, "{results}");
}

/// What an element may hold, by the schema of Jenkins' xUnit plugin (`junit-10.xsd`): attributes, those that must be
/// there, and children.
fn rule(
    name: &str,
) -> Option<(
    &'static [&'static str],
    &'static [&'static str],
    &'static [&'static str],
)> {
    Some(match name {
        "testsuites" => (
            &[
                "name", "time", "tests", "failures", "disabled", "errors", "skipped",
            ],
            &[],
            &["testsuite"],
        ),
        "testsuite" => (
            &[
                "name",
                "tests",
                "failures",
                "errors",
                "group",
                "time",
                "skipped",
                "timestamp",
                "hostname",
                "id",
                "package",
                "file",
                "log",
                "url",
                "version",
            ],
            &["name"],
            &[
                "testsuite",
                "properties",
                "testcase",
                "system-out",
                "system-err",
            ],
        ),
        "properties" => (&[], &[], &["property"]),
        "property" => (&["name", "value"], &["name", "value"], &[]),
        "testcase" => (
            &["name", "time", "classname", "group"],
            &["name"],
            &[
                "skipped",
                "error",
                "failure",
                "rerunFailure",
                "rerunError",
                "flakyFailure",
                "flakyError",
                "system-out",
                "system-err",
            ],
        ),
        "failure" | "error" => (&["type", "message"], &[], &[]),
        "skipped" | "system-out" | "system-err" => (&[], &[], &[]),
        _ => return None,
    })
}

fn valid(node: Node<'_, '_>) {
    let name = node.tag_name().name();
    let (known, needed, children) =
        rule(name).unwrap_or_else(|| panic!("there is no element `{name}`"));
    for attribute in node.attributes() {
        assert!(
            known.contains(&attribute.name()),
            "`{name}` has no `{}`",
            attribute.name()
        );
    }
    for attribute in needed {
        assert!(
            node.has_attribute(*attribute),
            "`{name}` lacks `{attribute}`"
        );
    }
    let elements: Vec<_> = node.children().filter(Node::is_element).collect();
    if !children.is_empty() {
        let text = node
            .children()
            .filter(Node::is_text)
            .filter_map(|text| text.text());
        assert!(
            text.collect::<String>().trim().is_empty(),
            "`{name}` holds text"
        );
    }
    for child in elements {
        let child_name = child.tag_name().name();
        assert!(children.contains(&child_name), "`{child_name}` in `{name}`");
        valid(child);
    }
}

/// The counts of a suite are those of its cases.
fn counts(suite: Node<'_, '_>) -> (usize, usize, usize) {
    let cases: Vec<_> = suite
        .children()
        .filter(|node| node.has_tag_name("testcase"))
        .collect();
    let with = |name: &str| {
        let has = |case: &&Node<'_, '_>| case.children().any(|child| child.has_tag_name(name));
        cases.iter().filter(has).count()
    };
    (cases.len(), with("failure"), with("error"))
}

#[test]
fn junit_is_that_of_jenkins() {
    let (mut failures, mut errors) = (0, 0);
    for text in reports("junit") {
        let document = Document::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let root = document.root_element();
        assert!(root.has_tag_name("testsuites"));
        valid(root);
        for suite in root.children().filter(Node::is_element) {
            let number = |name: &str| suite.attribute(name).unwrap().parse::<usize>().unwrap();
            let (tests, failed, broken) = counts(suite);
            assert_eq!(
                (number("tests"), number("failures"), number("errors")),
                (tests, failed, broken)
            );
            failures += failed;
            errors += broken;
        }
        // The same crate reads it, too.
        quick_junit::Report::deserialize(text.as_bytes()).unwrap();
    }
    assert!(failures > 3 && errors == 1, "{failures} {errors}");
}
