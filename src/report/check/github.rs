//! Annotations of a GitHub Actions run: lines that the runner reads from the output of a step.

use std::fmt::Write as _;

use super::{CheckReport, reasons, sentence};
use crate::check::Verdict;

/// Every failure as an error, every improvement and new finding as a notice or warning.
#[must_use]
pub fn annotations(report: &CheckReport) -> String {
    let mut text = String::new();
    for file in &report.files {
        let mut line = |level: &str, title: &str, message: &str| {
            let _ = writeln!(
                text,
                "::{level} file={},title={}::{}",
                property(&file.file),
                property(title),
                data(message)
            );
        };
        if let Some(error) = &file.error {
            line("error", "inspect: not checked", error);
        }
        for reason in &file.reasons {
            line(
                "error",
                &format!("inspect: {}", reason.code()),
                reason.words(),
            );
        }
        for check in &file.checks {
            let level = match check.verdict {
                Verdict::Pass => continue,
                Verdict::Fail => "error",
                Verdict::Improved => "notice",
            };
            let why = reasons(check);
            let separator = if why.is_empty() { "" } else { "\n" };
            let message = format!("{}{separator}{why}", sentence(check));
            line(
                level,
                &format!("inspect: {} {}", check.metric, check.verdict.name()),
                &message,
            );
        }
        for checked in file.findings.iter().filter(|checked| checked.new) {
            let finding = &checked.finding;
            let level = match (checked.denied, finding.severity.as_str()) {
                (true, _) | (_, "error") => "error",
                (_, "warning") => "warning",
                _ => continue,
            };
            let place = match finding.location.as_str() {
                "" => String::new(),
                location => format!("{location}: "),
            };
            line(
                level,
                &format!("inspect: {}", finding.code),
                &format!("{place}{}", finding.message),
            );
        }
    }
    text
}

/// Text of a command: a line break would end it.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// A property of a command, which commas and colons end.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_a_command_early() {
        assert_eq!(data("50 %\n::error::x"), "50 %25%0A::error::x");
        assert_eq!(property("a,b:c\r"), "a%2Cb%3Ac%0D");
    }
}
