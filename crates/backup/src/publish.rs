//! Stage 4: the recipe, and then the manifest, with which the backup exists (B1).

use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;
use onefold_format::backup::{NumberRun, RecipeRun, Target};
use onefold_repository::{NewRecipe, Recipe};

use crate::detect::{Decision, DetectedDisk, PART_BLOCKS};
use crate::disk::{ChangedBlocks, ChangedRun};
use crate::error::{BackupError, Result};
use crate::numbers::merged;
use crate::restore::expanded;
use crate::scan::Place;

/// Figures that only the whole recipe shows.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) logical_blocks: u64,
    pub(crate) popular_blocks: u64,
    pub(crate) own: Vec<NumberRun>,
    pub(crate) popular: Vec<NumberRun>,
}

/// Which numbers the new blocks of all disks have.
pub(crate) struct Numbering<'a> {
    pub(crate) disks: &'a [DetectedDisk],
    /// Of the disk that is published: that of its first new block.
    pub(crate) first_own: u64,
    /// Of each disk: that of the first popular block that is read from it.
    pub(crate) first_popular: &'a [u64],
}

impl Numbering<'_> {
    /// What a block that changed holds, unless something else was decided.
    fn of_new(&self, place: Place) -> Target {
        let disk = &self.disks[place.disk()];
        if let Some(rank) = disk.own.rank(place.block()) {
            return Target::Own(self.first_own + rank);
        }
        match disk.popular.rank(place.block()) {
            Some(rank) => Target::Popular(self.first_popular[place.disk()] + rank),
            None => Target::Zeros,
        }
    }

    fn of(&self, decision: Decision) -> Result<Target> {
        match decision {
            Decision::Own(number) => Ok(Target::Own(number)),
            Decision::Popular(number) => Ok(Target::Popular(number)),
            Decision::SameAs(first) | Decision::SameAsPopular(first) => match self.of_new(first) {
                Target::Zeros => Err(BackupError::Changed {
                    block: first.block(),
                }),
                target => Ok(target),
            },
        }
    }
}

/// Writes the pages of a recipe, from front to back.
pub(crate) struct RecipeWriter<'a> {
    pub(crate) recipe: NewRecipe,
    /// What is unchanged is as it was in it; without it, zeros.
    pub(crate) parent: Option<Recipe>,
    /// The disk, among those that are backed up.
    pub(crate) disk: usize,
    pub(crate) numbering: Numbering<'a>,
    /// The decisions about the disk's blocks, a part at a time.
    pub(crate) decisions: &'a mut dyn FnMut(usize) -> Result<Vec<(u64, Decision)>>,
    pub(crate) changes: ChangedBlocks<'a>,
    pub(crate) disk_blocks: u64,
}

impl RecipeWriter<'_> {
    /// Returns the bytes of the pages, and the totals.
    pub(crate) fn write(mut self) -> Result<(Vec<u32>, Totals)> {
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
                    let place = Place::new(self.disk, block);
                    targets[(block - first) as usize] = self.numbering.of_new(place);
                }
                if blocks.end > end {
                    break;
                }
                change = self.changes.next()?;
            }
            // A part has whole pages.
            if first == part * PART_BLOCKS {
                let mut sorted = (self.decisions)(part as usize)?;
                sorted.sort_unstable_by_key(|(block, _)| *block);
                decisions = sorted.into_iter().peekable();
                part += 1;
            }
            while let Some((block, decision)) = decisions.next_if(|(block, _)| *block < end) {
                targets[(block - first) as usize] = self.numbering.of(decision)?;
            }
            let runs = runs(&targets);
            totals.add(&runs);
            self.recipe.push(&runs)?;
        }
        totals.own = merged(totals.own);
        totals.popular = merged(totals.popular);
        Ok((self.recipe.finish()?, totals))
    }

    /// What the blocks of a page hold in the parent.
    fn parent_page(&self, page: u64, blocks: usize) -> Result<Vec<Target>> {
        let parent = self.parent.as_ref();
        let parent = parent.filter(|it| page < it.manifest().recipe_pages.len() as u64);
        let mut targets = match parent {
            Some(parent) => expanded(&parent.page(page)?),
            None => Vec::new(),
        };
        targets.resize(blocks, Target::Zeros);
        Ok(targets)
    }
}

/// How many runs of numbers are gathered before they are merged.
const NUMBERS_MAX: usize = 1 << 20;

impl Totals {
    fn add(&mut self, runs: &[RecipeRun]) {
        for RecipeRun { blocks, target } in runs {
            let (first, numbers) = match *target {
                Target::Zeros => continue,
                Target::Own(first) => (first, &mut self.own),
                Target::Popular(first) => {
                    self.popular_blocks += blocks;
                    (first, &mut self.popular)
                }
            };
            self.logical_blocks += blocks;
            numbers.push(NumberRun {
                first,
                blocks: *blocks,
            });
            if numbers.len() > NUMBERS_MAX {
                *numbers = merged(std::mem::take(numbers));
            }
        }
    }
}

fn runs(targets: &[Target]) -> Vec<RecipeRun> {
    let mut runs = Vec::new();
    for target in targets {
        let run = RecipeRun {
            blocks: 1,
            target: *target,
        };
        run.push(&mut runs);
    }
    runs
}
