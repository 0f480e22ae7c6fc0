//! Pools filled to the last block: nothing is lost, and operations that free blocks still work.

use std::sync::Arc;

use onefold_engine::{Engine, Part};
use onefold_store::{
    Blocking, CreateOptions, Lba, PoolStat, Ready, SpaceLevel, StoreErrorKind, WhenFull,
};

use crate::common::{BLOCK, KINDS, MIB, pool_of};
use crate::crash::Recovery;
use crate::script::stop_everywhere_in;
use crate::world::{Fill, Step, Stop, World, violation};

/// 512 blocks, of which 4 are the reserve.
const OPTIONS: CreateOptions = pool_of(2 * MIB);

fn stat(world: &World) -> Result<PoolStat, Stop> {
    let stat = world.store().stat();
    stat.map_err(|error| violation(format!("stat: {error}")))
}

/// Whether the pool had no space for this request.
pub(crate) fn is_refused(world: &World, request: impl FnOnce() -> Step) -> Result<bool, Stop> {
    let before = world.state().coverage.no_space;
    request()?;
    let now = world.state().coverage.no_space;
    Ok(now > before)
}

/// A request that a full pool has to serve.
fn works(world: &World, what: &str, request: impl FnOnce() -> Step) -> Step {
    if is_refused(world, request)? {
        Err(violation(format!("{what} was refused for want of space")))
    } else {
        Ok(())
    }
}

fn read_all(world: &World) -> Step {
    let ids = [world.volume_ids(), world.snapshot_ids()].concat();
    ids.into_iter()
        .try_for_each(|id| world.read(id, 0, MIB, Blocking::Yes))
}

fn expect_level(world: &World, level: SpaceLevel, free: u64) -> Step {
    let stat = stat(world)?;
    if (stat.space, stat.free_blocks) == (level, free) {
        return Ok(());
    }
    Err(violation(format!(
        "not {level:?} with {free} free: {stat:?}"
    )))
}

/// Writes new data until the pool takes no more. Returns the first block that it did not take.
pub(crate) fn fill(world: &World, id: u64, from: u64) -> Result<u64, Stop> {
    let mut at = from;
    for count in [32, 1] {
        while !is_refused(world, || {
            world.write(id, at * BLOCK, count * BLOCK, Fill::Data, Blocking::Yes)
        })? {
            at += count;
        }
    }
    Ok(at)
}

