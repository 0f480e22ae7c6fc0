//! Cases for the guards of log, checkpoint and recovery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_format::frame;
use onefold_store::Blocking;

use super::{crash_is_fine, pool, power_loss, small_pool};
use crate::common::{BLOCK, MIB, superblock};
use crate::crash::Recovery;
use crate::model::Violation;
use crate::world::{Fill, Step, Stop, World, violation};

/// Flushed data is there after a power loss.
pub(super) fn flushed(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    power_loss(&world)
}

/// A power loss anywhere in one of many checkpoints.
pub(super) fn checkpoints_cut_short(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(8 * MIB)?;
    let crash_at = world.draw(|random| random.between(10, 100));
    world.engine().crash_after(crash_at);
    for n in 0..20 {
        let step = world
            .write(id, n * 37 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)
            .and_then(|()| world.flush(id))
            .and_then(|()| world.check());
        match step {
            Err(Stop::Crashed) => break,
            other => other?,
        }
    }
    power_loss(&world)
}

/// While the checkpoint that a full log made necessary is being written, others commit.
pub(super) fn log_wanted_during_checkpoint(seed: u64) -> Step {
    let world = pool(seed, 64 * MIB, 256 << 10)?;
    let id = world.new_volume(MIB)?;
    let round = move |world: &World, blocking| {
        world.write(id, 0, MIB, Fill::Zeros, blocking)?;
        world.write(id, 0, MIB, Fill::Comb, blocking)?;
        world.flush(id)
    };
    // Each takes some 10 KiB: not enough for a checkpoint before the one that is meant.
    for _ in 0..18 {
        round(&world, Blocking::Yes)?;
    }
    world.meanwhile(Part::Meta, Op::Write, When::Before, move |world| {
        for _ in 0..18 {
            round(world, Blocking::No)?;
        }
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.check())?;
    power_loss(&world)
}

/// Others commit between the moment that a checkpoint is of and its root.
pub(super) fn committed_during_checkpoint(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(8 * MIB)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.meanwhile(Part::Meta, Op::Write, When::Before, move |world| {
        world.write(id, 16 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::No)?;
        world.flush(id)
    });
    world.check()?;
    power_loss(&world)
}

/// The process dies, is started again, and only then the power fails.
pub(super) fn killed_then_power_loss(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// One bit flips in a frame of the log that commits follow.
pub(super) fn frame_decays(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    for n in 0..6 {
        world.write(id, n * 8 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
        world.flush(id)?;
    }
    let at = world.draw(|random| 1024 + random.below(64 + 48));
    let engine = world.engine();
    engine.flip_bit(Part::Log, at, world.draw(|random| random.below(8)) as u32);
    engine.halt();
    let after = engine.crash(CrashKind::ProcessKilled);
    match world.open_after(Recovery::KILLED, after) {
        Err(Stop::Violation(Violation(message))) if message.contains("Damaged") => Ok(()),
        Err(stop) => Err(stop),
        Ok(_) => world.verify(),
    }
}

/// Two sessions each lose a part of a commit of two frames, in the same place of the log.
pub(super) fn torn_twice(seed: u64) -> Step {
    let world = pool(seed, 64 * MIB, MIB)?;
    let (a, b) = (world.new_volume(64 * MIB)?, world.new_volume(64 * MIB)?);
    let (first, second) = fill_two_frames(&world, a)?;
    let lost_first = |after: &SimulatedEngine| {
        whole_frame(after, first).is_none() && whole_frame(after, second).is_some()
    };
    let Some(after) = outcome(&world, lost_first) else {
        return Ok(());
    };
    let recovery = Recovery {
        memory_bytes: 64 * MIB,
        ..Recovery::POWER_LOSS
    };
    world.open_after(recovery, after)?;
    world.verify()?;
    let places = fill_two_frames(&world, b)?;
    if places != (first, second) {
        let message = format!("frames at {first} and {second}, then at {places:?}");
        return Err(violation(message));
    }
    let engine = world.engine();
    let (new_first, new_second) = (whole_frame(&engine, first), whole_frame(&engine, second));
    let kept_old_second = |after: &SimulatedEngine| {
        let found = whole_frame(after, second);
        whole_frame(after, first) == new_first && found.is_some() && found != new_second
    };
    let Some(after) = outcome(&world, kept_old_second) else {
        return Ok(());
    };
    world.open_after(recovery, after)?;
    world.verify()?;
    world.check()
}

/// An outcome of a power loss at this moment that meets the condition, if one is found soon.
fn outcome(world: &World, is_wanted: impl Fn(&SimulatedEngine) -> bool) -> Option<SimulatedEngine> {
    let engine = world.engine();
    let mut outcomes = (0..200).map(|_| engine.crash(CrashKind::PowerLoss));
    outcomes.find(is_wanted)
}

/// The checksum of the frame at this place, if it is whole.
fn whole_frame(engine: &SimulatedEngine, at: u64) -> Option<u32> {
    let bytes = engine.read_raw(Part::Log, at, 2 * frame::FRAME_PAYLOAD_MAX);
    let header = frame::decode_header(&bytes, superblock(engine).pool).ok()?;
    frame::check(&header, &bytes).ok()?;
    Some(header.checksum)
}

/// Makes one commit of two frames, stopped before it is synced; returns their places.
fn fill_two_frames(world: &Arc<World>, id: u64) -> Result<(u64, u64), Stop> {
    world.flush(id)?;
    // 256 records of 48 bytes each time: more than fit one frame, less than fit two.
    for n in 0..frame::FRAME_PAYLOAD_MAX as u64 * 4 / 3 / (256 * 48) {
        world.write(id, n * 2 * MIB, 2 * MIB, Fill::Comb, Blocking::Yes)?;
    }
    world.meanwhile(Part::Log, Op::Sync, When::Before, |world| {
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.flush(id))?;
    let engine = world.engine();
    let places = (0..MIB).step_by(512).filter(|at| {
        let header = engine.read_raw(Part::Log, *at, frame::FRAME_HEADER_BYTES);
        let decoded = frame::decode_header(&header, superblock(&engine).pool);
        decoded.is_ok_and(|frame| frame.payload_bytes > 10_000)
    });
    match places.collect::<Vec<u64>>()[..] {
        [.., first, second] => Ok((first, second)),
        ref places => Err(violation(format!("frames at {places:?}"))),
    }
}

/// A snapshot of two volumes whose records come where a frame of the log ends, of which only the
/// first is written.
pub(super) fn frozen_across_frames(seed: u64) -> Step {
    let world = pool(seed, 32 * MIB, 1 << 20)?;
    world.create_volume(MIB)?;
    world.create_volume(32 * MIB)?;
    let volumes = world.volume_ids();
    world.flush(volumes[1])?;
    // Every other block is a record of 48 bytes.
    let records = frame::FRAME_PAYLOAD_MAX as u64 / 48 - 96 + seed;
    for block in (0..2 * records).step_by(128) {
        let blocks = (2 * records - block).min(128);
        world.write(
            volumes[1],
            block * BLOCK,
            blocks * BLOCK,
            Fill::Comb,
            Blocking::Yes,
        )?;
    }
    world.meanwhile(Part::Log, Op::Write, When::After, |world| {
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.create_snapshots(&volumes))?;
    power_loss(&world)
}

/// A defect ends a commit in its middle. A later flush must not succeed.
pub(super) fn panic_in_commit(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    let part = if seed.is_multiple_of(2) {
        Part::Log
    } else {
        Part::Data
    };
    let op = if seed.is_multiple_of(2) {
        Op::Write
    } else {
        Op::Sync
    };
    let panics = Box::new(|| panic!("a defect, made by a test"));
    world.engine().on_next_io(part, op, When::Before, panics);
    let volume = world.handle(id)?;
    let flushed = catch_unwind(AssertUnwindSafe(|| volume.flush()));
    if flushed.is_ok() {
        return Err(violation("the flush was to panic"));
    }
    world.state().faulty = true;
    world.flush(id)?;
    world.write(id, 32 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    drop(volume);
    power_loss(&world)
}
