//! How full a pool is, which writes still get blocks then, and the treatment of the others.

use onefold_engine::Part;
use onefold_engine::simulated::CrashKind;
use onefold_store::{
    Blocking, CreateOptions, SpaceLevel, StoreErrorKind, Volume, VolumeOptions, WhenFull,
};

use crate::common::{BLOCK, MEMORY, MIB, World, blocks, new_volume, pool_of};

/// Bytes of each volume, and of each image: more than the pool has.
const VOLUME_BYTES: u64 = 32 * MIB;

/// A pool of 4096 blocks: low at 409, scarce at 128, a reserve of 32.
fn pool() -> World {
    let options = CreateOptions {
        log_bytes: MIB,
        ..pool_of(16 * MIB)
    };
    World::new(&options, MEMORY)
}

fn level(world: &World) -> (SpaceLevel, u64) {
    let stat = world.stat().unwrap();
    (stat.space, stat.free_blocks)
}

fn write(volume: &Volume, block: u64) -> Result<(), StoreErrorKind> {
    let written = volume.write(block * BLOCK, &blocks([block + 1]), Blocking::Yes);
    written.map_err(|error| error.kind())
}

#[test]
fn levels_come_one_after_the_other_and_go_again() {
    let world = pool();
    let volume = new_volume(&world, "a", VOLUME_BYTES);
    let mut levels = vec![level(&world)];
    for block in 0.. {
        let done = write(&volume, block);
        let (level, free) = level(&world);
        if levels.last().unwrap().0 != level {
            levels.push((level, free));
        }
        if done.is_err() {
            break;
        }
    }
    assert_eq!(
        levels,
        [
            (SpaceLevel::Ok, 4095),
            (SpaceLevel::Low, 409),
            (SpaceLevel::Scarce, 128),
            (SpaceLevel::Reserve, 32),
            // A write found no room, whatever is left in reserve.
            (SpaceLevel::Full, 32),
        ]
    );
    volume.trim(0, 8 * MIB, Blocking::Yes).unwrap();
    world.tidy(true).unwrap();
    world.tidy(true).unwrap();
    assert_eq!(level(&world), (SpaceLevel::Ok, 32 + 2048));
    write(&volume, 0).unwrap();
}

#[test]
fn a_pool_is_full_when_a_write_finds_too_little_room_until_there_is_more() {
    let world = pool();
    let volume = new_volume(&world, "a", VOLUME_BYTES);
    // All but 200 blocks, and then a write that needs more.
    let data = blocks([7; 256]);
    let many = |n: u64| {
        let written = volume.write(n * MIB, &data, Blocking::Yes);
        written.map_err(|error| error.kind())
    };
    (0..15).for_each(|n| many(n).unwrap());
    (0..55).for_each(|n| write(&volume, 16 * 256 + n).unwrap());
    assert_eq!(level(&world), (SpaceLevel::Low, 200));
    assert_eq!(many(20), Err(StoreErrorKind::NoSpace));
    assert_eq!(level(&world), (SpaceLevel::Full, 200));
    // A smaller write may find room; the other would still find none.
    write(&volume, 18 * 256).unwrap();
    assert_eq!(level(&world), (SpaceLevel::Full, 199));
    volume.trim(0, MIB, Blocking::Yes).unwrap();
    (0..2).for_each(|_| world.tidy(true).unwrap());
    assert_eq!(level(&world), (SpaceLevel::Ok, 199 + 256));
    many(20).unwrap();
}

#[test]
fn what_the_host_has_counts_where_it_is_less() {
    let world = pool();
    let volume = new_volume(&world, "a", VOLUME_BYTES);
    let level = || {
        let stat = world.stat().unwrap();
        (stat.space, stat.available_blocks, stat.free_blocks)
    };
    assert_eq!(world.stat().unwrap().host_free_bytes, None);
    assert_eq!(level(), (SpaceLevel::Ok, 4095, 4095));
    // Each block that is written has its place on the host from then on.
    let host_has = |blocks: u64| {
        let disk = world.stat().unwrap().pool_bytes_on_disk;
        let capacity = Some(disk + blocks * BLOCK);
        world.engine.set_capacity(Part::Data, capacity);
    };
    host_has(400);
    assert_eq!(level(), (SpaceLevel::Low, 400, 4095));
    assert_eq!(world.stat().unwrap().host_free_bytes, Some(400 * BLOCK));
    (0..300).for_each(|block| write(&volume, block).unwrap());
    assert_eq!(level(), (SpaceLevel::Scarce, 100, 3795));
    // Imports leave the host's remaining space to guests.
    let options = VolumeOptions::new(VOLUME_BYTES);
    let import = world.store.begin_import("image", &options).unwrap();
    let refused = import.write(0, &[7; BLOCK as usize]).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NoSpace);
    drop(import);
    let refused = (300..).find_map(|block| write(&volume, block).err());
    assert_eq!(refused, Some(StoreErrorKind::NoSpace));
    assert_eq!(level().0, SpaceLevel::Full);
    // Blocks freed inside need no room of the host.
    volume.trim(0, 200 * BLOCK, Blocking::Yes).unwrap();
    world.tidy(true).unwrap();
    assert_eq!(level().1, 200);
    host_has(1000);
    assert_eq!(level(), (SpaceLevel::Ok, 1200, 3895));
    world.engine.set_capacity(Part::Data, None);
    assert_eq!(level(), (SpaceLevel::Ok, 3895, 3895));
}

#[test]
fn an_import_leaves_the_last_blocks_to_guests() {
    let world = pool();
    let volume = new_volume(&world, "a", VOLUME_BYTES);
    let options = VolumeOptions::new(VOLUME_BYTES);
    let import = world.store.begin_import("image", &options).unwrap();
    let data = [7; BLOCK as usize];
    let refused = (0..).find_map(|n| import.write(n * BLOCK, &data).err());
    let refused = refused.unwrap();
    assert_eq!(refused.kind(), StoreErrorKind::NoSpace);
    assert!(refused.to_string().contains("'image'"), "{refused}");
    assert_eq!(level(&world), (SpaceLevel::Scarce, 128));
    (0..96).for_each(|block| write(&volume, block).unwrap());
    assert_eq!(write(&volume, 96), Err(StoreErrorKind::NoSpace));
    // The image goes, and its space is available to all.
    drop(import);
    world.tidy(true).unwrap();
    assert_eq!(level(&world).0, SpaceLevel::Ok);
    write(&volume, 96).unwrap();
}

#[test]
fn what_happens_when_full_is_the_pools_and_lasts() {
    let world = pool();
    let volume = new_volume(&world, "a", VOLUME_BYTES);
    assert_eq!(world.when_full(), WhenFull::Pause);
    assert!(volume.pauses_when_full());
    world.set_when_full(WhenFull::Fail).unwrap();
    assert!(!volume.pauses_when_full());
    drop(volume);
    let world = world.crash(CrashKind::PowerLoss);
    assert_eq!(world.when_full(), WhenFull::Fail);
    // Later checkpoints and closing keep it.
    write(&world.volume("a").unwrap(), 0).unwrap();
    world.close().unwrap();
    let world = world.reopen();
    assert_eq!(world.when_full(), WhenFull::Fail);
    world.set_when_full(WhenFull::Pause).unwrap();
    assert_eq!(
        world.crash(CrashKind::PowerLoss).store.when_full(),
        WhenFull::Pause
    );
}
