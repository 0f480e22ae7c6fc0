//! Putting blocks on the list of bad ones.

use std::collections::BTreeSet;

use onefold_format::{BadBlock, Fault, Pba};
use onefold_index::{Fingerprint, IndexReader};
use onefold_metadata::Result;

use super::Blocks;

/// Rows of the index read in a step.
const ROWS_PER_STEP: usize = 16_384;

impl Blocks {
    /// Puts blocks that cannot be read on the list. Returns how many are new there.
    pub(crate) fn list_unreadable(&self, blocks: &[Pba]) -> Result<u64> {
        self.list_with(blocks.iter().map(|pba| (*pba, None)))
    }

    /// Puts blocks that cannot be read on the list with their fingerprints, for which it reads all rows
    /// of the index.
    pub(crate) fn list_unreadable_of(
        &self,
        index: &dyn IndexReader,
        blocks: &BTreeSet<Pba>,
    ) -> Result<()> {
        let mut found: Vec<(Pba, Option<Fingerprint>)> = Vec::new();
        let mut from = Some(Fingerprint::default());
        while let Some(start) = from {
            let rows = index.rows(start, ROWS_PER_STEP)?;
            from = rows.last().and_then(|(last, _)| last.successor());
            let wanted = rows.iter().filter(|(_, row)| blocks.contains(&row.pba));
            found.extend(wanted.map(|(fingerprint, row)| (row.pba, Some(*fingerprint))));
        }
        self.list_with(found.into_iter()).map(|_| ())
    }

    fn list_with(&self, blocks: impl Iterator<Item = (Pba, Option<Fingerprint>)>) -> Result<u64> {
        let bad = blocks.filter_map(|(pba, fingerprint)| {
            let listed = self.bad.get(pba);
            let is_known =
                listed.is_some_and(|bad| fingerprint.is_none() || bad.fingerprint.is_some());
            (!is_known).then_some(BadBlock {
                pba,
                fault: Fault::Unreadable,
                attempts: 0,
                fingerprint: fingerprint.map(|fingerprint| fingerprint.0),
            })
        });
        let bad: Vec<BadBlock> = bad.collect();
        for it in &bad {
            tracing::error!("block {} of the pool {}", it.pba, what_is_wrong(it.fault));
        }
        self.bad.list(&self.journal, &bad)?;
        Ok(bad.len() as u64)
    }
}

/// Describes a fault, as the rest of a sentence about the block.
pub(crate) fn what_is_wrong(fault: Fault) -> &'static str {
    match fault {
        Fault::Unreadable => "cannot be read: the device fails there",
        Fault::Changed => "differs from the stored data",
    }
}
