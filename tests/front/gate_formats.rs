//! JUnit and SARIF against their schemas: SARIF with types generated from the standard's schema, JUnit with the rules of
//! the schema that Jenkins publishes, element by element.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::run;
use crate::common::schema::Schema;
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

/// The schema is the standard's; that it is read right shows in what it refuses.
#[test]
fn the_schema_of_sarif_refuses_what_is_wrong() {
    let schema = Schema::sarif();
    let right = serde_json::json!({
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "inspect"}}, "results": [{"message": {"text": "x"}}]}],
    });
    assert_eq!(schema.faults(&right), Vec::<String>::new());
    let wrong: [fn(&mut Value); 7] = [
        |value| value["version"] = "2.0.0".into(),
        |value| value["run"] = Value::Null,
        |value| value["runs"][0]["results"][0]["level"] = "bad".into(),
        |value| value["runs"][0]["results"][0]["rank"] = 101.into(),
        |value| value["runs"][0]["results"][0]["message"] = serde_json::json!({"texts": "x"}),
        |value| value["runs"][0]["tool"]["driver"] = serde_json::json!({}),
        |value| value["runs"][0]["results"][0]["guid"] = "1".into(),
    ];
    for (index, change) in wrong.into_iter().enumerate() {
        let mut value = right.clone();
        change(&mut value);
        assert!(!schema.faults(&value).is_empty(), "{index}");
    }
}

#[test]
fn sarif_is_that_of_the_standard() {
    let mut results = 0;
    let schema = Schema::sarif();
    for text in reports("sarif") {
        let sarif: Sarif =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["version"], "2.1.0");
        assert_eq!(schema.faults(&value), Vec::<String>::new());
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

/// The namespace of schemas.
const XS: &str = "http://www.w3.org/2001/XMLSchema";

/// The schema of Jenkins' xUnit plugin, which pytest's reports are held to as well.
const JUNIT: &str = include_str!("../schemas/junit-10.xsd");

/// Everything by which an element is not what the schema says.
fn faults(schema: Node<'_, '_>, node: Node<'_, '_>) -> Vec<String> {
    let name = node.tag_name().name();
    let named = |kind: &str, name: &str| {
        let mut children = schema.children();
        children.find(|one| one.has_tag_name((XS, kind)) && one.attribute("name") == Some(name))
    };
    let Some(element) = named("element", name) else {
        return vec![format!("there is no element `{name}`")];
    };
    let inside = element
        .children()
        .find(Node::is_element)
        .or_else(|| named("complexType", element.attribute("type")?));
    let (mut attributes, mut children) = (BTreeMap::new(), BTreeSet::new());
    let mut text = inside.is_none();
    for rule in inside.iter().flat_map(Node::descendants) {
        let word = |key: &str| rule.attribute(key);
        match rule.tag_name().name() {
            "attribute" => {
                let required = word("use") == Some("required");
                attributes.insert(word("name").unwrap(), required);
            }
            "element" => {
                children.insert(word("ref").or(word("name")).unwrap());
            }
            "complexType" => text |= word("mixed") == Some("true"),
            "sequence" | "choice" | "" => {}
            other => panic!("`{other}` is not known here"),
        }
    }
    let mut faults = Vec::new();
    for attribute in node.attributes() {
        if !attributes.contains_key(attribute.name()) {
            faults.push(format!("`{name}` has no `{}`", attribute.name()));
        }
    }
    for (attribute, _) in attributes.iter().filter(|(_, required)| **required) {
        if !node.has_attribute(*attribute) {
            faults.push(format!("`{name}` lacks `{attribute}`"));
        }
    }
    for child in node.children() {
        if child.is_element() {
            let child_name = child.tag_name().name();
            if !children.contains(child_name) {
                faults.push(format!("`{child_name}` in `{name}`"));
            }
            faults.extend(self::faults(schema, child));
        } else if !text && child.text().is_some_and(|text| !text.trim().is_empty()) {
            faults.push(format!("`{name}` holds text"));
        }
    }
    faults
}

/// That the schema is read right shows in what it refuses.
#[test]
fn the_schema_of_junit_refuses_what_is_wrong() {
    let schema = Document::parse(JUNIT).unwrap();
    let of = |text: &str| {
        let document = Document::parse(text).unwrap();
        faults(schema.root_element(), document.root_element())
    };
    let suite = r#"<testsuite name="a" tests="1" failures="0" errors="0">"#;
    let case = r#"<testcase name="b"><failure type="c">text</failure></testcase>"#;
    let right = format!("<testsuites>{suite}{case}</testsuite></testsuites>");
    assert_eq!(of(&right), Vec::<String>::new());
    for wrong in [
        right.replace("<testsuites>", r#"<testsuites skipped="0">"#),
        right.replace(r#" tests="1""#, ""),
        right.replace("testcase", "case"),
        right.replace(case, "text"),
        right.replace(
            case,
            r#"<testcase name="b"><property name="x" value="y"/></testcase>"#,
        ),
    ] {
        assert!(!of(&wrong).is_empty(), "{wrong}");
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
    let schema = Document::parse(JUNIT).unwrap();
    let (mut failures, mut errors) = (0, 0);
    for text in reports("junit") {
        let document = Document::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let root = document.root_element();
        assert!(root.has_tag_name("testsuites"));
        assert_eq!(faults(schema.root_element(), root), Vec::<String>::new());
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
