//! Quotas and reservations: limits on a volume's use of the pool, and blocks that are kept for it.
//!
//! Both belong to a volume together with its snapshots, whose layers count their entries.
//!
//! - The **quota** bounds the entries of all layers that hold data, shared or not. So whether a
//!   write is refused does not depend on the data of other volumes.
//! - The **reservation** is a number of blocks that they can own. Free blocks are kept from others
//!   for the missing part. Only private blocks count as owned: a shared one takes a new block when
//!   it is rewritten, while others keep the old one. So a reservation holds when a volume becomes
//!   less similar to others.
//!
//! Invariant: the pool has as many free blocks as are kept for all volumes together. An operation
//! that takes a block for another volume, makes a private one shared, or reserves more, checks
//! first, holding the uncommitted state; released blocks are kept before they are free. The
//! invariant is broken for a while if a clone inherits blocks that a deleted snapshot owned, or if
//! the device loses blocks; then other volumes get none.
//!
//! All figures follow from the records, and are counted again when the pool is opened. They change
//! only under the uncommitted state; reading them needs no lock.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use onefold_format::{VolumeId, VolumeRecord, VolumeState};
use rustc_hash::FxHashMap;

use crate::error::{Result, StoreError, StoreErrorKind};
use crate::sync::{AtomicU64, Mutex, lock};

/// The use, limit and reservation of one volume, in blocks.
pub struct SpaceLimits {
    /// The number of entries that hold data.
    mapped: AtomicU64,
    /// The number of private entries.
    owned: AtomicU64,
    /// The most entries that may hold data.
    quota: AtomicU64,
    reserved: AtomicU64,
    /// Blocks kept for all volumes.
    unused_reservations: Arc<AtomicU64>,
}

/// The blocks kept for all volumes.
pub(super) struct SpaceLimitsTable {
    block_size: u64,
    unused_reservations: Arc<AtomicU64>,
    /// The limits of volumes whose layers exist.
    volumes: Mutex<FxHashMap<VolumeId, Weak<SpaceLimits>>>,
}

impl SpaceLimitsTable {
    pub(super) fn new(block_size: u32) -> Self {
        Self {
            block_size: block_size.into(),
            unused_reservations: Arc::default(),
            volumes: Mutex::default(),
        }
    }

    /// The limits of a volume according to its new record; for a snapshot, of its volume.
    pub(super) fn of(&self, record: &VolumeRecord) -> Arc<SpaceLimits> {
        let mut volumes = lock(&self.volumes);
        let id = record.snapshot_of.unwrap_or(record.id);
        let known = volumes.get(&id).and_then(Weak::upgrade);
        let space_limits = known.unwrap_or_else(|| {
            // Only occasionally, so that it costs little however many volumes there are.
            if volumes.len().is_power_of_two() {
                volumes.retain(|_, space_limits| space_limits.strong_count() > 0);
            }
            let space_limits = Arc::new(SpaceLimits::new(&self.unused_reservations));
            volumes.insert(id, Arc::downgrade(&space_limits));
            space_limits
        });
        if record.snapshot_of.is_none() {
            let is_in_use = record.state != VolumeState::Deleting;
            let settings = &record.settings;
            let (quota, reserved) = if is_in_use {
                (settings.quota_bytes, settings.reservation_bytes)
            } else {
                (0, 0)
            };
            let quota = match quota {
                0 => u64::MAX,
                bytes => bytes / self.block_size,
            };
            space_limits.set(quota, reserved / self.block_size);
        }
        space_limits
    }

    /// Blocks that are kept for all volumes.
    pub(crate) fn unused_reservations(&self) -> u64 {
        self.unused_reservations.load(Relaxed)
    }
}

impl SpaceLimits {
    fn new(unused_reservations: &Arc<AtomicU64>) -> Self {
        Self {
            mapped: AtomicU64::new(0),
            owned: AtomicU64::new(0),
            quota: AtomicU64::new(u64::MAX),
            reserved: AtomicU64::new(0),
            unused_reservations: Arc::clone(unused_reservations),
        }
    }

