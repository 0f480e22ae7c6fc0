//! One simulated machine, the store on it, and the expected content of its volumes.
//!
//! Every request goes to the store and to the model. The state is never locked while the store is
//! called, so that code which runs in the middle of an I/O can make requests of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onefold_engine::simulated::{Op, SimulatedEngine, When};
use onefold_engine::{Engine as _, Part};
use onefold_format::Root;
use onefold_format::page::PAGE_BYTES;
use onefold_store::{
    Blocking, CreateOptions, Guard, Import, IndexKind, RecoveryReport, Scarcity, Store, StoreError,
    StoreErrorKind, Volume, VolumeOptions,
};

use crate::common::{self, LITTLE_MEMORY, MIB};
use crate::coverage::Coverage;
use crate::model::{Ended, Moment, SECTOR, Version, Violation, VolumeModel, common, sectors_of};
use crate::random::Random;
use crate::sharing::Job;

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

/// A change of the catalogue that may or may not have happened.
#[derive(Debug, Clone)]
pub(crate) enum Pending {
    Create(VolumeModel),
    Delete(u64),
    Rename(u64, String),
    Resize(u64, u64),
    /// Snapshots of one moment.
    Freeze(Vec<VolumeModel>),
    /// This volume has the content of this snapshot. This many layers had been discarded before.
    RollBack(u64, Box<VolumeModel>, usize),
}

/// The parts of a write, block by block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fill {
    Data,
    /// Each block has one of a few contents that blocks of all volumes have.
    Common,
    /// Every other block is zeros.
    Comb,
    Zeros,
}

/// The blocks that can be handed out, as long as no other request runs.
struct Room {
    blocks: u64,
    hooks_run: u64,
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

    // Requests to volumes.

    pub(crate) fn write(
        &self,
        id: u64,
        offset: u64,
        len: u64,
        fill: Fill,
        blocking: Blocking,
    ) -> Step {
        if !self.settle_ends(id, offset, len)? {
            return Ok(());
        }
        self.state().partial_sectors |= !(offset | len).is_multiple_of(SECTOR);
        let (versions, bytes) = self.prepare(id, offset, len, fill);
        let what =
            || format!("write {len} bytes at {offset} of {id}, {fill:?}, blocking {blocking:?}");
        self.change(id, offset, &versions, what, blocking, |volume| {
            let before = volume.inline_stat();
            let written = match blocking {
                Blocking::Yes => volume.write(offset, &bytes, blocking),
                Blocking::No => self.write_as_a_front_end(id, volume, offset, &bytes),
            };
            let after = volume.inline_stat();
            let coverage = &mut self.state().coverage;
            coverage.hits += after.hits - before.hits;
            coverage.hits_refused += after.refused.sum() - before.refused.sum();
            written
        })
    }

    pub(crate) fn write_zeroes(&self, id: u64, offset: u64, len: u64, blocking: Blocking) -> Step {
        if !self.settle_ends(id, offset, len)? {
            return Ok(());
        }
        self.state().partial_sectors |= !(offset | len).is_multiple_of(SECTOR);
        let (versions, _) = self.prepare(id, offset, len, Fill::Zeros);
        let what = || format!("zero {len} bytes at {offset} of {id}, blocking {blocking:?}");
        self.change(id, offset, &versions, what, blocking, |volume| {
            volume.write_zeroes(offset, len, blocking)
        })
    }

    pub(crate) fn trim(&self, id: u64, offset: u64, len: u64, blocking: Blocking) -> Step {
        let block_size = self.state().block_size;
        let size = self.size(id);
        let start = offset.next_multiple_of(block_size);
        let end = match offset + len {
            end if end == size => end,
            end => end / block_size * block_size,
        };
        let sectors = end.saturating_sub(start) / SECTOR;
        let versions = vec![0; sectors as usize];
        let what = || format!("trim {len} bytes at {offset} of {id}, blocking {blocking:?}");
        self.change(id, start, &versions, what, blocking, |volume| {
            let trimmed = volume.trim(offset, len, blocking);
            // In a volume that was resized concurrently, the last block may not have counted as whole.
            let is_short = !end.is_multiple_of(block_size);
            let is_in_part = is_short && volume.size_bytes() != size;
            self.state().is_in_part = is_in_part;
            trimmed
        })
    }

