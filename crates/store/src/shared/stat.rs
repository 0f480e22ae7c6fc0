//! The content of a shared pool, as one host counts it.

use onefold_format::{GroupId, IndexKind, MAJOR_VERSION, MINOR_OF_GROUPS, Provisioning};
use onefold_index::sharded::Sharded;
use onefold_index::{FingerprintIndex, IndexCounts, IndexReader};
use onefold_journal::SpaceLevel;
use onefold_metadata::{Result, StoreError};

use super::SharedPool;
use crate::accounting::PoolStat;
use crate::dedup::IndexStat;

/// Blocks in a space extent.
const EXTENT_BLOCKS: u64 = onefold_format::units::BLOCKS_PER_SPACE_EXTENT;

/// A number that a group can have. A request to a shard names one.
const FIRST_GROUP: GroupId = GroupId(1);

impl SharedPool {
    /// Counts the content of the pool. Volumes, snapshots, and the blocks that only they have are those of the groups that
    /// are open here, and the space of the index is that of the shards that are. Published blocks and the size are the whole
    /// pool's: the index cannot tell whose the blocks are.
    ///
    /// # Errors
    ///
    /// `Io` if the cluster does not tell its free space.
    pub fn stat(&self) -> Result<PoolStat> {
        let mut stat = self.stat_without_groups()?;
        for (_, store) in self.stores() {
            let own_free = store.pool.journal().metadata()?.space().free_blocks();
            stat.add_group(store.stat()?, own_free);
        }
        stat.available_blocks = stat.free_blocks;
        stat.physical_blocks =
            stat.private_blocks + stat.unsettled_blocks + stat.unique_blocks + stat.shared_blocks;
        stat.volumes.sort_by(|a, b| a.name.cmp(&b.name));
        stat.snapshots.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(stat)
    }

    fn stat_without_groups(&self) -> Result<PoolStat> {
        let description = self.description();
        let extents = self.cluster().extent_counts();
        let extents = extents
            .map_err(|error| StoreError::io("counting the free space of the pool", error))?;
        let leased = extents.all.saturating_sub(extents.free) * EXTENT_BLOCKS;
        let index = self.index()?;
        let counts = index.counts();
        Ok(PoolStat {
            pool_id: description.pool.to_string(),
            format: format!("{MAJOR_VERSION}.{MINOR_OF_GROUPS}"),
            block_size: description.block_size,
            pool_blocks: extents.all * EXTENT_BLOCKS,
            shrinking_to_blocks: None,
            logical_blocks: 0,
            physical_blocks: 0,
            private_blocks: 0,
            unsettled_blocks: 0,
            unique_blocks: counts.unique,
            shared_blocks: counts.shared,
            lost_blocks: 0,
            free_blocks: extents.free * EXTENT_BLOCKS,
            available_blocks: 0,
            host_free_bytes: None,
            reserve_blocks: 0,
            reserved_unused_blocks: 0,
            space: SpaceLevel::Ok,
            when_full: self.when_full(),
            provisioning: Provisioning::Thin,
            pending_free_blocks: 0,
            pending_release_blocks: 0,
            claimed_blocks: 0,
            claimed_max_blocks: 0,
            pending_dedup_blocks: 0,
            index: IndexKind::Hash,
            index_rebuilding: index.needs_rebuild(),
            index_bytes_on_disk: self.index_bytes_on_disk()?,
            pool_bytes_on_disk: leased * u64::from(description.block_size),
            free_bytes_on_disk: 0,
            spare_blocks: 0,
            hole_blocks: 0,
            metadata_bytes_on_disk: 0,
            volumes: Vec::new(),
            snapshots: Vec::new(),
            deletions: Vec::new(),
        })
    }

    /// Describes the index. Rows and references are those of all shards; space and memory are those of the shards that this
    /// host serves.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn index_stat(&self) -> Result<IndexStat> {
        let index = self.index()?;
        self.describe_index(index.counts(), index.needs_rebuild())
    }

    pub(super) fn describe_index(
        &self,
        counts: IndexCounts,
        needs_rebuild: bool,
    ) -> Result<IndexStat> {
        Ok(IndexStat {
            kind: IndexKind::Hash,
            unique_blocks: counts.unique,
            shared_blocks: counts.shared,
            references: counts.references,
            needs_rebuild,
            converting_to: None,
            bytes_on_disk: self.index_bytes_on_disk()?,
            memory_bytes_max: self.shard_memory_bytes() * self.shards().len() as u64,
        })
    }

    /// The space of the shards that this host serves, in bytes.
    fn index_bytes_on_disk(&self) -> Result<u64> {
        let shards = self.shards().into_iter();
        let indexes = shards.filter_map(|shard| self.shard_index(shard));
        let bytes = indexes.map(|index| Ok(index.bytes_on_disk()?));
        bytes.sum()
    }

    /// The index, for questions that are the same for every group.
    pub(super) fn index(&self) -> Result<Sharded> {
        Ok(self.sharded(FIRST_GROUP)?)
    }
}

impl PoolStat {
    /// Adds a group with this many free blocks of its own.
    fn add_group(&mut self, group: PoolStat, own_free: u64) {
        self.logical_blocks += group.logical_blocks;
        self.private_blocks += group.private_blocks;
        self.unsettled_blocks += group.unsettled_blocks;
        self.lost_blocks += group.lost_blocks;
        self.free_blocks += own_free;
        self.reserve_blocks = self.reserve_blocks.max(group.reserve_blocks);
        self.reserved_unused_blocks += group.reserved_unused_blocks;
        self.space = self.space.max(group.space);
        self.when_full = group.when_full;
        self.pending_free_blocks += group.pending_free_blocks;
        self.pending_release_blocks += group.pending_release_blocks;
        self.claimed_blocks += group.claimed_blocks;
        self.claimed_max_blocks += group.claimed_max_blocks;
        self.pending_dedup_blocks += group.pending_dedup_blocks;
        self.metadata_bytes_on_disk += group.metadata_bytes_on_disk;
        self.volumes.extend(group.volumes);
        self.snapshots.extend(group.snapshots);
        self.deletions.extend(group.deletions);
    }
}
