//! Step 2 of a write to an in-line volume: its blocks are fingerprinted and looked up, before any lock is
//! taken, through a chain of filters of which each is cheaper than the next ([Meister13 §2.3]):
//!
//! 1. *zeros* are not stored in any case
//! 2. *recently seen*: the index found the fingerprint a short time ago
//! 3. *absent by signature*: the index knows without its disk that it has no row
//! 4. the index's rows
//!
//! A result is a hint. Whether it holds is decided when the record is appended: see
//! `metadata/src/hits.rs`. Without an index that can be used every block is a miss.

use onefold_format::{DedupMode, Pba};
use onefold_index::{Fingerprint, IndexError, LookedUp, is_zero};
use onefold_metadata::{Blocking, Guard, Result, StoreError};
use smallvec::SmallVec;

use super::Volume;
use super::inline::{Circumstances, Tally};
use super::recent::Seen;

/// The content of a block, as far as it is known before the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Zeros,
    /// The index does not have it.
    New(Fingerprint),
    /// A published block has it.
    Published(Fingerprint, Pba),
}

impl Content {
    fn fingerprint(self) -> Option<Fingerprint> {
        match self {
            Self::Zeros => None,
            Self::New(fingerprint) | Self::Published(fingerprint, _) => Some(fingerprint),
        }
    }

    /// Makes the block a miss: it is stored, even if its content is published.
    fn miss(&mut self) {
        if let Self::Published(fingerprint, _) = *self {
            *self = Self::New(fingerprint);
        }
    }
}

/// The contents of the blocks of a piece.
pub(super) struct Resolved {
    /// The lookup version before they were looked up.
    pub(super) lookup_version: u64,
    pub(super) contents: SmallVec<[Content; 8]>,
    tally: Tally,
}

impl Resolved {
    pub(super) fn has_published(&self) -> bool {
        let is_published = |content: &Content| matches!(content, Content::Published(..));
        self.contents.iter().any(is_published)
    }

    /// The piece needs no device if all hits are taken.
    pub(super) fn is_without_new(&self) -> bool {
        let is_new = |content: &Content| matches!(content, Content::New(_));
        !self.contents.iter().any(is_new)
    }

    pub(super) fn fingerprint(&self, n: u64) -> Option<Fingerprint> {
        self.contents.get(n as usize)?.fingerprint()
    }
}

impl Volume {
    /// [step 2 resolve] The contents of these whole blocks; nothing if the volume does not look up, or
    /// no index can be used.
    pub(super) fn resolve(&self, data: &[u8], blocking: Blocking) -> Result<Option<Resolved>> {
        let settings = self.settings();
        if self.is_importing() || !self.inline.looks_up(settings.dedup) {
            return Ok(None);
        }
        let Ok(index) = self.pool.index().executor() else {
            return Ok(None);
        };
        let mut resolved = Resolved {
            lookup_version: self.pool.journal().lookup_version(),
            contents: self.fingerprint_contents(data),
            tally: Tally::default(),
        };
        let unknown = self.find_recent(&mut resolved);
        let fingerprints = unknown.iter().filter_map(|n| resolved.fingerprint(*n));
        let fingerprints: SmallVec<[Fingerprint; 8]> = fingerprints.collect();
        let answers = if fingerprints.is_empty() {
            Ok(SmallVec::new())
        } else {
            let version = resolved.lookup_version;
            index.look_up(self.pool.journal(), version, &fingerprints, blocking)
        };
        // A replacement of the index waits for this.
        drop(index);
        let answers = match answers {
            Ok(answers) => answers,
            Err(IndexError::WouldBlock) => return Err(StoreError::would_block()),
            // Writing needs no index; finder and collector report its faults.
            Err(_) => return Ok(None),
        };
        for (n, answer) in unknown.into_iter().zip(answers) {
            self.note_answer(&mut resolved, n, answer);
        }
        self.inline.note_share(&resolved.tally);
        self.drop_bad(&mut resolved);
        if settings.verify && Guard::VerifyBytes.holds() {
            self.drop_different(&mut resolved, data, blocking)?;
        }
        self.drop_short_runs(&mut resolved, settings.min_run);
        Ok(Some(resolved))
    }

    /// Counts whole blocks that were written, and perhaps looked up before.
    pub(super) fn note_written(&self, blocks: u64, resolved: Option<&Resolved>) {
        if let Some(resolved) = resolved {
            let circumstances = Circumstances {
                past_cache: self.pool.data().writes_wait(),
                guests_strained: self.pool.are_guests_strained(),
            };
            self.inline.note(&resolved.tally, circumstances);
        }
        if self.settings().dedup == DedupMode::Auto {
            self.inline.note_blocks(blocks);
        }
    }

