//! A volume of the store as an [`Export`]: a translation of types, without any behaviour.

use crate::export::{ChangedExtent, Changes, Export, ExportError, Extent, Failure, ZeroOptions};
use onefold_store::{Blocking, Hurry, PreparedRead, StoreError, StoreErrorKind, Volume};
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
        Volume::works_in_background(self)
    }

    fn hurry(&self) -> Option<Hurry> {
        Some(Volume::hurry_background(self))
    }

    fn read(&self, offset: u64, buf: &mut [u8], blocking: Blocking) -> Result<(), ExportError> {
        Ok(Volume::read(self, offset, buf, blocking)?)
    }

    fn write(&self, offset: u64, data: &[u8], blocking: Blocking) -> Result<(), ExportError> {
        Volume::write(self, offset, data, blocking)
            .map_err(|error| waits_or_fails(self, blocking, error))
    }

    fn prepared_bytes_max(&self) -> usize {
        Volume::prepared_bytes_max(self)
    }

    fn write_or_prepare(
        self: Arc<Self>,
        offset: u64,
        data: &[u8],
    ) -> Result<Option<PreparedWrite>, ExportError> {
        match Volume::write_or_prepare(&self, offset, data) {
            Ok(None) => Ok(None),
            Ok(Some(write)) => Ok(Some(PreparedWrite {
                write,
                volume: self,
            })),
            Err(error) => Err(waits_or_fails(&self, Blocking::No, error)),
        }
    }

    fn prepared_read_bytes_max(&self) -> usize {
        Volume::prepared_read_bytes_max(self)
    }

    fn prepare_read(self: Arc<Self>, offset: u64, len: usize) -> Option<PreparedRead> {
        Volume::prepare_read(&self, offset, len)
    }

    fn submit(&self) {
        Volume::submit(self);
    }

    fn flush(&self) -> Result<(), ExportError> {
        Ok(Volume::flush(self)?)
    }

    fn trim(&self, range: Range<u64>, blocking: Blocking) -> Result<(), ExportError> {
        Volume::trim(self, range.start, range.end - range.start, blocking)
            .map_err(|error| waits_or_fails(self, blocking, error))
    }

    /// Zeros are a change of the map, which is always fast; and since zero blocks are never stored,
    /// there is no allocation that a client could request to keep. Ignoring both options satisfies
    /// them.
    fn write_zeroes(
        &self,
        range: Range<u64>,
        _options: ZeroOptions,
        blocking: Blocking,
    ) -> Result<(), ExportError> {
        Volume::write_zeroes(self, range.start, range.end - range.start, blocking)
            .map_err(|error| waits_or_fails(self, blocking, error))
    }

    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<Extent>, ExportError> {
        Ok(Volume::extents(self, range, extents_max, blocking)?)
    }

    fn prefetch(&self, range: Range<u64>, scratch: &mut [u8]) -> Result<(), ExportError> {
        let len = range.end - range.start;
        Ok(Volume::prefetch(self, range.start, len, scratch)?)
    }
}

/// A prepared write to a volume, which only has to be started. If it is dropped, nothing is
/// written.
pub struct PreparedWrite {
    write: onefold_store::PreparedWrite,
    volume: Arc<Volume>,
}

impl PreparedWrite {
    /// Starts the write; it may wait for [`Export::submit`]. `ended` receives the result and the data, on a
    /// thread on which it must not block.
    pub(crate) fn start(self, ended: impl FnOnce(Result<(), ExportError>, &[u8]) + Send + 'static) {
        let Self { write, volume } = self;
        write.start(move |written, data| {
            let written = written.map_err(|error| waits_or_fails(&volume, Blocking::Yes, error));
            drop(volume);
            ended(written, data);
        });
    }
}

/// The differences between a volume and an earlier one.
pub struct VolumeChanges {
    /// The volume, or a snapshot.
    pub volume: Arc<Volume>,
    /// The earlier volume or snapshot.
    pub since: Arc<Volume>,
}

impl Changes for VolumeChanges {
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> Result<Vec<ChangedExtent>, ExportError> {
        Ok(self
            .volume
            .changes(&self.since, range, extents_max, blocking)?)
    }
}

/// The error for the client. For lack of room, the request waits if the pool is set so; for a cluster that is late to give
/// space, always.
fn waits_or_fails(volume: &Volume, blocking: Blocking, error: StoreError) -> ExportError {
    let waits = match error.kind() {
        StoreErrorKind::NoSpace => volume.pauses_when_full(),
        StoreErrorKind::Busy => true,
        _ => false,
    };
    match blocking {
        Blocking::Yes if waits => ExportError::WaitForSpace(Box::new(error)),
        Blocking::No if waits => ExportError::WouldBlock,
        _ => error.into(),
    }
}

impl From<StoreError> for ExportError {
    fn from(error: StoreError) -> Self {
        let failure = match error.kind() {
            StoreErrorKind::WouldBlock => return ExportError::WouldBlock,
            StoreErrorKind::NoSpace | StoreErrorKind::QuotaReached => Failure::NoSpace,
            // The server makes only requests to a snapshot that a snapshot allows, so the pool
            // takes no writes because one failed. That is not a matter of permissions: a guest that
            // gets EPERM would continue.
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
