//! Checks before the set of volumes changes.
//!
//! A request runs them before its first change. Its plan runs the same checks, so that both are refused for the same
//! reasons.

use std::sync::Arc;

use onefold_format::VolumeSettings;
use onefold_format::catalogue_page::SPACE_LIMIT_BYTES;
use onefold_format::units::{SECTOR_BYTES, VOLUME_BLOCKS_MAX};
use onefold_metadata::{Result, StoreError, StoreErrorKind, display_bytes};

use crate::store::Store;
use crate::volume::Volume;

impl Store {
    /// Refuses every change of a pool that takes no writes.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, with the reason: a failure since the pool was opened, or a newer format.
    pub fn check_writable(&self) -> Result<()> {
        self.pool.journal().check_writable()
    }

    /// Makes the checks of [`Store::resize_volume`]. Returns the volume.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` for a snapshot and for an impossible size; `ReadOnly`.
    pub fn check_resizable(&self, name: &str, size_bytes: u64) -> Result<Arc<Volume>> {
        let volume = self.volume_proper(name)?;
        self.check_size(size_bytes)?;
        self.check_writable()?;
        Ok(volume)
    }

    /// Makes the checks of [`Store::delete_volume_and`]. Returns the volume after its snapshots, in the order in
    /// which they are deleted.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` for a snapshot; `Exists` for a volume with snapshots that are not deleted with it;
    /// `ReadOnly`.
    pub fn check_deletable(
        &self,
        name: &str,
        goes_along: impl Fn(&str) -> bool,
    ) -> Result<Vec<Arc<Volume>>> {
        let volume = self.volume_proper(name)?;
        let mut deleted = self.volumes.snapshots_of(&volume);
        let stay = deleted.iter().map(|snapshot| snapshot.name());
        let names: Vec<String> = stay.filter(|name| !goes_along(name)).collect();
        if !names.is_empty() {
            let message = format!(
                "volume '{name}' has snapshots: {}; delete them first, or with the volume (--snapshots)",
                names.join(", ")
            );
            return Err(StoreError::new(StoreErrorKind::Exists, message));
        }
        self.check_writable()?;
        deleted.push(volume);
        Ok(deleted)
    }

    /// Makes the checks of [`Store::delete_snapshot`] and [`Store::roll_back`]. Returns the snapshot.
    ///
    /// # Errors
    ///
    /// `NotFound`; `ReadOnly`.
    pub fn check_snapshot(&self, volume: &str, snapshot: &str) -> Result<Arc<Volume>> {
        let snapshot = self.snapshot(volume, snapshot)?;
        self.check_writable()?;
        Ok(snapshot)
    }

    pub(crate) fn check_size(&self, size_bytes: u64) -> Result<()> {
        let block_size = self.pool.block_size();
        let max = VOLUME_BLOCKS_MAX * block_size;
        let message = if size_bytes == 0 {
            "a volume needs a size above 0".to_owned()
        } else if size_bytes > max {
            format!(
                "a volume of {} exceeds the largest possible, {}",
                display_bytes(size_bytes),
                display_bytes(max)
            )
        } else if !size_bytes.is_multiple_of(SECTOR_BYTES) {
            format!(
                "a size of {size_bytes} bytes is not a multiple of a sector, {SECTOR_BYTES} bytes"
            )
        } else {
            return Ok(());
        };
        Err(StoreError::new(StoreErrorKind::Invalid, message))
    }

    pub(crate) fn check_space_limits(&self, settings: &VolumeSettings) -> Result<()> {
        let block_size = self.pool.block_size();
        for (what, bytes) in [
            ("quota", settings.quota_bytes),
            ("reservation", settings.reservation_bytes),
        ] {
            let message = if !bytes.is_multiple_of(block_size) {
                format!(
                    "a {what} of {bytes} bytes is not a multiple of the block size {block_size}"
                )
            } else if !SPACE_LIMIT_BYTES.contains(&bytes) {
                format!(
                    "a {what} of {} exceeds the largest possible, {}",
                    display_bytes(bytes),
                    display_bytes(*SPACE_LIMIT_BYTES.end())
                )
            } else {
                continue;
            };
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        Ok(())
    }

    /// A volume in use that is not a snapshot.
    pub(crate) fn volume_proper(&self, name: &str) -> Result<Arc<Volume>> {
        let volume = self.volume(name)?;
        if volume.is_snapshot() {
            let message = format!("'{name}' is a snapshot, not a volume");
            return Err(StoreError::new(StoreErrorKind::Invalid, message));
        }
        Ok(volume)
    }
}
