//! JUnit: a suite a file, a case a number, and one for every finding that is denied.

use std::io::{self, Write};

use quick_junit::{NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestSuite};

use super::{CheckReport, reasons, sentence};
use crate::check::{Check, CheckedFinding, FileCheck, Verdict};
use crate::text::escape;

/// Writes the report as JUnit XML.
pub fn junit(report: &CheckReport, out: &mut dyn Write) -> io::Result<()> {
    let mut document = Report::new("inspect check");
    document.add_test_suites(report.files.iter().map(suite));
    document.serialize(out).map_err(io::Error::other)
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
    if let Some(error) = &file.error {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(escape(error)).set_type("not-checked");
        suite.add_test_case(case("inspect", status, file));
        return suite;
    }
    // `--strict`: nothing of it failed, and the file did.
    let silent = suite.failures == 0 && file.verdict == Verdict::Fail;
    if silent {
        let status = failure(&file.notes.join("; "), "outdated-baseline", "");
        suite.add_test_case(case("baseline", status, file));
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
