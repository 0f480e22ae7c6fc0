//! Metadata pages: read and checked, allocated, written copy-on-write.
//!
//! A page is written once, to a place that no durable root reaches, and is never changed. It stays
//! in use until a later root that does not reach it is durable. So a torn or lost write of a page
//! can only hurt a checkpoint that was never completed.
//!
//! Which places are in use is not stored: opening walks the inner pages and finds out.
//!
//! The host has promised space for all places below a bound. A reader that holds a checkpoint makes
//! the part grow, up to twice its size: pages that the checkpoint reaches stay, and newer pages are
//! freed when they are replaced. Once all is released, the bound comes down, and free places beyond
//! it are discarded: the lowest free place is always taken first.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::{Disk, ReadRange};
use onefold_format::node::{Node, ROOT_SLOTS};
use onefold_format::page::{self, PAGE_BYTES, PageBytes, PageHeader, PageKind};
use onefold_format::{FormatError, PageNumber, Pointer, PoolId};

use super::bits;
use super::cache::ClockCache;
use crate::error::{Result, StoreError};
use crate::sync::{AtomicU64, Mutex, lock};

/// The metadata part grows in steps of this many pages (16 MiB), reserved ahead.
const GROWTH_PAGES: u64 = 4096;

/// Pages that are written with one call if they are adjacent.
const WRITE_PAGES_MAX: usize = 64;

/// The pages of the part `meta`.
pub struct Pages {
    disk: Arc<dyn Disk>,
    name: String,
    pool: PoolId,
    places: Mutex<Places>,
    nodes: Mutex<ClockCache<PageNumber, Arc<Node>>>,
    /// Pages that can be written without growing: the host has promised their space.
    spare: AtomicU64,
}

/// Which places of the metadata part are in use.
struct Places {
    used: Vec<u64>,
    used_count: u64,
    hint: usize,
    /// The host has promised space for all places below this one.
    reserved: u64,
    /// The number of used places below `reserved`.
    used_reserved: u64,
    /// The host may have allocated space for free places from this one on.
    loose: u64,
    /// The number of readers that need every page of a root to stay, and the pages that could have
    /// been freed since the first of them came.
    holds: usize,
    held_back: Vec<PageNumber>,
    /// Places taken since the last of these readers came; no reader reaches their content.
    young: Vec<u64>,
}

impl Pages {
    /// Pages of which all but the root slots are free until they are marked as used.
    pub fn new(disk: Arc<dyn Disk>, name: String, pool: PoolId, nodes_max: usize) -> Self {
        let places = Places {
            used: vec![(1 << ROOT_SLOTS) - 1],
            used_count: ROOT_SLOTS,
            hint: 0,
            reserved: 0,
            used_reserved: 0,
            loose: disk.len().unwrap_or(0) / PAGE_BYTES as u64,
            holds: 0,
            held_back: Vec::new(),
            young: Vec::new(),
        };
        let nodes = Mutex::new(ClockCache::new(nodes_max));
        Self {
            disk,
            name,
            pool,
            places: Mutex::new(places),
            nodes,
            spare: AtomicU64::new(0),
        }
    }

    /// The disk of the pages.
    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Pages in use, the root slots included.
    pub fn used_count(&self) -> u64 {
        lock(&self.places).used_count
    }

    /// Inner pages of trees in memory.
    pub fn cached_count(&self) -> usize {
        lock(&self.nodes).len()
    }

    /// Reads the page that `pointer` describes.
    pub fn read(
        &self,
        kind: PageKind,
        level: u8,
        owner: u64,
        index: u64,
        pointer: Pointer,
    ) -> Result<Box<PageBytes>> {
        let mut bytes = page::blank();
        let place = pointer.page;
        self.disk
            .read_at(&mut bytes[..], place.0 * PAGE_BYTES as u64)
            .map_err(|error| StoreError::io(self.what(place), error))?;
        self.verify(kind, level, owner, index, pointer, &bytes)?;
        Ok(bytes)
    }

    /// Reads leaves of one tree, each with its index in it, concurrently if the disk can.
    pub fn read_leaves(
        &self,
        kind: PageKind,
        owner: u64,
        leaves: &[(u64, Pointer)],
    ) -> Vec<Result<Box<PageBytes>>> {
        let mut pages: Vec<Box<PageBytes>> = leaves.iter().map(|_| page::blank()).collect();
        let ranges = pages.iter_mut().zip(leaves);
        let mut ranges: Vec<ReadRange<'_>> = ranges
            .map(|(bytes, (_, pointer))| ReadRange {
                buf: &mut bytes[..],
                offset: pointer.page.0 * PAGE_BYTES as u64,
            })
            .collect();
        if self.disk.read_together(&mut ranges).is_err() {
            // One after the other, to find out which one it is.
            let each = leaves.iter();
            return each
                .map(|(index, pointer)| self.read(kind, 0, owner, *index, *pointer))
                .collect();
        }
        let read = pages.into_iter().zip(leaves);
        read.map(|(bytes, (index, pointer))| {
            self.verify(kind, 0, owner, *index, *pointer, &bytes)?;
            Ok(bytes)
        })
        .collect()
    }

