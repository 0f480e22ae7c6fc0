//! Records the blocks that a restore leaves out when it continues past damage.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;

/// Words in the bitmap of a recipe page.
const WORDS: usize = BLOCKS_PER_RECIPE_PAGE as usize / 64;

/// The most reasons kept: damage has few causes, and a message per block would use unbounded memory.
const REASONS_MAX: usize = 20;

/// The blocks of a backup that cannot be restored, by their addresses in blocks. Uses a bit for each block of the
/// recipe pages that have any. Any number of threads may add blocks.
#[derive(Debug, Default)]
pub struct LostBlocks(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A bitmap for each recipe page with lost blocks, by page number.
    pages: BTreeMap<u64, Box<[u64; WORDS]>>,
    reasons: Vec<String>,
}

impl LostBlocks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds blocks, with the reason. Returns whether any of them is new.
    pub fn add(&self, blocks: Range<u64>, reason: &dyn std::fmt::Display) -> bool {
        let mut state = self.lock();
        let mut is_new = false;
        for block in blocks {
            let page = state.pages.entry(block / BLOCKS_PER_RECIPE_PAGE);
            let in_page = block % BLOCKS_PER_RECIPE_PAGE;
            let words = page.or_insert_with(|| Box::new([0; WORDS]));
            // In bounds, because the remainder is less than a page.
            let word = &mut words[in_page as usize / 64];
            let bit = 1 << (in_page % 64);
            is_new |= *word & bit == 0;
            *word |= bit;
        }
        if is_new && state.reasons.len() < REASONS_MAX {
            let reason = reason.to_string();
            if !state.reasons.contains(&reason) {
                state.reasons.push(reason);
            }
        }
        is_new
    }

    /// The lost blocks within a range, in order.
    #[must_use]
    pub fn ranges(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let state = self.lock();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let pages =
            within.start / BLOCKS_PER_RECIPE_PAGE..within.end.div_ceil(BLOCKS_PER_RECIPE_PAGE);
        if pages.is_empty() {
            return ranges;
        }
        for (page, words) in state.pages.range(pages) {
            let first = page * BLOCKS_PER_RECIPE_PAGE;
            for (word, block) in words.iter().zip((first..).step_by(64)) {
                let bits = (0..64).filter(|bit| word >> bit & 1 == 1);
                let blocks = bits
                    .map(|bit| block + bit)
                    .filter(|block| within.contains(block));
                for block in blocks {
                    match ranges.last_mut() {
                        Some(last) if last.end == block => last.end += 1,
                        _ => ranges.push(block..block + 1),
                    }
                }
            }
        }
        ranges
    }

    /// Why blocks are lost: the first twenty reasons.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        self.lock().reasons.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lost_once_and_adjacent_ones_are_one_range() {
        let lost = LostBlocks::default();
        let page = BLOCKS_PER_RECIPE_PAGE;
        assert!(lost.add(page - 3..page + 2, &"a"));
        assert!(!lost.add(page - 1..page + 1, &"b"));
        assert!(lost.add(page + 1..page + 4, &"a"));
        assert!(lost.add(9 * page + 64..9 * page + 65, &"c"));
        let far = 9 * page + 64..9 * page + 65;
        assert_eq!(lost.ranges(0..u64::MAX), [page - 3..page + 4, far]);
        let within = page..page + 2;
        assert_eq!(lost.ranges(within.clone()), [within]);
        assert_eq!(lost.ranges(5..5), []);
        assert_eq!(lost.reasons(), ["a", "c"]);
        (0..100).for_each(|n| assert!(lost.add(n..n + 1, &n)));
        assert_eq!(lost.reasons().len(), REASONS_MAX);
    }
}
