//! The catalogue in memory: a slot for each volume and each snapshot, written in pages of fifteen.

use std::collections::BTreeSet;

use onefold_format::catalogue_page::{self, RECORDS_PER_PAGE};
use onefold_format::page::{CATALOGUE_OWNER, PageKind};
use onefold_format::{
    DomainId, LayerCounts, LayerId, PageNumber, TreeRoot, VolumeId, VolumeRecord, VolumeState,
};
use rustc_hash::FxHashMap;

use crate::error::{Result, StoreError};
use crate::limits::VOLUMES_MAX;
use crate::pages::Pages;
use crate::snapshot::full_name;
use crate::tree;

/// The volume of a snapshot that is the only one left of both.
const DELETED: &str = "(deleted)";

#[derive(Default)]
pub(crate) struct Catalogue {
    pub(crate) root: TreeRoot,
    slots: Vec<Option<VolumeRecord>>,
    dirty_pages: BTreeSet<u64>,
    pub(crate) next_volume_id: u64,
    pub(crate) next_layer_id: u64,
    pub(crate) next_domain_id: u32,
}

impl Catalogue {
    /// Reads all records that `root` reaches, and tells `visit` of each page that it met.
    pub(crate) fn read(
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
        Ok(Self {
            root,
            slots,
            ..Self::default()
        })
    }

    /// The domain of this name, if a volume is in it.
    pub(crate) fn domain_by_name(&self, name: &str) -> Option<DomainId> {
        let found = self
            .volumes()
            .find(|(_, volume)| volume.domain_name == name);
        found.map(|(_, volume)| volume.domain)
    }

    /// All volumes and snapshots, each with its slot.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (u64, &VolumeRecord)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, record)| record.as_ref().map(|record| (slot as u64, record)))
    }

    /// A volume that is not being deleted.
    pub(crate) fn by_name(&self, name: &str) -> Option<(u64, &VolumeRecord)> {
        let is_it = |volume: &VolumeRecord| {
            volume.name == name
                && volume.snapshot_of.is_none()
                && volume.state != VolumeState::Deleting
        };
        self.volumes().find(|(_, volume)| is_it(volume))
    }

    /// What a volume is called, or a snapshot with the volume that it is of.
    pub(crate) fn name_of(&self, record: &VolumeRecord) -> String {
        let Some(of) = record.snapshot_of else {
            return record.name.clone();
        };
        let of = self.by_id(of).map(|(_, volume)| volume.name.as_str());
        full_name(of.unwrap_or(DELETED), &record.name)
    }

    pub(crate) fn by_id(&self, id: VolumeId) -> Option<(u64, &VolumeRecord)> {
        self.volumes().find(|(_, volume)| volume.id == id)
    }

    /// All volumes and snapshots, each under its full name.
    pub(crate) fn into_fully_named(self) -> Vec<VolumeRecord> {
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

    /// The slots that new volumes go to.
    pub(crate) fn free_slots(&self) -> impl Iterator<Item = u64> {
        let slots = (0..).zip(&self.slots);
        let free = slots.filter_map(|(slot, record)| record.is_none().then_some(slot));
        free.chain(self.slots.len() as u64..)
    }

    /// Puts a volume into a slot, as a record says. The map of one that was there is kept.
    pub(crate) fn put(&mut self, slot: u64, mut volume: VolumeRecord) -> Result<()> {
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
        self.slots[at] = Some(volume);
        self.mark_dirty(slot);
        Ok(())
    }

    /// The live layer of a volume becomes a snapshot's, as a record says, and the volume goes on in
    /// another one. Returns what the volume is now.
    pub(crate) fn freeze(
        &mut self,
        slot: u64,
        snapshot: &VolumeRecord,
        (live, below): (LayerId, LayerId),
    ) -> Result<VolumeRecord> {
        let is_it = |volume: &&mut VolumeRecord| {
            Some(volume.id) == snapshot.snapshot_of && volume.layer == snapshot.layer
        };
        let Some(volume) = self.slots.iter_mut().flatten().find(is_it) else {
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
        let volume = volume.clone();
        if let Some((slot, _)) = self.by_id(volume.id) {
            self.mark_dirty(slot);
        }
        self.next_layer_id = self.next_layer_id.max(live.0 + 1);
        if self.slots.get(slot as usize).is_some_and(Option::is_some) {
            let message = format!("catalogue slot {slot} is not free");
            return Err(StoreError::damaged(message));
        }
        self.put(slot, frozen)?;
        Ok(volume)
    }

    /// Empties a slot, as a record says. What was above the layer is above the one below it.
    pub(crate) fn remove(&mut self, slot: u64, id: VolumeId) -> Result<VolumeRecord> {
        let found = self.slots.get_mut(slot as usize);
        let Some(record) = found.and_then(|record| record.take_if(|volume| volume.id == id)) else {
            let message = format!("catalogue slot {slot} does not hold volume {id}");
            return Err(StoreError::damaged(message));
        };
        self.mark_dirty(slot);
        for above in 0..self.slots.len() {
            if let Some(volume) = &mut self.slots[above]
                && volume.below == Some(record.layer)
            {
                volume.below = record.below;
                self.mark_dirty(above as u64);
            }
        }
        Ok(record)
    }

    /// A checkpoint wrote this layer's map.
    pub(crate) fn set_map(&mut self, layer: LayerId, map: TreeRoot, counts: LayerCounts) {
        let mut volumes = self.slots.iter_mut().flatten();
        if let Some(volume) = volumes.find(|volume| volume.layer == layer) {
            volume.map = map;
            volume.counts = counts;
        }
    }

    pub(crate) fn mark_dirty(&mut self, slot: u64) {
        self.dirty_pages.insert(slot / RECORDS_PER_PAGE as u64);
    }

    /// What a checkpoint must write: the changed pages' numbers, and all records as they are now.
    pub(crate) fn seal(&mut self) -> SealedCatalogue {
        SealedCatalogue {
            slots: self.slots.clone(),
            dirty_pages: std::mem::take(&mut self.dirty_pages),
            next_volume_id: self.next_volume_id,
            next_layer_id: self.next_layer_id,
            next_domain_id: self.next_domain_id,
        }
    }

    /// The checkpoint that sealed these pages failed: they are dirty still.
    pub(crate) fn unseal(&mut self, sealed: SealedCatalogue) {
        self.dirty_pages.extend(sealed.dirty_pages);
    }
}

/// The catalogue as it was when a checkpoint was sealed.
pub(crate) struct SealedCatalogue {
    pub(crate) slots: Vec<Option<VolumeRecord>>,
    pub(crate) dirty_pages: BTreeSet<u64>,
    pub(crate) next_volume_id: u64,
    pub(crate) next_layer_id: u64,
    pub(crate) next_domain_id: u32,
}

impl SealedCatalogue {
    /// The records of one page; empty once all its slots are.
    pub(crate) fn page(&self, index: u64) -> &[Option<VolumeRecord>] {
        let start = (index as usize * RECORDS_PER_PAGE).min(self.slots.len());
        let end = (start + RECORDS_PER_PAGE).min(self.slots.len());
        &self.slots[start..end]
    }
}
