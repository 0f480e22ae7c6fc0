//! Quotas and reservations, to the block.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use onefold_engine::simulated::CrashKind;
use onefold_store::{
    Blocking, CreateOptions, DedupMode, SettingsChange, StoreErrorKind, VolumeOptions,
    VolumeSettings, VolumeStat,
};

use crate::common::{self, BLOCK, MEMORY, MIB, blocks, pool_of, snapshot};

/// Blocks of the pool, the label's included.
const POOL_BLOCKS: u64 = 2048;

/// Of these, the blocks for overwriting only.
const RESERVE: u64 = POOL_BLOCKS / 128;

/// Blocks for new data of volumes without a reservation.
const FREE: u64 = POOL_BLOCKS - 1 - RESERVE;

/// A pool, and requests to its volumes in blocks.
struct World {
    store: common::World,
}

impl World {
    fn new() -> Self {
        let options = CreateOptions {
            log_bytes: MIB,
            ..pool_of(POOL_BLOCKS * BLOCK)
        };
        Self {
            store: common::World::new(&options, MEMORY),
        }
    }

    fn crash(self) -> Self {
        Self {
            store: self.store.crash(CrashKind::PowerLoss),
        }
    }

    fn volume(&self, name: &str, quota: u64, reservation: u64) {
        let options = VolumeOptions::new(16 * MIB).with(VolumeSettings {
            quota_bytes: quota * BLOCK,
            reservation_bytes: reservation * BLOCK,
            ..VolumeSettings::default()
        });
        self.store.create_volume(name, &options).unwrap();
    }

    fn set(&self, name: &str, quota: Option<u64>, reservation: Option<u64>) -> StoreErrorKind {
        let change = SettingsChange {
            quota_bytes: quota.map(|blocks| blocks * BLOCK),
            reservation_bytes: reservation.map(|blocks| blocks * BLOCK),
            ..SettingsChange::default()
        };
        let set = self.store.set_volume(name, &change);
        // A success is as good as any kind that this cannot be.
        set.map_or_else(|error| error.kind(), |()| StoreErrorKind::WouldBlock)
    }

    fn write(&self, name: &str, lba: u64, content: u64) -> Result<(), StoreErrorKind> {
        let volume = self.store.volume(name).unwrap();
        let written = volume.write(lba * BLOCK, &blocks([content + 1]), Blocking::Yes);
        written.map_err(|error| error.kind())
    }

    /// Writes new blocks from `lba` on until one is refused. Returns how many were not, and why.
    fn fill(&self, name: &str, lba: u64) -> (u64, StoreErrorKind) {
        for n in 0.. {
            if let Err(kind) = self.write(name, lba + n, lba + n + 1_000_000) {
                return (n, kind);
            }
        }
        unreachable!("a volume has an end");
    }

    fn trim(&self, name: &str, lba: u64, count: u64) {
        let volume = self.store.volume(name).unwrap();
        volume
            .trim(lba * BLOCK, count * BLOCK, Blocking::Yes)
            .unwrap();
        volume.flush().unwrap();
        self.store.tidy(true).unwrap();
    }

    fn dedup(&self, name: &str) {
        common::dedup(&self.store, &self.store.volume(name).unwrap());
    }

    fn collect(&self) {
        self.store.deletions().finish(&mut |_, _| {}).unwrap();
        common::collect(&self.store).unwrap();
        self.store.tidy(true).unwrap();
    }

    fn stat(&self, name: &str) -> VolumeStat {
        self.store.volume_stat(name).unwrap()
    }

    fn assert_clean(&self) {
        assert_eq!(common::assert_clean(&self.store).leaked_blocks, 0);
        let stat = self.store.stat().unwrap();
        let kept: u64 = stat
            .volumes
            .iter()
            .map(|volume| volume.reserved_unused_bytes)
            .sum();
        assert_eq!(stat.reserved_unused_blocks * BLOCK, kept);
        assert!(kept <= stat.free_blocks * BLOCK, "{stat:?}");
    }
}

