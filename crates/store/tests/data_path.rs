//! The data path on the simulated engine: reads return the written data, and nothing else is
//! written.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use onefold_engine::simulated::{FailureRates, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_store::{
    Blocking, CreateOptions, OpenOptions, Store, StoreErrorKind, Volume, VolumeOptions,
};

const MIB: u64 = 1 << 20;

struct World {
    engine: Arc<SimulatedEngine>,
    store: Arc<Store>,
}

impl World {
    /// And releases all its blocks.
    fn delete_volume(&self, name: &str) {
        self.store.delete_volume(name).unwrap();
        self.store.finish_deletions(&mut |_, _| {}).unwrap();
    }

    fn new(pool_bytes: u64) -> Self {
        let engine = Arc::new(SimulatedEngine::new(1));
        let options = CreateOptions {
            size_bytes: pool_bytes,
            log_bytes: 4 * MIB,
            ..CreateOptions::default()
        };
        Store::create(&*engine, &options).unwrap();
        Self::open(engine)
    }

    fn open(engine: Arc<SimulatedEngine>) -> Self {
        let as_engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&engine);
        let (store, _) = Store::open(
            as_engine,
            &OpenOptions {
                memory_bytes: 64 * MIB,
                ..OpenOptions::default()
            },
        )
        .unwrap();
        Self { engine, store }
    }

    fn volume(&self, name: &str, size: u64) -> Arc<Volume> {
        self.store
            .create_volume(name, &VolumeOptions::new(size))
            .unwrap();
        self.store.volume(name).unwrap()
    }

    fn assert_clean(&self) {
        let mut findings = Vec::new();
        let report = self
            .store
            .check(false, &mut |finding| findings.push(finding))
            .unwrap();
        assert_eq!((report.findings, findings), (0, Vec::new()));
    }
}

fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|n| (n / 512) as u8 ^ (n as u8).wrapping_mul(31) ^ seed | 1)
        .collect()
}

fn read(volume: &Volume, offset: u64, len: u64) -> Vec<u8> {
    let mut buf = vec![0xaa; len as usize];
    volume.read(offset, &mut buf, Blocking::Yes).unwrap();
    buf
}

#[test]
fn a_failed_sync_ahead_of_a_commit_stops_all_writes() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", MIB);
    world.store.set_background_executor(|work| work());
    volume.write(0, &pattern(4096, 1), Blocking::Yes).unwrap();
    // A loss is reported once only: the commit's own sync would succeed.
    world.engine.set_failure_rates(FailureRates {
        sync: 1.0,
        ..FailureRates::default()
    });
    assert_eq!(world.store.tick().unwrap_err().kind(), StoreErrorKind::Io);
    world.engine.set_failure_rates(FailureRates::default());
    let refused = volume
        .write(0, &pattern(4096, 2), Blocking::Yes)
        .unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ReadOnly);
    assert!(volume.flush().is_err());
}

#[test]
fn what_was_written_is_read_again_after_reopening() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    let data = pattern(MIB + 1000, 7);
    volume.write(12_345, &data, Blocking::Yes).unwrap();
    assert_eq!(read(&volume, 12_345, data.len() as u64), data);
    assert_eq!(read(&volume, 0, 12_345), vec![0; 12_345]);
    world.assert_clean();
    world.store.close().unwrap();

    let world = World::open(world.engine);
    let volume = world.store.volume("a").unwrap();
    assert_eq!(read(&volume, 12_345, data.len() as u64), data);
    world.assert_clean();
}

#[test]
fn flushed_writes_survive_without_a_checkpoint() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    let data = pattern(3 * MIB, 9);
    volume.write(4096 * 3, &data, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    let engine = world
        .engine
        .crash(onefold_engine::simulated::CrashKind::PowerLoss);

    let engine = Arc::new(engine);
    let as_engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&engine);
    let options = OpenOptions {
        memory_bytes: 64 * MIB,
        ..OpenOptions::default()
    };
    let (store, report) = Store::open(as_engine, &options).unwrap();
    assert!(report.records_replayed > 0 && !report.clean, "{report:?}");
    let volume = store.volume("a").unwrap();
    assert_eq!(read(&volume, 4096 * 3, data.len() as u64), data);
    World { engine, store }.assert_clean();
}