    fn verify(
        &self,
        kind: PageKind,
        level: u8,
        owner: u64,
        index: u64,
        pointer: Pointer,
        bytes: &PageBytes,
    ) -> Result<()> {
        let place = pointer.page;
        let header = PageHeader {
            kind,
            level,
            pool: self.pool,
            page: place,
            owner,
            index,
            sequence: 0,
        };
        let (_, checksum) = page::open(bytes, &header)
            .map_err(|error| StoreError::format(self.what(place), error))?;
        if checksum != pointer.checksum {
            let lost = FormatError::Checksum {
                expected: pointer.checksum,
                found: checksum,
            };
            return Err(StoreError::format(self.what(place), lost));
        }
        Ok(())
    }

    fn what(&self, place: PageNumber) -> String {
        format!("page {place} of {}", self.name)
    }

    /// Reads an inner page, from memory if it is there.
    pub(super) fn node(
        &self,
        level: u8,
        owner: u64,
        index: u64,
        pointer: Pointer,
    ) -> Result<Arc<Node>> {
        if let Some(node) = lock(&self.nodes).get(pointer.page) {
            return Ok(Arc::clone(node));
        }
        let bytes = self.read(PageKind::Node, level, owner, index, pointer)?;
        let node = Node::decode(&bytes)
            .map_err(|error| StoreError::format(self.what(pointer.page), error))?;
        let node = Arc::new(node);
        let mut nodes = lock(&self.nodes);
        if nodes.get(pointer.page).is_none() {
            nodes.insert(pointer.page, Arc::clone(&node), |_| true);
        }
        Ok(node)
    }

    /// Marks a page that a root reaches, while opening.
    ///
    /// # Errors
    ///
    /// Two pointers to one page are damage.
    pub(super) fn mark_used(&self, place: PageNumber) -> Result<()> {
        let mut places = lock(&self.places);
        if !places.mark(place) {
            return Err(StoreError::damaged(format!(
                "page {place} of {} is pointed to twice",
                self.name
            )));
        }
        Ok(())
    }

    fn allocate(&self) -> Result<PageNumber> {
        let mut places = lock(&self.places);
        let at = bits::find(&places.used, places.hint, false) as u64;
        if at >= places.reserved {
            self.grow(&mut places, at + 1)?;
        }
        places.mark(PageNumber(at));
        places.hint = at as usize + 1;
        self.note_spare(&places);
        Ok(PageNumber(at))
    }

    /// Reserves at least this many pages: a whole step of growth if the host has that much.
    fn grow(&self, places: &mut Places, pages: u64) -> Result<()> {
        let reserve = |pages: u64| self.disk.reserve(pages * PAGE_BYTES as u64);
        let step = pages.next_multiple_of(GROWTH_PAGES);
        let reserved = reserve(step).map(|()| step);
        let reserved = reserved.or_else(|_| reserve(pages).map(|()| pages));
        let what = format_args!("growing {} to {pages} pages", self.name);
        places.set_reserved(reserved.map_err(|error| StoreError::io(what, error))?);
        self.note_spare(places);
        Ok(())
    }

    fn note_spare(&self, places: &Places) {
        let spare = places.reserved - places.used_reserved;
        self.spare.store(spare, SeqCst);
    }

    /// The number of pages that can be written without growing, even if the host runs out of space.
    pub fn spare(&self) -> u64 {
        self.spare.load(SeqCst)
    }

    /// Grows until at least `pages` pages can be written.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the host has no room for them; `Io`.
    pub fn secure(&self, pages: u64) -> Result<()> {
        let mut places = lock(&self.places);
        while places.reserved - places.used_reserved < pages {
            let missing = pages - (places.reserved - places.used_reserved);
            let wanted = places.reserved + missing;
            // Places from here on may be in use already.
            self.grow(&mut places, wanted)?;
        }
        Ok(())
    }

