//! Checks of a pool over all groups: nothing is found in a sound one, whatever happens at the same time, and each kind of damage
//! is named.

use std::sync::Arc;

use onefold_engine::Cluster;
use onefold_format::{GivenRun, GroupId, Shard, SpaceExtent};
use onefold_index::{Fingerprint, FingerprintIndex, IndexReader, Row, StreamId};
use onefold_store::{
    Blocking, Finding, Lba, Ready, Store, StoreError, Volume, VolumeOptions, VolumeSettings,
};

use crate::model::Content;
use crate::oracle;
use crate::world::{BLOCK, EXTENTS, HOSTS, SHARDS, Step, VOLUME_BLOCKS, World, Xorshift, bytes_of};

/// A stream that no group of these tests has.
const STRANGER: StreamId = StreamId(77);

/// The blocks of a space extent.
const EXTENT: u32 = 16_384;

/// A group that is open on a host, and its volume.
struct Open {
    group: GroupId,
    host: usize,
    store: Arc<Store>,
    volume: Arc<Volume>,
}

impl World {
    /// Checks the pool from a host, while guests write and jobs try to work. A sound pool has no findings.
    pub(crate) fn check(&mut self, host: usize) -> Step {
        // A scarce pool has fewer extents than groups have leased, which no real one has.
        if self.hosts[host].is_none() || self.is_scarce() || self.is_index_lost {
            return Ok(());
        }
        self.note(|| format!("host {host} checks the pool"));
        let found = self.interfered(|world, wait| world.findings(host, wait));
        match found {
            Ok(findings) if findings.is_empty() => {
                self.checks += 1;
                Ok(())
            }
            Ok(findings) => Err(format!("P6: a check of a sound pool finds {findings:?}")),
            Err(error) => self.excused(host, "checking", &error),
        }
    }

    /// Has a host rebuild the index, while guests write and jobs try to work.
    pub(crate) fn rebuild(&mut self, host: usize) -> Step {
        let Some(process) = &self.hosts[host] else {
            return Ok(());
        };
        let pool = Arc::clone(&process.pool);
        self.note(|| format!("host {host} rebuilds the index"));
        self.is_index_lost = true;
        // The end of the pool must be known.
        self.cluster.set_extents(EXTENTS);
        let rebuilt = self.interfered(|_, wait| pool.rebuild_index(wait, &mut |_, _| {}));
        if self.is_scarce() {
            self.cluster.set_extents(0);
        }
        match rebuilt {
            Ok(report) if report.left_out == 0 => {
                self.note(|| format!("  {report:?}"));
                self.is_index_lost = false;
                self.rebuilds += 1;
                self.given_back += report.given_back;
                Ok(())
            }
            Ok(report) => Err(format!("P2: two blocks had one content: {report:?}")),
            Err(error) => self.excused(host, "rebuilding the index", &error),
        }
    }

    /// Loses the index of a shard.
    pub(crate) fn lose_index(&mut self, shard: Shard) {
        for process in self.hosts.iter().flatten() {
            // The next owner, if any, would find the objects missing.
            let _ = process.pool.close_shard(shard);
        }
        if self.cluster.lose_index(shard) {
            self.note(|| format!("shard {shard} is lost"));
            self.is_index_lost = true;
        }
    }

    /// Does something that concerns all groups, while guests write and jobs try to work.
    fn interfered<T>(&mut self, work: impl FnOnce(&World, &mut dyn FnMut()) -> T) -> T {
        let mut random = Xorshift::new(self.random.below(1 << 60));
        let mut written = Vec::new();
        let open = self.open_groups();
        let mut wait = || {
            self.count_groups();
            if let Some(open) = open.get(random.below(HOSTS as u64 + 1) as usize) {
                let wrote = interfere(open, &mut random);
                // Nobody receives the answer of a process that has died.
                written.extend(wrote.map(|(lba, content, is_answered)| {
                    let is_answered = is_answered && !self.cluster.is_dead(open.host);
                    (open.group, lba, content, is_answered)
                }));
            }
        };
        let result = work(self, &mut wait);
        for (group, lba, content, is_answered) in written {
            self.wrote(group, lba, content, is_answered);
        }
        result
    }

    fn open_groups(&self) -> Vec<Open> {
        let groups = self.volumes.keys();
        let open = groups.filter_map(|group| {
            let (host, store, volume) = self.find(*group)?;
            Some(Open {
                group: *group,
                host,
                store,
                volume,
            })
        });
        open.collect()
    }

