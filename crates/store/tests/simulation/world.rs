//! One simulated machine, the store on it, and the expected content of its volumes.
//!
//! Every request goes to the store and to the model. The state is never locked while the store is
//! called, so that code which runs in the middle of an I/O can make requests of its own.

mod catalogue;
mod volumes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_engine::simulated::{Op, SimulatedEngine, When};
use onefold_engine::{Engine as _, Part};
use onefold_format::Root;
use onefold_format::page::PAGE_BYTES;
use onefold_store::{
    Blocking, CreateOptions, Guard, Import, IndexKind, RecoveryReport, Scarcity, Store, StoreError,
    StoreErrorKind, Volume,
};

use crate::common::{self, LITTLE_MEMORY, MIB};
use crate::coverage::Coverage;
use crate::model::{Moment, Version, Violation, VolumeModel};
use crate::random::Random;
use crate::sharing::Job;

pub(crate) use catalogue::{Pending, discarded_layers};
pub(crate) use volumes::Fill;

/// Why a run cannot continue.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The machine stopped; recovery is next.
    Crashed,
    Violation(Violation),
}

pub(crate) type Step = Result<(), Stop>;

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

pub(crate) fn violation(message: impl Into<String>) -> Stop {
    Stop::Violation(Violation(message.into()))
}

#[derive(Clone)]
pub(crate) struct State {
    pub(crate) engine: SimulatedEngine,
    pub(crate) store: Option<Arc<Store>>,
    pub(crate) block_size: u64,
    pub(crate) index: IndexKind,
    /// The pool had the format's first minor version when it was made.
    pub(crate) is_first_minor: bool,
    /// Bytes that the pool may have: one size, unless it was being changed when the machine stopped.
    pub(crate) pool_sizes: Vec<u64>,
    pub(crate) volumes: Vec<VolumeModel>,
    pub(crate) import: Option<(Arc<Import>, VolumeModel)>,
    pub(crate) pending: Option<Pending>,
    pub(crate) random: Random,
    pub(crate) coverage: Coverage,
    pub(crate) trace: bool,
    /// I/Os fail now, so requests may.
    pub(crate) faulty: bool,
    /// Some sync failed or may have: readers may see data that will never be durable.
    pub(crate) sync_failed: bool,
    /// A sync of the data has ended, and its result has not reached the store yet.
    pub(crate) is_sync_untold: bool,
    /// No power was lost, and no sync of the data failed, since the last comparison: everything
    /// answered is there (P12).
    pub(crate) survived: bool,
    /// A process died with a sync of the data that failed, and the host lives: the next opening has to report
    /// the losses.
    pub(crate) has_lost_data: bool,
    /// The power failed since the last comparison, so unflushed data may be gone for that reason alone.
    pub(crate) power_failed: bool,
    /// The opening knows of lost data.
    pub(crate) knows_of_loss: bool,
    /// The opening could not compare some new blocks, because they were rewritten in place.
    pub(crate) has_uncompared: bool,
    /// An opening that found losses was cut short after it may have recorded them. The record survives a
    /// power loss, which makes a new one unnecessary: the volume fails its flushes all the same.
    pub(crate) may_remember_loss: bool,
    /// Blocks of a snapshot are lost, or lost blocks cannot be written for want of room: the model does not
    /// follow that.
    pub(crate) is_beyond_model: bool,
    /// The pool takes no writes, or a request left the catalogue undecided: reopen it.
    pub(crate) must_reopen: bool,
    /// Requests of which another one runs in the middle.
    pub(crate) depth: usize,
    /// A write in flight covers some sectors in part. Their content then depends on writes before
    /// it, which the model does not follow.
    pub(crate) partial_sectors: bool,
    /// The request that has just ended may have done only a part, though it was answered.
    is_in_part: bool,
    /// Counts requests at the top: which one a hook was meant for.
    pub(crate) request: u64,
    /// Faults found by code in the middle of an I/O.
    pub(crate) found: Option<Violation>,
    /// The holder of the store's job lock: a request that needs it too would wait for itself.
    pub(crate) job: Option<Job>,
    /// Certainly no batch of finder or collector is open.
    pub(crate) is_settled: bool,
    /// The index may have to be counted again, since a crash.
    pub(crate) may_need_rebuild: bool,
    /// The index was rebuilt, so its kind is not the one with which the pool was created.
    pub(crate) is_remade: bool,
    /// Blocks were known to be bad during a job: an entry with the content of such a block may be
    /// unshareable.
    pub(crate) met_bad_blocks: bool,
    /// Blocks were copied so that a volume has its own.
    pub(crate) has_own_copies: bool,
    /// A test damaged the index: operations that need it may report so.
    pub(crate) is_index_damaged: bool,
    /// The store's scarce resource: fingerprints then collide, or the index declines.
    pub(crate) scarcity: Scarcity,
    next_id: u64,
    next_version: Version,
}

