//! The content of a pool, counted to the block.

use std::sync::Arc;

use super::usage::Usage;
use crate::snapshots::DeletionStat;
use crate::store::Store;
use crate::volume::{InlineStat, Volume};
use onefold_format::page::PAGE_BYTES;
use onefold_format::{BatchKind, IndexKind, MAJOR_VERSION, PoolId, VolumeSettings, WhenFull};
use onefold_journal::SpaceLevel;
use onefold_metadata::{LEAF_BYTES, NODE_BYTES, Result, SPACE_PAGE_BYTES};

/// The content of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStat {
    /// The volume's name.
    pub name: String,
    /// See [`Volume::number`].
    pub number: u64,
    /// The volume's size in bytes.
    pub size_bytes: u64,
    /// Blocks of the volume that hold data.
    pub logical_blocks: u64,
    /// Blocks that the volume alone owns.
    pub private_blocks: u64,
    /// Blocks of the volume that are published in the index.
    pub shared_blocks: u64,
    /// Private blocks of the volume that are pending dedup.
    pub dirty_blocks: u64,
    /// The domain in which the volume shares blocks.
    pub domain: String,
    /// The volume's settings.
    pub settings: VolumeSettings,
    /// Counts of in-line deduplication since the pool was opened.
    pub inline: InlineStat,
    /// Data that the volume and its snapshots map, each block counted where it was written.
    pub mapped_blocks: u64,
    /// Free blocks that are kept for the reservation.
    pub reserved_unused_blocks: u64,
    /// The exclusive space, if [`Store::account`] has counted it.
    pub usage: Option<Usage>,
}

/// The content of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotStat {
    /// `VOLUME@SNAPSHOT`.
    pub name: String,
    /// See [`Volume::number`].
    pub number: u64,
    /// The number of the snapshot's volume.
    pub volume: u64,
    /// The volume's size when the snapshot was made, in bytes.
    pub size_bytes: u64,
    /// When the snapshot was made, in seconds since the Unix epoch.
    pub created_unix_seconds: u64,
    /// Blocks of the snapshot that were written after the previous snapshot.
    pub own_blocks: u64,
    /// The exclusive space, if [`Store::account`] has counted it.
    pub usage: Option<Usage>,
}

/// The content of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolStat {
    /// The pool's identity, which no other pool has.
    pub id: PoolId,
    /// The version of the pool's format, major and minor.
    pub format: (u8, u8),
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the pool, the label's included.
    pub pool_blocks: u64,
    /// The size that the pool is being made smaller to, in blocks.
    pub shrinking_to_blocks: Option<u64>,
    /// Entries that hold data, over all volumes, those being imported or deleted included.
    pub logical_blocks: u64,
    /// Blocks that hold data: private and unsettled, unique and shared ones, each counted once.
    pub physical_blocks: u64,
    /// Blocks that one entry owns and that are not in the index.
    pub private_blocks: u64,
    /// Blocks that the finder is publishing just now: not private any more, and not in the index yet or
    /// found to be there already.
    pub unsettled_blocks: u64,
    /// Blocks in the index with one reference.
    pub unique_blocks: u64,
    /// Blocks in the index with two references or more.
    pub shared_blocks: u64,
    /// Private blocks that are pending dedup.
    pub dirty_blocks: u64,
    /// Blocks whose content a failed sync lost, and that have not been written since.
    pub lost_blocks: u64,
    /// Blocks that can be handed out.
    pub free_blocks: u64,
    /// Free blocks that the host has space for.
    pub available_blocks: u64,
    /// Bytes that the file system of a pool's file has free; nothing for a device.
    pub host_free_bytes: Option<u64>,
    /// How full the pool is.
    pub space: SpaceLevel,
    /// Free blocks that are kept for writes that overwrite data.
    pub reserve_blocks: u64,
    /// Free blocks that are kept for volumes with a reservation.
    pub reserved_unused_blocks: u64,
    /// The treatment of writes for which there is no room.
    pub when_full: WhenFull,
    /// Blocks that were released and are not free yet, queued ones included.
    pub reclaim_blocks: u64,
    /// Dropped references that the collector has still to release.
    pub queued_blocks: u64,
    /// References that entries have and the index does not count yet.
    pub claimed_blocks: u64,
    /// The most references that may wait to be counted; at this number further hits are refused.
    pub claimed_max_blocks: u64,
    /// The index's back end.
    pub index: IndexKind,
    /// The index is being counted again, or has to be; nothing is shared until that is done.
    pub index_rebuilding: bool,
    /// Bytes that the host has allocated for the index.
    pub index_bytes_on_disk: u64,
    /// Bytes that the host has allocated for data.
    pub pool_bytes_on_disk: u64,
    /// Bytes that the host has allocated for free blocks, which [`Store::trim_step`] can discard; on
    /// a device, all free space.
    pub free_bytes_on_disk: u64,
    /// Bytes of metadata in use: pages, log and superblock.
    pub metadata_bytes_on_disk: u64,
    /// Visible volumes, by name.
    pub volumes: Vec<VolumeStat>,
    /// Snapshots of the visible volumes, by name.
    pub snapshots: Vec<SnapshotStat>,
    /// Deletions that are not finished.
    pub deletions: Vec<DeletionStat>,
}

