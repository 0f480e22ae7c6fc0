//! The data path on the simulated engine: reads return the written data, and nothing else is
//! written.

use std::sync::Arc;
use std::sync::mpsc::channel;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, FailureRates, Op, SimulatedEngine, When};
use onefold_store::{
    Blocking, CreateOptions, Import, Store, StoreErrorKind, Volume, VolumeOptions,
};

use crate::common::{
    self, BLOCK, LITTLE_MEMORY, MEMORY, MIB, World, assert_clean, delete_volume, new_volume,
    pool_of, read_bytes, snapshot,
};

fn pool(size_bytes: u64) -> World {
    let options = CreateOptions {
        log_bytes: 4 * MIB,
        ..pool_of(size_bytes)
    };
    World::new(&options, MEMORY)
}

/// Bytes of which none is zero.
fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|n| (n / 512) as u8 ^ (n as u8).wrapping_mul(31) ^ seed | 1)
        .collect()
}

#[track_caller]
fn write(volume: &Volume, offset: u64, data: &[u8]) {
    volume.write(offset, data, Blocking::Yes).unwrap();
}

#[test]
fn a_failed_sync_ahead_of_a_commit_stops_all_writes() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", MIB);
    world.set_background_executor(Box::new(|work: &mut (dyn FnMut() + Send)| work()));
    write(&volume, 0, &pattern(4096, 1));
    // A loss is reported once only: the commit's own sync would succeed.
    world.engine.set_failure_rates(FailureRates {
        sync: 1.0,
        ..FailureRates::default()
    });
    assert_eq!(world.tidy(true).unwrap_err().kind(), StoreErrorKind::Io);
    world.engine.set_failure_rates(FailureRates::default());
    let refused = volume
        .write(0, &pattern(4096, 2), Blocking::Yes)
        .unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::ReadOnly);
    assert!(volume.flush().is_err());
}

#[test]
fn what_was_written_is_read_again_after_reopening() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    let data = pattern(MIB + 1000, 7);
    write(&volume, 12_345, &data);
    assert_eq!(read_bytes(&volume, 12_345, data.len() as u64), data);
    assert_eq!(read_bytes(&volume, 0, 12_345), vec![0; 12_345]);
    assert_clean(&world);
    world.close().unwrap();

    let world = world.reopen();
    let volume = world.volume("a").unwrap();
    assert_eq!(read_bytes(&volume, 12_345, data.len() as u64), data);
    assert_clean(&world);
}

#[test]
fn flushed_writes_survive_without_a_checkpoint() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    let data = pattern(3 * MIB, 9);
    write(&volume, 4096 * 3, &data);
    volume.flush().unwrap();
    let engine = world.engine.crash(CrashKind::PowerLoss);
    let (store, report) = common::open(engine, MEMORY).unwrap();
    assert!(report.records_replayed > 0 && !report.clean, "{report:?}");
    let volume = store.volume("a").unwrap();
    assert_eq!(read_bytes(&volume, 4096 * 3, data.len() as u64), data);
    assert_clean(&store);
}

#[test]
fn rewriting_private_blocks_writes_no_metadata() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    write(&volume, 0, &pattern(16 * MIB, 1));
    volume.flush().unwrap();
    let metadata_writes = || {
        let count = |part| world.engine.count(part, Op::Write).count;
        count(Part::Meta) + count(Part::Log) + count(Part::Superblock)
    };
    let before = metadata_writes();
    let block = pattern(4096, 2);
    for n in 0..100_000 {
        write(&volume, n * 7919 % 4096 * 4096, &block);
    }
    volume.flush().unwrap();
    world.tidy(true).unwrap();
    assert_eq!(metadata_writes() - before, 0);
}

#[test]
fn a_mebibyte_of_unmapped_space_is_one_pool_write() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    let before = world.engine.count(Part::Data, Op::Write).count;
    write(&volume, 5 * MIB, &pattern(MIB, 3));
    assert_eq!(world.engine.count(Part::Data, Op::Write).count - before, 1);
}

#[test]
fn what_is_consecutive_in_the_volume_is_so_in_the_pool() {
    let world = pool(128 * MIB);
    let volumes = ["a", "b"].map(|name| new_volume(&world, name, 16 * MIB));
    // As requests at depth 4 arrive: nearly in order. Single blocks first, in the one volume.
    for (n, volume) in volumes.iter().enumerate() {
        for piece in [0, 2, 1, 3, 5, 4, 7, 6, 8, 11, 9, 10, 15, 12, 14, 13] {
            if n == 0 {
                let block = piece * MIB + 77 * 4096;
                write(volume, block, &pattern(4096, 1));
            }
            write(volume, piece * MIB, &pattern(MIB, 1));
        }
    }
    for volume in &volumes {
        let before = world.engine.count(Part::Data, Op::Read).count;
        // Every piece that the read is cut into crosses from one segment to the next.
        read_bytes(volume, MIB, 14 * MIB);
        assert_eq!(world.engine.count(Part::Data, Op::Read).count - before, 7);
    }
}

