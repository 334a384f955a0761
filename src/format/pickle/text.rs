//! The text of protocol 0: numbers and escaped strings.

/// Python's `STRING` argument without its quotes and escapes; `None` when it is not quoted or badly escaped.
pub(super) fn unescape_string(line: &[u8]) -> Option<Vec<u8>> {
    let body = match line {
        [quote @ (b'\'' | b'"'), body @ .., end] if quote == end => body,
        _ => return None,
    };
    let mut out = Vec::with_capacity(body.len());
    let mut bytes = body.iter();
    while let Some(&byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next()? {
            b'\n' => {}
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'a' => out.push(7),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'v' => out.push(11),
            b'x' => {
                let (high, low) = (bytes.next()?, bytes.next()?);
                let value = hex(&[*high, *low])?;
                out.push(u8::try_from(value).ok()?);
            }
            &digit @ b'0'..=b'7' => {
                let mut value = u32::from(digit & 7);
                for _ in 0..2 {
                    let Some(next @ b'0'..=b'7') = bytes.as_slice().first().copied() else {
                        break;
                    };
                    value = (value << 3) | u32::from(next & 7);
                    bytes.next();
                }
                out.push(u8::try_from(value & 0xff).ok()?);
            }
            &other @ (b'\\' | b'\'' | b'"') => out.push(other),
            &other => out.extend([b'\\', other]),
        }
    }
    Some(out)
}

/// Python's `raw-unicode-escape`: Latin-1 with `\uXXXX` and `\UXXXXXXXX`; lone surrogates become U+FFFD.
pub(super) fn unescape_unicode(line: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    let mut pending: Option<u32> = None;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = match tail.first() {
            Some(b'u') if byte == b'\\' => 4,
            Some(b'U') if byte == b'\\' => 8,
            _ => {
                flush(&mut pending, &mut out);
                out.push(char::from(byte));
                rest = tail;
                continue;
            }
        };
        let end = usize::checked_add(1, digits)?;
        let value = hex(tail.get(1..end)?)?;
        rest = tail.get(end..)?;
        push_unit(value, &mut pending, &mut out)?;
    }
    flush(&mut pending, &mut out);
    Some(out)
}

/// Adds a code point or half of a surrogate pair.
fn push_unit(value: u32, pending: &mut Option<u32>, out: &mut String) -> Option<()> {
    match (*pending, value) {
        (Some(high), 0xdc00..=0xdfff) => {
            let joined = 0x1_0000_u32
                .checked_add((high & 0x3ff) << 10)?
                .checked_add(value & 0x3ff)?;
            out.push(char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER));
            *pending = None;
        }
        (_, 0xd800..=0xdbff) => {
            flush(pending, out);
            *pending = Some(value);
        }
        _ => {
            flush(pending, out);
            if value > 0x0010_ffff {
                return None;
            }
            out.push(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
    }
    Some(())
}

fn flush(pending: &mut Option<u32>, out: &mut String) {
    if pending.take().is_some() {
        out.push(char::REPLACEMENT_CHARACTER);
    }
}

fn hex(digits: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(digits).ok()?;
    if text.starts_with('+') {
        return None;
    }
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_protocol_0() {
        assert_eq!(unescape_string(b"'abc'").unwrap(), b"abc");
        assert_eq!(
            unescape_string(b"\"a\\'b\\x41\\n\\101\"").unwrap(),
            b"a'bA\nA"
        );
        assert_eq!(unescape_string(b"'\\d'").unwrap(), b"\\d");
        assert!(unescape_string(b"abc").is_none());
        assert!(unescape_string(b"'").is_none());
        assert!(unescape_string(b"'a\\").is_none());
        assert!(unescape_string(b"'\\x4'").is_none());
        assert_eq!(
            unescape_unicode(b"a\\u5c42\xe9").unwrap(),
            "a\u{5c42}\u{e9}"
        );
        assert_eq!(unescape_unicode(b"\\ud83d\\ude00").unwrap(), "\u{1f600}");
        assert_eq!(unescape_unicode(b"\\ud83dx").unwrap(), "\u{fffd}x");
        assert_eq!(unescape_unicode(b"\\U0001f600").unwrap(), "\u{1f600}");
        assert_eq!(unescape_unicode(b"\\n\\\\").unwrap(), "\\n\\\\");
        assert!(unescape_unicode(b"\\u12").is_none());
        assert!(unescape_unicode(b"\\Uffffffff").is_none());
    }
}
