//! Quotas, as the model has them; and where the guards of quotas and reservations matter: see
//! `guards.rs`.

use onefold_engine::Part;
use onefold_engine::simulated::{Op, When};
use onefold_store::{Blocking, StoreError, StoreErrorKind, VolumeOptions, VolumeSettings};

use crate::common::{BLOCK, MIB};
use crate::full::{fill, is_refused};
use crate::guards::{power_loss, small_pool};
use crate::world::{Fill, Step, World, violation};

/// The blocks that a volume maps, and the most that it may.
pub(crate) struct Quota {
    mapped: u64,
    most: u64,
    hooks_run: u64,
}

impl World {
    /// The blocks that a volume maps and may map.
    pub(crate) fn quota(&self, id: u64) -> Option<Quota> {
        let state = self.state();
        if state.depth > 0 {
            return None;
        }
        let (block_size, hooks_run) = (state.block_size, state.coverage.hooks_run);
        drop(state);
        let name = self.with(id, |volume| volume.name.clone());
        let stat = self.store().volume_stat(&name).ok()?;
        Some(Quota {
            mapped: stat.mapped_bytes / block_size,
            most: match stat.settings.quota_bytes {
                0 => u64::MAX,
                bytes => bytes / block_size,
            },
            hooks_run,
        })
    }

    /// A volume maps no more than its quota, or than it did when that became smaller.
    pub(crate) fn verify_quota(&self, id: u64, before: Option<&Quota>) -> Step {
        let now = before.and_then(|_| self.quota(id));
        let (Some(before), Some(now)) = (before, now) else {
            return Ok(());
        };
        if now.mapped <= now.most.max(before.mapped) {
            return Ok(());
        }
        Err(violation(format!(
            "volume number {id} mapped {} blocks, and maps {} of {}",
            before.mapped, now.mapped, now.most
        )))
    }

    /// Only a volume at its quota may return this.
    pub(crate) fn explain_quota(
        &self,
        error: &StoreError,
        before: Option<Quota>,
        bytes: u64,
    ) -> Step {
        let state = self.state();
        let needed = bytes / state.block_size + 2;
        let Some(before) = before.filter(|quota| quota.hooks_run == state.coverage.hooks_run)
        else {
            return Ok(());
        };
        if error.kind() == StoreErrorKind::QuotaReached && before.mapped + needed <= before.most {
            return Err(violation(format!(
                "{needed} blocks at most were wanted, {} of {} are mapped, and yet: {error}",
                before.mapped, before.most
            )));
        }
        Ok(())
    }
}

/// Two writes need the rest of a quota, one in the middle of the other.
pub(crate) fn quota_wanted_twice(seed: u64) -> Step {
    let world = small_pool(seed)?;
    world.create_volume_as(&VolumeOptions::new(MIB).with(VolumeSettings {
        quota_bytes: 32 * BLOCK,
        ..VolumeSettings::default()
    }))?;
    let id = world.volume_ids()[0];
    world.write(id, 0, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.meanwhile(Part::Data, Op::Write, When::Before, move |world| {
        world.write(id, 64 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::No)
    });
    world.write(id, 128 * BLOCK, 16 * BLOCK, Fill::Data, Blocking::Yes)?;
    world.found()?;
    power_loss(&world)
}

/// One volume has reserved blocks, another one takes all that it gets, and the first needs its own.
pub(crate) fn reserved_then_wanted(seed: u64) -> Step {
    let world = small_pool(seed)?;
    world.create_volume_as(&VolumeOptions::new(MIB).with(VolumeSettings {
        reservation_bytes: 64 * BLOCK,
        ..VolumeSettings::default()
    }))?;
    let (a, b) = (world.volume_ids()[0], world.new_volume(8 * MIB)?);
    fill(&world, b, 0)?;
    let wanted = || world.write(a, 0, 64 * BLOCK, Fill::Data, Blocking::Yes);
    if is_refused(&world, wanted)? {
        return Err(violation("a volume did not get what it has reserved"));
    }
    power_loss(&world)
}
