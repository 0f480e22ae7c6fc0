//! A page of a recipe: which block is at which address, for 32,768 blocks of the disk.
//!
//! The page is a list of runs, which together have as many blocks as the page; a last run of zeros is
//! left out. A run is a varint of four times its blocks, plus its kind: 0 zeros, 1 blocks that the source has
//! stored for itself, 2 popular ones. Unless they are zeros, a second varint follows: the number of the first
//! less the number after the run of the same kind before it in the page (or 0), with the sign in the lowest
//! bit. Runs of a page are as long as can be.
//!
//! The bytes are compressed with zstd and sealed: page *n* of the disk is chunk *n* of the recipe. A page
//! of zeros is left out. The manifest has the place of each page.

use crate::cursor::{Cursor, impossible, put_varint};
use crate::error::FormatError;

/// Blocks of the disk in a page.
pub const BLOCKS_PER_RECIPE_PAGE: u64 = 32_768;

/// The most bytes that a page can have: each block in a run of its own.
pub const RECIPE_PAGE_BYTES_MAX: usize = BLOCKS_PER_RECIPE_PAGE as usize * 12;

/// Numbers stay below this.
pub const NUMBER_END: u64 = 1 << 62;

/// The content of a run's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Zeros.
    Zeros,
    /// The block that the source has stored for itself under this number, and the following ones.
    Own(u64),
    /// The popular block of this number, and the following ones.
    Popular(u64),
}

impl Target {
    /// The content `blocks` blocks after this one in its run.
    #[must_use]
    pub fn plus(self, blocks: u64) -> Self {
        match self {
            Self::Zeros => Self::Zeros,
            Self::Own(number) => Self::Own(number + blocks),
            Self::Popular(number) => Self::Popular(number + blocks),
        }
    }
}

/// Consecutive blocks of the disk that hold zeros, or blocks with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecipeRun {
    /// The number of blocks.
    pub blocks: u64,
    /// The content of the first block.
    pub target: Target,
}

impl RecipeRun {
    /// Appends the run to `runs`, extending the last one if it continues it.
    pub fn push(self, runs: &mut Vec<RecipeRun>) {
        if self.blocks == 0 {
            return;
        }
        if let Some(last) = runs.last_mut()
            && last.target.plus(last.blocks) == self.target
        {
            last.blocks += self.blocks;
            return;
        }
        runs.push(self);
    }
}

/// Encodes a page of runs made by [`RecipeRun::push`].
#[must_use]
pub fn encode_page(runs: &[RecipeRun]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut expected = [0_u64; 2];
    let last_stored = runs.iter().rposition(|run| run.target != Target::Zeros);
    for run in &runs[..last_stored.map_or(0, |at| at + 1)] {
        let (kind, number) = match run.target {
            Target::Zeros => {
                put_varint(&mut out, run.blocks << 2);
                continue;
            }
            Target::Own(number) => (1, number),
            Target::Popular(number) => (2, number),
        };
        put_varint(&mut out, run.blocks << 2 | kind);
        let expected = &mut expected[kind as usize - 1];
        let difference = number.wrapping_sub(*expected).cast_signed();
        put_varint(
            &mut out,
            (difference << 1 ^ difference >> 63).cast_unsigned(),
        );
        *expected = number + run.blocks;
    }
    out
}

/// Decodes the runs of a page of `blocks` blocks.
///
/// # Errors
///
/// Any [`FormatError`].
pub fn decode_page(bytes: &[u8], blocks: u64) -> Result<Vec<RecipeRun>, FormatError> {
    let mut rest = Cursor(bytes);
    let (mut runs, mut left, mut expected) = (Vec::new(), blocks, [0_u64; 2]);
    while !rest.0.is_empty() {
        let word = rest.varint()?;
        let (run_blocks, kind) = (word >> 2, word & 3);
        if run_blocks == 0 || run_blocks > left {
            return Err(impossible("blocks of a run", run_blocks));
        }
        left -= run_blocks;
        let mut target = Target::Zeros;
        if kind > 0 {
            let Some(expected) = expected.get_mut(kind as usize - 1) else {
                return Err(impossible("kind of a run", kind));
            };
            let coded = rest.varint()?;
            let difference = (coded >> 1) ^ (coded & 1).wrapping_neg();
            let number = expected.wrapping_add(difference);
            if number >= NUMBER_END {
                return Err(impossible("number of a block", number));
            }
            *expected = number + run_blocks;
            target = match kind {
                1 => Target::Own(number),
                _ => Target::Popular(number),
            };
        }
        let before = runs.len();
        let run = RecipeRun {
            blocks: run_blocks,
            target,
        };
        run.push(&mut runs);
        if runs.len() == before {
            return Err(impossible(
                "blocks of a run that another one continues",
                run_blocks,
            ));
        }
    }
    if runs.last().is_some_and(|run| run.target == Target::Zeros) {
        return Err(impossible("blocks of a last run of zeros", left));
    }
    let zeros = RecipeRun {
        blocks: left,
        target: Target::Zeros,
    };
    zeros.push(&mut runs);
    Ok(runs)
}
