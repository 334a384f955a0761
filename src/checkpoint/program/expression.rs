//! Sizes of exported programs: numbers, symbols, and expressions of them.
//!
//! A file writes them in sympy's own notation (`Add(FloorDiv(Add(s0, -1), 2), 1)`) or as Python prints them
//! (`(s0 - 1)//2 + 1`); both are read here, and written as people do. What is not understood is no expression, never a
//! guess.

use std::collections::BTreeSet;
use std::fmt;

/// Deepest nesting that is read.
const DEPTH: usize = 64;

/// A size, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// A whole number.
    Number(i64),
    /// A size that is not fixed.
    Symbol(String),
    /// A function of others; arithmetic too, by sympy's names (`Add`, `FloorDiv`).
    Call(String, Vec<Expression>),
}

use Expression::{Call, Number, Symbol};

impl Expression {
    /// Reads one; `None` where it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Expression> {
        let mut reader = Reader {
            rest: text,
            depth: 0,
        };
        let read = reader.sum()?;
        reader.rest.trim_start().is_empty().then_some(read)
    }

    /// Its value where the symbols' are known; `None` where one is not, or there is no such whole number.
    pub fn value(&self, symbol: &impl Fn(&str) -> Option<i64>) -> Option<i64> {
        let (name, parts) = match self {
            Number(number) => return Some(*number),
            Symbol(name) => return symbol(name),
            Call(name, parts) => (name.as_str(), parts),
        };
        let values: Option<Vec<i64>> = parts.iter().map(|part| part.value(symbol)).collect();
        let values = values?;
        match (name, values.as_slice()) {
            ("Add", all) => all.iter().try_fold(0_i64, |sum, one| sum.checked_add(*one)),
            ("Mul", all) => all.iter().try_fold(1_i64, |all, one| all.checked_mul(*one)),
            ("Max", [first, more @ ..]) => Some(more.iter().fold(*first, |a, b| a.max(*b))),
            ("Min", [first, more @ ..]) => Some(more.iter().fold(*first, |a, b| a.min(*b))),
            ("FloorDiv" | "CleanDiv", [a, b]) => floor_div(*a, *b),
            ("CeilDiv", [a, b]) => floor_div(a.checked_neg()?, *b)?.checked_neg(),
            ("Mod" | "PythonMod", [a, b]) => a.checked_sub(floor_div(*a, *b)?.checked_mul(*b)?),
            ("Pow" | "PowByNatural", [a, b]) => a.checked_pow(u32::try_from(*b).ok()?),
            _ => None,
        }
    }

    /// The one symbol that is not known yet, as `factor * symbol + rest`; `None` where it is not so simple.
    pub fn line<'e>(&'e self, symbol: &impl Fn(&str) -> Option<i64>) -> Option<Line<'e>> {
        if let Some(rest) = self.value(symbol) {
            return Some(Line {
                symbol: None,
                factor: 0,
                rest,
            });
        }
        match self {
            Symbol(name) => Some(Line {
                symbol: Some(name),
                factor: 1,
                rest: 0,
            }),
            Call(name, parts) if name == "Add" || name == "Mul" => {
                let mut lines = parts.iter().map(|part| part.line(symbol));
                let first = lines.next()??;
                lines.try_fold(first, |line, part| match name.as_str() {
                    "Add" => line.plus(part?),
                    _ => line.times(part?),
                })
            }
            _ => None,
        }
    }

    /// The symbols that are in it.
    #[must_use]
    pub fn symbols(&self) -> BTreeSet<&str> {
        match self {
            Number(_) => BTreeSet::new(),
            Symbol(name) => BTreeSet::from([name.as_str()]),
            Call(_, parts) => parts.iter().flat_map(Expression::symbols).collect(),
        }
    }
}

/// `factor * symbol + rest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'e> {
    /// The symbol; none where it is a number.
    pub symbol: Option<&'e str>,
    /// How often it is in there.
    pub factor: i64,
    /// What is in there besides.
    pub rest: i64,
}

