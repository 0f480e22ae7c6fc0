//! The part of one group in a census of a shared pool: the use that the group makes of some blocks.
//!
//! A group cannot tell alone whether a block is free, its own or shared: other groups refer to it, too. So it reports
//! what it knows, and the host that takes the census compares.

use std::ops::Range;
use std::rc::Rc;

use onefold_format::census_message::{BlockRun, BlockUse};
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_format::{BatchKind, DomainId, Pba};
use onefold_journal::CheckpointReader;
use onefold_metadata::{OpenBatch, Result, StoreError, bits};

use super::{Check, CheckReport, Finding, PAGE_WORDS};
use crate::dedup::Window;
use crate::integrity::Scrub;

/// The use that a group makes of some blocks, as of one checkpoint.
pub(crate) struct Survey {
    window: Window,
    /// A bitmap of the free blocks that are the group's.
    free: Vec<u64>,
    /// Bitmaps of the blocks that an open batch of the finder publishes, and of those that one of the collector releases.
    publishing: Vec<u64>,
    releasing: Vec<u64>,
    /// The domain of each block that has references, for a rebuild.
    domains: Vec<DomainId>,
    /// Findings that the group can tell alone.
    pub(crate) findings: Vec<String>,
    /// Entries that were read, in the survey of the pool's first block.
    pub(crate) mapped_blocks: u64,
    /// Pages of metadata that were read.
    pub(crate) pages_read: u64,
}

/// The purpose of a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SurveyKind {
    /// A check of the pool: the references that the index should count, and damage. No batch is open.
    Check,
    /// A rebuild, before the open batch is settled: the references of everything but its items, claimed or not.
    Unsettled,
    /// A rebuild, afterwards: the references, and their domains. No batch is open, and there are no claims.
    Settled,
}

/// Surveys a group whose jobs are paused. `blocks` are whole pages of the free-space map.
///
/// # Errors
///
/// `Gone` if `is_cancelled`; I/O errors.
pub(crate) fn survey(
    scrub: &Scrub,
    kind: SurveyKind,
    blocks: Range<u64>,
    pool_end: Pba,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Survey> {
    let pool = scrub.pool();
    pool.journal().check_writable()?;
    let is_first_of_check = kind == SurveyKind::Check && blocks.start == 0;
    if is_first_of_check {
        scrub.look_at_bad_again()?;
    }
    let snapshot = CheckpointReader::take(pool.journal())?;
    let mut findings = Vec::new();
    let mut check = Check {
        pool,
        scrub,
        snapshot: Rc::new(snapshot),
        index: None,
        repair: false,
        report: &mut |finding: Finding| findings.push(finding.message),
        is_cancelled,
        pool_end: pool_end.0,
        counts: CheckReport::default(),
        is_map_unreadable: false,
        is_index_unreadable: false,
        index_findings: 0,
        progress: &mut |_, _| {},
        done: 0,
        all: 0,
    };
    if is_first_of_check {
        check.find_bad_blocks()?;
    }
    let mut counted = {
        let _memory = pool.scan_memory();
        check.count(kind, blocks)?
    };
    let free = check.free_blocks(&counted.window)?;
    let is_unreadable = check.is_map_unreadable;
    let CheckReport {
        mapped_blocks,
        pages_read,
        ..
    } = check.counts.clone();
    drop(check);
    if kind != SurveyKind::Check && (is_unreadable || !findings.is_empty()) {
        // The new index would lack references, or another group would free a block that this one has (P3).
        return Err(StoreError::damaged(findings.join("; ")));
    }
    counted.free = free;
    Ok(Survey {
        findings,
        mapped_blocks,
        pages_read,
        ..counted
    })
}

/// Takes the unsettled items of an open batch out of the references.
fn take_items(
    open: &OpenBatch,
    window: &mut Window,
    publishing: &mut [u64],
    releasing: &mut [u64],
) {
    for item in open.unsettled() {
        if !window.blocks.contains(&item.pba.0) {
            continue;
        }
        let bit = (item.pba.0 - window.blocks.start) as usize;
        let (noted, is_counted) = match open.kind {
            BatchKind::Finder(_) => (&mut *publishing, !item.moved),
            BatchKind::Collector => (&mut *releasing, true),
            // The entry of a claim is a reference.
            BatchKind::Counting => continue,
        };
        bits::fill(noted, bit..bit + 1, true);
        if is_counted {
            window.claim(item.pba);
        }
    }
}

impl Check<'_> {
    /// The references of a survey.
    fn count(&mut self, kind: SurveyKind, blocks: Range<u64>) -> Result<Survey> {
        let mut window = Window::new(blocks);
        let words = window.owned().len();
        let (mut publishing, mut releasing) = (vec![0; words], vec![0; words]);
        let mut domains = Vec::new();
        match kind {
            SurveyKind::Check => self.count_owners(&mut window)?,
            SurveyKind::Unsettled => {
                self.count_named(&mut window, &mut |_, _| {})?;
                if let Some(open) = &self.snapshot.open {
                    take_items(open, &mut window, &mut publishing, &mut releasing);
                }
            }
            SurveyKind::Settled => {
                domains = vec![DomainId::default(); words * 64];
                let first = window.blocks.start;
                self.count_named(&mut window, &mut |pba, domain| {
                    domains[(pba.0 - first) as usize] = domain;
                })?;
            }
        }
        Ok(Survey {
            window,
            free: Vec::new(),
            publishing,
            releasing,
            domains,
            findings: Vec::new(),
            mapped_blocks: 0,
            pages_read: 0,
        })
    }

    /// The free blocks of the window that are the group's.
    fn free_blocks(&mut self, window: &Window) -> Result<Vec<u64>> {
        let mut free = vec![0; window.owned().len()];
        let first_page = window.blocks.start / BLOCKS_PER_SPACE_PAGE;
        for (words, index) in free.chunks_exact_mut(PAGE_WORDS).zip(first_page..) {
            // A page that cannot be read is a finding, and may have any blocks.
            let Some(named) = self.read_space_page(index, &[])? else {
                continue;
            };
            for (word, named) in words.iter_mut().zip(named.iter()) {
                *word = !named;
            }
        }
        if window.blocks.start == 0 {
            // The pool's label is never named, and nobody's.
            bits::fill(&mut free, 0..1, false);
        }
        Ok(free)
    }
}

