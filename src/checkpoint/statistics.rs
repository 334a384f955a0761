//! What the numbers of a tensor are like.

use serde::Serialize;

use super::{Checkpoint, Finding};

/// A number as the file holds it: integers keep every bit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Of a floating or quantized dtype.
    Float(f64),
    /// An integer or boolean.
    Signed(i64),
    /// An integer beyond 2^63 - 1.
    Unsigned(u64),
}

/// Of all items that are finite, and how many are not. Of complex numbers only the counts are known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Statistics {
    /// The least.
    pub min: Option<Value>,
    /// The largest.
    pub max: Option<Value>,
    /// The mean.
    pub mean: Option<f64>,
    /// The standard deviation of a sample, divided by one less than there are, as `torch.std` does.
    pub std: Option<f64>,
    /// Items that are NaN; complex ones of which a part is.
    pub nan: u64,
    /// Items that are infinite and not NaN.
    pub inf: u64,
    /// Items that are 0.
    pub zero: u64,
}

impl Checkpoint {
    /// Notes the statistics of every tensor, in order; `None` where its numbers are not known.
    pub fn set_statistics(
        &mut self,
        statistics: Vec<Option<Statistics>>,
        findings: impl IntoIterator<Item = Finding>,
    ) {
        self.statistics = statistics;
        self.parts.findings.extend(findings);
    }

    /// The statistics of every tensor, in order; empty where nobody asked for them.
    #[must_use]
    pub fn statistics(&self) -> &[Option<Statistics>] {
        &self.statistics
    }
}