impl<'e> Line<'e> {
    fn plus(self, other: Line<'e>) -> Option<Line<'e>> {
        if self.symbol.is_some() && other.symbol.is_some() && self.symbol != other.symbol {
            return None;
        }
        Some(Line {
            symbol: self.symbol.or(other.symbol),
            factor: self.factor.checked_add(other.factor)?,
            rest: self.rest.checked_add(other.rest)?,
        })
    }

    fn times(self, other: Line<'e>) -> Option<Line<'e>> {
        let (number, line) = match (self.symbol, other.symbol) {
            (None, _) => (self.rest, other),
            (_, None) => (other.rest, self),
            _ => return None,
        };
        Some(Line {
            symbol: line.symbol,
            factor: line.factor.checked_mul(number)?,
            rest: line.rest.checked_mul(number)?,
        })
    }

    /// The whole number that the symbol is where the whole is `value`.
    #[must_use]
    pub fn solve(self, value: i64) -> Option<i64> {
        let product = value.checked_sub(self.rest)?;
        (product.checked_rem(self.factor)? == 0)
            .then(|| product.checked_div(self.factor))
            .flatten()
    }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let exact = a.checked_rem(b)? == 0;
    if exact || (a < 0) == (b < 0) {
        Some(quotient)
    } else {
        quotient.checked_sub(1)
    }
}

/// How tightly an operator holds its parts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tightness {
    Sum,
    Product,
    Power,
    Whole,
}

impl Expression {
    fn tightness(&self) -> Tightness {
        match self {
            Number(number) if *number < 0 => Tightness::Sum,
            Number(_) | Symbol(_) => Tightness::Whole,
            Call(name, parts) => match (name.as_str(), parts.len()) {
                ("Add", 2..) => Tightness::Sum,
                ("Mul", 2..) if self.negated().is_some() => Tightness::Sum,
                ("Mul", 2..) | ("FloorDiv" | "CleanDiv" | "Mod" | "PythonMod", 2) => {
                    Tightness::Product
                }
                ("Pow" | "PowByNatural", 2) => Tightness::Power,
                _ => Tightness::Whole,
            },
        }
    }

    /// What it is the negative of, where it is written with a minus.
    fn negated(&self) -> Option<Expression> {
        match self {
            Number(number) if *number < 0 => number.checked_neg().map(Number),
            Call(name, parts) if name == "Mul" => {
                let place = parts.iter().position(|part| matches!(part, Number(_)))?;
                let number = parts.get(place)?.negated()?;
                let mut parts = parts.clone();
                if number == Number(1) {
                    parts.remove(place);
                } else if let Some(part) = parts.get_mut(place) {
                    *part = number;
                }
                if parts.len() == 1 {
                    parts.pop()
                } else {
                    Some(Call("Mul".to_owned(), parts))
                }
            }
            _ => None,
        }
    }

