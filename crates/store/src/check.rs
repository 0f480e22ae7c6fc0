//! `check`: proves that every block is exactly one of free, in between, or owned by one entry (P6).
//!
//! What is checked is a checkpoint as it stands on disk, written just before and kept until the
//! end, so requests go on meanwhile. All of its pages are read and verified. Owners are counted in
//! a bitmap of bounded size; a pool with more blocks than that has bits is checked in several
//! passes over the maps.
//!
//! `--repair` makes free space agree with the maps, which are the truth. It never changes a map
//! and never frees anything while some page of a map cannot be read: in doubt it leaks (P8).

use std::ops::Range;

use onefold_format::entry::State;
use onefold_format::map_page::{self, Segment};
use onefold_format::node::Pointer;
use onefold_format::page::{PageKind, SPACE_OWNER};
use onefold_format::space_page::{self, BLOCKS_PER_SPACE_PAGE};
use onefold_format::{Pba, Root, SegmentIndex, TreeRoot, VolumeRecord};

use crate::bits;
use crate::catalogue::Catalogue;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::pool::Pool;
use crate::space::PbaRun;
use crate::store::Store;
use crate::tree;

/// Words of a free-space page's bitmap.
const PAGE_WORDS: usize = BLOCKS_PER_SPACE_PAGE as usize / 64;

/// One thing that is wrong, as a sentence that names volume, LBA and PBA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong, and where.
    pub message: String,
    /// Whether `--repair` puts it right without losing anything.
    pub repairable: bool,
}

/// What a check read and found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Things that are wrong.
    pub findings: u64,
    /// Of these, put right.
    pub repaired: u64,
    /// Blocks that nothing names and that are not free.
    pub leaked_blocks: u64,
    /// Entries that own a block.
    pub mapped_blocks: u64,
    /// Leaf pages read and verified.
    pub pages_read: u64,
    /// Passes over the maps that the memory limit made necessary.
    pub passes: u64,
}

impl Store {
    /// Checks the pool, while it is in use. Each finding is passed to `report` as it is met.
    ///
    /// # Errors
    ///
    /// Those that keep it from going on. Damage is a finding, not an error.
    pub fn check(&self, repair: bool, report: &mut dyn FnMut(Finding)) -> Result<CheckReport> {
        // The hold comes first: a checkpoint between the two would only hold back more.
        let hold = self.pool.pages.hold();
        if self.pool.check_writable().is_ok() {
            self.pool.checkpoint()?;
        }
        let root = *self.pool.checkpoints.lock();
        let catalogue = Catalogue::read(&self.pool.pages, root.catalogue, &mut |_| Ok(()))?;
        let volumes = catalogue
            .volumes()
            .map(|(_, volume)| volume.clone())
            .collect();
        let mut check = Check {
            pool: &self.pool,
            root,
            volumes,
            repair,
            report,
            counts: CheckReport::default(),
            is_map_unreadable: false,
        };
        check.run()?;
        let counts = check.counts;
        drop(hold);
        if counts.repaired > 0 {
            self.pool.checkpoint()?;
        }
        Ok(counts)
    }
}

struct Check<'a> {
    pool: &'a Pool,
    root: Root,
    volumes: Vec<VolumeRecord>,
    repair: bool,
    report: &'a mut dyn FnMut(Finding),
    counts: CheckReport,
    /// Some page of a map could not be read: nobody knows which blocks it owns.
    is_map_unreadable: bool,
}

