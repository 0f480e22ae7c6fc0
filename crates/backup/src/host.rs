//! Where the disks that are backed up come from. A front end implements this for its pool and for its images, so that
//! the rest of this crate needs neither.

use std::path::Path;

use onefold_format::{PoolId, VolumeId};

use crate::disk::{Disk, ImageDisk};
use crate::error::Result;

/// A snapshot of a volume in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSnapshot {
    /// Name of the snapshot with its volume, as users write it.
    pub full_name: String,
    /// Name of the volume.
    pub volume_name: String,
    /// Name of the snapshot without the volume's name.
    pub snapshot_name: String,
    /// Number of the volume, never reused in the pool.
    pub volume: VolumeId,
    /// Number of the snapshot, never reused in the pool, unless the pool is rolled back to an older state.
    pub snapshot: VolumeId,
    /// Size of the snapshot.
    pub size_bytes: u64,
    /// When it was created, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// Address at which another process serves the snapshot, if one does.
    pub address: Option<String>,
}

/// A volume of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostVolume {
    /// Number of the volume.
    pub number: VolumeId,
    /// The domain in which the volume's blocks are shared.
    pub domain: String,
}

/// A pool whose snapshots are backed up. Errors are [`BackupError::Host`](crate::BackupError::Host).
pub trait SnapshotHost {
    /// Id of the pool.
    fn pool(&self) -> PoolId;

    /// Block size of the pool.
    fn block_size(&self) -> u32;

    /// Whether reads for backups are paused, so that a backup has to wait.
    ///
    /// # Errors
    ///
    /// If the pool cannot be asked.
    fn is_paused(&self) -> Result<bool>;

    /// The names of all volumes.
    ///
    /// # Errors
    ///
    /// If the pool cannot be asked.
    fn volumes(&self) -> Result<Vec<String>>;

    /// The volume with this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    fn volume(&self, name: &str) -> Result<HostVolume>;

    /// The snapshots of a volume.
    ///
    /// # Errors
    ///
    /// If there is no such volume.
    fn snapshots(&self, volume: &str) -> Result<Vec<HostSnapshot>>;

    /// Takes a snapshot of each volume, all at the same moment, with new names that begin with `prefix`.
    ///
    /// # Errors
    ///
    /// If one of the snapshots cannot be taken; then none is.
    fn take(&self, volumes: &[&str], prefix: &str) -> Result<Vec<HostSnapshot>>;

    /// Deletes a snapshot. One that is gone already is no error.
    ///
    /// # Errors
    ///
    /// If the snapshot stays.
    fn delete(&self, snapshot: &HostSnapshot) -> Result<()>;

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    ///
    /// If its data cannot be reached.
    fn open<'h>(&'h self, snapshot: &HostSnapshot) -> Result<Box<dyn SnapshotDisk + 'h>>;
}

/// A snapshot as a disk. Without [`SnapshotDisk::compare_with`], all its data counts as changed.
pub trait SnapshotDisk: Disk {
    /// Limits the disk's changes to those since a snapshot of the same volume.
    ///
    /// # Errors
    ///
    /// If the pool cannot determine the changes; then all data still counts.
    fn compare_with(&mut self, since: &HostSnapshot) -> Result<()>;
}

/// Opens the disks that a command names.
pub trait DiskHost {
    /// The pool, if the command has one.
    fn pool(&self) -> Option<&dyn SnapshotHost>;

    /// Opens a disk image or device.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    fn open_image(&self, file: &Path) -> Result<ImageDisk>;
}
