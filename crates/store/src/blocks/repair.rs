//! Repair: a bad block gets its content back from another block that has it.
//!
//! The finder meets the content of a bad block in a block that it is publishing: the index already
//! has a block for this fingerprint, and the list says that it is bad. Then the good content is
//! written over the bad one, and the two become one as usual.
//!
//! It is the one case in which a shared block is written. P1 protects the readers of such a block
//! and the content of its fingerprint. While a block is in the list, no reader gets its content
//! unless that has its fingerprint; and only content with that fingerprint is written.
//!
//! Steps, all under the job lock, so that the index keeps the block until the end:
//!
//! 1. compare the good block with its fingerprint, under which the index must have the bad one
//! 2. note the attempt, durably: a device that cannot take the write fails the next sync, and with
//!    it the pool, so the number of attempts is limited
//! 3. write, sync, read back, compare
//! 4. only then the block leaves the list
//!
//! A crash before 4 leaves a block in the list that may be good already: reads of it succeed, and
//! the next check takes it off.

use onefold_format::scrub_page::ATTEMPTS_MAX;
use onefold_format::{BadBlock, DomainId, Pba};
use onefold_index::{Counted, IndexReader};
use onefold_metadata::{Guard, Result};

use super::Blocks;

/// A block that has the content of a bad one.
struct Cure {
    bad: BadBlock,
    content: Vec<u8>,
}

impl Blocks {
    /// Repairs bad blocks among the answers with the items' own blocks, as far as possible. The
    /// caller holds the job lock, and the items' blocks are not written.
    pub(crate) fn repair(
        &self,
        index: &dyn IndexReader,
        domain: DomainId,
        own: impl Iterator<Item = (Pba, Counted)>,
    ) -> Result<()> {
        if !self.bad.is_any() {
            return Ok(());
        }
        let mut cures: Vec<Cure> = Vec::new();
        for (own, answer) in own {
            let Counted::Shared(pba) = answer else {
                continue;
            };
            let listed = self.bad.get(pba).filter(|_| pba != own);
            let is_new = cures.iter().all(|cure| cure.bad.pba != pba);
            if let Some(listed) = listed.filter(|_| is_new) {
                cures.extend(self.cure(index, domain, own, listed)?);
            }
        }
        self.apply_cures(cures, domain)
    }

    /// Step 1.
    fn cure(
        &self,
        index: &dyn IndexReader,
        domain: DomainId,
        own: Pba,
        listed: BadBlock,
    ) -> Result<Option<Cure>> {
        let mut content = vec![0; self.block_size() as usize];
        if listed.attempts == ATTEMPTS_MAX || self.read_back(own, &mut content).is_err() {
            return Ok(None);
        }
        let found =
            self.fingerprinter
                .fingerprints(&self.fingerprinter.key(domain), domain, &content);
        let Some(found) = found.first() else {
            return Ok(None);
        };
        let [a, b, c, d, ..] = found.0;
        let indexed = self.fingerprint_in(index, [a, b, c, d], listed.pba)?;
        let bad = BadBlock {
            attempts: listed.attempts + 1,
            fingerprint: Some(found.0),
            ..listed
        };
        let fits = indexed == Some(*found)
            && (listed.fingerprint.is_none() || listed.fingerprint == bad.fingerprint);
        Ok(fits.then_some(Cure { bad, content }))
    }

    /// Steps 2 to 4.
    fn apply_cures(&self, mut cures: Vec<Cure>, domain: DomainId) -> Result<()> {
        let attempts: Vec<BadBlock> = cures.iter().map(|cure| cure.bad).collect();
        self.bad.list(&self.journal, &attempts)?;
        cures.retain(|Cure { bad, content }| {
            let at = bad.pba.0 * self.block_size();
            let written = self.journal.data().write_at(content, at);
            if let Err(error) = &written {
                tracing::error!("block {} of the pool cannot be repaired: {error}", bad.pba);
            }
            written.is_ok()
        });
        if cures.is_empty() {
            return Ok(());
        }
        if Guard::HealedBeforeUnlisted.holds() {
            self.journal.commit_in_background()?;
            let mut block = vec![0; self.block_size() as usize];
            cures.retain(|Cure { bad, .. }| {
                let read = self.read_back(bad.pba, &mut block);
                read.is_ok() && self.is_as_stored(&block, domain, bad)
            });
        }
        for Cure { bad, .. } in &cures {
            tracing::warn!("block {} of the pool is repaired", bad.pba);
        }
        self.bad
            .unlist(&self.journal, cures.iter().map(|cure| cure.bad.pba))
    }
}
