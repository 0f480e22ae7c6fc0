//! A cluster, where a dead owner's operations may take effect while the next one works: cases for the guards that
//! the engine keeps, see `guards.rs`.
//!
//! With a fence they add nothing to the states that the death itself may leave: an operation that arrives at an object
//! before the new owner has touched it might as well have arrived before that owner began. So the assertion on the log
//! and the roots is tested without the fence, as after an operator has broken the owner's lock by hand.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::CrashKind;
use onefold_store::{Blocking, CreateOptions, Guard, StoreErrorKind};

use crate::common::{BLOCK, MEMORY, MIB, pool_of};
use crate::crash::Recovery;
use crate::guards::crash_is_fine;
use crate::world::{Fill, Step, Stop, World, violation};

/// A pool whose parts have few objects.
fn pool(seed: u64, is_fenced: bool) -> Result<Arc<World>, Stop> {
    let options: CreateOptions = pool_of(4 * MIB);
    let world = World::in_cluster(seed, &options, 4 * MIB, is_fenced);
    world.state().trace = std::env::var_os("ONEFOLD_SIM_TRACE").is_some();
    let opened = world.open(MEMORY);
    opened.map_err(|error| violation(error.to_string()))?;
    Ok(world)
}

/// Another host takes the pool, and nothing that is late arrives before it has read everything.
fn take_over(world: &World) -> Step {
    world.stop();
    let engine = world.engine().crash(CrashKind::PowerLoss);
    engine.set_late_rate(0.0);
    world.open_after(Recovery::POWER_LOSS, engine)?;
    world.verify()
}

/// All that is late arrives, and the next host takes the pool.
fn taken_over_again(world: &World, id: u64) -> Step {
    world.engine().set_late_rate(1.0);
    world.read(id, 0, BLOCK, Blocking::Yes)?;
    world.recover_by(Recovery::POWER_LOSS)?;
    world.check()
}

/// An owner dies in a write. Nothing refers to its blocks, so another volume gets them.
pub(crate) fn died_in_a_write(seed: u64) -> Step {
    let world = pool(seed, Guard::FencedBeforeTaken.holds())?;
    let (a, b) = (world.new_volume(MIB)?, world.new_volume(8 * MIB)?);
    world.write(a, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(a)?;
    world.engine().crash_after(1);
    crash_is_fine(world.write(a, 32 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::Yes))?;
    take_over(&world)?;
    // All free blocks, except for the records' room.
    let rest = 4 * MIB - 40 * BLOCK;
    world.write(b, 0, rest, Fill::Data, Blocking::Yes)?;
    world.flush(b)?;
    taken_over_again(&world, b)
}

/// An owner that is not fenced dies in a commit or a checkpoint. All of its data is there.
pub(crate) fn died_unfenced_in_a_commit(seed: u64) -> Step {
    let world = pool(seed, false)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.engine().crash_after(1 + seed % 6);
    let ended = if seed.is_multiple_of(2) {
        world.flush(id)
    } else {
        world.check()
    };
    crash_is_fine(ended)?;
    take_over(&world)?;
    world.write(id, 32 * BLOCK, 64 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    taken_over_again(&world, id)
}

/// The cluster loses an object with data, and a write to one of its blocks makes it again. Reads of every
/// other block fail, and none returns zeros; the same while the object is missing.
pub(crate) fn an_object_is_lost(seed: u64) -> Step {
    let world = pool(seed, true)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.engine().lose_object(Part::Data, 0);
    let volume = world.handle(id)?;
    let lost =
        |block: u64| match volume.read(block * BLOCK, &mut [0; BLOCK as usize], Blocking::Yes) {
            Err(error) if error.kind() == StoreErrorKind::Io => Ok(()),
            Err(error) => Err(violation(error.to_string())),
            // Compares the content found with the model.
            Ok(()) => world.read(id, block * BLOCK, BLOCK, Blocking::Yes),
        };
    (0..16).try_for_each(lost)?;
    let written = seed % 16;
    world.write(id, written * BLOCK, BLOCK, Fill::Data, Blocking::Yes)?;
    world.read(id, written * BLOCK, BLOCK, Blocking::Yes)?;
    (0..16)
        .filter(|block| *block != written)
        .try_for_each(lost)?;
    // A part of a block is no better.
    (0..16)
        .filter(|block| *block != written)
        .try_for_each(|block| {
            let mut part = [0; 512];
            match volume.read(block * BLOCK + 1024, &mut part, Blocking::Yes) {
                Err(error) if error.kind() == StoreErrorKind::Io => Ok(()),
                Err(error) => Err(violation(error.to_string())),
                Ok(()) => world.read(id, block * BLOCK + 1024, 512, Blocking::Yes),
            }
        })
}
