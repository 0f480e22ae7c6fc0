//! A volume of the store as an [`Export`]: a translation of types, without behaviour of its own.

use crate::export::{ChangedExtent, Changes, Export, ExportError, Extent, Failure, ZeroOptions};
use onefold_store::{StoreError, StoreErrorKind, Volume, Wait};
use std::ops::Range;
use std::sync::Arc;

impl Export for Volume {
    fn size_bytes(&self) -> u64 {
        Volume::size_bytes(self)
    }

    fn preferred_block_bytes(&self) -> u32 {
        self.block_size()
    }

    fn read_only(&self) -> bool {
        self.is_snapshot()
    }

    fn uses_idle_processors(&self) -> bool {
        Volume::works_aside(self)
    }

    fn read(&self, offset: u64, buf: &mut [u8], wait: Wait) -> Result<(), ExportError> {
        Ok(Volume::read(self, offset, buf, wait)?)
    }

    fn write(&self, offset: u64, data: &[u8], wait: Wait) -> Result<(), ExportError> {
        Volume::write(self, offset, data, wait).map_err(|error| waits_or_fails(self, wait, error))
    }

    fn flush(&self) -> Result<(), ExportError> {
        Ok(Volume::flush(self)?)
    }

    fn trim(&self, range: Range<u64>, wait: Wait) -> Result<(), ExportError> {
        Volume::trim(self, range.start, range.end - range.start, wait)
            .map_err(|error| waits_or_fails(self, wait, error))
    }

    /// Zeros are a change of the map, which is always fast; and since zero blocks are never
    /// stored there is no allocation that a client could ask to keep. Both options are met by
    /// ignoring them.
    fn write_zeroes(
        &self,
        range: Range<u64>,
        _options: ZeroOptions,
        wait: Wait,
    ) -> Result<(), ExportError> {
        Volume::write_zeroes(self, range.start, range.end - range.start, wait)
            .map_err(|error| waits_or_fails(self, wait, error))
    }

    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        wait: Wait,
    ) -> Result<Vec<Extent>, ExportError> {
        Ok(Volume::extents(self, range, extents_max, wait)?)
    }

    fn prefetch(&self, range: Range<u64>, scratch: &mut [u8]) -> Result<(), ExportError> {
        let len = range.end - range.start;
        Ok(Volume::prefetch(self, range.start, len, scratch)?)
    }
}

/// What is different in a volume from another one.
pub struct VolumeChanges {
    /// The volume, or a snapshot.
    pub volume: Arc<Volume>,
    /// What it is compared with.
    pub since: Arc<Volume>,
}

impl Changes for VolumeChanges {
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        wait: Wait,
    ) -> Result<Vec<ChangedExtent>, ExportError> {
        Ok(self.volume.changes(&self.since, range, extents_max, wait)?)
    }
}

/// For want of room requests wait, if the pool is set so.
fn waits_or_fails(volume: &Volume, wait: Wait, error: StoreError) -> ExportError {
    let waits = error.kind() == StoreErrorKind::NoSpace && volume.pauses_when_full();
    match wait {
        Wait::Yes if waits => ExportError::WaitForSpace(Box::new(error)),
        Wait::No if waits => ExportError::WouldWait,
        _ => error.into(),
    }
}

impl From<StoreError> for ExportError {
    fn from(error: StoreError) -> Self {
        let failure = match error.kind() {
            StoreErrorKind::WouldWait => return ExportError::WouldWait,
            StoreErrorKind::NoSpace | StoreErrorKind::QuotaReached => Failure::NoSpace,
            // The server asks nothing of a snapshot that it could not do, so the pool takes no writes
            // because one failed. That is no matter of permissions: a guest that is told EPERM goes on.
            StoreErrorKind::ReadOnly => Failure::Io,
            StoreErrorKind::Invalid => Failure::Invalid,
            StoreErrorKind::Gone | StoreErrorKind::NotFound => Failure::Gone,
            _ => Failure::Io,
        };
        ExportError::Failed {
            failure,
            source: Box::new(error),
        }
    }
}
