//! Snapshots of which backups are made. The snapshot of a source's last backup, its *base*, stays in the
//! pool, because its layers determine which blocks the next backup has to read.

use super::identity::FoundDisk;
use super::link::Link;
use crate::foreground::random_seed;
use crate::output::Output;
use crate::session::Session;
use onefold_api::{
    BACKUP_SNAPSHOT, Error, ErrorKind, JobList, PoolStat, Result, SnapshotCreate, SnapshotDelete,
    SnapshotList, SnapshotName, SnapshotReply, VolumeList, VolumeStat,
};
use onefold_format::backup::{BackupNumber, Origin, PoolSnapshot, RepositoryId};
use onefold_format::{PoolId, VolumeId};
use onefold_jobs::{JobKind, JobState};
use onefold_repository::{KnownSource, Repository};
use onefold_store::{full_name, split_name};

/// How many of the newest backups are searched for one with a base.
const BACKUPS_LOOKED_AT: usize = 16;

/// A pool whose snapshots are backed up.
pub(super) struct Pool<'a> {
    pub(super) link: Link<'a>,
    block_size: u32,
    id: PoolId,
    /// Prefix of the snapshots that are taken for this repository.
    prefix: String,
    /// Snapshots that were taken but are not yet the base of a backup.
    taken: Vec<SnapshotReply>,
}

/// A backup whose base snapshot is compared with a new snapshot.
pub(super) struct Parent {
    pub(super) backup: BackupNumber,
    /// Name of the base snapshot.
    pub(super) base: String,
}

impl<'a> Pool<'a> {
    pub(super) fn new(link: Link<'a>, repository: RepositoryId) -> Result<Self> {
        let stat = link.call(&PoolStat {})?.stat;
        let id = PoolId::parse(&stat.pool_id)
            .ok_or_else(|| Error::failed(format!("'{}' is no id of a pool", stat.pool_id)))?;
        let repository: String = repository.to_string().chars().take(8).collect();
        Ok(Self {
            link,
            block_size: stat.block_size,
            id,
            prefix: format!("{BACKUP_SNAPSHOT}{repository}-"),
            taken: Vec::new(),
        })
    }

    /// Whether the daemon's job that reads for backups is paused.
    pub(super) fn is_paused(&self) -> Result<bool> {
        let Session::Remote(_) = self.link.session else {
            return Ok(false);
        };
        let list = self.link.call(&JobList {})?;
        let mut jobs = list.jobs.iter();
        Ok(jobs.any(|job| job.kind == JobKind::Copying && job.state == JobState::Paused))
    }

