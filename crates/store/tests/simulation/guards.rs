//! Each guard of the protocol is necessary: without it the simulation finds a loss.
//!
//! For every guard there is a script that leads to where the guard matters. With the guard it must
//! always end well, without it some seed must find a violation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine, When};
use onefold_format::frame;
use onefold_store::{
    Blocking, CreateOptions, Guard, IndexKind, Ready, Scarcity, VolumeOptions, VolumeSettings,
};

use crate::common::{BLOCK, MEMORY, MIB, pool_of, superblock};
use crate::crash::Recovery;
use crate::inline;
use crate::model::Violation;
use crate::scrub_guards;
use crate::takeover;
use crate::world::{Fill, Step, Stop, World, violation};

/// Seeds tried for each guard, with it and without it.
const SEEDS: u64 = 60;

fn pool(seed: u64, size_bytes: u64, log_bytes: u64) -> Result<Arc<World>, Stop> {
    let options = CreateOptions {
        log_bytes,
        ..pool_of(size_bytes)
    };
    let world = World::new(seed, &options);
    world.state().trace = std::env::var_os("ONEFOLD_SIM_TRACE").is_some();
    let opened = world.open(MEMORY);
    opened.map_err(|error| violation(error.to_string()))?;
    Ok(world)
}

pub(crate) fn small_pool(seed: u64) -> Result<Arc<World>, Stop> {
    pool(seed, 4 * MIB, 256 << 10)
}

/// Continues where a script ordered a crash.
pub(crate) fn crash_is_fine(step: Step) -> Step {
    match step {
        Err(Stop::Crashed) => Ok(()),
        other => other,
    }
}

pub(crate) fn power_loss(world: &World) -> Step {
    world.found()?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.check()
}

/// Flushed data is there after a power loss.
fn flushed(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    power_loss(&world)
}

