//! Sessions that were closed, and that were not: whether the next one trusts the host's cache.

use std::io::ErrorKind;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op};
use onefold_store::{Blocking, Ready, StoreErrorKind};

use crate::common::{BLOCK, LITTLE_MEMORY, MIB, open, pool_of};
use crate::crash::Recovery;
use crate::guards::{power_loss, small_pool};
use crate::world::{Fill, Step, World};

fn pool(seed: u64) -> (Arc<World>, u64) {
    let world = World::opened(seed, &pool_of(16 * MIB));
    let id = world.new_volume(MIB).unwrap();
    world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
    world.flush(id).unwrap();
    (world, id)
}

/// How often data was read afresh since the machine started.
fn read_afresh(world: &World) -> u64 {
    world.engine().times_forgotten(Part::Data)
}

/// Closes the pool and opens it again. Returns whether its data was read afresh.
fn reopens_afresh(world: &World) -> bool {
    let before = read_afresh(world);
    world.close_and_open(LITTLE_MEMORY).unwrap();
    read_afresh(world) > before
}

#[test]
fn a_closed_session_leaves_the_cache_warm() {
    let (world, id) = pool(1);
    for _ in 0..3 {
        assert!(!reopens_afresh(&world));
        world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
    }
}

/// Records to replay say nothing about data that was rewritten in place.
#[test]
fn without_a_close_data_is_read_afresh_whether_or_not_there_are_records() {
    let (world, id) = pool(2);
    for fill in [None, Some(Fill::Data), Some(Fill::Comb)] {
        assert!(!reopens_afresh(&world));
        if let Some(fill) = fill {
            world.write(id, 0, MIB, fill, Blocking::Yes).unwrap();
        }
        for recovery in [Recovery::KILLED, Recovery::POWER_LOSS] {
            world.recover_by(recovery).unwrap();
            assert_eq!(read_afresh(&world), 1, "{fill:?}, {recovery:?}");
        }
    }
    // Nor does it close a session that the one before it was closed.
    assert!(!reopens_afresh(&world));
    world.recover_by(Recovery::KILLED).unwrap();
    assert_eq!(read_afresh(&world), 1);
}

#[test]
fn a_session_whose_sync_failed_is_not_closed() {
    for (part, nth) in [(Part::Data, 1), (Part::Log, 1), (Part::Meta, 1)] {
        let (world, id) = pool(3);
        world.write(id, 0, MIB, Fill::Comb, Blocking::Yes).unwrap();
        world.state().faulty = true;
        let engine = world.engine();
        engine.fail_once(part, Op::Sync, nth, ErrorKind::Other);
        assert!(world.store().close().is_err(), "{part:?}");
        assert!(world.store().close().is_err(), "{part:?}, once more");
        world.recover_by(Recovery::KILLED).unwrap();
        assert_eq!(read_afresh(&world), 1, "{part:?}");
    }
}

/// The sync that closes a session fails: its last frame may be there or not.
#[test]
fn a_close_that_fails_at_its_end_loses_nothing() {
    for seed in 1..=20 {
        let (world, id) = pool(seed);
        world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
        let syncs = |world: &World| world.engine().count(Part::Log, Op::Sync).count;
        let before = syncs(&world);
        world.close_and_open(LITTLE_MEMORY).unwrap();
        let closing = syncs(&world) - before;
        world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
        world.state().faulty = true;
        let engine = world.engine();
        // Opening syncs the log once.
        let last = closing - 1;
        engine.fail_once(Part::Log, Op::Sync, last, ErrorKind::Other);
        assert!(world.store().close().is_err());
        world.recover_by(Recovery::KILLED).unwrap();
        world.recover_by(Recovery::POWER_LOSS).unwrap();
        world.check().unwrap();
    }
}

/// The sync of an opening fails. The pool is not opened, and the next opening shows no data that
/// the first one's sync has dropped: neither in place nor in blocks that only the tail's copy
/// refers to.
#[test]
fn an_opening_whose_sync_fails_is_refused() {
    for seed in 1..=20 {
        let (world, id) = pool(seed);
        world.create_snapshots(&[id]).unwrap();
        world
            .write(id, 0, MIB / 2, Fill::Data, Blocking::Yes)
            .unwrap();
        world.flush(id).unwrap();
        world.write(id, 0, MIB, Fill::Data, Blocking::Yes).unwrap();
        world.engine().halt();
        let engine = world.engine().crash(CrashKind::ProcessKilled);
        engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
        let opened = open(engine.clone(), LITTLE_MEMORY).map(drop);
        assert_eq!(opened.unwrap_err().kind(), StoreErrorKind::Io);
        // Answered and unflushed data has not outlived that, and the next opening knows.
        world.state().survived = false;
        world.state().has_lost_data = true;
        world.open_after(Recovery::KILLED, engine).unwrap();
        world.verify().unwrap();
        world.recover_by(Recovery::POWER_LOSS).unwrap();
    }
}

/// A sync of rewritten blocks fails, the daemon is started again as its message asks, another volume
/// writes the same and shares it, and the power fails.
pub(crate) fn shared_after_failed_sync(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let (a, b) = (world.new_volume(MIB)?, world.new_volume(MIB)?);
    world.write(a, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    world.write(a, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.state().faulty = true;
    let engine = world.engine();
    engine.fail_once(Part::Data, Op::Sync, 1, ErrorKind::Other);
    world.flush(a)?;
    world.recover_by(Recovery::KILLED)?;
    world.write(b, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.flush(b)?;
    world.dedup(a, Ready::All, 9)?;
    world.dedup(b, Ready::All, 9)?;
    world.flush(b)?;
    power_loss(&world)
}
