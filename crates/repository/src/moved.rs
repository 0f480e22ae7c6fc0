//! Blocks that packs no longer store, because popular blocks have their content.

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{Witness, witness_of};

use crate::pack::Pack;

/// Consecutive blocks of a pack that were moved to popular blocks with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedRun {
    /// The number of the first popular block.
    pub number: u64,
    /// How many blocks were moved, all to one popular pack.
    pub blocks: usize,
    /// The witness of the popular pack.
    pub witness: Witness,
}

impl Pack {
    /// The popular block to which a block was moved, and how many blocks from this one on were moved to the following
    /// numbers of the same pack, at most `most`. `None` if the block was not moved.
    #[must_use]
    pub fn moved_from(&self, block: usize, most: usize) -> Option<MovedRun> {
        let mut following = self.slots().iter().skip(block).take(most);
        let number = following.next()?.moved()?;
        let alike = following.zip(number + 1..);
        let alike = alike.take_while(|(slot, next)| {
            slot.moved() == Some(*next) && next / BLOCKS_PER_PACK == number / BLOCKS_PER_PACK
        });
        Some(MovedRun {
            number,
            blocks: 1 + alike.count(),
            witness: witness_of(self.popular_packs(), number / BLOCKS_PER_PACK)?,
        })
    }
}
