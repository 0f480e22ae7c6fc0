//! Reading blocks back, to fingerprint them.

use onefold_format::Pba;
use onefold_format::batch_page::BatchItem;
use onefold_index::{Fingerprint, FingerprintIndex};
use onefold_metadata::{Result, StoreError};
use rustc_hash::FxHashMap;

use crate::pool::Pool;

/// Bytes read back and hashed at a time: enough to hash many blocks at once, few enough to stay in
/// the processor's nearest cache, and to keep a kernel without preemption from delaying others for
/// long.
const READ_BYTES: usize = 256 << 10;

/// Fingerprints of blocks that were read back.
pub(super) struct Fingerprinted {
    /// All that were asked for, in order.
    pub(super) items: Vec<(Fingerprint, Pba)>,
    /// Unknown ones: their fingerprints are meaningless.
    pub(super) unreadable: Vec<Pba>,
}

impl Pool {
    /// Step 3: the fingerprints of blocks that are not written any more. Many are hashed at once,
    /// however scattered they are.
    pub(super) fn fingerprint_items(&self, items: &[BatchItem]) -> Result<Fingerprinted> {
        let mut found = Vec::with_capacity(items.len());
        let mut unreadable = Vec::new();
        let block_size = self.block_size() as usize;
        let mut buf = vec![0; READ_BYTES.min(items.len() * block_size)];
        for same_domain in items.chunk_by(|a, b| a.domain == b.domain) {
            let Some(BatchItem { domain, .. }) = same_domain.first() else {
                continue;
            };
            let key = self.fingerprinter.key(*domain);
            for piece in same_domain.chunks(READ_BYTES / block_size) {
                let blocks = &mut buf[..piece.len() * block_size];
                let mut rest = &mut *blocks;
                for run in piece.chunk_by(|a, b| a.pba + 1 == b.pba) {
                    let (bytes, after) = rest.split_at_mut(run.len() * block_size);
                    self.read_run_back(run[0].pba, bytes, &mut unreadable)?;
                    rest = after;
                }
                let fingerprints = self.fingerprinter.fingerprints(&key, *domain, blocks);
                found.extend(fingerprints.into_iter().zip(piece.iter().map(|i| i.pba)));
            }
        }
        Ok(Fingerprinted {
            items: found,
            unreadable,
        })
    }

    /// The same without the blocks whose fingerprints are known. The others are read in the order of the
    /// pool, and once, however many items have one.
    pub(super) fn fingerprint_unknown(
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

    /// Fingerprints of published blocks, bad ones too: those under which the index has them.
    pub(super) fn published_fingerprints(
        &self,
        index: &dyn FingerprintIndex,
        found: Fingerprinted,
    ) -> Result<Vec<(Fingerprint, Pba)>> {
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
        Ok(items)
    }

    /// Reads consecutive blocks, and notes which of them cannot be read.
    pub(crate) fn read_run_back(
        &self,
        first: Pba,
        buf: &mut [u8],
        unreadable: &mut Vec<Pba>,
    ) -> Result<()> {
        if self.read_if_readable(first, buf)? {
            return Ok(());
        }
        let blocks = buf.chunks_exact_mut(self.block_size() as usize);
        for (block, n) in blocks.zip(0..) {
            if !self.read_if_readable(first + n, block)? {
                unreadable.push(first + n);
            }
        }
        Ok(())
    }

    pub(crate) fn read_back(&self, pba: Pba, buf: &mut [u8]) -> Result<()> {
        let at = pba.0 * self.block_size();
        self.data().read_at(buf, at).map_err(|error| {
            let what = format_args!("reading block {pba} of the pool to fingerprint it");
            StoreError::io(what, error)
        })
    }
}