#[test]
fn a_quota_is_for_a_volume_and_its_snapshots() {
    let world = World::new();
    world.volume("a", 100, 0);
    assert_eq!(world.fill("a", 0), (100, StoreErrorKind::QuotaReached));
    // Existing blocks can be rewritten, and released ones can be reused.
    world.write("a", 7, 1).unwrap();
    world.trim("a", 0, 10);
    assert_eq!(world.fill("a", 200), (10, StoreErrorKind::QuotaReached));
    snapshot(&world.store, "a", "s");
    assert_eq!(world.write("a", 50, 2), Err(StoreErrorKind::QuotaReached));
    world.trim("a", 50, 1);
    assert_eq!(
        world.stat("a").mapped_bytes,
        100 * BLOCK,
        "the snapshot has it"
    );
    world.store.delete_snapshot("a", "s").unwrap();
    world.collect();
    assert_eq!(world.stat("a").mapped_bytes, 99 * BLOCK);
    let world = world.crash();
    assert_eq!(world.stat("a").mapped_bytes, 99 * BLOCK);
    assert_eq!(world.fill("a", 300), (1, StoreErrorKind::QuotaReached));
    assert_eq!(world.set("a", Some(60), None), StoreErrorKind::WouldBlock);
    world.write("a", 60, 3).unwrap();
    world.trim("a", 55, 40);
    assert_eq!(world.fill("a", 400), (0, StoreErrorKind::QuotaReached));
    world.trim("a", 95, 3);
    assert_eq!(world.fill("a", 400), (3, StoreErrorKind::QuotaReached));
    assert_eq!(world.set("a", Some(0), None), StoreErrorKind::WouldBlock);
    assert_eq!(world.fill("a", 500).1, StoreErrorKind::NoSpace);
    world.assert_clean();
}

#[test]
fn a_quota_counts_what_is_shared_and_a_clone_has_none() {
    let world = World::new();
    world.volume("a", 50, 0);
    world.volume("b", 0, 0);
    for lba in 0..50 {
        world.write("a", lba, 7).unwrap();
        world.write("b", lba, 7).unwrap();
    }
    world.dedup("b");
    world.dedup("a");
    world.collect();
    assert_eq!(world.store.stat().unwrap().physical_blocks, 1);
    assert_eq!(world.write("a", 50, 7), Err(StoreErrorKind::QuotaReached));
    world.store.clone_volume("a", "c").unwrap();
    assert_eq!(
        (
            world.stat("c").settings.quota_bytes,
            world.stat("c").mapped_bytes
        ),
        (0, 0)
    );
    world.write("c", 0, 8).unwrap();
    assert_eq!(world.write("a", 0, 8), Err(StoreErrorKind::QuotaReached));
    // Blocks that both have in common become the clone's.
    world.store.delete_volume("a").unwrap();
    world.collect();
    assert_eq!(world.stat("c").mapped_bytes, 50 * BLOCK);
    world.assert_clean();
}

#[test]
fn writers_together_get_no_more_than_the_quota() {
    for round in 0..10 {
        let world = World::new();
        world.volume("a", 333, 0);
        let written = AtomicU64::new(0);
        thread::scope(|scope| {
            for writer in 0..4 {
                let (world, written) = (&world, &written);
                scope.spawn(move || {
                    for n in 0..200 {
                        match world.write("a", n * 4 + writer, n + round) {
                            Ok(()) => drop(written.fetch_add(1, Ordering::SeqCst)),
                            Err(kind) => assert_eq!(kind, StoreErrorKind::QuotaReached),
                        }
                    }
                });
            }
        });
        assert_eq!(written.load(Ordering::SeqCst), 333);
        assert_eq!(world.stat("a").mapped_bytes, 333 * BLOCK);
        world.assert_clean();
    }
}

#[test]
fn what_is_reserved_is_there_when_everybody_else_has_filled_the_pool() {
    for crashes in [false, true] {
        let mut world = World::new();
        world.volume("a", 0, 600);
        world.volume("b", 0, 0);
        for lba in 0..100 {
            world.write("a", lba, lba).unwrap();
        }
        world.store.volume("a").unwrap().flush().unwrap();
        assert_eq!(world.stat("a").reserved_unused_bytes, 500 * BLOCK);
        assert_eq!(world.fill("b", 0), (FREE - 600, StoreErrorKind::NoSpace));
        // Overwriting blocks of a snapshot takes the reserve, and no kept blocks.
        snapshot(&world.store, "b", "s");
        for lba in 0..RESERVE {
            world.write("b", lba, 3).unwrap();
        }
        assert_eq!(world.write("b", 100, 3), Err(StoreErrorKind::NoSpace));
        world.store.volume("b").unwrap().flush().unwrap();
        if crashes {
            world = world.crash();
        }
        world.assert_clean();
        assert_eq!(world.fill("a", 100), (500, StoreErrorKind::NoSpace));
        // It keeps the blocks that it releases.
        world.trim("a", 0, 50);
        assert_eq!(world.write("b", 100, 3), Err(StoreErrorKind::NoSpace));
        assert_eq!(world.fill("a", 2000), (50, StoreErrorKind::NoSpace));
        world.assert_clean();
    }
}