/// Two volumes with blocks in common, published; one with a snapshot of them. Then new data fills
/// the pool, and overwriting shared blocks takes the reserve, to the last block.
fn filled(world: &Arc<World>) -> Result<(u64, u64, u64), Stop> {
    let (a, b) = (world.new_volume(MIB)?, world.new_volume(4 * MIB)?);
    for id in [a, b] {
        world.write(id, 0, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.dedup(id, Ready::All, 2)?;
    }
    world.create_snapshots(&[a])?;
    world.write(a, 32 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    let end = fill(world, b, 24)?;
    let reserve = stat(world)?.reserve_blocks;
    expect_level(world, SpaceLevel::Full, reserve)?;
    for n in 0..reserve {
        // Blocks of the snapshot, and shared blocks.
        let (id, at) = if n % 2 == 0 { (a, n) } else { (b, n) };
        works(world, "overwriting data", || {
            world.write(id, at * BLOCK, BLOCK, Fill::Data, Blocking::Yes)
        })?;
    }
    Ok((a, b, end))
}

/// Nothing but new blocks needs space, and space that is made is used again.
fn lives_on_full(world: &Arc<World>) -> Step {
    let (a, b, end) = filled(world)?;
    expect_level(world, SpaceLevel::Full, 0)?;
    let overwrite = || world.write(a, 20 * BLOCK, BLOCK, Fill::Data, Blocking::Yes);
    if !is_refused(world, overwrite)? {
        return Err(violation("a full pool had a block".to_owned()));
    }
    works(world, "reading", || read_all(world))?;
    works(world, "rewriting in place", || {
        world.write(a, 33 * BLOCK + 100, 3 * BLOCK, Fill::Data, Blocking::Yes)
    })?;
    works(world, "flushing", || world.flush(b))?;
    works(world, "a checkpoint", || world.check())?;
    works(world, "the finder", || {
        world.dedup(b, Ready::All, 2).map(|_| ())
    })?;
    works(world, "a setting", || {
        let store = world.store();
        world.durably("set", || store.set_when_full(WhenFull::Fail))
    })?;
    works(world, "a snapshot", || world.create_snapshots(&[b]))?;
    for id in world.snapshot_ids() {
        works(world, "deleting a snapshot", || world.delete_snapshot(id))?;
    }
    works(world, "merging", || world.finish_deletions())?;
    works(world, "trimming", || {
        world.trim(b, 40 * BLOCK, 16 * BLOCK, Blocking::Yes)
    })?;
    works(world, "writing zeros", || {
        world.write_zeroes(b, 60 * BLOCK, 8 * BLOCK, Blocking::Yes)
    })?;
    works(world, "the collector", || world.collect())?;
    works(world, "a commit", || world.tick())?;
    works(world, "using what was made free", || {
        world.write(b, end * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)
    })?;
    fill(world, b, end + 8)?;
    works(world, "deleting a volume", || world.delete_volume(b))?;
    works(world, "giving up what it had", || world.finish_deletions())?;
    works(world, "the collector", || world.collect())?;
    works(world, "a commit", || world.tick())?;
    works(world, "the space of a volume", || {
        world.write(a, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)
    })?;
    read_all(world)
}

#[test]
fn a_full_pool_can_do_all_that_makes_space() {
    for index in KINDS {
        let world = World::opened(1, &CreateOptions { index, ..OPTIONS });
        lives_on_full(&world).unwrap();
        world.recover_by(Recovery::POWER_LOSS).unwrap();
        assert_eq!(world.store().when_full(), WhenFull::Fail);
        world.settle().unwrap();
    }
}

#[test]
fn every_io_of_a_full_pool_can_be_the_last() {
    let coverage = stop_everywhere_in(&OPTIONS, lives_on_full, 100);
    assert!(coverage.no_space > 0 && coverage.deletions_resumed > 0);
}

/// New data fills the pool; then a guest overwrites blocks that are shared.
pub(crate) fn overwritten_when_full(seed: u64) -> Step {
    let world = World::new(seed, &OPTIONS);
    let opened = world.open(8 * MIB);
    opened.map_err(|error| violation(error.to_string()))?;
    filled(&world)?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.check()
}

/// The host has no more room for metadata. New blocks are refused once the rest has to be kept for
/// operations that make room; these still work, through many checkpoints.
#[test]
fn a_host_without_room_for_metadata_stops_nothing_that_makes_room() {
    let options = CreateOptions {
        size_bytes: 64 * MIB,
        ..OPTIONS
    };
    let world = World::opened(1, &options);
    let (wide, b) = (
        world.new_volume(64 << 30).unwrap(),
        world.new_volume(MIB).unwrap(),
    );
    world.write(b, 0, MIB, Fill::Common, Blocking::Yes).unwrap();
    let engine = world.engine();
    let allocated = engine.open(Part::Meta).unwrap().allocated_bytes().unwrap();
    engine.set_capacity(Part::Meta, Some(allocated));
    world.state().faulty = true;
    // A block in each segment: each takes a page of its map.
    let segment = |n: u64| n * 2 * MIB;
    let refused = (0..8192).find(|n| {
        let write = || world.write(wide, segment(*n), BLOCK, Fill::Data, Blocking::Yes);
        is_refused(&world, write).unwrap()
    });
    let refused = refused.expect("there were pages for everything");
    assert!((2000..4096).contains(&refused), "{refused} pages");
    assert!(!world.state().must_reopen);
    works(&world, "rewriting in place", || {
        world.write(wide, segment(7), BLOCK, Fill::Data, Blocking::Yes)
    })
    .unwrap();
    let found = world.store().volume("volume-2").unwrap();
    let finder = world
        .store()
        .dedup()
        .find_batch(&found, &mut Lba(0), Ready::All);
    assert_eq!(finder.unwrap_err().kind(), StoreErrorKind::NoSpace);
    drop(found);
    for n in 0..refused / 2 {
        works(&world, "trimming", || {
            world.trim(wide, segment(2 * n), BLOCK, Blocking::Yes)
        })
        .unwrap();
        if n % 64 == 0 {
            works(&world, "flushing", || world.flush(wide)).unwrap();
        }
    }
    works(&world, "a checkpoint", || world.check()).unwrap();
    works(&world, "new data", || {
        world.write(wide, segment(9000), BLOCK, Fill::Data, Blocking::Yes)
    })
    .unwrap();
    works(&world, "the finder", || {
        world.dedup(b, Ready::All, 2).map(|_| ())
    })
    .unwrap();
    works(&world, "the collector", || world.collect()).unwrap();
    world.flush(wide).unwrap();
    // With room again everything works, as after a crash.
    engine.set_capacity(Part::Meta, None);
    world
        .write(wide, segment(refused), 8 * MIB, Fill::Data, Blocking::Yes)
        .unwrap();
    world.flush(wide).unwrap();
    world.recover_by(Recovery::POWER_LOSS).unwrap();
    world.check().unwrap();
}