    /// With parentheses where it would fall apart.
    fn inside(&self, least: Tightness) -> String {
        if self.tightness() < least {
            format!("({self})")
        } else {
            self.to_string()
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, parts) = match self {
            Number(number) => return write!(f, "{number}"),
            Symbol(name) => return f.write_str(name),
            Call(name, parts) => (name.as_str(), parts.as_slice()),
        };
        match (name, parts) {
            ("Add", [_, _, ..]) => sum(parts, f),
            ("Mul", [_, _, ..]) => {
                if let Some(positive) = self.negated() {
                    return write!(f, "-{}", positive.inside(Tightness::Product));
                }
                let (numbers, others) = numbers_apart(parts);
                let parts: Vec<String> = numbers.chain(others).map(factor).collect();
                f.write_str(&parts.join("*"))
            }
            ("FloorDiv" | "CleanDiv", [a, b]) => write!(f, "{}//{}", whole(a), whole(b)),
            ("Mod" | "PythonMod", [a, b]) => write!(f, "{}%{}", whole(a), whole(b)),
            ("Pow" | "PowByNatural", [a, b]) => write!(f, "{}**{}", whole(a), whole(b)),
            ("Max", _) => write!(f, "max({})", listed(parts)),
            ("Min", _) => write!(f, "min({})", listed(parts)),
            _ => write!(f, "{name}({})", listed(parts)),
        }
    }
}

fn whole(part: &Expression) -> String {
    part.inside(Tightness::Whole)
}

/// A part of a product; quotients keep their own parentheses.
fn factor(part: &Expression) -> String {
    match part {
        Call(name, _) if name == "Mul" => part.inside(Tightness::Product),
        _ => part.inside(Tightness::Power),
    }
}

fn listed(parts: &[Expression]) -> String {
    let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
    parts.join(", ")
}

fn numbers_apart(
    parts: &[Expression],
) -> (
    impl Iterator<Item = &Expression>,
    impl Iterator<Item = &Expression>,
) {
    let is_number = |part: &&Expression| matches!(part, Number(_));
    (
        parts.iter().filter(is_number),
        parts.iter().filter(move |part| !is_number(part)),
    )
}

/// A sum as people write it: numbers last, what is negative taken away.
fn sum(parts: &[Expression], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (numbers, others) = numbers_apart(parts);
    for (index, part) in others.chain(numbers).enumerate() {
        match (index, part.negated()) {
            (0, _) => write!(f, "{}", part.inside(Tightness::Sum))?,
            (_, Some(positive)) => write!(f, " - {}", positive.inside(Tightness::Product))?,
            (_, None) => write!(f, " + {}", part.inside(Tightness::Product))?,
        }
    }
    Ok(())
}

/// Reads from the front of a text.
struct Reader<'t> {
    rest: &'t str,
    depth: usize,
}

impl Reader<'_> {
    /// Takes a word, where it comes next.
    fn takes(&mut self, word: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Option<Expression> {
        self.depth = self.depth.checked_add(1).filter(|depth| *depth <= DEPTH)?;
        let mut parts = vec![self.product()?];
        loop {
            if self.takes("+") {
                parts.push(self.product()?);
            } else if self.takes("-") {
                parts.push(negative(self.product()?)?);
            } else {
                break;
            }
        }
        self.depth = self.depth.saturating_sub(1);
        Some(joined("Add", parts))
    }

    fn product(&mut self) -> Option<Expression> {
        if self.takes("-") {
            self.depth = self.depth.checked_add(1).filter(|depth| *depth <= DEPTH)?;
            let read = negative(self.product()?);
            self.depth = self.depth.saturating_sub(1);
            return read;
        }
        let mut parts = vec![self.power()?];
        loop {
            let division = if self.takes("//") {
                "FloorDiv"
            } else if self.takes("%") {
                "Mod"
            } else if self.takes("*") {
                parts.push(self.power()?);
                continue;
            } else {
                break;
            };
            let by = self.power()?;
            parts = vec![Call(division.to_owned(), vec![joined("Mul", parts), by])];
        }
        Some(joined("Mul", parts))
    }

    fn power(&mut self) -> Option<Expression> {
        let base = self.whole()?;
        if !self.takes("**") {
            return Some(base);
        }
        let exponent = self.whole()?;
        Some(Call("Pow".to_owned(), vec![base, exponent]))
    }

    fn whole(&mut self) -> Option<Expression> {
        if self.takes("(") {
            let inside = self.sum()?;
            return self.takes(")").then_some(inside);
        }
        self.rest = self.rest.trim_start();
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        let first = word.chars().next()?;
        if first.is_ascii_digit() {
            return word.parse().ok().map(Number);
        }
        if !self.takes("(") {
            return Some(Symbol(word.to_owned()));
        }
        let mut parts = vec![self.sum()?];
        while self.takes(",") {
            parts.push(self.sum()?);
        }
        self.takes(")").then(|| Call(word.to_owned(), parts))
    }
}

