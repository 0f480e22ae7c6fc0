//! An open pool and its volumes: made, renamed, resized, removed.
//!
//! Changes of the catalogue are records like any other, durable when the call returns. Requests to
//! volumes do not pass through here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onefold_engine::Engine;
use onefold_format::{
    DomainId, LayerCounts, LayerId, Record, TreeRoot, VolumeId, VolumeRecord, VolumeState, WhenFull,
};
use onefold_journal::{BackgroundExecutor, Hurry, Metadata};
use onefold_metadata::{
    Catalogue, Guard, MetadataState, Result, StoreError, StoreErrorKind, check_name, free_slot,
};

use crate::accounting::Accounting;
use crate::catalogue::CatalogueWriter;
use crate::creation::{self, CreateOptions};
use crate::dedup::{Dedup, PoolIndex};
use crate::export::Exporter;
use crate::integrity::{self, CheckReport, Finding, Scrub};
use crate::latency::LatencyCounts;
use crate::pool::Pool;
use crate::recovery::{self, OpenOptions, RecoveryReport};
use crate::shared::Group;
use crate::snapshots::{Deletion, Deletions};
use crate::space::Space;
use crate::volume::Volume;
use crate::volume_options::{DEFAULT_DOMAIN, SettingsChange, VolumeOptions, check_settings};
use crate::volume_table::VolumeTable;

/// Bytes that are discarded at a time when the pool is no longer used.
const GIVE_BACK_AT_CLOSE_BYTES: u64 = 64 << 20;

/// The longest time for the discards of a close: the end of the process waits for it.
const GIVE_BACK_AT_CLOSE_TIME: Duration = Duration::from_secs(2);

/// An open pool.
pub struct Store {
    pub(crate) pool: Arc<Pool>,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) volumes: VolumeTable,
    pub(crate) catalogue: Arc<CatalogueWriter>,
    pub(crate) deletions: Deletions,
    dedup: Arc<Dedup>,
    index: Arc<PoolIndex>,
    space: Space,
    scrub: Scrub,
    pub(crate) accounting: Accounting,
    exporter: Exporter,
}

