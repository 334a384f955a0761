//! Counts, extremes, mean and spread of numbers, in one go and in pieces.
//!
//! Numbers come in chunks that stay in the cache: the mean of a chunk first, then the squares of what its numbers differ
//! from it, so that a large mean with a small spread loses nothing. Pieces are joined by the formula of Chan, Golub and
//! LeVeque.

use crate::checkpoint::{Statistics, Value};

/// Numbers of a chunk.
pub(super) const CHUNK: usize = 4096;

/// What is known of the numbers so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moments {
    finite: u64,
    mean: f64,
    /// Sum of the squares of the differences from the mean.
    squares: f64,
    min: f64,
    max: f64,
    nan: u64,
    inf: u64,
    zero: u64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments {
            finite: 0,
            mean: 0.0,
            squares: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            nan: 0,
            inf: 0,
            zero: 0,
        }
    }
}

impl Moments {
    /// Adds numbers, best [`CHUNK`] at a time.
    pub(super) fn add(&mut self, numbers: &[f64]) {
        let mut chunk = Moments::default();
        let mut sum = 0.0;
        for &number in numbers {
            let finite = number.is_finite();
            let known = if finite { number } else { 0.0 };
            sum += known;
            chunk.finite += u64::from(finite);
            chunk.nan += u64::from(number.is_nan());
            chunk.zero += u64::from(number == 0.0);
            chunk.min = chunk.min.min(if finite { number } else { f64::INFINITY });
            chunk.max = chunk
                .max
                .max(if finite { number } else { f64::NEG_INFINITY });
        }
        chunk.inf = (numbers.len() as u64).saturating_sub(chunk.finite.saturating_add(chunk.nan));
        if chunk.finite > 0 {
            chunk.mean = sum / chunk.finite as f64;
        }
        for &number in numbers {
            let from_mean = number - chunk.mean;
            chunk.squares += if number.is_finite() {
                from_mean * from_mean
            } else {
                0.0
            };
        }
        self.join(&chunk);
    }

    /// Adds what is known of other numbers.
    pub(super) fn join(&mut self, other: &Moments) {
        self.nan = self.nan.saturating_add(other.nan);
        self.inf = self.inf.saturating_add(other.inf);
        self.zero = self.zero.saturating_add(other.zero);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        if other.finite == 0 {
            return;
        }
        let (before, more) = (self.finite as f64, other.finite as f64);
        let all = before + more;
        let apart = other.mean - self.mean;
        self.mean += apart * (more / all);
        self.squares += other.squares + apart * apart * (before * (more / all));
        self.finite = self.finite.saturating_add(other.finite);
    }

    /// The answer; integers of 64 bits have their exact extremes in `exact`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "integers without exact extremes have at most 32 bits"
    )]
    pub(super) fn statistics(&self, integer: bool, exact: Option<(i128, i128)>) -> Statistics {
        let known = |number: f64| (self.finite > 0 && number.is_finite()).then_some(number);
        let value = |number: f64, exact: Option<i128>| match exact {
            Some(exact) => whole(exact),
            None if integer => known(number).map(|number| Value::Signed(number as i64)),
            None => known(number).map(Value::Float),
        };
        let spread = self.squares / (self.finite.saturating_sub(1)) as f64;
        Statistics {
            min: value(self.min, exact.map(|(min, _)| min)),
            max: value(self.max, exact.map(|(_, max)| max)),
            mean: known(self.mean),
            std: known(spread.sqrt()).filter(|_| self.finite > 1),
            nan: self.nan,
            inf: self.inf,
            zero: self.zero,
        }
    }
}

fn whole(value: i128) -> Option<Value> {
    match i64::try_from(value) {
        Ok(value) => Some(Value::Signed(value)),
        Err(_) => u64::try_from(value).ok().map(Value::Unsigned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[f64]) -> Statistics {
        let mut moments = Moments::default();
        moments.add(numbers);
        moments.statistics(false, None)
    }

    #[test]
    fn what_is_not_finite_is_counted_and_left_out() {
        let found = of(&[
            1.0,
            f64::NAN,
            -3.0,
            f64::INFINITY,
            0.0,
            -0.0,
            f64::NEG_INFINITY,
        ]);
        assert_eq!((found.nan, found.inf, found.zero), (1, 2, 2));
        assert_eq!(found.min, Some(Value::Float(-3.0)));
        assert_eq!(found.max, Some(Value::Float(1.0)));
        assert_eq!(found.mean, Some(-0.5));
        let nothing = of(&[f64::NAN]);
        assert_eq!((nothing.min, nothing.mean, nothing.std), (None, None, None));
        assert_eq!((of(&[7.0]).mean, of(&[7.0]).std), (Some(7.0), None));
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let numbers: Vec<f64> = (0..1000).map(|n| 1e9 + f64::from(n % 7)).collect();
        let whole = of(&numbers);
        let mut joined = Moments::default();
        for piece in numbers.chunks(77) {
            joined.add(piece);
        }
        let joined = joined.statistics(false, None);
        let close = |a: Option<f64>, b: Option<f64>| (a.unwrap() - b.unwrap()).abs() < 1e-6;
        assert!(close(whole.mean, joined.mean) && close(whole.std, joined.std));
        assert!((whole.std.unwrap() - 2.0).abs() < 0.01, "{whole:?}");
    }
}
