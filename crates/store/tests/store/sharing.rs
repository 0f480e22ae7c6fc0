//! Publishing, sharing and releasing blocks on the simulated engine, to the block.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op};
use onefold_store::{
    Blocking, CreateOptions, DedupMode, IndexKind, Lba, Ready, SettingsChange, Store, Volume,
    VolumeOptions,
};

use crate::common::{
    self, BLOCK, KINDS, MEMORY, MIB, World, assert_clean, blocks, dedup, delete_volume, new_volume,
    pool_of, read, read_bytes, write,
};

const VOLUME_BYTES: u64 = 16 * MIB;

fn pool(index: IndexKind) -> World {
    seeded_pool(index, 1)
}

fn seeded_pool(index: IndexKind, seed: u64) -> World {
    let options = CreateOptions {
        log_bytes: 4 * MIB,
        index,
        ..pool_of(64 * MIB)
    };
    World::seeded(seed, &options, MEMORY)
}

/// Loses unflushed data, and opens again.
fn power_loss(world: World) -> World {
    let world = world.crash(CrashKind::PowerLoss);
    world.index().rebuild_if_needed(&mut |_, _| {}).unwrap();
    world
}

fn volume(store: &Store, name: &str) -> Arc<Volume> {
    new_volume(store, name, VOLUME_BYTES)
}

fn volume_with(store: &Store, name: &str, change: impl FnOnce(&mut VolumeOptions)) -> Arc<Volume> {
    let mut options = VolumeOptions::new(VOLUME_BYTES);
    change(&mut options);
    store.create_volume(name, &options).unwrap();
    store.volume(name).unwrap()
}

/// The number of cold blocks that a pass of the finder takes.
fn scanned_cold(store: &Store, volume: &Volume) -> u64 {
    let report = common::dedup_ready(store, volume, Ready::Cold);
    report.unwrap().scanned
}

fn collect(store: &Store) {
    common::collect(store).unwrap();
    // Freed blocks are reusable after the next commit.
    store.tidy(true).unwrap();
}

#[test]
fn equal_blocks_are_stored_once_across_volumes() {
    for kind in KINDS {
        let world = pool(kind);
        let (a, b) = (volume(&world, "a"), volume(&world, "b"));
        write(&a, 0, 1..1001);
        write(&b, 77, 501..1501);
        assert_eq!(dedup(&world, &a).unique, 1000);
        let report = dedup(&world, &b);
        assert_eq!((report.unique, report.duplicates), (500, 500), "{kind:?}");
        collect(&world);
        let stat = world.stat().unwrap();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (2000, 1500));
        assert_eq!((stat.unique_blocks, stat.shared_blocks), (1000, 500));
        assert_eq!((stat.private_blocks, stat.pending_dedup_blocks), (0, 0));
        assert_eq!(stat.free_blocks, stat.pool_blocks - 1 - 1500);
        assert_eq!(read(&a, 0, 1000), Vec::from_iter(1..1001));
        assert_eq!(read(&b, 77, 1000), Vec::from_iter(501..1501));
        assert_clean(&world);
    }
}

/// Blocks in the hash cache are not read, and others are.
#[test]
fn the_hash_cache_spares_reading_what_was_written() {
    for kind in KINDS {
        let world = pool(kind);
        let a = volume_with(&world, "a", |options| {
            options.settings.hash_cache_bytes = MIB
        });
        let b = volume(&world, "b");
        write(&b, 0, 1..301);
        dedup(&world, &b);
        write(&a, 0, 1..1001);
        // Each of these takes the slot of the one before.
        write(&a, 7, [2001]);
        a.write(8 * BLOCK + 5, &[9; 10], Blocking::Yes).unwrap();
        write(&a, 9, [0]);
        let expected = read_bytes(&a, 0, 1000 * BLOCK);
        world.engine.reset_counts();
        let report = dedup(&world, &a);
        assert_eq!((report.scanned, report.cached), (999, 999), "{kind:?}");
        assert_eq!(report.duplicates, 297);
        assert_eq!(world.engine.count(Part::Data, Op::Read).count, 0);
        assert_eq!(read_bytes(&a, 0, 1000 * BLOCK), expected);
        // Off, then on again: its content is forgotten.
        write(&a, 0, 3001..3011);
        let set = |bytes| {
            let change = SettingsChange {
                hash_cache_bytes: Some(bytes),
                ..SettingsChange::default()
            };
            world.set_volume("a", &change).unwrap();
        };
        set(0);
        write(&a, 5, [1]);
        set(MIB);
        write(&a, 9, [1]);
        let report = dedup(&world, &a);
        assert_eq!((report.scanned, report.cached), (10, 1));
        assert_eq!(report.duplicates, 2);
        collect(&world);
        assert_clean(&world);
    }
}