/// The state of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexStat {
    /// The index's back end.
    pub kind: IndexKind,
    /// Blocks in the index with one reference.
    pub unique_blocks: u64,
    /// Blocks in the index with two references or more.
    pub shared_blocks: u64,
    /// References of all blocks together.
    pub references: u64,
    /// The index is being counted again, or has to be; nothing is shared until that is done.
    pub needs_rebuild: bool,
    /// The kind that the index's rows are being copied into, or will be when the pool is served.
    pub converting_to: Option<IndexKind>,
    /// Bytes that the host has allocated for the index.
    pub bytes_on_disk: u64,
    /// The index's part of the memory limit, in bytes.
    pub memory_bytes_max: u64,
}

/// Memory in use by the caches of a pool, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryStat {
    /// Segments of maps.
    pub segments: u64,
    /// Inner pages of trees.
    pub nodes: u64,
    /// Pages of the free-space map.
    pub free_space: u64,
    /// Records that no commit has sealed yet.
    pub records: u64,
    /// Hash caches of volumes.
    pub hash_caches: u64,
    /// Fingerprints of references that the index does not count yet.
    pub claims: u64,
}

impl Store {
    /// Memory in use by the caches.
    ///
    /// # Errors
    ///
    /// `Damaged` where a request panicked in the middle of a change.
    pub fn memory_stat(&self) -> Result<MemoryStat> {
        let pool = &self.pool;
        let metadata = pool.journal.metadata()?;
        let (free_space, records) = (
            metadata.space().resident_count() as u64,
            metadata.uncommitted_bytes() as u64,
        );
        drop(metadata);
        Ok(MemoryStat {
            segments: pool.maps().cached_count() as u64 * LEAF_BYTES,
            nodes: pool.journal.cached_pages() as u64 * NODE_BYTES,
            free_space: free_space * SPACE_PAGE_BYTES,
            records,
            hash_caches: pool.hash_cache_room.used_bytes(),
            claims: pool.batches.claimed().bytes(),
        })
    }

    /// The state of the index.
    ///
    /// # Errors
    ///
    /// `Damaged` if it cannot be used; `Io` if the host cannot report its allocation.
    pub fn index_stat(&self) -> Result<IndexStat> {
        let index = self.pool.index().get_settled()?;
        let counts = index.counts();
        Ok(IndexStat {
            kind: self.pool.index().kind(),
            unique_blocks: counts.unique,
            shared_blocks: counts.shared,
            references: counts.references,
            needs_rebuild: index.needs_rebuild(),
            converting_to: self.pool.index().next_kind(),
            bytes_on_disk: index.bytes_on_disk()?,
            memory_bytes_max: self.pool.limits.index_bytes as u64,
        })
    }

    /// Counts the content of the pool.
    ///
    /// # Errors
    ///
    /// `Io` if the host cannot report its allocation.
    pub fn stat(&self) -> Result<PoolStat> {
        let volumes: Vec<Arc<Volume>> = self.volumes_in_use();
        let snapshots = self.snapshots_in_use();
        let deletions = self.deletions()?;
        let pool = &self.pool;
        let room = pool.journal.room()?;
        let snapshots = snapshots.iter().map(|snapshot| SnapshotStat {
            name: snapshot.name(),
            number: snapshot.number(),
            volume: snapshot.snapshot_of.map_or(0, |volume| volume.0),
            size_bytes: snapshot.size_bytes(),
            created_unix_seconds: snapshot.created_unix_seconds,
            own_blocks: snapshot.logical_blocks(),
            usage: self.usage(snapshot.id),
        });
        let snapshots = snapshots.collect();
        let metadata = pool.journal.metadata()?;
        let counts = pool.maps().counts();
        let (pool_blocks, free_blocks) =
            (metadata.space().blocks(), metadata.space().free_blocks());
        let end = metadata.space().end();
        let reserve_blocks = pool.journal.reserve_blocks(&metadata);
        let physical_blocks = metadata.space().named_count();
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
        let queued_blocks = metadata.queue().blocks() + collecting;
        let reclaim_blocks = metadata.space().held_blocks() + queued_blocks;
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
        // The index changes before the corresponding records, and without the uncommitted state.
        // Its counts only divide the remaining blocks.
        let published_blocks = physical_blocks.saturating_sub(private_blocks + unsettled_blocks);
        let shared_blocks = index_counts.shared.min(published_blocks);
        let pages = pool.journal.page_count() + 1;
        Ok(PoolStat {
            id: pool.superblock.pool,
            format: (MAJOR_VERSION, pool.journal.minor()),
            block_size: self.block_size(),
            pool_blocks,
            shrinking_to_blocks: (end < pool_blocks).then_some(end),
            logical_blocks: private_blocks + counts.shared,
            physical_blocks,
            private_blocks,
            unsettled_blocks,
            unique_blocks: published_blocks - shared_blocks,
            shared_blocks,
            dirty_blocks: counts.private,
            queued_blocks,
            claimed_blocks,
            claimed_max_blocks: pool.limits.claims_max,
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
            when_full: pool.journal.when_full(),
            reclaim_blocks,
            pool_bytes_on_disk: room.allocated_bytes,
            free_bytes_on_disk: room.spare_bytes,
            metadata_bytes_on_disk: pages * PAGE_BYTES as u64 + pool.superblock.log_bytes,
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
        VolumeStat {
            name: volume.name(),
            number: volume.number(),
            size_bytes: volume.size_bytes(),
            logical_blocks: volume.logical_blocks(),
            private_blocks: counts.private + counts.unshareable,
            shared_blocks: counts.shared,
            dirty_blocks: counts.private,
            domain: options.domain,
            settings: options.settings,
            inline: volume.inline_stat(),
            mapped_blocks: space_limits.mapped(),
            reserved_unused_blocks: space_limits.unused_reservation(),
            usage: self.usage(volume.id),
        }
    }
}