#[test]
fn rewriting_private_blocks_writes_no_metadata() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    volume
        .write(0, &pattern(16 * MIB, 1), Blocking::Yes)
        .unwrap();
    volume.flush().unwrap();
    let metadata_writes = || {
        let count = |part| world.engine.count(part, Op::Write).count;
        count(Part::Meta) + count(Part::Log) + count(Part::Superblock)
    };
    let before = metadata_writes();
    let block = pattern(4096, 2);
    for n in 0..100_000 {
        volume
            .write(n * 7919 % 4096 * 4096, &block, Blocking::Yes)
            .unwrap();
    }
    volume.flush().unwrap();
    world.store.tick().unwrap();
    assert_eq!(metadata_writes() - before, 0);
}

#[test]
fn a_mebibyte_of_unmapped_space_is_one_pool_write() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    let before = world.engine.count(Part::Data, Op::Write).count;
    volume
        .write(5 * MIB, &pattern(MIB, 3), Blocking::Yes)
        .unwrap();
    assert_eq!(world.engine.count(Part::Data, Op::Write).count - before, 1);
}

#[test]
fn what_is_consecutive_in_the_volume_is_so_in_the_pool() {
    let world = World::new(128 * MIB);
    let volumes = ["a", "b"].map(|name| world.volume(name, 16 * MIB));
    // As requests at depth 4 arrive: nearly in order. Single blocks first, in the one volume.
    for (n, volume) in volumes.iter().enumerate() {
        for piece in [0, 2, 1, 3, 5, 4, 7, 6, 8, 11, 9, 10, 15, 12, 14, 13] {
            if n == 0 {
                let block = piece * MIB + 77 * 4096;
                volume
                    .write(block, &pattern(4096, 1), Blocking::Yes)
                    .unwrap();
            }
            volume
                .write(piece * MIB, &pattern(MIB, 1), Blocking::Yes)
                .unwrap();
        }
    }
    for volume in &volumes {
        let before = world.engine.count(Part::Data, Op::Read).count;
        // Every piece that the read is cut into crosses from one segment to the next.
        read(volume, MIB, 14 * MIB);
        assert_eq!(world.engine.count(Part::Data, Op::Read).count - before, 7);
    }
}

#[test]
fn zeros_are_not_stored() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    volume
        .write(0, &vec![0; MIB as usize], Blocking::Yes)
        .unwrap();
    assert_eq!(volume.logical_blocks(), 0);
    volume.write(0, &pattern(MIB, 4), Blocking::Yes).unwrap();
    assert_eq!(volume.logical_blocks(), 256);
    volume.write(4096, &[0; 8192], Blocking::Yes).unwrap();
    assert_eq!(volume.logical_blocks(), 254);
    assert_eq!(read(&volume, 4096, 8192), vec![0; 8192]);
    world.assert_clean();
}

#[test]
fn trimming_gives_blocks_and_disk_back() {
    let world = World::new(256 * MIB);
    let volume = world.volume("a", 128 * MIB);
    for n in 0..64 {
        volume
            .write(n * MIB, &pattern(MIB, n as u8), Blocking::Yes)
            .unwrap();
    }
    volume.flush().unwrap();
    let before = world.store.stat().unwrap();
    assert_eq!(before.private_blocks, 64 * 256);
    volume.trim(100, 64 * MIB - 100, Blocking::Yes).unwrap();
    for _ in 0..3 {
        world.store.tick().unwrap();
    }
    assert_eq!(world.engine.count(Part::Data, Op::Discard).count, 0);
    while world.store.give_back(MIB).unwrap() {}
    let after = world.store.stat().unwrap();
    assert_eq!((after.private_blocks, after.reclaim_blocks), (1, 0));
    assert_eq!(after.free_blocks, after.pool_blocks - 2);
    let freed = before.pool_bytes_on_disk - after.pool_bytes_on_disk;
    assert!(freed * 10 >= 63 * MIB * 9, "{freed} bytes came back");
    world.assert_clean();
}

