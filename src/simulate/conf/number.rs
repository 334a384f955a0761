//! Numbers as C's `strtoull` and `strtod` read them: the longest prefix that is one, the rest ignored.

/// What the start of a token says.
#[derive(Debug, PartialEq)]
pub(super) enum Number<T> {
    /// A number, perhaps followed by other text.
    Value(T),
    /// No number at all.
    None,
    /// Too large (or, for a float, too small) for its type.
    OutOfRange,
}

/// `strtoull` in base 10: an optional sign (a minus wraps around), then digits.
pub(super) fn unsigned_prefix(token: &str) -> Number<u64> {
    let (negative, rest) = sign(token);
    let digits = digits(rest);
    if digits.is_empty() {
        return Number::None;
    }
    match digits.parse::<u64>() {
        Ok(value) if negative => Number::Value(value.wrapping_neg()),
        Ok(value) => Number::Value(value),
        Err(_) => Number::OutOfRange,
    }
}

/// `strtod`: decimal or hexadecimal, `inf`, `infinity`, `nan`; overflow and underflow are out of range.
pub(super) fn float_prefix(token: &str) -> Number<f64> {
    let (negative, rest) = sign(token);
    let lower = rest.to_ascii_lowercase();
    let magnitude = if lower.starts_with("inf") {
        Number::Value(f64::INFINITY)
    } else if lower.starts_with("nan") {
        Number::Value(f64::NAN)
    } else if let Some(hexadecimal) = lower.strip_prefix("0x").and_then(hexadecimal) {
        in_range(hexadecimal.0, hexadecimal.1)
    } else {
        decimal(&lower)
    };
    match magnitude {
        Number::Value(value) if negative => Number::Value(-value),
        other => other,
    }
}

fn sign(token: &str) -> (bool, &str) {
    match token.as_bytes().first() {
        Some(b'-') => (true, &token[1..]),
        Some(b'+') => (false, &token[1..]),
        _ => (false, token),
    }
}

fn digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit());
    &text[..end.unwrap_or(text.len())]
}

/// The length of `.` and what follows while `accept` holds; 0 without a point.
fn fraction_length(text: &str, accept: fn(&char) -> bool) -> usize {
    text.strip_prefix('.')
        .map_or(0, |rest| 1 + rest.chars().take_while(accept).count())
}

/// The length of an exponent introduced by `marker`; 0 where it has no digits.
fn exponent_length(text: &str, marker: char) -> usize {
    let Some(rest) = text.strip_prefix(marker) else {
        return 0;
    };
    let (_, unsigned) = sign(rest);
    let count = digits(unsigned).len();
    if count == 0 {
        0
    } else {
        1 + rest.len() - unsigned.len() + count
    }
}

fn decimal(text: &str) -> Number<f64> {
    let whole = digits(text).len();
    let fraction = fraction_length(&text[whole..], char::is_ascii_digit);
    if whole == 0 && fraction < 2 {
        return Number::None;
    }
    let mantissa = whole + fraction;
    let end = mantissa + exponent_length(&text[mantissa..], 'e');
    let zero = !text[..mantissa].contains(|c: char| matches!(c, '1'..='9'));
    match text[..end].parse::<f64>() {
        Ok(value) => in_range(value, zero),
        Err(_) => Number::None,
    }
}

/// A hexadecimal float behind `0x`, with whether it is written as zero; `None` where no digit follows.
fn hexadecimal(text: &str) -> Option<(f64, bool)> {
    let whole = text.chars().take_while(char::is_ascii_hexdigit).count();
    let fraction = fraction_length(&text[whole..], char::is_ascii_hexdigit);
    if whole == 0 && fraction < 2 {
        return None;
    }
    let mantissa = whole + fraction;
    let mut value = 0.0_f64;
    for digit in text[..mantissa].chars().filter_map(|c| c.to_digit(16)) {
        value = value.mul_add(16.0, f64::from(digit));
    }
    let zero = value == 0.0;
    let exponent = exponent_length(&text[mantissa..], 'p');
    let written = text.get(mantissa + 1..mantissa + exponent).unwrap_or("0");
    let places = i32::try_from(fraction.saturating_sub(1)).unwrap_or(i32::MAX);
    let power = written.trim_start_matches('+').parse::<i32>().unwrap_or(0);
    let power = power.saturating_sub(places.saturating_mul(4));
    Some((value * 2.0_f64.powi(power), zero))
}

fn in_range(value: f64, written_as_zero: bool) -> Number<f64> {
    // glibc reports results below the smallest normal number, too.
    let tiny = value.abs() < f64::MIN_POSITIVE && !written_as_zero;
    if value.is_infinite() || tiny {
        Number::OutOfRange
    } else {
        Number::Value(value)
    }
}
