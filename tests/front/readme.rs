//! README.md names every option that exists, and none that does not.

#![allow(
    clippy::unwrap_used,
    reason = "clippy excuses functions marked #[test], and not their helpers"
)]

use std::collections::BTreeSet;
use std::process::Command;

use regex::Regex;

fn flags(text: &str) -> BTreeSet<String> {
    let flag = Regex::new(r"--[a-z][a-z-]*").unwrap();
    flag.find_iter(text)
        .map(|found| found.as_str().to_owned())
        .collect()
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_inspect"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The tables of options, in a section.
fn documented(readme: &str, section: &str) -> BTreeSet<String> {
    let usage = readme
        .split(&format!("\n## {section}\n"))
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let rows: Vec<&str> = usage
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| row.split(" | ").next())
        .collect();
    flags(&rows.join("\n"))
}

#[test]
fn the_option_tables_and_the_help_agree() {
    let readme = include_str!("../../README.md");
    let documented = documented(readme, "Use");
    let existing = flags(&help(&["--help"]));
    assert!(existing.len() > 10, "{existing:?}");
    let missing: Vec<_> = existing.difference(&documented).collect();
    assert!(missing.is_empty(), "not in README.md: {missing:?}");
    let gone: Vec<_> = documented.difference(&existing).collect();
    assert!(
        gone.is_empty(),
        "in README.md, but not in `inspect --help`: {gone:?}"
    );
}

/// What a command has besides the options of the main one is in its own section.
#[test]
fn sections_of_commands_agree_with_their_help() {
    let readme = include_str!("../../README.md");
    let main = flags(&help(&["--help"]));
    for (command, section) in [
        ("diff", "Compare"),
        ("check", "In CI"),
        ("validate", "Validate"),
        ("calibrate", "Calibrate"),
    ] {
        let own: BTreeSet<String> = flags(&help(&[command, "--help"]))
            .difference(&main)
            .cloned()
            .collect();
        assert_eq!(own, documented(readme, section), "{command}");
    }
}

/// The examples of budgets and baselines are read by the program itself.
#[test]
fn the_budget_of_the_readme_can_be_read() {
    let readme = include_str!("../../README.md");
    let budget = readme
        .split("```json\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let budgets = inspect_checkpoint::check::read_budgets(budget.as_bytes()).unwrap();
    assert_eq!(budgets.len(), 2);
}
