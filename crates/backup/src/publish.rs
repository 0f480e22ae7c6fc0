//! Stage 4: the recipe, and then the manifest, with which the backup exists (B1).

use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;
use onefold_format::backup::{NumberRun, RecipeRun, Target};
use onefold_repository::{NewRecipe, Recipe};

use crate::detect::{Decision, Detected};
use crate::disk::{ChangedBlocks, ChangedRun};
use crate::error::{BackupError, Result};
use crate::restore::{ZEROS, targets};

/// Figures that only the whole recipe shows.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) logical_blocks: u64,
    pub(crate) numbers: Vec<NumberRun>,
}

/// Writes the pages of a recipe, from front to back.
pub(crate) struct RecipeWriter<'a> {
    pub(crate) recipe: NewRecipe,
    /// What is unchanged is as it was in it; without it, zeros.
    pub(crate) parent: Option<Recipe>,
    pub(crate) detected: Detected,
    /// The number of the first new block.
    pub(crate) first_number: u64,
    pub(crate) changes: ChangedBlocks<'a>,
    pub(crate) disk_blocks: u64,
}

impl RecipeWriter<'_> {
    /// Returns the bytes of the pages, and the totals.
    pub(crate) fn write(mut self) -> Result<(Vec<u32>, Totals)> {
        let mut numbers: Vec<NumberRun> = Vec::new();
        let mut totals = Totals::default();
        let mut change = self.changes.next()?;
        let mut decisions = Vec::new().into_iter().peekable();
        let mut part = 0;
        for page in 0..self.disk_blocks.div_ceil(BLOCKS_PER_RECIPE_PAGE) {
            let first = page * BLOCKS_PER_RECIPE_PAGE;
            let end = (first + BLOCKS_PER_RECIPE_PAGE).min(self.disk_blocks);
            let mut targets = self.parent_page(page, (end - first) as usize)?;
            while let Some(ChangedRun { blocks, .. }) = &change
                && blocks.start < end
            {
                let from = blocks.start.max(first);
                for block in from..blocks.end.min(end) {
                    let rank = self.detected.new.rank(block);
                    targets[(block - first) as usize] =
                        rank.map_or(ZEROS, |rank| self.first_number + rank);
                }
                if blocks.end > end {
                    break;
                }
                change = self.changes.next()?;
            }
            // A part has whole pages.
            if first == part * self.detected.part_blocks {
                let taken = self.detected.decisions.take(part as usize)?;
                let mut sorted: Vec<_> = taken.iter().map(Decision::decode).collect();
                sorted.sort_unstable_by_key(|(block, _)| *block);
                decisions = sorted.into_iter().peekable();
                part += 1;
            }
            while let Some((block, decision)) = decisions.next_if(|(block, _)| *block < end) {
                targets[(block - first) as usize] = match decision {
                    Decision::Stored(number) => number,
                    Decision::SameAs(first) => {
                        let rank = self.detected.new.rank(first);
                        let rank = rank.ok_or(BackupError::Changed { block: first })?;
                        self.first_number + rank
                    }
                };
            }
            let runs = runs(&targets);
            for run in &runs {
                if let Target::Stored(first) = run.target {
                    totals.logical_blocks += run.blocks;
                    numbers.push(NumberRun {
                        first,
                        blocks: run.blocks,
                    });
                }
            }
            if numbers.len() > NUMBERS_MAX {
                numbers = merged(numbers);
            }
            self.recipe.push(&runs)?;
        }
        totals.numbers = merged(numbers);
        Ok((self.recipe.finish()?, totals))
    }

    /// The numbers of a page in the parent.
    fn parent_page(&self, page: u64, blocks: usize) -> Result<Vec<u64>> {
        let parent = self.parent.as_ref();
        let parent = parent.filter(|it| page < it.manifest().recipe_pages.len() as u64);
        let mut numbers = match parent {
            Some(parent) => targets(&parent.page(page)?),
            None => Vec::new(),
        };
        numbers.resize(blocks, ZEROS);
        Ok(numbers)
    }
}

/// How many runs of numbers are gathered before they are merged.
const NUMBERS_MAX: usize = 1 << 20;

fn runs(targets: &[u64]) -> Vec<RecipeRun> {
    let mut runs = Vec::new();
    for target in targets {
        let run = RecipeRun {
            blocks: 1,
            target: match *target {
                ZEROS => Target::Zeros,
                number => Target::Stored(number),
            },
        };
        run.push(&mut runs);
    }
    runs
}

/// The same numbers in ascending order, each once.
pub(crate) fn merged(mut runs: Vec<NumberRun>) -> Vec<NumberRun> {
    runs.sort_unstable_by_key(|run| run.first);
    let mut merged: Vec<NumberRun> = Vec::new();
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.first <= last.first + last.blocks => {
                let end = (run.first + run.blocks).max(last.first + last.blocks);
                last.blocks = end - last.first;
            }
            _ => merged.push(run),
        }
    }
    merged
}
