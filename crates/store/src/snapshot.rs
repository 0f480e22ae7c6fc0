//! Snapshots: made in a moment, deleted by merging them away.
//!
//! A snapshot is a frozen layer with a record of its own in the catalogue; the volume goes on in an
//! empty layer above it. See `docs/decisions/0016-snapshots-are-layers.md`.
//!
//! A crash leaves a snapshot or none, of all volumes that were to be frozen together. One that is
//! being deleted is gone for everybody from the start; [`Store::finish_deletions`] goes on with
//! what a crash, or an error, cut short.

use std::collections::BTreeMap;
use std::sync::Arc;

use onefold_format::map_page::EMPTY_SEGMENT;
use onefold_format::units::{BLOCKS_PER_SEGMENT, VOLUME_BLOCKS_MAX};
use onefold_format::{
    LayerCounts, LayerId, Record, SegmentIndex, TreeRoot, VolumeId, VolumeRecord, VolumeState,
};

use crate::Wait;
use crate::apply::owned_runs;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::map::Layer;
use crate::store::{Store, check_name, free_slot};
use crate::sync::{lock, read, write};
use crate::volume::Volume;

/// Most volumes of which snapshots are made at one moment.
pub const SNAPSHOTS_AT_ONCE_MAX: usize = 16;

/// What a snapshot is called where a volume can be named, too.
pub(crate) fn full_name(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

/// Gives the snapshots of a volume the volume's new name.
pub(crate) fn rename_all(volumes: &mut BTreeMap<String, Arc<Volume>>, old: &str, new: &str) {
    let prefix = full_name(old, "");
    let names: Vec<String> = volumes
        .range(prefix.clone()..)
        .map(|(name, _)| name.clone())
        .take_while(|name| name.starts_with(&prefix))
        .collect();
    for name in names {
        if let Some(snapshot) = volumes.remove(&name) {
            let name = full_name(new, &name[prefix.len()..]);
            snapshot.set_name(&name);
            volumes.insert(name, snapshot);
        }
    }
}

impl Store {
    /// Makes a snapshot of each of these volumes, all of the same moment, and durable when this
    /// returns. Writes wait while those that are under way end.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Exists`; `Invalid` for a bad name, the same volume twice, or more than
    /// [`SNAPSHOTS_AT_ONCE_MAX`] volumes; those of the disk.
    pub fn create_snapshots(&self, wanted: &[(String, String)]) -> Result<()> {
        if wanted.len() > SNAPSHOTS_AT_ONCE_MAX {
            return Err(invalid(format!(
                "snapshots of {} volumes at one moment are too many: {SNAPSHOTS_AT_ONCE_MAX} at most",
                wanted.len()
            )));
        }
        let _changing = lock(&self.changing);
        let mut sources: Vec<Arc<Volume>> = Vec::new();
        for (volume, name) in wanted {
            check_name(name, "snapshot")?;
            let source = self.volume_proper(volume)?;
            if sources.iter().any(|other| other.id == source.id) {
                return Err(invalid(format!("volume '{volume}' is named twice")));
            }
            self.check_snapshot_is_free(&source, name)?;
            sources.push(source);
        }
        let records = {
            let layers: Vec<Arc<Layer>> = sources.iter().map(|source| source.layer()).collect();
            let all = 0..VOLUME_BLOCKS_MAX;
            let _drained: Vec<_> = layers
                .iter()
                .map(|layer| layer.locks.lock(all.clone(), Wait::Yes))
                .collect();
            let records = self.freeze_records(&sources, wanted)?;
            self.pool.record(&records, &[], Wait::Yes)?;
            for (source, record) in sources.iter().zip(&records) {
                if let Record::Freeze { live, .. } = record {
                    source.set_layer(self.pool.maps.layer(*live)?);
                }
            }
            records
        };
        self.pool.commit()?;
        for (record, (volume, name)) in records.iter().zip(wanted) {
            if let Record::Freeze { snapshot, .. } = record {
                let made = Arc::new(Volume::new(Arc::clone(&self.pool), snapshot)?);
                let name = full_name(volume, name);
                made.set_name(&name);
                write(&self.volumes).insert(name, made);
            }
        }
        Ok(())
    }

    /// The layers are locked, so that they are still the live ones when they are frozen.
    fn freeze_records(
        &self,
        sources: &[Arc<Volume>],
        wanted: &[(String, String)],
    ) -> Result<Vec<Record>> {
        let ledger = self.pool.ledger()?;
        let catalogue = &ledger.books.catalogue;
        let mut slots = catalogue.free_slots();
        let mut records = Vec::new();
        for (n, (source, (_, name))) in (0..).zip(sources.iter().zip(wanted)) {
            let Some((_, volume)) = catalogue.by_id(source.id) else {
                return Err(StoreError::damaged(
                    "a volume in use is not in the catalogue",
                ));
            };
            records.push(Record::Freeze {
                slot: free_slot(&mut slots)?,
                snapshot: VolumeRecord {
                    id: VolumeId(catalogue.next_volume_id + n),
                    snapshot_of: Some(source.id),
                    state: VolumeState::Ready,
                    created_unix_seconds: self.engine.unix_seconds(),
                    name: name.clone(),
                    map: TreeRoot::default(),
                    counts: LayerCounts::default(),
                    hash_cache_bytes: 0,
                    ..volume.clone()
                },
                live: LayerId(catalogue.next_layer_id + n),
            });
        }
        Ok(records)
    }

    /// Also of those that are being deleted.
    fn check_snapshot_is_free(&self, source: &Volume, name: &str) -> Result<()> {
        let ledger = self.pool.ledger()?;
        let mut snapshots = ledger.books.catalogue.snapshots_of(source.id);
        let Some(taken) = snapshots.find(|snapshot| snapshot.name == name) else {
            return Ok(());
        };
        let state = match taken.state {
            VolumeState::Deleting => "is still being deleted",
            _ => "exists already",
        };
        let name = full_name(&source.name(), name);
        let message = format!("snapshot '{name}' {state}");
        Err(StoreError::new(StoreErrorKind::Exists, message))
    }

    /// A volume can be deleted only without them.
    pub(crate) fn check_has_no_snapshots(&self, volume: &Volume) -> Result<()> {
        let ledger = self.pool.ledger()?;
        let names: Vec<&str> = ledger
            .books
            .catalogue
            .snapshots_of(volume.id)
            .map(|snapshot| snapshot.name.as_str())
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Exists,
            format!(
                "volume '{}' has snapshots, which have to be deleted first: {}",
                volume.name(),
                names.join(", ")
            ),
        ))
    }

    /// Deletes a snapshot. It is gone at once; what it alone holds is given up before this returns,
    /// or by [`Store::finish_deletions`]. `progress` is told how many of its blocks are done and
    /// how many there were.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Busy` where an open batch cannot be settled; those of the disk.
    pub fn delete_snapshot(
        &self,
        volume: &str,
        snapshot: &str,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let changing = lock(&self.changing);
        let name = full_name(volume, snapshot);
        let not_found = |_| {
            let message = format!("no snapshot is named '{name}'");
            StoreError::new(StoreErrorKind::NotFound, message)
        };
        let snapshot = self.volume(&name).map_err(not_found)?;
        self.change_volume(snapshot.id, |record| record.state = VolumeState::Deleting)?;
        write(&self.volumes).remove(&name);
        lock(&self.deleting).push(Arc::clone(&snapshot));
        snapshot.mark_gone();
        drop(changing);
        self.merge_away(&snapshot, progress)
    }

    /// Goes on with the deletions of snapshots that were cut short. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// As [`Store::delete_snapshot`].
    pub fn finish_deletions(&self) -> Result<bool> {
        let deleting = lock(&self.deleting).clone();
        for snapshot in &deleting {
            self.merge_away(snapshot, &mut |_, _| {})?;
        }
        Ok(!deleting.is_empty())
    }

    /// The same for those of one volume, which is to be deleted as well.
    pub(crate) fn finish_deletions_of(&self, volume: &Volume) -> Result<()> {
        let ledger = self.pool.ledger()?;
        let of_volume = ledger.books.catalogue.snapshots_of(volume.id);
        let ids: Vec<VolumeId> = of_volume.map(|snapshot| snapshot.id).collect();
        drop(ledger);
        let mut deleting = lock(&self.deleting).clone();
        deleting.retain(|snapshot| ids.contains(&snapshot.id));
        deleting
            .iter()
            .try_for_each(|snapshot| self.merge_away(snapshot, &mut |_, _| {}))
    }

    /// Snapshots that are being deleted.
    #[must_use]
    pub fn snapshots_being_deleted(&self) -> Vec<String> {
        let deleting = lock(&self.deleting);
        deleting.iter().map(|snapshot| snapshot.name()).collect()
    }

    /// The snapshots of all volumes in use.
    pub(crate) fn snapshots_in_use(&self) -> Vec<Arc<Volume>> {
        let volumes = read(&self.volumes);
        let snapshots = volumes.values().filter(|volume| volume.is_snapshot());
        snapshots.cloned().collect()
    }

    fn merge_away(&self, snapshot: &Volume, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let layer = snapshot.layer();
        let all = layer.logical_blocks();
        let mut from = SegmentIndex(0);
        while let Some(segment) = self.pool.maps.next_segment(&layer, from)? {
            self.merge_segment(&layer, segment)?;
            progress(all - layer.logical_blocks(), all);
            from = segment + 1;
        }
        let _changing = lock(&self.changing);
        let mut deleting = lock(&self.deleting);
        if deleting.iter().any(|other| other.id == snapshot.id) {
            self.remove_record(snapshot.id, layer.id)?;
            deleting.retain(|other| other.id != snapshot.id);
        }
        Ok(())
    }

    fn merge_segment(&self, layer: &Arc<Layer>, segment: SegmentIndex) -> Result<()> {
        let pool = &self.pool;
        // No batch is open about what moves.
        let _job = lock(&pool.jobs);
        pool.settle_open_batch()?;
        let maps = &pool.maps;
        let above = match layer.above()[..] {
            [above] => above,
            // Somebody else has deleted it meanwhile.
            [] if maps.layer(layer.id).is_err() => return Ok(()),
            _ => {
                return Err(StoreError::damaged(format!(
                    "frozen layer {} has not one layer above it",
                    layer.id
                )));
            }
        };
        let above = maps.layer(above)?;
        let first = segment.first().0;
        let blocks = first..first + BLOCKS_PER_SEGMENT;
        let _locked = above.locks.lock(blocks, Wait::Yes);
        let lower = maps.leaf(layer, segment, Wait::Yes)?;
        if lower.with(|entries| *entries == EMPTY_SEGMENT) {
            return Ok(());
        }
        let owned = lower.with(|entries| owned_runs(entries));
        let merge = Record::Merge {
            layer: layer.id,
            above: above.id,
            segment,
        };
        pool.record(&[merge], &owned, Wait::Yes)
    }
}

fn invalid(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, message)
}