    /// Describes a volume as a disk to back up.
    pub(super) fn disk<'n>(&self, volume: &'n str) -> Result<FoundDisk<'n>> {
        let stat = VolumeStat {
            name: volume.to_owned(),
            exact: false,
        };
        let stat = self.link.call(&stat)?.stat;
        Ok(FoundDisk {
            name: volume,
            domain: stat.domain,
            block_size: self.block_size,
            origin: Origin::Volume {
                pool: self.id,
                volume: VolumeId(stat.number),
            },
        })
    }

    /// The names of all volumes.
    pub(super) fn volumes(&self) -> Result<Vec<String>> {
        let volumes = self.link.call(&VolumeList {})?.volumes.into_iter();
        Ok(volumes.map(|volume| volume.stat.name).collect())
    }

    /// Takes a snapshot of all volumes at the same moment. If that fails, because of one volume perhaps,
    /// takes a snapshot of each volume by itself. Returns the errors of volumes that have no snapshot.
    pub(super) fn take(&mut self, volumes: &[&str]) -> Vec<Error> {
        if volumes.is_empty() {
            return Vec::new();
        }
        match self.take_together(volumes) {
            Ok(()) => Vec::new(),
            Err(error) if volumes.len() == 1 => vec![error],
            Err(error) => {
                self.link.output.warn(format_args!(
                    "the snapshots are not of one moment, because they cannot be taken together: {error}"
                ));
                let failures = volumes
                    .iter()
                    .filter_map(|volume| self.take_together(&[volume]).err());
                failures.collect()
            }
        }
    }

    fn take_together(&mut self, volumes: &[&str]) -> Result<()> {
        // Use new names for each attempt: a daemon that went away may already have taken the snapshots.
        let made = self.link.outlast(|| {
            let number = random_seed();
            let names = volumes.iter().map(|volume| {
                let name = full_name(volume, &format!("{}{number:016x}", self.prefix));
                name.parse().map_err(Error::usage)
            });
            let names = names.collect::<Result<Vec<SnapshotName>>>()?;
            let create = SnapshotCreate { names };
            self.link.session.call(&create, &mut |_, _| {})
        })?;
        self.taken.extend(made.snapshots);
        Ok(())
    }

    /// The snapshot that was taken of a volume.
    pub(super) fn taken(&self, volume: &str) -> Result<SnapshotReply> {
        let mut taken = self.taken.iter();
        let found = taken.find(|snapshot| split_name(&snapshot.stat.name).0 == volume);
        found.cloned().ok_or_else(|| {
            Error::failed(format!("the snapshot that was taken of '{volume}' is gone"))
        })
    }

    pub(super) fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotReply>> {
        let list = SnapshotList {
            volume: Some(volume.to_owned()),
        };
        Ok(self.link.call(&list)?.snapshots)
    }

    pub(super) fn base_of(&self, snapshot: &SnapshotReply) -> PoolSnapshot {
        PoolSnapshot {
            pool: self.id,
            volume: VolumeId(snapshot.stat.volume_number),
            snapshot: VolumeId(snapshot.stat.number),
        }
    }

    /// The newest backup whose base is among these snapshots. The base must be in this pool, and its time
    /// must match: after a pool was rolled back to an older state, a new snapshot may have the same number.
    pub(super) fn parent(
        &self,
        repository: &Repository,
        source: &KnownSource,
        snapshots: &[SnapshotReply],
        output: &Output,
    ) -> Result<Option<Parent>> {
        let backups = repository.backups(source.id)?;
        for backup in backups.into_iter().rev().take(BACKUPS_LOOKED_AT) {
            let manifest = match repository.manifest(source.id, backup) {
                Ok(manifest) => manifest,
                // An older backup may still have a base.
                Err(error) if error.is_of_object() => {
                    output.warn(format_args!(
                        "{}@{backup} cannot be the parent of the next backup: {error}",
                        source.source.name
                    ));
                    continue;
                }
                Err(error) => return Err(Error::from(error)),
            };
            let Some(base) = manifest.base.filter(|base| base.pool == self.id) else {
                continue;
            };
            let found = snapshots.iter().find(|snapshot| {
                snapshot.stat.number == base.snapshot.0
                    && snapshot.stat.volume_number == base.volume.0
                    && snapshot.stat.created_unix_seconds == manifest.unix_seconds
            });
            if let Some(found) = found {
                let base = found.stat.name.clone();
                return Ok(Some(Parent { backup, base }));
            }
        }
        Ok(None)
    }

    /// Called when the backup of a snapshot is durable. Deletes the base snapshots of earlier backups. With
    /// `is_kept`, the snapshot becomes the base; otherwise `clear` deletes it.
    pub(super) fn backed_up(&mut self, snapshot: &SnapshotReply, is_kept: bool, output: &Output) {
        if is_kept {
            self.taken
                .retain(|taken| taken.stat.number != snapshot.stat.number);
        }
        let (volume, _) = split_name(&snapshot.stat.name);
        let snapshots = self.snapshots(volume).unwrap_or_else(|error| {
            output.warn(format_args!(
                "the snapshots of '{volume}' cannot be listed: {error}"
            ));
            Vec::new()
        });
        let begins = full_name(volume, &self.prefix);
        for before in snapshots {
            if before.stat.name.starts_with(&begins) && before.stat.number != snapshot.stat.number {
                self.delete(&before.stat.name, output);
            }
        }
    }

    /// Deletes the snapshots that are not the base of a backup.
    pub(super) fn clear(&mut self, output: &Output) {
        for snapshot in std::mem::take(&mut self.taken) {
            self.delete(&snapshot.stat.name, output);
        }
    }

    fn delete(&self, name: &str, output: &Output) {
        let deleted = name.parse().map_err(Error::usage).and_then(|name| {
            self.link.call(&SnapshotDelete {
                name,
                yes: true,
                force: true,
            })
        });
        match deleted {
            // A daemon that went away may already have deleted the snapshot.
            Err(error) if error.kind != ErrorKind::NotFound => output.warn(format_args!(
                "the snapshot '{name}', which was taken for a backup, is left: {error}"
            )),
            _ => {}
        }
    }
}
