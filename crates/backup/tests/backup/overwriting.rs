//! A disk that exists becomes equal to a backup, and only blocks that differ are written.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use onefold_backup::{
    BackupError, DiskToOverwrite, Observer, ProgressUnit, RestoredBackup, Result, ShowProgress,
    Supervision,
};
use onefold_format::backup::{BackupNumber, ObjectName};
use onefold_repository::Access;

use crate::{BLOCK, MemoryDisk, Rig, days};

const FIRST: BackupNumber = BackupNumber(1);

/// A disk in memory that is overwritten.
struct Overwritten {
    bytes: Vec<u8>,
    written_bytes: usize,
    is_flushed: bool,
}

impl Overwritten {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            written_bytes: 0,
            is_flushed: false,
        }
    }
}

impl DiskToOverwrite for Overwritten {
    type Error = BackupError;

    fn size_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn next_data(&mut self, at: u64) -> Result<u64> {
        let rest = self.bytes[at as usize..].iter();
        let data = rest.zip(at..).find(|(byte, _)| **byte != 0);
        Ok(data.map_or(u64::MAX, |(_, at)| at))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let at = at as usize;
        bytes.copy_from_slice(&self.bytes[at..at + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let at = at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.written_bytes += bytes.len();
        self.is_flushed = false;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.is_flushed = true;
        Ok(())
    }
}

struct Quiet;

impl Observer for Quiet {
    fn note(&self, _message: &dyn fmt::Display) {}

    fn warn(&self, _message: &dyn fmt::Display) {}

    fn begin(&self, _label: &str, _unit: ProgressUnit) -> ShowProgress {
        Box::new(|_, _| {})
    }
}

fn supervision(is_interrupted: bool) -> Supervision {
    Supervision::new(Arc::new(Quiet), Arc::new(AtomicBool::new(is_interrupted)))
}

impl Rig {
    fn restored(&self, is_salvaged: bool) -> RestoredBackup {
        RestoredBackup::open(&self.blocks(), &self.source, FIRST, is_salvaged).unwrap()
    }

    fn remove_packs(&self) {
        let source = self.source.id;
        for (number, generation) in self.repository.packs(source).unwrap() {
            let pack = ObjectName::Pack {
                source,
                number,
                generation,
            };
            std::fs::remove_file(self.path(pack)).unwrap();
        }
    }
}

#[test]
fn only_blocks_that_differ_are_written() {
    let rig = Rig::new(&Access::Open);
    let days = days(1, 3000, 2);
    rig.create(&mut days[0].clone(), None).unwrap();
    let pairs = days[0].contents.iter().zip(&days[1].contents);
    let differing = pairs.filter(|(one, other)| one != other).count();
    assert!(differing > 0);

    let mut disk = Overwritten::new(days[1].bytes());
    // An image can end inside a sector of the disk.
    disk.bytes.extend([1; 512]);
    let changed = rig
        .restored(false)
        .overwrite(&mut disk, &supervision(false));
    assert_eq!(changed.unwrap(), (differing * BLOCK + 512) as u64);
    assert_eq!(disk.written_bytes, differing * BLOCK + 512);
    assert!(disk.is_flushed);
    let (restored, rest) = disk.bytes.split_at(3000 * BLOCK);
    assert!(restored == days[0].bytes(), "the disk is the backup");
    assert_eq!(rest, [0; 512]);

    let again = rig
        .restored(false)
        .overwrite(&mut disk, &supervision(false));
    assert_eq!(again.unwrap(), 0);
}

#[test]
fn an_interrupted_disk_is_restored_by_another_run() {
    let rig = Rig::new(&Access::Open);
    let backed_up = MemoryDisk::new(1..100);
    rig.create(&mut backed_up.clone(), None).unwrap();
    let mut disk = Overwritten::new(vec![0; 99 * BLOCK]);
    let interrupted = rig.restored(false).overwrite(&mut disk, &supervision(true));
    let message = interrupted.unwrap_err().to_string();
    assert!(
        message.contains("the same command restores the rest"),
        "{message}"
    );
    assert_eq!(disk.written_bytes, 0);
    let restored = rig
        .restored(false)
        .overwrite(&mut disk, &supervision(false));
    assert_eq!(restored.unwrap(), (99 * BLOCK) as u64);
    assert!(disk.bytes == backed_up.bytes());
}

#[test]
fn lost_blocks_keep_their_content_only_if_the_backup_is_salvaged() {
    let rig = Rig::new(&Access::Open);
    rig.create(&mut MemoryDisk::new(1..100), None).unwrap();
    rig.remove_packs();
    let before = MemoryDisk::new(1000..1099).bytes();
    let mut disk = Overwritten::new(before.clone());

    let damaged = rig.restored(false);
    let refused = damaged.check().unwrap_err().to_string();
    assert!(
        refused.contains("nothing was written; --salvage"),
        "{refused}"
    );
    let stopped = damaged.overwrite(&mut disk, &supervision(false));
    let stopped = stopped.unwrap_err().to_string();
    assert!(stopped.contains("--salvage restores the rest"), "{stopped}");

    let salvaged = rig.restored(true);
    salvaged.check().unwrap();
    let changed = salvaged.overwrite(&mut disk, &supervision(false));
    assert_eq!(changed.unwrap(), 0);
    assert!(disk.bytes == before, "lost blocks are kept");
    let lost = salvaged.lost().unwrap().ranges(0..u64::MAX);
    let all = 0..99;
    assert_eq!(lost, [all]);
}
