//! `check`: proves that every block is exactly one of free, in flight, owned by one entry, or
//! shared with as many references as the index counts (P6): references = entries + dropped - claims.
//!
//! It checks a checkpoint on disk, written just before and kept until the end, so requests continue. All
//! of its pages are read and verified. Owners and references are counted for a window of the pool
//! of bounded size; a pool with more blocks is checked in several passes over the maps, each of a
//! checkpoint of its own, because pages of a kept checkpoint cannot be reused. Finder and collector
//! wait until the end, so that the index does not change.
//!
//! `--repair` makes free space and index agree with the maps, which are the truth. It never changes
//! a map and never frees anything while some page of a map cannot be read: in doubt it leaks (P8).

mod survey;

use std::rc::Rc;
use std::sync::Arc;

use onefold_format::map_page::{self, Segment};
use onefold_format::space_page::{self, BLOCKS_PER_SPACE_PAGE};
use onefold_format::{DomainId, Pba, SegmentIndex, VolumeRecord};
use onefold_index::{Fingerprint, IndexError, IndexReader, Row};
use onefold_journal::{CheckpointReader, MapPage};
use onefold_metadata::{PbaRun, Result, StoreError, StoreErrorKind, bits};

pub(crate) use self::survey::{Survey, SurveyKind, survey};
use super::scrub::Scrub;
use crate::blocks::what_is_wrong;
use crate::dedup::{PoolIndex, Window};
use crate::pool::Pool;
use crate::shared::check_is_alone;

/// Rows of the index checked together.
const ROWS_AT_ONCE: usize = 4096;

/// Where the order of fingerprints begins.
const LOWEST: Fingerprint = Fingerprint([0; 16]);

/// Words of a free-space page's bitmap.
const PAGE_WORDS: usize = BLOCKS_PER_SPACE_PAGE as usize / 64;

/// A finding that a check lists.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ListedFinding))]
pub struct Finding {
    /// The finding, for people.
    pub message: String,
    /// Whether `--repair` corrects it.
    pub repairable: bool,
}

/// The totals of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckReport {
    /// Number of findings.
    pub findings: u64,
    /// Findings that were repaired.
    pub repaired: u64,
    /// Blocks that are not free although nothing refers to them.
    pub leaked_blocks: u64,
    /// Map entries checked.
    pub mapped_blocks: u64,
    /// Metadata pages read.
    pub pages_read: u64,
    /// Passes over the maps that the memory limit made necessary. Not in JSON.
    #[cfg_attr(feature = "api", serde(skip))]
    pub passes: u64,
}