    /// Discards free places if they are many: beyond twice the places in use, rounded up to a step
    /// of growth, and a step.
    fn give_back(&self) -> Result<()> {
        let mut places = lock(&self.places);
        let kept = places.used_count.next_multiple_of(GROWTH_PAGES);
        if places.reserved >= 2 * kept + GROWTH_PAGES {
            places.loose += places.reserved - kept;
            places.set_reserved(kept);
            self.note_spare(&places);
        }
        if places.loose < GROWTH_PAGES {
            return Ok(());
        }
        let failed = |error| StoreError::io(format_args!("shrinking {}", self.name), error);
        let len = self.disk.len().map_err(failed)? / PAGE_BYTES as u64;
        let free = bits::clear_runs(&places.used, places.reserved as usize);
        for run in free.map(|run| run.start as u64..len.min(run.end as u64)) {
            if !run.is_empty() {
                let bytes = PAGE_BYTES as u64;
                let count = run.end - run.start;
                let discarded = self.disk.discard(run.start * bytes, count * bytes);
                discarded.map_err(failed)?;
            }
        }
        let end = places.reserved.max(places.end());
        if end < len {
            self.disk.set_len(end * PAGE_BYTES as u64).map_err(failed)?;
        }
        places.loose = 0;
        Ok(())
    }

    /// Places that are in use only because a reader holds a checkpoint.
    pub fn held_back_count(&self) -> usize {
        lock(&self.places).held_back.len()
    }

    /// Releases pages that no durable root reaches any more.
    pub(super) fn release(&self, released: &[PageNumber]) {
        let mut nodes = lock(&self.nodes);
        for place in released {
            nodes.remove(*place);
        }
        drop(nodes);
        let mut places = lock(&self.places);
        if places.holds == 0 {
            places.clear(released);
        } else {
            let (free, held) = released
                .iter()
                .partition::<Vec<_>, _>(|page| places.is_young(**page));
            places.clear(&free);
            places.held_back.extend(held);
        }
        self.note_spare(&places);
    }

    /// Keeps every page that the current root reaches until the hold is dropped. The caller ensures
    /// that no checkpoint is being written.
    pub fn hold(&self) -> PagesHold<'_> {
        let mut places = lock(&self.places);
        places.holds += 1;
        places.young.clear();
        PagesHold { pages: self }
    }
}

/// The hold of [`Pages::hold`].
pub struct PagesHold<'a> {
    pages: &'a Pages,
}

impl Drop for PagesHold<'_> {
    fn drop(&mut self) {
        let mut places = lock(&self.pages.places);
        places.holds -= 1;
        if places.holds > 0 {
            return;
        }
        let released = std::mem::take(&mut places.held_back);
        drop(places);
        // The holder may have read them again since they were released.
        let mut nodes = lock(&self.pages.nodes);
        for place in &released {
            nodes.remove(*place);
        }
        drop(nodes);
        let mut places = lock(&self.pages.places);
        places.clear(&released);
        self.pages.note_spare(&places);
    }
}

impl Places {
    fn mark(&mut self, place: PageNumber) -> bool {
        let at = place.0 as usize;
        if at / 64 >= self.used.len() {
            self.used.resize(at / 64 + 1, 0);
        }
        let free = bits::all(&self.used, at..at + 1, false);
        if free {
            bits::fill(&mut self.used, at..at + 1, true);
            self.used_count += 1;
            if self.holds > 0 {
                self.young.resize(self.used.len(), 0);
                bits::fill(&mut self.young, at..at + 1, true);
            }
            if place.0 < self.reserved {
                self.used_reserved += 1;
            } else {
                self.loose = self.loose.saturating_sub(1);
            }
        }
        free
    }

    fn is_young(&self, place: PageNumber) -> bool {
        let at = place.0 as usize;
        at / 64 < self.young.len() && bits::all(&self.young, at..at + 1, true)
    }

    fn set_reserved(&mut self, reserved: u64) {
        if reserved > self.reserved {
            self.loose = self.loose.saturating_sub(reserved - self.reserved);
        }
        self.reserved = reserved;
        let all = (reserved as usize).min(self.used.len() * 64);
        self.used_reserved = bits::ones(&self.used, 0..all).count() as u64;
        self.hint = self.hint.min(bits::find(&self.used, 0, false));
    }

    /// The end of the places in use.
    fn end(&self) -> u64 {
        let last = self.used.iter().rposition(|word| *word != 0);
        last.map_or(0, |at| {
            at as u64 * 64 + 64 - u64::from(self.used[at].leading_zeros())
        })
    }

    fn clear(&mut self, released: &[PageNumber]) {
        for place in released {
            let at = place.0 as usize;
            debug_assert!(
                bits::all(&self.used, at..at + 1, true),
                "page {at} released twice"
            );
            bits::fill(&mut self.used, at..at + 1, false);
            self.hint = self.hint.min(at);
            if place.0 < self.reserved {
                self.used_reserved -= 1;
            } else {
                self.loose += 1;
            }
        }
        self.used_count -= released.len() as u64;
    }
}

/// Writes the pages of a checkpoint, next to each other if there is room.
pub struct PageWriter<'a> {
    pages: &'a Pages,
    sequence: u64,
    /// Pages that only this checkpoint reaches: freed if it fails.
    written: Vec<PageNumber>,
    /// Pages that this checkpoint does not reach: freed once it is durable.
    replaced: Vec<PageNumber>,
    run: Vec<u8>,
    run_start: PageNumber,
}

