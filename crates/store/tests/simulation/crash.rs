//! Stopping the machine, recovering, and comparing the content with the possible ones.

use std::ops::Range;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, FailureRates, Op, SimulatedEngine};
use onefold_store::{Blocking, IndexKind, LossReport, Store, StoreError, StoreErrorKind, Volume};

use crate::common::{LITTLE_MEMORY, MIB, newest_root, superblock};
use crate::model::{MayCost, Violation};
use crate::world::{Fill, State, Step, Stop, World, discarded_layers, violation};

/// How to get from a stopped machine to an open pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    pub(crate) kind: CrashKind,
    /// Stops the machine again in this I/O of the opening.
    pub(crate) crash_at: Option<u64>,
    pub(crate) memory_bytes: u64,
}

impl Recovery {
    /// Recovery of a machine that lost power, without another stop.
    pub(crate) const POWER_LOSS: Self = Self {
        kind: CrashKind::PowerLoss,
        crash_at: None,
        memory_bytes: LITTLE_MEMORY,
    };

    /// Recovery of a process that died.
    pub(crate) const KILLED: Self = Self {
        kind: CrashKind::ProcessKilled,
        ..Self::POWER_LOSS
    };
}

/// The content of a range of a volume.
pub(crate) enum Found<'a> {
    Hole,
    Data(&'a [u8]),
    /// A block that a failed sync lost.
    Lost,
}

/// Gets a range of a volume, and its content.
type Look<'a> = dyn FnMut(Range<u64>, Found<'_>) -> Step + 'a;

impl World {
    /// Recovers and compares; the opening is not cut short.
    pub(crate) fn recover_by(&self, recovery: Recovery) -> Step {
        if !self.crash_and_open(recovery)? {
            return Err(violation("the opening was cut short by nobody"));
        }
        self.verify()
    }

    /// Stops the machine, if it did not stop by itself, and drops what its process held.
    pub(crate) fn stop(&self) {
        self.engine().halt();
        self.close_handles();
    }

    /// Stops the machine, if it did not stop by itself, brings it back and opens the pool.
    /// Returns whether the pool is open: not if the opening was cut short as well.
    pub(crate) fn crash_and_open(&self, recovery: Recovery) -> Result<bool, Stop> {
        self.engine().halt();
        let after = self.engine().crash(recovery.kind);
        self.open_after(recovery, after)
    }

    /// As [`World::crash_and_open`], with this outcome of the crash.
    pub(crate) fn open_after(
        &self,
        recovery: Recovery,
        after: SimulatedEngine,
    ) -> Result<bool, Stop> {
        self.close_handles();
        self.cover_late();
        let mut state = self.state();
        let is_killed = recovery.kind == CrashKind::ProcessKilled;
        // Once the power fails, nothing that was not flushed is missed.
        state.has_lost_data = is_killed && (state.has_lost_data || after.has_lost_data());
        state.power_failed |= !is_killed;
        state.survived &= is_killed && !state.has_lost_data;
        for part in Part::ALL {
            after.set_capacity(part, None);
        }
        if let Some(n) = recovery.crash_at {
            after.crash_after(n);
        }
        state.engine = after.clone();
        let coverage = &mut state.coverage;
        match recovery.kind {
            CrashKind::PowerLoss => coverage.power_losses += 1,
            CrashKind::ProcessKilled => coverage.kills += 1,
        }
        coverage.objects_with_late += after.objects_with_late() as u64;
        state.faulty = false;
        state.must_reopen = false;
        state.is_settled = false;
        state.may_need_rebuild = state.index == IndexKind::Memory || state.is_remade;
        let has_open_batch = newest_root(&after).is_some_and(|root| root.open_batch.is_some());
        state.coverage.roots_with_open_batch += u64::from(has_open_batch);
        drop(state);
        self.trace(|| format!("crash and open: {recovery:?}"));
        match self.open(recovery.memory_bytes) {
            Ok(report) => {
                self.trace(|| format!("opened: {report:?}"));
                // A crash ordered for later than the opening takes.
                after.crash_after(u64::MAX);
                let mut state = self.state();
                let knows = report.losses.as_ref().map(|losses| losses.has_failed);
                if knows == Some(true) && !state.has_lost_data {
                    return Err(violation(format!("nothing is lost: {report:?}")));
                }
                state.coverage.syncs_doubted += u64::from(knows == Some(false));
                state.coverage.losses_found += u64::from(knows == Some(true));
                state.knows_of_loss |= knows == Some(true);
                let is_uncompared = |losses: &LossReport| losses.uncompared_blocks > 0;
                state.has_uncompared |= report.losses.as_ref().is_some_and(is_uncompared);
                state.sync_failed = false;
                // The last root is the session's, the one before it at most the one opened.
                let roots_written = after.count(Part::Meta, Op::Write).count;
                state.coverage.checkpoints_in_recovery +=
                    u64::from(roots_written > 1 && report.volumes_removed.is_empty());
                state.coverage.tails_taken_over += u64::from(report.records_taken_over > 0);
                state.coverage.openings_that_replayed += u64::from(report.records_replayed > 0);
                state.coverage.imports_removed += report.volumes_removed.len() as u64;
                Ok(true)
            }
            Err(error) if after.is_crashed() => {
                self.trace(|| format!("crashed while opening: {error}"));
                let mut state = self.state();
                state.coverage.crashes_in_recovery += 1;
                state.may_remember_loss |= state.has_lost_data;
                Ok(false)
            }
            Err(error) => Err(violation(format!("opening: {:?}: {error}", error.kind()))),
        }
    }

