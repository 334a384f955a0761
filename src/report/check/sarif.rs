//! SARIF 2.1.0: findings and regressions as results, for code scanning.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::{CheckReport, reasons, sentence};
use crate::check::{CODES, Check, CheckedFinding, FileCheck, Reason, Verdict};
use crate::diff::metrics::CATALOGUE;
use crate::report::Tool;

/// What a rule of a regression begins with.
const REGRESSION: &str = "regression/";

/// Writes the report as SARIF.
pub fn sarif(report: &CheckReport, out: &mut dyn Write) -> io::Result<()> {
    let mut results = Vec::new();
    for file in &report.files {
        let failed = file
            .checks
            .iter()
            .filter(|check| check.verdict == Verdict::Fail);
        results.extend(failed.map(|check| regression(check, file)));
        let reasons = file.reasons.iter();
        let reasons = reasons.filter(|reason| !reason.is_found());
        results.extend(reasons.map(|reason| other(*reason, file)));
        results.extend(file.findings.iter().map(|finding| result(finding, file)));
    }
    let mut rules: BTreeMap<String, &str> = BTreeMap::new();
    for result in &results {
        let id = result
            .get("ruleId")
            .and_then(Value::as_str)
            .unwrap_or_default();
        rules.insert(id.to_owned(), about(id));
    }
    let rules: Vec<Value> = rules
        .into_iter()
        .map(|(id, about)| json!({"id": id, "shortDescription": {"text": about}}))
        .collect();
    let faulty = report.files.iter().any(|file| file.error.is_some());
    let document = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": Tool::THIS.name,
                "version": Tool::THIS.version,
                "semanticVersion": Tool::THIS.version,
                "rules": rules,
            }},
            "invocations": [{
                "executionSuccessful": !faulty,
                "toolExecutionNotifications": notifications(report),
            }],
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

/// What was not checked is no result, but said of the run: a fault of it, or that there was nothing to check.
fn notifications(report: &CheckReport) -> Vec<Value> {
    let files = report.files.iter().filter_map(|file| {
        let (level, why) = match (&file.error, &file.skipped) {
            (Some(error), _) => ("error", error),
            (None, Some(why)) => ("warning", why),
            (None, None) => return None,
        };
        let text = format!("{}: {why}", file.file);
        Some(json!({"level": level, "message": {"text": text}}))
    });
    files.collect()
}

fn about(rule: &str) -> &'static str {
    for reason in [Reason::OutdatedBaseline, Reason::NoBudget] {
        if rule == reason.code() {
            return reason.words();
        }
    }
    if let Some(metric) = rule.strip_prefix(REGRESSION) {
        let base = metric.split('.').next().unwrap_or_default();
        let kind = CATALOGUE.iter().find(|kind| kind.name == base);
        return kind.map_or("a number", |kind| kind.about);
    }
    let code = CODES.iter().find(|(code, _)| *code == rule);
    code.map_or("a finding", |(_, about)| about)
}

/// GitHub wants a line for everything; a checkpoint has none.
fn location(file: &FileCheck, name: &str) -> Value {
    let mut location = json!({
        "physicalLocation": {
            "artifactLocation": {"uri": uri(&file.file)},
            "region": {"startLine": 1},
        },
    });
    if !name.is_empty()
        && let Some(fields) = location.as_object_mut()
    {
        fields.insert(
            "logicalLocations".to_owned(),
            json!([{"fullyQualifiedName": name}]),
        );
    }
    location
}

fn regression(check: &Check, file: &FileCheck) -> Value {
    let why = reasons(check);
    let text = match why.as_str() {
        "" => sentence(check),
        why => format!("{}: {why}", sentence(check)),
    };
    json!({
        "ruleId": format!("{REGRESSION}{}", check.metric),
        "level": "error",
        "message": {"text": text},
        "locations": [location(file, "")],
        "partialFingerprints": {"inspect/v1": format!("{}:{}", file.file, check.metric)},
    })
}

fn other(reason: Reason, file: &FileCheck) -> Value {
    json!({
        "ruleId": reason.code(),
        "level": "error",
        "message": {"text": reason.words()},
        "locations": [location(file, "")],
        "partialFingerprints": {"inspect/v1": format!("{}:{}", file.file, reason.code())},
    })
}

fn result(checked: &CheckedFinding, file: &FileCheck) -> Value {
    let finding = &checked.finding;
    let level = match (checked.denied, finding.severity.as_str()) {
        (true, _) | (_, "error") => "error",
        (_, "warning") => "warning",
        _ => "note",
    };
    json!({
        "ruleId": finding.code,
        "level": level,
        "message": {"text": finding.message},
        "locations": [location(file, &finding.location)],
        "baselineState": if checked.new { "new" } else { "unchanged" },
        "partialFingerprints": {"inspect/v1": format!("{}:{}:{}", file.file, finding.code, finding.location)},
    })
}

/// A path as a relative reference: what a URI does not allow is written as its bytes.
fn uri(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.trim_start_matches("./").bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte));
            }
            byte => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::uri;

    #[test]
    fn a_path_is_a_reference() {
        assert_eq!(uri("./models/a b:c.pt"), "models/a%20b%3Ac.pt");
        assert_eq!(uri("größe.pt"), "gr%C3%B6%C3%9Fe.pt");
    }
}