impl Check<'_> {
    fn run(&mut self) -> Result<()> {
        let pass_blocks = (self.pool.limits.check_bytes as u64 * 8)
            .next_multiple_of(BLOCKS_PER_SPACE_PAGE)
            .min(
                self.root
                    .pool_blocks
                    .next_multiple_of(BLOCKS_PER_SPACE_PAGE),
            );
        let mut start = 0;
        while start < self.root.pool_blocks {
            let window = start..start + pass_blocks;
            // Every pass reads all maps, so whether one of them is unreadable is known before
            // anything is put right.
            let owned = self.count_owners(&window)?;
            self.compare(&window, &owned)?;
            self.counts.passes += 1;
            start = window.end;
        }
        Ok(())
    }

    fn find(&mut self, repairable: bool, message: String) {
        self.counts.findings += 1;
        (self.report)(Finding {
            message,
            repairable,
        });
    }

    /// Sets a bit for each block of `window` that an entry owns; finds those that two own.
    fn count_owners(&mut self, window: &Range<u64>) -> Result<Vec<u64>> {
        // The window is a whole number of free-space pages.
        let mut owned = vec![0; (window.end - window.start) as usize / 64];
        for volume in std::mem::take(&mut self.volumes) {
            let mut leaves = Leaves::new(&volume);
            while let Some((segment, pointer)) = leaves.next(self)? {
                if let Some(entries) = self.read_map_page(&volume, segment, pointer, window)? {
                    self.count_segment(&volume, segment, &entries, window, &mut owned);
                }
            }
            self.volumes.push(volume);
        }
        Ok(owned)
    }

    fn read_map_page(
        &mut self,
        volume: &VolumeRecord,
        segment: SegmentIndex,
        pointer: Pointer,
        window: &Range<u64>,
    ) -> Result<Option<Box<Segment>>> {
        let is_first_pass = window.start == 0;
        self.counts.pages_read += u64::from(is_first_pass);
        let layer = volume.layer.0;
        let page = self
            .pool
            .pages
            .read(PageKind::Map, 0, layer, segment.0, pointer);
        let entries = page.and_then(|page| {
            map_page::decode(&page).map_err(|e| StoreError::format("map page", e))
        });
        let problem = match entries {
            Ok(entries) if map_page::mapped(&entries) == pointer.info => return Ok(Some(entries)),
            Ok(_) => format!(
                "{} entries are counted there, not what it has",
                pointer.info
            ),
            Err(error) if error.kind() == StoreErrorKind::Damaged => error.to_string(),
            Err(error) => return Err(error),
        };
        self.is_map_unreadable = true;
        if is_first_pass {
            let (first, next) = (segment.first(), SegmentIndex(segment.0 + 1).first());
            let last = next.0 - 1;
            self.find(
                false,
                format!(
                    "volume '{}', LBA {first} to {last}: the map cannot be read: {problem}",
                    volume.name
                ),
            );
        }
        Ok(None)
    }

    fn count_segment(
        &mut self,
        volume: &VolumeRecord,
        segment: SegmentIndex,
        entries: &Segment,
        window: &Range<u64>,
        owned: &mut [u64],
    ) {
        let is_first_pass = window.start == 0;
        for (entry, lba) in entries.iter().zip(segment.first().0..) {
            let State::Private(pba) = entry.state() else {
                continue;
            };
            self.counts.mapped_blocks += u64::from(is_first_pass);
            let place = || format!("volume '{}', LBA {lba}, PBA {pba}", volume.name);
            if pba.0 >= self.root.pool_blocks {
                if is_first_pass {
                    self.find(false, format!("{}: beyond the pool's end", place()));
                }
            } else if window.contains(&pba.0) {
                let bit = (pba.0 - window.start) as usize;
                if bits::all(owned, bit..bit + 1, true) {
                    self.find(
                        false,
                        format!("{}: another entry owns this block too", place()),
                    );
                }
                bits::fill(owned, bit..bit + 1, true);
            }
        }
    }

    /// Compares the owners with the free-space map, and puts right what differs.
    fn compare(&mut self, window: &Range<u64>, owned: &[u64]) -> Result<()> {
        let first_page = window.start / BLOCKS_PER_SPACE_PAGE;
        for (owned, index) in owned.chunks_exact(PAGE_WORDS).zip(first_page..) {
            let Some(named) = self.read_space_page(index, owned)? else {
                continue;
            };
            let words = owned.iter().zip(named.iter());
            let unnamed: Vec<u64> = words.clone().map(|(owned, named)| owned & !named).collect();
            let leaked: Vec<u64> = words.map(|(owned, named)| named & !owned).collect();
            for (different, is_owned) in [(unnamed, true), (leaked, false)] {
                let equal: Vec<u64> = different.iter().map(|bits| !bits).collect();
                for run in bits::clear_runs(&equal, 0) {
                    let start = Pba(index * BLOCKS_PER_SPACE_PAGE + run.start as u64);
                    self.find_difference(
                        PbaRun {
                            start,
                            count: run.len() as u64,
                        },
                        is_owned,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn find_difference(&mut self, run: PbaRun, is_owned: bool) -> Result<()> {
        let what = if is_owned {
            "counted as free, but entries own them"
        } else {
            self.counts.leaked_blocks += run.count;
            "leaked: counted as in use, but no entry owns them"
        };
        let repairable = is_owned || !self.is_map_unreadable;
        let last = run.start.0 + run.count - 1;
        self.find(repairable, format!("PBA {} to {last}: {what}", run.start));
        if self.repair && repairable {
            let space = &mut self.pool.ledger()?.books.space;
            self.counts.repaired += u64::from(space.correct(run, is_owned)?);
        }
        Ok(())
    }

    /// Reads a page of the free-space map. One that is damaged is, with `--repair`, what the maps
    /// say it should be.
    fn read_space_page(
        &mut self,
        index: u64,
        owned: &[u64],
    ) -> Result<Option<Box<space_page::Bitmap>>> {
        let pages = &self.pool.pages;
        let Some(pointer) = tree::lookup(pages, SPACE_OWNER, self.root.space, index)? else {
            return Ok(Some(Box::new(space_page::EMPTY_BITMAP)));
        };
        self.counts.pages_read += 1;
        let page = pages.read(PageKind::Space, 0, SPACE_OWNER, index, pointer);
        let bitmap = page.and_then(|page| {
            space_page::decode(&page).map_err(|e| StoreError::format("space page", e))
        });
        let error = match bitmap {
            Ok(bitmap) => return Ok(Some(bitmap)),
            Err(error) if error.kind() == StoreErrorKind::Damaged => error,
            Err(error) => return Err(error),
        };
        let first = index * BLOCKS_PER_SPACE_PAGE;
        let last = first + BLOCKS_PER_SPACE_PAGE - 1;
        let repairable = !self.is_map_unreadable;
        self.find(
            repairable,
            format!("PBA {first} to {last}: the free-space map cannot be read: {error}"),
        );
        if self.repair && repairable {
            let mut bitmap = space_page::EMPTY_BITMAP;
            bitmap.copy_from_slice(owned);
            let space = &mut self.pool.ledger()?.books.space;
            self.counts.repaired += u64::from(space.rebuild_page(index as u32, bitmap));
        }
        Ok(None)
    }
}

/// The leaves of a volume's map as the checkpoint has it, one after the other.
struct Leaves {
    owner: u64,
    root: TreeRoot,
    next: u64,
}

impl Leaves {
    fn new(volume: &VolumeRecord) -> Self {
        Self {
            owner: volume.layer.0,
            root: volume.map,
            next: 0,
        }
    }

    fn next(&mut self, check: &Check<'_>) -> Result<Option<(SegmentIndex, Pointer)>> {
        let found = tree::next_leaf(&check.pool.pages, self.owner, self.root, self.next)?;
        Ok(found.map(|(index, pointer)| {
            self.next = index + 1;
            (SegmentIndex(index), pointer)
        }))
    }
}
