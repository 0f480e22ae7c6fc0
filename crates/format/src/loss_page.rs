//! A page of the part `losses`: blocks whose content a failed sync lost, and the volumes that lost
//! answered writes.
//!
//! ```text
//!  64 volumes      u32   in all pages of the list together
//!  68 runs         u32   likewise
//!  72 reserved     56 bytes
//! 128 + 16 n       item 248 k + n, in the list's page k
//! ```
//!
//! An item is a volume (its number u64, Unix seconds u64) or, after all volumes, a run of lost blocks
//! (first block u64, blocks u64).
//!
//! The whole list is written each time, in pages that have one sequence. Page `k` of it is page `2
//! k + sequence % 2` of the part. A torn write leaves the other list intact.

use crate::bytes::{is_zero, put, u32_at, u64_at};
use crate::error::FormatError;
use crate::page::{self, PageBytes, PageHeader, PageKind};
use crate::units::{PageNumber, Pba, PoolId, VolumeId, is_run};

/// Items in a page.
pub const LOSSES_PER_PAGE: usize = 248;

/// The part's lists, written alternately.
pub const LOSS_LISTS: u64 = 2;

/// Most volumes of a list: more than a pool can have at a time.
pub const LOST_VOLUMES_MAX: u32 = 1 << 20;

/// Most runs of lost blocks: 16 MiB of pages.
pub const LOST_RUNS_MAX: u32 = 1 << 20;

const ITEM_BYTES: usize = 16;
const ITEMS_AT: usize = 128;

/// A volume that lost answered writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedVolume {
    /// The volume.
    pub volume: VolumeId,
    /// When the loss was found, in seconds since the Unix epoch.
    pub found_unix_seconds: u64,
}

/// Blocks that lost their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostRun {
    /// The first block.
    pub start: Pba,
    /// The number of blocks.
    pub count: u64,
}

/// The content of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    /// The damaged volumes, by number.
    pub volumes: Vec<DamagedVolume>,
    /// The lost runs, by address.
    pub runs: Vec<LostRun>,
}

impl Losses {
    /// The pages of the list, with their places in the part.
    ///
    /// # Panics
    ///
    /// Where there are more than [`LOST_VOLUMES_MAX`] volumes or [`LOST_RUNS_MAX`] runs.
    #[must_use]
    pub fn encode(&self, sequence: u64, pool: PoolId) -> Vec<(PageNumber, Box<PageBytes>)> {
        assert!(self.volumes.len() <= LOST_VOLUMES_MAX as usize);
        assert!(self.runs.len() <= LOST_RUNS_MAX as usize);
        let volumes = self
            .volumes
            .iter()
            .map(|lost| (lost.volume.0, lost.found_unix_seconds));
        let runs = self.runs.iter().map(|run| (run.start.0, run.count));
        let items: Vec<(u64, u64)> = volumes.chain(runs).collect();
        let pages = items.len().div_ceil(LOSSES_PER_PAGE).max(1);
        let of_page = |n: usize| items.chunks(LOSSES_PER_PAGE).nth(n).into_iter().flatten();
        (0..pages)
            .map(|n| {
                let mut page = page::blank();
                put(&mut *page, 64, &(self.volumes.len() as u32).to_le_bytes());
                put(&mut *page, 68, &(self.runs.len() as u32).to_le_bytes());
                for ((first, second), at) in of_page(n).zip((ITEMS_AT..).step_by(ITEM_BYTES)) {
                    put(&mut *page, at, &first.to_le_bytes());
                    put(&mut *page, at + 8, &second.to_le_bytes());
                }
                let number = PageNumber(LOSS_LISTS * n as u64 + sequence % LOSS_LISTS);
                page::seal(&mut page, &header(pool, number, sequence));
                (number, page)
            })
            .collect()
    }
}

