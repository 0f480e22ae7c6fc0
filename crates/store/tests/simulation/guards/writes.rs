//! Cases for the guards of writes, reads and trims, and of the blocks that they release.

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::Blocking;

use super::{crash_is_fine, direct_pool, pool, power_loss, small_pool};
use crate::common::{BLOCK, MIB};
use crate::world::{Fill, Step};

/// A write needs blocks that a trim released, while the trim's record is only in memory.
pub(super) fn reused_before_commit(seed: u64) -> Step {
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
pub(super) fn reused_while_read(seed: u64) -> Step {
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
pub(super) fn reused_while_discarded(seed: u64) -> Step {
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

/// Other blocks are written while free ones are preallocated.
pub(super) fn used_while_preallocated(seed: u64) -> Step {
    let world = direct_pool(seed)?;
    let id = world.new_volume(8 * MIB)?;
    world.meanwhile(Part::Data, Op::Write, When::Before, move |world| {
        world.write(id, 0, 3 * MIB, Fill::Data, Blocking::Yes)
    });
    world.preallocate(100)?;
    world.found()?;
    world.read(id, 0, 3 * MIB, Blocking::Yes)?;
    power_loss(&world)
}

/// Two requests change parts of one block.
pub(super) fn two_writers_of_a_block(seed: u64) -> Step {
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

/// Other flushes commit while a write to a block that held something else is in flight.
pub(super) fn committed_before_written(seed: u64) -> Step {
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

/// Blocks that a snapshot holds are written by its volume.
pub(super) fn written_after_snapshot(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.create_snapshots(&[id])?;
    world.write(id, 4 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.verify_contents()?;
    power_loss(&world)
}

/// A snapshot is made and deleted in the middle of a read.
pub(super) fn layer_emptied_while_read(seed: u64) -> Step {
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

/// The process dies in the middle of an import.
pub(super) fn import_interrupted(seed: u64) -> Step {
    let world = small_pool(seed)?;
    world.begin_import(MIB)?;
    world.write_import(0, 8 * BLOCK, Fill::Data)?;
    power_loss(&world)
}
