//! Bad blocks that all groups of a shared pool know.
//!
//! A group knows the bad blocks that it has found. Another group would let its entries refer to such a block, and free its
//! own good one. So a group marks its bad blocks in the shards of the index. A marked block is no hit for a write in line;
//! and the finder of a group that has the content learns that the block is bad, and repairs it
//! ([`repair`](super::repair)) before it shares it.
//!
//! - Whoever learns of a mark reads the block: it may be good again.
//! - The marks that a group has set, or has learned of, are taken off once the block is not on the group's list any more
//!   and can be read.

use std::collections::{BTreeMap, BTreeSet};

use onefold_format::batch_page::BatchItem;
use onefold_format::{BadBlock, Fault, Pba};
use onefold_index::sharded::Sharded;
use onefold_index::{Counted, Fingerprint};
use onefold_metadata::sync::lock;
use onefold_metadata::{Guard, Result};

use super::{Blocks, Fingerprinted};

impl Blocks {
    /// Marks the listed blocks in all shards, and takes the marks off blocks that are good again. If `is_due` is not set,
    /// only where the list has changed since the last call: a rebuild of the index forgets marks.
    pub(crate) fn mark_listed(&self, index: &Sharded, is_due: bool) -> Result<()> {
        let listed: BTreeSet<Pba> = self.bad.all().iter().map(|bad| bad.pba).collect();
        let marked = lock(&self.marked).clone();
        let has_new = !listed.is_subset(&marked);
        if (has_new || is_due && !listed.is_empty()) && Guard::BadBlocksMarked.holds() {
            let blocks: Vec<Pba> = listed.iter().copied().collect();
            index.mark(&blocks, true)?;
            lock(&self.marked).extend(listed.iter().copied());
        }
        let mut block = vec![0; self.block_size() as usize];
        let mut good = Vec::new();
        for pba in marked.difference(&listed) {
            if self.read_if_readable(*pba, &mut block)? {
                good.push(*pba);
            }
        }
        if !good.is_empty() {
            index.mark(&good, false)?;
        }
        let mut marked_now = lock(&self.marked);
        marked.difference(&listed).for_each(|pba| {
            marked_now.remove(pba);
        });
        Ok(())
    }

    /// Lists the marked blocks among the answers to a batch, unless they are good. The caller holds the job lock, and the
    /// items' blocks are not written.
    pub(crate) fn learn_marked(
        &self,
        items: &[BatchItem],
        answers: &[Option<Counted>],
        marked: &BTreeSet<Pba>,
    ) -> Result<()> {
        let mut alike: BTreeMap<Pba, BatchItem> = BTreeMap::new();
        for (item, answer) in items.iter().zip(answers) {
            if let Some(Counted::Shared(pba)) = answer
                && marked.contains(pba)
            {
                alike.insert(*pba, *item);
            }
        }
        let own: Vec<BatchItem> = alike.values().copied().collect();
        let Fingerprinted { items, unreadable } = self.fingerprint_items(&own)?;
        let mut bad = Vec::new();
        for ((pba, item), (fingerprint, own)) in alike.iter().zip(items) {
            if self.bad.get(*pba).is_none() && !unreadable.contains(&own) {
                bad.extend(self.fault_of(*pba, item, fingerprint)?);
            }
        }
        for BadBlock { pba, .. } in &bad {
            tracing::warn!("block {pba} of the pool is bad, as another group has found");
        }
        self.bad.list(&self.journal, &bad)?;
        lock(&self.marked).extend(alike.into_keys());
        Ok(())
    }

    /// The entry in the list of a block that should have the item's content, unless it has.
    fn fault_of(
        &self,
        pba: Pba,
        item: &BatchItem,
        expected: Fingerprint,
    ) -> Result<Option<BadBlock>> {
        let mut block = vec![0; self.block_size() as usize];
        let is_readable = self.read_if_readable(pba, &mut block)?;
        let bad = BadBlock {
            pba,
            fault: if is_readable {
                Fault::Changed
            } else {
                Fault::Unreadable
            },
            attempts: 0,
            fingerprint: Some(expected.0),
        };
        let is_good = is_readable && self.is_as_stored(&block, item.domain, &bad);
        Ok((!is_good).then_some(bad))
    }
}
