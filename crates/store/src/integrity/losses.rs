//! Losses of a failed sync of the data: damaged volumes, and the acceptance of a loss.

use onefold_format::VolumeId;
use onefold_metadata::{Result, StoreError};

use crate::store::Store;

impl Store {
    /// Asks the host whether it has lost writes, and syncs the data if so: then they are known to be of
    /// this pool, or are not reported after its next opening. Waits for the host to write out all of the
    /// file system.
    ///
    /// # Errors
    ///
    /// `Io` where the host cannot be queried, or a write of this pool is lost: see
    /// [`Volume::flush`](crate::Volume::flush).
    pub fn heed_host_errors(&self) -> Result<()> {
        let has_lost = self
            .engine
            .has_lost_writes()
            .map_err(|error| StoreError::io("looking for data that the host has lost", error))?;
        if has_lost {
            self.pool.journal().sync_written()
        } else {
            Ok(())
        }
    }

    /// Accepts that a volume lost writes when a sync of the data failed, so that its flushes succeed again.
    /// Its lost blocks cannot be read until they are written. Durable when it returns. Returns whether the
    /// volume had lost anything.
    ///
    /// # Errors
    ///
    /// `NotFound`; I/O errors.
    pub fn accept_loss(&self, name: &str) -> Result<bool> {
        let _changing = self.catalogue.turn();
        let volume = self.volume(name)?;
        self.pool.losses().accept(self.pool.journal(), volume.id)
    }

    /// The volumes that lost answered writes when a sync of the data failed, and whose loss has not been
    /// accepted: each name, and when the loss was found, in seconds since the Unix epoch.
    #[must_use]
    pub fn damaged_volumes(&self) -> Vec<(String, u64)> {
        let damaged = self.pool.losses().damaged();
        let name = |id: VolumeId| self.volumes.by_id(id).map(|volume| volume.name());
        damaged
            .into_iter()
            .filter_map(|loss| Some((name(loss.volume)?, loss.found_unix_seconds)))
            .collect()
    }
}