    /// Drops references to the old process.
    fn close_handles(&self) {
        self.disarm();
        let mut state = self.state();
        let (store, import) = (state.store.take(), state.import.take());
        for volume in &mut state.volumes {
            volume.forget_requests();
        }
        drop(state);
        drop(import);
        drop(store);
    }

    /// Code that waits for an I/O of the last request no longer does.
    pub(crate) fn disarm(&self) {
        self.state().request += 1;
    }

    /// Opens the pool again without a crash, after `close` has put everything into a checkpoint.
    pub(crate) fn close_and_open(&self, memory_bytes: u64) -> Step {
        if self.state().import.is_some() {
            self.abort_import()?;
        }
        self.disarm();
        let store = self.store();
        let mut closed = false;
        self.durably("close", || {
            store.close()?;
            closed = true;
            Ok(())
        })?;
        drop(store);
        if !closed {
            self.state().must_reopen = true;
            return Ok(());
        }
        self.close_handles();
        self.state().is_settled = false;
        let report = match self.open(memory_bytes) {
            Ok(report) => report,
            Err(error) => return Err(self.unless_crashed(format!("opening: {error}"))),
        };
        if !report.clean || report.records_replayed != 0 {
            return Err(violation(format!("a closed pool was replayed: {report:?}")));
        }
        self.state().coverage.clean_reopenings += 1;
        self.verify()
    }

    /// After a recovery: compares everything with the model. The present content is durable.
    pub(crate) fn verify(&self) -> Step {
        self.engine().set_failure_rates(FailureRates::default());
        self.verify_pool_size()?;
        self.verify_catalogue()?;
        self.verify_contents()?;
        if !self.state().is_beyond_model {
            self.verify_counts(&self.store())?;
        }
        self.state().survived = true;
        self.state().has_lost_data = false;
        self.state().power_failed = false;
        self.state().knows_of_loss = false;
        self.state().has_uncompared = false;
        self.state().may_remember_loss = false;
        self.state().coverage.recoveries += 1;
        Ok(())
    }

    fn verify_pool_size(&self) -> Step {
        let store = self.store();
        let size = store.space().size_bytes().expect("nobody panicked");
        let mut state = self.state();
        if !state.pool_sizes.contains(&size) {
            let message = format!("a pool of {size} bytes, not {:?}", state.pool_sizes);
            return Err(violation(message));
        }
        let smaller = store.space().shrinking_to().expect("nobody panicked");
        state.coverage.shrinks_cut_short += u64::from(smaller.is_some());
        state.pool_sizes = [Some(size), smaller].into_iter().flatten().collect();
        Ok(())
    }

    pub(crate) fn verify_contents(&self) -> Step {
        let store = self.store();
        let ids = [self.volume_ids(), self.snapshot_ids()].concat();
        let mut lost = Vec::new();
        for id in &ids {
            if self.state().has_lost_data && self.with(*id, |volume| volume.is_unanswered) {
                self.state().is_beyond_model = true;
                continue;
            }
            let blocks = self.verify_volume(&store, *id)?;
            lost.extend(blocks.into_iter().map(|block| (*id, block)));
        }
        let is_of_snapshot = |(id, _): &(u64, u64)| self.snapshot_ids().contains(id);
        if lost.iter().any(is_of_snapshot) {
            self.state().is_beyond_model = true;
            return Ok(());
        }
        if self.state().is_beyond_model {
            return Ok(());
        }
        for id in &ids {
            self.with(*id, |volume| volume.is_unanswered = false);
        }
        for id in self.volume_ids() {
            self.verify_told(&store, id)?;
        }
        self.replace_lost(&lost)?;
        if store.stat().is_ok_and(|stat| stat.lost_blocks > 0) {
            self.state().is_beyond_model = true;
            return Ok(());
        }
        self.verify_changes()
    }

