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
        let known: Vec<_> = items
            .iter()
            .map(|item| cache.find(item.lba, item.pba))
            .collect();
        let unknown = items
            .iter()
            .zip(&known)
            .filter(|(_, known)| known.is_none());
        let unknown: Vec<BatchItem> = unknown.map(|(item, _)| *item).collect();
        let cached = (items.len() - unknown.len()) as u64;
        let read = self.fingerprint_items(&unknown)?;
        let mut rest = read.items.into_iter();
        let both = known.into_iter().zip(items);
        let all = both.filter_map(|(known, item)| match known {
            Some(fingerprint) => Some((fingerprint, item.pba)),
            None => rest.next(),
        });
        let found = Fingerprinted {
            items: all.collect(),
            unreadable: read.unreadable,
        };
        Ok((found, cached))
    }
}
