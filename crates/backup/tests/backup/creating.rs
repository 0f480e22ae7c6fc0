//! The disks of a command, in a pool in memory: which source each is, and from which base its backup goes on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;

use onefold_backup::{
    BackupError, Change, CreateAll, CreatedAll, Disk, DiskHost, HostSnapshot, HostVolume,
    ImageDisk, Options, Result, SnapshotDisk, SnapshotHost, SourceChoice, WantedDisk,
};
use onefold_format::backup::{BackupNumber, ChangedBy, ObjectName};
use onefold_format::{PoolId, VolumeId};
use onefold_repository::Access;

use crate::repairing::flip;
use crate::{BLOCK, MemoryDisk, Rig};

/// A pool in memory.
struct MemoryPool {
    id: PoolId,
    /// The content and the number of each volume, by name.
    volumes: RefCell<BTreeMap<String, (MemoryDisk, VolumeId)>>,
    /// The snapshots with their content.
    snapshots: RefCell<Vec<(HostSnapshot, MemoryDisk)>>,
    next: Cell<u64>,
    /// The time of the next snapshot.
    now: Cell<u64>,
}

impl MemoryPool {
    fn new(id: u8, volume: &str) -> Self {
        let disk = MemoryDisk::new(1..=100);
        Self {
            id: PoolId([id; 16]),
            volumes: RefCell::new([(volume.to_owned(), (disk, VolumeId(1)))].into()),
            snapshots: RefCell::default(),
            next: Cell::new(100),
            now: Cell::new(1000),
        }
    }

    fn write(&self, volume: &str, block: usize, content: u64) {
        self.volumes
            .borrow_mut()
            .get_mut(volume)
            .unwrap()
            .0
            .contents[block] = content;
    }

    fn rename(&self, from: &str, to: &str) {
        let mut volumes = self.volumes.borrow_mut();
        let volume = volumes.remove(from).unwrap();
        volumes.insert(to.to_owned(), volume);
        for (snapshot, _) in self.snapshots.borrow_mut().iter_mut() {
            to.clone_into(&mut snapshot.volume_name);
        }
    }
}

impl SnapshotHost for MemoryPool {
    fn pool(&self) -> PoolId {
        self.id
    }

    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn is_paused(&self) -> Result<bool> {
        Ok(false)
    }

    fn volumes(&self) -> Result<Vec<String>> {
        Ok(self.volumes.borrow().keys().cloned().collect())
    }

    fn volume(&self, name: &str) -> Result<HostVolume> {
        let volumes = self.volumes.borrow();
        let found = volumes.get(name).map(|(_, number)| HostVolume {
            number: *number,
            domain: "default".to_owned(),
        });
        found.ok_or_else(|| BackupError::failed(format!("no volume is named '{name}'")))
    }

    fn snapshots(&self, volume: &str) -> Result<Vec<HostSnapshot>> {
        let all = self.snapshots.borrow();
        let all = all.iter().map(|(snapshot, _)| snapshot);
        let of = all.filter(|snapshot| snapshot.volume_name == volume);
        Ok(of.cloned().collect())
    }

    fn take(&self, volumes: &[&str], prefix: &str) -> Result<Vec<HostSnapshot>> {
        self.now.set(self.now.get() + 1);
        let taken = volumes.iter().map(|volume| {
            let (disk, number) = self.volumes.borrow()[*volume].clone();
            self.next.set(self.next.get() + 1);
            let snapshot_name = format!("{prefix}{}", self.next.get());
            let snapshot = HostSnapshot {
                full_name: format!("{volume}@{snapshot_name}"),
                volume_name: (*volume).to_owned(),
                snapshot_name,
                volume: number,
                snapshot: VolumeId(self.next.get()),
                size_bytes: disk.size_bytes(),
                created_unix_seconds: self.now.get(),
                address: None,
            };
            self.snapshots.borrow_mut().push((snapshot.clone(), disk));
            snapshot
        });
        Ok(taken.collect())
    }

    fn delete(&self, snapshot: &HostSnapshot) -> Result<()> {
        let mut all = self.snapshots.borrow_mut();
        all.retain(|(other, _)| other.snapshot != snapshot.snapshot);
        Ok(())
    }

    fn open<'h>(&'h self, snapshot: &HostSnapshot) -> Result<Box<dyn SnapshotDisk + 'h>> {
        let disk = self.content(snapshot);
        Ok(Box::new(Opened { pool: self, disk }))
    }
}

impl MemoryPool {
    fn content(&self, snapshot: &HostSnapshot) -> MemoryDisk {
        let all = self.snapshots.borrow();
        let mut all = all.iter();
        let found = all.find(|(other, _)| other.snapshot == snapshot.snapshot);
        found.unwrap().1.clone()
    }
}

