//! Limits as typed: `peak_reserved=+2%`, `file_bytes=120MB`, `parameters=12M`.

use std::fmt;
use std::str::FromStr;

use crate::diff::metrics::{self, CATALOGUE, Parts, Unit};
use crate::units::ByteSize;

/// How far a number may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Up to this, whatever it was.
    Absolute(u64),
    /// By this much more than the baseline.
    Plus(u64),
    /// By this share of the baseline more, in millionths, rounded down.
    Share(u64),
}

/// The unit of [`Bound::Share`].
const MILLION: u64 = 1_000_000;

impl Bound {
    /// The largest number that is within; `None` where that depends on a baseline that is not known.
    #[must_use]
    pub fn highest(self, baseline: Option<u64>) -> Option<u64> {
        match self {
            Bound::Absolute(limit) => Some(limit),
            Bound::Plus(more) => Some(baseline?.saturating_add(more)),
            Bound::Share(share) => {
                let baseline = baseline?;
                Some(baseline.saturating_add(of_share(baseline, share)))
            }
        }
    }

    /// The smallest number that is no improvement worth a new baseline; `None` as above, and for absolute limits.
    #[must_use]
    pub fn lowest(self, baseline: Option<u64>) -> Option<u64> {
        match self {
            Bound::Absolute(_) => None,
            Bound::Plus(less) => Some(baseline?.saturating_sub(less)),
            Bound::Share(share) => {
                let baseline = baseline?;
                Some(baseline.saturating_sub(of_share(baseline, share)))
            }
        }
    }
}

fn of_share(baseline: u64, share: u64) -> u64 {
    let part = u128::from(baseline) * u128::from(share) / u128::from(MILLION);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// A limit of one number and, where it is relative to a baseline, of the parts of it that have none of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The number's full name.
    pub metric: String,
    /// How far it may go.
    pub bound: Bound,
    /// As typed, without the name.
    pub text: String,
}

/// How much what is exact may grow without a limit of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tolerance {
    /// [`Bound::Share`], or [`Bound::Plus`] of 0.
    pub bound: Bound,
    /// As typed.
    pub text: String,
}

impl Tolerance {
    /// Of numbers that are exact.
    #[must_use]
    pub fn exact() -> Tolerance {
        Tolerance {
            bound: Bound::Plus(0),
            text: "0".to_owned(),
        }
    }

    /// Of numbers that were measured.
    #[must_use]
    pub fn measured() -> Tolerance {
        Tolerance {
            bound: Bound::Share(50_000),
            text: "+5%".to_owned(),
        }
    }
}

/// Why a limit could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// No `=`.
    #[error("`{0}` is no limit: expected METRIC=LIMIT, such as `peak_reserved=+2%`")]
    NoLimit(String),
    /// A number that nobody counts.
    #[error("there is no metric `{name}`: expected one of {}", Names)]
    Metric {
        /// What was typed.
        name: String,
    },
    /// A metric that has no parts.
    #[error("`{name}` has no parts, such as `{part}`")]
    Part {
        /// The metric.
        name: &'static str,
        /// What was typed.
        part: String,
    },
    /// A limit that is none.
    #[error("`{text}` is no limit of `{metric}`: expected {expected}")]
    Bound {
        /// What was typed.
        text: String,
        /// The metric.
        metric: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// A tolerance that is none.
    #[error("`{0}` is no tolerance: expected `0` or a percentage, such as `2%`")]
    Tolerance(String),
}

/// All names, for a message.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in CATALOGUE.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", kind.name)?;
        }
        Ok(())
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let (name, bound) = text
            .split_once('=')
            .ok_or_else(|| LimitError::NoLimit(text.to_owned()))?;
        Limit::new(name.trim(), bound.trim())
    }
}

impl Limit {
    /// A limit by name and text.
    pub fn new(name: &str, text: &str) -> Result<Limit, LimitError> {
        let Some((kind, part)) = metrics::find(name) else {
            return Err(LimitError::Metric {
                name: name.to_owned(),
            });
        };
        if !part.is_empty() && kind.parts == Parts::None {
            return Err(LimitError::Part {
                name: kind.name,
                part: part.to_owned(),
            });
        }
        let expected = match kind.unit {
            Unit::Bytes => "a size such as `120MB`, or growth such as `+2%` or `+1MiB`",
            Unit::Count => "a number such as `12M`, or growth such as `+2%` or `+1000`",
        };
        let bound = bound(text, kind.unit).ok_or_else(|| LimitError::Bound {
            text: text.to_owned(),
            metric: kind.name,
            expected,
        })?;
        let metric = match part {
            "" => kind.name.to_owned(),
            part => format!("{}.{part}", kind.name),
        };
        Ok(Limit {
            metric,
            bound,
            text: text.to_owned(),
        })
    }

