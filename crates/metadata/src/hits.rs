//! Whether a write may refer to published blocks that have its content, instead of storing it: a *hit*.
//!
//! The record that makes the entry makes a claim with it: a reference that the index does not count
//! yet. Nothing is released while there are claims, so a count that is too low frees nothing (P3).
//! So a hit must only avoid a block that is about to be freed, or for which the index's answer is out of
//! date; the rules are the same as in the model.

use onefold_format::BatchKind;

use super::run::PbaRun;
use super::state::MetadataState;
use crate::guard::Guard;

/// The hits of a write.
#[derive(Debug, Clone, Copy)]
pub struct Hits<'a> {
    /// [`crate::LookupVersion::now`] before the index was asked.
    pub lookup_version: u64,
    /// The published blocks.
    pub runs: &'a [PbaRun],
}

/// Why a write may not make a hit. It is stored as if its content were new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Published blocks became free since the index was asked, or it is being counted again.
    Outdated,
    /// The collector is releasing references to the block.
    Releasing,
    /// The finder has not settled the block.
    Unsettled,
    /// There would be more than [`Limits::claims_max`](crate::Limits::claims_max) claims.
    ClaimsFull,
    /// The collector waits until no claim is left.
    Held,
    /// The pool is shrinking.
    Shrinking,
}

impl MetadataState {
    /// Whether a record may make these hits. Nothing changes until it is applied.
    pub fn admit_hits(&self, hits: Hits<'_>) -> Result<(), Refusal> {
        if hits.lookup_version != self.lookup_version.now() && Guard::HitStillValid.holds() {
            return Err(Refusal::Outdated);
        }
        if self.hits_held {
            return Err(Refusal::Held);
        }
        if self.space.is_shrinking() {
            return Err(Refusal::Shrinking);
        }
        let blocks: u64 = hits.runs.iter().map(|run| run.count).sum();
        if self.claims.blocks() + blocks > self.claims_max {
            return Err(Refusal::ClaimsFull);
        }
        let Some(batch) = self.batches.open() else {
            return Ok(());
        };
        let (guard, refusal) = match batch.kind {
            BatchKind::Finder(_) => (Guard::HitSettled, Refusal::Unsettled),
            BatchKind::Collector => (Guard::HitNotCollected, Refusal::Releasing),
            BatchKind::Counting => return Ok(()),
        };
        let mut wanted = hits.runs.iter().flat_map(PbaRun::iter);
        if guard.holds() && wanted.any(|pba| batch.is_busy(pba)) {
            Err(refusal)
        } else {
            Ok(())
        }
    }
}
