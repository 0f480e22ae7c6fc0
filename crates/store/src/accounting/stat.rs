//! The content of a pool, counted to the block.

use super::usage::Usage;
use crate::snapshots::DeletionStat;
use crate::store::Store;
use crate::volume::{InlineStat, Volume};
use onefold_format::page::PAGE_BYTES;
use onefold_format::{BatchKind, IndexKind, MAJOR_VERSION, Provisioning, VolumeSettings, WhenFull};
use onefold_journal::SpaceLevel;
use onefold_metadata::{LEAF_BYTES, NODE_BYTES, Result, SPACE_PAGE_BYTES, SPARE_PAGE_BYTES};
use std::ops::AddAssign;

/// The content of a volume. Replies about the volume include these fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = VolumeFigures))]
pub struct VolumeStat {
    /// Name of the volume.
    pub name: String,
    /// Number of the volume, never reused for another volume or snapshot of the pool.
    pub number: u64,
    /// Size of the volume as guests see it.
    pub size_bytes: u64,
    /// The volume's domain; blocks are shared only within a domain.
    pub domain: String,
    /// The volume's settings.
    #[cfg_attr(feature = "api", serde(flatten))]
    pub settings: VolumeSettings,
    /// Data that the volume and its snapshots hold, as the quota counts it.
    pub mapped_bytes: u64,
    /// The unused part of the reservation, which is withheld from other volumes.
    pub reserved_unused_bytes: u64,
    /// Blocks with data in the live layer.
    pub logical_blocks: u64,
    /// Blocks of the live layer that have no other reference.
    pub private_blocks: u64,
    /// Blocks of the live layer that are published in the index and may have other references.
    pub shared_blocks: u64,
    /// Private blocks that the finder has not scanned yet.
    pub pending_dedup_blocks: u64,
    /// Counts of in-line deduplication since the pool was opened. Not in JSON, because it holds
    /// moments of this process's clock.
    #[cfg_attr(feature = "api", serde(skip))]
    pub inline: InlineStat,
    /// The exclusive space, if [`Accounting::scan`](crate::Accounting::scan) has counted it. Not in JSON: replies give bytes.
    #[cfg_attr(feature = "api", serde(skip))]
    pub usage: Option<Usage>,
}

/// The content of a snapshot. Replies about the snapshot include these fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotStat {
    /// Name of the snapshot, `VOLUME@SNAPSHOT`.
    pub name: String,
    /// Number of the snapshot, never reused for another volume or snapshot of the pool.
    pub number: u64,
    /// Number of the snapshot's volume.
    pub volume_number: u64,
    /// Size of the snapshot as readers see it.
    pub size_bytes: u64,
    /// When it was created, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// Blocks with data in the snapshot's own layer.
    pub own_blocks: u64,
    /// The exclusive space, if [`Accounting::scan`](crate::Accounting::scan) has counted it. Not in JSON: replies give bytes.
    #[cfg_attr(feature = "api", serde(skip))]
    pub usage: Option<Usage>,
}