#[test]
fn zeros_are_not_stored() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    write(&volume, 0, &vec![0; MIB as usize]);
    assert_eq!(volume.logical_blocks(), 0);
    write(&volume, 0, &pattern(MIB, 4));
    assert_eq!(volume.logical_blocks(), 256);
    write(&volume, 4096, &[0; 8192]);
    assert_eq!(volume.logical_blocks(), 254);
    assert_eq!(read_bytes(&volume, 4096, 8192), vec![0; 8192]);
    assert_clean(&world);
}

#[test]
fn trimming_gives_blocks_and_disk_back() {
    let world = pool(256 * MIB);
    let volume = new_volume(&world, "a", 128 * MIB);
    for n in 0..64 {
        write(&volume, n * MIB, &pattern(MIB, n as u8));
    }
    volume.flush().unwrap();
    let before = world.stat().unwrap();
    assert_eq!(before.private_blocks, 64 * 256);
    volume.trim(100, 64 * MIB - 100, Blocking::Yes).unwrap();
    for _ in 0..3 {
        world.tidy(true).unwrap();
    }
    assert_eq!(world.engine.count(Part::Data, Op::Discard).count, 0);
    while world.space().give_back(MIB).unwrap() {}
    let after = world.stat().unwrap();
    assert_eq!((after.private_blocks, after.pending_free_blocks), (1, 0));
    assert_eq!(after.free_blocks, after.pool_blocks - 2);
    let freed = before.pool_bytes_on_disk - after.pool_bytes_on_disk;
    assert!(freed * 10 >= 63 * MIB * 9, "{freed} bytes came back");
    assert_clean(&world);
}

#[test]
fn what_is_in_use_again_is_not_given_back() {
    // So small that freed blocks have to be reused.
    let world = pool(4 * MIB);
    let volume = new_volume(&world, "a", 4 * MIB);
    let reserve = world.stat().unwrap().reserve_blocks;
    let bytes = 4 * MIB - (1 + reserve) * 4096;
    for byte in [1, 2] {
        write(&volume, 0, &pattern(bytes, byte));
        if byte == 1 {
            volume.trim(0, bytes, Blocking::Yes).unwrap();
            volume.flush().unwrap();
            world.tidy(true).unwrap();
            world.tidy(true).unwrap();
        }
    }
    volume.trim(MIB, MIB, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    world.tidy(true).unwrap();
    world.tidy(true).unwrap();
    while world.space().give_back(256 << 10).unwrap() {}
    let before = world.engine.count(Part::Data, Op::Discard);
    assert!(before.bytes > 0 && before.bytes <= MIB, "{before:?}");
    assert_eq!(read_bytes(&volume, 0, MIB), pattern(MIB, 2));
    assert_eq!(
        read_bytes(&volume, 2 * MIB, MIB),
        pattern(bytes, 2)[2 * MIB as usize..3 * MIB as usize]
    );
    assert_clean(&world);
}

#[test]
fn closing_gives_back_what_nobody_has_yet() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 32 * MIB);
    write(&volume, 0, &pattern(16 * MIB, 1));
    volume.trim(0, 16 * MIB, Blocking::Yes).unwrap();
    world.close().unwrap();
    let discarded = world.engine.count(Part::Data, Op::Discard).bytes;
    assert!(discarded * 10 >= 16 * MIB * 9, "{discarded} bytes");
}

#[test]
fn trimming_nothing_costs_nothing() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 4 << 40);
    write(&volume, 3 << 40, &pattern(4096, 1));
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
    let world = pool(32 * MIB);
    let volume = new_volume(&world, "a", 64 * MIB);
    let block = pattern(4096, 1);
    let mut written = 0;
    let full = loop {
        match volume.write(written * 4096, &block, Blocking::Yes) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), StoreErrorKind::NoSpace, "{full}");
    let reserve = world.stat().unwrap().reserve_blocks;
    assert_eq!(written, 32 * 256 - 1 - reserve);
    write(&volume, 0, &pattern(4096, 2));
    volume.trim(MIB, MIB, Blocking::Yes).unwrap();
    write(&volume, 40 * MIB, &pattern(MIB, 5));
    assert_eq!(read_bytes(&volume, 40 * MIB, MIB), pattern(MIB, 5));
    assert_clean(&world);
}

