//! A damaged backup is restored except for its damaged blocks, which are listed exactly.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;

use onefold_backup::{LostBlocks, Restore, Result};
use onefold_format::backup::recipe::BLOCKS_PER_RECIPE_PAGE;
use onefold_format::backup::{BackupNumber, ObjectName, Target};
use onefold_repository::Access;

use crate::repairing::flip;
use crate::sharing::backed_up;
use crate::{BLOCK, MemoryDisk, Rig, days};

const FIRST: BackupNumber = BackupNumber(1);

impl Rig {
    fn pack(&self, number: u64) -> PathBuf {
        let source = self.source.id;
        let packs = self.repository.packs(source).unwrap();
        let (number, generation) = packs.into_iter().find(|pack| pack.0 == number).unwrap();
        self.path(ObjectName::Pack {
            source,
            number,
            generation,
        })
    }

    fn open(&self, backup: BackupNumber) -> Restore {
        Restore::open(&self.blocks(), &self.source, backup, "test").unwrap()
    }

    /// Restores in three ways, which find the same blocks lost. Lost blocks keep their initial bytes, 0xee.
    fn salvage(&self, backup: BackupNumber) -> (Vec<u8>, Vec<Range<u64>>) {
        let restore = self.open(backup);
        let size = restore.manifest().size_bytes as usize;
        let put = |bytes: &mut Vec<u8>, at: u64, data: &[u8]| {
            bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
        };
        let mut found = Vec::new();

        let (lost, mut bytes) = (LostBlocks::default(), vec![0; size]);
        let read = restore.read_all(Some(&lost), &mut |at, data| {
            put(&mut bytes, at, data);
            Ok(())
        });
        read.unwrap();
        found.push((bytes, lost));

        // With so little memory that recipe pages are processed one by one.
        let (lost, bytes) = (LostBlocks::default(), Mutex::new(vec![0; size]));
        let counted = restore.read_anywhere(2, 1, Some(&lost), &|at, data| {
            put(&mut bytes.lock().unwrap(), at, data);
            Ok(())
        });
        let all = restore.manifest().counts.logical_blocks * BLOCK as u64;
        let is_all = counted.unwrap().bytes == all;
        assert_eq!(is_all, lost.ranges(0..u64::MAX).is_empty());
        found.push((bytes.into_inner().unwrap(), lost));

        let (lost, mut bytes) = (LostBlocks::default(), vec![0; size]);
        // Pieces whose size does not divide a group.
        let step = (size / 700 / BLOCK * 7).max(7) * BLOCK;
        for (piece, at) in bytes.chunks_mut(step).zip((0..).step_by(step)) {
            restore.read_past_damage(at, piece, &lost).unwrap();
        }
        found.push((bytes, lost));

        let found = found.into_iter().map(|(mut bytes, lost)| {
            let ranges = lost.ranges(0..u64::MAX);
            assert_eq!(ranges.is_empty(), lost.reasons().is_empty());
            for range in &ranges {
                let end = (range.end as usize * BLOCK).min(size);
                bytes[range.start as usize * BLOCK..end].fill(0xee);
            }
            (bytes, ranges)
        });
        let found: Vec<_> = found.collect();
        let [first, others @ ..] = &found[..] else {
            unreachable!()
        };
        for (bytes, ranges) in others {
            assert_eq!(*ranges, first.1);
            assert!(*bytes == first.0);
        }
        first.clone()
    }

    /// The addresses at which a backup has these numbers.
    fn blocks_with(&self, backup: BackupNumber, numbers: Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        let mut block = 0;
        for run in self.recipe(backup).into_iter().flatten() {
            for n in 0..run.blocks {
                if let Target::Own(number) = run.target.plus(n)
                    && numbers.contains(&number)
                {
                    found.push(block + n);
                }
            }
            block += run.blocks;
        }
        found
    }

    /// Checks that exactly these blocks are lost.
    #[track_caller]
    fn loses(&self, backup: BackupNumber, disk: &MemoryDisk, blocks: &[u64]) {
        let (bytes, ranges) = self.salvage(backup);
        let lost: Vec<u64> = ranges.into_iter().flatten().collect();
        assert_eq!(lost, blocks);
        let mut expected = disk.bytes();
        let size = expected.len();
        for block in blocks {
            let end = ((*block as usize + 1) * BLOCK).min(size);
            expected[*block as usize * BLOCK..end].fill(0xee);
        }
        assert!(bytes == expected, "other data");
    }
}

/// The same disk with a partial last block.
fn cut(mut disk: MemoryDisk) -> MemoryDisk {
    disk.cut = 1000;
    disk
}

