//! Cases for the guards of volumes and pools that get another size.

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::Blocking;

use super::{crash_is_fine, pool, power_loss, small_pool};
use crate::common::{BLOCK, MIB};
use crate::crash::Recovery;
use crate::world::{Fill, Step, violation};

/// A volume shrinks while a long write to it is in flight, and grows again.
pub(super) fn cut_while_written(seed: u64) -> Step {
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
pub(super) fn cut_in_a_block(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(MIB)?;
    world.write(id, 0, 4 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.resize_volume(id, 2 * BLOCK + 512)?;
    world.resize_volume(id, MIB)?;
    world.read(id, 0, 4 * BLOCK, Blocking::Yes)?;
    power_loss(&world)
}

/// A pool grows, is full at once, and loses power.
pub(super) fn grown_before_root(seed: u64) -> Step {
    let world = small_pool(seed)?;
    let id = world.new_volume(8 * MIB)?;
    world.write(id, 0, 3 * MIB, Fill::Data, Blocking::Yes)?;
    world.flush(id)?;
    world.engine().crash_after(1 + seed % 4);
    crash_is_fine(world.grow_pool(4 * MIB))?;
    power_loss(&world)
}

/// A pool gets a new end before blocks of a volume.
pub(super) fn cut_when_empty(seed: u64) -> Step {
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
pub(super) fn shrinking_begun_then_crash(seed: u64) -> Step {
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
        let first_size_bytes = world
            .store()
            .space()
            .plan_shrink(12 * MIB)?
            .first_size_bytes;
        world.state().pool_sizes.push(first_size_bytes);
        world.store().space().begin_shrink(first_size_bytes)
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
