//! The scrub: reads every mapped block once, and compares published ones with their fingerprints.
//!
//! Only the index knows which fingerprint a block should have, and it is read in the order of
//! fingerprints. So the pool is scanned in windows, with as many blocks as there is memory for
//! four bytes of each block's fingerprint:
//!
//! 1. one pass over the index's rows, noting the rows of the window's blocks
//! 2. the window's blocks in the order of their addresses: read, fingerprint, compare
//! 3. under the job lock, so that neither finder nor collector changes the index: a block
//!    that differs is read once more, and looked up in the index once more with its fingerprint.
//!    Only if both still disagree is it bad
//!
//! Requests, finder and collector continue during 1 and 2. A block may get a row after its place was
//! passed: then it is only read, this time. It may lose its row, be freed and hold something else:
//! then 3 finds no fault. A block that has a row when the job lock is taken keeps it while that is
//! held, and is not written (P1), so 3 never calls a good block bad.
//!
//! Private blocks have no fingerprint, and guests write to them: they are read, to find blocks that
//! the device cannot read. Free blocks are not read, unless they are known to be bad.
//!
//! A run is the requested number of blocks, from where the last one ended, around the pool. Empty
//! parts cost a comparison for each page of the free-space map. Its progress is made durable from
//! time to time.

use std::ops::Range;
use std::sync::Arc;

use onefold_engine::Engine;
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_format::{BadBlock, DomainId, Fault, Pba};
use onefold_index::{Fingerprint, IndexReader, Key};
use onefold_metadata::{Guard, Result, StoreError, StoreErrorKind, bits};

use crate::blocks::what_is_wrong;
use crate::pool::Pool;
use crate::shared::check_is_alone;

/// Rows of the index read in a step.
const ROWS_PER_STEP: usize = 16_384;

/// Bytes passed in a step: a few milliseconds' work.
const STEP_BYTES: u64 = 4 << 20;

/// Blocks in which a step searches for the next stored one: 65,536 pages of the free-space map,
/// tens of microseconds under the uncommitted state if none of them has any.
const SKIP_BLOCKS: u64 = BLOCKS_PER_SPACE_PAGE << 16;

/// Bytes read between two saves of the run's progress.
const SAVE_BYTES: u64 = 1 << 30;

/// First bytes of a fingerprint that are noted.
const NOTED_BYTES: usize = 4;

/// Bits noted for a block: first bytes of its fingerprint, and whether it has a row.
const WINDOW_BITS_PER_BLOCK: usize = NOTED_BYTES * 8 + 1;

/// The in-memory state of a run. If it is dropped, the run is resumed where it was saved.
#[derive(Default)]
pub struct ScrubRun {
    window: Option<Window>,
    domains: Domains,
    /// The read buffer: allocating it for each step costs as much as checking it.
    buf: Vec<u8>,
    unsaved_bytes: u64,
}

/// Consecutive blocks, and the index's rows for them.
struct Window {
    blocks: Range<u64>,
    noted: Vec<[u8; NOTED_BYTES]>,
    has_row: Vec<u64>,
    /// The rest of the pass over the index; nothing once that has ended.
    rows_from: Option<Fingerprint>,
}

/// The result of a step of the scrub.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Blocks that the run has passed, free ones included.
    pub passed_blocks: u64,
    /// Passed blocks that were compared with their fingerprints.
    pub compared_blocks: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Blocks found to be bad that were not known before.
    pub found_bad: u64,
    /// Blocks known to be bad and found to be as they should be, or free.
    pub found_good: u64,
    /// The run has ended, or none was in progress.
    pub is_over: bool,
}

/// The scrub's progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Blocks of the pool.
    pub pool_blocks: u64,
    /// The next block.
    pub next_block: u64,
    /// Blocks left of the run in progress; 0 if there is none.
    pub left_blocks: u64,
    /// Bytes a second that it may read; 0 for no bound.
    pub bytes_per_second: u64,
    /// When the last run ended, in seconds since the Unix epoch; 0 if none has.
    pub ended_unix_seconds: u64,
    /// Blocks that are known to be bad.
    pub bad_blocks: u64,
}

/// The scrub of a pool, and its list of bad blocks: see [`Store::scrub`](crate::Store::scrub).
pub struct Scrub {
    pub(super) pool: Arc<Pool>,
    engine: Arc<dyn Engine>,
}

