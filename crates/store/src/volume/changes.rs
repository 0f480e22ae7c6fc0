//! The changes between two snapshots or volumes of one family, from their maps alone.
//!
//! Two layers above a common one can differ only where a layer above it has an entry, *zero*
//! included: it was written since. Blocks for which both sides have the same block of the pool, or
//! both have none, have not changed after all; every other one is reported, although its content
//! may be unchanged.
//!
//! Invariants while merges and the finder run:
//! - A merge moves entries up, and they are in the upper layer before they leave the lower one. So
//!   the layers are read from the bottom: an entry that has left one of them is met in the next.
//! - The nearest common layer is one of the two themselves, or has two layers above it. Neither is
//!   merged while both volumes are in use, and whether they are, and in which layers, is checked
//!   again at the end: deleting a volume, or rolling it back to a snapshot, is announced before
//!   anything of its layer is released.
//! - The epoch is pinned for as long as addresses are compared: a block that one side released
//!   cannot be met with other content on the other side (P3).

use std::ops::Range;
use std::sync::Arc;

use onefold_format::Lba;
use onefold_metadata::{Blocking, Branches, Change, Layer, Result, StoreError, StoreErrorKind};

use super::read::Runs;
use super::{Extent, Volume};

/// A run of bytes to which the same happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedExtent {
    /// Length in bytes.
    pub len: u64,
    /// The change.
    pub change: Change,
}

impl Volume {
    /// The differences from `since`, in `range`, from its start: at most `extents_max` runs, so
    /// perhaps less than the whole range. Everything beyond the smaller one's end differs.
    /// Concurrent writes may or may not be included.
    ///
    /// # Errors
    ///
    /// `Invalid` where the two share no layer, or for a range beyond both ends; else as
    /// [`Volume::extents`].
    pub fn changes(
        &self,
        since: &Self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<ChangedExtent>> {
        let start = range.start;
        loop {
            let layers = [since.layer(), self.layer()];
            let compared = self.compare(since, &layers, range.clone(), extents_max, blocking);
            since.check_in_use()?;
            self.check_in_use()?;
            let [old, new] = &layers;
            if Arc::ptr_eq(old, &since.layer()) && Arc::ptr_eq(new, &self.layer()) {
                return compared.map_err(|error| self.during("comparing", start, error));
            }
        }
    }

    fn compare(
        &self,
        since: &Self,
        [old, new]: &[Arc<Layer>; 2],
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<ChangedExtent>> {
        let (old_size, new_size) = (since.size_bytes(), self.size_bytes());
        if range.is_empty() || range.end > old_size.max(new_size) {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                format!("there is nothing to compare from {range:?}"),
            ));
        }
        let Some(branches) = Branches::of(old, new) else {
            return Err(StoreError::new(
                StoreErrorKind::Invalid,
                format!(
                    "'{}' and '{}' have no snapshot in common, so their maps do not tell what \
                     differs",
                    since.name(),
                    self.name()
                ),
            ));
        };
        let mut runs = Runs::new(range.start, extents_max);
        let in_both = range.end.min(old_size).min(new_size);
        self.compare_both(&branches, in_both, &mut runs, blocking)?;
        let in_new = range.end.min(new_size);
        if runs.at() >= in_both && runs.at() < in_new {
            let beyond = runs.at()..in_new;
            for Extent { len, data } in self.extents_admitted(beyond, extents_max, blocking)? {
                let change = if data { Change::Data } else { Change::Zero };
                runs.add(runs.at() + len, change);
            }
        }
        if runs.at() >= in_new {
            runs.add(range.end, Change::Zero);
        }
        let extents = runs.finish().into_iter();
        Ok(extents
            .map(|(len, change)| ChangedExtent { len, change })
            .collect())
    }

    /// Adds the part before `end`, which both have.
    fn compare_both(
        &self,
        branches: &Branches,
        end: u64,
        runs: &mut Runs<Change>,
        blocking: Blocking,
    ) -> Result<()> {
        let block_size = self.pool.block_size();
        let mut segments = branches.segments();
        while runs.at() < end && !runs.is_full() {
            let from = Lba(runs.at() / block_size);
            let next = segments.next(self.pool.maps(), from.segment())?;
            let first = next.map_or(u64::MAX, |segment| segment.first().0 * block_size);
            runs.add(first.min(end), Change::Same);
            let Some(segment) = next.filter(|_| first < end) else {
                break;
            };
            // Addresses are compared with each other only inside a segment.
            let _pin = self.pool.journal().reuse().epochs().pin();
            let changes = branches.compare(self.pool.maps(), segment, blocking)?;
            for (change, lba) in changes.into_iter().zip(segment.first().0..) {
                runs.add(((lba + 1) * block_size).min(end), change);
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod tests {
    use onefold_engine::simulated::SimulatedEngine;
    use onefold_format::SegmentIndex;
    use onefold_format::map_page::EMPTY_SEGMENT;

    use super::*;
    use crate::{CreateOptions, OpenOptions, Store, VolumeOptions};

    /// A lookup was on its way there when it was removed.
    #[test]
    fn a_layer_that_was_removed_says_nothing_any_more() {
        let engine = Arc::new(SimulatedEngine::new(1));
        let options = CreateOptions {
            size_bytes: 16 << 20,
            log_bytes: 256 << 10,
            ..CreateOptions::default()
        };
        Store::create(&*engine, &options).unwrap();
        let (store, _) = Store::open(engine, &OpenOptions::default()).unwrap();
        store
            .create_volume("v", &VolumeOptions::new(1 << 20))
            .unwrap();
        let volume = store.volume("v").unwrap();
        volume.write(0, &[1; 4096], Blocking::Yes).unwrap();
        let names = [("v".to_owned(), "s".to_owned())];
        store.create_snapshots(&names).unwrap();
        store.pool.journal().checkpoint().unwrap();
        let below = volume.layer().below().unwrap();
        store.delete_snapshot("v", "s").unwrap();
        store.deletions().finish(&mut |_, _| {}).unwrap();
        volume.trim(0, 4096, Blocking::Yes).unwrap();
        let leaf = store
            .pool
            .maps()
            .leaf(&below, SegmentIndex(0), Blocking::Yes);
        assert!(leaf.unwrap().with(|entries| *entries == EMPTY_SEGMENT));
    }
}
