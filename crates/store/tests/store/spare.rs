//! Spare blocks: where they come from, who gets them, and what is left to the host.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_store::{Blocking, Store, StoreErrorKind, Volume};

use crate::common::{
    BLOCK, MEMORY, MIB, World, assert_clean, go_on, new_volume, pool_of, read, write,
};

/// A pool past the host's cache.
fn direct_pool(size_bytes: u64) -> World {
    let engine = SimulatedEngine::new(1);
    Store::create(&engine, &pool_of(size_bytes)).unwrap();
    engine.set_alignment(Part::Data, BLOCK as usize);
    World::on(engine, MEMORY)
}

/// A volume whose first blocks are written.
fn filled(world: &World, name: &str, count: u64) -> Arc<Volume> {
    let volume = new_volume(world, name, 8 * MIB);
    write(&volume, 0, 1..=count);
    volume
}

/// Releases the first blocks of a volume, and lets them become free.
fn release(world: &World, volume: &Volume, count: u64) {
    volume.trim(0, count * BLOCK, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    (0..3).for_each(|_| world.tidy(true).unwrap());
}

fn preallocate(world: &World, kept: u64) -> u64 {
    world.space().keep_spare(kept * BLOCK).unwrap();
    while world.space().preallocate(64 << 10).unwrap() {}
    world.stat().unwrap().spare_blocks
}

fn on_disk(world: &World) -> u64 {
    world.stat().unwrap().pool_bytes_on_disk
}

#[test]
fn what_was_freed_is_handed_out_first() {
    let world = direct_pool(64 * MIB);
    let volume = filled(&world, "a", 1024);
    release(&world, &volume, 1024);
    let before = world.stat().unwrap();
    assert_eq!((before.spare_blocks, before.hole_blocks), (1024, 1024));
    let other = filled(&world, "b", 1000);
    let after = world.stat().unwrap();
    assert_eq!((after.spare_blocks, after.hole_blocks), (24, 1024));
    assert_eq!(after.pool_bytes_on_disk, before.pool_bytes_on_disk);
    assert!(read(&other, 0, 1000).into_iter().eq(1..=1000));
    // More than are left comes from elsewhere.
    write(&volume, 0, 1..=100);
    assert_eq!(world.stat().unwrap().hole_blocks, 1124);
    assert_clean(&world);
}

#[test]
fn preallocated_blocks_take_new_data_without_an_allocation() {
    let world = direct_pool(64 * MIB);
    assert_eq!(preallocate(&world, 2000), 2000);
    let before = on_disk(&world);
    assert!(before >= 2000 * BLOCK);
    let volume = new_volume(&world, "a", 16 * MIB);
    // Scattered, as copies are.
    for lba in (0..4000).step_by(4) {
        write(&volume, lba, [lba + 1]);
    }
    let stat = world.stat().unwrap();
    assert_eq!((stat.spare_blocks, stat.hole_blocks), (1000, 0));
    assert_eq!(stat.pool_bytes_on_disk, before);
    for lba in (0..4000).step_by(4) {
        assert_eq!(read(&volume, lba, 1), [lba + 1]);
    }
    assert_clean(&world);
    // The kept ones are made again.
    assert_eq!(preallocate(&world, 2000), 2000);
    assert_eq!(on_disk(&world), before + 1000 * BLOCK);
}

#[test]
fn a_volume_that_is_filled_leaves_half_of_them_to_small_writes() {
    let world = direct_pool(64 * MIB);
    assert_eq!(preallocate(&world, 1024), 1024);
    let volume = new_volume(&world, "a", 16 * MIB);
    for lba in (0..2048).step_by(256) {
        write(&volume, lba, lba + 1..=lba + 256);
    }
    let stat = world.stat().unwrap();
    // A place that is free may begin with a spare block.
    assert!((500..=512).contains(&stat.spare_blocks), "{stat:?}");
    assert_eq!(stat.hole_blocks, 1024 + stat.spare_blocks);
    assert_clean(&world);
}

#[test]
fn the_host_gets_what_is_not_kept() {
    let world = direct_pool(64 * MIB);
    let volume = filled(&world, "a", 1024);
    release(&world, &volume, 1024);
    world.space().keep_spare(512 * BLOCK).unwrap();
    while world.space().give_back(MIB).unwrap() {}
    assert_eq!(world.stat().unwrap().spare_blocks, 512);
    assert!(!world.space().give_back(MIB).unwrap());
    world.space().keep_spare(0).unwrap();
    while world.space().give_back(MIB).unwrap() {}
    assert_eq!(world.stat().unwrap().spare_blocks, 0);
    assert_eq!(on_disk(&world), BLOCK);
    assert_clean(&world);
}

#[test]
fn they_are_found_again_after_a_crash() {
    let world = direct_pool(64 * MIB);
    assert_eq!(preallocate(&world, 700), 700);
    let volume = filled(&world, "a", 100);
    volume.flush().unwrap();
    drop(volume);
    let world = world.crash(CrashKind::ProcessKilled);
    assert_eq!(world.stat().unwrap().spare_blocks, 0);
    while world.space().find_spare().unwrap() {}
    assert_eq!(world.stat().unwrap().spare_blocks, 600);
    assert_eq!(preallocate(&world, 600), 600);
    assert_eq!(world.engine.count(Part::Data, Op::Reserve).count, 0);
    assert_clean(&world);
}

#[test]
fn a_pool_that_is_short_of_space_preallocates_nothing() {
    let world = direct_pool(8 * MIB);
    // All but some 40 blocks; from 64 on the pool is scarce.
    let volume = filled(&world, "a", 2000);
    assert_eq!(preallocate(&world, 30), 0);
    release(&world, &volume, 2000);
    world.space().keep_spare(0).unwrap();
    while world.space().give_back(MIB).unwrap() {}
    assert_eq!(preallocate(&world, 30), 30);
    // The host is short of it, too.
    world
        .engine
        .set_capacity(Part::Data, Some(on_disk(&world) + 32 * BLOCK));
    assert!(world.space().is_host_short().unwrap());
    assert_eq!(preallocate(&world, 60), 30);
    assert_clean(&world);
}

#[test]
fn a_pool_that_shrinks_has_none_beyond_its_end() {
    let world = direct_pool(64 * MIB);
    let volume = new_volume(&world, "a", 48 * MIB);
    for lba in (0..10_240).step_by(512) {
        write(&volume, lba, lba + 1..=lba + 512);
    }
    release(&world, &volume, 8192);
    assert_eq!(preallocate(&world, 9000), 9000);
    world.space().begin_shrink(16 * MIB).unwrap();
    while !world.space().shrink_step(&mut go_on).unwrap().is_done {
        world.tidy(true).unwrap();
    }
    world.tidy(true).unwrap();
    let stat = world.stat().unwrap();
    assert_eq!(stat.pool_blocks, 4096);
    assert!(stat.spare_blocks <= stat.free_blocks, "{stat:?}");
    for lba in 0..1000 {
        write(&volume, lba, [lba + 5]);
    }
    assert!(read(&volume, 8192, 2048).into_iter().eq(8193..=10_240));
    assert_clean(&world);
}

#[test]
fn space_that_the_host_refuses_stays_free() {
    let world = direct_pool(64 * MIB);
    world.space().keep_spare(64 * BLOCK).unwrap();
    world
        .engine
        .fail_once(Part::Data, Op::Write, 1, ErrorKind::Other);
    let error = world.space().preallocate(MIB).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Io);
    let stat = world.stat().unwrap();
    assert_eq!(
        (stat.spare_blocks, stat.free_blocks),
        (0, stat.pool_blocks - 1)
    );
    assert_clean(&world);
}

#[test]
fn with_the_hosts_cache_nothing_depends_on_them() {
    let world = World::new(&pool_of(64 * MIB), MEMORY);
    assert!(!world.space().waits_to_allocate());
    let volume = filled(&world, "a", 100);
    release(&world, &volume, 100);
    filled(&world, "b", 1000);
    assert_eq!(world.stat().unwrap().hole_blocks, 0);
    assert_clean(&world);
}