/// The content of a page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LossPage {
    /// The sequence of the list; each write has a higher one.
    pub sequence: u64,
    /// Volumes in all pages of the list.
    pub volumes: u32,
    /// Runs in all pages of the list.
    pub runs: u32,
    /// The items of this page, as volumes and runs.
    pub part: Losses,
}

impl LossPage {
    /// The number of pages of the list.
    #[must_use]
    pub fn pages(&self) -> u64 {
        let items = self.volumes as usize + self.runs as usize;
        items.div_ceil(LOSSES_PER_PAGE).max(1) as u64
    }

    /// Reads the page at this place of the part.
    ///
    /// # Errors
    ///
    /// Any [`FormatError`].
    pub fn decode(page: &PageBytes, pool: PoolId, number: PageNumber) -> Result<Self, FormatError> {
        let field = |field, value| Err(FormatError::Field { field, value });
        let (sequence, _) = page::open(page, &header(pool, number, 0))?;
        if sequence == 0 || sequence % LOSS_LISTS != number.0 % LOSS_LISTS {
            return field("losses sequence", sequence);
        }
        let (volumes, runs) = (u32_at(page, 64), u32_at(page, 68));
        if volumes > LOST_VOLUMES_MAX {
            return field("damaged volumes", volumes.into());
        }
        if runs > LOST_RUNS_MAX {
            return field("runs of lost blocks", runs.into());
        }
        let items = volumes as usize + runs as usize;
        let before = ((number.0 / LOSS_LISTS) as usize).saturating_mul(LOSSES_PER_PAGE);
        if before > 0 && before >= items {
            return field("losses", items as u64);
        }
        let count = (items - before).min(LOSSES_PER_PAGE);
        let end = ITEMS_AT + count * ITEM_BYTES;
        if !is_zero(&page[72..ITEMS_AT]) || !is_zero(&page[end..]) {
            return Err(FormatError::Reserved {
                structure: "losses page",
            });
        }
        let mut part = Losses::default();
        for (n, at) in (before..).zip((ITEMS_AT..end).step_by(ITEM_BYTES)) {
            let (first, second) = (u64_at(page, at), u64_at(page, at + 8));
            if n < volumes as usize {
                part.push_volume(first, second)?;
            } else {
                part.push_run(first, second)?;
            }
        }
        Ok(Self {
            sequence,
            volumes,
            runs,
            part,
        })
    }
}

impl Losses {
    fn push_volume(&mut self, volume: u64, found_unix_seconds: u64) -> Result<(), FormatError> {
        let is_in_order = self
            .volumes
            .last()
            .is_none_or(|last| last.volume.0 < volume);
        if volume == 0 || !is_in_order {
            return Err(FormatError::Field {
                field: "damaged volume",
                value: volume,
            });
        }
        self.volumes.push(DamagedVolume {
            volume: VolumeId(volume),
            found_unix_seconds,
        });
        Ok(())
    }

    fn push_run(&mut self, start: u64, count: u64) -> Result<(), FormatError> {
        let end_before = self.runs.last().map_or(0, |last| last.start.0 + last.count);
        if start < end_before || !is_run(Pba(start), count) {
            return Err(FormatError::Field {
                field: "lost block",
                value: start,
            });
        }
        self.runs.push(LostRun {
            start: Pba(start),
            count,
        });
        Ok(())
    }

    /// Adds the items of the list's next page.
    ///
    /// # Errors
    ///
    /// [`FormatError::Field`] where they do not continue in order.
    pub fn extend(&mut self, next: &Losses) -> Result<(), FormatError> {
        for it in &next.volumes {
            self.push_volume(it.volume.0, it.found_unix_seconds)?;
        }
        for run in &next.runs {
            self.push_run(run.start.0, run.count)?;
        }
        Ok(())
    }
}

fn header(pool: PoolId, number: PageNumber, sequence: u64) -> PageHeader {
    PageHeader {
        kind: PageKind::Losses,
        level: 0,
        pool,
        page: number,
        owner: 0,
        index: number.0 / LOSS_LISTS,
        sequence,
    }
}
