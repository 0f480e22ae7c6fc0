//! Step 3 of a batch: fingerprints, from the hash cache where it has them.

use onefold_format::LayerId;
use onefold_format::batch_page::BatchItem;
use onefold_metadata::Result;

use super::super::reading::Fingerprinted;
use crate::pool::Pool;

impl Pool {
    /// Step 3, without the blocks in the volume's hash cache.
    pub(super) fn fingerprints_or_cached(
        &self,
        layer: LayerId,
        items: &[BatchItem],
    ) -> Result<(Fingerprinted, u64)> {
        let layer = self.maps().layer(layer).ok();
        let Some(cache) = layer.and_then(|layer| layer.hash_cache()) else {
            return Ok((self.fingerprint_items(items)?, 0));
        };
        let known = |item: &BatchItem| cache.find(item.lba, item.pba);
        let known: Vec<_> = items.iter().map(known).collect();
        let cached = known.iter().flatten().count() as u64;
        Ok((self.fingerprint_unknown(items, &known)?, cached))
    }
}