    /// The number of entries that hold data, in all layers of the volume and its snapshots.
    pub fn mapped(&self) -> u64 {
        self.mapped.load(Relaxed)
    }

    /// The number of private entries.
    pub fn owned(&self) -> u64 {
        self.owned.load(Relaxed)
    }

    /// The blocks reserved for the volume.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// The free blocks kept for this volume.
    pub fn unused_reservation(&self) -> u64 {
        self.reserved().saturating_sub(self.owned())
    }

    /// The free blocks kept for other volumes.
    pub fn unused_by_others(&self) -> u64 {
        self.unused_reservations
            .load(Relaxed)
            .saturating_sub(self.unused_reservation())
    }

    /// Counts more entries; or, given complements, fewer. The caller holds the uncommitted state.
    pub(super) fn add(&self, mapped: u64, owned: u64) {
        let before = self.unused_reservation();
        self.mapped.fetch_add(mapped, Relaxed);
        self.owned.fetch_add(owned, Relaxed);
        self.keep_instead_of(before);
    }

    fn set(&self, quota: u64, reserved: u64) {
        let before = self.unused_reservation();
        self.quota.store(quota, Relaxed);
        self.reserved.store(reserved, Relaxed);
        self.keep_instead_of(before);
    }

    fn keep_instead_of(&self, before: u64) {
        let more = self.unused_reservation().wrapping_sub(before);
        if more != 0 {
            self.unused_reservations.fetch_add(more, Relaxed);
        }
    }

    /// Whether the quota admits `more` entries that hold data. Exact while the uncommitted state is
    /// held.
    pub fn admit(&self, more: u64, block_size: u64) -> Result<()> {
        let (mapped, quota) = (self.mapped(), self.quota.load(Relaxed));
        if more == 0 || mapped.saturating_add(more) <= quota {
            return Ok(());
        }
        let message = format!(
            "it is at its quota: it and its snapshots hold {} bytes of {}; delete snapshots, trim \
             what is not needed, or give it more with `volume set --quota`",
            mapped * block_size,
            quota * block_size
        );
        Err(StoreError::new(StoreErrorKind::QuotaReached, message))
    }

    /// The free blocks that would be kept for the volume if it owned `fewer` blocks less and
    /// `reserved` blocks were reserved for it.
    pub fn unused_reservation_if(&self, fewer: u64, reserved: u64) -> u64 {
        reserved.saturating_sub(self.owned().saturating_sub(fewer))
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn space_limits(
        unused_reservations: &Arc<AtomicU64>,
        quota: u64,
        reserved: u64,
    ) -> SpaceLimits {
        let space_limits = SpaceLimits::new(unused_reservations);
        space_limits.set(quota, reserved);
        space_limits
    }

    #[test]
    fn what_is_kept_for_all_is_the_sum_whatever_happens() {
        let all = Arc::new(AtomicU64::new(0));
        let volumes = [0, 10, 25].map(|reserved| space_limits(&all, u64::MAX, reserved));
        let mut state = 12345_u64;
        for _ in 0..10_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let volume = &volumes[(state >> 33) as usize % 3];
            let owned = volume.owned.load(Relaxed);
            match (state >> 40) % 8 {
                0 => volume.set(u64::MAX, (state >> 50) % 40),
                1..=3 => volume.add(2, 1),
                _ if owned > 0 => volume.add(u64::wrapping_sub(0, 1), u64::wrapping_sub(0, 1)),
                _ => {}
            }
            let sum: u64 = volumes.iter().map(SpaceLimits::unused_reservation).sum();
            assert_eq!(all.load(Relaxed), sum);
            assert_eq!(volume.unused_by_others(), sum - volume.unused_reservation());
        }
    }

    #[test]
    fn a_quota_is_used_up_to_the_last_block() {
        let volume = space_limits(&Arc::default(), 10, 0);
        volume.add(9, 3);
        assert!(volume.admit(1, 4096).is_ok());
        let error = volume.admit(2, 4096).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::QuotaReached);
        // The quota may have been lowered since; a write that adds nothing is still admitted.
        volume.set(5, 0);
        assert!(volume.admit(0, 4096).is_ok() && volume.admit(1, 4096).is_err());
    }
}