#[test]
fn a_large_volume_works_with_little_memory() {
    let options = CreateOptions {
        log_bytes: 512 << 10,
        ..pool_of(512 * MIB)
    };
    let world = World::seeded(3, &options, LITTLE_MEMORY);
    let volume = new_volume(&world, "huge", 4 << 40);
    let place = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (4 << 28) * 4096;
    for n in 0..20_000 {
        write(&volume, place(n), &pattern(4096, n as u8));
    }
    volume.flush().unwrap();
    let world = world.crash(CrashKind::PowerLoss);
    let volume = world.volume("huge").unwrap();
    for n in 0..20_000 {
        assert_eq!(
            read_bytes(&volume, place(n), 4096),
            pattern(4096, n as u8),
            "write {n}"
        );
    }
}

#[test]
fn volumes_come_and_go() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    assert_eq!(
        world
            .store
            .create_volume("a", &VolumeOptions::new(MIB))
            .unwrap_err()
            .kind(),
        StoreErrorKind::Exists
    );
    write(&volume, 0, &pattern(MIB, 1));
    world.rename_volume("a", "b").unwrap();
    world.resize_volume("b", MIB / 2).unwrap();
    assert_eq!(volume.logical_blocks(), 128);
    assert_eq!(
        volume
            .write(MIB / 2, &[1], Blocking::Yes)
            .unwrap_err()
            .kind(),
        StoreErrorKind::Invalid
    );
    delete_volume(&world, "b");
    assert_eq!(
        volume.write(0, &[1], Blocking::Yes).unwrap_err().kind(),
        StoreErrorKind::Gone
    );
    assert!(world.volumes().names().is_empty());
    for _ in 0..3 {
        world.tidy(true).unwrap();
    }
    let stat = world.stat().unwrap();
    assert_eq!(
        (stat.private_blocks, stat.free_blocks),
        (0, stat.pool_blocks - 1)
    );
    assert_clean(&world);
}

/// An import with a mebibyte of data.
fn begun_import(store: &Arc<Store>, name: &str) -> Import {
    let options = VolumeOptions::new(16 * MIB);
    let import = store.begin_import(name, &options).unwrap();
    import.write(0, &pattern(MIB, 1)).unwrap();
    import
}

#[test]
fn an_interrupted_import_leaves_nothing() {
    let world = pool(64 * MIB);
    let import = begun_import(&world.store, "a");
    assert!(world.volumes().names().is_empty());
    drop(import);
    new_volume(&world, "a", MIB);
    assert_clean(&world);

    let import = begun_import(&world.store, "c");
    import.finish().unwrap();
    let import = begun_import(&world.store, "d");
    std::mem::forget(import);
    let world = world.crash(CrashKind::ProcessKilled);
    assert_eq!(world.volumes().names(), ["a", "c"]);
    assert_eq!(world.stat().unwrap().private_blocks, 256);
    assert_clean(&world);
}

#[test]
fn extents_tell_data_from_holes() {
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 16 * MIB);
    write(&volume, MIB, &pattern(MIB, 1));
    write(&volume, 9 * MIB, &pattern(4096, 1));
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
    let world = pool(64 * MIB);
    let volume = new_volume(&world, "a", 1 << 40);
    // A segment has 2 MiB, a node 256 children: one level, then two, then three.
    let places = [0, 3 * MIB, 700 * MIB, 1 << 30, 200 << 30, 1023 << 30];
    for (n, place) in places.into_iter().enumerate() {
        write(&volume, place, &pattern(8192, n as u8));
        assert_clean(&world);
    }
    world.close().unwrap();
    let world = world.reopen();
    let volume = world.volume("a").unwrap();
    for (n, place) in places.into_iter().enumerate() {
        assert_eq!(read_bytes(&volume, place, 8192), pattern(8192, n as u8));
    }
}

#[test]
fn a_failed_log_sync_and_a_restart_do_not_cost_the_pool() {
    for seed in 0..40 {
        let options = CreateOptions {
            log_bytes: MIB,
            ..pool_of(32 * MIB)
        };
        let world = World::seeded(seed, &options, MEMORY);
        let volume = new_volume(&world, "a", 16 * MIB);
        write(&volume, 0, &pattern(8192, 1));
        volume.flush().unwrap();
        write(&volume, MIB, &pattern(8192, 2));
        world
            .engine
            .fail_once(Part::Log, Op::Sync, 1, std::io::ErrorKind::Other);
        assert!(volume.flush().is_err());
        let read_only = volume.write(0, &[1], Blocking::Yes).unwrap_err();
        assert_eq!(read_only.kind(), StoreErrorKind::ReadOnly);

        let world = world.crash(CrashKind::ProcessKilled);
        let volume = world.volume("a").unwrap();
        for n in 2..4 {
            write(&volume, n * MIB, &pattern(8192, n as u8));
            volume.flush().unwrap();
        }
        let world = world.crash(CrashKind::PowerLoss);
        let volume = world.volume("a").unwrap();
        assert_eq!(
            read_bytes(&volume, 0, 8192),
            pattern(8192, 1),
            "seed {seed}"
        );
        for n in 2..4 {
            assert_eq!(
                read_bytes(&volume, n * MIB, 8192),
                pattern(8192, n as u8),
                "seed {seed}"
            );
        }
        assert_clean(&world);
    }
}

