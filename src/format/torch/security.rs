//! Collecting what the pickles of a file name.

use std::collections::HashSet;

use super::super::pickle::{GlobalId, Pickle, cut};
use super::super::zip::Member;
use super::globals;
use super::rows::push_finding;
use crate::checkpoint::{Finding, Security, Severity, Verdict};
use crate::limits;

/// Whether PyTorch would read a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It would.
    Loaded,
    /// It would not: the stream is hidden, or for other tools.
    Hidden,
}

/// The globals of all streams of a file.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    security: Security,
    seen: HashSet<String>,
    findings: Vec<Finding>,
}

impl Watch {
    /// Looks at every global that a pickle names. `stream` says which pickle it is.
    pub(crate) fn look(&mut self, pickle: &Pickle<'_>, stream: &str, reach: Reach) {
        self.look_except(pickle, stream, reach, &[]);
    }

    /// Looks at every global that a pickle names; those vouched for are known to do no harm in it.
    pub(crate) fn look_except(
        &mut self,
        pickle: &Pickle<'_>,
        stream: &str,
        reach: Reach,
        vouched: &[GlobalId],
    ) {
        for id in pickle.globals() {
            let Some((module, name)) = pickle.global_name(id) else {
                continue;
            };
            let verdict = if vouched.contains(&id) {
                Verdict::Clean
            } else {
                globals::verdict(&module, &name)
            };
            let offset = pickle.global_offset(id);
            self.note(&module, &name, verdict, reach, stream, offset);
        }
        for id in pickle.assigned_globals() {
            let Some((module, name)) = pickle.global_name(*id) else {
                continue;
            };
            self.dangerous(
                reach,
                stream,
                &format!(
                    "sets attributes of `{}.{}` itself, not of an object",
                    cut(&module),
                    cut(&name)
                ),
            );
        }
        if let Some(code) = pickle.extensions().first() {
            self.dangerous(
                reach,
                stream,
                &format!(
                    "uses code {code} of Python's extension registry, which can stand for anything"
                ),
            );
        }
    }

    /// A record of data that nothing refers to; an empty one takes up nothing.
    pub(crate) fn unreferenced(&mut self, member: &Member<'_>) {
        if member.stored_bytes > 0 {
            self.find(
                Severity::Info,
                "unreferenced-record",
                &cut(member.name),
                format!("nothing refers to its {} bytes", member.bytes),
            );
        }
    }

    fn note(
        &mut self,
        module: &str,
        name: &str,
        verdict: Verdict,
        reach: Reach,
        stream: &str,
        offset: u64,
    ) {
        let shown = format!("{} {}", cut_long(module), cut_long(name));
        let new = self.seen.insert(format!("{reach:?} {shown}"));
        if !new {
            return;
        }
        if reach == Reach::Loaded {
            self.security.globals.push(shown.clone());
            if verdict != Verdict::Clean {
                self.security.unexpected_globals.push(shown.clone());
            }
        }
        let location = format!("{stream}, byte {offset}");
        let text = format!("`{}.{}`", cut(module), cut(name));
        match (verdict, reach) {
            (Verdict::Clean, _) => {}
            (Verdict::Suspicious, Reach::Loaded) => {
                self.raise(Verdict::Suspicious);
                push_finding(
                    &mut self.findings,
                    Severity::Info,
                    "foreign-class",
                    &location,
                    format!(
                        "{text} is a class of another package: loading the file runs that package's code"
                    ),
                );
            }
            (Verdict::Dangerous, Reach::Loaded) => {
                self.raise(Verdict::Dangerous);
                push_finding(
                    &mut self.findings,
                    Severity::Error,
                    "dangerous-global",
                    &location,
                    format!(
                        "{text} is nothing that `torch.save` writes: loading the file could run any code"
                    ),
                );
            }
            (_, Reach::Hidden) => {
                self.raise(Verdict::Suspicious);
                push_finding(
                    &mut self.findings,
                    Severity::Warning,
                    "hidden-global",
                    &location,
                    format!("{text} is named in a stream that PyTorch does not load"),
                );
            }
        }
    }

    fn dangerous(&mut self, reach: Reach, stream: &str, what: &str) {
        let (verdict, severity) = match reach {
            Reach::Loaded => (Verdict::Dangerous, Severity::Error),
            Reach::Hidden => (Verdict::Suspicious, Severity::Warning),
        };
        self.raise(verdict);
        push_finding(
            &mut self.findings,
            severity,
            "dangerous-opcode",
            stream,
            format!("the pickle {what}"),
        );
    }

    /// Makes the verdict at least this bad.
    pub(crate) fn raise(&mut self, verdict: Verdict) {
        self.security.verdict = self.security.verdict.max(verdict);
    }

    /// Adds a finding of its own.
    pub(crate) fn find(
        &mut self,
        severity: Severity,
        code: &'static str,
        location: &str,
        message: String,
    ) {
        push_finding(&mut self.findings, severity, code, location, message);
    }

    /// The result.
    pub(crate) fn finish(self) -> (Security, Vec<Finding>) {
        (self.security, self.findings)
    }
}

/// Names in the list of globals are exact as long as they are of sensible length.
fn cut_long(text: &str) -> String {
    match text
        .char_indices()
        .nth(limits::SHOWN_CHARS.saturating_mul(2))
    {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or("")),
        None => text.to_owned(),
    }
}
