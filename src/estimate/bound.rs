//! `--bound safe`: a figure that should never be too low.
//!
//! Reserved memory is taken from the worse of both address orders. What is not known is added as a margin, and the
//! report says how much of the figure that is:
//!
//! | not known | margin | source |
//! |---|---|---|
//! | cuDNN's convolution workspaces, where no calibration has them | so much that 17.4 % of the figure are margin | the largest under-estimate of reserved memory among 16 convolution nets measured in training on an RTX 3060 |
//! | the CUDA context of a card that nobody has published | the largest one published | [`super::PROFILES`] |

use serde::Serialize;

use super::{Estimate, Profile, Question};
use crate::trace::Trace;

/// The largest under-estimate measured, in thousandths of what the card reserved.
const LARGEST_UNDERESTIMATE: u64 = 174;

/// Which of the two figures is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Bound {
    /// The estimate.
    #[default]
    Expected,
    /// One that should never be too low.
    Safe,
}

impl Bound {
    /// As it is typed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bound::Expected => "expected",
            Bound::Safe => "safe",
        }
    }
}

/// What a safe figure has above the expected one. Bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SafeMargin {
    /// Highest reserved, as expected.
    pub expected_reserved_bytes: u64,
    /// More with new segments on the other side.
    pub address_order_bytes: u64,
    /// For convolution workspaces; none where there are no convolutions, or a calibration has them.
    pub cudnn_workspace_bytes: Option<u64>,
    /// For a context that is not known; none where it is.
    pub context_bytes: Option<u64>,
}

impl Estimate {
    /// Makes a run's estimate a safe one; without a run there is nothing to be safe about.
    pub(super) fn make_safe(&mut self, trace: &Trace, question: &Question<'_>) {
        let Some(expected) = self.peak_reserved_bytes else {
            return;
        };
        // The CPU's names as well as cuDNN's: its run stands for one on a card.
        let convolutions = !question.workspaces_are_measured(self.basis)
            && trace.texts.iter().any(|text| {
                text.starts_with("aten::") && text.contains("conv") && !text.contains("convert")
            });
        let high = self
            .interval
            .as_ref()
            .map_or(expected, |range| range.high_reserved_bytes);
        let unknown_context = question
            .profile
            .is_some_and(|profile| profile.context_bytes.is_none());
        let largest = Profile::largest_context();
        let margin = SafeMargin {
            expected_reserved_bytes: expected,
            address_order_bytes: high.saturating_sub(expected),
            cudnn_workspace_bytes: convolutions.then(|| workspace_margin(high)),
            context_bytes: largest.filter(|_| unknown_context),
        };
        let safe = |reserved: u64| {
            let reserved = reserved.saturating_add(margin.address_order_bytes);
            let workspaces = if convolutions {
                workspace_margin(reserved)
            } else {
                0
            };
            reserved.saturating_add(workspaces)
        };
        let context = question.profile.and_then(|profile| profile.context_bytes);
        let context = context.or(margin.context_bytes).unwrap_or(0);
        let verdict = |reserved: u64, fits: Option<bool>| {
            let (Some(capacity), Some(fits)) = (question.capacity_bytes, fits) else {
                return (fits, None);
            };
            let left = capacity
                .checked_sub(reserved.saturating_add(context))
                .filter(|_| fits);
            (Some(left.is_some()), left)
        };
        self.bound = Bound::Safe.name();
        self.peak_reserved_bytes = Some(safe(expected));
        (self.fits, self.margin_bytes) = verdict(safe(expected), self.fits);
        if let Some(eager) = &mut self.eager
            && let Some(reserved) = eager.peak_reserved_bytes
        {
            eager.peak_reserved_bytes = Some(safe(reserved));
            (eager.fits, eager.margin_bytes) = verdict(safe(reserved), eager.fits);
        }
        self.safe_margin = Some(margin);
        self.assumptions.extend(margin.texts());
    }
}

/// What is added to a figure so that it is the right one where it was [`LARGEST_UNDERESTIMATE`] too low. Bytes.
fn workspace_margin(reserved: u64) -> u64 {
    let part = u128::from(reserved) * u128::from(LARGEST_UNDERESTIMATE);
    let part = part.div_ceil(u128::from(1000 - LARGEST_UNDERESTIMATE));
    u64::try_from(part).unwrap_or(u64::MAX)
}

impl SafeMargin {
    /// In words, what the safe figure takes for granted.
    fn texts(self) -> Vec<String> {
        let mut all = vec![format!(
            "safe bound of reserved memory: {} B expected, {} B more with the other order of addresses",
            self.expected_reserved_bytes, self.address_order_bytes
        )];
        if let Some(bytes) = self.cudnn_workspace_bytes {
            all.push(format!(
                "safe bound: {bytes} B of it are a margin for cuDNN's workspaces, 17.4 %, the largest under-estimate \
                 among 16 measured convolution nets"
            ));
        }
        if let Some(bytes) = self.context_bytes {
            all.push(format!(
                "safe bound: the card's CUDA context is taken to be {bytes} B, the largest published one"
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_covers_the_largest_underestimate() {
        for measured in [1_000_000_u64, 371_195_904, 68 << 30] {
            let estimated = measured - measured * LARGEST_UNDERESTIMATE / 1000;
            let safe = estimated + workspace_margin(estimated);
            assert!(safe >= measured, "{safe} {measured}");
            assert!(safe - measured <= 1 + measured / 1000, "{safe} {measured}");
        }
        assert_eq!(workspace_margin(0), 0);
        assert_eq!(workspace_margin(u64::MAX), 3_885_875_870_248_743_319);
    }
}
