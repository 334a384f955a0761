//! JUnit: a suite a file, a case a number, and one for every finding that is denied and every other reason to fail.

use std::io::{self, Write};

use quick_junit::{NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestSuite};

use super::{CheckReport, reasons, sentence};
use crate::check::{Check, CheckedFinding, FileCheck, Verdict};
use crate::text::escape;

/// Writes the report as JUnit XML.
pub fn junit(report: &CheckReport, out: &mut dyn Write) -> io::Result<()> {
    let mut document = Report::new("inspect check");
    document.add_test_suites(report.files.iter().map(suite));
    let text = document.to_string().map_err(io::Error::other)?;
    out.write_all(without_skipped(&text).as_bytes())
}

/// Jenkins' schema counts what is skipped in each suite, not in all of them.
fn without_skipped(text: &str) -> String {
    const KEY: &str = " skipped=\"";
    let head = text.find("<testsuites").unwrap_or(0);
    let end = text.find("<testsuite ").unwrap_or(text.len());
    let found = text.get(head..end).and_then(|tag| tag.find(KEY));
    let parts = found.and_then(|at| {
        let (before, rest) = text.split_at_checked(head + at)?;
        let (_, after) = rest.get(KEY.len()..)?.split_once('"')?;
        Some(format!("{before}{after}"))
    });
    parts.unwrap_or_else(|| text.to_owned())
}

fn suite(file: &FileCheck) -> TestSuite {
    let mut suite = TestSuite::new(escape(&file.file));
    if let Some(against) = &file.against {
        suite.add_property(Property::new("against", escape(against)));
    }
    for argument in &file.options {
        suite.add_property(Property::new("option", escape(argument)));
    }
    suite.add_test_cases(file.checks.iter().map(|check| number(check, file)));
    let denied = file.findings.iter().filter(|checked| checked.denied);
    suite.add_test_cases(denied.map(|checked| finding(checked, file)));
    for reason in &file.reasons {
        let status = failure(reason.words(), reason.code(), &file.notes.join("; "));
        suite.add_test_case(case(reason.code(), status, file));
    }
    if let Some(why) = file.skipped.as_ref().filter(|_| file.reasons.is_empty()) {
        let mut status = TestCaseStatus::skipped();
        status.set_message(escape(why));
        suite.add_test_case(case("budget", status, file));
    }
    if let Some(error) = &file.error {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(escape(error)).set_type("not-checked");
        suite.add_test_case(case("inspect", status, file));
    }
    suite
}

fn case(name: &str, status: TestCaseStatus, file: &FileCheck) -> TestCase {
    let mut case = TestCase::new(escape(name), status);
    case.set_classname(escape(&file.file));
    case
}

fn failure(message: &str, kind: &str, description: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    status.set_message(escape(message)).set_type(kind);
    if !description.is_empty() {
        status.set_description(escape(description));
    }
    status
}

fn number(check: &Check, file: &FileCheck) -> TestCase {
    let why = reasons(check);
    if check.verdict == Verdict::Fail {
        return case(
            &check.metric,
            failure(&sentence(check), "regression", &why),
            file,
        );
    }
    let mut case = case(&check.metric, TestCaseStatus::success(), file);
    if check.verdict == Verdict::Improved {
        case.set_system_out(escape(&format!("improved: {}", sentence(check))));
    }
    case
}

fn finding(checked: &CheckedFinding, file: &FileCheck) -> TestCase {
    let finding = &checked.finding;
    let name = match finding.location.as_str() {
        "" => finding.code.clone(),
        location => format!("{} {location}", finding.code),
    };
    case(&name, failure(&finding.message, &finding.code, ""), file)
}
