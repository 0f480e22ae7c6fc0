//! Changes of the catalogue of volumes, which are records like any other.

use std::sync::Arc;

use onefold_format::{LayerId, Record, VolumeId, VolumeRecord, VolumeState};
use onefold_journal::{Admit, StopsOnPanic};
use onefold_metadata::sync::{Mutex, MutexGuard, lock};
use onefold_metadata::{Blocking, Result, StoreError, StoreErrorKind};

use crate::pool::Pool;
use crate::shared::Group;

/// Writes the records of volumes.
pub(crate) struct CatalogueWriter {
    pool: Arc<Pool>,
    /// Held while the catalogue is changed: [`CatalogueWriter::turn`]. Taken after the job lock.
    changing: Mutex<()>,
}

/// A name for a volume that is not made yet.
#[must_use]
pub(crate) struct NameClaim<'a> {
    catalogue: &'a CatalogueWriter,
    name: String,
    is_kept: bool,
}

impl NameClaim<'_> {
    /// Notes that a volume has the name.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NameClaim<'_> {
    fn drop(&mut self) {
        // A change that failed may have made the volume all the same.
        if !self.is_kept && self.catalogue.check_name_is_free(&self.name).is_ok() {
            self.catalogue.release_name(&self.name);
        }
    }
}

impl CatalogueWriter {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            changing: Mutex::new(()),
        }
    }

    /// The turn to change the catalogue, from the check of a name to the record. A panic inside it
    /// stops all writes, because the catalogue in memory then matches the records only in part.
    pub(crate) fn turn(&self) -> (StopsOnPanic<'_>, MutexGuard<'_, ()>) {
        let turn = lock(&self.changing);
        let journal = self.pool.journal();
        (journal.stops_on_panic("a change of the catalogue"), turn)
    }

    /// Claims the name of a volume that is about to be made or renamed: no other has it, also none that is still being
    /// imported. Unless the claim is kept, the name is free again afterwards.
    pub(crate) fn claim_name(&self, name: &str) -> Result<NameClaim<'_>> {
        self.check_name_is_free(name)?;
        if let Some(shared) = self.pool.group().map(Group::shared) {
            shared.claim_name(name)?;
        }
        Ok(NameClaim {
            catalogue: self,
            name: name.to_owned(),
            is_kept: false,
        })
    }

    /// Notes that no volume has this name any more.
    pub(crate) fn release_name(&self, name: &str) {
        if let Some(shared) = self.pool.group().map(Group::shared) {
            shared.release_name(name);
        }
    }

    fn check_name_is_free(&self, name: &str) -> Result<()> {
        let metadata = self.pool.journal().metadata()?;
        let Some((_, taken)) = metadata.catalogue().by_name(name) else {
            return Ok(());
        };
        let state = match taken.state {
            VolumeState::Importing => "is being imported",
            VolumeState::Ready | VolumeState::Deleting => "exists already",
        };
        Err(StoreError::new(
            StoreErrorKind::Exists,
            format!("volume '{name}' {state}"),
        ))
    }

    /// Changes a volume's record if `admit` allows it.
    pub(crate) fn change_volume(
        &self,
        id: VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
        admit: Option<Admit<'_>>,
    ) -> Result<()> {
        let metadata = self.pool.journal().metadata()?;
        let found = metadata.catalogue().by_id(id);
        let Some((slot, mut volume)) = found.map(|(slot, volume)| (slot, volume.clone())) else {
            return Err(StoreError::new(
                StoreErrorKind::NotFound,
                format!("there is no volume {id}"),
            ));
        };
        drop(metadata);
        change(&mut volume);
        self.write(&[Record::VolumePut { slot, volume }], admit)
    }

    /// Removes a volume's record. Nothing may be mapped in the layer any more.
    pub(crate) fn remove_record(&self, id: VolumeId, layer: LayerId) -> Result<()> {
        let metadata = self.pool.journal().metadata()?;
        let slot = metadata.catalogue().by_id(id).map(|(slot, _)| slot);
        drop(metadata);
        let Some(slot) = slot else { return Ok(()) };
        let gone = Record::VolumeGone {
            slot,
            volume: id,
            layer,
        };
        self.write(&[gone], None)
    }

    /// Changes the catalogue, durably. The caller holds the turn, for which every command that makes or
    /// changes a volume waits, so this does not wait for an idle processor.
    pub(crate) fn write(&self, records: &[Record], admit: Option<Admit<'_>>) -> Result<()> {
        let _hurry = self.pool.background().hurry();
        let journal = self.pool.journal();
        journal.append(records, &[], Blocking::Yes, admit)?;
        journal.commit_in_background()
    }
}
