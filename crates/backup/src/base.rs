//! Snapshots of which backups are made. The snapshot of a source's last backup, its *base*, stays in the
//! pool, because its layers determine which blocks the next backup has to read.

use onefold_format::backup::{BackupNumber, Origin, PoolSnapshot, RepositoryId};
use onefold_repository::{KnownSource, Repository};

use crate::error::{BackupError, Result};
use crate::host::{HostSnapshot, SnapshotHost};
use crate::identify::FoundDisk;
use crate::supervision::Supervision;

/// Prefix of the snapshots that backups take and manage; users do not rely on them.
pub const BACKUP_SNAPSHOT: &str = "onefold-backup-";

/// How many digits of a repository's id are in the names of the snapshots that are taken for it.
const ID_DIGITS: usize = 8;

/// How many of the newest backups are searched for one with a base.
const BACKUPS_LOOKED_AT: usize = 16;

/// A pool whose snapshots are backed up.
pub(crate) struct Bases<'a> {
    pub(crate) host: &'a dyn SnapshotHost,
    supervision: &'a Supervision,
    /// Prefix of the snapshots that are taken for this repository.
    prefix: String,
    /// Snapshots that were taken but are not yet the base of a backup.
    taken: Vec<HostSnapshot>,
}

/// A backup whose base snapshot is compared with a new snapshot.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) backup: BackupNumber,
    /// The base snapshot.
    pub(crate) base: HostSnapshot,
}

impl<'a> Bases<'a> {
    pub(crate) fn new(
        host: &'a dyn SnapshotHost,
        supervision: &'a Supervision,
        repository: RepositoryId,
    ) -> Self {
        let repository: String = repository.to_string().chars().take(ID_DIGITS).collect();
        Self {
            host,
            supervision,
            prefix: format!("{BACKUP_SNAPSHOT}{repository}-"),
            taken: Vec::new(),
        }
    }