    /// A request that changes the sectors from `offset` on to `versions`.
    fn change(
        &self,
        id: u64,
        offset: u64,
        versions: &[Version],
        what: impl Fn() -> String,
        blocking: Blocking,
        request: impl FnOnce(&Arc<Volume>) -> Result<(), StoreError>,
    ) -> Step {
        let volume = self.handle(id)?;
        let first = offset / SECTOR;
        let sectors = first..first + versions.len() as u64;
        let version = |sector: u64| versions[(sector - first) as usize];
        let begun = self.with(id, |volume| volume.begin(sectors.clone(), version));
        self.trace(&what);
        let (room_before, quota_before) = (self.room(), self.quota(id));
        let done = request(&volume);
        self.state().partial_sectors = false;
        let is_in_part = std::mem::take(&mut self.state().is_in_part);
        // Once the machine has stopped, no client gets an answer.
        let ended = if done.is_ok() && !is_in_part && !self.engine().is_crashed() {
            Ended::Answered
        } else {
            Ended::Failed
        };
        self.with(id, |volume| volume.end(begun, sectors, version, ended));
        self.verify_quota(id, quota_before.as_ref())?;
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                self.judge(&what(), &error, blocking)?;
                let bytes = versions.len() as u64 * SECTOR;
                self.explain_quota(&error, quota_before, bytes)?;
                self.explain_no_space(&error, room_before, bytes)
            }
        }
    }

    /// Blocks that are free for any write, or will be once a commit has released them.
    fn room(&self) -> Option<Room> {
        let state = self.state();
        if state.depth > 0 {
            return None;
        }
        let hooks_run = state.coverage.hooks_run;
        drop(state);
        let stat = self.store().stat().ok()?;
        // Blocks released beyond the new end of a shrinking pool are unused.
        let is_shrinking = self.store().shrinking_to().ok()?.is_some();
        if is_shrinking && stat.reclaim_blocks > 0 {
            return None;
        }
        // Unreadable blocks stay out of use when they are released.
        let bad = self.store().scrub_status().ok()?.bad_blocks + stat.lost_blocks;
        Some(Room {
            blocks: (stat.free_blocks + stat.reclaim_blocks - stat.queued_blocks)
                .saturating_sub(stat.reserve_blocks + stat.reserved_unused_blocks + bad),
            hooks_run,
        })
    }

    /// Only a pool without room may return this.
    fn explain_no_space(&self, error: &StoreError, room: Option<Room>, bytes: u64) -> Step {
        let state = self.state();
        let needed = bytes / state.block_size + 2;
        let Some(room) = room.filter(|room| room.hooks_run == state.coverage.hooks_run) else {
            return Ok(());
        };
        if error.kind() == StoreErrorKind::NoSpace && room.blocks > needed && !state.faulty {
            return Err(violation(format!(
                "{needed} blocks at most were wanted, {} are free, and yet: {error}",
                room.blocks
            )));
        }
        Ok(())
    }

    /// Sectors that are written in part are completed from the model's content of them, which must
    /// be certain. Returns whether it is.
    fn settle_ends(&self, id: u64, offset: u64, len: u64) -> Result<bool, Stop> {
        let ends =
            || sectors_of(offset, len).filter(|(_, _, inside)| *inside != (0..SECTOR as usize));
        let is_certain = |sector: u64| self.with(id, |volume| volume.certain(sector).is_some());
        for (sector, _, _) in ends() {
            if !is_certain(sector) {
                self.read(id, sector * SECTOR, SECTOR, Blocking::Yes)?;
            }
        }
        // A request in the middle of the second read may have changed the content that the first
        // one found.
        Ok(ends().all(|(sector, _, _)| is_certain(sector)))
    }

    /// The versions that a write makes, and its bytes.
    fn prepare(&self, id: u64, offset: u64, len: u64, fill: Fill) -> (Vec<Version>, Vec<u8>) {
        let mut state = self.state();
        state.next_version += 1;
        let (own, block_size) = (state.next_version, state.block_size);
        drop(state);
        let mut bytes = vec![0; len as usize];
        let versions = self.with(id, |volume| {
            let sectors = sectors_of(offset, len).map(|(sector, range, inside)| {
                let block = sector * SECTOR / block_size;
                let source = match fill {
                    Fill::Comb if block % 2 == 1 => 0,
                    Fill::Data | Fill::Comb => own,
                    Fill::Common => common(own, block),
                    Fill::Zeros => 0,
                };
                let whole = inside == (0..SECTOR as usize);
                let version = match volume.certain(sector) {
                    Some(before) if !whole => {
                        volume.mix(sector, before, (own, source), inside.clone())
                    }
                    _ => source,
                };
                bytes[range].copy_from_slice(&volume.bytes(sector, version)[inside]);
                version
            });
            sectors.collect()
        });
        (versions, bytes)
    }

    pub(crate) fn read(&self, id: u64, offset: u64, len: u64, blocking: Blocking) -> Step {
        let volume = self.handle(id)?;
        let begun = self.with(id, VolumeModel::begin_read);
        let what = || format!("read {len} bytes at {offset} of {id}, blocking {blocking:?}");
        self.trace(what);
        let mut found = vec![0xdd; len as usize];
        match volume.read(offset, &mut found, blocking) {
            Ok(()) => {
                // The kernel may have evicted data that it could not write.
                let may_be_gone = self.engine().failures(Part::Data, Op::Sync) > 0;
                if may_be_gone && self.state().is_sync_untold {
                    // A block with another volume's content cannot be refused yet.
                    self.with(id, VolumeModel::abandon_read);
                    return Ok(());
                }
                let compared = self.with(id, |volume| {
                    volume.end_read(begun, offset, &found, may_be_gone)
                });
                Ok(compared?)
            }
            Err(error) => {
                self.with(id, VolumeModel::abandon_read);
                self.judge(&what(), &error, blocking)
            }
        }
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
            while self.store().give_back(MIB)? {}
            Ok(())
        });
        done.or_else(|error| self.judge("tick", &error, Blocking::Yes))
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

    // Changes of the catalogue.

    fn fresh_volume(&self, options: &VolumeOptions) -> VolumeModel {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let name = format!("volume-{id}");
        VolumeModel::new(id, &name, options.size_bytes, &options.domain)
    }

    pub(crate) fn create_volume(&self, size: u64) -> Step {
        self.create_volume_as(&VolumeOptions::new(size))
    }

    /// Creates a volume where nothing hinders that. Returns its number.
    pub(crate) fn new_volume(&self, size: u64) -> Result<u64, Stop> {
        self.create_volume(size)?;
        Ok(*self.volume_ids().last().expect("it was created"))
    }

    pub(crate) fn create_volume_as(&self, options: &VolumeOptions) -> Step {
        let volume = self.fresh_volume(options);
        let name = volume.name.clone();
        let store = self.store();
        self.catalogue_change(Pending::Create(volume), || {
            store.create_volume(&name, options)
        })
    }

    pub(crate) fn delete_volume(&self, id: u64) -> Step {
        let (name, store) = (self.with(id, |volume| volume.name.clone()), self.store());
        self.catalogue_change(Pending::Delete(id), || store.delete_volume(&name))
    }

    /// Makes another volume with the content of this volume or snapshot.
    pub(crate) fn clone_volume(&self, source: u64) -> Step {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        drop(state);
        let name = format!("volume-{id}");
        let (of, clone) = self.with(source, |source| {
            (source.name.clone(), source.cloned(id, &name))
        });
        let store = self.store();
        let done = self.catalogue_change(Pending::Create(clone), || store.clone_volume(&of, &name));
        self.state().coverage.clones += u64::from(done.is_ok());
        done
    }

    /// Takes a snapshot's volume back to it.
    pub(crate) fn roll_back(&self, snapshot: u64) -> Step {
        let model = self.with(snapshot, |snapshot| snapshot.clone());
        let Some(of) = model.snapshot_of else {
            return Ok(());
        };
        let (name, store) = (model.name.clone(), self.store());
        let (volume, snapshot) = name.split_once('@').expect("a snapshot's name");
        let model = self.with(of, |of| of.rolled_back(&model));
        let pending = Pending::RollBack(of, Box::new(model), discarded_layers(&store));
        let done = self.catalogue_change(pending, || store.roll_back(volume, snapshot));
        self.state().coverage.rolled_back += u64::from(done.is_ok());
        done
    }

    /// Makes snapshots of these volumes, of one moment.
    pub(crate) fn create_snapshots(&self, ids: &[u64]) -> Step {
        let mut wanted = Vec::new();
        let mut frozen = Vec::new();
        for id in ids {
            let mut state = self.state();
            let number = state.next_id;
            state.next_id += 1;
            drop(state);
            let name = format!("s{number}");
            wanted.push((self.with(*id, |volume| volume.name.clone()), name.clone()));
            frozen.push(self.with(*id, |volume| volume.frozen(number, &name)));
        }
        let store = self.store();
        self.catalogue_change(Pending::Freeze(frozen), || store.create_snapshots(&wanted))
    }

    pub(crate) fn delete_snapshot(&self, id: u64) -> Step {
        let (name, store) = (self.with(id, |volume| volume.name.clone()), self.store());
        let (volume, snapshot) = name.split_once('@').expect("a snapshot's name");
        let done = self.catalogue_change(Pending::Delete(id), || {
            store.delete_snapshot(volume, snapshot)
        });
        self.state().coverage.snapshots_deleted += u64::from(done.is_ok());
        done
    }

    pub(crate) fn rename_volume(&self, id: u64) -> Step {
        let (name, store) = (self.with(id, |volume| volume.name.clone()), self.store());
        let new_name = format!("{name}x");
        self.catalogue_change(Pending::Rename(id, new_name.clone()), || {
            store.rename_volume(&name, &new_name)
        })
    }

    pub(crate) fn resize_volume(&self, id: u64, size: u64) -> Step {
        let (name, store) = (self.with(id, |volume| volume.name.clone()), self.store());
        let beyond = size / SECTOR..self.size(id) / SECTOR;
        // Until the volume has its new size.
        self.with(id, |volume| volume.may_become_zeros(&beyond));
        let block_size = self.state().block_size;
        let is_cut = !beyond.is_empty() && !size.is_multiple_of(block_size);
        let done = self.catalogue_change(Pending::Resize(id, size), || {
            store.resize_volume(&name, size)
        });
        self.state().coverage.cut_in_a_block += u64::from(is_cut && done.is_ok());
        done
    }

    /// Makes the pool larger.
    pub(crate) fn grow_pool(&self, by: u64) -> Step {
        let store = self.store();
        let size = self.pool_size() + by;
        self.state().pool_sizes.push(size);
        self.trace(|| format!("grow the pool to {size}"));
        match store.grow(size) {
            Ok(()) => {
                let mut state = self.state();
                state.pool_sizes = vec![size];
                state.coverage.pool_grown += 1;
                Ok(())
            }
            Err(error) => self.judge("grow the pool", &error, Blocking::Yes),
        }
    }

    /// Makes the pool smaller, if its content fits. Returns whether it does.
    pub(crate) fn shrink_pool(&self, size: u64) -> Result<bool, Stop> {
        let store = self.store();
        let was_shrinking = store.shrinking_to().expect("nobody panicked").is_some();
        self.trace(|| format!("shrink the pool to {size}"));
        let begun = store.plan_shrink(size).and_then(|plan| {
            self.state().pool_sizes.push(plan.first_size_bytes);
            store.begin_shrink(plan.first_size_bytes)?;
            self.state().coverage.blocks_evacuated += plan.copied_blocks;
            Ok(())
        });
        match begun {
            Ok(()) => self.go_on_shrinking().map(|()| true),
            // A checkpoint has ended the shrinking that a crash had cut short.
            Err(error)
                if error.kind() == StoreErrorKind::Invalid
                    && was_shrinking
                    && self.pool_size() <= size =>
            {
                Ok(false)
            }
            Err(error) => {
                self.judge("begin to shrink the pool", &error, Blocking::Yes)?;
                Ok(false)
            }
        }
    }

    /// The pool's size now: any checkpoint may have cut a pool that is shrinking.
    pub(crate) fn pool_size(&self) -> u64 {
        let size = self.store().size_bytes().expect("nobody panicked");
        let mut state = self.state();
        if state.pool_sizes.contains(&size) && state.pool_sizes[0] != size {
            state.pool_sizes = vec![size];
        }
        size
    }

    fn catalogue_change(
        &self,
        pending: Pending,
        request: impl FnOnce() -> Result<(), StoreError>,
    ) -> Step {
        let what = format!("{pending:.40?}");
        if self.state().pending.is_some() {
            return self.second_change(&what, request);
        }
        self.state().pending = Some(pending);
        self.durably(&what, || {
            request()?;
            self.state().settle_pending();
            Ok(())
        })?;
        let mut state = self.state();
        if state.pending.is_some() {
            // It failed, and only recovery knows its progress.
            state.must_reopen = true;
        }
        Ok(())
    }

    /// A change of the catalogue while it is undecided whether an earlier one happened, which only
    /// recovery knows. A pool that takes no writes refuses it; no other is asked, because the model
    /// can leave only one change undecided.
    fn second_change(&self, what: &str, request: impl FnOnce() -> Result<(), StoreError>) -> Step {
        if self.store().format_version().is_ok() {
            return Ok(());
        }
        self.trace(|| format!("{what}, while another change is undecided"));
        match request() {
            Ok(()) => Err(violation(format!("{what}: a pool without writes did it"))),
            Err(error) => self.judge(what, &error, Blocking::Yes),
        }
    }

    pub(crate) fn begin_import(&self, size: u64) -> Step {
        self.begin_import_as(&VolumeOptions::new(size))
    }

    pub(crate) fn begin_import_as(&self, options: &VolumeOptions) -> Step {
        let volume = self.fresh_volume(options);
        let store = self.store();
        let mut import = None;
        self.durably("begin an import", || {
            import = Some(store.begin_import(&volume.name, options)?);
            Ok(())
        })?;
        let mut state = self.state();
        state.must_reopen |= import.is_none();
        state.import = import.map(|import| (Arc::new(import), volume));
        Ok(())
    }

    /// Writes a run of whole blocks to the volume that is being imported.
    pub(crate) fn write_import(&self, offset: u64, len: u64, fill: Fill) -> Step {
        let Some((import, volume)) = self.state().import.take() else {
            return Ok(());
        };
        let id = volume.id;
        self.state().volumes.push(volume);
        let (versions, bytes) = self.prepare(id, offset, len, fill);
        let mut volume = self.state().volumes.pop().expect("just pushed");
        let first = offset / SECTOR;
        let sectors = first..first + versions.len() as u64;
        let version = |sector: u64| versions[(sector - first) as usize];
        let begun = volume.begin(sectors.clone(), version);
        self.trace(|| format!("import {len} bytes at {offset}"));
        let done = import.write(offset, &bytes);
        let ended = if done.is_ok() && !self.engine().is_crashed() {
            Ended::Answered
        } else {
            Ended::Failed
        };
        volume.end(begun, sectors, version, ended);
        self.state().import = Some((import, volume));
        done.or_else(|error| self.judge("import", &error, Blocking::Yes))
    }

    pub(crate) fn finish_import(&self) -> Step {
        let Some((import, mut volume)) = self.state().import.take() else {
            return Ok(());
        };
        // Finishing begins with a flush of its own: if the volume appears, it is complete.
        let asked = volume.now();
        volume.flushed(asked);
        let import = Arc::into_inner(import).expect("nobody else imports");
        self.catalogue_change(Pending::Create(volume), || import.finish())
    }

    pub(crate) fn abort_import(&self) -> Step {
        let import = self.state().import.take();
        self.trace(|| "abort the import".to_owned());
        drop(import);
        if self.engine().is_crashed() {
            return Err(Stop::Crashed);
        }
        Ok(())
    }
}

