//! The part of one group in a census of a shared pool: the use that the group makes of some blocks.
//!
//! A group cannot tell alone whether a block is free, its own or shared: other groups refer to it, too. So it reports
//! what it knows, and the host that takes the census compares.

use std::ops::Range;
use std::rc::Rc;

use onefold_format::Pba;
use onefold_format::census_message::{BlockRun, BlockUse};
use onefold_format::space_page::BLOCKS_PER_SPACE_PAGE;
use onefold_journal::CheckpointReader;
use onefold_metadata::{Result, bits};

use super::{Check, CheckReport, Finding, PAGE_WORDS};
use crate::dedup::Window;
use crate::integrity::Scrub;

/// The use that a group makes of some blocks, as of one checkpoint.
pub(crate) struct Survey {
    window: Window,
    /// A bitmap of the free blocks that are the group's.
    free: Vec<u64>,
    /// Findings that the group can tell alone.
    pub(crate) findings: Vec<String>,
    /// Entries that were read, in the survey of the pool's first block.
    pub(crate) mapped_blocks: u64,
    /// Pages of metadata that were read.
    pub(crate) pages_read: u64,
}

/// Surveys a group whose jobs are paused. `blocks` are whole pages of the free-space map.
///
/// # Errors
///
/// `Gone` if `is_cancelled`; I/O errors.
pub(crate) fn survey(
    scrub: &Scrub,
    blocks: Range<u64>,
    pool_end: Pba,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Survey> {
    let pool = scrub.pool();
    pool.journal().check_writable()?;
    if blocks.start == 0 {
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
    if blocks.start == 0 {
        check.find_bad_blocks()?;
    }
    let mut window = Window::new(blocks);
    {
        let _memory = pool.scan_memory();
        check.count_owners(&mut window)?;
    }
    let free = check.free_blocks(&window)?;
    let CheckReport {
        mapped_blocks,
        pages_read,
        ..
    } = check.counts.clone();
    drop(check);
    Ok(Survey {
        window,
        free,
        findings,
        mapped_blocks,
        pages_read,
    })
}

impl Check<'_> {
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
        self.free[word] | self.window.owned()[word] | self.window.referenced_bits()[word] == 0
    }

    fn usage(&self, pba: Pba) -> BlockUse {
        let bit = (pba.0 - self.window.blocks.start) as usize;
        let has = |words: &[u64]| bits::all(words, bit..bit + 1, true);
        BlockUse {
            is_free: has(&self.free),
            is_owned: has(self.window.owned()),
            references: has(self.window.referenced_bits()).then(|| self.window.counted(pba)),
        }
    }
}
