//! A set of blocks of the pool that is empty in almost every pool, and that every read checks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use onefold_format::{LostRun, Pba};
use onefold_metadata::sync::{AtomicBool, RwLock, read, write};

/// Blocks, as runs that neither overlap nor touch.
#[derive(Default)]
pub(super) struct BlockSet {
    /// The start and the end of each run.
    runs: RwLock<BTreeMap<u64, u64>>,
    /// Whether the set may have blocks: while it has none, no lock is taken. Changed under the
    /// lock.
    is_any: AtomicBool,
}

impl BlockSet {
    /// Whether the set may have any blocks.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(SeqCst)
    }

    /// Adds blocks, some of which may already be in the set.
    pub(super) fn add(&self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let mut runs = write(&self.runs);
        let (mut start, mut end) = (blocks.start, blocks.end);
        while let Some((&before, &ends)) = runs.range(..=end).next_back()
            && ends >= start
        {
            runs.remove(&before);
            (start, end) = (start.min(before), end.max(ends));
        }
        runs.insert(start, end);
        self.is_any.store(true, SeqCst);
    }

    /// Removes blocks. Returns whether any of them was in the set.
    pub(super) fn remove(&self, blocks: Range<u64>) -> bool {
        if !self.is_any() || blocks.is_empty() {
            return false;
        }
        let mut runs = write(&self.runs);
        let mut is_removed = false;
        while let Some((&start, &end)) = runs.range(..blocks.end).next_back()
            && end > blocks.start
        {
            is_removed = true;
            runs.remove(&start);
            if end > blocks.end {
                runs.insert(blocks.end, end);
            }
            if start < blocks.start {
                runs.insert(start, blocks.start);
            }
        }
        self.is_any.store(!runs.is_empty(), SeqCst);
        is_removed
    }

    /// The first of these blocks that is in the set.
    pub(super) fn first_within(&self, blocks: &Range<u64>) -> Option<u64> {
        if !self.is_any() {
            return None;
        }
        let runs = read(&self.runs);
        let (start, end) = runs.range(..=blocks.start).next_back().unzip();
        let holds_start = end.is_some_and(|end| *end > blocks.start);
        match start.filter(|_| holds_start && !blocks.is_empty()) {
            Some(_) => Some(blocks.start),
            None => runs.range(blocks.clone()).next().map(|(start, _)| *start),
        }
    }

    /// All blocks of the set, as runs.
    pub(super) fn runs(&self) -> Vec<LostRun> {
        let runs = read(&self.runs);
        let all = runs.iter().map(|(start, end)| LostRun {
            start: Pba(*start),
            count: end - start,
        });
        all.collect()
    }

    /// The number of blocks in the set.
    pub(super) fn blocks(&self) -> u64 {
        if self.is_any() {
            read(&self.runs)
                .iter()
                .map(|(start, end)| end - start)
                .sum()
        } else {
            0
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_the_blocks_that_were_added_and_not_removed(
            changes in prop::collection::vec((any::<bool>(), 0..60_u64, 0..12_u64), 0..40),
            asked in prop::collection::vec((0..70_u64, 0..12_u64), 0..20),
        ) {
            let set = BlockSet::default();
            let mut expected = BTreeSet::new();
            for (is_added, start, count) in changes {
                let blocks = start..start + count;
                if is_added {
                    set.add(blocks.clone());
                    expected.extend(blocks);
                } else {
                    let has_any = blocks.clone().any(|block| expected.remove(&block));
                    blocks.clone().for_each(|block| { expected.remove(&block); });
                    prop_assert_eq!(set.remove(blocks), has_any);
                }
            }
            prop_assert_eq!(set.blocks(), expected.len() as u64);
            prop_assert_eq!(set.is_any(), !expected.is_empty());
            let runs = set.runs();
            prop_assert!(runs.windows(2).all(|two| two[0].start.0 + two[0].count < two[1].start.0));
            for (start, count) in asked {
                let blocks = start..start + count;
                let first = expected.range(blocks.clone()).next().copied();
                prop_assert_eq!(set.first_within(&blocks), first);
            }
        }
    }
}