/// Layers that volumes had before they were rolled back.
pub(crate) fn discarded_layers(store: &Store) -> usize {
    let deletions = store.deletions().unwrap_or_default();
    let discarded = deletions
        .iter()
        .filter(|deletion| deletion.name.ends_with("@discarded"));
    discarded.count()
}

impl State {
    /// The pending change has happened.
    pub(crate) fn settle_pending(&mut self) {
        let find = |volumes: &mut Vec<VolumeModel>, id: u64| {
            let at = volumes.iter().position(|volume| volume.id == id);
            at.expect("the volume is in the model")
        };
        match self.pending.take() {
            None => {}
            Some(Pending::Create(volume)) => self.volumes.push(volume),
            Some(Pending::Delete(id)) => {
                let at = find(&mut self.volumes, id);
                self.volumes.remove(at);
            }
            Some(Pending::Rename(id, name)) => {
                let at = find(&mut self.volumes, id);
                for volume in &mut self.volumes {
                    if let (true, Some((_, snapshot))) =
                        (volume.snapshot_of == Some(id), volume.name.split_once('@'))
                    {
                        volume.name = format!("{name}@{snapshot}");
                    }
                }
                self.volumes[at].name = name;
            }
            Some(Pending::Freeze(snapshots)) => {
                self.coverage.snapshots += snapshots.len() as u64;
                self.volumes.extend(snapshots);
            }
            Some(Pending::RollBack(id, model, _)) => {
                let at = find(&mut self.volumes, id);
                self.volumes[at] = *model;
            }
            Some(Pending::Resize(id, size)) => {
                let at = find(&mut self.volumes, id);
                self.volumes[at].resize(size);
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
