//! The catalogue in memory: a slot for each volume and each snapshot, written in pages of fifteen.
//!
//! It is read and changed under the lock of the uncommitted state, so frequent operations cost the
//! same however many snapshots there are: records are found by number and by layer, and a
//! checkpoint copies the pages that it writes. Only making or renaming a volume scans all of them.

use std::collections::BTreeSet;

use onefold_format::catalogue_page::{self, RECORDS_PER_PAGE};
use onefold_format::page::{CATALOGUE_OWNER, PageKind};
use onefold_format::{
    DomainId, LayerCounts, LayerId, PageNumber, TreeRoot, VolumeId, VolumeRecord, VolumeState,
};
use rustc_hash::FxHashMap;

use super::names::full_name;
use super::pages::Pages;
use super::tree;
use crate::error::{Result, StoreError, StoreErrorKind};
use crate::limits::VOLUMES_MAX;

/// The volume name of a snapshot that outlives its volume.
const DELETED: &str = "(deleted)";

/// The records of all volumes and snapshots.
#[derive(Default)]
pub struct Catalogue {
    pub(super) root: TreeRoot,
    slots: Vec<Option<VolumeRecord>>,
    /// The slots of all records, by number and by layer.
    by_id: FxHashMap<VolumeId, u64>,
    by_layer: FxHashMap<LayerId, u64>,
    /// The layers above each layer, if there are any.
    above: FxHashMap<LayerId, Vec<LayerId>>,
    dirty_pages: BTreeSet<u64>,
    pub(super) next_volume_id: u64,
    pub(super) next_layer_id: u64,
    pub(super) next_domain_id: u32,
}

impl Catalogue {
    /// Reads all records that `root` reaches, and passes each page that it reads to `visit`.
    pub fn read(
        pages: &Pages,
        root: TreeRoot,
        visit_page: &mut dyn FnMut(PageNumber) -> Result<()>,
    ) -> Result<Self> {
        let mut slots: Vec<Option<VolumeRecord>> = Vec::new();
        tree::walk(pages, CATALOGUE_OWNER, root, &mut |visit| {
            let (index, pointer) = match visit {
                tree::Visit::Node(page) => return visit_page(page),
                tree::Visit::Leaf(index, pointer) => (index, pointer),
            };
            visit_page(pointer.page)?;
            let page = pages.read(PageKind::Catalogue, 0, CATALOGUE_OWNER, index, pointer)?;
            let records = catalogue_page::decode(&page)
                .map_err(|e| StoreError::format(format_args!("catalogue page {index}"), e))?;
            if index >= VOLUMES_MAX / RECORDS_PER_PAGE as u64 {
                let message = format!("catalogue page {index} is beyond {VOLUMES_MAX} volumes");
                return Err(StoreError::damaged(message));
            }
            slots.resize(index as usize * RECORDS_PER_PAGE, None);
            slots.extend(records);
            Ok(())
        })?;
        let mut catalogue = Self {
            root,
            ..Self::default()
        };
        for (slot, record) in slots.iter_mut().enumerate() {
            catalogue.slots.push(None);
            catalogue.set(slot, record.take());
        }
        Ok(catalogue)
    }

    /// Puts a record into an existing slot, or removes it, and returns the old one.
    fn set(&mut self, slot: usize, record: Option<VolumeRecord>) -> Option<VolumeRecord> {
        let before = std::mem::replace(&mut self.slots[slot], record);
        if let Some(VolumeRecord {
            id, layer, below, ..
        }) = &before
        {
            self.by_id.remove(id);
            self.by_layer.remove(layer);
            if let Some(below) = below
                && let Some(above) = self.above.get_mut(below)
            {
                above.retain(|other| other != layer);
                if above.is_empty() {
                    self.above.remove(below);
                }
            }
        }
        if let Some(VolumeRecord {
            id, layer, below, ..
        }) = &self.slots[slot]
        {
            self.by_id.insert(*id, slot as u64);
            self.by_layer.insert(*layer, slot as u64);
            if let Some(below) = below {
                self.above.entry(*below).or_default().push(*layer);
            }
        }
        before
    }

    fn at(&self, slot: Option<&u64>) -> Option<(u64, &VolumeRecord)> {
        let slot = *slot?;
        let record = self.slots.get(slot as usize)?.as_ref()?;
        Some((slot, record))
    }

    /// The number of the next volume or snapshot.
    pub fn next_volume_id(&self) -> u64 {
        self.next_volume_id
    }

    /// The number of the next layer.
    pub fn next_layer_id(&self) -> u64 {
        self.next_layer_id
    }