impl Store {
    /// Why the pool takes no writes, if so: a failure since it was opened, or a newer format.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        let checked = self.pool.journal().check_writable();
        checked.err().map(|error| error.to_string())
    }

    /// Makes a new pool.
    ///
    /// # Errors
    ///
    /// `Exists` if a part of it exists already, `Invalid` for impossible options, `Io` and
    /// `NoSpace`. Parts made before the error are left; without a root they are not a pool.
    pub fn create(engine: &dyn Engine, options: &CreateOptions) -> Result<()> {
        Self::create_with_progress(engine, options, &mut |_, _| {})
    }

    /// Like [`Store::create`], and calls `progress(done, all)` with the bytes that were written to allocate the space of a
    /// thick pool.
    ///
    /// # Errors
    ///
    /// As [`Store::create`].
    pub fn create_with_progress(
        engine: &dyn Engine,
        options: &CreateOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        creation::create(engine, options, progress)
    }

    /// Opens a pool: finds the last checkpoint, replays the log, removes volumes that a crash left
    /// unfinished.
    ///
    /// # Errors
    ///
    /// `MissingPart`, `NewerFormat`, `Damaged` with the part and its fault, `Io`.
    pub fn open(
        engine: Arc<dyn Engine>,
        options: &OpenOptions,
    ) -> Result<(Arc<Self>, RecoveryReport)> {
        let (pool, mut report) = recovery::open(&*engine, options)?;
        let records: Vec<VolumeRecord> = {
            let metadata = pool.journal().metadata()?;
            metadata
                .catalogue()
                .volumes()
                .map(|(_, record)| record.clone())
                .collect()
        };
        let mut volumes = BTreeMap::new();
        let (mut unfinished, mut deleting) = (Vec::new(), Vec::new());
        for record in &records {
            let volume = Arc::new(Volume::new(Arc::clone(&pool), record)?);
            let name = pool.journal().metadata()?.catalogue().name_of(record);
            volume.set_name(&name);
            match record.state {
                VolumeState::Deleting => deleting.push(Deletion::new(volume)),
                VolumeState::Importing if Guard::ImportsFinishedOrRemoved.holds() => {
                    unfinished.push(volume);
                }
                VolumeState::Ready | VolumeState::Importing => drop(volumes.insert(name, volume)),
            }
        }
        let catalogue = Arc::new(CatalogueWriter::new(Arc::clone(&pool)));
        let dedup = Arc::new(Dedup::new(Arc::clone(&pool)));
        let index = Arc::new(PoolIndex::new(Arc::clone(&pool), Arc::clone(&engine)));
        let store = Arc::new(Self {
            volumes: VolumeTable::new(volumes),
            deletions: Deletions::new(Arc::clone(&pool), Arc::clone(&catalogue), deleting),
            catalogue,
            space: Space::new(Arc::clone(&pool), Arc::clone(&dedup), Arc::clone(&index)),
            scrub: Scrub::new(Arc::clone(&pool), Arc::clone(&engine)),
            accounting: Accounting::new(Arc::clone(&pool), Arc::clone(&engine)),
            exporter: Exporter::new(Arc::clone(&pool), Arc::clone(&engine)),
            dedup,
            index,
            pool,
            engine,
        });
        if store.pool.journal().check_writable().is_ok() {
            for volume in unfinished {
                store.remove(&volume)?;
                report.volumes_removed.push(volume.name());
            }
            if let Some(shared) = store.pool.group().map(Group::shared) {
                let volumes = store.volumes.volumes();
                let names: Vec<String> = volumes.iter().map(|volume| volume.name()).collect();
                shared.settle_names(&names)?;
            }
        }
        Ok((store, report))
    }

    /// Whether the engine has a superblock and a root, whatever the state of the rest. Changes
    /// nothing.
    #[must_use]
    pub fn seems_usable(engine: &dyn Engine) -> bool {
        recovery::identify(engine).is_ok()
    }

    /// Makes everything durable in a checkpoint, so that the next open replays nothing, and takes
    /// no more requests.
    ///
    /// # Errors
    ///
    /// I/O errors; also if the pool takes no writes after an earlier failure.
    pub fn close(&self) -> Result<()> {
        for volume in self.volumes.all() {
            volume.mark_gone();
        }
        self.pool.journal().checkpoint()?;
        self.pool.journal().reuse().reclaim()?;
        self.pool.bad().tidy(self.pool.journal())?;
        self.pool.losses().tidy(self.pool.journal())?;
        let began = Instant::now();
        let host_space = self.pool.journal().reuse().host_space();
        // The next opening finds the rest.
        while host_space.give_back(GIVE_BACK_AT_CLOSE_BYTES)?
            && began.elapsed() < GIVE_BACK_AT_CLOSE_TIME
        {}
        self.pool.journal().close_session()?;
        // Without an index that can be used there is nothing to put away.
        self.pool
            .index()
            .get()
            .map_or(Ok(()), |index| Ok(index.close()?))
    }

    /// The volumes and snapshots in use.
    #[must_use]
    pub fn volumes(&self) -> &VolumeTable {
        &self.volumes
    }

    /// Volumes and snapshots that were deleted and still hold something.
    #[must_use]
    pub fn deletions(&self) -> &Deletions {
        &self.deletions
    }

    /// Finder, collector and counting of claims.
    #[must_use]
    pub fn dedup(&self) -> &Dedup {
        &self.dedup
    }

    /// The fingerprint index.
    #[must_use]
    pub fn index(&self) -> &PoolIndex {
        &self.index
    }

    /// The pool's size, and space for the host.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The scrub, and bad blocks.
    #[must_use]
    pub fn scrub(&self) -> &Scrub {
        &self.scrub
    }

    /// The space that each volume and snapshot holds.
    #[must_use]
    pub fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// Exports of the metadata.
    #[must_use]
    pub fn exporter(&self) -> &Exporter {
        &self.exporter
    }

    /// Checks the pool, while it is in use. Each finding is passed to `report` as it is met.
    ///
    /// # Errors
    ///
    /// Errors that end it early. Damage is a finding, not an error.
    pub fn check(&self, repair: bool, report: &mut dyn FnMut(Finding)) -> Result<CheckReport> {
        self.check_with_progress(repair, report, &mut |_, _| {})
    }

    /// Checks the pool as [`Store::check`] does; `progress` gets the number of entries and rows checked, and
    /// of all.
    ///
    /// # Errors
    ///
    /// As [`Store::check`].
    pub fn check_with_progress(
        &self,
        repair: bool,
        report: &mut dyn FnMut(Finding),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CheckReport> {
        integrity::check(&self.scrub, &self.index, repair, report, progress)
    }

    /// Bytes in a block: 4096, 8192, 16384 or 65536.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.pool.superblock().block_size
    }

    /// A volume in use, or a snapshot by its full name.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>> {
        let found = self.volumes.by_name(name);
        found.ok_or_else(|| {
            let is_importing = |metadata: Metadata<'_>| {
                let found = metadata.catalogue().by_name(name);
                found.is_some_and(|(_, record)| record.state == VolumeState::Importing)
            };
            let message = if self.pool.journal().metadata().is_ok_and(is_importing) {
                format!("volume '{name}' is still being imported")
            } else {
                format!("no volume is named '{name}'")
            };
            StoreError::new(StoreErrorKind::NotFound, message)
        })
    }

    /// Everything whose blocks may be shared: volumes, their snapshots, and unnamed frozen layers
    /// that several others need.
    #[must_use]
    pub fn volumes_to_share(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.volumes.all();
        volumes.extend(self.deletions.that_stay());
        volumes
    }

    /// Makes an empty volume.
    ///
    /// # Errors
    ///
    /// `Exists`; `Invalid` for a bad name or a size that is zero, beyond the maximum, or not a
    /// multiple of the block size.
    pub fn create_volume(&self, name: &str, options: &VolumeOptions) -> Result<()> {
        let volume = self.add(name, options, VolumeState::Ready)?;
        self.volumes.insert(name, volume);
        Ok(())
    }

    pub(crate) fn add(
        &self,
        name: &str,
        options: &VolumeOptions,
        state: VolumeState,
    ) -> Result<Arc<Volume>> {
        check_name(name, "volume")?;
        check_name(&options.domain, "domain")?;
        check_settings(&options.settings)?;
        self.check_space_limits(&options.settings)?;
        self.check_size(options.size_bytes)?;
        let _changing = self.catalogue.turn();
        let claim = self.catalogue.claim_name(name)?;
        self.ensure_version_for(options)?;
        let reservation = options.settings.reservation_bytes / u64::from(self.block_size());
        let mut shared_domain = None;
        if let Some(group) = self.pool.group() {
            // The cluster may take its time, so before the metadata is locked.
            shared_domain = Some(group.shared().domain(&options.domain)?);
            group.leases().take_to_keep(reservation)?;
        }
        let metadata = self.pool.journal().metadata()?;
        let catalogue = &metadata.catalogue();
        let volume = VolumeRecord {
            id: VolumeId(catalogue.next_volume_id()),
            layer: LayerId(catalogue.next_layer_id()),
            below: None,
            snapshot_of: None,
            state,
            size_bytes: options.size_bytes,
            created_unix_seconds: self.engine.unix_seconds(),
            map: TreeRoot::default(),
            counts: LayerCounts::default(),
            name: name.to_owned(),
            domain: match shared_domain {
                Some(domain) => domain,
                None => domain_of(catalogue, &options.domain)?,
            },
            domain_name: options.domain.clone(),
            settings: options.settings,
        };
        let slot = free_slot(&mut catalogue.free_slots())?;
        drop(metadata);
        let put = Record::VolumePut {
            slot,
            volume: volume.clone(),
        };
        let admit = |metadata: &MetadataState| {
            let pool = &self.pool;
            pool.journal().free_space().admit_reservation(
                None,
                metadata,
                options.settings.reservation_bytes,
            )
        };
        self.catalogue.write(&[put], Some(&admit))?;
        claim.keep();
        Ok(Arc::new(Volume::new(Arc::clone(&self.pool), &volume)?))
    }

    /// Changes the settings of a volume in use. Shared blocks stay shared; a hash cache of another size
    /// starts empty; a quota that is exceeded already takes nothing away. Durable when it returns.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` for a setting out of its range; `Busy` for the end of `verify` while the index
    /// is being counted again.
    pub fn set_volume(&self, name: &str, change: &SettingsChange) -> Result<()> {
        // Items announced under these settings are settled under them. The others change at once, however
        // long a batch takes.
        let is_for_batches = change.verify.is_some() || change.min_run.is_some();
        let _job = is_for_batches
            .then(|| self.pool.batches().job())
            .transpose()?;
        let _changing = self.catalogue.turn();
        let volume = self.volume_proper(name)?;
        let mut options = volume.options();
        change.apply(&mut options.settings);
        let settings = options.settings;
        check_settings(&settings)?;
        self.check_space_limits(&settings)?;
        if change.verify == Some(false) {
            self.pool.batches().settle_open_batch()?;
        }
        self.ensure_version_for(&options)?;
        let change = |record: &mut VolumeRecord| record.settings = settings;
        let space_limits = &volume.layer().space_limits;
        if let Some(group) = self.pool.group() {
            let blocks = settings.reservation_bytes / u64::from(self.block_size());
            let more = space_limits.unused_reservation_if(0, blocks);
            let more = more.saturating_sub(space_limits.unused_reservation());
            group.leases().take_to_keep(more)?;
        }
        let admit = |metadata: &MetadataState| {
            let pool = &self.pool;
            pool.journal().free_space().admit_reservation(
                Some(space_limits),
                metadata,
                settings.reservation_bytes,
            )
        };
        self.catalogue
            .change_volume(volume.id, change, Some(&admit))
            .map_err(|error| error.during(format_args!("cannot set volume '{name}'")))?;
        volume.set_options(&options);
        Ok(())
    }

    /// Whether writes in place, past the host's cache, can run without a thread: see
    /// [`Volume::write_or_prepare`].
    #[must_use]
    pub fn prepares_writes(&self) -> bool {
        self.pool.data().prepared_bytes_max() > 0
    }

    /// The treatment of writes for which the pool has no room: see [`Volume::pauses_when_full`].
    #[must_use]
    pub fn when_full(&self) -> WhenFull {
        self.pool.journal().when_full()
    }

    /// Sets the treatment of writes for which the pool has no room. Durable when it returns.
    ///
    /// # Errors
    ///
    /// Errors of a checkpoint; the setting is then unchanged.
    pub fn set_when_full(&self, when_full: WhenFull) -> Result<()> {
        let _changing = self.catalogue.turn();
        self.pool.journal().set_when_full(when_full)
    }

    /// Installs an executor for work that no guest waits for: reading blocks back, fingerprinting
    /// them, and calls of the index. It can use otherwise idle processors.
    pub fn set_background_executor(&self, executor: Box<dyn BackgroundExecutor>) {
        self.pool.background().set(executor);
    }

    /// Makes background work run at ordinary priority for as long as the result exists, because a caller
    /// waits for it.
    pub fn hurry_background(&self) -> Hurry {
        self.pool.background().hurry()
    }

    /// Reports whether guests' requests take too long for want of processor time: then volumes with
    /// `--dedup auto` do not go in-line. Defaults to false.
    pub fn set_guests_strained(&self, strained: bool) {
        self.pool.set_guests_strained(strained);
    }

    /// How long the reads and writes of all volumes took, since the pool was opened.
    #[must_use]
    pub fn latencies(&self) -> LatencyCounts {
        self.pool.latencies().counts()
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Exists`, `Invalid` for a bad name.
    pub fn rename_volume(&self, name: &str, new_name: &str) -> Result<()> {
        check_name(new_name, "volume")?;
        let _changing = self.catalogue.turn();
        let volume = self.volume_proper(name)?;
        let claim = self.catalogue.claim_name(new_name)?;
        self.catalogue.change_volume(
            volume.id,
            |record| new_name.clone_into(&mut record.name),
            None,
        )?;
        claim.keep();
        self.catalogue.release_name(name);
        volume.set_name(new_name);
        self.volumes.rename(volume, name, new_name);
        Ok(())
    }

    /// Gives a volume another size; its snapshots keep theirs. Blocks beyond a smaller one are
    /// released, or hidden where a snapshot has them, and the rest of a last block that is short becomes
    /// zeros, before the size changes. So a crash or an error before the end leaves the old size with
    /// zeros beyond the new in part, and a range that is added again reads as zeros there.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` for an impossible size; `NoSpace` where the short block is a snapshot's, too;
    /// I/O errors.
    pub fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<()> {
        let _changing = self.catalogue.turn();
        let volume = self.check_resizable(name, size_bytes)?;
        let old_size = volume.size_bytes();
        if size_bytes < old_size {
            volume.set_size_bytes(size_bytes);
            volume
                .cut(size_bytes..old_size)
                .inspect_err(|_| volume.set_size_bytes(old_size))?;
        }
        self.ensure_version_for_size(size_bytes)
            .inspect_err(|_| volume.set_size_bytes(old_size))?;
        self.catalogue
            .change_volume(volume.id, |record| record.size_bytes = size_bytes, None)
            .inspect_err(|_| volume.set_size_bytes(old_size))?;
        volume.set_size_bytes(size_bytes);
        Ok(())
    }

    /// Deletes a volume. It is invisible at once and its name can be reused;
    /// [`Deletions::step`] releases its own blocks.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Exists` while it has snapshots; I/O errors.
    pub fn delete_volume(&self, name: &str) -> Result<()> {
        self.delete_volume_and(name, |_| false)
    }

    /// Deletes a volume after all of its snapshots, one by one, if `goes_along` is true for the name of each of them,
    /// `VOLUME@SNAPSHOT`.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Exists` if it has other snapshots; I/O errors.
    pub fn delete_volume_and(&self, name: &str, goes_along: impl Fn(&str) -> bool) -> Result<()> {
        let _changing = self.catalogue.turn();
        let deleted = self.check_deletable(name, goes_along)?;
        deleted
            .iter()
            .try_for_each(|volume| self.begin_deletion(volume))
    }

    /// Deletes a snapshot, as [`Store::delete_volume`] does a volume.
    ///
    /// # Errors
    ///
    /// `NotFound`; I/O errors.
    pub fn delete_snapshot(&self, volume: &str, snapshot: &str) -> Result<()> {
        let _changing = self.catalogue.turn();
        let snapshot = self.check_snapshot(volume, snapshot)?;
        self.begin_deletion(&snapshot)
    }

    fn begin_deletion(&self, volume: &Arc<Volume>) -> Result<()> {
        self.catalogue.change_volume(
            volume.id,
            |record| record.state = VolumeState::Deleting,
            None,
        )?;
        self.volumes.remove(&volume.name());
        if !volume.is_snapshot() {
            self.catalogue.release_name(&volume.name());
        }
        self.deletions.leave(Arc::clone(volume));
        Ok(())
    }

    /// Housekeeping, about once a second: writes a checkpoint when one is due, reuses and discards
    /// freed blocks. With `commit`, every few seconds, it also commits records that no caller has asked
    /// to be durable, so that the blocks they release can be reused.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn tidy(&self, commit: bool) -> Result<()> {
        let journal = self.pool.journal();
        journal.tidy(commit)?;
        self.pool.bad().tidy(journal)?;
        self.pool.losses().tidy(journal)?;
        journal.free_space().report_level()
    }

    /// Sleeps until [`Store::tidy`] has more to do than usual, `timeout` at most.
    pub fn wait_until_due(&self, timeout: Duration) {
        self.pool.journal().wait_until_due(timeout);
    }
}

/// The number of a domain of a pool with one owner, a new one if no volume is in it.
fn domain_of(catalogue: &Catalogue, name: &str) -> Result<DomainId> {
    if name == DEFAULT_DOMAIN {
        return Ok(DomainId(0));
    }
    if let Some(domain) = catalogue.domain_by_name(name) {
        return Ok(domain);
    }
    // Numbers are never used again: a domain's key is made from it.
    let next = u16::try_from(catalogue.next_domain_id());
    let none_left = |_| {
        let message = "this pool has had 65,535 domains, which is all it can have";
        StoreError::new(StoreErrorKind::Invalid, message)
    };
    next.map(DomainId).map_err(none_left)
}
