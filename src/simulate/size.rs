//! Sizes: what a request is rounded to, and how large the segment for it is.

use super::{
    AllocConf, MIN_BLOCK_BYTES, MIN_LARGE_BYTES, Pool, ROUND_LARGE_BYTES, SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
};

impl AllocConf {
    /// The size of the block a request needs; `None` where it does not fit into 64 bits.
    #[inline]
    #[must_use]
    pub fn rounded(&self, request: u64) -> Option<u64> {
        if request < MIN_BLOCK_BYTES {
            return Some(MIN_BLOCK_BYTES);
        }
        let divisions = self.divisions(request);
        let least = MIN_BLOCK_BYTES.checked_mul(divisions);
        if divisions > 1 && least.is_some_and(|least| request > least) {
            // Divisions are powers of two, so the step is a whole number of blocks.
            let step = (1 << request.ilog2()) / divisions;
            return request.checked_next_multiple_of(step);
        }
        request.checked_next_multiple_of(MIN_BLOCK_BYTES)
    }

    /// The size of the segment that a block of `rounded` bytes is cut from.
    #[inline]
    pub(super) fn segment_bytes(&self, rounded: u64) -> Option<u64> {
        if rounded <= SMALL_BYTES {
            Some(SMALL_SEGMENT_BYTES)
        } else if rounded < MIN_LARGE_BYTES {
            Some(self.large_segment_bytes)
        } else {
            rounded.checked_next_multiple_of(ROUND_LARGE_BYTES)
        }
    }

    /// The page of an expandable segment.
    pub(super) fn page_bytes(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Small => SMALL_SEGMENT_BYTES,
            Pool::Large => self.large_segment_bytes,
        }
    }
}

impl Pool {
    /// The pool for a block of `rounded` bytes.
    #[inline]
    pub(super) fn of(rounded: u64) -> Self {
        if rounded <= SMALL_BYTES {
            Self::Small
        } else {
            Self::Large
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::MIB;

    #[test]
    fn without_divisions_to_512() {
        let conf = AllocConf::default();
        let rounded: Vec<_> = [1, 511, 512, 513, MIB, MIB + 1]
            .map(|n| conf.rounded(n))
            .into();
        assert_eq!(
            rounded,
            [512, 512, 512, 1024, MIB, MIB + 512].map(Some).to_vec()
        );
        assert_eq!(conf.rounded(u64::MAX), None);
    }

    #[test]
    fn divisions_of_powers_of_two() {
        let conf = AllocConf::parse("roundup_power2_divisions:4").unwrap();
        assert_eq!(conf.rounded(1200 * 1024), Some(1280 * 1024));
        assert_eq!(conf.rounded(MIB), Some(MIB));
        assert_eq!(conf.rounded(2048), Some(2048));
        assert_eq!(conf.rounded(2049), Some(2560));
        let fine = AllocConf::parse("roundup_power2_divisions:1024").unwrap();
        assert_eq!(fine.rounded(600_000), Some(600_064));
        assert_eq!(fine.rounded(500_000), Some(500_224));
    }

    #[test]
    fn segments() {
        let conf = AllocConf::default();
        assert_eq!(conf.segment_bytes(512), Some(2 * MIB));
        assert_eq!(conf.segment_bytes(MIB), Some(2 * MIB));
        assert_eq!(conf.segment_bytes(MIB + 512), Some(20 * MIB));
        assert_eq!(conf.segment_bytes(10 * MIB), Some(10 * MIB));
        assert_eq!(conf.segment_bytes(10 * MIB + 512), Some(12 * MIB));
    }
}
