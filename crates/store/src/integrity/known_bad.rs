//! Looks at bad blocks apart from a run of the scrub: those that a request could not read, and listed ones once more.

use onefold_format::{BadBlock, Fault, Pba};
use onefold_index::Fingerprint;
use onefold_metadata::Result;

use super::scrub::{Domains, Scrub};

/// Listed blocks checked again at a time.
const LOOKS_AGAIN_MAX: usize = 256;

impl Scrub {
    /// Checks blocks that requests could not read. Returns how many of them are bad.
    ///
    /// # Errors
    ///
    /// I/O errors, except the faults that it looks for.
    pub fn look_at_suspects(&self) -> Result<u64> {
        let suspects = self.pool.bad().take_suspects();
        if suspects.is_empty() || self.pool.journal().check_writable().is_err() {
            return Ok(0);
        }
        let _job = self.pool.batches().job_in_background()?;
        let mut block = vec![0; self.pool.block_size() as usize];
        let mut unreadable = Vec::new();
        for pba in suspects {
            let is_named = self.is_named(pba)?;
            if is_named && !self.pool.blocks().read_if_readable(pba, &mut block)? {
                unreadable.push(pba);
            }
        }
        self.pool.blocks().list_unreadable(&unreadable)
    }

    /// Checks listed unreadable blocks once more, and in a shared pool all listed ones, which another group may have
    /// repaired: from `from` on, which it moves; around the list, until one still cannot be read, or there were 256. Good
    /// ones leave the list, so that a temporary outage of a device does not keep blocks from being shared. Returns how many
    /// did.
    ///
    /// # Errors
    ///
    /// I/O errors, except the faults that it looks for.
    pub fn look_at_unreadable(&self, from: &mut Pba) -> Result<u64> {
        let pool = &self.pool;
        if !pool.bad().is_any() || pool.journal().check_writable().is_err() {
            return Ok(0);
        }
        let listed = pool.bad().all().into_iter();
        let (before, after): (Vec<_>, Vec<_>) = listed
            .filter(|bad| bad.fault == Fault::Unreadable || pool.index().is_shared())
            .partition(|bad| bad.pba < *from);
        let mut block = vec![0; pool.block_size() as usize];
        let mut readable = Vec::new();
        for bad in after.into_iter().chain(before).take(LOOKS_AGAIN_MAX) {
            *from = bad.pba + 1;
            // Without the job lock first: a device can take seconds to report a failure.
            if !pool.blocks().read_if_readable(bad.pba, &mut block)? {
                break;
            }
            readable.push(bad.pba);
        }
        if readable.is_empty() {
            return Ok(0);
        }
        let _job = pool.batches().job_in_background()?;
        let listed = readable.into_iter().filter_map(|pba| pool.bad().get(pba));
        self.look_again(listed.collect())
    }

    /// Lets the other groups of a shared pool know the listed blocks, and those that are good again. If `is_due` is not
    /// set, only blocks that are new on the list.
    ///
    /// # Errors
    ///
    /// `Busy` if not all shards of the index have answered; `NoSpace` if one has marked as many blocks as it can;
    /// `Damaged` if one has lost its rows; I/O errors.
    pub fn mark_for_all_groups(&self, is_due: bool) -> Result<()> {
        match self.pool.index().shared() {
            Some(index) => self.pool.blocks().mark_listed(index, is_due),
            None => Ok(()),
        }
    }

    /// Checks all blocks of the list once more, and takes off the good ones. The caller holds the
    /// job lock.
    pub(super) fn look_at_bad_again(&self) -> Result<()> {
        let listed = self.pool.bad().all();
        if listed.is_empty() || self.pool.journal().check_writable().is_err() {
            return Ok(());
        }
        self.look_again(listed).map(|_| ())
    }

    /// Returns how many left the list.
    fn look_again(&self, listed: Vec<BadBlock>) -> Result<u64> {
        let mut domains = Domains::default();
        domains.set_end(self.pool.journal().metadata()?.catalogue().next_domain_id());
        let mut good = Vec::new();
        let mut block = vec![0; self.pool.block_size() as usize];
        for bad in listed {
            let is_readable = self.pool.blocks().read_if_readable(bad.pba, &mut block)?;
            let is_good = is_readable
                && match bad.fingerprint {
                    Some(expected) => {
                        domains.find(&self.pool, &block, |found| found.0 == expected)
                            || self.is_of_other_content(&bad, expected)?
                    }
                    None => true,
                };
            if is_good {
                good.push(bad.pba);
            }
        }
        let count = good.len() as u64;
        self.pool.bad().unlist(self.pool.journal(), good)?;
        Ok(count)
    }

    /// Whether other groups of a shared pool have released a block, so that it has another content now, or none.
    fn is_of_other_content(&self, bad: &BadBlock, expected: [u8; 16]) -> Result<bool> {
        let Some(index) = self.pool.index().shared() else {
            return Ok(false);
        };
        let [a, b, c, d, ..] = expected;
        let blocks = self.pool.blocks();
        let found = blocks.fingerprint_in(index, [a, b, c, d], bad.pba)?;
        Ok(found != Some(Fingerprint(expected)))
    }
}