impl Scrub {
    pub(crate) fn new(pool: Arc<Pool>, engine: Arc<dyn Engine>) -> Self {
        Self { pool, engine }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Begins a run over `percent` of the pool, 1 to 100, from where the last one ended, in place
    /// of one that may be in progress; without a percentage, resumes that one, or begins one over
    /// the whole pool. `bytes_per_second` is for the caller of [`Scrub::step`], and kept with
    /// the run; 0 for no bound. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `Invalid` for another percentage; `ReadOnly`; I/O errors.
    pub fn begin(&self, percent: Option<u8>, bytes_per_second: u64) -> Result<()> {
        check_is_alone(&self.pool, "a scrub")?;
        let pool = &self.pool;
        pool.journal().check_writable()?;
        let blocks = pool.journal().metadata()?.space().blocks();
        let part = match percent {
            Some(percent @ 1..=100) => Some((blocks * u64::from(percent)).div_ceil(100)),
            None => None,
            Some(other) => {
                let message = format!("{other} percent of the pool: 1 to 100 make sense");
                return Err(StoreError::new(StoreErrorKind::Invalid, message));
            }
        };
        pool.bad().change_progress(|progress| {
            progress.left_blocks = match (part, progress.left_blocks) {
                (Some(part), _) => part,
                (None, 0) => blocks,
                (None, left) => left.min(blocks),
            };
            progress.bytes_per_second = bytes_per_second;
        });
        pool.bad().save(pool.journal())
    }

    /// The scrub's progress.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn status(&self) -> Result<ScrubStatus> {
        let pool_blocks = self.pool.journal().metadata()?.space().blocks();
        let progress = self.pool.bad().progress();
        Ok(ScrubStatus {
            pool_blocks,
            next_block: progress.next_block,
            left_blocks: progress.left_blocks,
            bytes_per_second: progress.bytes_per_second,
            ended_unix_seconds: progress.ended_unix_seconds,
            bad_blocks: self.pool.bad().all().len() as u64,
        })
    }

    /// Does a step of the run in progress. One caller at a time.
    ///
    /// # Errors
    ///
    /// `Busy` while the index is being counted again; `Damaged` if it cannot be used; `ReadOnly`;
    /// I/O errors, except the faults that the run looks for.
    pub fn step(&self, run: &mut ScrubRun) -> Result<ScrubReport> {
        let pool = &self.pool;
        pool.journal().check_writable()?;
        if pool.bad().progress().left_blocks == 0 {
            return Ok(ScrubReport {
                is_over: true,
                ..ScrubReport::default()
            });
        }
        let mut report = ScrubReport {
            passed_blocks: self.skip_free()?,
            ..ScrubReport::default()
        };
        if report.passed_blocks == 0
            && let Some(window) = self.scrub_window(&mut run.window)?
        {
            if let Some(from) = window.rows_from {
                self.note_rows(window, from)?;
                return Ok(report);
            }
            report = self.scrub_blocks(window, &mut run.domains, &mut run.buf)?;
            run.unsaved_bytes += report.bytes;
        }
        report.is_over = pool.bad().progress().left_blocks == 0;
        if report.is_over {
            let now = self.engine.unix_seconds();
            pool.bad()
                .change_progress(|progress| progress.ended_unix_seconds = now);
            *run = ScrubRun::default();
            pool.bad().save(pool.journal())?;
        } else if run.unsaved_bytes >= SAVE_BYTES {
            run.unsaved_bytes = 0;
            pool.bad().save(pool.journal())?;
        }
        Ok(report)
    }