/// Checks a pool, while it is in use: see [`Store::check`](crate::Store::check). `progress` gets the number of entries
/// and rows checked, and of all.
pub(crate) fn check(
    scrub: &Scrub,
    pool_index: &PoolIndex,
    repair: bool,
    report: &mut dyn FnMut(Finding),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport> {
    let pool = scrub.pool();
    check_is_alone(pool, "a check")?;
    let _job = pool.batches().job()?;
    let is_writable = pool.journal().check_writable().is_ok();
    let index_problem = match is_writable.then(|| pool_index.settle()) {
        // The disk fails, and not the index.
        Some(Err(error)) if pool.journal().check_writable().is_err() => return Err(error),
        settled => settled.and_then(Result::err),
    };
    scrub.look_at_bad_again()?;
    let snapshot = CheckpointReader::take(pool.journal())?;
    let index = pool.index().ready().ok();
    let mut check = Check {
        pool,
        scrub,
        index: index
            .filter(|_| snapshot.is_fresh && index_problem.is_none())
            .map(|index| -> Arc<dyn IndexReader> { index }),
        snapshot: Rc::new(snapshot),
        repair,
        report,
        is_cancelled: &|| false,
        pool_end: 0,
        counts: CheckReport::default(),
        is_map_unreadable: false,
        is_index_unreadable: false,
        index_findings: 0,
        progress,
        done: 0,
        all: 0,
    };
    check.pool_end = check.snapshot.root.pool_blocks;
    if let Some(problem) = index_problem {
        check.find_in_index(problem.to_string());
    }
    check.run()?;
    let Check {
        mut counts,
        index_findings,
        is_map_unreadable,
        is_index_unreadable,
        index,
        ..
    } = check;
    drop(index);
    if repair && index_findings > 0 && !is_map_unreadable {
        pool_index.repair(is_index_unreadable)?;
        counts.repaired += index_findings;
    }
    if counts.repaired > 0 {
        pool.journal().checkpoint()?;
    }
    Ok(counts)
}

struct Check<'a> {
    pool: &'a Pool,
    scrub: &'a Scrub,
    snapshot: Rc<CheckpointReader<'a>>,
    /// The index; nothing if it cannot be compared with the maps.
    index: Option<Arc<dyn IndexReader>>,
    repair: bool,
    report: &'a mut dyn FnMut(Finding),
    /// Whether the check has to end early.
    is_cancelled: &'a dyn Fn() -> bool,
    /// The first block beyond the pool.
    pool_end: u64,
    counts: CheckReport,
    /// Some page of a map could not be read: its blocks are not known.
    is_map_unreadable: bool,
    /// The index opened, but some of its rows could not be read.
    is_index_unreadable: bool,
    /// Rows that do not match the maps.
    index_findings: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    /// Entries and rows checked so far; `all` is their number in all passes.
    done: u64,
    all: u64,
}