    fn count_groups(&self) {
        let processes = self.hosts.iter().flatten();
        processes.for_each(|process| process.pool.count_groups());
    }

    fn findings(&self, host: usize, wait: &mut dyn FnMut()) -> Result<Vec<String>, StoreError> {
        let Some(process) = &self.hosts[host] else {
            return Ok(Vec::new());
        };
        let mut findings = Vec::new();
        let mut report = |finding: Finding| findings.push(finding.message);
        process.pool.check(wait, &mut report, &mut |_, _| {})?;
        Ok(findings)
    }

    /// The findings in a pool at rest.
    fn found(&self) -> Vec<String> {
        self.findings(0, &mut || self.count_groups()).unwrap()
    }

    fn index(&self, fingerprint: Fingerprint) -> Arc<onefold_index::hash::HashIndex> {
        let shard = onefold_format::index_message::shard_of(&fingerprint.0, SHARDS);
        let mut processes = self.hosts.iter().flatten();
        processes
            .find_map(|process| process.pool.shard_index(shard))
            .unwrap()
    }

    /// The rows of the index.
    pub(crate) fn rows(&self) -> Vec<(Fingerprint, Row)> {
        let rows = (0..SHARDS).flat_map(|shard| {
            let mut processes = self.hosts.iter().flatten();
            let index = processes.find_map(|process| process.pool.shard_index(Shard(shard)));
            index.unwrap().rows(Fingerprint::default(), 1000).unwrap()
        });
        rows.collect()
    }
}

/// Something that a guest or a job of a group does during a check. Returns what was written, and whether the store answered.
fn interfere(open: &Open, random: &mut Xorshift) -> Option<(u64, Content, bool)> {
    let Open { store, volume, .. } = open;
    match random.below(7) {
        0 | 1 => {
            let (lba, content) = (random.below(VOLUME_BLOCKS), random.below(12));
            let written = volume.write(lba * BLOCK, &bytes_of(content), Blocking::Yes);
            return Some((lba, content, written.is_ok()));
        }
        2 => drop(store.dedup().collect_batch()),
        3 => drop(store.dedup().find_batch(volume, &mut Lba(0), Ready::All)),
        4 => drop(store.dedup().count_batch()),
        5 => drop(store.space().balance()),
        _ => drop(store.space().give_all()),
    }
    None
}

/// Four groups that share some blocks and have some of their own, at rest.
fn resting(seed: u64) -> World {
    let mut world = World::new(seed, false).unwrap();
    for group in (1..=4).map(GroupId) {
        let own = 1000 * group.0;
        world.write(group, 0, &[5, 6, 7, own, own + 1]).unwrap();
        world.flush(group).unwrap();
    }
    world.come_to_rest().unwrap();
    oracle::check(&world).unwrap();
    assert_eq!(world.found(), [""; 0]);
    world
}

/// Whether some finding has all of these parts.
fn names(findings: &[String], parts: &[&str]) -> bool {
    let has_all = |finding: &String| parts.iter().all(|part| finding.contains(part));
    findings.iter().any(has_all)
}

fn assert_names(world: &World, parts: &[&str]) {
    let findings = world.found();
    assert!(names(&findings, parts), "{parts:?} is not in {findings:?}");
}

#[test]
fn a_reference_too_many_and_one_too_few_are_named() {
    for is_more in [true, false] {
        let world = resting(1);
        let (fingerprint, row) = world.rows()[0];
        let items = [(fingerprint, row.pba)];
        let index = world.index(fingerprint);
        let counted = if is_more {
            index.increment(STRANGER, 1, &items).map(drop)
        } else {
            index.decrement(STRANGER, 1, &items).map(drop)
        };
        counted.unwrap();
        let (made, counts) = (row.references, row.references + 1);
        let counts = if is_more { counts } else { made - 1 };
        let text = if counts == 0 {
            format!("PBA {}: shared by entries, but not in the index", row.pba)
        } else {
            format!(
                "PBA {}: the index counts {counts} references, the maps of all groups make {made}",
                row.pba
            )
        };
        assert_names(&world, &[&text]);
        assert_eq!(world.found().len(), 1);
    }
}

/// A group that no host has leases an extent.
fn lease_to_nobody(world: &World) -> SpaceExtent {
    let exchanged = world.cluster.host(0).exchange(GroupId(77), 1, &[], 1);
    exchanged.unwrap().taken[0]
}

