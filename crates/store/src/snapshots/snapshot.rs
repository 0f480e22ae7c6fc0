//! Snapshots, clones, and going back to a snapshot: made in a moment, without copying anything.
//!
//! A snapshot is a frozen layer with a record of its own in the catalogue; the volume continues in
//! an empty layer above it. A clone is another volume whose layer is above the same frozen one. A
//! volume that is rolled back continues in an empty layer above the snapshot's, and its previous
//! one is deleted. See `docs/decisions/0016-snapshots-are-layers.md`; `deletion.rs` deletes them.
//!
//! The changes of a call are in one frame of the log: a crash leaves all of them or none.

use std::sync::Arc;

use onefold_format::frame::FRAME_PAYLOAD_MAX;
use onefold_format::record::FREEZE_BYTES;
use onefold_format::units::VOLUME_BLOCKS_MAX;
use onefold_format::{
    LayerCounts, LayerId, Record, SegmentIndex, TreeRoot, VolumeId, VolumeRecord, VolumeSettings,
    VolumeState,
};
use onefold_metadata::{
    Blocking, Catalogue, LAYERS_DEEP_MAX, Layer, Result, StoreError, StoreErrorKind, Wanted,
    check_name, free_slot, full_name,
};

use crate::store::Store;
use crate::volume::Volume;

/// The most volumes of which snapshots are made at one moment: their records are in one frame of the log.
pub const SNAPSHOTS_AT_ONCE_MAX: usize = 256;

const _: () = assert!(SNAPSHOTS_AT_ONCE_MAX * FREEZE_BYTES <= FRAME_PAYLOAD_MAX);

/// The name of the layer that a volume and its clone have in common.
const CLONED: &str = "cloned";

/// The name of the layer that a volume had before it was rolled back.
const DISCARDED: &str = "discarded";

impl Store {
    /// Makes a snapshot of each of these volumes, all of the same moment, and durable when this
    /// returns. New writes wait until those in flight end.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Exists`; `Invalid` for a bad name, the same volume twice, more than
    /// [`SNAPSHOTS_AT_ONCE_MAX`] volumes, or more than 1,024 snapshots below one another; I/O errors.
    pub fn create_snapshots(&self, wanted: &[(String, String)]) -> Result<()> {
        if wanted.len() > SNAPSHOTS_AT_ONCE_MAX {
            return Err(invalid(format!(
                "snapshots of {} volumes at one moment are too many: {SNAPSHOTS_AT_ONCE_MAX} at most",
                wanted.len()
            )));
        }
        let _changing = self.catalogue.turn();
        let mut sources: Vec<Arc<Volume>> = Vec::new();
        for (volume, name) in wanted {
            check_name(name, "snapshot")?;
            let source = self.volume_proper(volume)?;
            if sources.iter().any(|other| other.id == source.id) {
                return Err(invalid(format!("volume '{volume}' is named twice")));
            }
            self.check_snapshot_is_free(&source, name)?;
            check_depth(&source.layer(), &source.name())?;
            sources.push(source);
        }
        let records = self.freeze(&sources, None, |catalogue| {
            let mut slots = catalogue.free_slots();
            let frozen = (0..).zip(sources.iter().zip(wanted));
            let frozen = frozen.map(|(n, (source, (_, name)))| {
                let volume = record_of(catalogue, source)?;
                Ok(Record::Freeze {
                    slot: free_slot(&mut slots)?,
                    snapshot: self.snapshot_record(catalogue, n, volume, name),
                    live: LayerId(catalogue.next_layer_id() + n),
                    below: volume.layer,
                })
            });
            frozen.collect()
        })?;
        for (record, (volume, name)) in records.iter().zip(wanted) {
            if let Record::Freeze { snapshot, .. } = record {
                let made = Arc::new(Volume::new(Arc::clone(&self.pool), snapshot)?);
                let name = full_name(volume, name);
                made.set_name(&name);
                self.volumes.insert(&name, made);
            }
        }
        Ok(())
    }

