//! Where the guards of quotas and reservations matter: see `guards.rs`.

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{VolumeOptions, Wait};

use crate::full::{fill, is_refused};
use crate::guards::{power_loss, small_pool};
use crate::world::{Fill, MIB, Step, violation};

const BLOCK: u64 = 4096;

/// Two writes want what is left of a quota, one in the middle of the other.
pub(crate) fn quota_wanted_twice(seed: u64) -> Step {
    let world = small_pool(seed)?;
    world.create_volume_as(&VolumeOptions {
        quota_bytes: 32 * BLOCK,
        ..VolumeOptions::new(MIB)
    })?;
    let id = world.volume_ids()[0];
    world.write(id, 0, 16 * BLOCK, Fill::Data, Wait::Yes)?;
    world.meanwhile(Part::Data, Op::Write, When::Before, move |world| {
        world.write(id, 64 * BLOCK, 16 * BLOCK, Fill::Data, Wait::No)
    });
    world.write(id, 128 * BLOCK, 16 * BLOCK, Fill::Data, Wait::Yes)?;
    world.found()?;
    power_loss(&world)
}

/// One volume has reserved blocks, another one takes all that it gets, and the first wants its own.
pub(crate) fn reserved_then_wanted(seed: u64) -> Step {
    let world = small_pool(seed)?;
    world.create_volume_as(&VolumeOptions {
        reservation_bytes: 64 * BLOCK,
        ..VolumeOptions::new(MIB)
    })?;
    world.create_volume(8 * MIB)?;
    let (a, b) = (world.volume_ids()[0], world.volume_ids()[1]);
    fill(&world, b, 0)?;
    let wanted = || world.write(a, 0, 64 * BLOCK, Fill::Data, Wait::Yes);
    if is_refused(&world, wanted)? {
        return Err(violation("a volume did not get what it has reserved"));
    }
    power_loss(&world)
}