    /// The number of the next domain.
    pub fn next_domain_id(&self) -> u32 {
        self.next_domain_id
    }

    /// The domain of this name, if a volume is in it.
    pub fn domain_by_name(&self, name: &str) -> Option<DomainId> {
        let found = self
            .volumes()
            .find(|(_, volume)| volume.domain_name == name);
        found.map(|(_, volume)| volume.domain)
    }

    /// All volumes and snapshots, each with its slot.
    pub fn volumes(&self) -> impl Iterator<Item = (u64, &VolumeRecord)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, record)| record.as_ref().map(|record| (slot as u64, record)))
    }

    /// The volume of this name that is not being deleted.
    pub fn by_name(&self, name: &str) -> Option<(u64, &VolumeRecord)> {
        let is_it = |volume: &VolumeRecord| {
            volume.name == name
                && volume.snapshot_of.is_none()
                && volume.state != VolumeState::Deleting
        };
        self.volumes().find(|(_, volume)| is_it(volume))
    }

    /// The name of a volume; for a snapshot, with its volume.
    pub fn name_of(&self, record: &VolumeRecord) -> String {
        let Some(of) = record.snapshot_of else {
            return record.name.clone();
        };
        let of = self.by_id(of).map(|(_, volume)| volume.name.as_str());
        full_name(of.unwrap_or(DELETED), &record.name)
    }

    /// A volume or snapshot, and its slot.
    pub fn by_id(&self, id: VolumeId) -> Option<(u64, &VolumeRecord)> {
        self.at(self.by_id.get(&id))
    }

    /// The volume or snapshot whose layer this is, and its slot.
    pub fn by_layer(&self, layer: LayerId) -> Option<(u64, &VolumeRecord)> {
        self.at(self.by_layer.get(&layer))
    }

    /// The volumes and snapshots whose layers are directly above this one.
    pub fn above(&self, layer: LayerId) -> impl Iterator<Item = &VolumeRecord> {
        let above = self.above.get(&layer).into_iter().flatten();
        above.filter_map(|layer| self.by_layer(*layer).map(|(_, record)| record))
    }

    /// All volumes and snapshots, each under its full name.
    pub fn into_fully_named(self) -> Vec<VolumeRecord> {
        let mut records: Vec<VolumeRecord> = self.slots.into_iter().flatten().collect();
        let volumes = records.iter().filter(|record| record.snapshot_of.is_none());
        let names: FxHashMap<VolumeId, String> = volumes
            .map(|volume| (volume.id, volume.name.clone()))
            .collect();
        for record in &mut records {
            if let Some(of) = record.snapshot_of {
                let of = names.get(&of).map_or(DELETED, String::as_str);
                record.name = full_name(of, &record.name);
            }
        }
        records
    }

    /// The slots for new volumes.
    pub fn free_slots(&self) -> impl Iterator<Item = u64> {
        let slots = (0..).zip(&self.slots);
        let free = slots.filter_map(|(slot, record)| record.is_none().then_some(slot));
        free.chain(self.slots.len() as u64..)
    }

    /// Puts a record's volume into a slot. The map of an existing volume is kept.
    pub(super) fn put(&mut self, slot: u64, mut volume: VolumeRecord) -> Result<()> {
        let at = slot as usize;
        if at > self.slots.len() + RECORDS_PER_PAGE {
            return Err(StoreError::damaged(format!(
                "catalogue slot {slot} leaves a gap"
            )));
        }
        if at >= self.slots.len() {
            self.slots.resize(at + 1, None);
        }
        if let Some(before) = &self.slots[at] {
            if before.id != volume.id {
                let message = format!("catalogue slot {slot} holds volume {}", before.id);
                return Err(StoreError::damaged(message));
            }
            if before.layer != volume.layer {
                let message = format!("catalogue slot {slot} has layer {}", before.layer);
                return Err(StoreError::damaged(message));
            }
            volume.map = before.map;
            volume.counts = before.counts;
            volume.below = before.below;
        }
        self.next_volume_id = self.next_volume_id.max(volume.id.0 + 1);
        self.next_layer_id = self.next_layer_id.max(volume.layer.0 + 1);
        let next_domain_id = u32::from(volume.domain.0) + 1;
        self.next_domain_id = self.next_domain_id.max(next_domain_id);
        self.set(at, Some(volume));
        self.mark_dirty(slot);
        Ok(())
    }

    /// Applies a record that turns the live layer of a volume into a snapshot's; the volume
    /// continues in another layer. Returns the volume's new record.
    pub(super) fn freeze(
        &mut self,
        slot: u64,
        snapshot: &VolumeRecord,
        live: LayerId,
        below: LayerId,
    ) -> Result<VolumeRecord> {
        let found = self.by_layer(snapshot.layer);
        let found = found.filter(|(_, volume)| Some(volume.id) == snapshot.snapshot_of);
        let Some((live_slot, mut volume)) = found.map(|(slot, volume)| (slot, volume.clone()))
        else {
            let message = format!("layer {} is not a live one", snapshot.layer);
            return Err(StoreError::damaged(message));
        };
        let frozen = VolumeRecord {
            map: std::mem::take(&mut volume.map),
            counts: std::mem::take(&mut volume.counts),
            below: volume.below.replace(below),
            ..snapshot.clone()
        };
        volume.layer = live;
        self.set(live_slot as usize, Some(volume.clone()));
        self.mark_dirty(live_slot);
        self.next_layer_id = self.next_layer_id.max(live.0 + 1);
        if self.slots.get(slot as usize).is_some_and(Option::is_some) {
            let message = format!("catalogue slot {slot} is not free");
            return Err(StoreError::damaged(message));
        }
        self.put(slot, frozen)?;
        Ok(volume)
    }

    /// Applies a record that empties a slot. Layers above the removed layer then stand on the one
    /// below it.
    pub(super) fn remove(&mut self, slot: u64, id: VolumeId) -> Result<VolumeRecord> {
        let is_it = self.by_id.get(&id) == Some(&slot);
        let record = if is_it {
            self.set(slot as usize, None)
        } else {
            None
        };
        let Some(record) = record else {
            let message = format!("catalogue slot {slot} does not hold volume {id}");
            return Err(StoreError::damaged(message));
        };
        self.mark_dirty(slot);
        for layer in self.above.get(&record.layer).cloned().unwrap_or_default() {
            if let Some((slot, above)) = self.by_layer(layer) {
                let above = VolumeRecord {
                    below: record.below,
                    ..above.clone()
                };
                self.set(slot as usize, Some(above));
                self.mark_dirty(slot);
            }
        }
        Ok(record)
    }

    /// Notes that a checkpoint wrote this layer's map.
    pub(super) fn set_map(&mut self, layer: LayerId, map: TreeRoot, counts: LayerCounts) {
        let slot = self.by_layer.get(&layer);
        let volume = slot.and_then(|slot| self.slots.get_mut(*slot as usize));
        if let Some(volume) = volume.and_then(Option::as_mut) {
            volume.map = map;
            volume.counts = counts;
        }
    }

    pub(super) fn mark_dirty(&mut self, slot: u64) {
        self.dirty_pages.insert(slot / RECORDS_PER_PAGE as u64);
    }

    /// The pages that a checkpoint must write if it changes these layers' maps: the present records
    /// of all changed pages.
    pub(super) fn seal(&mut self, layers: impl Iterator<Item = LayerId>) -> SealedCatalogue {
        let dirty_pages = std::mem::take(&mut self.dirty_pages);
        let slots = layers.filter_map(|layer| self.by_layer.get(&layer));
        let changed = slots.map(|slot| slot / RECORDS_PER_PAGE as u64);
        let numbers: BTreeSet<u64> = changed.chain(dirty_pages.iter().copied()).collect();
        let pages = numbers.into_iter().map(|index| {
            let start = (index as usize * RECORDS_PER_PAGE).min(self.slots.len());
            let end = (start + RECORDS_PER_PAGE).min(self.slots.len());
            (index, self.slots[start..end].to_vec())
        });
        SealedCatalogue {
            pages: pages.collect(),
            dirty_pages,
            next_volume_id: self.next_volume_id,
            next_layer_id: self.next_layer_id,
            next_domain_id: self.next_domain_id,
        }
    }

    /// Marks the pages of a failed checkpoint as dirty again.
    pub(super) fn unseal(&mut self, sealed: SealedCatalogue) {
        self.dirty_pages.extend(sealed.dirty_pages);
    }
}