#[test]
fn a_reservation_holds_when_a_volume_becomes_less_alike_to_others() {
    let world = World::new();
    world.volume("a", 0, 600);
    world.volume("b", 0, 0);
    for name in ["b", "a"] {
        for lba in 0..600 {
            world.write(name, lba, lba).unwrap();
        }
        world.dedup(name);
        world.collect();
    }
    assert_eq!(world.store.stat().unwrap().physical_blocks, 600);
    assert_eq!(
        world.stat("a").reserved_unused_bytes,
        600 * BLOCK,
        "all of its blocks are shared"
    );
    assert_eq!(world.fill("b", 1000).1, StoreErrorKind::NoSpace);
    for lba in 0..600 {
        world.write("a", lba, lba + 5000).unwrap();
    }
    world.collect();
    world.assert_clean();
}

#[test]
fn blocks_stay_private_as_long_as_no_other_could_be_kept_for_them() {
    let world = World::new();
    world.volume("a", 0, 600);
    world.volume("b", 0, 0);
    assert_eq!(world.set("b", Some(0), None), StoreErrorKind::WouldBlock);
    for lba in 0..600 {
        world.write("a", lba, lba).unwrap();
    }
    assert_eq!(world.fill("b", 0), (FREE - 600, StoreErrorKind::NoSpace));
    world.dedup("a");
    assert_eq!(world.stat("a").private_blocks, 600);
    // As many as there is room for.
    world.trim("b", 0, 100);
    world.dedup("a");
    assert_eq!(world.stat("a").private_blocks, 500);
    assert_eq!(world.fill("b", 0), (0, StoreErrorKind::NoSpace));
    world.trim("b", 100, 500);
    world.dedup("a");
    assert_eq!(world.stat("a").private_blocks, 0);
    assert_eq!(world.fill("b", 0), (0, StoreErrorKind::NoSpace));
    world.assert_clean();
}

#[test]
fn nothing_is_promised_twice() {
    let world = World::new();
    world.volume("a", 0, 1000);
    world.volume("b", 0, FREE - 1000);
    let too_much = VolumeOptions::new(MIB).with(VolumeSettings {
        reservation_bytes: BLOCK,
        ..VolumeSettings::default()
    });
    let error = world.store.create_volume("c", &too_much).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace, "{error}");
    assert!(world.store.volume("c").is_err());
    assert_eq!(world.set("a", None, Some(1001)), StoreErrorKind::NoSpace);
    assert_eq!(world.stat("a").settings.reservation_bytes, 1000 * BLOCK);
    // Nor can a pool shrink below its kept blocks.
    let error = world
        .store
        .space()
        .plan_shrink(POOL_BLOCKS / 2 * BLOCK)
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace, "{error}");
    assert_eq!(world.set("a", None, Some(999)), StoreErrorKind::WouldBlock);
    world.store.create_volume("c", &too_much).unwrap();
    // A clone has no reservation, and a deleted volume needs none.
    world.store.clone_volume("b", "d").unwrap();
    assert_eq!(world.stat("d").reserved_unused_bytes, 0);
    world.store.delete_volume("b").unwrap();
    assert_eq!(world.store.stat().unwrap().reserved_unused_blocks, 1000);
    assert_eq!(
        world.set("a", None, Some(FREE - 1)),
        StoreErrorKind::WouldBlock
    );
    world.collect();
    let world = world.crash();
    assert_eq!(world.store.stat().unwrap().reserved_unused_blocks, FREE);
    for (quota, reservation) in [(100, 0), (0, 4095), (1 << 61, 0), (0, 1 << 61)] {
        let options = VolumeOptions::new(MIB).with(VolumeSettings {
            quota_bytes: quota,
            reservation_bytes: reservation,
            dedup: DedupMode::Off,
            ..VolumeSettings::default()
        });
        let error = world.store.create_volume("e", &options).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
    }
    world.assert_clean();
}