impl<'a> PageWriter<'a> {
    /// A writer for the checkpoint whose root has this sequence.
    pub fn new(pages: &'a Pages, sequence: u64) -> Self {
        let run = Vec::with_capacity(WRITE_PAGES_MAX * PAGE_BYTES);
        let (written, replaced) = (Vec::new(), Vec::new());
        Self {
            pages,
            sequence,
            written,
            replaced,
            run,
            run_start: PageNumber(0),
        }
    }

    pub(super) fn pages(&self) -> &'a Pages {
        self.pages
    }

    /// Writes a new page whose body `fill` completes.
    pub(super) fn write(
        &mut self,
        kind: PageKind,
        level: u8,
        owner: u64,
        index: u64,
        info: u16,
        fill: impl FnOnce(&mut PageBytes),
    ) -> Result<Pointer> {
        let place = self.pages.allocate()?;
        self.written.push(place);
        let mut bytes = page::blank();
        fill(&mut bytes);
        let pool = self.pages.pool;
        let header = PageHeader {
            kind,
            level,
            pool,
            page: place,
            owner,
            index,
            sequence: self.sequence,
        };
        let checksum = page::seal(&mut bytes, &header);
        let run_end = self.run_start + (self.run.len() / PAGE_BYTES) as u64;
        if place != run_end || self.run.len() == WRITE_PAGES_MAX * PAGE_BYTES {
            self.flush()?;
            self.run_start = place;
        }
        self.run.extend_from_slice(&bytes[..]);
        Ok(Pointer {
            page: place,
            info,
            checksum,
        })
    }

    /// Notes that the new checkpoint does not reach this page.
    pub(super) fn replace(&mut self, page: PageNumber) {
        self.replaced.push(page);
    }

    /// Makes all pages durable, before a root refers to them (P2).
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.pages
            .disk
            .sync()
            .map_err(|error| StoreError::io(format_args!("syncing {}", self.pages.name), error))
    }

    /// Writes the pages collected so far.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.run.is_empty() {
            return Ok(());
        }
        let at = self.run_start.0 * PAGE_BYTES as u64;
        let written = self.pages.disk.write_at(&self.run, at);
        self.run.clear();
        written.map_err(|error| {
            StoreError::io(
                format_args!("page {} of {}", self.run_start, self.pages.name),
                error,
            )
        })
    }

    /// Ends a checkpoint whose root is durable: frees the pages that it replaced.
    pub fn complete(self) {
        self.pages.release(&self.replaced);
        // If that fails, it costs only space.
        if let Err(error) = self.pages.give_back() {
            tracing::warn!("{error}");
        }
    }

    /// Ends a checkpoint that failed before its root was written: frees its pages.
    pub fn abandon(self) {
        self.pages.release(&self.written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreErrorKind;
    use onefold_engine::simulated::{Op, SimulatedEngine};
    use onefold_engine::{Engine, Part};
    use std::io;

    const OWNER: u64 = 7;

    #[test]
    fn of_pages_read_together_each_has_its_own_result() {
        let engine = SimulatedEngine::new(1);
        let disk = engine.create(Part::Meta, 0).unwrap();
        let pool = PoolId([1; 16]);
        let leaves: Vec<(u64, Pointer)> = (0..5)
            .map(|index| {
                let place = PageNumber(ROOT_SLOTS + 2 * index);
                let mut bytes = page::blank();
                let header = PageHeader {
                    kind: PageKind::Map,
                    level: 0,
                    pool,
                    page: place,
                    owner: OWNER,
                    index,
                    sequence: 0,
                };
                let checksum = page::seal(&mut bytes, &header);
                disk.write_at(&bytes[..], place.0 * PAGE_BYTES as u64)
                    .unwrap();
                let pointer = Pointer {
                    page: place,
                    checksum,
                    info: 0,
                };
                (index, pointer)
            })
            .collect();
        let damaged = leaves[2].1.page.0 * PAGE_BYTES as u64 + 1000;
        disk.write_at(&[0xff], damaged).unwrap();
        let pages = Pages::new(disk, "meta".to_owned(), pool, 8);
        for fails in [false, true] {
            if fails {
                engine.fail_once(Part::Meta, Op::Read, 3, io::ErrorKind::TimedOut);
            }
            let read = pages.read_leaves(PageKind::Map, OWNER, &leaves);
            let damaged: Vec<bool> = read
                .iter()
                .map(|leaf| {
                    leaf.as_ref()
                        .is_err_and(|error| error.kind() == StoreErrorKind::Damaged)
                })
                .collect();
            assert_eq!(damaged, [false, false, true, false, false]);
            assert_eq!(read.iter().filter(|leaf| leaf.is_ok()).count(), 4);
        }
    }
}
