//! The host's cache of tables: with it few tables are read, and whatever its state, backups are the same as without it.

use std::fs;
use std::path::PathBuf;

use onefold_format::backup::BackupNumber;
use onefold_repository::Access;

use crate::history::table_of;
use crate::{MemoryDisk, Rig, collect_files};

/// Contents that belong to a single day.
fn contents_of(day: u64) -> impl Iterator<Item = u64> {
    day * 1000 + 1..day * 1000 + 100
}

impl Rig {
    fn files_of_cache(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect_files(self.host.path(), &mut files);
        files.retain(|file| {
            file.extension()
                .is_some_and(|extension| extension == "tables")
        });
        files.sort();
        files
    }

    /// Makes backups of a disk that grows by new contents each day. Returns the last day.
    fn grow(&self, days: u64) -> MemoryDisk {
        let mut disk = MemoryDisk::default();
        for day in 0..days {
            disk.contents.extend(contents_of(day));
            self.create(&mut disk.clone(), None).unwrap();
        }
        disk
    }

    /// Makes the tables of these packs unreadable; the packs keep their bytes.
    fn damage_tables(&self, packs: impl IntoIterator<Item = u64>) {
        for pack in packs {
            let file = self.file(&format!("/{pack}.0"));
            let mut bytes = fs::read(&file).unwrap();
            let at = bytes.len() - 100;
            bytes[at] ^= 1;
            fs::write(&file, bytes).unwrap();
            fs::remove_file(table_of(&file)).unwrap();
        }
    }
}

#[test]
fn a_backup_of_little_reads_no_table_that_has_none_of_it() {
    let rig = Rig::new(&Access::Open);
    let before = rig.grow(12);
    // The cache does not have the last pack's table yet.
    rig.create(&mut before.clone(), None).unwrap();
    rig.damage_tables((0..12).filter(|pack| *pack != 7));
    let parent = Some(BackupNumber(13));
    rig.check_parent(&rig.source, BackupNumber(13)).unwrap();

    let mut disk = before.clone();
    (disk.contents[0], disk.contents[1]) = (7007, 99_999);
    let batch = rig.create_batch(&mut [(&rig.source, &mut disk.since(&before))], parent);
    let mut batch = batch.unwrap();
    assert_eq!(batch.damaged, [""; 0], "no other table is read");
    let made = batch.backups.remove(0).unwrap();
    assert_eq!(
        made.manifest.counts.new_blocks, 1,
        "7007 was found in pack 7"
    );
    assert_eq!(made.manifest.own_packs.len(), 13);

    fs::remove_dir_all(rig.host.path()).unwrap();
    fs::create_dir(rig.host.path()).unwrap();
    let read = rig.create_batch(&mut [(&rig.source, &mut disk.since(&before))], None);
    assert_eq!(read.unwrap().damaged.len(), 11, "without the cache all are");
}

#[test]
fn files_are_merged_and_hold_what_is_listed() {
    let rig = Rig::new(&Access::Open);
    let disk = rig.grow(40);
    assert!(rig.files_of_cache().len() < 6, "{:?}", rig.files_of_cache());
    rig.damage_tables(0..39);
    let made = rig.create(&mut MemoryDisk::new([50_000]), None).unwrap();
    assert_eq!(made.manifest.counts.new_blocks, 1);
    // The files of the cache together find all blocks that are stored.
    let batch = rig.create_batch(&mut [(&rig.source, &mut disk.clone())], None);
    assert_eq!(batch.unwrap().damaged.len(), 39);
}

#[test]
fn a_cache_that_is_damaged_costs_room_at_most() {
    let rig = Rig::new(&Access::Open);
    let before = rig.grow(5);
    let last = rig.create(&mut before.clone(), None).unwrap().backup;
    let mut random = fastrand::Rng::with_seed(1);
    for file in rig.files_of_cache() {
        let good = fs::read(&file).unwrap();
        let edges = [0, 40, 63, 64, 100, 127, good.len() - 1];
        let flips = (0..40).map(|_| random.usize(..good.len())).chain(edges);
        let flipped = flips.map(|at| {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            bad
        });
        let flipped: Vec<_> = flipped.collect();
        let cuts = [0, 63, 100, good.len() / 2, good.len() - 1];
        let cut = cuts.iter().map(|at| good[..*at].to_vec());
        for bad in flipped.into_iter().chain(cut) {
            let rig = rig.copied(&Access::Open);
            let name = file.file_name().unwrap();
            let of_copy = rig.files_of_cache().into_iter();
            let of_copy = of_copy.filter(|path| path.file_name() == Some(name));
            of_copy.for_each(|path| fs::write(path, &bad).unwrap());
            rig.check_parent(&rig.source, last).unwrap();
            let mut disk = before.clone();
            disk.contents.swap(3, 300);
            let made = rig.create(&mut disk.since(&before), Some(last)).unwrap();
            assert!(made.manifest.counts.new_blocks <= 2);
            assert!(rig.restore(made.backup).unwrap() == disk.bytes());
        }
    }
}

/// Neither a concurrent command nor the remains of a killed one get in the way.
#[test]
fn one_command_writes_at_a_time() {
    let rig = Rig::new(&Access::Open);
    rig.grow(3);
    let files = rig.files_of_cache();
    let folder = files[0].parent().unwrap();
    let left = folder.join(".incomplete-left");
    fs::write(&left, b"half a file").unwrap();
    let lock = fs::File::open(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    rig.create(&mut MemoryDisk::new(contents_of(3)), None)
        .unwrap();
    assert_eq!(rig.files_of_cache(), files);
    assert!(left.exists());
    drop(lock);
    rig.create(&mut MemoryDisk::new(contents_of(4)), None)
        .unwrap();
    assert_ne!(rig.files_of_cache(), files);
    assert!(!left.exists());
}

#[test]
fn what_is_cached_of_a_source_goes_with_the_source() {
    let rig = Rig::new(&Access::Open);
    rig.grow(2);
    let gone = rig.files_of_cache()[0]
        .parent()
        .unwrap()
        .with_file_name("0000000000000001");
    fs::create_dir(&gone).unwrap();
    fs::write(gone.join("1.tables"), b"").unwrap();
    rig.cache();
    assert!(!gone.exists() && !rig.files_of_cache().is_empty());
}
