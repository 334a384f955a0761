//! Values as Python writes them, for names and messages.

use std::fmt::Write as _;

use super::{Node, NodeId, Pickle};
use crate::limits::SHOWN_CHARS;

/// Text cut to what an error or finding shows.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or("")),
        None => text.to_owned(),
    }
}

impl Pickle<'_> {
    /// A dictionary key as `str()` gives it: `0`, `2.5`, `None`, `(1, 2)`; strings as they are.
    #[must_use]
    pub fn key_text(&self, id: NodeId) -> String {
        match self.text(id) {
            Some(text) => text.into_owned(),
            None => self.repr(id),
        }
    }

    /// A key that compares by value, in a form that is equal for equal keys: 1, 1.0 and True are one key to Python.
    /// `None` for objects, which compare by identity, and for what is too long to spell out.
    #[must_use]
    pub fn plain_key(&self, id: NodeId) -> Option<String> {
        match self.node(id) {
            Node::None => Some("None".to_owned()),
            Node::Int(value) => Some(value.to_string()),
            Node::Bool(value) => Some(i64::from(value).to_string()),
            // Display writes integral floats without a fraction.
            Node::Float(value) if value.is_finite() => Some(format!("{value}")),
            Node::Str(_) | Node::Decoded(_) => self.text(id).map(|text| quoted(&text)),
            Node::Bytes(span) => Some(format!("b{:?}", self.span(span))),
            Node::Tuple(run) if run.len <= 16 => {
                let items: Option<Vec<String>> = self
                    .run(run)
                    .iter()
                    .map(|item| match self.node(*item) {
                        Node::Tuple(_) => None,
                        _ => self.plain_key(*item),
                    })
                    .collect();
                items.map(|items| format!("({})", items.join(", ")))
            }
            _ => None,
        }
    }

    /// A value as `repr()` gives it, cut where it is long or deep.
    #[must_use]
    pub fn repr(&self, id: NodeId) -> String {
        let mut out = String::new();
        self.write_repr(id, 4, &mut out);
        out
    }

    fn write_repr(&self, id: NodeId, depth: u32, out: &mut String) {
        if out.len() > SHOWN_CHARS.saturating_mul(4) {
            return;
        }
        // Writing to a String cannot fail.
        let _ = match self.node(id) {
            Node::None => write!(out, "None"),
            Node::Bool(true) => write!(out, "True"),
            Node::Bool(false) => write!(out, "False"),
            Node::Int(value) => write!(out, "{value}"),
            Node::Float(value) => write!(out, "{}", float(value)),
            Node::LongText(span) => {
                write!(
                    out,
                    "{}",
                    cut(String::from_utf8_lossy(self.span(span)).trim_end_matches('L'))
                )
            }
            Node::Long(span) => write!(out, "<integer of {} bytes>", self.span(span).len()),
            Node::Str(_) | Node::Decoded(_) => {
                let text = self.text(id).unwrap_or_default();
                write!(out, "{}", quoted(&cut(&text)))
            }
            Node::Bytes(span) if self.span(span).len() <= SHOWN_CHARS => {
                write!(out, "b'{}'", self.span(span).escape_ascii())
            }
            Node::Bytes(span) => write!(out, "<{} bytes>", self.span(span).len()),
            Node::Global(global) => match self.global_name(global) {
                Some((module, name)) => write!(out, "{}.{}", cut(&module), cut(&name)),
                None => Ok(()),
            },
            Node::Tuple(run) if depth > 0 => {
                self.write_items(self.run(run), depth, ["(", ")"], out);
                Ok(())
            }
            Node::FrozenSet(run) if depth > 0 => {
                self.write_items(self.run(run), depth, ["frozenset({", "})"], out);
                Ok(())
            }
            _ => write!(out, "<{}>", self.kind(id)),
        };
    }

    fn write_items(&self, items: &[NodeId], depth: u32, ends: [&str; 2], out: &mut String) {
        let [open, close] = ends;
        out.push_str(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            if i >= 32 {
                out.push_str("...");
                break;
            }
            self.write_repr(*item, depth.saturating_sub(1), out);
        }
        if items.len() == 1 && open == "(" {
            out.push(',');
        }
        out.push_str(close);
    }

    /// What kind of value it is, in a few words.
    #[must_use]
    pub fn kind(&self, id: NodeId) -> String {
        let name = match self.node(id) {
            Node::None => "None",
            Node::Bool(_) => "bool",
            Node::Int(_) | Node::Long(_) | Node::LongText(_) => "int",
            Node::Float(_) => "float",
            Node::Str(_) | Node::Decoded(_) => "str",
            Node::Bytes(_) => "bytes",
            Node::Tuple(_) => "tuple",
            Node::FrozenSet(_) => "frozenset",
            Node::List(_) => "list",
            Node::Set(_) => "set",
            Node::Dict(_) => "dict",
            Node::Persistent(_) => "persistent object",
            Node::Extension(_) => "extension object",
            Node::Global(_) => return format!("global `{}`", cut(&self.repr(id))),
            Node::Reduce { callable, .. } => {
                return format!("result of `{}`", cut(&self.repr(callable)));
            }
            Node::New { class, .. } | Node::NewEx { class, .. } => {
                return format!("`{}` object", cut(&self.repr(class)));
            }
        };
        name.to_owned()
    }
}

/// A float as Python's `repr`: the shortest digits that read back, exponents from 1e16 and below 1e-4.
fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}");
        return match text.split_once('e') {
            Some((digits, exponent)) => match exponent.strip_prefix('-') {
                Some(power) => format!("{digits}e-{power:0>2}"),
                None => format!("{digits}e+{exponent:0>2}"),
            },
            None => text,
        };
    }
    format!("{value:?}")
}

/// A string in Python's quotes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(text.len().saturating_add(2));
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        for (value, text) in [
            (2.5, "2.5"),
            (1.0, "1.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (1e-4, "0.0001"),
            (1e22, "1e+22"),
            (123_456_789.0, "123456789.0"),
            (-0.0, "-0.0"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(value), text);
        }
        assert_eq!(quoted("it's"), "\"it's\"");
        assert_eq!(quoted("a\nb\u{1b}"), "'a\\nb\\x1b'");
    }
}