    /// A volume that lost answered content fails its flushes until the loss is accepted. Without any
    /// failure no flush fails. A documented limit is a loss that neither checksums nor the host show:
    /// rewrites in place that are gone after a failed sync that was never reported.
    fn verify_told(&self, store: &Store, id: u64) -> Step {
        if store.read_only_reason().is_some() {
            return Ok(());
        }
        let name = self.with(id, |volume| volume.name.clone());
        let failed = |error| self.unless_crashed(format!("opening '{name}': {error}"));
        let volume = store.volume(&name).map_err(failed)?;
        let is_missing_any = self.with(id, |volume| std::mem::take(&mut volume.is_missing_any));
        let (knows, may_fail) = {
            let state = self.state();
            let knows = state.knows_of_loss;
            (
                knows && !state.power_failed,
                state.has_lost_data && knows || state.may_remember_loss,
            )
        };
        let told = volume.flush();
        match &told {
            Ok(()) if is_missing_any && knows => {
                let message = format!("'{name}' lost what was answered, and its flush succeeds");
                return Err(violation(message));
            }
            Err(error) if !may_fail => {
                return Err(self.unless_crashed(format!("flushing '{name}': {error}")));
            }
            Ok(()) => return Ok(()),
            Err(_) => self.state().coverage.losses_told += 1,
        }
        let accepted = store.accept_loss(&name).and_then(|was_damaged| {
            assert!(was_damaged, "its flush failed");
            volume.flush()
        });
        accepted.map_err(|error| self.unless_crashed(format!("accepting a loss: {error}")))
    }

    /// Writes new content to lost blocks, as their guests would, and lets the pool reuse the old ones.
    fn replace_lost(&self, lost: &[(u64, u64)]) -> Step {
        let block_size = self.state().block_size;
        for (id, block) in lost {
            self.state().coverage.lost_blocks += 1;
            let offset = block * block_size;
            let len = block_size.min(self.size(*id) - offset);
            self.write(*id, offset, len, Fill::Data, Blocking::Yes)?;
            self.flush(*id)?;
        }
        if !lost.is_empty() {
            (0..3).try_for_each(|_| self.tick())?;
        }
        Ok(())
    }

    fn verify_catalogue(&self) -> Step {
        let store = self.store();
        let sizes: Vec<(String, u64)> = store
            .volumes()
            .names()
            .iter()
            .map(|name| {
                let volume = store.volume(name).expect("it was listed");
                (name.clone(), volume.size_bytes())
            })
            .collect();
        let mut state = self.state();
        if state.pending_happened(&sizes, discarded_layers(&store)) {
            let known: Vec<u64> = state.volumes.iter().map(|volume| volume.id).collect();
            state.cut_was_not_answered();
            state.settle_pending();
            for volume in &mut state.volumes {
                volume.is_unanswered = !known.contains(&volume.id);
            }
        } else {
            state.pending = None;
        }
        let mut expected: Vec<(String, u64)> = state
            .volumes
            .iter()
            .map(|volume| (volume.name.clone(), volume.size))
            .collect();
        expected.sort();
        if expected == sizes {
            Ok(())
        } else {
            Err(violation(format!(
                "volumes {sizes:?}, expected {expected:?}"
            )))
        }
    }

    /// A violation, unless the machine has stopped.
    pub(crate) fn unless_crashed(&self, message: String) -> Stop {
        if self.engine().is_crashed() {
            Stop::Crashed
        } else {
            violation(message)
        }
    }

    /// Returns the blocks that are lost.
    fn verify_volume(&self, store: &Store, id: u64) -> Result<Vec<u64>, Stop> {
        let may_cost = self.state().recovery_may_cost();
        let block_size = self.state().block_size;
        let (mut lost, mut is_unknown) = (Vec::new(), false);
        self.with(id, |volume| volume.is_missing_any = false);
        let volume = self.walk(store, id, &mut |range, found| {
            self.with(id, |volume| match found {
                Found::Hole => volume.recovered_hole(range, may_cost),
                Found::Data(bytes) => {
                    is_unknown |= volume.recovered(range.start, bytes, may_cost)?;
                    Ok(())
                }
                Found::Lost => {
                    lost.push(range.start / block_size);
                    volume.lost(range)
                }
            })?;
            Ok(())
        })?;
        self.state().is_beyond_model |= is_unknown;
        if !lost.is_empty() {
            return Ok(lost);
        }
        if !self.snapshot_ids().is_empty()
            || store
                .deletions()
                .unfinished()
                .is_ok_and(|deletions| !deletions.is_empty())
        {
            // Its data is in layers below as well.
            return Ok(lost);
        }
        let stored = volume.logical_blocks();
        let needed = self.with(id, |volume| volume.blocks_with_data(block_size));
        if stored < needed {
            let name = volume.name();
            let message = format!("'{name}' counts {stored} blocks, but {needed} have data");
            return Err(violation(message));
        }
        Ok(lost)
    }

