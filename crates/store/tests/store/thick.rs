//! Thick pools: all of their space is the pool's from the start, and stays so.

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_store::{Blocking, CreateOptions, Pba, Provisioning, Store, StoreErrorKind};

use crate::common::{BLOCK, MEMORY, MIB, World, assert_clean, new_volume, pool_of, read, write};

const SIZE: u64 = 16 * MIB;

fn thick() -> CreateOptions {
    CreateOptions {
        provisioning: Provisioning::Thick,
        ..pool_of(SIZE)
    }
}

/// A thick pool past the host's cache.
fn thick_pool() -> World {
    let engine = SimulatedEngine::new(1);
    Store::create(&engine, &thick()).unwrap();
    engine.set_alignment(Part::Data, BLOCK as usize);
    World::on(engine, MEMORY)
}

fn on_disk(world: &World) -> u64 {
    world.stat().unwrap().pool_bytes_on_disk
}

#[test]
fn it_has_its_space_from_the_start_and_keeps_it() {
    let world = thick_pool();
    assert_eq!(on_disk(&world), SIZE);
    let volume = new_volume(&world, "a", 8 * MIB);
    write(&volume, 0, 1..=1024);
    volume.trim(0, 1000 * BLOCK, Blocking::Yes).unwrap();
    volume.flush().unwrap();
    for _ in 0..3 {
        world.tidy(true).unwrap();
        while world.space().give_back(u64::MAX).unwrap() {}
    }
    let refused = world.space().trim_step(&mut Pba(0), MIB).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    let world = world.crash(CrashKind::PowerLoss);
    let stat = world.stat().unwrap();
    assert_eq!(stat.provisioning, Provisioning::Thick);
    assert_eq!((stat.pool_bytes_on_disk, stat.physical_blocks), (SIZE, 24));
    assert_eq!((stat.hole_blocks, stat.spare_blocks), (0, 0));
    assert_eq!(stat.host_free_bytes, None, "the pool needs none of it");
    assert!(!world.space().waits_to_allocate() && !world.space().find_spare().unwrap());
    let discards = world.engine.count(Part::Data, Op::Discard).count;
    assert_eq!(discards, 0);
    assert_clean(&world);
}

#[test]
fn a_full_host_does_not_fill_it() {
    let world = thick_pool();
    world.engine.set_capacity(Part::Data, Some(SIZE));
    let volume = new_volume(&world, "a", 8 * MIB);
    write(&volume, 0, 1..=2048);
    assert!(read(&volume, 0, 2048).into_iter().eq(1..=2048));
    assert_clean(&world);
}

#[test]
fn without_room_on_the_host_none_is_made() {
    let engine = SimulatedEngine::new(1);
    engine.set_capacity(Part::Data, Some(SIZE - BLOCK));
    let error = Store::create(&engine, &thick()).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NoSpace);
    assert_eq!(engine.count(Part::Meta, Op::Write).count, 0, "no root");
}

/// Allocates space for a larger pool, and returns the number of steps.
fn allocate(world: &World, size_bytes: u64) -> u64 {
    let mut cursor = 0;
    let steps = std::iter::from_fn(|| {
        let space = world.space();
        let more = space.allocate_step(size_bytes, &mut cursor, MIB).unwrap();
        more.then_some(())
    });
    1 + steps.count() as u64
}

#[test]
fn it_grows_by_allocated_space() {
    let world = thick_pool();
    let volume = new_volume(&world, "a", 8 * MIB);
    write(&volume, 0, 1..=2048);
    assert_eq!(allocate(&world, SIZE + 4 * MIB), 4);
    assert_eq!(on_disk(&world), SIZE + 4 * MIB);
    // The daemon dies before the pool is larger.
    let world = world.crash(CrashKind::ProcessKilled);
    assert_eq!(world.space().size_bytes().unwrap(), SIZE);
    allocate(&world, SIZE + 4 * MIB);
    world.space().grow(SIZE + 4 * MIB).unwrap();
    // Another command has made the pool larger: none of its blocks is written over.
    let volume = new_volume(&world, "b", 16 * MIB);
    write(&volume, 0, 5000..=7048);
    assert_eq!(allocate(&world, SIZE + 4 * MIB), 1);
    assert!(read(&volume, 0, 2049).into_iter().eq(5000..=7048));
    assert_eq!(on_disk(&world), SIZE + 4 * MIB);
    assert_clean(&world);
}

#[test]
fn growth_that_is_given_up_leaves_nothing() {
    let world = thick_pool();
    allocate(&world, SIZE + 4 * MIB);
    world.space().give_up_growing().unwrap();
    assert_eq!(on_disk(&world), SIZE);
    assert_clean(&world);
}

#[test]
fn space_that_another_command_cuts_is_allocated_again() {
    let world = thick_pool();
    let (space, size_bytes) = (world.space(), SIZE + 4 * MIB);
    let mut cursor = 0;
    let mut step = || {
        space
            .allocate_step(size_bytes, &mut cursor, 2 * MIB)
            .unwrap()
    };
    assert!(step());
    space.give_up_growing().unwrap();
    assert!(step() && !step());
    assert_eq!(on_disk(&world), size_bytes);
    // What is not there any more at the end does not become a part of the pool.
    space.give_up_growing().unwrap();
    let refused = space.grow(size_bytes).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Busy);
    assert_eq!(space.size_bytes().unwrap(), SIZE);
    assert_clean(&world);
}