    /// Makes the scrub's progress durable.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn save(&self) -> Result<()> {
        self.pool.bad().save(self.pool.journal())
    }

    /// Skips blocks that are neither stored nor known to be bad, if there are more than a step would pass.
    /// Returns their number.
    fn skip_free(&self) -> Result<u64> {
        let mut metadata = self.pool.journal().metadata()?;
        let pool_blocks = metadata.space().blocks();
        let progress = self.pool.bad().progress();
        // The pool may have become smaller.
        let start = match progress.next_block {
            next if next < pool_blocks => next,
            _ => 0,
        };
        let most = progress.left_blocks.min(SKIP_BLOCKS);
        let end = pool_blocks.min(start.saturating_add(most));
        let bad = self.pool.bad().within(start..end);
        let bad = bad.first().map_or(end, |bad| bad.pba.0);
        let next = metadata.next_named(start..bad)?;
        drop(metadata);
        if next - start <= STEP_BYTES / self.pool.block_size() {
            return Ok(0);
        }
        self.pass(start..next, pool_blocks);
        Ok(next - start)
    }

    /// Notes that the run has passed these blocks.
    fn pass(&self, passed: Range<u64>, pool_blocks: u64) {
        // A concurrent call may have begun another run.
        let progress = self.pool.bad().change_progress(|progress| {
            let left = progress.left_blocks;
            progress.left_blocks = left.saturating_sub(passed.end - passed.start);
            progress.next_block = passed.end % pool_blocks;
        });
        if progress.next_block == 0 {
            // A list that was lost had no progress either, so this is the end of the whole pool.
            self.pool.bad().forget_problem();
        }
    }

    /// The window in which the run continues; none without a run.
    fn scrub_window<'a>(&self, kept: &'a mut Option<Window>) -> Result<Option<&'a mut Window>> {
        let pool_blocks = self.pool.journal().metadata()?.space().blocks();
        let progress = self.pool.bad().change_progress(|progress| {
            // The pool may have become smaller.
            if progress.next_block >= pool_blocks {
                progress.next_block = 0;
            }
        });
        if progress.left_blocks == 0 {
            return Ok(None);
        }
        let at = progress.next_block;
        let goes_on = |window: &Window| window.blocks.contains(&at);
        if !kept.as_ref().is_some_and(goes_on) {
            // The old one's memory is given back first.
            *kept = None;
            let count = (self.pool.limits().scrub_bytes * 8 / WINDOW_BITS_PER_BLOCK) as u64;
            let end = pool_blocks.min(at + count.max(64).min(progress.left_blocks));
            *kept = Some(Window::new(at..end));
        }
        Ok(kept.as_mut())
    }

    /// A part of step 1.
    fn note_rows(&self, window: &mut Window, from: Fingerprint) -> Result<()> {
        // A conversion replaces the index, and no one may hold the old one then.
        let _job = self.pool.batches().job_in_background()?;
        let index = self.pool.index().ready()?;
        let rows = self
            .pool
            .background()
            .run(|| index.rows(from, ROWS_PER_STEP))?;
        for (fingerprint, row) in &rows {
            if window.blocks.contains(&row.pba.0) {
                window.note(row.pba, *fingerprint);
            }
        }
        window.rows_from = rows.last().and_then(|(last, _)| last.successor());
        Ok(())
    }

    /// A part of steps 2 and 3.
    fn scrub_blocks(
        &self,
        window: &Window,
        domains: &mut Domains,
        buf: &mut Vec<u8>,
    ) -> Result<ScrubReport> {
        let progress = self.pool.bad().progress();
        let start = progress.next_block;
        let step = (STEP_BYTES / self.pool.block_size()).min(progress.left_blocks);
        let (mut blocks, end, pool_blocks) = {
            let mut metadata = self.pool.journal().metadata()?;
            domains.set_end(metadata.catalogue().next_domain_id());
            // The pool may have become smaller since the window was made.
            let end = window
                .blocks
                .end
                .min(start + step)
                .min(metadata.space().blocks());
            if start >= end {
                return Ok(ScrubReport::default());
            }
            (
                metadata.named_blocks(start, end)?,
                end,
                metadata.space().blocks(),
            )
        };
        let bad = self.pool.bad().within(start..end);
        if !bad.is_empty() {
            blocks.extend(bad.iter().map(|bad| bad.pba));
            blocks.sort_unstable();
            blocks.dedup();
        }
        let looked = if blocks.is_empty() {
            Looked::default()
        } else {
            self.pool
                .background()
                .run(|| self.look(window, &blocks, domains, buf))?
        };
        let mut report = ScrubReport {
            passed_blocks: end - start,
            compared_blocks: looked.compared,
            bytes: blocks.len() as u64 * self.pool.block_size(),
            ..ScrubReport::default()
        };
        self.judge(window, &looked, domains, &mut report)?;
        self.pass(start..end, pool_blocks);
        Ok(report)
    }

    /// Step 2 for some blocks.
    fn look(
        &self,
        window: &Window,
        blocks: &[Pba],
        domains: &mut Domains,
        buf: &mut Vec<u8>,
    ) -> Result<Looked> {
        let block_size = self.pool.block_size() as usize;
        let read_bytes = self.pool.blocks().read_bytes();
        buf.resize(read_bytes, 0);
        let mut looked = Looked::default();
        for piece in blocks.chunks(read_bytes / block_size) {
            let mut unreadable = Vec::new();
            let bytes = &mut buf[..piece.len() * block_size];
            self.pool
                .blocks()
                .read_blocks_back(piece, bytes, &mut unreadable)?;
            // Blocks with a fingerprint are collected, so that many are hashed at once.
            let mut published: Vec<(Pba, [u8; NOTED_BYTES])> = Vec::new();
            for (pba, n) in piece.iter().zip(0..) {
                if unreadable.contains(pba) {
                    looked.suspects.push(*pba);
                } else if let Some(noted) = window.noted(*pba) {
                    let to = published.len() * block_size;
                    buf.copy_within(n * block_size..(n + 1) * block_size, to);
                    published.push((*pba, noted));
                } else if self.pool.bad().get(*pba).is_some() {
                    looked.suspects.push(*pba);
                }
            }
            let contents = &buf[..published.len() * block_size];
            let fingerprints = domains.fingerprints(&self.pool, contents);
            let contents = contents.chunks_exact(block_size);
            looked.compared += published.len() as u64;
            for (((pba, noted), found), content) in published.iter().zip(fingerprints).zip(contents)
            {
                let is_equal = found.0[..NOTED_BYTES] == *noted
                    || domains.find(&self.pool, content, |other| {
                        other.0[..NOTED_BYTES] == *noted
                    });
                if !is_equal || self.pool.bad().get(*pba).is_some() {
                    looked.suspects.push(*pba);
                }
            }
        }
        Ok(looked)
    }

    /// Step 3: puts bad blocks on the list, and takes listed blocks that are good again off it.
    fn judge(
        &self,
        window: &Window,
        looked: &Looked,
        domains: &mut Domains,
        report: &mut ScrubReport,
    ) -> Result<()> {
        if looked.suspects.is_empty() {
            return Ok(());
        }
        let _job = self.pool.batches().job_in_background()?;
        let index = self.pool.index().ready()?;
        let (mut bad, mut good) = (Vec::new(), Vec::new());
        for pba in &looked.suspects {
            let noted = window.noted(*pba);
            match self.verdict(&*index, *pba, noted, domains)? {
                Some(verdict) if self.pool.bad().get(*pba) == Some(verdict) => {}
                Some(verdict) => bad.push(verdict),
                None => good.push(*pba),
            }
        }
        report.found_bad = bad
            .iter()
            .filter(|block| self.pool.bad().get(block.pba).is_none())
            .count() as u64;
        good.retain(|pba| self.pool.bad().get(*pba).is_some());
        report.found_good = good.len() as u64;
        for it in &bad {
            tracing::error!("block {} of the pool {}", it.pba, what_is_wrong(it.fault));
        }
        self.pool.bad().list(self.pool.journal(), &bad)?;
        self.pool.bad().unlist(self.pool.journal(), good)
    }

    /// The fault of a block, if there is one. The caller holds the job lock.
    fn verdict(
        &self,
        index: &dyn IndexReader,
        pba: Pba,
        noted: Option<[u8; NOTED_BYTES]>,
        domains: &mut Domains,
    ) -> Result<Option<BadBlock>> {
        let listed = self.pool.bad().get(pba);
        let mut block = vec![0; self.pool.block_size() as usize];
        let is_readable = self.pool.blocks().read_if_readable(pba, &mut block)?;
        if !self.is_named(pba)? {
            // Freed. An unreadable one stays out of use.
            return Ok(listed.filter(|_| !is_readable));
        }
        let known = listed.and_then(|bad| bad.fingerprint);
        let first_bytes = |bytes: [u8; 16]| [bytes[0], bytes[1], bytes[2], bytes[3]];
        let fingerprint = match noted.or(known.map(first_bytes)) {
            Some(noted) if Guard::SuspectsConfirmed.holds() => {
                self.pool.blocks().fingerprint_in(index, noted, pba)?
            }
            Some([a, b, c, d]) => {
                let mut noted = Fingerprint::default();
                noted.0[..NOTED_BYTES].copy_from_slice(&[a, b, c, d]);
                Some(noted)
            }
            None => None,
        };
        let is_good = match fingerprint {
            _ if !is_readable => false,
            Some(expected) => domains.find(&self.pool, &block, |found| found == expected),
            None => true,
        };
        Ok((!is_good).then_some(BadBlock {
            pba,
            fault: if is_readable {
                Fault::Changed
            } else {
                Fault::Unreadable
            },
            attempts: listed.map_or(0, |bad| bad.attempts),
            fingerprint: fingerprint.map(|fingerprint| fingerprint.0),
        }))
    }

    pub(super) fn is_named(&self, pba: Pba) -> Result<bool> {
        let mut metadata = self.pool.journal().metadata()?;
        if pba.0 >= metadata.space().blocks() {
            return Ok(false);
        }
        Ok(!metadata.named_blocks(pba.0, pba.0 + 1)?.is_empty())
    }
}

