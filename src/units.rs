//! Bytes and counts: checked arithmetic, parsing of sizes, formatting for people.
//!
//! The only place that divides by 1000 or 1024. JSON carries the exact integers; everything here that returns text
//! is for renderers and messages.

use std::fmt;
use std::str::FromStr;

/// How sizes and counts are written for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Units {
    /// Binary: KiB = 2^10, MiB = 2^20, ...
    #[default]
    Iec,
    /// Decimal: kB = 10^3, MB = 10^6, ...
    Si,
    /// Exact bytes.
    Bytes,
}

const IEC: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
const SI: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

impl Units {
    /// A byte count as text with three significant digits (`44.6 MiB`), or exact with [`Units::Bytes`].
    #[must_use]
    pub fn bytes(self, bytes: u64) -> String {
        match self {
            Units::Iec => scaled(bytes, 1024.0, &IEC),
            Units::Si => scaled(bytes, 1000.0, &SI),
            Units::Bytes => format!("{} B", grouped(bytes)),
        }
    }

    /// A signed byte difference as text, always with its sign (`+1.5 MiB`).
    #[must_use]
    pub fn bytes_delta(self, delta: i128) -> String {
        let sign = if delta < 0 { '-' } else { '+' };
        let size = u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX);
        format!("{sign}{}", self.bytes(size))
    }
}

/// `value` divided by powers of `base` until it is below `base`, with three significant digits and its unit.
fn scaled(value: u64, base: f64, names: &[&str]) -> String {
    let mut scaled = value as f64;
    let mut index = 0;
    // 999.5 and up would print as `1000`; move on to the next unit instead (1023 KiB stays below 1024).
    while scaled >= base - 0.5 && index + 1 < names.len() {
        scaled /= base;
        index += 1;
    }
    let name = names.get(index).copied().unwrap_or("B");
    let digits = match (index, scaled) {
        (0, _) => 0,
        (_, s) if s < 9.995 => 2,
        (_, s) if s < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$} {name}")
}

/// An integer with thin grouping for tables: `11,689,512`.
#[must_use]
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// A difference of counts with its sign and grouping: `+1,024`.
#[must_use]
pub fn signed(delta: i64) -> String {
    let sign = if delta < 0 { '-' } else { '+' };
    format!("{sign}{}", grouped(delta.unsigned_abs()))
}

/// A count in thousands, millions, ... (powers of 1000): `11.7 M`, `3.63 G`; exact below 1000.
#[must_use]
pub fn count(value: u64) -> String {
    if value < 1000 {
        return value.to_string();
    }
    scaled(value, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Nanoseconds as a short duration: `850 ns`, `1.2 ms`, `3.4 s`.
#[must_use]
pub fn duration_ns(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        _ => format!("{:.2} s", value / 1e9),
    }
}

/// Why a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseSizeError {
    /// No number in front of the unit.
    #[error(
        "`{0}` is not a size: expected a number with an optional unit, such as `24GiB`, `80GB` or `1048576`"
    )]
    Number(String),
    /// A unit that is none of B, kB, KiB, MB, MiB, ...
    #[error("`{0}` has an unknown unit `{1}`: expected B, kB, MB, GB, TB or KiB, MiB, GiB, TiB")]
    Unit(String, String),
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is larger than 2^64 - 1 bytes")]
    TooLarge(String),
}

/// A number of bytes as typed by a person: `24GiB`, `8 GB`, `1.5MiB`, `1048576`. Units are case-insensitive; `K`,
/// `M`, `G`, `T` alone are binary, as in PyTorch's and the shell tools' habit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number = number.replace('_', "");
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            _ => {
                return Err(if number.is_empty() {
                    ParseSizeError::Number(text.to_owned())
                } else {
                    ParseSizeError::Unit(text.to_owned(), unit.trim().to_owned())
                });
            }
        };
        let too_large = || ParseSizeError::TooLarge(text.to_owned());
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(factor)
                .map(ByteSize)
                .ok_or_else(too_large);
        }
        let bytes = decimal_times(&number, factor)
            .ok_or_else(|| ParseSizeError::Number(text.to_owned()))?;
        u64::try_from(bytes).map(ByteSize).map_err(|_| too_large())
    }
}

/// `1.5` times a factor in exact integer arithmetic, rounded down, at most `u128::MAX`; None: not a number.
fn decimal_times(number: &str, factor: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.')?;
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    let digits = |s: &str| {
        if s.is_empty() {
            Some(0_u128)
        } else {
            s.parse::<u128>().ok()
        }
    };
    let (whole, part) = (digits(whole)?, digits(fraction)?);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let bytes = whole
        .saturating_mul(scale)
        .saturating_add(part)
        .saturating_mul(u128::from(factor));
    // A product that did not fit is larger than any size even after the division.
    Some(if bytes == u128::MAX {
        bytes
    } else {
        bytes / scale
    })
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Units::Iec.bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_type_them() {
        let size = |s: &str| s.parse::<ByteSize>().map(|b| b.0);
        assert_eq!(size("24GiB"), Ok(24 << 30));
        assert_eq!(size("80 GB"), Ok(80_000_000_000));
        assert_eq!(size("1.5MiB"), Ok(1_572_864));
        assert_eq!(size("1_048_576"), Ok(1 << 20));
        assert_eq!(size("8g"), Ok(8 << 30));
        assert_eq!(size("0"), Ok(0));
        assert!(matches!(
            size("GiB"),
            Err(ParseSizeError::Unit(..) | ParseSizeError::Number(_))
        ));
        assert!(matches!(size("12 parsecs"), Err(ParseSizeError::Unit(..))));
        assert!(matches!(
            size("99999999999TB"),
            Err(ParseSizeError::TooLarge(_))
        ));
        assert!(matches!(
            size("99999999999999999999.5TB"),
            Err(ParseSizeError::TooLarge(_))
        ));
        assert!(matches!(size(""), Err(ParseSizeError::Number(_))));
        assert!(matches!(size("1.2.3MB"), Err(ParseSizeError::Number(_))));
        assert!(matches!(size("-5"), Err(ParseSizeError::Number(_))));
    }

    #[test]
    fn three_significant_digits() {
        assert_eq!(Units::Iec.bytes(0), "0 B");
        assert_eq!(Units::Iec.bytes(1023), "1023 B");
        assert_eq!(Units::Iec.bytes(1024), "1.00 KiB");
        assert_eq!(Units::Iec.bytes(46_758_048), "44.6 MiB");
        assert_eq!(Units::Si.bytes(3_000_000), "3.00 MB");
        assert_eq!(Units::Si.bytes(30_720_000), "30.7 MB");
        assert_eq!(Units::Si.bytes(999_600), "1.00 MB");
        assert_eq!(Units::Bytes.bytes(46_758_048), "46,758,048 B");
        assert_eq!(Units::Iec.bytes(u64::MAX), "16.0 EiB");
        assert_eq!(Units::Iec.bytes_delta(-2048), "-2.00 KiB");
        assert_eq!(count(11_689_512), "11.7 M");
        assert_eq!(count(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(duration_ns(90_000_000), "90.0 ms");
    }
}
