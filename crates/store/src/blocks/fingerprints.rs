//! Fingerprints of blocks that are read back, and fingerprints under which the index has blocks.

use onefold_format::batch_page::BatchItem;
use onefold_format::{BadBlock, DomainId, Pba};
use onefold_index::{Fingerprint, IndexReader};
use onefold_metadata::Result;
use rustc_hash::FxHashMap;

use super::Blocks;

/// Rows with the first bytes of a fingerprint: more than one is all but impossible.
const ROWS_ALIKE_MAX: usize = 16;

/// Fingerprints of blocks that were read back.
#[derive(Default)]
pub(crate) struct Fingerprinted {
    /// A fingerprint for each requested block, in order.
    pub(crate) items: Vec<(Fingerprint, Pba)>,
    /// Blocks that could not be read: their fingerprints are meaningless.
    pub(crate) unreadable: Vec<Pba>,
}

impl Blocks {
    /// Step 3: the fingerprints of blocks that are not written any more. They are read in the order of the pool,
    /// and many are hashed at once, however scattered they are.
    pub(crate) fn fingerprint_items(&self, items: &[BatchItem]) -> Result<Fingerprinted> {
        let block_size = self.block_size() as usize;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_unstable_by_key(|n| (items[*n].domain, items[*n].pba));
        let blank = |item: &BatchItem| (Fingerprint::default(), item.pba);
        let mut found: Vec<(Fingerprint, Pba)> = items.iter().map(blank).collect();
        let mut unreadable = Vec::new();
        let mut buf = vec![0; self.read_bytes().min(items.len() * block_size)];
        for same_domain in order.chunk_by(|a, b| items[*a].domain == items[*b].domain) {
            let domain = items[same_domain[0]].domain;
            let key = self.fingerprinter.key(domain);
            for piece in same_domain.chunks(self.read_bytes() / block_size) {
                let blocks = &mut buf[..piece.len() * block_size];
                let pbas: Vec<Pba> = piece.iter().map(|n| items[*n].pba).collect();
                self.read_blocks_back(&pbas, blocks, &mut unreadable)?;
                let fingerprints = self.fingerprinter.fingerprints(&key, domain, blocks);
                for (n, fingerprint) in piece.iter().zip(fingerprints) {
                    found[*n].0 = fingerprint;
                }
            }
        }
        Ok(Fingerprinted {
            items: found,
            unreadable,
        })
    }

    /// The fingerprints of blocks as they are now, although they may be written and freed at the same time; nothing if one
    /// cannot be read.
    pub(crate) fn fingerprints_now(
        &self,
        domain: DomainId,
        blocks: &[Pba],
    ) -> Option<Vec<Fingerprint>> {
        let block_size = self.block_size() as usize;
        let key = self.fingerprinter.key(domain);
        let mut found = Vec::with_capacity(blocks.len());
        let mut buf = vec![0; self.read_bytes().min(blocks.len() * block_size)];
        for piece in blocks.chunks(self.read_bytes() / block_size) {
            let buf = &mut buf[..piece.len() * block_size];
            self.read_blocks_now(piece, buf).ok()?;
            found.extend(self.fingerprinter.fingerprints(&key, domain, buf));
        }
        Some(found)
    }

    /// The fingerprints of blocks, some of which are `known`. The other blocks are read in the order of the
    /// pool, each once, however many items have it.
    pub(crate) fn fingerprint_unknown(
        &self,
        items: &[BatchItem],
        known: &[Option<Fingerprint>],
    ) -> Result<Fingerprinted> {
        let unknown = items.iter().zip(known).filter(|(_, known)| known.is_none());
        let mut unknown: Vec<BatchItem> = unknown.map(|(item, _)| *item).collect();
        unknown.sort_unstable_by_key(|item| (item.domain, item.pba));
        unknown.dedup_by_key(|item| item.pba);
        let read = self.fingerprint_items(&unknown)?;
        let found = read
            .items
            .iter()
            .map(|(fingerprint, pba)| (*pba, *fingerprint));
        let found: FxHashMap<Pba, Fingerprint> = found.collect();
        let all = items.iter().zip(known).filter_map(|(item, known)| {
            let fingerprint = known.or_else(|| found.get(&item.pba).copied());
            Some((fingerprint?, item.pba))
        });
        Ok(Fingerprinted {
            items: all.collect(),
            unreadable: read.unreadable,
        })
    }

    /// The fingerprints under which the index has published blocks, bad ones too.
    ///
    /// # Errors
    ///
    /// Where the fingerprint of a bad block is not known.
    pub(crate) fn published(
        &self,
        index: &dyn IndexReader,
        found: Fingerprinted,
    ) -> Result<Fingerprinted> {
        let Fingerprinted {
            mut items,
            mut unreadable,
        } = found;
        let listed = |pba: Pba| self.bad.get(pba).and_then(|bad| bad.fingerprint);
        unreadable.retain(|pba| listed(*pba).is_none());
        if !unreadable.is_empty() {
            self.list_unreadable_of(index, &unreadable.into_iter().collect())?;
        }
        if self.bad.is_any() {
            for (fingerprint, pba) in &mut items {
                *fingerprint = listed(*pba).map_or(*fingerprint, Fingerprint);
            }
        }
        Ok(Fingerprinted {
            items,
            unreadable: Vec::new(),
        })
    }

    /// Whether the index has the block under this fingerprint.
    pub(crate) fn is_as_stored(&self, block: &[u8], domain: DomainId, listed: &BadBlock) -> bool {
        let found = self
            .fingerprinter
            .fingerprints(&self.fingerprinter.key(domain), domain, block);
        found.first().map(|found| found.0) == listed.fingerprint
    }

    /// The fingerprint under which the index has a block, of which the first bytes are known.
    pub(crate) fn fingerprint_in(
        &self,
        index: &dyn IndexReader,
        first_bytes: [u8; 4],
        pba: Pba,
    ) -> Result<Option<Fingerprint>> {
        let mut from = Fingerprint::default();
        from.0[..4].copy_from_slice(&first_bytes);
        let mut from = Some(from);
        while let Some(start) = from {
            let rows = index.rows(start, ROWS_ALIKE_MAX)?;
            for (fingerprint, row) in &rows {
                if fingerprint.0[..4] != first_bytes {
                    return Ok(None);
                }
                if row.pba == pba {
                    return Ok(Some(*fingerprint));
                }
            }
            from = rows.last().and_then(|(last, _)| last.successor());
        }
        Ok(None)
    }
}