/// A rewrite fails when part of it, or all, has reached the pool: the old fingerprint is not its.
#[test]
fn the_hash_cache_forgets_a_block_whose_rewrite_failed() {
    for seed in 0..20 {
        let world = seeded_pool(IndexKind::Btree, seed);
        let a = volume_with(&world, "a", |options| {
            options.settings.hash_cache_bytes = MIB
        });
        let b = volume(&world, "b");
        write(&a, 0, 1..3);
        write(&b, 0, 1..3);
        world
            .engine
            .fail_once(Part::Data, Op::Write, 1, ErrorKind::Other);
        a.write(0, &blocks([6, 7]), Blocking::Yes).unwrap_err();
        let left = read_bytes(&a, 0, 2 * BLOCK);
        dedup(&world, &a);
        dedup(&world, &b);
        assert_eq!(read_bytes(&a, 0, 2 * BLOCK), left);
        assert_eq!(read(&b, 0, 2), Vec::from_iter(1..3));
    }
}

#[test]
fn a_shared_block_is_copied_on_write_and_released() {
    for kind in KINDS {
        let world = pool(kind);
        let (a, b) = (volume(&world, "a"), volume(&world, "b"));
        write(&a, 0, 1..101);
        write(&b, 0, 1..101);
        dedup(&world, &a);
        dedup(&world, &b);
        write(&b, 10, 5001..5021);
        assert_eq!(read(&a, 0, 100), Vec::from_iter(1..101));
        assert_eq!(read(&b, 10, 20), Vec::from_iter(5001..5021));
        let stat = world.stat().unwrap();
        assert_eq!(
            (stat.pending_release_blocks, stat.physical_blocks),
            (20, 120)
        );
        collect(&world);
        let stat = world.stat().unwrap();
        assert_eq!((stat.unique_blocks, stat.shared_blocks), (20, 80));
        assert_eq!((stat.pending_release_blocks, stat.private_blocks), (0, 20));
        assert_clean(&world);
        // The last reference takes the block with it.
        a.trim(0, 16 * MIB, Blocking::Yes).unwrap();
        b.trim(0, 16 * MIB, Blocking::Yes).unwrap();
        collect(&world);
        let stat = world.stat().unwrap();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (0, 0));
        assert_eq!(stat.free_blocks, stat.pool_blocks - 1);
        assert_clean(&world);
    }
}

#[test]
fn rewriting_a_private_block_beside_shared_ones_touches_no_metadata() {
    let world = pool(IndexKind::Btree);
    let volume = volume(&world, "a");
    write(&volume, 0, 1..65);
    dedup(&world, &volume);
    write(&volume, 3, [901]);
    volume.flush().unwrap();
    let metadata_writes = || {
        let parts = [Part::Meta, Part::Log, Part::Index];
        parts.map(|part| world.engine.count(part, Op::Write).count)
    };
    let before = metadata_writes();
    for round in 0..100 {
        write(&volume, 3, [1001 + round]);
    }
    volume.flush().unwrap();
    assert_eq!(metadata_writes(), before);
}

#[test]
fn sharing_survives_power_loss() {
    for kind in KINDS {
        let world = pool(kind);
        let (a, b) = (volume(&world, "a"), volume(&world, "b"));
        write(&a, 0, 1..301);
        write(&b, 0, 101..401);
        dedup(&world, &a);
        dedup(&world, &b);
        a.flush().unwrap();
        let world = power_loss(world);
        let (a, b) = (world.volume("a").unwrap(), world.volume("b").unwrap());
        assert_eq!(read(&a, 0, 300), Vec::from_iter(1..301));
        assert_eq!(read(&b, 0, 300), Vec::from_iter(101..401));
        assert_clean(&world);
        dedup(&world, &a);
        dedup(&world, &b);
        collect(&world);
        let stat = world.stat().unwrap();
        assert_eq!((stat.logical_blocks, stat.physical_blocks), (600, 400));
        write(&b, 0, 1..301);
        dedup(&world, &b);
        collect(&world);
        assert_eq!(world.stat().unwrap().physical_blocks, 300, "{kind:?}");
        assert_clean(&world);
    }
}

