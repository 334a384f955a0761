//! Text from files and other programs, made fit for a terminal: escaped, measured, cut.
//!
//! Names in a checkpoint can hold anything: a newline that forges a row, an escape sequence that recolours the
//! screen, a mark that turns the direction of writing. JSON carries them exactly; whatever is drawn goes through here.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Whether a character must not reach a terminal as it is.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Marks without width, and those that turn the direction of writing.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            // Line and paragraph separators, invisible operators, isolates, the byte order mark, tags.
            | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e0fff}')
}

/// `text` with control characters and invisible marks written as `\n`, `\x1b`, `\u{202e}`.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if is_unsafe(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// How much two names have to have in common, at least, for one to be taken for a slip of the other.
const ALIKE: f64 = 0.6;

/// The name that is spelled most like `text`, the first of several; `None` where none is much like it.
#[must_use]
pub fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut best = (ALIKE, None);
    for name in names {
        let alike = strsim::normalized_damerau_levenshtein(text, name);
        if alike > best.0 {
            best = (alike, Some(name));
        }
    }
    best.1
}

/// Columns that `text` takes up.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` cut in its middle to at most `columns` columns, the cut marked by `…`. The end of a name tells most.
#[must_use]
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let Some(room) = columns.checked_sub(1) else {
        return String::new();
    };
    let tail_room = room - room / 3;
    let head: String = take(text.chars(), room - tail_room).into_iter().collect();
    let tail: String = take(text.chars().rev(), tail_room)
        .into_iter()
        .rev()
        .collect();
    format!("{head}…{tail}")
}

/// The first characters that fit into `room` columns.
fn take(chars: impl Iterator<Item = char>, room: usize) -> Vec<char> {
    let mut used = 0;
    chars
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= room
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_the_cursor_gets_through() {
        assert_eq!(escape("a\nb\x1b[31m\0\u{85}"), "a\\nb\\x1b[31m\\x00\\u{85}");
        assert_eq!(escape("\u{202e}gnp.exe"), "\\u{202e}gnp.exe");
        assert_eq!(escape("größe.权重"), "größe.权重");
    }

    #[test]
    fn a_cut_keeps_both_ends_and_the_width() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("model.layers.0.weight", 10), "mod…weight");
        for columns in 0..12 {
            assert!(width(&cut("权重权重权重权重", columns)) <= columns);
        }
    }
}