/// The content of a pool. Replies about the pool include these fields, but not the lists, for which they have
/// their own types.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = PoolFigures))]
pub struct PoolStat {
    /// Id of the pool, 32 hexadecimal digits, unique to it.
    pub pool_id: String,
    /// Version of the pool's format, such as `1.0`.
    pub format: String,
    /// Bytes in a block.
    pub block_size: u32,
    /// Number of blocks of the pool.
    pub pool_blocks: u64,
    /// Target size of a shrink in progress.
    pub shrinking_to_blocks: Option<u64>,
    /// Blocks with data over all layers of volumes and snapshots.
    pub logical_blocks: u64,
    /// Blocks of the pool that hold the data of volumes and snapshots.
    pub physical_blocks: u64,
    /// Blocks with one owner, not published in the index.
    pub private_blocks: u64,
    /// Blocks that the finder is publishing now.
    pub unsettled_blocks: u64,
    /// Published blocks with one reference.
    pub unique_blocks: u64,
    /// Published blocks with several references.
    pub shared_blocks: u64,
    /// Blocks whose content a failed sync lost, and that have not been written since.
    pub lost_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks for which the host has space.
    pub available_blocks: u64,
    /// Free space of the file system that holds the pool's data; absent on a device.
    pub host_free_bytes: Option<u64>,
    /// Free blocks kept for overwriting existing data.
    pub reserve_blocks: u64,
    /// Free blocks withheld for volumes with a reservation.
    pub reserved_unused_blocks: u64,
    /// How full the pool is.
    pub space: SpaceLevel,
    /// How writes are treated while the pool is full.
    pub when_full: WhenFull,
    /// Whether the host gets back the space of free blocks: `thin`, or `thick` if the pool keeps all of its space.
    pub provisioning: Provisioning,
    /// Blocks that will become free: references that the collector has still to release, and blocks whose
    /// release is not yet durable or that a reader may still read.
    pub pending_free_blocks: u64,
    /// References that the collector has still to release.
    pub pending_release_blocks: u64,
    /// Claims: references that entries hold and the index does not count yet.
    pub claimed_blocks: u64,
    /// Limit on claims. A duplicate that a write finds beyond it is stored again.
    pub claimed_max_blocks: u64,
    /// Blocks that the finder has not scanned yet.
    pub pending_dedup_blocks: u64,
    /// The back end of the index.
    pub index: IndexKind,
    /// Whether the index is being rebuilt, or must be.
    pub index_rebuilding: bool,
    /// Size of the index on disk.
    pub index_bytes_on_disk: u64,
    /// Space that the host has allocated for data.
    pub pool_bytes_on_disk: u64,
    /// The part of `pool_bytes_on_disk` that holds free blocks; `pool trim` returns it to the host.
    pub free_bytes_on_disk: u64,
    /// Free blocks that are known to have written space on the host, so that a write to one of them waits for no
    /// allocation.
    pub spare_blocks: u64,
    /// Blocks that guests were given since the pool was opened although they were not known to be spare; 0 where that
    /// costs nothing, as with the host's cache and on a device.
    pub hole_blocks: u64,
    /// Space that the host has allocated for metadata and the log.
    pub metadata_bytes_on_disk: u64,
    /// Visible volumes, by name. Not in JSON.
    #[cfg_attr(feature = "api", serde(skip))]
    pub volumes: Vec<VolumeStat>,
    /// Snapshots of the visible volumes, by name. Not in JSON.
    #[cfg_attr(feature = "api", serde(skip))]
    pub snapshots: Vec<SnapshotStat>,
    /// Deletions that are not finished. Not in JSON.
    #[cfg_attr(feature = "api", serde(skip))]
    pub deletions: Vec<DeletionStat>,
}

/// Memory in use by the caches of a pool, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStat {
    /// Segments of maps.
    pub segments: u64,
    /// Inner pages of trees.
    pub nodes: u64,
    /// Pages of the free-space map, and of spare blocks.
    pub free_space: u64,
    /// Records that no commit has sealed yet.
    pub records: u64,
    /// Hash caches of volumes.
    pub hash_caches: u64,
    /// Fingerprints of references that the index does not count yet.
    pub claims: u64,
}

impl AddAssign for MemoryStat {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.nodes += other.nodes;
        self.free_space += other.free_space;
        self.records += other.records;
        self.hash_caches += other.hash_caches;
        self.claims += other.claims;
    }
}

impl Store {
    /// Memory in use by the caches.
    ///
    /// # Errors
    ///
    /// `Damaged` where a request panicked in the middle of a change.
    pub fn memory_stat(&self) -> Result<MemoryStat> {
        let pool = &self.pool;
        let metadata = pool.journal().metadata()?;
        let free_space = metadata.space().resident_count() as u64 * SPACE_PAGE_BYTES
            + metadata.space().spare_pages() as u64 * SPARE_PAGE_BYTES;
        let records = metadata.uncommitted_bytes() as u64;
        drop(metadata);
        Ok(MemoryStat {
            segments: pool.maps().cached_count() as u64 * LEAF_BYTES,
            nodes: pool.journal().cached_pages() as u64 * NODE_BYTES,
            free_space,
            records,
            hash_caches: pool.hash_cache_room().used_bytes(),
            claims: pool.batches().claimed().bytes(),
        })
    }

