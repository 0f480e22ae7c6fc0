//! The volumes and snapshots in use, by name.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use onefold_format::VolumeId;
use onefold_metadata::sync::{RwLock, read, write};
use onefold_metadata::{full_name, split_name};

use crate::volume::Volume;

/// Visible volumes, by name, and snapshots, as `VOLUME@SNAPSHOT`. A volume that is being imported or
/// deleted is not included.
pub struct VolumeTable {
    by_name: RwLock<BTreeMap<String, Arc<Volume>>>,
}

impl VolumeTable {
    pub(crate) fn new(by_name: BTreeMap<String, Arc<Volume>>) -> Self {
        Self {
            by_name: RwLock::new(by_name),
        }
    }

    /// Names of the volumes in use and of their snapshots, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        read(&self.by_name).keys().cloned().collect()
    }

    /// Names of visible volumes that follow `after`, in order, without their snapshots; at most
    /// `names_max`. The cost grows with these, and not with the rest of the catalogue.
    #[must_use]
    pub fn names_after(&self, after: &str, names_max: usize) -> Vec<String> {
        let volumes = read(&self.by_name);
        let mut names: Vec<String> = Vec::new();
        let mut from = Bound::Excluded(after.to_owned());
        while names.len() < names_max {
            let Some((name, _)) = volumes.range((from, Bound::Unbounded)).next() else {
                break;
            };
            from = match split_name(name) {
                // Over all snapshots of this volume at once: this character follows the '@'.
                (volume, Some(_)) => Bound::Included(format!("{volume}A")),
                (_, None) => {
                    names.push(name.clone());
                    Bound::Excluded(name.clone())
                }
            };
        }
        names
    }

    /// Full names of snapshots that follow `after`, in order; at most `names_max`. The cost grows
    /// with these and with the volumes that have none.
    #[must_use]
    pub fn snapshot_names_after(&self, after: &str, names_max: usize) -> Vec<String> {
        let volumes = read(&self.by_name);
        let following = volumes.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let snapshots = following.filter(|(name, _)| split_name(name).1.is_some());
        snapshots
            .take(names_max)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Whether a volume or snapshot of this name is in use.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        read(&self.by_name).contains_key(name)
    }

    /// How many volumes are in use, without their snapshots.
    #[must_use]
    pub fn count(&self) -> usize {
        let volumes = read(&self.by_name);
        volumes
            .values()
            .filter(|volume| !volume.is_snapshot())
            .count()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<Arc<Volume>> {
        read(&self.by_name).get(name).cloned()
    }

    pub(crate) fn by_id(&self, id: VolumeId) -> Option<Arc<Volume>> {
        let volumes = read(&self.by_name);
        volumes.values().find(|volume| volume.id == id).cloned()
    }

    /// Volumes and their snapshots.
    pub(crate) fn all(&self) -> Vec<Arc<Volume>> {
        read(&self.by_name).values().cloned().collect()
    }

    /// Volumes without their snapshots.
    pub(crate) fn volumes(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.all();
        volumes.retain(|volume| !volume.is_snapshot());
        volumes
    }

    /// The snapshots of all volumes.
    pub(crate) fn snapshots(&self) -> Vec<Arc<Volume>> {
        let mut snapshots = self.all();
        snapshots.retain(|volume| volume.is_snapshot());
        snapshots
    }

    pub(crate) fn snapshots_of(&self, volume: &Volume) -> Vec<Arc<Volume>> {
        let prefix = full_name(&volume.name(), "");
        let mut snapshots = self.snapshots();
        snapshots.retain(|snapshot| snapshot.name().starts_with(&prefix));
        snapshots
    }

    pub(crate) fn insert(&self, name: &str, volume: Arc<Volume>) {
        write(&self.by_name).insert(name.to_owned(), volume);
    }

    pub(crate) fn remove(&self, name: &str) {
        write(&self.by_name).remove(name);
    }

    /// Gives a volume, and with it its snapshots, another name.
    pub(crate) fn rename(&self, volume: Arc<Volume>, old: &str, new: &str) {
        let mut volumes = write(&self.by_name);
        volumes.remove(old);
        volumes.insert(new.to_owned(), volume);
        rename_snapshots(&mut volumes, old, new);
    }
}

/// Gives the snapshots of a volume the volume's new name.
fn rename_snapshots(volumes: &mut BTreeMap<String, Arc<Volume>>, old: &str, new: &str) {
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