struct Opened<'a> {
    pool: &'a MemoryPool,
    disk: MemoryDisk,
}

impl Disk for Opened<'_> {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        self.disk.next_change(start)
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.disk.read(at, bytes)
    }
}

impl SnapshotDisk for Opened<'_> {
    fn compare_with(&mut self, since: &HostSnapshot) -> Result<()> {
        self.disk = self.disk.since(&self.pool.content(since));
        Ok(())
    }
}

impl DiskHost for MemoryPool {
    fn pool(&self) -> Option<&dyn SnapshotHost> {
        Some(self)
    }

    fn open_image(&self, file: &Path) -> Result<ImageDisk> {
        Err(BackupError::failed(format!("{file:?}")))
    }
}

impl Rig {
    fn back_up(&self, pool: &MemoryPool, volume: &str) -> CreatedAll {
        let opened = self.opened();
        let job = CreateAll {
            opened: &opened,
            host: pool,
            cache: None,
            choice: SourceChoice::default(),
            options: Options {
                tags: Vec::new(),
                host: String::new(),
                level: 1,
                threads: 2,
                memory_bytes: 1 << 20,
                temporary: std::env::temp_dir(),
            },
            is_full: false,
            keeps_base: true,
            unix_seconds: 7,
        };
        job.run(&[WantedDisk::Volume(volume.to_owned())], None)
            .unwrap()
    }

    /// Backs up the volume, which succeeds. Returns the parent and the number of blocks that were read.
    fn read_for(&self, pool: &MemoryPool, volume: &str) -> (Option<u64>, u64) {
        let made = self.back_up(pool, volume);
        assert!(made.failures.is_empty(), "{:?}", made.failures);
        let manifest = &made.backups[0].created.manifest;
        let is_by_layers = manifest.changed_by == ChangedBy::Layers;
        assert_eq!(is_by_layers, manifest.parent.is_some());
        let parent = manifest.parent.map(|parent| parent.0);
        (parent, manifest.counts.read_blocks)
    }
}

#[test]
fn a_backup_reads_what_changed_since_its_base_also_under_a_new_name() {
    let (rig, pool) = (Rig::new(&Access::Open), MemoryPool::new(1, "vm"));
    assert_eq!(rig.read_for(&pool, "vm"), (None, 100));
    pool.write("vm", 3, 1003);
    assert_eq!(rig.read_for(&pool, "vm"), (Some(1), 1));
    assert_eq!(pool.snapshots.borrow().len(), 1, "only the base stays");
    pool.rename("vm", "web");
    pool.write("web", 4, 1004);
    pool.write("web", 5, 1005);
    assert_eq!(rig.read_for(&pool, "web"), (Some(2), 2));
    let sources = rig.repository.sources().unwrap().disks;
    assert!(sources.iter().all(|known| known.source.name != "web"));
}

#[test]
fn all_is_read_when_the_base_is_gone_or_the_pool_went_back() {
    let (rig, pool) = (Rig::new(&Access::Open), MemoryPool::new(1, "vm"));
    rig.read_for(&pool, "vm");
    pool.snapshots.borrow_mut().clear();
    assert_eq!(rig.read_for(&pool, "vm"), (None, 100));

    // A snapshot of the pool's new history has the number of the base.
    pool.snapshots.borrow_mut()[0].0.created_unix_seconds += 5;
    assert_eq!(rig.read_for(&pool, "vm"), (None, 100));
}

#[test]
fn a_volume_of_another_pool_does_not_continue_the_source() {
    let rig = Rig::new(&Access::Open);
    let (one, other) = (MemoryPool::new(1, "vm"), MemoryPool::new(2, "vm"));
    rig.read_for(&one, "vm");
    let made = rig.back_up(&other, "vm");
    assert!(made.backups.is_empty() && made.failures.len() == 1);
    let failure = made.failures[0].to_string();
    assert!(failure.contains("--adopt"), "{failure}");
    assert!(other.snapshots.borrow().is_empty());
}

#[test]
fn an_older_backup_is_the_parent_when_the_newest_cannot_be_read() {
    let (rig, pool) = (Rig::new(&Access::Open), MemoryPool::new(1, "vm"));
    rig.read_for(&pool, "vm");
    let kept = pool.snapshots.borrow()[0].clone();
    pool.write("vm", 3, 1003);
    rig.read_for(&pool, "vm");
    // The base of the first backup was deleted, and is put back.
    pool.snapshots.borrow_mut().push(kept);
    let source = rig.repository.source("vm").unwrap().unwrap();
    let newest = ObjectName::Manifest(source.id, BackupNumber(2));
    flip(&rig.path(newest), 90);
    pool.write("vm", 4, 1004);
    assert_eq!(rig.read_for(&pool, "vm"), (Some(1), 2));
}