    /// Counts the content of the pool.
    ///
    /// # Errors
    ///
    /// `Io` if the host cannot report its allocation.
    pub fn stat(&self) -> Result<PoolStat> {
        let volumes = self.volumes.volumes();
        let snapshots = self.volumes.snapshots();
        let deletions = self.deletions.unfinished()?;
        let pool = &self.pool;
        let room = pool.journal().free_space().room()?;
        let snapshots = snapshots.iter().map(|snapshot| SnapshotStat {
            name: snapshot.name(),
            number: snapshot.number(),
            volume_number: snapshot.snapshot_of.map_or(0, |volume| volume.0),
            size_bytes: snapshot.size_bytes(),
            created_unix_seconds: snapshot.created_unix_seconds,
            own_blocks: snapshot.logical_blocks(),
            usage: self.accounting.usage(snapshot.id),
        });
        let snapshots = snapshots.collect();
        let metadata = pool.journal().metadata()?;
        let counts = pool.maps().counts();
        let (pool_blocks, free_blocks) = pool.journal().free_space().counts(&metadata);
        let end = metadata.space().end().min(pool_blocks);
        let reserve_blocks = pool.journal().free_space().reserve_blocks(&metadata);
        let named_blocks = metadata.space().named_count();
        let spare_blocks = metadata.space().spare_blocks();
        let hole_blocks = metadata.space().spare_use().hole_blocks;
        let open = metadata.batches().open();
        let (unsettled_blocks, collecting, counting) = open.map_or((0, 0, 0), |batch| {
            let unsettled = batch.unsettled().len() as u64;
            match batch.kind {
                BatchKind::Finder(_) => (unsettled, 0, 0),
                BatchKind::Collector => (0, unsettled, 0),
                BatchKind::Counting => (0, 0, unsettled),
            }
        });
        let claimed_blocks = metadata.claims().blocks() + counting;
        let pending_release_blocks = metadata.queue().blocks() + collecting;
        let pending_free_blocks = metadata.space().held_blocks() + pending_release_blocks;
        drop(metadata);
        let index = pool.index().get_settled().ok();
        let index_counts = index
            .as_ref()
            .map(|index| index.counts())
            .unwrap_or_default();
        let index_bytes_on_disk = index
            .as_ref()
            .map_or(Ok(0), |index| index.bytes_on_disk())?;
        let private_blocks = counts.private + counts.unshareable;
        // The blocks that the groups of a pool share are no group's.
        let physical_blocks = match pool.group() {
            Some(_) => private_blocks + unsettled_blocks,
            None => named_blocks,
        };
        // The index changes before the corresponding records, and without the uncommitted state.
        // Its counts only divide the remaining blocks.
        let published_blocks = physical_blocks.saturating_sub(private_blocks + unsettled_blocks);
        let shared_blocks = index_counts.shared.min(published_blocks);
        let pages = pool.journal().page_count() + 1;
        Ok(PoolStat {
            pool_id: pool.superblock().pool.to_string(),
            format: format!("{MAJOR_VERSION}.{}", pool.journal().root().minor()),
            block_size: self.block_size(),
            pool_blocks,
            shrinking_to_blocks: (end < pool_blocks).then_some(end),
            logical_blocks: private_blocks + counts.shared,
            physical_blocks,
            private_blocks,
            unsettled_blocks,
            unique_blocks: published_blocks - shared_blocks,
            shared_blocks,
            pending_dedup_blocks: counts.private,
            pending_release_blocks,
            claimed_blocks,
            claimed_max_blocks: pool.limits().claims_max,
            index: pool.index().kind(),
            index_rebuilding: index.is_none_or(|index| index.needs_rebuild()),
            index_bytes_on_disk,
            lost_blocks: pool.data().lost_blocks(),
            free_blocks,
            available_blocks: room.available.min(free_blocks),
            host_free_bytes: room.host_free_bytes,
            space: room.level,
            reserve_blocks,
            reserved_unused_blocks: pool.maps().unused_reservations(),
            when_full: pool.journal().when_full(),
            provisioning: pool.journal().data().provisioning(),
            pending_free_blocks,
            pool_bytes_on_disk: room.allocated_bytes,
            free_bytes_on_disk: room.spare_bytes,
            spare_blocks,
            hole_blocks,
            metadata_bytes_on_disk: pages * PAGE_BYTES as u64 + pool.superblock().log_bytes,
            volumes: volumes.iter().map(|volume| self.stat_of(volume)).collect(),
            snapshots,
            deletions,
        })
    }

    /// The content of one volume.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn volume_stat(&self, name: &str) -> Result<VolumeStat> {
        Ok(self.stat_of(&*self.volume(name)?))
    }

    fn stat_of(&self, volume: &Volume) -> VolumeStat {
        let (layer, options) = (volume.layer(), volume.options());
        let (counts, space_limits) = (layer.counts(), &layer.space_limits);
        let block_size = u64::from(self.block_size());
        VolumeStat {
            name: volume.name(),
            number: volume.number(),
            size_bytes: volume.size_bytes(),
            logical_blocks: volume.logical_blocks(),
            private_blocks: counts.private + counts.unshareable,
            shared_blocks: counts.shared,
            pending_dedup_blocks: counts.private,
            domain: options.domain,
            settings: options.settings,
            inline: volume.inline_stat(),
            mapped_bytes: space_limits.mapped() * block_size,
            reserved_unused_bytes: space_limits.unused_reservation() * block_size,
            usage: self.accounting.usage(volume.id),
        }
    }
}
