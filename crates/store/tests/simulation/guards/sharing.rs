//! Cases for the guards of finder, collector and index.

use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{Blocking, IndexKind, Ready, Scarcity, VolumeOptions, VolumeSettings};

use super::{crash_is_fine, power_loss, small_pool};
use crate::common::{BLOCK, MIB};
use crate::crash::Recovery;
use crate::world::{Fill, Step, Stop, World};

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
pub(super) fn shared_is_rewritten(seed: u64) -> Step {
    let (world, a, b) = shared_pool(seed)?;
    world.write(a, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.read(b, 0, 16 * BLOCK, Blocking::Yes)?;
    power_loss(&world)
}

/// The machine stops right after the index has counted blocks, and others take their places.
pub(super) fn index_hears_first(seed: u64) -> Step {
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
pub(super) fn rewritten_while_published(seed: u64) -> Step {
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

/// Blocks are rewritten after the finder has read them, and before it publishes them.
pub(super) fn written_while_read(seed: u64) -> Step {
    let (world, a, b) = shared_pool(seed)?;
    world.write(a, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.meanwhile(Part::Data, Op::Read, When::After, move |world| {
        world.write(a, 4 * BLOCK, 8 * BLOCK, Fill::Data, Blocking::Yes)
    });
    // In the first passes the blocks are not cold yet.
    for _ in 0..4 {
        world.dedup(a, Ready::Cold, 9)?;
    }
    world.found()?;
    world.read(a, 0, 16 * BLOCK, Blocking::Yes)?;
    world.read(b, 0, 16 * BLOCK, Blocking::Yes)?;
    world.flush(a)?;
    power_loss(&world)?;
    world.settle()
}

/// All contents have one of two fingerprints.
pub(super) fn fingerprints_collide(seed: u64) -> Step {
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
pub(super) fn one_reference_of_two(seed: u64) -> Step {
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
pub(super) fn converted_after_batch(seed: u64) -> Step {
    let (world, a, _) = shared_pool(seed)?;
    world.write(a, 0, 16 * BLOCK, Fill::Common, Blocking::Yes)?;
    world.dedup(a, Ready::All, 1)?;
    world.remake_index(Some(IndexKind::Btree))?;
    power_loss(&world)?;
    world.settle()
}

/// A snapshot is deleted whose blocks were being published when the machine stopped.
pub(super) fn merged_while_published(seed: u64) -> Step {
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