#[test]
fn what_a_damaged_group_or_pack_has_is_lost_and_nothing_else() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let rig = Rig::new(&access);
        let days: Vec<_> = days(5, 1001, 3).into_iter().map(cut).collect();
        for day in &days {
            rig.create(&mut day.clone(), None).unwrap();
        }
        // Each pair is a first number and an end.
        let check = |numbers: &[(u64, u64)]| {
            for (n, day) in (1..).zip(&days) {
                let backup = BackupNumber(n);
                let ranges = numbers.iter().map(|(first, end)| *first..*end);
                let blocks = ranges.flat_map(|range| rig.blocks_with(backup, range));
                let mut blocks: Vec<_> = blocks.collect();
                blocks.sort_unstable();
                assert_eq!(rig.restore(backup).is_ok(), blocks.is_empty());
                rig.loses(backup, day, &blocks);
            }
        };
        check(&[]);
        // Damages the first group of the first pack.
        flip(&rig.pack(0), 90);
        check(&[(0, 64)]);
        assert!(rig.open(FIRST).check_objects().is_ok());

        // A repair takes the group out; the table then lists its blocks as lost.
        rig.repair();
        check(&[(0, 64)]);
        let error = rig.open(FIRST).check_objects().unwrap_err();
        assert!(error.to_string().contains("is lost"), "{error}");

        // The pack of the second day is gone.
        std::fs::remove_file(rig.pack(1)).unwrap();
        check(&[(0, 64), (16_384, 2 * 16_384)]);
        assert!(rig.open(BackupNumber(2)).check_objects().is_err());

        // The first pack is truncated: according to the copy of its table, all of its groups are lost.
        let pack = std::fs::File::options().write(true).open(rig.pack(0));
        pack.unwrap().set_len(5000).unwrap();
        check(&[(0, 2 * 16_384)]);
        assert!(rig.open(FIRST).check_objects().is_err());
    }
}

#[test]
fn a_pack_to_which_blocks_were_moved_is_needed_like_their_own() {
    // Half of each disk is in both, and was stored twice.
    let disks = [MemoryDisk::new(1..301), MemoryDisk::new(151..451)];
    let mut estate = backed_up(&disks, &[&[0], &[1]]);
    estate.share();
    estate.prune_all();
    estate.rig.source = estate.sources[0].clone();
    let (rig, popular) = (&estate.rig, estate.popular().id);
    let pack = estate.pack_file(popular, 0);
    rig.loses(FIRST, &disks[0], &[]);
    rig.open(FIRST).check_objects().unwrap();

    flip(&pack, 90);
    rig.open(FIRST).check_objects().unwrap();
    let lost: Vec<u64> = rig.salvage(FIRST).1.into_iter().flatten().collect();
    assert_eq!(lost.len(), 64);
    rig.loses(FIRST, &disks[0], &lost);

    std::fs::remove_file(&pack).unwrap();
    rig.open(FIRST).check_objects().unwrap_err();
    rig.loses(FIRST, &disks[0], &(150..300).collect::<Vec<_>>());
}

#[test]
fn a_group_that_cannot_be_read_costs_no_group_that_is_read_with_it() {
    let rig = Rig::new(&Access::Open);
    let disk = MemoryDisk::new(1..257);
    rig.create(&mut disk.clone(), None).unwrap();
    let restore = rig.open(FIRST);
    // From here on the pack's table is in memory.
    restore.check_objects().unwrap();
    let pack = std::fs::File::options().write(true).open(rig.pack(0));
    let pack = pack.unwrap();
    let bytes = pack.metadata().unwrap().len();
    pack.set_len(bytes / 2).unwrap();
    let (lost, read) = (LostBlocks::default(), Mutex::new(0));
    let counts = restore.read_anywhere(1, 1 << 20, Some(&lost), &|_, bytes| {
        *read.lock().unwrap() += bytes.len() / BLOCK;
        Ok(())
    });
    counts.unwrap();
    let lost = lost.ranges(0..u64::MAX);
    assert_eq!(lost.len(), 1);
    let blocks = *read.lock().unwrap() as u64;
    assert_eq!(lost[0], blocks..256);
    assert!(blocks == 64 || blocks == 128, "{blocks}");
}

#[test]
fn a_damaged_page_of_the_recipe_costs_its_addresses() {
    let rig = Rig::new(&Access::Open);
    let page = BLOCKS_PER_RECIPE_PAGE;
    let content = |n: u64| if n % 5000 < 3 { n + 1 } else { 0 };
    let disk = cut(MemoryDisk::new((0..2 * page + 5001).map(content)));
    rig.create(&mut disk.clone(), None).unwrap();
    let sizes = rig.open(FIRST).manifest().recipe_pages.clone();
    let recipe = rig.path(ObjectName::Recipe(rig.source.id, FIRST));
    let end = std::fs::metadata(&recipe).unwrap().len() as usize;
    let last = sizes[2] as usize;
    flip(&recipe, end - last - 1);
    assert!(rig.open(FIRST).check_objects().is_err());
    rig.loses(FIRST, &disk, &(page..2 * page).collect::<Vec<_>>());
    flip(&recipe, end - 1);
    rig.loses(FIRST, &disk, &(page..2 * page + 5001).collect::<Vec<_>>());
}

#[test]
fn only_damage_is_passed() {
    let rig = Rig::new(&Access::Open);
    rig.create(&mut MemoryDisk::new(1..100), None).unwrap();
    let restore = rig.open(FIRST);
    let full = |_, _: &[u8]| -> Result<()> {
        Err(onefold_backup::BackupError::Receiver("full".to_owned()))
    };
    let lost = LostBlocks::default();
    let errors = [
        restore.read_all(Some(&lost), &mut { full }).unwrap_err(),
        restore
            .read_anywhere(1, 1 << 20, Some(&lost), &full)
            .unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("full"), "{error}");
    }
    assert_eq!(lost.ranges(0..u64::MAX), []);
}