    /// Describes a volume as a disk to back up.
    pub(crate) fn disk<'n>(&self, volume: &'n str) -> Result<FoundDisk<'n>> {
        let found = self.host.volume(volume)?;
        Ok(FoundDisk {
            name: volume,
            domain: found.domain,
            block_size: self.host.block_size(),
            origin: Origin::Volume {
                pool: self.host.pool(),
                volume: found.number,
            },
        })
    }

    /// Takes a snapshot of all volumes at the same moment. If that fails, because of one volume perhaps,
    /// takes a snapshot of each volume by itself. Returns the errors of volumes that have no snapshot.
    pub(crate) fn take(&mut self, volumes: &[&str]) -> Vec<BackupError> {
        if volumes.is_empty() {
            return Vec::new();
        }
        match self.take_together(volumes) {
            Ok(()) => Vec::new(),
            Err(error) if volumes.len() == 1 => vec![error],
            Err(error) => {
                self.supervision.warn(format_args!(
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
        self.taken.extend(self.host.take(volumes, &self.prefix)?);
        Ok(())
    }

    /// The snapshot that was taken of a volume.
    pub(crate) fn taken(&self, volume: &str) -> Result<HostSnapshot> {
        let mut taken = self.taken.iter();
        let found = taken.find(|snapshot| snapshot.volume_name == volume);
        found.cloned().ok_or_else(|| {
            BackupError::failed(format!("the snapshot that was taken of '{volume}' is gone"))
        })
    }

    pub(crate) fn base_of(&self, snapshot: &HostSnapshot) -> PoolSnapshot {
        PoolSnapshot {
            pool: self.host.pool(),
            volume: snapshot.volume,
            snapshot: snapshot.snapshot,
        }
    }

    /// The newest backup whose base is among these snapshots.
    pub(crate) fn parent(
        &self,
        repository: &Repository,
        source: &KnownSource,
        snapshots: &[HostSnapshot],
    ) -> Result<Option<Parent>> {
        let backups = repository.backups(source.id)?;
        for backup in backups.into_iter().rev().take(BACKUPS_LOOKED_AT) {
            let manifest = match repository.manifest(source.id, backup) {
                Ok(manifest) => manifest,
                // An older backup may still have a base.
                Err(error) if error.is_of_object() => {
                    self.supervision.warn(format_args!(
                        "{}@{backup} cannot be the parent of the next backup: {error}",
                        source.source.name
                    ));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let Some(base) = manifest.base else {
                continue;
            };
            if let Some(base) = self.find(&base, manifest.unix_seconds, snapshots) {
                let base = base.clone();
                return Ok(Some(Parent { backup, base }));
            }
        }
        Ok(None)
    }

    /// The base of a backup among these snapshots. The base must be in this pool, and its time
    /// must match: after a pool was rolled back to an older state, a new snapshot may have the same number.
    fn find<'s>(
        &self,
        base: &PoolSnapshot,
        unix_seconds: u64,
        snapshots: &'s [HostSnapshot],
    ) -> Option<&'s HostSnapshot> {
        snapshots.iter().find(|snapshot| {
            self.base_of(snapshot) == *base && snapshot.created_unix_seconds == unix_seconds
        })
    }

    /// Called when the backup of a snapshot is durable. Deletes the base snapshots of earlier backups. With
    /// `is_kept`, the snapshot becomes the base; otherwise `clear` deletes it.
    pub(crate) fn backed_up(&mut self, snapshot: &HostSnapshot, is_kept: bool) {
        if is_kept {
            self.taken
                .retain(|taken| taken.snapshot != snapshot.snapshot);
        }
        let volume = &snapshot.volume_name;
        let snapshots = self.host.snapshots(volume).unwrap_or_else(|error| {
            self.supervision.warn(format_args!(
                "the snapshots of '{volume}' cannot be listed: {error}"
            ));
            Vec::new()
        });
        for before in snapshots {
            if before.snapshot_name.starts_with(&self.prefix)
                && before.snapshot != snapshot.snapshot
            {
                self.delete(&before);
            }
        }
    }

    /// Deletes the snapshots that are not the base of a backup.
    pub(crate) fn clear(&mut self) {
        for snapshot in std::mem::take(&mut self.taken) {
            self.delete(&snapshot);
        }
    }

    fn delete(&self, snapshot: &HostSnapshot) {
        if let Err(error) = self.host.delete(snapshot) {
            let name = &snapshot.full_name;
            self.supervision.warn(format_args!(
                "the snapshot '{name}', which was taken for a backup, is left: {error}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use onefold_format::{PoolId, VolumeId};

    use super::*;
    use crate::host::{HostVolume, SnapshotDisk};
    use crate::supervision::tests::{Heard, heard};

    const REPOSITORY: RepositoryId = RepositoryId([0xab; 16]);
    const PREFIX: &str = "onefold-backup-abababab-";
    const OTHER_PREFIX: &str = "onefold-backup-cdcdcdcd-";

    /// A pool in memory.
    #[derive(Default)]
    struct MemoryPool {
        snapshots: RefCell<Vec<HostSnapshot>>,
        /// A volume of which no snapshot can be taken.
        broken: Option<&'static str>,
        /// Snapshots cannot be deleted.
        is_stuck: bool,
    }

    fn snapshot(volume_name: &str, snapshot_name: &str, number: u64) -> HostSnapshot {
        HostSnapshot {
            full_name: format!("{volume_name}@{snapshot_name}"),
            volume_name: volume_name.to_owned(),
            snapshot_name: snapshot_name.to_owned(),
            volume: VolumeId(1),
            snapshot: VolumeId(number),
            size_bytes: 4096,
            created_unix_seconds: 1000 + number,
            address: None,
        }
    }

    impl SnapshotHost for MemoryPool {
        fn pool(&self) -> PoolId {
            PoolId([1; 16])
        }

        fn block_size(&self) -> u32 {
            4096
        }

        fn is_paused(&self) -> Result<bool> {
            Ok(false)
        }

        fn volumes(&self) -> Result<Vec<String>> {
            Ok(Vec::new())
        }

        fn volume(&self, name: &str) -> Result<HostVolume> {
            Err(BackupError::failed(name))
        }

        fn snapshots(&self, volume: &str) -> Result<Vec<HostSnapshot>> {
            let all = self.snapshots.borrow();
            let of = all.iter().filter(|snapshot| snapshot.volume_name == volume);
            Ok(of.cloned().collect())
        }

        fn take(&self, volumes: &[&str], prefix: &str) -> Result<Vec<HostSnapshot>> {
            if let Some(broken) = self.broken.filter(|broken| volumes.contains(broken)) {
                return Err(BackupError::failed(format!("'{broken}' is broken")));
            }
            let mut all = self.snapshots.borrow_mut();
            let new = (all.len() as u64 + 1..).zip(volumes);
            let new =
                new.map(|(number, volume)| snapshot(volume, &format!("{prefix}{number}"), number));
            let new: Vec<_> = new.collect();
            all.extend(new.iter().cloned());
            Ok(new)
        }

        fn delete(&self, snapshot: &HostSnapshot) -> Result<()> {
            if self.is_stuck {
                return Err(BackupError::failed("it is stuck"));
            }
            self.snapshots
                .borrow_mut()
                .retain(|other| other != snapshot);
            Ok(())
        }

        fn open<'h>(&'h self, snapshot: &HostSnapshot) -> Result<Box<dyn SnapshotDisk + 'h>> {
            Err(BackupError::failed(&snapshot.full_name))
        }
    }

    impl MemoryPool {
        fn names(&self) -> Vec<String> {
            let all = self.snapshots.borrow();
            all.iter()
                .map(|snapshot| snapshot.full_name.clone())
                .collect()
        }
    }

    fn bases<'a>(pool: &'a MemoryPool, heard: &'a Heard) -> Bases<'a> {
        Bases::new(pool, &heard.supervision, REPOSITORY)
    }

    fn base(pool: u8, volume: u64, snapshot: u64) -> PoolSnapshot {
        PoolSnapshot {
            pool: PoolId([pool; 16]),
            volume: VolumeId(volume),
            snapshot: VolumeId(snapshot),
        }
    }

    #[test]
    fn a_base_is_found_by_its_numbers_whatever_its_name_is() {
        let (pool, heard) = (MemoryPool::default(), heard());
        let bases = bases(&pool, &heard);
        let there = [snapshot("vm", "a", 1), snapshot("renamed", "b", 2)];
        let found = |base: PoolSnapshot, unix_seconds| {
            let found = bases.find(&base, unix_seconds, &there);
            found.map(|snapshot| snapshot.full_name.as_str())
        };
        assert_eq!(found(base(1, 1, 2), 1002), Some("renamed@b"));
        assert_eq!(found(base(1, 1, 3), 1003), None, "it is gone");
        assert_eq!(found(base(2, 1, 2), 1002), None, "it is of another pool");
        assert_eq!(found(base(1, 7, 2), 1002), None, "it is of another volume");
        assert_eq!(found(base(1, 1, 2), 999), None, "the pool went back");
    }

    #[test]
    fn a_backup_with_a_base_keeps_it_and_deletes_the_one_before() {
        let (pool, heard) = (MemoryPool::default(), heard());
        pool.take(&["vm"], PREFIX).unwrap();
        pool.take(&["vm"], OTHER_PREFIX).unwrap();
        pool.take(&["vm"], "of-the-user").unwrap();
        let mut bases = bases(&pool, &heard);
        assert!(bases.take(&["vm"]).is_empty());
        bases.backed_up(&bases.taken("vm").unwrap(), true);
        bases.clear();
        let left = [
            format!("vm@{OTHER_PREFIX}2"),
            "vm@of-the-user3".to_owned(),
            format!("vm@{PREFIX}4"),
        ];
        assert_eq!(pool.names(), left);
    }

    #[test]
    fn without_a_base_no_snapshot_stays_and_a_failed_backup_keeps_the_one_before() {
        let (pool, heard) = (MemoryPool::default(), heard());
        let before = pool.take(&["vm", "db"], PREFIX).unwrap();
        let mut bases = bases(&pool, &heard);
        assert!(bases.take(&["vm", "db"]).is_empty());
        bases.backed_up(&bases.taken("vm").unwrap(), false);
        bases.clear();
        assert_eq!(pool.names(), [before[1].full_name.clone()]);
    }

    #[test]
    fn a_volume_without_a_snapshot_leaves_out_no_other() {
        let heard = heard();
        let pool = MemoryPool {
            broken: Some("db"),
            ..MemoryPool::default()
        };
        let mut bases = bases(&pool, &heard);
        let failures = bases.take(&["vm", "db"]);
        assert_eq!(failures.len(), 1);
        assert!(bases.taken("vm").is_ok() && bases.taken("db").is_err());
        let warnings = heard.warnings();
        assert!(warnings[0].contains("not of one moment"), "{warnings:?}");
    }

    #[test]
    fn a_snapshot_that_cannot_be_deleted_is_named() {
        let heard = heard();
        let pool = MemoryPool {
            is_stuck: true,
            ..MemoryPool::default()
        };
        let mut bases = bases(&pool, &heard);
        bases.take(&["vm"]);
        bases.clear();
        let warnings = heard.warnings();
        let name = format!("vm@{PREFIX}1");
        assert!(
            warnings[0].contains(&name) && warnings.len() == 1,
            "{warnings:?}"
        );
    }
}