#[test]
fn what_is_in_use_again_is_not_given_back() {
    // So small that freed blocks have to be reused.
    let world = World::new(4 * MIB);
    let volume = world.volume("a", 4 * MIB);
    let reserve = world.store.stat().unwrap().reserve_blocks;
    let bytes = 4 * MIB - (1 + reserve) * 4096;
    for byte in [1, 2] {
        volume
            .write(0, &pattern(bytes, byte), Blocking::Yes)
            .unwrap();
        if byte == 1 {
            volume.trim(0, bytes, Blocking::Yes).unwrap();
            volume.flush().unwrap();
            world.store.tick().unwrap();
            world.store.tick().unwrap();
        }
    }
    volume.trim(MIB, MIB, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    world.store.tick().unwrap();
    world.store.tick().unwrap();
    while world.store.give_back(256 << 10).unwrap() {}
    let before = world.engine.count(Part::Data, Op::Discard);
    assert!(before.bytes > 0 && before.bytes <= MIB, "{before:?}");
    assert_eq!(read(&volume, 0, MIB), pattern(MIB, 2));
    assert_eq!(
        read(&volume, 2 * MIB, MIB),
        pattern(bytes, 2)[2 * MIB as usize..3 * MIB as usize]
    );
    world.assert_clean();
}

#[test]
fn closing_gives_back_what_nobody_has_yet() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 32 * MIB);
    volume
        .write(0, &pattern(16 * MIB, 1), Blocking::Yes)
        .unwrap();
    volume.trim(0, 16 * MIB, Blocking::Yes).unwrap();
    world.store.close().unwrap();
    let discarded = world.engine.count(Part::Data, Op::Discard).bytes;
    assert!(discarded * 10 >= 16 * MIB * 9, "{discarded} bytes");
}

#[test]
fn trimming_nothing_costs_nothing() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 4 << 40);
    volume
        .write(3 << 40, &pattern(4096, 1), Blocking::Yes)
        .unwrap();
    volume.flush().unwrap();
    let (reads, log) = (
        world.engine.count(Part::Meta, Op::Read).count,
        world.engine.count(Part::Log, Op::Write).count,
    );
    volume.trim(0, 1 << 40, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    assert!(world.engine.count(Part::Meta, Op::Read).count - reads < 8);
    assert_eq!(world.engine.count(Part::Log, Op::Write).count, log);
}

#[test]
fn a_full_pool_fails_writes_and_recovers_when_room_is_made() {
    let world = World::new(32 * MIB);
    let volume = world.volume("a", 64 * MIB);
    let block = pattern(4096, 1);
    let mut written = 0;
    let full = loop {
        match volume.write(written * 4096, &block, Blocking::Yes) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), StoreErrorKind::NoSpace, "{full}");
    let reserve = world.store.stat().unwrap().reserve_blocks;
    assert_eq!(written, 32 * 256 - 1 - reserve);
    volume.write(0, &pattern(4096, 2), Blocking::Yes).unwrap();
    volume.trim(MIB, MIB, Blocking::Yes).unwrap();
    volume
        .write(40 * MIB, &pattern(MIB, 5), Blocking::Yes)
        .unwrap();
    assert_eq!(read(&volume, 40 * MIB, MIB), pattern(MIB, 5));
    world.assert_clean();
}

#[test]
fn a_large_volume_works_with_little_memory() {
    let engine = Arc::new(SimulatedEngine::new(3));
    let options = CreateOptions {
        size_bytes: 512 * MIB,
        log_bytes: 512 << 10,
        ..CreateOptions::default()
    };
    Store::create(&*engine, &options).unwrap();
    let as_engine: Arc<dyn Engine> = Arc::<SimulatedEngine>::clone(&engine);
    // The store's share when the daemon is given 64 MiB is more than this.
    let options = OpenOptions {
        memory_bytes: 8 * MIB,
        ..OpenOptions::default()
    };
    let (store, _) = Store::open(Arc::clone(&as_engine), &options).unwrap();
    store
        .create_volume("huge", &VolumeOptions::new(4 << 40))
        .unwrap();
    let volume = store.volume("huge").unwrap();
    let place = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (4 << 28) * 4096;
    for n in 0..20_000 {
        volume
            .write(place(n), &pattern(4096, n as u8), Blocking::Yes)
            .unwrap();
    }
    volume.flush().unwrap();
    let engine = engine.crash(onefold_engine::simulated::CrashKind::PowerLoss);
    let (store, _) = Store::open(Arc::new(engine), &options).unwrap();
    let volume = store.volume("huge").unwrap();
    for n in 0..20_000 {
        assert_eq!(
            read(&volume, place(n), 4096),
            pattern(4096, n as u8),
            "write {n}"
        );
    }
}

