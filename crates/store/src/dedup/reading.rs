//! Reading blocks back, to fingerprint them.

use onefold_engine::ReadRange;
use onefold_format::Pba;
use onefold_format::batch_page::BatchItem;
use onefold_index::{Fingerprint, FingerprintIndex};
use onefold_metadata::{Result, StoreError, StoreErrorKind};
use rustc_hash::FxHashMap;

use crate::pool::Pool;

/// Bytes read back and hashed at a time, where the host may have them in memory: enough to hash many blocks at
/// once, few enough to stay in the processor's nearest cache, and to keep a kernel without preemption from delaying
/// others for long.
const READ_BYTES: usize = 256 << 10;

/// The same where every read waits for the disk: more of them at the same time.
const WAITING_READ_BYTES: usize = 4 << 20;

/// Fingerprints of blocks that were read back.
pub(super) struct Fingerprinted {
    /// All that were asked for, in order.
    pub(super) items: Vec<(Fingerprint, Pba)>,
    /// Unknown ones: their fingerprints are meaningless.
    pub(super) unreadable: Vec<Pba>,
}

impl Pool {
    /// Step 3: the fingerprints of blocks that are not written any more. They are read in the order of the pool,
    /// and many are hashed at once, however scattered they are.
    pub(super) fn fingerprint_items(&self, items: &[BatchItem]) -> Result<Fingerprinted> {
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

    /// How many bytes are best read and hashed at a time.
    pub(crate) fn read_bytes(&self) -> usize {
        match self.data().writes_wait() {
            true => WAITING_READ_BYTES,
            false => READ_BYTES,
        }
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

    /// Reads blocks in this order, all of them at the same time where the disk can do that, and notes which of them
    /// cannot be read.
    pub(crate) fn read_blocks_back(
        &self,
        blocks: &[Pba],
        buf: &mut [u8],
        unreadable: &mut Vec<Pba>,
    ) -> Result<()> {
        let block_size = self.block_size() as usize;
        let (mut ranges, mut rest) = (Vec::new(), buf);
        for run in blocks.chunk_by(|a, b| *a + 1 == *b) {
            let (buf, after) = rest.split_at_mut(run.len() * block_size);
            let offset = run[0].0 * self.block_size();
            ranges.push(ReadRange { buf, offset });
            rest = after;
        }
        if self.data().read_together(&mut ranges).is_ok() {
            return Ok(());
        }
        // One after the other, to find out which of them it is.
        for ReadRange { buf, offset } in ranges {
            self.read_run_back(Pba(offset / self.block_size()), buf, unreadable)?;
        }
        Ok(())
    }

    /// Reads consecutive blocks, and notes which of them cannot be read.
    fn read_run_back(&self, first: Pba, buf: &mut [u8], unreadable: &mut Vec<Pba>) -> Result<()> {
        let failure = match self.read_back(first, buf) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == StoreErrorKind::Io => error,
            Err(error) => return Err(error),
        };
        let before = unreadable.len();
        let blocks = buf.chunks_exact_mut(self.block_size() as usize);
        for (block, n) in blocks.zip(0..) {
            if !self.read_if_readable(first + n, block)? {
                unreadable.push(first + n);
            }
        }
        // Once for the run, and not again for blocks that are listed: it names the object or device that failed.
        let mut found = unreadable[before..].iter();
        if found.any(|pba| self.bad.get(*pba).is_none()) {
            tracing::error!("{failure}");
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
