//! Cases for the guards of answered writes that a process left behind, or that a failed sync lost.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::Op;
use onefold_format::frame;
use onefold_store::Blocking;

use super::{crash_is_fine, pool, power_loss, small_pool};
use crate::common::{BLOCK, MIB};
use crate::crash::Recovery;
use crate::world::{Fill, Step, Stop, World, violation};

/// A sync fails once.
pub(super) fn sync_fails(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.state().faulty = true;
    let engine = world.engine();
    engine.fail_once(Part::Data, Op::Sync, 1, std::io::ErrorKind::Other);
    world.flush(id)?;
    world.flush(id)?;
    power_loss(&world)
}

/// Part of a block is rewritten after a snapshot, and the sync fails that should make it durable.
pub(super) fn neighbours_read_after_failed_sync(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.create_snapshots(&[id])?;
    world.flush(id)?;
    world.write(id, 0, BLOCK / 2, Fill::Data, Blocking::Yes)?;
    world.state().faulty = true;
    let engine = world.engine();
    engine.set_eviction_rate(Part::Data, 1.0);
    engine.fail_once(Part::Data, Op::Sync, 1, std::io::ErrorKind::Other);
    world.flush(id)?;
    world.read(id, 0, BLOCK, Blocking::Yes)?;
    world.read(id, BLOCK, 7 * BLOCK, Blocking::Yes)?;
    power_loss(&world)
}

/// Answered requests are there after the process died, flushed or not; and again after the next one
/// died while it took them over.
pub(super) fn answered_then_killed(seed: u64) -> Step {
    let world = pool(seed, 16 * MIB, MIB)?;
    let id = world.new_volume(8 * MIB)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(id, 0, 8 * BLOCK, Blocking::Yes)?;
    if seed.is_multiple_of(2) {
        // More records than one frame has.
        let blocks = 4 * frame::FRAME_PAYLOAD_MAX as u64 / 3 / 48;
        for block in (128..128 + 2 * blocks).step_by(128) {
            let (at, len) = (block % 1920 * BLOCK, 128 * BLOCK);
            world.write(id, at, len, Fill::Comb, Blocking::Yes)?;
        }
    }
    if seed.is_multiple_of(3) {
        // The log gets the first of them, or all but the last.
        world.engine().crash_after(1 + seed % 5);
        crash_is_fine(world.flush(id))?;
    }
    let mut recovery = Recovery {
        crash_at: Some(1 + seed % 12),
        ..Recovery::KILLED
    };
    while !world.crash_and_open(recovery)? {
        recovery.crash_at = None;
    }
    world.verify()?;
    world.check()?;
    power_loss(&world)
}

/// Remains of a process from before a power loss are useless.
pub(super) fn left_behind_then_power_loss(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    // So that the next write needs new blocks.
    world.create_snapshots(&[id])?;
    world.write(id, 16 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    power_loss(&world)?;
    power_loss(&world)
}

/// A pool of which a volume has durable content, and answered writes to new blocks.
pub(crate) fn with_new_blocks(seed: u64) -> Result<(Arc<World>, u64), Stop> {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    // So that the next write needs new blocks.
    world.create_snapshots(&[id])?;
    world.write(id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    Ok((world, id))
}

fn fail_next_sync(world: &World, id: u64) -> Step {
    world.state().faulty = true;
    world.state().sync_failed = true;
    let kind = std::io::ErrorKind::Other;
    world.engine().fail_once(Part::Data, Op::Sync, 1, kind);
    world.flush(id)
}

/// A sync fails, and the process is killed before any restart.
pub(super) fn failed_sync_then_killed(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    fail_next_sync(&world, id)?;
    world.recover_by(Recovery::KILLED)?;
    // All were written again, and the pool can reuse the old blocks.
    if world.state().is_beyond_model {
        return Err(violation("blocks that were written anew are lost for ever"));
    }
    power_loss(&world)
}

/// A sync fails, the process is killed before any restart, and the next one dies before it has compared blocks.
pub(super) fn failed_sync_then_killed_twice(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    fail_next_sync(&world, id)?;
    world.crash_and_open(Recovery::KILLED)?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// The process is killed in a sync, which then fails.
pub(super) fn killed_in_a_sync_that_fails(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    world.engine().set_orphan_failure_rate(1.0);
    world.engine().crash_after(1);
    crash_is_fine(world.flush(id))?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// The process is killed in a sync, which then succeeds. New blocks were rewritten before.
pub(super) fn killed_in_a_sync_after_rewrites(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    world.write(id, 40 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.engine().crash_after(1);
    crash_is_fine(world.flush(id))?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// A sync of blocks that were rewritten in place fails.
pub(super) fn failed_sync_of_rewrites(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    fail_next_sync(&world, id)?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// The kernel fails to write data out by itself, and the process is killed.
pub(super) fn killed_after_the_host_lost_data(seed: u64) -> Step {
    let (world, _) = with_new_blocks(seed)?;
    world.engine().set_orphan_failure_rate(1.0);
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}
