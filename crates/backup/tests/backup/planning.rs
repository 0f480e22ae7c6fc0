//! Plans for a whole repository: what damage and a storage that went back leave out of them.

use std::fmt::Display;
use std::sync::Arc;

use onefold_backup::{
    ForgetPlan, Found, Observer, Opened, OpeningOptions, ProgressUnit, PruneAll, PrunedAll,
    RemovePlan, RepairAll, ShowProgress, Supervision, find_backup,
};
use onefold_format::backup::{BackupNumber, ObjectName};
use onefold_repository::{Access, RepositoryErrorKind};
use onefold_retention::{Reason, Rules};

use crate::history::three_disks;
use crate::pruning::ALL_WASTE;
use crate::repairing::flip;
use crate::{MemoryDisk, Result, Rig, source};

struct Silent;

impl Observer for Silent {
    fn note(&self, _message: &dyn Display) {}

    fn warn(&self, _message: &dyn Display) {}

    fn begin(&self, _label: &str, _unit: ProgressUnit) -> ShowProgress {
        Box::new(|_, _| ())
    }
}

impl Rig {
    /// Opens the repository as this host, which remembers how far its sources had come.
    pub(crate) fn opened(&self) -> Opened {
        let found = Found::find(OpeningOptions {
            root: self.folder.path().join("r"),
            state: Some(self.host.path().join("state")),
            trust: None,
            accept_rollback: false,
            is_to_change: true,
        });
        let supervision = Supervision::new(Arc::new(Silent), Arc::default());
        found.unwrap().open(&Access::Open, supervision).unwrap()
    }
}

fn prune(opened: &Opened, is_to_change: bool) -> Result<PrunedAll> {
    let job = PruneAll {
        opened,
        options: ALL_WASTE,
        grace: None,
        is_to_change,
    };
    job.run(&[])
}

fn last_one() -> Rules {
    Rules {
        last: Some(1),
        ..Rules::default()
    }
}

/// The numbers of the backups in a plan, and why they are kept.
fn planned(plan: &ForgetPlan) -> Vec<(u64, Vec<Reason>)> {
    let backups = plan.backups.iter();
    backups
        .map(|backup| (backup.number.0, backup.kept_by.clone()))
        .collect()
}

#[test]
fn rules_leave_backups_alone_that_cannot_be_read() {
    let rig = Rig::new(&Access::Open);
    for disk in &mut three_disks() {
        rig.create(disk, None).unwrap();
    }
    let number = BackupNumber(1);
    flip(&rig.path(ObjectName::Manifest(rig.source.id, number)), 90);
    let opened = rig.opened();
    let mut plan = ForgetPlan::by_rules(&opened, &[], &last_one()).unwrap();
    assert_eq!(planned(&plan), [(2, vec![]), (3, vec![Reason::Last])]);
    assert_eq!(plan.damaged.len(), 1);
    assert!(plan.carry_out(&opened).unwrap().is_empty());
    let left = opened.repository().backups(rig.source.id).unwrap();
    assert_eq!(left, [number, BackupNumber(3)]);

    // It can be forgotten by its name.
    let named = ForgetPlan::by_name(&opened, [("disk", Some(number)), ("disk", Some(number))]);
    let named = named.unwrap();
    assert_eq!(planned(&named), [(1, vec![])]);
    assert_eq!(named.backups[0].unix_seconds, None);
}

#[test]
fn a_protected_backup_is_kept_by_rules_and_refused_by_name() {
    let rig = Rig::new(&Access::Open);
    for disk in &mut three_disks() {
        rig.create(disk, None).unwrap();
    }
    let number = BackupNumber(1);
    rig.repository.protect(rig.source.id, number, true).unwrap();
    let opened = rig.opened();
    let plan = ForgetPlan::by_rules(&opened, &[], &last_one()).unwrap();
    let expected = [
        (1, vec![Reason::Protected]),
        (2, vec![]),
        (3, vec![Reason::Last]),
    ];
    assert_eq!(planned(&plan), expected);
    let named = ForgetPlan::by_name(&opened, [("disk", Some(number))]).unwrap_err();
    let removal = RemovePlan::new(&opened, "disk").unwrap_err();
    for refused in [named, removal] {
        assert_eq!(refused.kind(), RepositoryErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains("disk@1"), "{refused}");
    }
}