/// A write needs blocks that a trim released, while the trim's record is only in memory.
fn reused_before_commit(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let (a, b) = (world.new_volume(8 * MIB)?, world.new_volume(8 * MIB)?);
    world.write(a, 0, MIB, Fill::Data, Blocking::Yes)?;
    world.write(a, MIB, 3 * MIB - 10 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    world.trim(a, 0, MIB, Blocking::Yes)?;
    world.write(b, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    power_loss(&world)
}

/// Blocks are released and requested again while they are being read.
fn reused_while_read(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let (a, b) = (world.new_volume(8 * MIB)?, world.new_volume(8 * MIB)?);
    world.write(a, 0, MIB, Fill::Data, Blocking::Yes)?;
    world.write(a, MIB, 3 * MIB - 10 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.meanwhile(Part::Data, Op::Read, When::Before, move |world| {
        world.trim(a, 0, MIB, Blocking::Yes)?;
        world.flush(a)?;
        world.tick()?;
        world.tick()?;
        world.write(b, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)
    });
    world.read(a, 0, MIB, Blocking::Yes)?;
    world.found()?;
    world.write(b, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    power_loss(&world)
}

/// Blocks are wanted while they are being given back to the host.
fn reused_while_discarded(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let (a, b) = (world.new_volume(8 * MIB)?, world.new_volume(8 * MIB)?);
    world.write(a, 0, 4 * MIB - 10 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.trim(a, 0, MIB, Blocking::Yes)?;
    world.flush(a)?;
    world.meanwhile(Part::Data, Op::Discard, When::Before, move |world| {
        world.write(b, 0, 64 * BLOCK, Fill::Data, Blocking::Yes)
    });
    world.tick()?;
    world.found()?;
    world.read(b, 0, MIB, Blocking::Yes)?;
    power_loss(&world)
}

/// Two requests change parts of one block.
fn two_writers_of_a_block(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.meanwhile(Part::Data, Op::Read, When::After, move |world| {
        world.write(id, 1024, 512, Fill::Data, Blocking::No)
    });
    world.write(id, 0, 512, Fill::Data, Blocking::Yes)?;
    world.found()?;
    world.read(id, 0, BLOCK, Blocking::Yes)?;
    power_loss(&world)
}

/// A volume shrinks while a long write to it is in flight, and grows again.
fn cut_while_written(seed: u64) -> Step {
    let world = pool(seed, 16 * MIB, MIB)?;
    let id = world.new_volume(4 * MIB)?;
    world.write(id, 0, 2 * MIB, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    let volume = world.handle(id)?;
    let mut bytes = vec![0xab; 3 << 20];
    let read = volume.read(0, &mut bytes[..2 << 20], Blocking::Yes);
    read.map_err(|error| violation(error.to_string()))?;
    world.meanwhile(Part::Data, Op::Write, When::After, move |world| {
        world.resize_volume(id, 2 * MIB)
    });
    // The model knows the first half, and that nothing is behind it once the volume has shrunk.
    let written = volume.write(0, &bytes, Blocking::Yes);
    world.found()?;
    world.resize_volume(id, 4 * MIB)?;
    world.read(id, 0, 4 * MIB, Blocking::Yes)?;
    if written.is_ok() {
        return Err(violation("a write beyond the end was answered"));
    }
    power_loss(&world)
}

/// A volume ends inside a block for a while.
fn cut_in_a_block(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.resize_volume(id, 2 * BLOCK + 512)?;
    world.resize_volume(id, MIB)?;
    world.read(id, 0, 4 * BLOCK, Blocking::Yes)?;
    power_loss(&world)
}

/// Other flushes commit while a write to a block that held something else is in flight.
fn committed_before_written(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let (a, b) = (world.new_volume(8 * MIB)?, world.new_volume(8 * MIB)?);
    world.write(a, 0, MIB, Fill::Data, Blocking::Yes)?;
    world.write(a, MIB, 3 * MIB - 10 * BLOCK, Fill::Data, Blocking::Yes)?;
    // Too few to be discarded, so they keep their content.
    world.trim(a, 0, 8 * BLOCK, Blocking::Yes)?;
    world.flush(a)?;
    world.tick()?;
    world.meanwhile(Part::Data, Op::Write, When::Before, move |world| {
        world.flush(a)?;
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.write(b, 0, 8 * BLOCK, Fill::Data, Blocking::Yes))?;
    power_loss(&world)
}

/// A power loss anywhere in one of many checkpoints.
fn checkpoints_cut_short(seed: u64) -> Step {
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
fn log_wanted_during_checkpoint(seed: u64) -> Step {
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
fn committed_during_checkpoint(seed: u64) -> Step {
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
fn killed_then_power_loss(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.write(id, 0, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// One bit flips in a frame of the log that commits follow.
fn frame_decays(seed: u64) -> Step {
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
fn torn_twice(seed: u64) -> Step {
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

/// A sync fails once.
fn sync_fails(seed: u64) -> Step {
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
fn neighbours_read_after_failed_sync(seed: u64) -> Step {
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

/// The process dies in the middle of an import.
fn import_interrupted(seed: u64) -> Step {
    let world = small_pool(seed)?;
    world.begin_import(MIB)?;
    world.write_import(0, 8 * BLOCK, Fill::Data)?;
    power_loss(&world)
}

/// Two volumes with blocks of one common content each way, all of them published.
pub(crate) fn shared_pool(seed: u64) -> Result<(Arc<World>, u64, u64), Stop> {
    let world = small_pool(seed)?;
    let (a, b) = (world.new_volume(MIB)?, world.new_volume(MIB)?);
    for id in [a, b] {
        world.write(id, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
        world.dedup(id, Ready::All, 9)?;
    }
    world.flush(a)?;
    Ok((world, a, b))
}

/// A block that two volumes share is written in one of them.
fn shared_is_rewritten(seed: u64) -> Step {
    let (world, a, b) = shared_pool(seed)?;
    world.write(a, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.read(b, 0, 16 * BLOCK, Blocking::Yes)?;
    power_loss(&world)
}

/// The machine stops right after the index has counted blocks, and others take their places.
fn index_hears_first(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.meanwhile(Part::Index, Op::Sync, When::After, |world| {
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.dedup(id, Ready::All, 9).map(|_| ()))?;
    world.found()?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(id, 16 * BLOCK, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(id, Ready::All, 9)?;
    world.read(id, 0, MIB, Blocking::Yes)?;
    power_loss(&world)
}

/// Blocks are rewritten while the finder fingerprints them.
fn rewritten_while_published(seed: u64) -> Step {
    let (world, a, b) = shared_pool(seed)?;
    world.write(a, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.meanwhile(Part::Data, Op::Read, When::After, move |world| {
        world.write(a, 4 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)
    });
    world.dedup(a, Ready::All, 9)?;
    world.found()?;
    world.read(a, 0, 16 * BLOCK, Blocking::Yes)?;
    world.read(b, 0, 16 * BLOCK, Blocking::Yes)?;
    world.flush(a)?;
    power_loss(&world)?;
    world.settle()
}

/// All contents have one of two fingerprints.
fn fingerprints_collide(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let scarcity = Scarcity {
        fingerprint_bits: Some(1),
        ..Scarcity::default()
    };
    scarcity.set();
    world.state().scarcity = scarcity;
    let options = VolumeOptions::new(MIB).with(VolumeSettings {
        verify: true,
        ..VolumeSettings::default()
    });
    world.create_volume_as(&options)?;
    let id = world.volume_ids()[0];
    world.write(id, 0, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.write(id, 8 * BLOCK, 24 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(id, Ready::All, 9)?;
    world.read(id, 0, MIB, Blocking::Yes)?;
    world.flush(id)?;
    power_loss(&world)?;
    world.write(id, 4 * BLOCK, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.settle()
}

/// One of two references to a block is dropped, and its place is requested.
fn one_reference_of_two(seed: u64) -> Step {
    let (world, a, b) = shared_pool(seed)?;
    world.trim(a, 0, MIB, Blocking::Yes)?;
    world.collect()?;
    world.flush(a)?;
    world.tick()?;
    world.write(a, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.read(b, 0, MIB, Blocking::Yes)?;
    power_loss(&world)
}

/// The index becomes one of another kind right after a batch.
fn converted_after_batch(seed: u64) -> Step {
    let (world, a, _) = shared_pool(seed)?;
    world.write(a, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(a, Ready::All, 1)?;
    world.remake_index(Some(IndexKind::Btree))?;
    power_loss(&world)?;
    world.settle()
}

/// Blocks that a snapshot holds are written by its volume.
fn written_after_snapshot(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.create_snapshots(&[id])?;
    world.write(id, 4 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.verify_contents()?;
    power_loss(&world)
}

/// A snapshot of two volumes whose records come where a frame of the log ends, of which only the
/// first is written.
fn frozen_across_frames(seed: u64) -> Step {
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

/// A snapshot is deleted whose blocks were being published when the machine stopped.
fn merged_while_published(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.create_snapshots(&[id])?;
    let snapshot = world.snapshot_ids()[0];
    world.meanwhile(Part::Index, Op::Sync, When::After, |world| {
        world.engine().halt();
        Ok(())
    });
    crash_is_fine(world.dedup(snapshot, Ready::All, 9).map(|_| ()))?;
    world.found()?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.delete_snapshot(snapshot)?;
    world.finish_deletions()?;
    world.settle()
}

/// A pool grows, is full at once, and loses power.
fn grown_before_root(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(8 * MIB)?;
    world.write(id, 0, 3 * MIB, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.engine().crash_after(1 + seed % 4);
    crash_is_fine(world.grow_pool(4 * MIB))?;
    power_loss(&world)
}

/// A pool gets a new end before blocks of a volume.
fn cut_when_empty(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(4 * MIB)?;
    world.write(id, 0, 3 * MIB, Fill::Data, Blocking::Yes)?;
    // The first two have the pool's second half, and the last one its first.
    world.trim(id, 0, MIB, Blocking::Yes)?;
    world.trim(id, 2 * MIB, MIB, Blocking::Yes)?;
    world.flush(id)?;
    world.engine().crash_after(2 + seed % 14);
    let shrunk = world.shrink_pool(2 * MIB).map(|_| ());
    crash_is_fine(shrunk)?;
    power_loss(&world)?;
    world.go_on_shrinking()?;
    world.verify_contents()?;
    power_loss(&world)
}

/// A pool begins to shrink while its log has more changes than an opening may keep. The first of them
/// leave nothing beyond the new end, and the others do.
fn shrinking_begun_then_crash(seed: u64) -> Step {
    let world = pool(seed, 16 * MIB, MIB)?;
    let id = world.new_volume(1024 * MIB)?;
    for segment in 0..300 {
        world.write(id, segment * 2 * MIB, BLOCK, Fill::Data, Blocking::Yes)?;
        world.trim(id, segment * 2 * MIB, BLOCK, Blocking::Yes)?;
    }
    world.flush(id)?;
    // More than there is before the new end.
    world.write(id, BLOCK, 13 * MIB, Fill::Data, Blocking::Yes)?;
    world.trim(id, BLOCK, 12 * MIB, Blocking::Yes)?;
    world.durably("begin to shrink the pool", || {
        let first_size_bytes = world.store().plan_shrink(12 * MIB)?.first_size_bytes;
        world.state().pool_sizes.push(first_size_bytes);
        world.store().begin_shrink(first_size_bytes)
    })?;
    world.recover_by(if seed.is_multiple_of(2) {
        Recovery::POWER_LOSS
    } else {
        Recovery::KILLED
    })?;
    world.go_on_shrinking()?;
    world.verify_contents()?;
    power_loss(&world)
}

/// Answered requests are there after the process died, flushed or not; and again after the next one
/// died while it took them over.
fn answered_then_killed(seed: u64) -> Step {
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
fn left_behind_then_power_loss(seed: u64) -> Step {
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
fn failed_sync_then_killed(seed: u64) -> Step {
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
fn failed_sync_then_killed_twice(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    fail_next_sync(&world, id)?;
    world.crash_and_open(Recovery::KILLED)?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// The process is killed in a sync, which then fails.
fn killed_in_a_sync_that_fails(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    world.engine().set_orphan_failure_rate(1.0);
    world.engine().crash_after(1);
    crash_is_fine(world.flush(id))?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// The process is killed in a sync, which then succeeds. New blocks were rewritten before.
fn killed_in_a_sync_after_rewrites(seed: u64) -> Step {
    let (world, id) = with_new_blocks(seed)?;
    world.write(id, 40 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.engine().crash_after(1);
    crash_is_fine(world.flush(id))?;
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// A sync of blocks that were rewritten in place fails.
fn failed_sync_of_rewrites(seed: u64) -> Step {
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
fn killed_after_the_host_lost_data(seed: u64) -> Step {
    let (world, _) = with_new_blocks(seed)?;
    world.engine().set_orphan_failure_rate(1.0);
    world.recover_by(Recovery::KILLED)?;
    power_loss(&world)
}

/// A defect ends a commit in its middle. A later flush must not succeed.
fn panic_in_commit(seed: u64) -> Step {
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

/// A snapshot is made and deleted in the middle of a read.
fn layer_emptied_while_read(seed: u64) -> Step {
    let world = pool(seed, 32 * MIB, MIB)?;
    let id = world.new_volume(8 * MIB)?;
    world.write(id, 0, 8 * MIB, Fill::Data, Blocking::Yes)?;
    world.create_snapshots(&[id])?;
    world.write(id, 0, 8 * MIB, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.meanwhile(Part::Data, Op::Read, When::Before, move |world| {
        world.create_snapshots(&[id])?;
        let newest = world.snapshot_ids().into_iter().max();
        newest.map_or(Ok(()), |newest| world.delete_snapshot(newest))?;
        world.finish_deletions()
    });
    world.read(id, 0, 8 * MIB, Blocking::Yes)?;
    world.found()?;
    power_loss(&world)
}

/// The script in which a guard matters; none where only real threads meet it (`schedules.rs`).
fn script(guard: Guard) -> Option<fn(u64) -> Step> {
    let script: fn(u64) -> Step = match guard {
        Guard::PublishedLocked | Guard::ReplacedWhenUnused => return None,
        Guard::LookupValidated => layer_emptied_while_read,
        Guard::TailCopied | Guard::TailMatchedToLog => answered_then_killed,
        Guard::SyncsCounted => killed_in_a_sync_that_fails,
        Guard::NewBlocksCompared => failed_sync_then_killed,
        Guard::RewritesMarked => killed_in_a_sync_after_rewrites,
        Guard::LostListedFirst => failed_sync_then_killed_twice,
        Guard::LossTold => failed_sync_of_rewrites,
        Guard::HostAskedForLosses => killed_after_the_host_lost_data,
        Guard::TailOfThisBoot => left_behind_then_power_loss,
        Guard::PanicStopsWrites => panic_in_commit,
        Guard::PoolSyncedBeforeLog | Guard::LogSyncedBeforeReply | Guard::FlushJoinsLaterCommit => {
            flushed
        }
        Guard::ReuseAfterCommit => reused_before_commit,
        Guard::ReuseAfterReaders => reused_while_read,
        Guard::BlocksLocked => two_writers_of_a_block,
        Guard::EndLookedAtLocked => cut_while_written,
        Guard::LastBlockCut => cut_in_a_block,
        Guard::DataBeforeRecord => committed_before_written,
        Guard::PagesSyncedBeforeRoot | Guard::RootSyncedBeforeReuse => checkpoints_cut_short,
        Guard::DataGrownBeforeRoot => grown_before_root,
        Guard::CutWhenEmpty => cut_when_empty,
        Guard::CutAfterRecovery => shrinking_begun_then_crash,
        Guard::LogPrunedAfterRoot => log_wanted_during_checkpoint,
        Guard::CheckpointIsSharp => committed_during_checkpoint,
        Guard::RecoverySyncsFirst => killed_then_power_loss,
        Guard::GapIsDamage => frame_decays,
        Guard::SessionsKeptApart => torn_twice,
        Guard::FailedSyncStopsWrites => sync_fails,
        Guard::DoubtedNotRead => neighbours_read_after_failed_sync,
        Guard::ImportsFinishedOrRemoved => import_interrupted,
        Guard::DiscardBeforeReuse => reused_while_discarded,
        Guard::SharedNotInPlace => shared_is_rewritten,
        Guard::IntentBeforeCall => index_hears_first,
        Guard::AliasOnlyIfUnmoved | Guard::DanglingGivesBack => rewritten_while_published,
        Guard::VerifyBytes => fingerprints_collide,
        Guard::FreeOnlyAtZero => one_reference_of_two,
        Guard::SettledBeforeConversion => converted_after_batch,
        Guard::FrozenNotInPlace => written_after_snapshot,
        Guard::FrozenTogether => frozen_across_frames,
        Guard::SettledBeforeMerge => merged_while_published,
        Guard::SuspectsConfirmed => |seed| Ok(scrub_guards::freed_while_scrubbed(seed)?),
        Guard::BadNotShared => |seed| Ok(scrub_guards::met_again(seed)?),
        Guard::HealedBeforeUnlisted => |seed| Ok(scrub_guards::healed_then_power_loss(seed)?),
        Guard::ListedNotReused => |seed| Ok(scrub_guards::wanted_while_forgotten(seed)?),
        Guard::ReserveForOverwrites => crate::full::overwritten_when_full,
        Guard::UnclosedDataReadAfresh => crate::closing::shared_after_failed_sync,
        Guard::QuotaLookedAtLocked => crate::space_limits::quota_wanted_twice,
        Guard::ReservedKeptFromOthers => crate::space_limits::reserved_then_wanted,
        Guard::RepeatTakesFirstAnswers => crate::open_batches::counted_then_repeated,
        Guard::ClaimWithEntry => |seed| Ok(inline::hit_then_power_loss(seed)?),
        Guard::ClaimsBeforeRelease => |seed| Ok(inline::released_while_claimed(seed)?),
        Guard::HitNotCollected => |seed| Ok(inline::hit_while_collected(seed)?),
        Guard::HitSettled => |seed| Ok(inline::hit_while_published(seed)?),
        Guard::HitStillValid => |seed| Ok(inline::freed_before_hit(seed)?),
        Guard::SameStillValid => |seed| Ok(inline::freed_before_same(seed)?),
        Guard::CountIntentDurable => |seed| Ok(inline::counted_before_durable(seed)?),
        Guard::RebuildLessClaims => |seed| Ok(inline::rebuilt_while_claimed(seed)?),
        Guard::RebuildCountsHits => |seed| Ok(inline::hit_on_announced_entry(seed)?),
        Guard::HitOfThisIndex => |seed| Ok(inline::hit_across_rebuild(seed)?),
        Guard::CountKnownRow => |seed| Ok(inline::row_lost_while_claimed(seed)?),
        Guard::HitNotBad => |seed| Ok(inline::bad_block_written_again(seed)?),
        Guard::FencedBeforeTaken => takeover::died_in_a_write,
        Guard::LockedInEveryOwnersWrite => takeover::died_unfenced_in_a_commit,
        Guard::LostIsNotZeros => takeover::an_object_is_lost,
    };
    Some(script)
}

/// Runs a script with or without its guard.
fn attempt(guard: Guard, script: fn(u64) -> Step, off: bool, seed: u64) -> Result<(), String> {
    Guard::turn_off(off.then_some(guard));
    let ended = catch_unwind(AssertUnwindSafe(|| script(seed)));
    Guard::turn_off(None);
    Scarcity::default().set();
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Stop::Violation(Violation(message)))) => Err(message),
        Ok(Err(Stop::Crashed)) => Err("a crash that nobody ordered".to_owned()),
        Err(_) => Err("a panic".to_owned()),
    }
}

#[test]
fn every_guard_is_worth_something() {
    let mut useless = Vec::new();
    let only = std::env::var("ONEFOLD_SIM_GUARD").ok();
    for guard in Guard::ALL {
        if only
            .as_ref()
            .is_some_and(|only| *only != format!("{guard:?}"))
        {
            continue;
        }
        let Some(script) = script(guard) else {
            continue;
        };
        for seed in 1..=SEEDS {
            if let Err(message) = attempt(guard, script, false, seed) {
                panic!("{guard:?} holds, and yet, with seed {seed}: {message}");
            }
        }
        let found = (1..=SEEDS).find_map(|seed| {
            let message = attempt(guard, script, true, seed).err()?;
            Some((seed, message))
        });
        match found {
            Some((seed, message)) => println!("{guard:?}: seed {seed}: {message}"),
            None => useless.push(guard),
        }
    }
    assert_eq!(
        useless,
        [],
        "nothing was lost without them in {SEEDS} seeds"
    );
}