impl Survey {
    /// The blocks that were surveyed.
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.window.blocks.clone()
    }

    /// The domain of a block, if it has references and the survey has domains.
    pub(crate) fn domain(&self, pba: Pba) -> Option<DomainId> {
        let place = pba.0.checked_sub(self.window.blocks.start)? as usize;
        let domain = self.domains.get(place)?;
        (self.window.counted(pba) > 0).then_some(*domain)
    }

    /// The used blocks from `from` on, in at most `most` runs, and the first block that they do not answer for.
    pub(crate) fn runs(&self, from: Pba, most: usize) -> (Vec<BlockRun>, Pba) {
        let Range { start, end } = self.window.blocks;
        let mut runs: Vec<BlockRun> = Vec::new();
        let mut at = from.0.max(start);
        while at < end {
            let bit = (at - start) as usize;
            if bit.is_multiple_of(64) && self.is_word_unused(bit / 64) {
                at += 64;
                continue;
            }
            let usage = self.usage(Pba(at));
            let is_full = runs.len() == most;
            match runs.last_mut() {
                _ if usage.is_none() => {}
                Some(last) if last.usage == usage && last.first.0 + last.count == at => {
                    last.count += 1;
                }
                _ if is_full => return (runs, Pba(at)),
                _ => runs.push(BlockRun {
                    first: Pba(at),
                    count: 1,
                    usage,
                }),
            }
            at += 1;
        }
        (runs, Pba(end))
    }

    fn is_word_unused(&self, word: usize) -> bool {
        let (owned, referenced) = (self.window.owned(), self.window.referenced_bits());
        let open = self.publishing[word] | self.releasing[word];
        self.free[word] | owned[word] | referenced[word] | open == 0
    }

    fn usage(&self, pba: Pba) -> BlockUse {
        let bit = (pba.0 - self.window.blocks.start) as usize;
        let has = |words: &[u64]| bits::all(words, bit..bit + 1, true);
        BlockUse {
            is_free: has(&self.free),
            is_owned: has(self.window.owned()),
            references: has(self.window.referenced_bits()).then(|| self.window.counted(pba)),
            is_publishing: has(&self.publishing),
            is_releasing: has(&self.releasing),
        }
    }
}