#[test]
fn domains_never_share() {
    let world = pool(IndexKind::Btree);
    let names = ["a", "b", "c"];
    let volumes = [("a", "red"), ("b", "blue"), ("c", "red")]
        .map(|(name, domain)| volume_with(&world, name, |o| domain.clone_into(&mut o.domain)));
    for volume in &volumes {
        write(volume, 0, 1..101);
        dedup(&world, volume);
    }
    collect(&world);
    assert_eq!(world.stat().unwrap().physical_blocks, 200);
    assert_eq!(names.len(), world.stat().unwrap().volumes.len());
    assert_clean(&world);
    // Deleting a volume drops only its own references.
    delete_volume(&world, "a");
    collect(&world);
    assert_eq!(read(&volumes[2], 0, 100), Vec::from_iter(1..101));
    assert_eq!(world.stat().unwrap().physical_blocks, 200);
    delete_volume(&world, "c");
    collect(&world);
    assert_eq!(world.stat().unwrap().physical_blocks, 100);
    assert_clean(&world);
}

#[test]
fn only_cold_blocks_are_taken_when_asked_for() {
    let world = pool(IndexKind::Btree);
    let volume = volume(&world, "a");
    write(&volume, 0, 1..101);
    assert_eq!(scanned_cold(&world, &volume), 0);
    write(&volume, 0, 201..211);
    assert_eq!(scanned_cold(&world, &volume), 0);
    assert_eq!(scanned_cold(&world, &volume), 90);
    assert_eq!(scanned_cold(&world, &volume), 10);
    assert_eq!(scanned_cold(&world, &volume), 0);
    // Blocks that are published and rewritten are left alone for twice as long.
    write(&volume, 0, 301..311);
    let looks: Vec<u64> = (0..5).map(|_| scanned_cold(&world, &volume)).collect();
    assert_eq!(looks, [0, 0, 0, 0, 10]);
}

#[test]
fn settings_change_online_and_survive() {
    let world = pool(IndexKind::Btree);
    volume(&world, "a");
    let change = SettingsChange {
        dedup: Some(DedupMode::Off),
        cold_passes: Some(5),
        ..SettingsChange::default()
    };
    world.set_volume("a", &change).unwrap();
    let world = power_loss(world);
    let settings = world.volume("a").unwrap().settings();
    assert_eq!((settings.dedup, settings.cold_passes), (DedupMode::Off, 5));
    let change = SettingsChange {
        cold_passes: Some(0),
        ..SettingsChange::default()
    };
    assert!(world.set_volume("a", &change).is_err());
}

#[test]
fn an_import_is_deduplicated_as_it_is_loaded() {
    let world = pool(IndexKind::Btree);
    let a = volume(&world, "a");
    write(&a, 0, 1..513);
    dedup(&world, &a);
    let import = world
        .store
        .begin_import("b", &VolumeOptions::new(16 * MIB))
        .unwrap();
    for n in 0..4 {
        import
            .write(n * 256 * BLOCK, &blocks(n * 256 + 1..n * 256 + 257))
            .unwrap();
        import.dedup_batch().unwrap();
    }
    while !import.dedup_batch().unwrap().at_end {}
    import.finish().unwrap();
    collect(&world);
    let stat = world.stat().unwrap();
    assert_eq!((stat.logical_blocks, stat.physical_blocks), (1536, 1024));
    assert_eq!(stat.private_blocks, 0);
    assert_clean(&world);
}

#[test]
fn a_full_memory_index_declines_and_nothing_is_lost() {
    let world = pool(IndexKind::Memory);
    let volume = volume_with(&world, "a", |options| options.size_bytes = 60 * MIB);
    write(&volume, 0, 1..4097);
    world.close().unwrap();
    drop((world.store, volume));
    let store = World::on(world.engine, 1);
    let volume = store.volume("a").unwrap();
    let mut cursor = Lba(0);
    let report = store
        .dedup()
        .find_batch(&volume, &mut cursor, Ready::All)
        .unwrap();
    assert_eq!(report.unique + report.declined, 4096);
    assert_eq!(read(&volume, 0, 4096), Vec::from_iter(1..4097));
    let stat = store.stat().unwrap();
    assert_eq!(stat.unique_blocks, report.unique);
    assert_eq!(stat.private_blocks, report.declined);
}