/// A checkpoint's catalogue pages, as they were when it was sealed.
pub(super) struct SealedCatalogue {
    /// The records of each page by its number; empty once all its slots are.
    pub(super) pages: Vec<(u64, Vec<Option<VolumeRecord>>)>,
    /// The pages in which more than the layers' maps changed.
    dirty_pages: BTreeSet<u64>,
    pub(super) next_volume_id: u64,
    pub(super) next_layer_id: u64,
    pub(super) next_domain_id: u32,
}

/// The next slot for a volume or snapshot.
pub fn free_slot(slots: &mut dyn Iterator<Item = u64>) -> Result<u64> {
    let found = slots.next().filter(|slot| *slot < VOLUMES_MAX);
    found.ok_or_else(|| {
        let message = format!("a pool has {VOLUMES_MAX} volumes and snapshots at most");
        StoreError::new(StoreErrorKind::Invalid, message)
    })
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use onefold_format::{DedupMode, VolumeSettings};

    fn record(n: u64) -> VolumeRecord {
        VolumeRecord {
            id: VolumeId(n),
            layer: LayerId(n),
            below: None,
            snapshot_of: None,
            state: VolumeState::Ready,
            size_bytes: 4096,
            created_unix_seconds: 0,
            map: TreeRoot::default(),
            counts: LayerCounts::default(),
            name: format!("v{n}"),
            domain: DomainId(0),
            domain_name: "default".to_owned(),
            settings: VolumeSettings::of_mode(DedupMode::Off),
        }
    }

    #[test]
    fn a_checkpoint_copies_the_pages_that_change() {
        let mut catalogue = Catalogue::default();
        (0..3000).for_each(|n| catalogue.put(n, record(n)).unwrap());
        let sealed = catalogue.seal([].into_iter());
        assert_eq!(sealed.pages.len(), 3000_usize.div_ceil(RECORDS_PER_PAGE));
        catalogue.mark_dirty(RECORDS_PER_PAGE as u64 * 7);
        // A layer that no longer exists, one next to a dirty one, and two on another page.
        let layers = [9999, RECORDS_PER_PAGE as u64 * 7 + 1, 2000, 2001].map(LayerId);
        let sealed = catalogue.seal(layers.into_iter());
        let numbers: Vec<u64> = sealed.pages.iter().map(|(index, _)| *index).collect();
        assert_eq!(numbers, [7, 2000 / RECORDS_PER_PAGE as u64]);
        for (index, records) in &sealed.pages {
            let ids: Vec<u64> = records.iter().flatten().map(|record| record.id.0).collect();
            let first = index * RECORDS_PER_PAGE as u64;
            assert!(ids.into_iter().eq(first..first + RECORDS_PER_PAGE as u64));
        }
        // If it fails, dirty records are dirty again; records with only another map are found by
        // that.
        catalogue.unseal(sealed);
        assert_eq!(catalogue.seal([].into_iter()).pages.len(), 1);
    }

    #[test]
    fn records_are_found_as_if_all_were_looked_at() {
        let mut catalogue = Catalogue::default();
        (0..40).for_each(|n| catalogue.put(n, record(n)).unwrap());
        let (mut next, mut random) = (40, 7_u64);
        for _ in 0..2000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let slot = (random >> 33) % 60;
            let found = catalogue.at(Some(&slot)).map(|(_, volume)| volume.clone());
            match found {
                Some(volume) if volume.snapshot_of.is_none() && random.is_multiple_of(3) => {
                    let to = catalogue.free_slots().next().unwrap();
                    let snapshot = VolumeRecord {
                        id: VolumeId(next),
                        snapshot_of: Some(volume.id),
                        ..volume.clone()
                    };
                    let below = volume.layer;
                    catalogue
                        .freeze(to, &snapshot, LayerId(next), below)
                        .unwrap();
                }
                Some(volume) => drop(catalogue.remove(slot, volume.id).unwrap()),
                None if slot <= catalogue.slots.len() as u64 => {
                    catalogue.put(slot, record(next)).unwrap();
                }
                None => {}
            }
            next += 1;
            for (slot, volume) in catalogue.volumes() {
                assert_eq!(catalogue.by_id(volume.id).map(|(slot, _)| slot), Some(slot));
                assert_eq!(
                    catalogue.by_layer(volume.layer).map(|(slot, _)| slot),
                    Some(slot)
                );
                let all = catalogue.volumes().map(|(_, other)| other);
                let mut above: Vec<u64> = all
                    .filter(|other| other.below == Some(volume.layer))
                    .map(|other| other.id.0)
                    .collect();
                above.sort_unstable();
                let mut found: Vec<u64> = catalogue
                    .above(volume.layer)
                    .map(|other| other.id.0)
                    .collect();
                found.sort_unstable();
                assert_eq!(found, above);
            }
            let count = catalogue.volumes().count();
            assert_eq!(
                (catalogue.by_id.len(), catalogue.by_layer.len()),
                (count, count)
            );
        }
        assert!(catalogue.by_id(VolumeId(next)).is_none());
    }
}