#[test]
fn leaked_blocks_are_named() {
    let world = resting(2);
    let first = lease_to_nobody(&world).first().0;
    let last = first + u64::from(EXTENT) - 1;
    assert_eq!(
        world.found(),
        [format!(
            "PBA {first} to {last}: leaked: no group has it, nor the pool"
        )]
    );
}

#[test]
fn a_rebuild_leaves_blocks_that_an_unknown_group_may_have() {
    let mut world = resting(3);
    let first = lease_to_nobody(&world).first().0;
    world.rebuild(0).unwrap();
    assert_eq!((world.rebuilds, world.given_back), (1, 0));
    assert_names(&world, &[&format!("PBA {first} to"), "leaked"]);
}

#[test]
fn a_groups_own_findings_name_volume_and_place() {
    let world = resting(6);
    // Every entry is beyond the end of this pool.
    world.cluster.set_extents(0);
    let findings = world.found();
    assert_eq!(findings.len(), 4 * 5 + world.rows().len());
    assert!(names(
        &findings,
        &["PBA ", ": in the index, and beyond the pool's end"]
    ));
    assert!(names(
        &findings,
        &[
            "group 2: volume 'vm1', LBA 4, PBA ",
            ": beyond the pool's end"
        ]
    ));
}

#[test]
fn a_row_of_a_group_that_is_gone_is_named() {
    let world = resting(3);
    let block = lease_to_nobody(&world).first();
    let fingerprint = Fingerprint([9; 16]);
    let counted = world
        .index(fingerprint)
        .increment(STRANGER, 1, &[(fingerprint, block)]);
    counted.unwrap();
    let counts = "the index counts 1 references, the maps of all groups make 0";
    assert_names(&world, &[&format!("PBA {block}: {counts}")]);
}

#[test]
fn an_extent_that_is_leased_twice_and_a_block_in_two_custodies_are_named() {
    let world = resting(4);
    let (_, store, _) = world.find(GroupId(1)).unwrap();
    while store.space().balance().unwrap() {}
    let free = store.space().free_runs().unwrap();
    let extent = free
        .iter()
        .find_map(|run| whole_extent(run.start.0, run.count));
    let extent = extent.unwrap();
    let given = GivenRun {
        pba: extent.first(),
        count: EXTENT,
    };
    let exchanged = world.cluster.host(0).exchange(GroupId(78), 1, &[given], 0);
    exchanged.unwrap();
    assert_names(
        &world,
        &[
            "the pool can lease the blocks to any group",
            "free in group 1",
        ],
    );
    // So much that it is leased again.
    let (_, other, _) = world.find(GroupId(2)).unwrap();
    let reserved = VolumeSettings {
        reservation_bytes: 2 << 30,
        ..VolumeSettings::default()
    };
    let options = VolumeOptions::new(4 << 30).with(reserved);
    other.create_volume("big", &options).unwrap();
    assert_names(
        &world,
        &[
            "free in group 1, and free in group 2",
            &format!("PBA {}:", extent.first()),
        ],
    );
}

/// A space extent within a run of blocks.
fn whole_extent(start: u64, count: u64) -> Option<SpaceExtent> {
    let extent = SpaceExtent(start.div_ceil(EXTENT.into()));
    let end = extent.first().0 + u64::from(EXTENT);
    (end <= start + count).then_some(extent)
}

#[test]
fn a_claim_without_a_row_is_named() {
    let mut world = resting(5);
    // The third group is in line: its write is a claim until it is counted.
    let (_, _, volume) = world.find(GroupId(3)).unwrap();
    let before = volume.inline_stat().hit_blocks;
    world.write(GroupId(3), 20, &[5]).unwrap();
    assert_eq!(volume.inline_stat().hit_blocks, before + 1);
    assert_eq!(world.found(), [""; 0]);
    for (number, (fingerprint, row)) in (1..).zip(world.rows()) {
        let items = vec![(fingerprint, row.pba); row.references as usize];
        let index = world.index(fingerprint);
        index.decrement(STRANGER, number, &items).unwrap();
    }
    let findings = world.found();
    assert_eq!(findings.len(), 3 + 2 * 4);
    let is_named = |text: &String| text.ends_with("shared by entries, but not in the index");
    assert!(findings.iter().all(is_named), "{findings:?}");
}
