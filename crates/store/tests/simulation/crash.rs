//! Stopping the machine, recovering, and comparing the content with the possible ones.

use std::ops::Range;
use std::sync::Arc;

use onefold_engine::Part;
use onefold_engine::simulated::{CrashKind, FailureRates, Op, SimulatedEngine};
use onefold_format::TailHeader;
use onefold_format::tail::TAIL_HEADER_BYTES;
use onefold_store::{Blocking, IndexKind, Store, Volume};

use crate::common::{LITTLE_MEMORY, MIB, newest_root, superblock};
use crate::model::Violation;
use crate::world::{State, Step, Stop, World, discarded_layers, violation};

/// How to get from a stopped machine to an open pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    pub(crate) kind: CrashKind,
    /// Stops the machine again in this I/O of the opening.
    pub(crate) crash_at: Option<u64>,
    pub(crate) memory_bytes: u64,
}

impl Recovery {
    /// Of a machine that lost power, all in one go.
    pub(crate) const POWER_LOSS: Self = Self {
        kind: CrashKind::PowerLoss,
        crash_at: None,
        memory_bytes: LITTLE_MEMORY,
    };

    /// Of a process that died.
    pub(crate) const KILLED: Self = Self {
        kind: CrashKind::ProcessKilled,
        ..Self::POWER_LOSS
    };
}

/// Gets a range of a volume, and its data unless it is a hole.
type Look<'a> = dyn FnMut(Range<u64>, Option<&[u8]>) -> Step + 'a;

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
        let is_void = is_tail_void(&self.engine());
        self.cover_late();
        let mut state = self.state();
        if is_void && !state.faulty && state.is_open_to_guests {
            return Err(violation("the tail's copy is void, and nothing has failed"));
        }
        state.is_open_to_guests = false;
        state.survived &= recovery.kind == CrashKind::ProcessKilled && !is_void;
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
                self.state().coverage.crashes_in_recovery += 1;
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
        self.verify_counts(&self.store())?;
        self.state().survived = true;
        self.state().coverage.recoveries += 1;
        Ok(())
    }

    fn verify_pool_size(&self) -> Step {
        let store = self.store();
        let size = store.size_bytes().expect("nobody panicked");
        let mut state = self.state();
        if !state.pool_sizes.contains(&size) {
            let message = format!("a pool of {size} bytes, not {:?}", state.pool_sizes);
            return Err(violation(message));
        }
        let smaller = store.shrinking_to().expect("nobody panicked");
        state.coverage.shrinks_cut_short += u64::from(smaller.is_some());
        state.pool_sizes = [Some(size), smaller].into_iter().flatten().collect();
        Ok(())
    }

    pub(crate) fn verify_contents(&self) -> Step {
        let store = self.store();
        let mut ids = [self.volume_ids(), self.snapshot_ids()]
            .concat()
            .into_iter();
        ids.try_for_each(|id| self.verify_volume(&store, id))?;
        self.verify_changes()
    }

    fn verify_catalogue(&self) -> Step {
        let store = self.store();
        let sizes: Vec<(String, u64)> = store
            .volume_names()
            .iter()
            .map(|name| {
                let volume = store.volume(name).expect("it was listed");
                (name.clone(), volume.size_bytes())
            })
            .collect();
        let mut state = self.state();
        if state.pending_happened(&sizes, discarded_layers(&store)) {
            state.settle_pending();
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

    /// A failure that only a stopped machine excuses.
    pub(crate) fn unless_crashed(&self, message: String) -> Stop {
        if self.engine().is_crashed() {
            Stop::Crashed
        } else {
            violation(message)
        }
    }

    fn verify_volume(&self, store: &Store, id: u64) -> Step {
        let survived = self.state().survived;
        let volume = self.walk(store, id, &mut |range, data| {
            self.with(id, |volume| match data {
                None => volume.recovered_hole(range, survived),
                Some(found) => volume.recovered(range.start, found, survived),
            })?;
            Ok(())
        })?;
        if !self.snapshot_ids().is_empty() || store.deletions().is_ok_and(|it| !it.is_empty()) {
            // Its data is in layers below as well.
            return Ok(());
        }
        let stored = volume.logical_blocks();
        let block_size = self.state().block_size;
        let needed = self.with(id, |volume| volume.blocks_with_data(block_size));
        if stored < needed {
            let name = volume.name();
            let message = format!("'{name}' counts {stored} blocks, but {needed} have data");
            return Err(violation(message));
        }
        Ok(())
    }

    /// Shows the holes of a volume, and its data in pieces.
    pub(crate) fn walk(
        &self,
        store: &Store,
        id: u64,
        look: &mut Look<'_>,
    ) -> Result<Arc<Volume>, Stop> {
        let (name, size) = self.with(id, |volume| (volume.name.clone(), volume.size));
        let failed = |error| self.unless_crashed(format!("reading '{name}': {error}"));
        let volume = store.volume(&name).map_err(failed)?;
        let mut at = 0;
        let mut buf = Vec::new();
        while at < size {
            let extents = volume.extents(at..size, 256, Blocking::Yes);
            for extent in extents.map_err(failed)? {
                let end = at + extent.len;
                if !extent.data {
                    look(at..end, None)?;
                    at = end;
                }
                while at < end {
                    let next = end.min(at + MIB);
                    let len = (next - at) as usize;
                    buf.resize(buf.len().max(len), 0);
                    let found = &mut buf[..len];
                    volume.read(at, found, Blocking::Yes).map_err(failed)?;
                    look(at..next, Some(found))?;
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
        let position = newest_root(&engine).map_or(0, |root| root.log_position);
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

/// Whether there is no tail that an opening could take over.
fn is_tail_void(engine: &SimulatedEngine) -> bool {
    let halves = [0, engine.host_memory_len() / 2];
    let header = |half| engine.read_host_memory(half, TAIL_HEADER_BYTES);
    halves
        .iter()
        .all(|half| TailHeader::decode(&header(*half)).is_err())
}

impl State {
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
