//! JSON: the exact report for programs, laid out so that people and `diff` can read it too.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

use super::{Document, Render};

/// The exact report as JSON: one document with a tensor a line, or one document a line for several files.
#[derive(Debug, Clone, Copy)]
pub struct Json {
    /// One document a line.
    pub lines: bool,
}

impl Render for Json {
    fn document(
        &self,
        document: &Document<'_>,
        _first: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let body = Body {
            report: &document.report,
            signature: document.signature.as_deref(),
            cast: document.cast.map(|cast| Cast {
                dtype: cast.dtype.name(),
                storage_bytes: cast.storage_bytes,
            }),
        };
        let result = if self.lines {
            body.serialize(&mut Serializer::with_formatter(&mut *out, CompactFormatter))
        } else {
            body.serialize(&mut Serializer::with_formatter(
                &mut *out,
                ItemALine::default(),
            ))
        };
        result.map_err(io::Error::from)?;
        out.write_all(b"\n")
    }
}

/// Writes a value with an item a line: its outer two levels have lines of their own, deeper ones stay on theirs.
pub fn an_item_a_line(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *out, ItemALine::default());
    value.serialize(&mut serializer)?;
    out.write_all(b"\n")
}

/// The report, and what was asked for besides.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    report: &'a super::ExactReport<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", rename = "as")]
    cast: Option<Cast>,
}

#[derive(Serialize)]
struct Cast {
    dtype: &'static str,
    storage_bytes: u64,
}

/// Lines and indents the outer two levels, so that every tensor is one line; deeper values stay on theirs.
#[derive(Debug, Default)]
struct ItemALine {
    depth: usize,
    has_value: bool,
}

/// Levels that get lines of their own.
const LINED: usize = 2;

impl ItemALine {
    fn open<W: ?Sized + Write>(&mut self, bracket: &[u8], out: &mut W) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, bracket: &[u8], out: &mut W) -> io::Result<()> {
        let lined = self.depth <= LINED && self.has_value;
        self.depth = self.depth.saturating_sub(1);
        if lined {
            self.line(out)?;
        }
        self.has_value = true;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.depth <= LINED {
            if !first {
                out.write_all(b",")?;
            }
            self.line(out)
        } else if first {
            Ok(())
        } else {
            out.write_all(b", ")
        }
    }

    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }
}

impl Formatter for ItemALine {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(b"[", out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(b"]", out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(b"{", out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(b"}", out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_a_line() {
        let value =
            serde_json::json!({"a": [], "b": [[1, 2], {"x": []}], "c": {"d": {"e": 1}}, "f": {}});
        let mut out = Vec::new();
        value
            .serialize(&mut Serializer::with_formatter(
                &mut out,
                ItemALine::default(),
            ))
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "{\n  \"a\": [],\n  \"b\": [\n    [1, 2],\n    {\"x\": []}\n  ],\n  \"c\": {\n    \"d\": {\"e\": 1}\n  },\n  \"f\": {}\n}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }
}
