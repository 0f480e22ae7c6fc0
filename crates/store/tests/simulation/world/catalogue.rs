//! Requests that change the catalogue of volumes, the size of the pool, and imports.

use std::sync::Arc;

use onefold_store::{Blocking, Store, StoreError, StoreErrorKind, VolumeOptions};

use super::{Fill, State, Step, Stop, World, violation};
use crate::common::MIB;
use crate::model::{Ended, SECTOR, VolumeModel};

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

impl World {
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
        let mut cursor = 0;
        let grown = loop {
            match store.space().allocate_step(size, &mut cursor, MIB) {
                Ok(true) => {}
                Ok(false) => break store.space().grow(size),
                Err(error) => break Err(error),
            }
        };
        match grown {
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
        let was_shrinking = store
            .space()
            .shrinking_to()
            .expect("nobody panicked")
            .is_some();
        self.trace(|| format!("shrink the pool to {size}"));
        let begun = store.space().plan_shrink(size).and_then(|plan| {
            self.state().pool_sizes.push(plan.first_size_bytes);
            store.space().begin_shrink(plan.first_size_bytes)?;
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
        let size = self.store().space().size_bytes().expect("nobody panicked");
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
    let deletions = store.deletions().unfinished().unwrap_or_default();
    let discarded = deletions
        .iter()
        .filter(|deletion| deletion.name.ends_with("@discarded"));
    discarded.count()
}

impl State {
    /// A pending change of a volume's size that has happened was not answered.
    pub(crate) fn cut_was_not_answered(&mut self) {
        if let Some(Pending::Resize(id, size)) = self.pending {
            let resized = self.volumes.iter_mut().filter(|volume| volume.id == id);
            resized.for_each(|volume| volume.may_lose_the_cut_block(size, self.block_size));
        }
    }

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
