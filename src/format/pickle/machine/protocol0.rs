//! The text opcodes of protocol 0.

use super::super::text::{unescape_string, unescape_unicode};
use super::super::{Kind, Node, Span, repr};
use super::{FALSE, Machine, TRUE};

impl Machine<'_> {
    pub(super) fn proto(&mut self) -> Result<(), Kind> {
        let protocol = self.byte("PROTO")?;
        if protocol > 5 {
            return Err(Kind::Protocol(protocol));
        }
        self.protocol = Some(self.protocol.map_or(protocol, |p| p.max(protocol)));
        Ok(())
    }

    pub(super) fn number_text(line: &[u8], expected: &'static str) -> Result<String, Kind> {
        let text = String::from_utf8_lossy(line);
        let trimmed = text.trim();
        let digits = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Kind::Text {
                expected,
                text: repr::cut(trimmed),
            });
        }
        Ok(trimmed.to_owned())
    }

    pub(super) fn int_line(&mut self) -> Result<(), Kind> {
        let span = self.line_span()?;
        match self.at(span) {
            b"00" => self.push(FALSE),
            b"01" => self.push(TRUE),
            line => {
                let text = Self::number_text(line, "an integer")?;
                self.decimal(&text, span)
            }
        }
    }

    pub(super) fn long_line(&mut self) -> Result<(), Kind> {
        let span = self.line_span()?;
        let line = self.at(span);
        let text = Self::number_text(line.strip_suffix(b"L").unwrap_or(line), "an integer")?;
        self.decimal(&text, span)
    }

    pub(super) fn decimal(&mut self, text: &str, span: Span) -> Result<(), Kind> {
        match text.parse::<i64>() {
            Ok(value) => self.int(value),
            Err(_) => self.push_node(Node::LongText(span)),
        }
    }

    pub(super) fn float_line(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        let text = String::from_utf8_lossy(line);
        let value = text.trim().parse::<f64>().map_err(|_| Kind::Text {
            expected: "a float",
            text: repr::cut(&text),
        })?;
        self.push_node(Node::Float(value))
    }

    pub(super) fn string_line(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        let bytes = unescape_string(line).ok_or_else(|| Kind::Text {
            expected: "a quoted string",
            text: repr::cut(&String::from_utf8_lossy(line)),
        })?;
        self.decoded(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn unicode_line(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        let text = unescape_unicode(line).ok_or_else(|| Kind::Text {
            expected: "raw-unicode-escape text",
            text: repr::cut(&String::from_utf8_lossy(line)),
        })?;
        self.decoded(text)
    }

    pub(super) fn decoded(&mut self, text: String) -> Result<(), Kind> {
        let index = u32::try_from(self.decoded.len()).unwrap_or(u32::MAX);
        self.budget.left =
            self.budget
                .left
                .checked_sub(text.capacity() as u64)
                .ok_or(Kind::Memory {
                    limit_bytes: self.budget.limit,
                })?;
        self.budget.push(&mut self.decoded, text)?;
        self.push_node(Node::Decoded(index))
    }

    pub(super) fn index_line(&mut self) -> Result<u64, Kind> {
        let line = self.line()?;
        let text = Self::number_text(line, "a memo index")?;
        text.parse::<u64>().map_err(|_| Kind::Text {
            expected: "a memo index",
            text,
        })
    }
}