#[test]
fn names_are_told_in_pages_volumes_apart_from_snapshots() {
    let world = pool(16 * MIB);
    for name in ["vm", "vm-2", "vmA", "a"] {
        new_volume(&world, name, MIB);
    }
    for (volume, name) in [("vm", "s1"), ("vm", "s2"), ("vm-2", "s"), ("a", "s")] {
        snapshot(&world, volume, name);
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
            world.volumes().names_after(after, max)
        });
        assert_eq!(volumes, ["a", "vm", "vm-2", "vmA"]);
        let snapshots = in_pages(page_max, &|after, max| {
            world.volumes().snapshot_names_after(after, max)
        });
        assert_eq!(snapshots, ["a@s", "vm-2@s", "vm@s1", "vm@s2"]);
    }
    assert_eq!(world.volumes().count(), 4);
    assert!(world.volumes().has("vm@s1") && !world.volumes().has("vm@s3"));
}

/// No commit has made it durable, and nothing else would have its record.
#[test]
fn where_the_host_has_no_room_for_the_tail_an_answered_write_survives_the_process_all_the_same() {
    let engine = SimulatedEngine::new(1);
    engine.set_has_host_memory(false);
    Store::create(&engine, &pool_of(64 * MIB)).unwrap();
    let world = World::on(engine, MEMORY);
    let volume = new_volume(&world, "a", MIB);
    let data = pattern(8192, 1);
    write(&volume, 4096, &data);
    volume.trim(8192, 4096, Blocking::Yes).unwrap();
    drop(volume);
    let world = world.crash(CrashKind::ProcessKilled);
    let volume = world.volume("a").unwrap();
    assert_eq!(read_bytes(&volume, 4096, 4096), data[..4096]);
    assert_eq!(read_bytes(&volume, 8192, 4096), [0; 4096]);
    assert_clean(&world);
}

/// Between a lookup and its read the blocks are released, and another volume wants them. The request goes over two
/// segments, so that something can happen in the middle of the lookup: the second one has to be read.
#[test]
fn blocks_that_a_lookup_has_found_are_not_used_again_before_they_are_read() {
    const FOUND: u64 = 31;
    let first = 512 - FOUND;
    let world = World::new(&pool_of(96 * BLOCK), MEMORY);
    let volume = new_volume(&world, "a", 4 * MIB);
    common::write(&volume, first, [7; FOUND as usize]);
    common::write(&volume, 512, [5]);
    let filler = new_volume(&world, "filler", MIB);
    let free = world.stat().unwrap().free_blocks;
    // Some are kept for overwriting.
    let fills = |kept: &u64| {
        let data = common::blocks(vec![6; (free - kept) as usize]);
        filler.write(0, &data, Blocking::Yes).is_ok()
    };
    assert!((0..8).any(|kept| fills(&kept)));
    let next = VolumeOptions::new(MIB);
    world.create_volume("next", &next).unwrap();
    world.close().unwrap();
    let world = world.reopen();
    let (volume, next) = (world.volume("a").unwrap(), world.volume("next").unwrap());
    assert_eq!(common::read(&volume, first, 1), [7]);

    let write_next = move || next.write(0, &common::blocks([9; FOUND as usize]), Blocking::Yes);
    let again = write_next.clone();
    let (told, hears) = channel();
    let (store, released) = (Arc::clone(&world.store), Arc::clone(&volume));
    let in_lookup = move || {
        released
            .trim(first * BLOCK, FOUND * BLOCK, Blocking::Yes)
            .unwrap();
        store.tidy(true).unwrap();
    };
    let store = Arc::clone(&world.store);
    let before_read = move || {
        (0..3).for_each(|_| store.tidy(true).unwrap());
        told.send(write_next()).unwrap();
    };
    let engine = &world.engine;
    engine.on_next_io(Part::Meta, Op::Read, When::Before, Box::new(in_lookup));
    engine.on_next_io(Part::Data, Op::Read, When::Before, Box::new(before_read));
    let found = common::read(&volume, first, FOUND + 1);
    assert_eq!(found[..FOUND as usize], [7; FOUND as usize]);
    assert_eq!(found[FOUND as usize], 5);
    let refused = hears.recv().unwrap().unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NoSpace);
    assert_eq!(common::read(&volume, first, 1), [0]);
    (0..3).for_each(|_| world.tidy(true).unwrap());
    again().unwrap();
    assert_clean(&world);
}
