//! A host that has no room for the index for a while: operations that need none still work, and all
//! work once there is room again, without opening the pool again.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
use onefold_engine::{Engine, Part};
use onefold_store::{
    Blocking, CreateOptions, IndexKind, Ready, Scarcity, Store, StoreErrorKind, Volume,
};

use crate::common::{
    self, BLOCK, LITTLE_MEMORY, MIB, assert_clean, dedup_ready, new_volume, pool_of, write,
};
use crate::script::stop_everywhere_in;
use crate::world::{Fill, Step, Stop, World, violation};

const OPTIONS: CreateOptions = pool_of(16 * MIB);

/// So little memory that every batch of the index is merged at once.
const NO_MEMORY: Scarcity = Scarcity {
    fingerprint_bits: None,
    index_bytes: Some(1024),
};

/// From here on the index gets this many more pages of the host, or as many as it wants.
fn limit(world: &World, pages: Option<u64>) -> Step {
    let engine = world.engine();
    let now = allocated(&engine).map_err(|_| Stop::Crashed)?;
    engine.set_capacity(Part::Index, pages.map(|pages| now + pages * BLOCK));
    world.state().faulty = pages.is_some();
    Ok(())
}

fn allocated(engine: &SimulatedEngine) -> io::Result<u64> {
    engine.open(Part::Index)?.allocated_bytes()
}

/// Work for finder and collector, some of which a full host refuses.
fn share_and_release(world: &World, round: u64) -> Step {
    for id in world.volume_ids() {
        let at = 64 * round * BLOCK;
        world.write(id, at, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.dedup(id, Ready::All, 1)?;
        world.trim(id, at, 16 * BLOCK, Blocking::Yes)?;
        world.tick()?;
        world.collect_batch()?;
    }
    Ok(())
}

/// The host is full again and again, for as long as a few batches take. Between those times, some
/// write to the index fails although it may have had its full effect.
fn full_now_and_then(world: &Arc<World>) -> Step {
    world.create_volume(MIB)?;
    world.create_volume(MIB)?;
    for (round, pages) in (0..).zip([20, 0, 0, 1]) {
        limit(world, Some(pages))?;
        if round > 0 {
            let full = ErrorKind::StorageFull;
            let engine = world.engine();
            engine.fail_once(Part::Index, Op::Write, round, full);
        }
        share_and_release(world, round)?;
        limit(world, None)?;
        let refused = world.state().coverage.no_space;
        for id in world.volume_ids() {
            world.dedup(id, Ready::All, 2)?;
        }
        world.collect()?;
        world.check()?;
        if world.state().coverage.no_space > refused {
            return Err(violation("there was room, and work was refused"));
        }
    }
    Ok(())
}

#[test]
fn work_goes_on_when_the_host_has_room_for_the_index_again() {
    for scarcity in [Scarcity::default(), NO_MEMORY] {
        scarcity.set();
        let world = World::opened(1, &OPTIONS);
        full_now_and_then(&world).unwrap();
        assert!(world.state().coverage.no_space > 0, "nothing was refused");
        world.settle().unwrap();
    }
    Scarcity::default().set();
}

#[test]
fn every_io_around_a_full_host_can_be_the_last() {
    NO_MEMORY.set();
    let coverage = stop_everywhere_in(&OPTIONS, full_now_and_then, 150);
    Scarcity::default().set();
    assert!(coverage.no_space > 0, "{coverage:?}");
    assert!(coverage.crashes_in_finder > 20, "{coverage:?}");
    assert!(coverage.crashes_in_collector > 20, "{coverage:?}");
}

fn dedup(store: &Store, volume: &Volume) -> Result<(), StoreErrorKind> {
    let done = dedup_ready(store, volume, Ready::All);
    done.map(drop).map_err(|error| error.kind())
}

fn collect(store: &Store) -> Result<u64, StoreErrorKind> {
    common::collect(store).map_err(|error| error.kind())
}

/// The finder asks for more room than it needs, so that the collector has some when the host is
/// full, and continues even if a write fails.
#[test]
fn the_finder_leaves_room_to_the_collector() {
    const BLOCKS: u64 = 6 * MIB / BLOCK;
    let store = common::World::new(&OPTIONS, LITTLE_MEMORY);
    let engine = store.engine.clone();
    let volumes = ["a", "b"].map(|name| {
        let volume = new_volume(&store, name, 6 * MIB);
        (0..BLOCKS).for_each(|lba| write(&volume, lba, [lba + 1]));
        volume.flush().unwrap();
        volume
    });
    let full = || engine.set_capacity(Part::Index, Some(allocated(&engine).unwrap()));
    full();
    for volume in &volumes {
        assert_eq!(dedup(&store, volume), Err(StoreErrorKind::NoSpace));
        assert_eq!(
            volume.pending_dedup_blocks(),
            BLOCKS,
            "blocks were announced"
        );
    }
    engine.set_capacity(Part::Index, None);
    for volume in &volumes {
        assert_eq!(dedup(&store, volume), Ok(()));
    }
    assert_eq!(store.index().stat().unwrap().shared_blocks, BLOCKS);
    full();
    for volume in &volumes {
        volume.trim(0, 6 * MIB, Blocking::Yes).unwrap();
    }
    store.tidy(true).unwrap();
    let kind = ErrorKind::StorageFull;
    engine.fail_once(Part::Index, Op::Write, 1, kind);
    assert_eq!(collect(&store), Err(StoreErrorKind::NoSpace));
    collect(&store).unwrap();
    assert_eq!(store.dedup().pending_release_blocks().unwrap(), 0);
    assert_eq!(store.index().stat().unwrap().references, 0);
    engine.set_capacity(Part::Index, None);
    assert_clean(&store);
    drop(volumes);
    assert_clean(&store.crash(CrashKind::PowerLoss));
}

/// An index in memory begins empty if its written content cannot be read back. Then it is counted
/// before the conversion ends.
#[test]
fn a_conversion_leaves_an_index_that_can_be_used() {
    let mut converted = 0;
    for nth in 1..30 {
        let store = common::World::new(&OPTIONS, LITTLE_MEMORY);
        let volume = new_volume(&store, "a", MIB);
        write(&volume, 0, 1..=MIB / BLOCK);
        assert_eq!(dedup(&store, &volume), Ok(()));
        store
            .engine
            .fail_once(Part::Index, Op::Read, nth, ErrorKind::Other);
        let progress = &mut |_, _| {};
        if store.index().convert(IndexKind::Memory, progress).is_ok() {
            converted += 1;
            assert_eq!(collect(&store), Ok(0), "read {nth} failed");
            volume.trim(0, MIB / 2, Blocking::Yes).unwrap();
            store.tidy(true).unwrap();
            assert_eq!(collect(&store), Ok(MIB / 2 / BLOCK));
            assert_clean(&store);
        }
    }
    assert!(converted > 0);
}
