//! Which blocks of a disk are stored anew, and which number each of them gets: numbers follow the order
//! of addresses, so a block's is the first number and how many are before it.

use std::collections::BTreeMap;

/// Blocks of a page: 4 KiB of bits.
const PAGE_BLOCKS: u64 = 32_768;

const WORDS: usize = (PAGE_BLOCKS / 64) as usize;

/// A set of blocks.
#[derive(Default)]
pub(crate) struct Ranks {
    pages: BTreeMap<u64, Page>,
}

struct Page {
    bits: Box<[u64; WORDS]>,
    /// Blocks of the set in the pages before it.
    before: u64,
}

impl Ranks {
    pub(crate) fn insert(&mut self, block: u64) {
        let page = self
            .pages
            .entry(block / PAGE_BLOCKS)
            .or_insert_with(|| Page {
                bits: Box::new([0; WORDS]),
                before: 0,
            });
        let bit = block % PAGE_BLOCKS;
        page.bits[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    /// Counts once all blocks are in. Returns how many there are.
    pub(crate) fn count(&mut self) -> u64 {
        let mut before = 0;
        for page in self.pages.values_mut() {
            page.before = before;
            before += page
                .bits
                .iter()
                .map(|word| u64::from(word.count_ones()))
                .sum::<u64>();
        }
        before
    }

    /// How many blocks of the set are before this one; none if it is not in the set.
    pub(crate) fn rank(&self, block: u64) -> Option<u64> {
        let page = self.pages.get(&(block / PAGE_BLOCKS))?;
        let bit = block % PAGE_BLOCKS;
        let (word, bit) = ((bit / 64) as usize, bit % 64);
        if page.bits[word] >> bit & 1 == 0 {
            return None;
        }
        let before = page.bits[..word]
            .iter()
            .map(|word| u64::from(word.count_ones()));
        let in_word = (page.bits[word] & ((1 << bit) - 1)).count_ones();
        Some(page.before + before.sum::<u64>() + u64::from(in_word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranks_are_those_of_a_sorted_set(blocks: BTreeSet<u32>, others: Vec<u32>) {
            let mut ranks = Ranks::default();
            for block in &blocks {
                ranks.insert((*block).into());
            }
            prop_assert_eq!(ranks.count(), blocks.len() as u64);
            for (rank, block) in (0..).zip(&blocks) {
                prop_assert_eq!(ranks.rank((*block).into()), Some(rank));
            }
            for other in others.iter().filter(|other| !blocks.contains(other)) {
                prop_assert_eq!(ranks.rank((*other).into()), None);
            }
        }
    }
}