/// The results for some blocks.
#[derive(Default)]
struct Looked {
    /// Blocks to be checked again, under the job lock.
    suspects: Vec<Pba>,
    /// Blocks that have a fingerprint.
    compared: u64,
}

impl Window {
    fn new(blocks: Range<u64>) -> Self {
        let count = (blocks.end - blocks.start) as usize;
        Self {
            blocks,
            noted: vec![[0; NOTED_BYTES]; count],
            has_row: vec![0; count.div_ceil(64)],
            rows_from: Some(Fingerprint::default()),
        }
    }

    fn note(&mut self, pba: Pba, Fingerprint([a, b, c, d, ..]): Fingerprint) {
        let at = (pba.0 - self.blocks.start) as usize;
        self.noted[at] = [a, b, c, d];
        bits::fill(&mut self.has_row, at..at + 1, true);
    }

    /// The first bytes of the fingerprint that the index has of a block.
    fn noted(&self, pba: Pba) -> Option<[u8; NOTED_BYTES]> {
        let at = (pba.0 - self.blocks.start) as usize;
        bits::all(&self.has_row, at..at + 1, true).then(|| self.noted[at])
    }
}

/// The domains whose keys are tried on a block, because the index does not record with which key its
/// fingerprint was made. Neighbours are mostly of one domain, so the key that fitted last comes first.
#[derive(Default)]
pub(super) struct Domains {
    /// All domains that the pool ever had; the ones that fitted last come first.
    order: Vec<DomainId>,
    /// The key of the first domain.
    key: Option<Key>,
}