impl Check<'_> {
    fn run(&mut self) -> Result<()> {
        self.find_bad_blocks()?;
        let pool_blocks = self.snapshot.root.pool_blocks;
        let step = Window::blocks_for(self.pool.limits().check_bytes, pool_blocks);
        let rows = self.index.as_ref().map_or(0, |index| index.counts().rows());
        let volumes = self.snapshot.volumes.iter();
        let entries = volumes
            .map(|volume| volume.counts.private + volume.counts.unshareable + volume.counts.shared);
        self.all = (entries.sum::<u64>() + rows) * pool_blocks.div_ceil(step);
        for start in (0..pool_blocks).step_by(step as usize) {
            if start > 0 {
                self.renew()?;
            }
            let _memory = self.pool.scan_memory();
            let mut window = Window::new(start..start + step);
            // Every pass reads all maps, so whether one of them is unreadable is known before
            // anything is put right.
            self.count_owners(&mut window)?;
            self.compare_index(&window)?;
            self.compare_space(&window)?;
            self.counts.passes += 1;
        }
        Ok(())
    }

    /// Continues in a newer checkpoint, in which entries checked so far may have changed.
    fn renew(&mut self) -> Result<()> {
        let snapshot = Rc::get_mut(&mut self.snapshot);
        let snapshot = snapshot.ok_or_else(|| StoreError::damaged("a window is in use still"))?;
        snapshot.renew()?;
        if !snapshot.is_fresh {
            self.index = None;
        }
        Ok(())
    }

    /// Reports that `more` entries or rows were checked.
    fn advance(&mut self, more: usize) {
        self.done += more as u64;
        (self.progress)(self.done, self.all.max(self.done));
    }

    /// Reports faults that the scrub or a request found before.
    fn find_bad_blocks(&mut self) -> Result<()> {
        for bad in self.pool.bad().all() {
            // A block that is only kept out of use is not a loss.
            if !self.scrub.is_named(bad.pba)? {
                continue;
            }
            let (pba, what) = (bad.pba, what_is_wrong(bad.fault));
            self.find(
                false,
                format!("PBA {pba}: the block {what}; `pool scrub --list` names who uses it"),
            );
        }
        if let Some(problem) = self.pool.bad().problem() {
            self.find(
                false,
                format!(
                    "the list of bad blocks is lost until `pool scrub` has read the whole pool: \
                     {problem}"
                ),
            );
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

    /// Counts owners and references of each block in `window`; finds blocks owned twice.
    fn count_owners(&mut self, window: &mut Window) -> Result<()> {
        self.count_named(window, &mut |_, _| {})?;
        let within = window.blocks.clone();
        Rc::clone(&self.snapshot).each_claim(&mut |element| {
            for pba in element.blocks().filter(|pba| within.contains(&pba.0)) {
                if !window.claim(pba) {
                    let message = format!("PBA {pba}: claimed more often than entries refer to it");
                    self.find_in_index(message);
                }
            }
        })
    }

    /// Counts the blocks of entries and of dropped references, those included that are claimed or items of an open batch.
    /// `refers` gets each reference, with its domain.
    fn count_named(
        &mut self,
        window: &mut Window,
        refers: &mut dyn FnMut(Pba, DomainId),
    ) -> Result<()> {
        let snapshot = Rc::clone(&self.snapshot);
        snapshot.each_map_page(&|_| true, &mut |volume, page| {
            if (self.is_cancelled)() {
                return Err(StoreError::new(StoreErrorKind::Gone, "the check was ended"));
            }
            let segment = page.segment;
            if let Some(entries) = self.readable(volume, page, window)? {
                self.count_segment(volume, segment, &entries, window, refers);
                self.advance(entries.iter().filter(|entry| entry.pba().is_some()).count());
            }
            Ok(())
        })?;
        let within = window.blocks.clone();
        snapshot.each_dropped(&mut |element| {
            for pba in element.blocks().filter(|pba| within.contains(&pba.0)) {
                window.refer(pba);
                refers(pba, element.domain);
            }
        })
    }

    /// The entries of a page; none, after a finding, if they cannot be read.
    fn readable(
        &mut self,
        volume: &VolumeRecord,
        page: MapPage,
        window: &Window,
    ) -> Result<Option<Box<Segment>>> {
        let MapPage {
            segment,
            pointer,
            entries,
        } = page;
        let is_first_pass = window.blocks.start == 0;
        self.counts.pages_read += u64::from(is_first_pass);
        let problem = match entries {
            Ok(entries) if map_page::publishable(&entries) == pointer.info => {
                return Ok(Some(entries));
            }
            Ok(_) => format!(
                "{} private entries are counted there, not what it has",
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
        window: &mut Window,
        refers: &mut dyn FnMut(Pba, DomainId),
    ) {
        let is_first_pass = window.blocks.start == 0;
        for (entry, lba) in entries.iter().zip(segment.first().0..) {
            let Some(pba) = entry.pba() else { continue };
            self.counts.mapped_blocks += u64::from(is_first_pass);
            let place = || format!("volume '{}', LBA {lba}, PBA {pba}", volume.name);
            if pba.0 >= self.pool_end {
                if is_first_pass {
                    self.find(false, format!("{}: beyond the pool's end", place()));
                }
            } else if !window.blocks.contains(&pba.0) {
            } else if entry.own_pba().is_none() {
                window.refer(pba);
                refers(pba, volume.domain);
            } else if !window.own(pba) {
                let message = format!("{}: another entry owns this block too", place());
                self.find(false, message);
            }
        }
    }

    /// Compares the references with the index's rows, and finds blocks both owned and referred to.
    fn compare_index(&mut self, window: &Window) -> Result<()> {
        for pba in window.referenced() {
            let bit = (pba.0 - window.blocks.start) as usize;
            if bits::all(window.owned(), bit..bit + 1, true) {
                self.find(
                    false,
                    format!("PBA {pba}: one entry owns this block, others share it"),
                );
            }
        }
        let Some(index) = self.index.clone() else {
            return Ok(());
        };
        let mut has_row = vec![0; window.owned().len()];
        let mut from = Some(LOWEST);
        while let Some(start) = from {
            let rows = match index.rows(start, ROWS_AT_ONCE) {
                Ok(rows) => rows,
                Err(IndexError::Io(error)) => return Err(IndexError::Io(error).into()),
                Err(error) => {
                    self.find_in_index(format!("the fingerprint index cannot be read: {error}"));
                    self.is_index_unreadable = true;
                    self.index = None;
                    return Ok(());
                }
            };
            self.advance(rows.len());
            from = rows.last().and_then(|(last, _)| last.successor());
            for (_, row) in &rows {
                if window.blocks.contains(&row.pba.0) {
                    self.compare_row(window, &mut has_row, row);
                }
            }
        }
        let unsettled = self.snapshot.unsettled_blocks();
        let is_known = |pba: Pba| {
            let bit = (pba.0 - window.blocks.start) as usize;
            bits::all(&has_row, bit..bit + 1, true) || unsettled.binary_search(&pba).is_ok()
        };
        for pba in window.referenced().filter(|pba| !is_known(*pba)) {
            let message = format!("PBA {pba}: shared by entries, but not in the index");
            self.find_in_index(message);
        }
        Ok(())
    }

    fn compare_row(&mut self, window: &Window, has_row: &mut [u64], row: &Row) {
        let bit = (row.pba.0 - window.blocks.start) as usize;
        let counted = window.counted(row.pba);
        if bits::all(has_row, bit..bit + 1, true) {
            self.find_in_index(format!("PBA {}: twice in the index", row.pba));
        } else if counted != row.references {
            self.find_in_index(format!(
                "PBA {}: the index counts {} references, the maps make {counted}",
                row.pba, row.references
            ));
        }
        bits::fill(has_row, bit..bit + 1, true);
    }

    fn find_in_index(&mut self, message: String) {
        self.index_findings += 1;
        self.find(!self.is_map_unreadable, message);
    }

    /// Compares the blocks in use with the free-space map, and repairs differences.
    fn compare_space(&mut self, window: &Window) -> Result<()> {
        let mut in_use = window.owned().to_vec();
        for pba in window.referenced() {
            let bit = (pba.0 - window.blocks.start) as usize;
            bits::fill(&mut in_use, bit..bit + 1, true);
        }
        for pba in self.snapshot.unsettled_blocks() {
            if window.blocks.contains(&pba.0) {
                let bit = (pba.0 - window.blocks.start) as usize;
                bits::fill(&mut in_use, bit..bit + 1, true);
            }
        }
        let first_page = window.blocks.start / BLOCKS_PER_SPACE_PAGE;
        for (in_use, index) in in_use.chunks_exact(PAGE_WORDS).zip(first_page..) {
            let Some(named) = self.read_space_page(index, in_use)? else {
                continue;
            };
            let words = in_use.iter().zip(named.iter());
            let unnamed: Vec<u64> = words.clone().map(|(used, named)| used & !named).collect();
            let leaked: Vec<u64> = words.map(|(used, named)| named & !used).collect();
            for (different, is_used) in [(unnamed, true), (leaked, false)] {
                let equal: Vec<u64> = different.iter().map(|bits| !bits).collect();
                for run in bits::clear_runs(&equal, 0) {
                    let start = Pba(index * BLOCKS_PER_SPACE_PAGE + run.start as u64);
                    let count = run.len() as u64;
                    self.find_difference(PbaRun { start, count }, is_used)?;
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
            let corrected = self.pool.journal().correct_space(run, is_owned)?;
            self.counts.repaired += u64::from(corrected);
        }
        Ok(())
    }

    /// Reads a page of the free-space map. With `--repair`, a damaged one is counted from the maps.
    fn read_space_page(
        &mut self,
        index: u64,
        owned: &[u64],
    ) -> Result<Option<Box<space_page::Bitmap>>> {
        let Some(pointer) = self.snapshot.space_page(index)? else {
            let of = self.pool.journal().metadata()?.space().of();
            return Ok(Some(of.absent_page(index)));
        };
        self.counts.pages_read += 1;
        let page = self.snapshot.read_space_page(index, pointer);
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
            let journal = self.pool.journal();
            let rebuilt = journal.rebuild_space_page(index as u32, bitmap)?;
            self.counts.repaired += u64::from(rebuilt);
        }
        Ok(None)
    }
}