    /// Whether it says how far this number may go: its own limit, or a relative one of the whole that it is a part of.
    #[must_use]
    pub fn applies(&self, metric: &str) -> bool {
        let relative = !matches!(self.bound, Bound::Absolute(_));
        let part = metric.strip_prefix(&self.metric);
        self.metric == metric || (relative && part.is_some_and(|part| part.starts_with('.')))
    }
}

fn bound(text: &str, unit: Unit) -> Option<Bound> {
    let (growth, text) = match text.strip_prefix('+') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if let Some(share) = text.strip_suffix('%') {
        return growth
            .then(|| millionths(share))
            .flatten()
            .map(Bound::Share);
    }
    let number = match unit {
        Unit::Bytes => text.parse::<ByteSize>().ok()?.0,
        Unit::Count => count(text)?,
    };
    Some(if growth {
        Bound::Plus(number)
    } else {
        Bound::Absolute(number)
    })
}

/// `12`, `1.5M`, `3.6G`: k, M, G, T are powers of 1000.
fn count(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" => "b",
        "k" | "K" => "kb",
        "M" => "mb",
        "G" | "B" => "gb",
        "T" => "tb",
        _ => return None,
    };
    // The same decimal arithmetic as of sizes.
    let size: ByteSize = format!("{}{factor}", digits.trim()).parse().ok()?;
    Some(size.0)
}

/// `2` percent, `0.5` percent, in millionths.
fn millionths(percent: &str) -> Option<u64> {
    let percent = percent.trim();
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty())
        || fraction.len() > 4
        || !digits(fraction)
        || !digits(whole)
    {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let fraction: u64 = format!("{fraction:0<4}").parse().ok()?;
    whole.checked_mul(10_000)?.checked_add(fraction)
}

impl FromStr for Tolerance {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Tolerance, LimitError> {
        let wrong = || LimitError::Tolerance(text.to_owned());
        let rest = text.strip_prefix('+').unwrap_or(text);
        let bound = match rest.strip_suffix('%') {
            Some(percent) => Bound::Share(millionths(percent).ok_or_else(wrong)?),
            // A bare number could be a ratio, a percentage or bytes.
            None if rest == "0" => Bound::Plus(0),
            None => return Err(wrong()),
        };
        Ok(Tolerance {
            text: match rest {
                "0" => "0".to_owned(),
                rest => format!("+{rest}"),
            },
            bound,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_as_people_type_them() {
        let bound = |text: &str| text.parse::<Limit>().map(|limit| limit.bound);
        assert_eq!(bound("peak_reserved=+2%"), Ok(Bound::Share(20_000)));
        assert_eq!(
            bound("peak_reserved_bytes.forward=+0.5%"),
            Ok(Bound::Share(5_000))
        );
        assert_eq!(bound("file_bytes=120MB"), Ok(Bound::Absolute(120_000_000)));
        assert_eq!(bound("file=+1KiB"), Ok(Bound::Plus(1024)));
        assert_eq!(bound("parameters=11.7M"), Ok(Bound::Absolute(11_700_000)));
        assert_eq!(bound("tensors=+0"), Ok(Bound::Plus(0)));
        for wrong in [
            "file_bytes",
            "file_bytes=",
            "file_bytes=2%",
            "file_bytes=-2%",
            "file_bytes=+x%",
            "file_bytes=+%",
            "speed=1",
            "=1",
            "tensors=1MiB",
            "tensors.forward=1",
            "file_bytes=+1.23456%",
            "parameters=1x",
            "file_bytes=99999999999TB",
            "file_bytes=+.%",
        ] {
            assert!(bound(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_relative_limit_holds_for_the_parts() {
        let limit: Limit = "peak_reserved=+2%".parse().unwrap();
        assert!(limit.applies("peak_reserved_bytes"));
        assert!(limit.applies("peak_reserved_bytes.backward.2"));
        assert!(!limit.applies("peak_allocated_bytes"));
        let limit: Limit = "peak_reserved=8GiB".parse().unwrap();
        assert!(!limit.applies("peak_reserved_bytes.forward"));
    }

    #[test]
    fn bounds_are_exact() {
        let two: Limit = "file_bytes=+2%".parse().unwrap();
        assert_eq!(two.bound.highest(Some(150)), Some(153));
        assert_eq!(two.bound.highest(Some(49)), Some(49), "rounded down");
        assert_eq!(two.bound.lowest(Some(150)), Some(147));
        assert_eq!(two.bound.highest(None), None);
        assert_eq!(Bound::Share(20_000).highest(Some(u64::MAX)), Some(u64::MAX));
        assert_eq!(
            "2%".parse::<Tolerance>().unwrap().bound,
            Bound::Share(20_000)
        );
        assert_eq!("0".parse::<Tolerance>().unwrap(), Tolerance::exact());
        for wrong in ["", "2", "0.02", "-1%", "5 percent", "+"] {
            assert!(wrong.parse::<Tolerance>().is_err(), "{wrong}");
        }
    }
}
