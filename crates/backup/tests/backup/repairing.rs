//! The next backup with the same content stores damaged blocks again, and a repair then mends the older backups with
//! it.

use std::path::PathBuf;

use onefold_backup::{BackupError, RepairPlan, Repaired, Restore, Result, repair};
use onefold_format::backup::BackupNumber;
use onefold_repository::{Access, KnownSource, RepositoryErrorKind};

use crate::{MemoryDisk, Rig, days, source};

impl Rig {
    pub(crate) fn plan_repair(&self) -> RepairPlan {
        RepairPlan::new(&self.repository, &mut |_, _| Ok(())).unwrap()
    }

    pub(crate) fn repair(&self) -> Repaired {
        let mut all = Repaired::default();
        for sick in self.plan_repair().sick {
            let writer = self.repository.writer(sick.of.id, "repair").unwrap();
            let done = repair(&writer, &self.repository, &sick, 1, &mut |_, _| Ok(()));
            let done = done.unwrap();
            assert_eq!(done, sick.expected);
            all.damaged_blocks += done.damaged_blocks;
            all.mended_blocks += done.mended_blocks;
            all.missing_blocks += done.missing_blocks;
            all.tables += done.tables;
        }
        all
    }

    pub(crate) fn packs(&self) -> Vec<PathBuf> {
        let files = self.files().into_iter();
        let packs = files
            .filter(|path| path.to_string_lossy().contains("/packs/") && !path.ends_with("source"));
        packs.collect()
    }
}

pub(crate) fn flip(file: &PathBuf, at: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, &bytes).unwrap();
}

#[test]
fn the_next_backup_stores_what_was_damaged_and_mends_the_older_ones() {
    for access in [Access::Open, Access::KeyFile(b"a key".to_vec())] {
        let rig = Rig::new(&access);
        let days = days(5, 1000, 3);
        for day in &days {
            rig.create(&mut day.clone(), None).unwrap();
        }
        let wholes = |expected: &[bool]| {
            for ((n, day), whole) in (1..).zip(&days).zip(expected) {
                let restored = rig.restore(BackupNumber(n));
                assert_eq!(restored.is_ok(), *whole, "backup {n}");
                assert!(restored.is_err() || restored.unwrap() == day.bytes());
            }
        };
        // Damages the first and the third group of the first pack.
        let pack = &rig.packs()[0];
        flip(pack, 90);
        flip(pack, std::fs::metadata(pack).unwrap().len() as usize / 4);
        wholes(&[false, false, false]);
        let plan = rig.plan_repair();
        assert_eq!(plan.verified.findings.len(), 2);
        for finding in &plan.verified.findings {
            assert_eq!(finding.needed_by.len(), 3, "{finding:?}");
            assert!(finding.needed_by.iter().all(|needed| needed.blocks > 0));
        }
        // No other block has their content.
        let repaired = rig.repair();
        assert_eq!(
            repaired,
            Repaired {
                damaged_blocks: 128,
                mended_blocks: 0,
                missing_blocks: 128,
                ..Repaired::default()
            }
        );
        wholes(&[false, false, false]);
        let found = rig.verify(true);
        assert!(
            found
                .findings
                .iter()
                .all(|finding| finding.message.contains("not mended yet"))
        );
        assert_eq!(
            rig.repair(),
            Repaired {
                damaged_blocks: 0,
                mended_blocks: 0,
                missing_blocks: 128,
                ..Repaired::default()
            }
        );

        // A backup of the first day stores everything that was lost, under new numbers.
        let created = rig.create(&mut days[0].clone(), None).unwrap();
        assert_eq!(created.manifest.counts.new_blocks, 128);
        assert!(rig.restore(created.backup).unwrap() == days[0].bytes());
        assert_eq!(
            rig.repair(),
            Repaired {
                damaged_blocks: 0,
                mended_blocks: 128,
                missing_blocks: 0,
                ..Repaired::default()
            }
        );
        wholes(&[true, true, true]);
        assert!(rig.verify(true).findings.is_empty());
        assert!(rig.plan_repair().sick.is_empty());
    }
}

#[test]
fn popular_blocks_are_mended_from_any_source_of_the_domain() {
    let rig = Rig::new(&Access::Open);
    let other = rig.repository.add_source(source("other")).unwrap();
    let third = rig.repository.add_source(source("third")).unwrap();
    let disk = MemoryDisk::new(1..=640);
    let create = |sources: &[&KnownSource]| {
        let mut copies = vec![disk.clone(); sources.len()];
        let mut disks: Vec<_> = sources.iter().copied().zip(&mut copies).collect();
        let batch = rig.create_batch(&mut disks, None).unwrap();
        batch
            .backups
            .into_iter()
            .map(|made| made.unwrap().backup)
            .collect::<Vec<_>>()
    };
    create(&[&rig.source, &other]);
    let pack = rig.packs().remove(0);
    flip(&pack, 90);
    assert_eq!(
        rig.repair(),
        Repaired {
            damaged_blocks: 64,
            mended_blocks: 0,
            missing_blocks: 64,
            ..Repaired::default()
        }
    );
    // A source that is backed up alone stores the content for itself.
    create(&[&third]);
    assert_eq!(
        rig.repair(),
        Repaired {
            damaged_blocks: 0,
            mended_blocks: 64,
            missing_blocks: 0,
            ..Repaired::default()
        }
    );
    for known in [&rig.source, &other, &third] {
        assert!(rig.restore_of(known, BackupNumber(1)).unwrap() == disk.bytes());
    }
}

/// Wherever a pack is damaged, a full backup and a repair mend it, and no read ever returns other data.
#[test]
fn whatever_byte_of_a_pack_is_damaged_a_full_backup_and_repair_mend_it() {
    let made = Rig::new(&Access::Open);
    let disk = MemoryDisk::new((1..=200).chain(1..=20));
    made.create(&mut disk.clone(), None).unwrap();
    let len = std::fs::metadata(made.packs().remove(0)).unwrap().len() as usize;
    for at in (200..len)
        .step_by(97_003)
        .chain([0, 85, len - 2000, len - 5])
    {
        let rig = made.copied(&Access::Open);
        flip(&rig.packs().remove(0), at);
        rig.repair();
        let made = rig.create(&mut disk.clone(), None).unwrap();
        assert!(
            rig.restore(made.backup).unwrap() == disk.bytes(),
            "byte {at}"
        );
        rig.repair();
        let restored = rig.restore(BackupNumber(1));
        assert!(restored.unwrap() == disk.bytes(), "byte {at}");
        let findings = rig.verify(true).findings;
        assert!(findings.is_empty(), "byte {at}: {findings:?}");
    }
}

#[test]
fn a_backup_that_is_read_is_not_forgotten() {
    let rig = Rig::new(&Access::Passphrase(b"a passphrase".to_vec()));
    let disk = MemoryDisk::new(1..=100);
    let made = rig.create(&mut disk.clone(), None).unwrap();
    let forget = || -> Result<()> { Ok(rig.repository.forget(rig.source.id, made.backup)?) };
    let open = || Restore::open(&rig.blocks(), &rig.source, made.backup, "backup mount");
    let (first, second) = (open().unwrap(), open().unwrap());
    for reader in [first, second] {
        match forget() {
            Err(BackupError::Repository(error)) => {
                assert_eq!(error.kind(), RepositoryErrorKind::InUse);
                let who = format!("being read by process {}", std::process::id());
                assert!(error.to_string().contains(&who), "{error}");
                assert!(error.to_string().contains("(backup mount)"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        drop(reader);
    }
    forget().unwrap();
    assert_eq!(rig.repository.leftovers().unwrap().files, 0);
}