    /// Makes a volume with the present content of `source`, a snapshot or a volume, which is
    /// written independently of it from then on. It inherits the dedup settings of `source`.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Exists`; `Invalid` for a bad name, or clones of clones more than 1,024 deep; I/O
    /// errors.
    pub fn clone_volume(&self, source: &str, name: &str) -> Result<()> {
        check_name(name, "volume")?;
        // The layer below may be on its way into the one above it, but no further while this looks.
        let _paused = self.deletions.pause();
        let _changing = self.catalogue.turn();
        let source = self.volume(source)?;
        let claim = self.catalogue.claim_name(name)?;
        check_depth(&source.layer(), &source.name())?;
        let shared = self.layer_to_share(&source)?;
        let clone = match shared {
            Some(below) => {
                let metadata = self.pool.journal().metadata()?;
                let catalogue = &metadata.catalogue();
                let slot = free_slot(&mut catalogue.free_slots())?;
                let clone = self.clone_record(catalogue, 0, record_of(catalogue, &source)?, name);
                let clone = VolumeRecord {
                    below: Some(below.id),
                    ..clone
                };
                drop(metadata);
                let volume = clone.clone();
                self.catalogue
                    .write(&[Record::VolumePut { slot, volume }], None)?;
                clone
            }
            None => self.freeze_and_clone(&source, name)?,
        };
        claim.keep();
        let volume = Arc::new(Volume::new(Arc::clone(&self.pool), &clone)?);
        self.volumes.insert(name, volume);
        Ok(())
    }

    /// The frozen layer that a clone of `source` can be put above, if there is one already: of a volume
    /// that was not written since, the one below.
    fn layer_to_share(&self, source: &Volume) -> Result<Option<Arc<Layer>>> {
        let layer = source.layer();
        if source.is_snapshot() {
            return Ok(Some(layer));
        }
        let _drained = layer.locks.lock(0..VOLUME_BLOCKS_MAX, Blocking::Yes);
        let first = self
            .pool
            .maps()
            .next_segment(&layer, SegmentIndex(0), Wanted::Mapped)?;
        Ok(layer.below().filter(|_| first.is_none()))
    }

    /// Clones a volume. The common layer is unnamed, and is deleted when the volume or the clone is.
    fn freeze_and_clone(&self, source: &Arc<Volume>, name: &str) -> Result<VolumeRecord> {
        let records = self.freeze(std::slice::from_ref(source), None, |catalogue| {
            let mut slots = catalogue.free_slots();
            let volume = record_of(catalogue, source)?;
            let frozen = self.snapshot_record(catalogue, 0, volume, CLONED);
            let freeze = Record::Freeze {
                slot: free_slot(&mut slots)?,
                snapshot: VolumeRecord {
                    state: VolumeState::Deleting,
                    ..frozen
                },
                live: LayerId(catalogue.next_layer_id()),
                below: volume.layer,
            };
            let put = Record::VolumePut {
                slot: free_slot(&mut slots)?,
                volume: VolumeRecord {
                    below: Some(volume.layer),
                    ..self.clone_record(catalogue, 1, volume, name)
                },
            };
            Ok(vec![freeze, put])
        })?;
        match &records[..] {
            [
                Record::Freeze { snapshot, .. },
                Record::VolumePut { volume, .. },
            ] => {
                self.leave_unnamed(source, snapshot)?;
                Ok(volume.clone())
            }
            _ => Err(StoreError::damaged("a clone's records are others")),
        }
    }

    /// Rolls a volume back to one of its snapshots: it gets the snapshot's content and size. Data
    /// written since is lost. Newer snapshots stay.
    ///
    /// # Errors
    ///
    /// `NotFound`; I/O errors.
    pub fn roll_back(&self, volume: &str, snapshot: &str) -> Result<()> {
        let _changing = self.catalogue.turn();
        let snapshot = self.check_snapshot(volume, snapshot)?;
        let source = self.volume_proper(volume)?;
        let size_bytes = snapshot.size_bytes();
        let sources = std::slice::from_ref(&source);
        let records = self.freeze(sources, Some(size_bytes), |catalogue| {
            let (volume, live) = (
                record_of(catalogue, &source)?,
                LayerId(catalogue.next_layer_id()),
            );
            let discarded = self.snapshot_record(catalogue, 0, volume, DISCARDED);
            let freeze = Record::Freeze {
                slot: free_slot(&mut catalogue.free_slots())?,
                snapshot: VolumeRecord {
                    state: VolumeState::Deleting,
                    ..discarded
                },
                live,
                below: snapshot.layer().id,
            };
            let slot = catalogue.by_id(source.id).map(|(slot, _)| slot);
            let put = Record::VolumePut {
                slot: slot.unwrap_or_default(),
                volume: VolumeRecord {
                    layer: live,
                    size_bytes,
                    map: TreeRoot::default(),
                    counts: LayerCounts::default(),
                    ..volume.clone()
                },
            };
            Ok(vec![freeze, put])
        })?;
        match records.first() {
            Some(Record::Freeze { snapshot, .. }) => self.leave_unnamed(&source, snapshot),
            _ => Ok(()),
        }
    }