#[test]
fn nothing_is_planned_for_a_source_that_went_back() {
    let rig = Rig::new(&Access::Open);
    let mut disks = three_disks();
    rig.create(&mut disks[0], None).unwrap();
    let older = rig.copied(&Access::Open);
    rig.create(&mut disks[1], None).unwrap();
    assert!(!rig.opened().has_gone_back());

    let root = rig.folder.path().join("r");
    std::fs::remove_dir_all(&root).unwrap();
    crate::history::copy(&older.folder.path().join("r"), &root);
    let opened = rig.opened();
    assert!(opened.has_gone_back());
    let number = Some(BackupNumber(1));
    assert!(
        find_backup(&opened, "disk", number).is_ok(),
        "it is as it was"
    );
    let job = RepairAll {
        opened: &opened,
        level: 1,
        is_to_change: false,
    };
    let refused = [
        find_backup(&opened, "disk", None).err(),
        ForgetPlan::by_rules(&opened, &[], &last_one()).err(),
        ForgetPlan::by_name(&opened, [("disk", number)]).err(),
        RemovePlan::new(&opened, "disk").err(),
        prune(&opened, false).err(),
        prune(&opened, true).err(),
        job.run().err(),
    ];
    for (n, refused) in refused.into_iter().enumerate() {
        let refused = refused.unwrap_or_else(|| panic!("plan {n} was made"));
        assert_eq!(
            refused.kind(),
            RepositoryErrorKind::Damaged,
            "{n}: {refused}"
        );
    }
}

#[test]
fn a_damaged_source_is_left_out_and_the_others_are_pruned() {
    let rig = Rig::new(&Access::Open);
    let second = rig.repository.add_source(source("second")).unwrap();
    for contents in [1..200, 1000..1200] {
        let mut disk = MemoryDisk::new(contents);
        let batch = rig.create_batch(&mut [(&second, &mut disk)], None);
        batch.unwrap().backups.remove(0).unwrap();
    }
    rig.create(&mut MemoryDisk::new(5000..5200), None).unwrap();
    rig.repository.forget(second.id, BackupNumber(1)).unwrap();
    let manifest = rig.path(ObjectName::Manifest(rig.source.id, BackupNumber(1)));
    flip(&manifest, 90);
    let opened = rig.opened();
    for is_to_change in [false, true] {
        let done = prune(&opened, is_to_change).unwrap();
        let names = done.sources.iter();
        let names: Vec<_> = names.map(|pruned| &pruned.source.source.name[..]).collect();
        assert_eq!((names, done.left.len()), (vec!["second"], 1));
        let freed = done.sources[0].freed_bytes;
        assert_eq!(freed.is_some_and(|bytes| bytes > 0), is_to_change);
    }
}

#[test]
fn a_repair_changes_nothing_until_it_is_carried_out() {
    let rig = Rig::new(&Access::Open);
    rig.create(&mut MemoryDisk::new(1..=300), None).unwrap();
    flip(&rig.packs()[0], 90);
    let opened = rig.opened();
    let repaired = |is_to_change| {
        let job = RepairAll {
            opened: &opened,
            level: 1,
            is_to_change,
        };
        job.run().unwrap()
    };
    let first = repaired(false);
    let again = repaired(false);
    let done = repaired(true);
    for found in [&first, &again, &done] {
        let [(known, repaired)] = &found.sick[..] else {
            panic!("{found:?}");
        };
        assert_eq!(known.id, rig.source.id);
        assert_eq!(*repaired, first.sick[0].1, "the plan is what is done");
        assert!(repaired.damaged_blocks > 0 && !found.findings.is_empty());
    }
    assert_eq!(
        repaired(true)
            .sick
            .iter()
            .map(|(_, done)| done.damaged_blocks)
            .sum::<u64>(),
        0
    );
}
