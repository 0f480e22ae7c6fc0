//! Stage 4: the recipe, and then the manifest, with which the backup exists (B1).

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;
use onefold_format::backup::{Counts, NumberRun, RecipeRun, Target, Witness};
use onefold_repository::{NewRecipe, Recipe};

use crate::disk::{ChangedBlocks, ChangedRun};
use crate::error::{BackupError, Result};
use crate::numbers::merged;
use crate::ranks::Ranks;
use crate::records::{ByPlace, Decided, Decision, Place};
use crate::restore::expanded;

/// Figures that only the whole recipe shows.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) logical_blocks: u64,
    pub(crate) popular_blocks: u64,
    pub(crate) own: Vec<NumberRun>,
    pub(crate) popular: Vec<NumberRun>,
    /// For own and popular numbers each, how many runs are collected before they are merged.
    unmerged_max: [usize; 2],
}

/// The numbers of the new blocks that a disk may refer to.
pub(crate) struct Numbering<'a> {
    /// New blocks that only this disk has.
    pub(crate) own: NewNumbers,
    /// New popular blocks of all disks.
    pub(crate) popular: &'a mut NewNumbers,
}

/// The numbers of new blocks of one source, which follow each other.
pub(crate) struct NewNumbers {
    /// The number of the first new block.
    first: u64,
    /// The order in which the new blocks are stored, by their places on the disks.
    ranks: Ranks,
}

impl NewNumbers {
    /// The numbers of blocks that are stored in this order, from the first block of a pack on.
    pub(crate) fn from_pack(pack: u64, ranks: Ranks) -> Self {
        Self {
            first: pack * BLOCKS_PER_PACK,
            ranks,
        }
    }

    /// The number of the new block at this place, if there is one.
    fn number(&mut self, place: Place) -> Result<Option<u64>> {
        Ok(self.ranks.rank(place)?.map(|rank| self.first + rank))
    }
}

impl Numbering<'_> {
    /// The target of a changed block about which there is no decision: the new block at this place, or zeros.
    fn of_new(&mut self, place: Place) -> Result<Target> {
        if let Some(number) = self.own.number(place)? {
            return Ok(Target::Own(number));
        }
        Ok(match self.popular.number(place)? {
            Some(number) => Target::Popular(number),
            None => Target::Zeros,
        })
    }

    fn of(&mut self, decision: Decision) -> Result<Target> {
        match decision {
            Decision::Own(number) => Ok(Target::Own(number)),
            Decision::Popular(number) => Ok(Target::Popular(number)),
            Decision::SameAs(first) => match self.of_new(first)? {
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
    /// The parent's recipe, which gives the targets of unchanged blocks; zeros without a parent.
    pub(crate) parent: Option<Recipe>,
    /// The disk, among those that are backed up.
    pub(crate) disk: usize,
    pub(crate) numbering: Numbering<'a>,
    /// The decisions about the blocks of all disks.
    pub(crate) decided: &'a mut ByPlace<Decided>,
    pub(crate) changes: ChangedBlocks<'a>,
    pub(crate) disk_blocks: u64,
}

impl RecipeWriter<'_> {
    /// Returns the recipe's witness, the sealed bytes of each page, and the totals.
    pub(crate) fn write(mut self) -> Result<((Witness, Vec<u32>), Totals)> {
        let mut totals = Totals::default();
        let mut change = self.changes.next()?;
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
                    targets[(block - first) as usize] = self.numbering.of_new(place)?;
                }
                if blocks.end > end {
                    break;
                }
                change = self.changes.next()?;
            }
            let places = Place::new(self.disk, first)..Place::new(self.disk, end);
            while let Some(decided) = self.decided.next_in(&places)? {
                let at = decided.place.block() - first;
                targets[at as usize] = self.numbering.of(decided.decision())?;
            }
            let runs = runs(&targets);
            totals.add(&runs);
            self.recipe.push(&runs)?;
        }
        totals.own = merged(totals.own);
        totals.popular = merged(totals.popular);
        Ok((self.recipe.finish()?, totals))
    }

    /// The targets of a page's blocks in the parent.
    fn parent_page(&self, page: u64, blocks: usize) -> Result<Vec<Target>> {
        let parent = self.parent.as_ref();
        let parent = parent.filter(|recipe| page < recipe.manifest().recipe_pages.len() as u64);
        let mut targets = match parent {
            Some(parent) => expanded(&parent.page(page)?),
            None => Vec::new(),
        };
        targets.resize(blocks, Target::Zeros);
        Ok(targets)
    }
}

/// The least number of runs that are collected before they are merged.
const NUMBERS_MIN: usize = 1 << 16;

impl Totals {
    /// The counts of a backup, given how many blocks were read and stored for it.
    pub(crate) fn counts(&self, read_blocks: u64, new_blocks: u64, stored_bytes: u64) -> Counts {
        Counts {
            logical_blocks: self.logical_blocks,
            read_blocks,
            new_blocks,
            stored_bytes,
            popular_blocks: self.popular_blocks,
        }
    }

    fn add(&mut self, runs: &[RecipeRun]) {
        for RecipeRun { blocks, target } in runs {
            let [own_max, popular_max] = &mut self.unmerged_max;
            let (first, numbers, max) = match *target {
                Target::Zeros => continue,
                Target::Own(first) => (first, &mut self.own, own_max),
                Target::Popular(first) => {
                    self.popular_blocks += blocks;
                    (first, &mut self.popular, popular_max)
                }
            };
            self.logical_blocks += blocks;
            numbers.push(NumberRun {
                first,
                blocks: *blocks,
            });
            if numbers.len() > (*max).max(NUMBERS_MIN) {
                *numbers = merged(std::mem::take(numbers));
                // If merging removes few runs, merge less often.
                *max = 2 * numbers.len();
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
