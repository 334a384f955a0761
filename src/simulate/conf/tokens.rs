//! The settings text cut into tokens, with the reads PyTorch makes on them.

use super::AllocConfError;
use super::number::{Number, float_prefix, unsigned_prefix};

/// Tokens of a settings text; every read is checked against the end.
pub(super) struct Tokens(Vec<String>);

impl Tokens {
    /// Cuts at `,`, `:`, `[`, `]`, which are tokens themselves; white space vanishes, even inside a word.
    pub(super) fn new(text: &str) -> Self {
        let (mut tokens, mut word) = (Vec::new(), String::new());
        for c in text.chars() {
            if matches!(c, ',' | ':' | '[' | ']') {
                if !word.is_empty() {
                    tokens.push(std::mem::take(&mut word));
                }
                tokens.push(c.to_string());
            } else if !matches!(c, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r') {
                word.push(c);
            }
        }
        if !word.is_empty() {
            tokens.push(word);
        }
        Self(tokens)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, index: usize) -> Result<&str, AllocConfError> {
        self.0
            .get(index)
            .map(String::as_str)
            .ok_or(AllocConfError::Ends { index })
    }

    pub(super) fn boolean(&self, index: usize) -> Result<bool, AllocConfError> {
        match self.get(index)? {
            "True" => Ok(true),
            "False" => Ok(false),
            token => Err(AllocConfError::NotBool {
                index,
                token: token.to_owned(),
            }),
        }
    }

    pub(super) fn unsigned(&self, index: usize) -> Result<u64, AllocConfError> {
        let token = self.get(index)?;
        checked(unsigned_prefix(token), token, "stoull")
    }

    pub(super) fn float(&self, index: usize) -> Result<f64, AllocConfError> {
        let token = self.get(index)?;
        checked(float_prefix(token), token, "stod")
    }

    /// Index of the last token of a value that this pass does not read.
    pub(super) fn skip_value(&self, value: usize) -> Result<usize, AllocConfError> {
        if self.get(value)? != "[" {
            return Ok(value);
        }
        let length = self.0.iter().skip(value + 1).position(|t| t == "]");
        length
            .map(|n| value + 1 + n)
            .ok_or(AllocConfError::NoClosingBracket)
    }
}

fn checked<T>(number: Number<T>, token: &str, function: &'static str) -> Result<T, AllocConfError> {
    let token = token.to_owned();
    match number {
        Number::Value(value) => Ok(value),
        Number::None => Err(AllocConfError::NotNumber { token, function }),
        Number::OutOfRange => Err(AllocConfError::OutOfRange { token, function }),
    }
}