    /// Drains the writes in flight of these volumes, makes records about their layers durable, and
    /// lets the volumes continue in the layers of the records, perhaps with another size: a write
    /// sees both old values, or both new ones.
    fn freeze(
        &self,
        sources: &[Arc<Volume>],
        size_bytes: Option<u64>,
        records: impl FnOnce(&Catalogue) -> Result<Vec<Record>>,
    ) -> Result<Vec<Record>> {
        // Before the writes are held up, which a checkpoint would do for long.
        self.pool.journal().make_room()?;
        let layers: Vec<Arc<Layer>> = sources.iter().map(|source| source.layer()).collect();
        let all = 0..VOLUME_BLOCKS_MAX;
        let drained: Vec<_> = layers
            .iter()
            .map(|layer| layer.locks.lock(all.clone(), Blocking::Yes))
            .collect();
        let records = records(self.pool.journal().metadata()?.catalogue())?;
        self.pool
            .journal()
            .append(&records, &[], Blocking::Yes, None)?;
        for (source, record) in sources.iter().zip(&records) {
            if let Record::Freeze { live, .. } = record {
                source.set_layer(self.pool.maps().layer(*live)?);
                if let Some(size_bytes) = size_bytes {
                    source.set_size_bytes(size_bytes);
                }
            }
        }
        drop(drained);
        self.pool.journal().commit()?;
        Ok(records)
    }

    /// The record of the `n`-th of several snapshots that are made together.
    fn snapshot_record(
        &self,
        catalogue: &Catalogue,
        n: u64,
        volume: &VolumeRecord,
        name: &str,
    ) -> VolumeRecord {
        VolumeRecord {
            id: VolumeId(catalogue.next_volume_id() + n),
            snapshot_of: Some(volume.id),
            state: VolumeState::Ready,
            created_unix_seconds: self.engine.unix_seconds(),
            name: name.to_owned(),
            map: TreeRoot::default(),
            counts: LayerCounts::default(),
            settings: VolumeSettings {
                hash_cache_bytes: 0,
                quota_bytes: 0,
                reservation_bytes: 0,
                ..volume.settings
            },
            ..volume.clone()
        }
    }

    /// The record of a clone that is made after `n` other new volumes and layers.
    fn clone_record(
        &self,
        catalogue: &Catalogue,
        n: u64,
        of: &VolumeRecord,
        name: &str,
    ) -> VolumeRecord {
        VolumeRecord {
            layer: LayerId(catalogue.next_layer_id() + n),
            snapshot_of: None,
            ..self.snapshot_record(catalogue, n, of, name)
        }
    }

    /// Leaves a layer frozen and without a name.
    fn leave_unnamed(&self, of: &Volume, record: &VolumeRecord) -> Result<()> {
        let volume = Arc::new(Volume::new(Arc::clone(&self.pool), record)?);
        volume.set_name(&full_name(&of.name(), &record.name));
        self.deletions.leave(volume);
        Ok(())
    }

    fn check_snapshot_is_free(&self, source: &Volume, name: &str) -> Result<()> {
        let name = full_name(&source.name(), name);
        if !self.volumes.has(&name) {
            return Ok(());
        }
        let message = format!("snapshot '{name}' exists already");
        Err(StoreError::new(StoreErrorKind::Exists, message))
    }

    /// A snapshot in use.
    pub(crate) fn snapshot(&self, volume: &str, snapshot: &str) -> Result<Arc<Volume>> {
        let name = full_name(volume, snapshot);
        let not_found = |_| {
            let message = format!("no snapshot is named '{name}'");
            StoreError::new(StoreErrorKind::NotFound, message)
        };
        self.volume(&name).map_err(not_found)
    }
}

fn record_of<'a>(catalogue: &'a Catalogue, volume: &Volume) -> Result<&'a VolumeRecord> {
    let found = catalogue.by_id(volume.id).map(|(_, record)| record);
    found.ok_or_else(|| StoreError::damaged("a volume in use is not in the catalogue"))
}

/// Makes sure that another layer can be put above this one.
fn check_depth(layer: &Arc<Layer>, name: &str) -> Result<()> {
    let mut below = Some(Arc::clone(layer));
    for _ in 0..LAYERS_DEEP_MAX {
        let Some(layer) = below else { return Ok(()) };
        below = layer.below();
    }
    Err(invalid(format!(
        "'{name}' has {LAYERS_DEEP_MAX} snapshots or clones below one another, which is the most: \
         delete some of them"
    )))
}

fn invalid(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, message)
}