    /// Filter 1: blocks that are not zeros have fingerprints.
    fn fingerprint_contents(&self, data: &[u8]) -> SmallVec<[Content; 8]> {
        let block_size = self.pool.block_size() as usize;
        let blocks = data.chunks_exact(block_size);
        let zeros: SmallVec<[bool; 8]> = blocks.map(is_zero).collect();
        let mut contents = SmallVec::with_capacity(zeros.len());
        let mut rest = data;
        for alike in zeros.chunk_by(|one, next| one == next) {
            let (bytes, after) = rest.split_at(alike.len() * block_size);
            rest = after;
            if alike[0] {
                contents.extend(alike.iter().map(|_| Content::Zeros));
            } else {
                let (fingerprinter, domain) =
                    (self.pool.blocks().fingerprinter(), self.layer().domain);
                let found = fingerprinter.fingerprints(&self.inline.key, domain, bytes);
                contents.extend(found.into_iter().map(Content::New));
            }
        }
        contents
    }

    /// Filter 2. Returns the blocks to look up in the index.
    fn find_recent(&self, resolved: &mut Resolved) -> SmallVec<[u64; 8]> {
        let mut unknown = SmallVec::new();
        let lookup_version = resolved.lookup_version;
        let seen = |fingerprint| self.pool.recent().get(fingerprint, lookup_version);
        for (content, n) in resolved.contents.iter_mut().zip(0..) {
            match *content {
                Content::New(fingerprint) => match seen(fingerprint) {
                    Some(pba) => {
                        *content = Content::Published(fingerprint, pba);
                        resolved.tally.recent += 1;
                    }
                    None => unknown.push(n),
                },
                Content::Zeros | Content::Published(..) => resolved.tally.zeros += 1,
            }
        }
        unknown
    }

    /// Filters 3 and 4.
    fn note_answer(&self, resolved: &mut Resolved, n: u64, answer: LookedUp) {
        let tally = &mut resolved.tally;
        let lookup_version = resolved.lookup_version;
        let content = &mut resolved.contents[n as usize];
        match (answer, content.fingerprint()) {
            (LookedUp::Present(pba), Some(fingerprint)) => {
                tally.found += 1;
                *content = Content::Published(fingerprint, pba);
                self.pool.recent().put(Seen {
                    fingerprint,
                    pba,
                    lookup_version,
                });
            }
            (LookedUp::AbsentBySignature, _) => tally.absent_by_signature += 1,
            (LookedUp::Absent | LookedUp::Present(_), _) => tally.absent += 1,
        }
    }

    /// A block that is known to be bad has other content than its fingerprint says (P8). The finder
    /// repairs it when it comes upon the new copy.
    fn drop_bad(&self, resolved: &mut Resolved) {
        if !self.pool.bad().is_any() || !Guard::HitNotBad.holds() {
            return;
        }
        for content in &mut resolved.contents {
            if let Content::Published(_, pba) = *content
                && self.pool.bad().get(pba).is_some()
            {
                content.miss();
                resolved.tally.bad += 1;
            }
        }
    }

    /// `--verify`: equal fingerprints are not enough.
    fn drop_different(
        &self,
        resolved: &mut Resolved,
        data: &[u8],
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size();
        let mut theirs = vec![0; block_size as usize];
        let ours = data.chunks_exact(block_size as usize);
        for (content, ours) in resolved.contents.iter_mut().zip(ours) {
            let Content::Published(_, pba) = *content else {
                continue;
            };
            let at = pba.0 * block_size;
            let read = match blocking {
                Blocking::Yes => self.pool.data().read_at(&mut theirs, at).map(|()| true),
                Blocking::No => self.pool.data().try_read_at(&mut theirs, at),
            };
            match read {
                Ok(true) if theirs == ours => {}
                Ok(false) => return Err(StoreError::would_block()),
                Ok(true) | Err(_) => {
                    content.miss();
                    resolved.tally.different += 1;
                }
            }
        }
        Ok(())
    }

    /// Published blocks of shorter runs are stored again, so that the volume can be read in longer
    /// ones.
    fn drop_short_runs(&self, resolved: &mut Resolved, min_run: u16) {
        if min_run <= 1 {
            return;
        }
        let follows = |one: &Content, next: &Content| match (one, next) {
            (Content::Published(_, one), Content::Published(_, next)) => *one + 1 == *next,
            _ => false,
        };
        for run in resolved.contents.chunk_by_mut(follows) {
            if run.len() < usize::from(min_run) && matches!(run[0], Content::Published(..)) {
                resolved.tally.short_run += run.len() as u64;
                run.iter_mut().for_each(Content::miss);
            }
        }
    }
}
