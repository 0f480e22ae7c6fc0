//! The disks that `backup create` reads: snapshots of a pool, through the store or through the daemon, and disk images.

mod link;
mod pool_disk;

use crate::foreground::random_seed;
use crate::image::reader::{ImageOptions, open_image};
use crate::output::Output;
use crate::pool::place::PoolPlace;
use crate::session::Session;
use link::Link;
use onefold_api::{
    Error, ErrorKind, JobList, PoolStat, Request, Result, SnapshotCreate, SnapshotDelete,
    SnapshotList, SnapshotName, SnapshotReply, VolumeList, VolumeStat,
};
use onefold_backup::{
    BackupError, DiskHost, HostSnapshot, HostVolume, ImageDisk, SnapshotDisk, SnapshotHost,
};
use onefold_format::{PoolId, VolumeId};
use onefold_jobs::{JobKind, JobState};
use onefold_store::full_name;
use pool_disk::PoolDisk;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The pool and the images of a command.
pub(crate) struct CommandDisks<'a> {
    /// The pool, if a disk is in one.
    pub(crate) pool: Option<SessionPool<'a>>,
    pub(crate) images: ImageOptions,
    pub(crate) output: &'a Output,
}

/// A pool that is open in this process or in a daemon.
pub(crate) struct SessionPool<'a> {
    link: Link<'a>,
    place: &'a PoolPlace,
    id: PoolId,
    block_size: u32,
}

impl DiskHost for CommandDisks<'_> {
    fn pool(&self) -> Option<&dyn SnapshotHost> {
        let pool = self.pool.as_ref();
        pool.map(|pool| pool as &dyn SnapshotHost)
    }

    fn open_image(&self, file: &Path) -> onefold_backup::Result<ImageDisk> {
        let failed = |e| Error::io(format_args!("cannot open {file:?}"), &e);
        let disk = ImageDisk::open(file, failed, || open_image(file, &self.images, self.output));
        disk.map_err(BackupError::of_host)
    }
}

impl<'a> SessionPool<'a> {
    /// The pool of a session. Requests outlast a restart of the daemon, unless the user interrupts.
    pub(crate) fn new(
        session: &'a Session,
        place: &'a PoolPlace,
        output: &'a Output,
        interrupted: &'a AtomicBool,
    ) -> Result<Self> {
        let link = Link {
            session,
            output,
            interrupted,
        };
        let stat = link.call(&PoolStat {})?.stat;
        let id = PoolId::parse(&stat.pool_id)
            .ok_or_else(|| Error::failed(format!("'{}' is no id of a pool", stat.pool_id)))?;
        Ok(Self {
            link,
            place,
            id,
            block_size: stat.block_size,
        })
    }

    fn call<R: Request>(&self, request: &R) -> onefold_backup::Result<R::Reply> {
        self.link.call(request).map_err(BackupError::of_host)
    }
}

impl SnapshotHost for SessionPool<'_> {
    fn pool(&self) -> PoolId {
        self.id
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn is_paused(&self) -> onefold_backup::Result<bool> {
        let Session::Remote(_) = self.link.session else {
            return Ok(false);
        };
        let list = self.call(&JobList {})?;
        let mut jobs = list.jobs.iter();
        Ok(jobs.any(|job| job.kind == JobKind::Copying && job.state == JobState::Paused))
    }

    fn volumes(&self) -> onefold_backup::Result<Vec<String>> {
        let volumes = self.call(&VolumeList {})?.volumes.into_iter();
        Ok(volumes.map(|volume| volume.stat.name).collect())
    }

    fn volume(&self, name: &str) -> onefold_backup::Result<HostVolume> {
        let volume = self.call(&VolumeStat {
            name: name.to_owned(),
            exact: false,
        })?;
        Ok(HostVolume {
            number: VolumeId(volume.stat.number),
            domain: volume.stat.domain,
        })
    }

    fn snapshots(&self, volume: &str) -> onefold_backup::Result<Vec<HostSnapshot>> {
        let list = self.call(&SnapshotList {
            volume: Some(volume.to_owned()),
        })?;
        list.snapshots.into_iter().map(found).collect()
    }

    fn take(&self, volumes: &[&str], prefix: &str) -> onefold_backup::Result<Vec<HostSnapshot>> {
        // Use new names for each attempt: a daemon that went away may already have taken the snapshots.
        let made = self.link.outlast(|| {
            let number = random_seed();
            let names = volumes.iter().map(|volume| {
                let name = full_name(volume, &format!("{prefix}{number:016x}"));
                name.parse().map_err(Error::usage)
            });
            let names = names.collect::<Result<Vec<SnapshotName>>>()?;
            let create = SnapshotCreate { names };
            self.link.session.call(&create, &mut |_, _| {})
        });
        let made = made.map_err(BackupError::of_host)?;
        made.snapshots.into_iter().map(found).collect()
    }

    fn delete(&self, snapshot: &HostSnapshot) -> onefold_backup::Result<()> {
        let name = snapshot.full_name.parse().map_err(Error::usage);
        let deleted = name.and_then(|name| {
            self.link.call(&SnapshotDelete {
                name,
                yes: true,
                force: true,
            })
        });
        match deleted {
            // A daemon that went away may already have deleted the snapshot.
            Err(error) if error.kind != ErrorKind::NotFound => Err(BackupError::of_host(error)),
            _ => Ok(()),
        }
    }

    fn open<'h>(
        &'h self,
        snapshot: &HostSnapshot,
    ) -> onefold_backup::Result<Box<dyn SnapshotDisk + 'h>> {
        let disk = PoolDisk::open(self.place, self.link, snapshot);
        Ok(Box::new(disk.map_err(BackupError::of_host)?))
    }
}

fn found(snapshot: SnapshotReply) -> onefold_backup::Result<HostSnapshot> {
    let SnapshotReply { stat, nbd_uri, .. } = snapshot;
    let name: std::result::Result<SnapshotName, String> = stat.name.parse();
    let name = name.map_err(|error| BackupError::of_host(Error::failed(error)))?;
    Ok(HostSnapshot {
        volume_name: name.volume().to_owned(),
        snapshot_name: name.snapshot().to_owned(),
        full_name: stat.name,
        volume: VolumeId(stat.volume_number),
        snapshot: VolumeId(stat.number),
        size_bytes: stat.size_bytes,
        created_unix_seconds: stat.created_unix_seconds,
        address: nbd_uri,
    })
}