    /// Shows the holes of a volume, and its data in pieces; blocks that are lost, one by one.
    pub(crate) fn walk(
        &self,
        store: &Store,
        id: u64,
        look: &mut Look<'_>,
    ) -> Result<Arc<Volume>, Stop> {
        let (name, size) = self.with(id, |volume| (volume.name.clone(), volume.size));
        let failed = |error| self.unless_crashed(format!("reading '{name}': {error}"));
        let volume = store.volume(&name).map_err(failed)?;
        let block_size = self.state().block_size;
        let (may_have_lost, may_know) = {
            let state = self.state();
            let may_remember = state.may_remember_loss;
            (
                state.has_lost_data || may_remember,
                state.knows_of_loss || may_remember,
            )
        };
        let mut at = 0;
        let mut buf = Vec::new();
        while at < size {
            let extents = volume.extents(at..size, 256, Blocking::Yes);
            for extent in extents.map_err(failed)? {
                let end = at + extent.len;
                if !extent.data {
                    look(at..end, Found::Hole)?;
                    at = end;
                }
                let mut step = MIB;
                while at < end {
                    let next = end.min(at + step);
                    let len = (next - at) as usize;
                    buf.resize(buf.len().max(len), 0);
                    let found = &mut buf[..len];
                    match volume.read(at, found, Blocking::Yes) {
                        Ok(()) => look(at..next, Found::Data(found))?,
                        Err(_) if may_have_lost && step > block_size => {
                            step = block_size;
                            continue;
                        }
                        Err(error) if may_know && is_of_lost_block(&error) => {
                            look(at..next, Found::Lost)?;
                        }
                        Err(error) => return Err(failed(error)),
                    }
                    at = next;
                }
            }
        }
        Ok(volume)
    }

    fn verify_counts(&self, store: &Store) -> Step {
        let stat = store.stat();
        let stat = stat.map_err(|error| self.unless_crashed(format!("stat: {error}")))?;
        self.compare_counts(&stat)
    }

    /// Notes what owners before this one have done.
    fn cover_late(&self) {
        let mut state = self.state();
        let landed_late = state.engine.landed_late();
        state.coverage.landed_late += landed_late;
    }

    /// Notes at the end of a run which events its roots show.
    pub(crate) fn cover_log(&self) {
        self.cover_late();
        let mut state = self.state();
        let engine = state.engine.clone();
        let root = newest_root(&engine);
        let is_raised = state.is_first_minor && root.as_ref().is_some_and(|root| root.minor > 0);
        state.coverage.versions_raised += u64::from(is_raised);
        let position = root.map_or(0, |root| root.log_position);
        state.coverage.log_wraps += position / superblock(&engine).log_bytes;
        state.coverage.meta_writes += engine.count(Part::Meta, Op::Write).count;
    }

    /// Faults found by code in the middle of an I/O.
    pub(crate) fn found(&self) -> Step {
        match self.state().found.take() {
            Some(Violation(message)) => Err(violation(message)),
            None => Ok(()),
        }
    }
}

/// Whether a read failed because its block is known to be lost, with volume and address.
fn is_of_lost_block(error: &StoreError) -> bool {
    let message = error.to_string();
    error.kind() == StoreErrorKind::Io
        && message.contains("block")
        && message.contains("when a sync failed")
}

impl State {
    fn recovery_may_cost(&self) -> MayCost {
        let is_known = self.knows_of_loss || self.may_remember_loss;
        match (self.survived, self.has_lost_data && self.has_uncompared) {
            (true, _) => MayCost::Nothing,
            (false, true) if !is_known => MayCost::UnflushedUnknown,
            _ => MayCost::Unflushed,
        }
    }

    fn pending_happened(&self, sizes: &[(String, u64)], discarded: usize) -> bool {
        use crate::world::Pending;
        let size_of = |name: &str| {
            let found = sizes.iter().find(|(found, _)| found == name);
            found.map(|(_, size)| *size)
        };
        let name_of = |id: u64| {
            let found = self.volumes.iter().find(|volume| volume.id == id);
            found.map(|volume| volume.name.clone()).unwrap_or_default()
        };
        match &self.pending {
            None => false,
            Some(Pending::Create(volume)) => size_of(&volume.name).is_some(),
            Some(Pending::Delete(id)) => size_of(&name_of(*id)).is_none(),
            Some(Pending::Rename(_, name)) => size_of(name).is_some(),
            Some(Pending::RollBack(_, _, before)) => discarded > *before,
            Some(Pending::Resize(id, size)) => size_of(&name_of(*id)) == Some(*size),
            // If some of them were there and others not, the names would not be the expected ones.
            Some(Pending::Freeze(snapshots)) => snapshots
                .iter()
                .any(|snapshot| size_of(&snapshot.name).is_some()),
        }
    }
}
