//! The host's space for free blocks, given back or kept ready, and knowing when blocks are free: see
//! `journal/src/host_space.rs`.

use onefold_format::{Pba, Provisioning};
use onefold_journal::{Epoch, HostSpace};
use onefold_metadata::{Result, SpareUse, StoreError, StoreErrorKind};

use super::Space;
use crate::shared::check_is_alone;

/// Blocks released before a moment: see [`Space::commit_released`].
#[derive(Debug, Clone, Copy)]
pub struct Released(Epoch);

impl Space {
    /// Whether a new block for which the host has no space makes other requests wait, so that spare blocks are worth their
    /// space.
    #[must_use]
    pub fn waits_to_allocate(&self) -> bool {
        self.host_space().waits_to_allocate()
    }

    /// Keeps `bytes` of spare blocks from the host, if there are as many.
    ///
    /// # Errors
    ///
    /// Where a request panicked while it changed the maps.
    pub fn keep_spare(&self, bytes: u64) -> Result<()> {
        self.host_space().keep(bytes / self.pool.block_size())
    }

    /// How spare blocks have been used.
    ///
    /// # Errors
    ///
    /// As [`Space::keep_spare`].
    pub fn spare_use(&self) -> Result<SpareUse> {
        self.host_space().spare_use()
    }

    /// Continues the search for spare blocks that an earlier process left. Returns whether it is not over.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map, and from querying the host.
    pub fn find_spare(&self) -> Result<bool> {
        self.host_space().find_spare()
    }

    /// Writes zeros to up to `bytes` of free blocks, if fewer are spare than are kept and neither pool nor host is short
    /// of space. Returns whether it wrote any.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map; I/O errors.
    pub fn preallocate(&self, bytes: u64) -> Result<bool> {
        self.host_space().preallocate(bytes)
    }

    /// Whether the host's file system is so short of space that free blocks should be given back at once.
    ///
    /// # Errors
    ///
    /// As [`Space::keep_spare`].
    pub fn is_host_short(&self) -> Result<bool> {
        self.host_space().is_short()
    }

    /// Bytes that the host's file system still has, with those that it has allocated for spare blocks; nothing on a device
    /// or in a cluster.
    ///
    /// # Errors
    ///
    /// As [`Space::keep_spare`].
    pub fn host_room_bytes(&self) -> Result<Option<u64>> {
        self.host_space().room_bytes()
    }

    /// Discards up to `bytes` of spare blocks that are not kept, rounded up to 64 KiB. Returns whether there may be
    /// more. A refusal by the host is not an error: it costs nothing but space.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    pub fn give_back(&self, bytes: u64) -> Result<bool> {
        self.host_space().give_back(bytes)
    }

    /// Whether the pool keeps all of its space from the host.
    #[must_use]
    pub fn provisioning(&self) -> Provisioning {
        self.pool.journal().data().provisioning()
    }

    /// Discards the next free blocks from `cursor` on, `bytes` at most, and moves the cursor. The
    /// cost depends on the space that the host has allocated, plus a check of each page of the
    /// free-space map. Returns whether there may be more.
    ///
    /// # Errors
    ///
    /// `Invalid` for a thick pool, which keeps its space; errors from reading the free-space map, and from querying the
    /// host.
    pub fn trim_step(&self, cursor: &mut Pba, bytes: u64) -> Result<bool> {
        check_is_alone(&self.pool, "trimming the pool")?;
        if self.provisioning() == Provisioning::Thick {
            let message = "the pool keeps all of its space, because it was created with --allocate";
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        let most = (bytes / self.pool.block_size()).max(1);
        self.host_space().trim_step(&mut cursor.0, most)
    }

    /// In a group of a shared pool, takes space extents if few blocks are free, or gives some to the pool if many are.
    /// Returns whether it did either.
    ///
    /// # Errors
    ///
    /// Errors of the cluster.
    pub fn balance(&self) -> Result<bool> {
        let group = self.pool.group();
        group.map_or(Ok(false), |group| group.leases().balance())
    }

    /// The blocks that can be handed out, as runs.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    #[cfg(feature = "simulation")]
    pub fn free_runs(&self) -> Result<Vec<onefold_metadata::PbaRun>> {
        self.pool.journal().free_space().free_runs()
    }

    /// Takes all but the first `kept` free blocks out of use until the next opening, so that a test's pool is nearly full.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    #[cfg(feature = "simulation")]
    pub fn leave_free(&self, kept: u64) -> Result<()> {
        self.pool.journal().free_space().leave_free(kept)
    }

    /// Gives all free blocks of a group to the pool.
    ///
    /// # Errors
    ///
    /// Errors of the cluster.
    pub fn give_all(&self) -> Result<()> {
        let group = self.pool.group();
        group.map_or(Ok(()), |group| group.leases().give_all())
    }

    /// Makes all releases until now durable. Released blocks are free once they have no readers:
    /// see [`Space::is_free`].
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn commit_released(&self) -> Result<Released> {
        self.pool.journal().commit_in_background()?;
        Ok(Released(self.pool.journal().reuse().epochs().current()))
    }

    /// Frees blocks without readers. Returns whether all of the `released` blocks are free.
    ///
    /// # Errors
    ///
    /// Errors from reading the free-space map.
    pub fn is_free(&self, released: Released) -> Result<bool> {
        self.pool.journal().reuse().reclaim()?;
        Ok(self.pool.journal().reuse().is_reclaimed(released.0))
    }

    fn host_space(&self) -> &HostSpace {
        self.pool.journal().reuse().host_space()
    }
}