fn joined(name: &str, mut parts: Vec<Expression>) -> Expression {
    match parts.len() {
        1 => parts.pop().unwrap_or(Number(0)),
        _ => Call(name.to_owned(), parts),
    }
}

fn negative(part: Expression) -> Option<Expression> {
    match part {
        Number(number) => number.checked_neg().map(Number),
        other => Some(Call("Mul".to_owned(), vec![Number(-1), other])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        Expression::parse(text).unwrap().to_string()
    }

    #[test]
    fn sympys_own_notation_is_written_as_people_do() {
        for (sympy, people) in [
            ("s0", "s0"),
            ("12", "12"),
            ("Mul(2, s0)", "2*s0"),
            ("Mul(384, s39, s77)", "384*s39*s77"),
            ("Add(s77, 1)", "s77 + 1"),
            ("Add(1, s77)", "s77 + 1"),
            ("Add(FloorDiv(Add(s0, -1), 2), 1)", "(s0 - 1)//2 + 1"),
            ("Mul(64, FloorDiv(s0, 2))", "64*(s0//2)"),
            ("Add(s0, Mul(-1, s1))", "s0 - s1"),
            ("Add(s0, Mul(-2, s1), -3)", "s0 - 2*s1 - 3"),
            ("Mul(-1, s0)", "-s0"),
            ("Mul(2, Add(s0, s1))", "2*(s0 + s1)"),
            ("Pow(s0, 2)", "s0**2"),
            ("Mod(Add(s0, 1), 8)", "(s0 + 1)%8"),
            ("Max(1, s0)", "max(1, s0)"),
            ("ModularIndexing(s0, 1, 4)", "ModularIndexing(s0, 1, 4)"),
            ("FloorDiv(Mul(2, s0), 3)", "(2*s0)//3"),
        ] {
            assert_eq!(written(sympy), people);
            // What people write is read back as the same.
            assert_eq!(written(people), people);
        }
    }

    #[test]
    fn values_follow_python() {
        let of = |text: &str, s0: i64| {
            let known = |name: &str| (name == "s0").then_some(s0);
            Expression::parse(text).unwrap().value(&known)
        };
        assert_eq!(of("Add(FloorDiv(Add(s0, -1), 2), 1)", 7), Some(4));
        assert_eq!(of("(s0 - 8)//3", 1), Some(-3));
        assert_eq!(of("(s0 - 8)%3", 1), Some(2));
        assert_eq!(of("CeilDiv(s0, 4)", 9), Some(3));
        assert_eq!(of("s0//0", 9), None);
        assert_eq!(of("s0 + s1", 9), None);
        assert_eq!(of("9223372036854775807*s0", 9), None);
        assert_eq!(of("Where(s0, 1, 2)", 9), None);
    }

    #[test]
    fn one_symbol_is_solved_for() {
        let solved = |text: &str, value: i64| {
            let read = Expression::parse(text).unwrap();
            let line = read.line(&|name| (name == "s1").then_some(3))?;
            line.solve(value)
        };
        assert_eq!(solved("8*s0", 64), Some(8));
        assert_eq!(solved("8*s0", 65), None);
        assert_eq!(solved("s0 + s1 + 1", 10), Some(6));
        assert_eq!(solved("2*s0*s1 - 6", 0), Some(1));
        assert_eq!(solved("s0*s2", 4), None);
        assert_eq!(solved("s0//2", 4), None);
    }

    #[test]
    fn what_is_none_is_none() {
        let deep = "(".repeat(100_000);
        for text in [
            "",
            "(",
            "2 *",
            "f(",
            "s0 s1",
            "99999999999999999999",
            "1.5",
            "é(",
            &deep,
        ] {
            assert_eq!(Expression::parse(text), None, "{}", text.len());
        }
        let minus = "-".repeat(100_000);
        assert_eq!(Expression::parse(&minus), None);
    }
}
