//! Bad blocks that all groups of a shared pool know.
//!
//! A group knows the bad blocks that it has found. Another group would let its entries refer to such a block, and free its
//! own good one. So a group marks its bad blocks in the shards of the index. A marked block is no hit for a write in line;
//! and the finder of a group that has the content learns that the block is bad, and repairs it
//! ([`repair`](super::repair)) before it shares it.
//!
//! - The finder reads a marked block before it lists it: it may be good again.
//! - A group takes off marks that it has set or met, once the block is not on its list any more and can be read.
//!
//! Crash behaviour: a group that dies forgets which marks it has set. It sets those of its list again; another mark stays
//! until a finder meets the block.

use std::collections::{BTreeMap, BTreeSet};

use onefold_format::batch_page::BatchItem;
use onefold_format::{BadBlock, DomainId, Fault, Pba};
use onefold_index::sharded::Sharded;
use onefold_index::{Counted, Fingerprint};
use onefold_metadata::sync::lock;
use onefold_metadata::{Guard, Result};

use super::{Blocks, Fingerprinted};

impl Blocks {
    /// Marks blocks in all shards that are new on the list. If `is_due`, marks all of the list, because a rebuild of the
    /// index forgets marks, and takes the marks off blocks that are good again.
    pub(crate) fn mark_listed(&self, index: &Sharded, is_due: bool) -> Result<()> {
        // In this order: what is marked in between is on the list first.
        let marked = lock(&self.marked).clone();
        let listed: BTreeSet<Pba> = self.bad.all().iter().map(|bad| bad.pba).collect();
        if is_due {
            self.unmark_good(index, marked.difference(&listed))?;
        }
        let wanted: Vec<Pba> = if is_due {
            listed.iter().copied().collect()
        } else {
            listed.difference(&marked).copied().collect()
        };
        if wanted.is_empty() || !Guard::BadBlocksMarked.holds() {
            return Ok(());
        }
        index.mark(&wanted, true)?;
        if !listed.is_subset(&marked) {
            tracing::warn!("all groups know {} bad blocks of the pool", listed.len());
        }
        lock(&self.marked).extend(listed);
        Ok(())
    }

    fn unmark_good<'a>(
        &self,
        index: &Sharded,
        unlisted: impl Iterator<Item = &'a Pba>,
    ) -> Result<()> {
        let mut block = vec![0; self.block_size() as usize];
        let mut good = Vec::new();
        for pba in unlisted {
            if self.read_if_readable(*pba, &mut block)? {
                good.push(*pba);
            }
        }
        if good.is_empty() {
            return Ok(());
        }
        index.mark(&good, false)?;
        let mut marked = lock(&self.marked);
        good.iter().for_each(|pba| {
            marked.remove(pba);
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
        let met = items.iter().zip(answers).filter_map(|(item, answer)| {
            let Some(Counted::Shared(pba)) = answer else {
                return None;
            };
            marked.contains(pba).then_some((*pba, *item))
        });
        let met: Vec<(Pba, BatchItem)> = met.collect();
        let own: Vec<BatchItem> = met.iter().map(|(_, item)| *item).collect();
        let Fingerprinted { items, unreadable } = self.fingerprint_items(&own)?;
        // Where no item's block can be read, the content is not known.
        let mut contents: BTreeMap<Pba, (DomainId, Option<Fingerprint>)> = BTreeMap::new();
        for ((pba, item), (fingerprint, own)) in met.iter().zip(items) {
            let (_, content) = contents.entry(*pba).or_insert((item.domain, None));
            *content = content.or((!unreadable.contains(&own)).then_some(fingerprint));
        }
        let mut bad = Vec::new();
        for (pba, (domain, content)) in &contents {
            if self.bad.get(*pba).is_none() {
                bad.extend(self.fault_of(*pba, *domain, *content)?);
            }
        }
        for BadBlock { pba, .. } in &bad {
            tracing::warn!("block {pba} of the pool is bad, as another group has found");
        }
        self.bad.list(&self.journal, &bad)?;
        lock(&self.marked).extend(contents.into_keys());
        Ok(())
    }

    /// The entry in the list of a block that should have this content, unless it has.
    fn fault_of(
        &self,
        pba: Pba,
        domain: DomainId,
        content: Option<Fingerprint>,
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
            fingerprint: content.map(|fingerprint| fingerprint.0),
        };
        let is_good = is_readable && content.is_some() && self.is_as_stored(&block, domain, &bad);
        Ok((!is_good).then_some(bad))
    }
}