#[test]
fn volumes_come_and_go() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    assert_eq!(
        world
            .store
            .create_volume("a", &VolumeOptions::new(MIB))
            .unwrap_err()
            .kind(),
        StoreErrorKind::Exists
    );
    volume.write(0, &pattern(MIB, 1), Blocking::Yes).unwrap();
    world.store.rename_volume("a", "b").unwrap();
    world.store.resize_volume("b", MIB / 2).unwrap();
    assert_eq!(volume.logical_blocks(), 128);
    assert_eq!(
        volume
            .write(MIB / 2, &[1], Blocking::Yes)
            .unwrap_err()
            .kind(),
        StoreErrorKind::Invalid
    );
    world.delete_volume("b");
    assert_eq!(
        volume.write(0, &[1], Blocking::Yes).unwrap_err().kind(),
        StoreErrorKind::Gone
    );
    assert!(world.store.volume_names().is_empty());
    for _ in 0..3 {
        world.store.tick().unwrap();
    }
    let stat = world.store.stat().unwrap();
    assert_eq!(
        (stat.private_blocks, stat.free_blocks),
        (0, stat.pool_blocks - 1)
    );
    world.assert_clean();
}

#[test]
fn an_interrupted_import_leaves_nothing() {
    let world = World::new(64 * MIB);
    let import = world
        .store
        .begin_import("a", &VolumeOptions::new(16 * MIB))
        .unwrap();
    import.write(0, &pattern(MIB, 1)).unwrap();
    assert!(world.store.volume_names().is_empty());
    drop(import);
    world
        .store
        .create_volume("a", &VolumeOptions::new(MIB))
        .unwrap();
    world.assert_clean();

    let import = world
        .store
        .begin_import("c", &VolumeOptions::new(16 * MIB))
        .unwrap();
    import.write(0, &pattern(MIB, 1)).unwrap();
    import.finish().unwrap();
    let import = world
        .store
        .begin_import("d", &VolumeOptions::new(16 * MIB))
        .unwrap();
    import.write(0, &pattern(MIB, 1)).unwrap();
    let engine = world
        .engine
        .crash(onefold_engine::simulated::CrashKind::ProcessKilled);
    std::mem::forget(import);
    let world = World::open(Arc::new(engine));
    assert_eq!(world.store.volume_names(), ["a", "c"]);
    assert_eq!(world.store.stat().unwrap().private_blocks, 256);
    world.assert_clean();
}

#[test]
fn extents_tell_data_from_holes() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 16 * MIB);
    volume.write(MIB, &pattern(MIB, 1), Blocking::Yes).unwrap();
    volume
        .write(9 * MIB, &pattern(4096, 1), Blocking::Yes)
        .unwrap();
    let extents = volume.extents(0..16 * MIB, 100, Blocking::Yes).unwrap();
    let lens: Vec<(u64, bool)> = extents
        .iter()
        .map(|extent| (extent.len, extent.data))
        .collect();
    let rest = 16 * MIB - 9 * MIB - 4096;
    assert_eq!(
        lens,
        [
            (MIB, false),
            (MIB, true),
            (7 * MIB, false),
            (4096, true),
            (rest, false)
        ]
    );
    let first = volume.extents(100..16 * MIB, 1, Blocking::Yes).unwrap();
    assert_eq!(
        (first.len(), first[0].len, first[0].data),
        (1, MIB - 100, false)
    );
}