pub(crate) struct World(Mutex<State>);

impl World {
    /// A machine with an empty pool on it, not open yet.
    pub(crate) fn new(seed: u64, options: &CreateOptions) -> Arc<Self> {
        Self::on(SimulatedEngine::new(seed), seed, options)
    }

    /// A cluster with objects of this size and an empty pool, not open yet.
    pub(crate) fn in_cluster(
        seed: u64,
        options: &CreateOptions,
        object_bytes: u64,
        is_fenced: bool,
    ) -> Arc<Self> {
        let engine = SimulatedEngine::of_cluster(seed);
        engine.set_object_bytes(object_bytes);
        engine.set_fenced(is_fenced);
        engine.set_asserted(Guard::LockedInEveryOwnersWrite.holds());
        Self::on(engine, seed, options)
    }

    fn on(engine: SimulatedEngine, seed: u64, options: &CreateOptions) -> Arc<Self> {
        Store::create(&engine, options).unwrap();
        let is_first_minor = seed.is_multiple_of(3);
        if is_first_minor {
            make_first_minor(&engine);
        }
        Arc::new(Self(Mutex::new(State {
            engine,
            store: None,
            block_size: u64::from(options.block_size),
            index: options.index,
            is_first_minor,
            pool_sizes: vec![options.size_bytes],
            volumes: Vec::new(),
            import: None,
            pending: None,
            random: Random::new(seed ^ 0x5eed),
            coverage: Coverage::default(),
            trace: false,
            faulty: false,
            sync_failed: false,
            is_sync_untold: false,
            survived: true,
            has_lost_data: false,
            power_failed: false,
            knows_of_loss: false,
            has_uncompared: false,
            may_remember_loss: false,
            is_beyond_model: false,
            must_reopen: false,
            depth: 0,
            partial_sectors: false,
            is_in_part: false,
            request: 0,
            found: None,
            job: None,
            is_settled: false,
            may_need_rebuild: false,
            is_remade: false,
            met_bad_blocks: false,
            has_own_copies: false,
            is_index_damaged: false,
            scarcity: Scarcity::default(),
            next_id: 1,
            next_version: 1,
        })))
    }

    /// A machine with an empty pool on it, which is open.
    pub(crate) fn opened(seed: u64, options: &CreateOptions) -> Arc<Self> {
        let world = Self::new(seed, options);
        world.open(LITTLE_MEMORY).unwrap();
        world
    }