impl Domains {
    pub(super) fn set_end(&mut self, end: u32) {
        let known = self.order.len() as u32;
        let new = (known..end).filter_map(|id| u16::try_from(id).ok());
        self.order.extend(new.map(DomainId));
    }

    fn first(&mut self, pool: &Pool) -> (DomainId, &Key) {
        let first = self.order.first().copied().unwrap_or_default();
        (
            first,
            self.key
                .get_or_insert_with(|| pool.blocks().fingerprinter().key(first)),
        )
    }

    /// The fingerprints of consecutive blocks, with the key that fitted last.
    fn fingerprints(&mut self, pool: &Pool, blocks: &[u8]) -> Vec<Fingerprint> {
        let (domain, key) = self.first(pool);
        pool.blocks()
            .fingerprinter()
            .fingerprints(key, domain, blocks)
    }

    /// Whether the block's fingerprint, with any of the keys, is as wanted.
    pub(super) fn find(
        &mut self,
        pool: &Pool,
        block: &[u8],
        is_wanted: impl Fn(Fingerprint) -> bool,
    ) -> bool {
        let fits = |domain: DomainId| {
            let found = pool.blocks().fingerprinter().fingerprints(
                &pool.blocks().fingerprinter().key(domain),
                domain,
                block,
            );
            found.into_iter().any(&is_wanted)
        };
        let Some(place) = self.order.iter().position(|domain| fits(*domain)) else {
            return false;
        };
        if place > 0 {
            self.order[..=place].rotate_right(1);
            self.key = None;
        }
        true
    }
}