#[test]
fn a_map_grows_by_a_level_at_a_time() {
    let world = World::new(64 * MIB);
    let volume = world.volume("a", 1 << 40);
    // A segment has 2 MiB, a node 256 children: one level, then two, then three.
    let places = [0, 3 * MIB, 700 * MIB, 1 << 30, 200 << 30, 1023 << 30];
    for (n, place) in places.into_iter().enumerate() {
        volume
            .write(place, &pattern(8192, n as u8), Blocking::Yes)
            .unwrap();
        world.assert_clean();
    }
    world.store.close().unwrap();
    let world = World::open(world.engine);
    let volume = world.store.volume("a").unwrap();
    for (n, place) in places.into_iter().enumerate() {
        assert_eq!(read(&volume, place, 8192), pattern(8192, n as u8));
    }
}

#[test]
fn a_failed_log_sync_and_a_restart_do_not_cost_the_pool() {
    for seed in 0..40 {
        let engine = Arc::new(SimulatedEngine::new(seed));
        let options = CreateOptions {
            size_bytes: 32 * MIB,
            log_bytes: MIB,
            ..CreateOptions::default()
        };
        Store::create(&*engine, &options).unwrap();
        let world = World::open(engine);
        let volume = world.volume("a", 16 * MIB);
        volume.write(0, &pattern(8192, 1), Blocking::Yes).unwrap();
        volume.flush().unwrap();
        volume.write(MIB, &pattern(8192, 2), Blocking::Yes).unwrap();
        world
            .engine
            .fail_once(Part::Log, Op::Sync, 1, std::io::ErrorKind::Other);
        assert!(volume.flush().is_err());
        let read_only = volume.write(0, &[1], Blocking::Yes).unwrap_err();
        assert_eq!(read_only.kind(), StoreErrorKind::ReadOnly);

        let killed = world
            .engine
            .crash(onefold_engine::simulated::CrashKind::ProcessKilled);
        let world = World::open(Arc::new(killed));
        let volume = world.store.volume("a").unwrap();
        for n in 2..4 {
            volume
                .write(n * MIB, &pattern(8192, n as u8), Blocking::Yes)
                .unwrap();
            volume.flush().unwrap();
        }
        let dead = world
            .engine
            .crash(onefold_engine::simulated::CrashKind::PowerLoss);
        let world = World::open(Arc::new(dead));
        let volume = world.store.volume("a").unwrap();
        assert_eq!(read(&volume, 0, 8192), pattern(8192, 1), "seed {seed}");
        for n in 2..4 {
            assert_eq!(
                read(&volume, n * MIB, 8192),
                pattern(8192, n as u8),
                "seed {seed}"
            );
        }
        world.assert_clean();
    }
}

#[test]
fn names_are_told_in_pages_volumes_apart_from_snapshots() {
    let world = World::new(16 * MIB);
    for name in ["vm", "vm-2", "vmA", "a"] {
        world.volume(name, MIB);
    }
    for (volume, snapshot) in [("vm", "s1"), ("vm", "s2"), ("vm-2", "s"), ("a", "s")] {
        let wanted = [(volume.to_owned(), snapshot.to_owned())];
        world.store.create_snapshots(&wanted).unwrap();
    }
    let in_pages = |page_max: usize, page: &dyn Fn(&str, usize) -> Vec<String>| {
        let mut names: Vec<String> = Vec::new();
        loop {
            let after = names.last().map_or("", String::as_str);
            let more = page(after, page_max);
            assert!(more.len() <= page_max);
            if more.is_empty() {
                return names;
            }
            names.extend(more);
        }
    };
    for page_max in [1, 2, 3, 100] {
        let volumes = in_pages(page_max, &|after, max| {
            world.store.volume_names_after(after, max)
        });
        assert_eq!(volumes, ["a", "vm", "vm-2", "vmA"]);
        let snapshots = in_pages(page_max, &|after, max| {
            world.store.snapshot_names_after(after, max)
        });
        assert_eq!(snapshots, ["a@s", "vm-2@s", "vm@s1", "vm@s2"]);
    }
    assert_eq!(world.store.volume_count(), 4);
    assert!(world.store.has_volume("vm@s1") && !world.store.has_volume("vm@s3"));
}