    /// The same machine, stopped, with events of its own: each copy may come back in another state.
    pub(crate) fn stopped_copy(&self) -> Arc<Self> {
        let mut state = self.state().clone();
        assert!(state.engine.is_crashed() && state.store.is_none());
        state.coverage = Coverage::default();
        Arc::new(Self(Mutex::new(state)))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn store(&self) -> Arc<Store> {
        Arc::clone(self.state().store.as_ref().expect("the pool is open"))
    }

    pub(crate) fn engine(&self) -> SimulatedEngine {
        self.state().engine.clone()
    }

    pub(crate) fn trace(&self, what: impl FnOnce() -> String) {
        let state = self.state();
        if state.trace {
            let indent = "    ".repeat(state.depth + 1);
            eprintln!("{:6}{indent}{}", state.engine.io_count(), what());
        }
    }

    /// Opens the pool as it is.
    pub(crate) fn open(&self, memory_bytes: u64) -> Result<RecoveryReport, StoreError> {
        let (store, report) = common::open(self.engine(), memory_bytes)?;
        // As a daemon does in the background: an older report is not taken for a new one.
        if let Err(error) = self.engine().has_lost_writes() {
            self.trace(|| error.to_string());
        }
        self.state().store = Some(store);
        Ok(report)
    }

    /// The numbers of the volumes, without their snapshots.
    pub(crate) fn volume_ids(&self) -> Vec<u64> {
        let state = self.state();
        let volumes = state.volumes.iter();
        let proper = volumes.filter(|volume| volume.snapshot_of.is_none());
        proper.map(|volume| volume.id).collect()
    }

    /// The numbers of the snapshots.
    pub(crate) fn snapshot_ids(&self) -> Vec<u64> {
        let state = self.state();
        let volumes = state.volumes.iter();
        let snapshots = volumes.filter(|volume| volume.snapshot_of.is_some());
        snapshots.map(|volume| volume.id).collect()
    }

    /// Runs `look` on the model of a volume.
    pub(crate) fn with<T>(&self, id: u64, look: impl FnOnce(&mut VolumeModel) -> T) -> T {
        let mut state = self.state();
        let volume = state.volumes.iter_mut().find(|volume| volume.id == id);
        look(volume.expect("the volume is in the model"))
    }

    pub(crate) fn size(&self, id: u64) -> u64 {
        self.with(id, |volume| volume.size)
    }

    /// Whether code in the middle of an I/O has not deleted it.
    pub(crate) fn exists(&self, id: u64) -> bool {
        self.state().volumes.iter().any(|volume| volume.id == id)
    }

    pub(crate) fn handle(&self, id: u64) -> Result<Arc<Volume>, Stop> {
        let name = self.with(id, |volume| volume.name.clone());
        self.store().volume(&name).map_err(|error| {
            // After a change of the catalogue that failed, only recovery knows.
            if self.state().must_reopen {
                self.engine().halt();
                return Stop::Crashed;
            }
            violation(format!("volume '{name}' is gone: {error}"))
        })
    }

    /// Whether a request may have failed like this. An unexplained failure is a violation.
    pub(crate) fn judge(&self, what: &str, error: &StoreError, blocking: Blocking) -> Step {
        self.trace(|| format!("{what}: {:?}: {error}", error.kind()));
        let mut state = self.state();
        if state.engine.is_crashed() {
            return Err(Stop::Crashed);
        }
        match error.kind() {
            StoreErrorKind::WouldBlock if blocking == Blocking::No => {
                state.coverage.would_block += 1;
                Ok(())
            }
            StoreErrorKind::NoSpace => {
                state.coverage.no_space += 1;
                Ok(())
            }
            StoreErrorKind::QuotaReached => {
                state.coverage.quota_reached += 1;
                Ok(())
            }
            StoreErrorKind::Io if state.faulty => {
                state.coverage.failed_requests += 1;
                Ok(())
            }
            // A change of the catalogue failed, and only recovery knows whether it happened.
            StoreErrorKind::Exists if state.must_reopen => Ok(()),
            StoreErrorKind::ReadOnly if state.faulty => {
                state.coverage.read_only += 1;
                state.must_reopen = true;
                Ok(())
            }
            _ => Err(violation(format!("{what}: {:?}: {error}", error.kind()))),
        }
    }

    /// Makes requests in the middle of the next such I/O.
    pub(crate) fn meanwhile(
        self: &Arc<Self>,
        part: Part,
        op: Op,
        when: When,
        requests: impl FnOnce(&Self) -> Step + Send + 'static,
    ) {
        let world = Arc::clone(self);
        let hook = move || {
            world.state().depth += 1;
            world.state().coverage.hooks_run += 1;
            if let Err(Stop::Violation(violation)) = requests(&world) {
                world.state().found.get_or_insert(violation);
            }
            world.state().depth -= 1;
        };
        self.engine().on_next_io(part, op, when, Box::new(hook));
    }

    // Makes things durable: there is one commit for all volumes.

    pub(crate) fn flush(&self, id: u64) -> Step {
        let volume = self.handle(id)?;
        self.durably(&format!("flush {id}"), || volume.flush())
    }

    pub(crate) fn tick(&self) -> Step {
        // Housekeeping makes records durable, not data that was rewritten in place.
        self.trace(|| "tick".to_owned());
        let done = self.store().tidy(true).and_then(|()| {
            let store = self.store();
            let space = store.space();
            while space.find_spare()? {}
            if space.waits_to_allocate() {
                let kept = self.state().random.below(64);
                space.keep_spare(kept * u64::from(store.block_size()))?;
                while space.preallocate(64 << 10)? {}
            }
            while space.give_back(MIB)? {}
            Ok(())
        });
        done.or_else(|error| self.judge("tick", &error, Blocking::Yes))
    }

    /// Preallocates this many spare blocks.
    pub(crate) fn preallocate(&self, blocks: u64) -> Step {
        self.trace(|| format!("preallocate {blocks}"));
        let store = self.store();
        let space = store.space();
        let kept = space.keep_spare(blocks * u64::from(store.block_size()));
        let done = kept.and_then(|()| {
            while space.preallocate(MIB)? {}
            Ok(())
        });
        done.or_else(|error| self.judge("preallocate", &error, Blocking::Yes))
    }

    /// Lets the host demand alignment, as O_DIRECT does: a write that is not aligned panics.
    pub(crate) fn go_direct(&self) {
        let engine = self.engine();
        engine.set_alignment(Part::Data, 4096);
        engine.set_alignment(Part::Meta, 4096);
        engine.set_alignment(Part::Log, 512);
    }

    /// A request after which everything that had been answered before is durable.
    pub(crate) fn durably(
        &self,
        what: &str,
        request: impl FnOnce() -> Result<(), StoreError>,
    ) -> Step {
        let asked = self.moments();
        self.trace(|| what.to_owned());
        match request() {
            Ok(()) => {
                self.flushed(&asked);
                Ok(())
            }
            Err(error) => self.judge(what, &error, Blocking::Yes),
        }
    }

    pub(crate) fn moments(&self) -> Vec<(u64, Moment)> {
        let mut state = self.state();
        let State {
            volumes, import, ..
        } = &mut *state;
        let importing = import.iter_mut().map(|(_, volume)| volume);
        volumes
            .iter_mut()
            .chain(importing)
            .map(|volume| (volume.id, volume.now()))
            .collect()
    }

    pub(crate) fn flushed(&self, asked: &[(u64, Moment)]) {
        let mut state = self.state();
        for (id, moment) in asked {
            if let Some(volume) = state.volumes.iter_mut().find(|volume| volume.id == *id) {
                volume.flushed(*moment);
            }
        }
    }
}

/// Makes a new pool one of the format's first minor version.
fn make_first_minor(engine: &SimulatedEngine) {
    let root = Root {
        minor: 0,
        ..common::newest_root(engine).expect("a new pool has a root")
    };
    let (page, at) = (
        root.encode(common::superblock(engine).pool),
        root.slot().0 * PAGE_BYTES as u64,
    );
    let meta = engine.open(Part::Meta).expect("a new pool has metadata");
    let written = meta.write_at(&page[..], at).and_then(|()| meta.sync());
    written.expect("nothing fails yet");
}
