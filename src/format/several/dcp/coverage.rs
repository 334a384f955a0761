//! Whether the chunks of a tensor cover each of its elements once.

use super::metadata::ChunkFacts;
use crate::tensor::numel;

/// What is wrong with the chunks of a tensor.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    /// Two chunks that share elements.
    pub(super) overlap: Option<(usize, usize)>,
    /// Elements in no chunk, where no two overlap.
    pub(super) missing: u64,
    /// Whether all pairs that could overlap were compared.
    pub(super) compared: bool,
}

impl Coverage {
    /// Compares chunks that lie inside the shape. Each comparison is taken off the budget.
    pub(super) fn of(shape: &[u64], chunks: &[ChunkFacts], budget: &mut u64) -> Coverage {
        let sizes = chunks
            .iter()
            .map(|chunk| numel(&chunk.sizes).unwrap_or(u64::MAX));
        let covered = sizes.fold(0, u64::saturating_add);
        let (overlap, compared) = overlap(chunks, budget);
        let whole = numel(shape).unwrap_or(u64::MAX);
        Coverage {
            overlap,
            missing: match overlap {
                Some(_) => 0,
                None => whole.saturating_sub(covered),
            },
            compared,
        }
    }

    /// Whether every element is known to be in exactly one chunk.
    pub(super) fn is_exact(&self) -> bool {
        self.overlap.is_none() && self.missing == 0 && self.compared
    }
}

/// The first two chunks that share elements, and whether all were compared. Chunks in the order of their first
/// dimension are compared with those that are not over yet: one comparison each where they are beside each other.
fn overlap(chunks: &[ChunkFacts], budget: &mut u64) -> (Option<(usize, usize)>, bool) {
    let first = |chunk: &ChunkFacts| chunk.offsets.first().copied().unwrap_or(0);
    let mut order: Vec<(u64, usize)> = chunks
        .iter()
        .enumerate()
        .filter(|(_, chunk)| numel(&chunk.sizes) != Some(0))
        .map(|(index, chunk)| (first(chunk), index))
        .collect();
    order.sort_unstable();
    let mut open: Vec<usize> = Vec::new();
    for (begin, index) in order {
        let Some(chunk) = chunks.get(index) else {
            continue;
        };
        open.retain(|other| {
            let end = chunks.get(*other).and_then(|other| other.ends().next());
            // A scalar has no dimension in which it could be over.
            end.is_none_or(|end| end.is_none_or(|end| end > begin))
        });
        for other in &open {
            let Some(left) = budget.checked_sub(1) else {
                return (None, false);
            };
            *budget = left;
            if chunks.get(*other).is_some_and(|other| share(other, chunk)) {
                return (Some((*other, index)), true);
            }
        }
        open.push(index);
    }
    (None, true)
}

fn share(a: &ChunkFacts, b: &ChunkFacts) -> bool {
    let begins = a.offsets.iter().zip(&b.offsets);
    let mut dimensions = begins.zip(a.ends().zip(b.ends()));
    dimensions.all(|((a_begin, b_begin), (a_end, b_end))| {
        a_end.is_none_or(|end| *b_begin < end) && b_end.is_none_or(|end| *a_begin < end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dims;

    fn chunk(offsets: &[u64], sizes: &[u64]) -> ChunkFacts {
        ChunkFacts {
            offsets: Dims::from_slice(offsets),
            sizes: Dims::from_slice(sizes),
        }
    }

    #[test]
    fn chunks_cover_overlap_or_lack() {
        let of = |shape: &[u64], chunks: &[ChunkFacts]| Coverage::of(shape, chunks, &mut 1000);
        let rows = [chunk(&[0, 0], &[2, 3]), chunk(&[2, 0], &[2, 3])];
        assert!(of(&[4, 3], &rows).is_exact());
        let grid = [
            chunk(&[0, 0], &[2, 2]),
            chunk(&[0, 2], &[2, 1]),
            chunk(&[2, 0], &[2, 2]),
            chunk(&[2, 2], &[2, 1]),
        ];
        assert!(of(&[4, 3], &grid).is_exact());
        assert_eq!(of(&[4, 3], &grid[1..]).missing, 4);
        let twice = [chunk(&[0, 0], &[2, 3]), chunk(&[1, 0], &[2, 3])];
        assert_eq!(of(&[4, 3], &twice).overlap, Some((0, 1)));
        assert!(of(&[], &[chunk(&[], &[])]).is_exact());
        assert_eq!(
            of(&[], &[chunk(&[], &[]), chunk(&[], &[])]).overlap,
            Some((0, 1))
        );
        assert_eq!(of(&[], &[]).missing, 1);
        assert!(of(&[0, 5], &[]).is_exact());
        assert!(of(&[0, 5], &[chunk(&[0, 0], &[0, 5])]).is_exact());
    }

    #[test]
    fn the_work_is_bounded() {
        let columns: Vec<ChunkFacts> = (0..3000).map(|n| chunk(&[0, n], &[9, 1])).collect();
        let mut budget = 10_000;
        let coverage = Coverage::of(&[9, 3000], &columns, &mut budget);
        assert!(!coverage.compared && !coverage.is_exact());
        assert_eq!(budget, 0);
        // Along one dimension there is next to nothing to compare.
        let rows: Vec<ChunkFacts> = (0..3000).map(|n| chunk(&[n, 0], &[1, 9])).collect();
        assert!(Coverage::of(&[3000, 9], &rows, &mut 10_000).is_exact());
    }
}
