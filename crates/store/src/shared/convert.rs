//! Converts a pool with one owner to a shared pool, whose first group it becomes.
//!
//! 1. the pool is opened, settles its open batch, has its claims counted, and is closed
//! 2. the rows of its index are copied to shards
//! 3. its metadata and its log are copied to a group, with a root and a superblock of that group
//!
//! Data and secret are not copied: both pools have the same ones. Blocks keep their numbers, so the space extents in which some
//! are in use are the group's.
//!
//! Crash behaviour: nothing of the old pool changes but by opening and closing it. The copies count once the caller makes the old
//! pool one that hosts share; until then they can be removed, and made again.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use onefold_engine::cluster::{Owned, TakeOptions};
use onefold_engine::{Cluster, Disk, Engine, Part, reserve};
use onefold_format::index_message::shard_of;
use onefold_format::node::ROOT_SLOTS;
use onefold_format::page::PAGE_BYTES;
use onefold_format::units::{BLOCKS_PER_SPACE_EXTENT, PBA_END};
use onefold_format::{
    DomainId, MINOR_OF_GROUPS, Provisioning, Root, Shard, SpaceExtent, Superblock,
};
use onefold_index::hash;
use onefold_index::{Fingerprint, FingerprintIndex, IndexCounts, IndexReader, Row};
use onefold_metadata::{Limits, Pages, Result, StoreError, StoreErrorKind, stored_extents};

use super::SharedDescription;
use super::directory::{FIRST_GROUP, Names};
use super::pool::{create_shard, take_owned};
use crate::batches::{IndexSlot, STREAM};
use crate::creation::{write_root, write_superblock};
use crate::recovery::{self, OpenOptions, RecoveryReport};
use crate::store::Store;
use crate::volume_options::DEFAULT_DOMAIN;

/// Rows of the index that are copied together.
const ROWS_AT_ONCE: usize = 4096;

/// Bytes of a part that are copied together.
const COPIED_TOGETHER_BYTES: u64 = 4 << 20;

/// Memory of a shard that is being filled, in bytes.
const SHARD_BYTES: u64 = 16 << 20;

/// The weight of a row in the progress, in bytes.
const ROW_BYTES: u64 = 32;

/// The parts that a group has, too. The superblock is made anew, and so is the root in the metadata.
const COPIED_PARTS: [Part; 4] = [Part::Meta, Part::Log, Part::Scrub, Part::Losses];

/// A pool with one owner that is to become a group of a shared pool. It is closed, and this process still owns it.
pub struct Conversion {
    engine: Arc<dyn Engine>,
    superblock: Superblock,
    root: Root,
    index: Arc<dyn FingerprintIndex>,
    volumes: Vec<String>,
    domains: BTreeMap<String, DomainId>,
    used: Vec<SpaceExtent>,
    report: RecoveryReport,
}

impl Conversion {
    /// Opens the pool, settles its open batch, has its claims counted, and closes it.
    ///
    /// # Errors
    ///
    /// `Invalid` if the pool is a group already; `Busy` if it is being shrunk, or if its index must be rebuilt first; `ReadOnly`
    /// if a later version wrote it; those of [`Store::open`] and [`Store::close`].
    pub fn begin(engine: Arc<dyn Engine>, memory_bytes: u64) -> Result<Self> {
        let options = OpenOptions {
            memory_bytes,
            ..OpenOptions::default()
        };
        let (store, report) = Store::open(Arc::clone(&engine), &options)?;
        settle(&store)?;
        let mut domains = BTreeMap::new();
        for (_, volume) in store.pool.journal().metadata()?.catalogue().volumes() {
            if volume.domain_name != DEFAULT_DOMAIN {
                domains.insert(volume.domain_name.clone(), volume.domain);
            }
        }
        let volumes = store.volumes().volumes();
        let volumes = volumes.iter().map(|volume| volume.name()).collect();
        store.close()?;
        drop(store);

        let (superblock, root) = recovery::identify(&*engine)?;
        let is_settled = root.open_batch.is_none() && root.claims_head == root.claims_end;
        let refused = match root.shrink_to {
            Some(_) => Some("the pool is being shrunk: let that end, or resize it to what it had"),
            None if !is_settled => Some("the index has not counted all references of the pool"),
            None => None,
        };
        if let Some(reason) = refused {
            return Err(StoreError::new(StoreErrorKind::Busy, reason));
        }
        let limits = Limits::from_memory(memory_bytes);
        let index = IndexSlot::open(
            &*engine,
            superblock.index,
            superblock.pool,
            limits.index_bytes,
        );
        let used = used_extents(&*engine, &superblock, &root, &limits)?;
        Ok(Self {
            index: index.ready()?,
            engine,
            superblock,
            root,
            volumes,
            domains,
            used,
            report,
        })
    }

    /// The shared pool that is made.
    #[must_use]
    pub fn description(&self, shards: u16) -> SharedDescription {
        SharedDescription {
            pool: self.superblock.pool,
            block_size: self.superblock.block_size,
            shards,
        }
    }

    /// The report of opening the pool.
    #[must_use]
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The number of volumes, without snapshots.
    #[must_use]
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// The size of the shared pool: that of the present one, rounded up to whole space extents.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.extents() * BLOCKS_PER_SPACE_EXTENT * u64::from(self.superblock.block_size)
    }

    fn extents(&self) -> u64 {
        self.root.pool_blocks.div_ceil(BLOCKS_PER_SPACE_EXTENT)
    }

    /// The first space extent beyond the shared pool. Its size does not count the extent with the label, whose blocks groups do
    /// not take.
    #[must_use]
    pub fn extents_end(&self) -> u64 {
        self.extents() + 1
    }

    /// The space extents in which blocks are in use, in ascending order. They are the group's: it has their free blocks, too.
    #[must_use]
    pub fn used_extents(&self) -> &[SpaceExtent] {
        &self.used
    }

    /// Makes the shards and the group of a shared pool that has neither, and notes that `host` opens the group. `progress` gets
    /// the number of bytes of metadata and index rows that are copied, and of all.
    ///
    /// # Errors
    ///
    /// `Exists` if there is a shard or a group already; `Damaged` if the index or the metadata cannot be read; `Io`.
    pub fn copy_to(
        &self,
        cluster: &dyn Cluster,
        shards: u16,
        host: &str,
        take: &TakeOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let rows = self.index.counts();
        let rows = rows.unique + rows.shared;
        let parts = self.parts()?;
        let mut part_bytes = 0;
        for (part, disk) in &parts {
            part_bytes += disk.len().map_err(|error| self.failed(*part, error))?;
        }
        let all = part_bytes + rows * ROW_BYTES;
        let mut copied = 0;
        let mut advance = |bytes: u64| {
            copied += bytes;
            progress(copied.min(all), all);
        };
        self.copy_rows(cluster, shards, take, &mut advance)?;
        self.copy_parts(cluster, &parts, take, &mut advance)?;
        let names = Names(cluster.directory());
        let last_domain = self.root.next_domain_id.saturating_sub(1);
        names.set_first_group(host, &self.volumes, &self.domains, last_domain)?;
        names.set_created()
    }

    /// Copies the rows, which come in the order of their fingerprints, so that those of a shard are next to each other.
    fn copy_rows(
        &self,
        cluster: &dyn Cluster,
        shards: u16,
        take: &TakeOptions,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let pool = self.superblock.pool;
        let mut total = IndexCounts::default();
        let mut from = Some(Fingerprint::default());
        let mut rows: Vec<(Fingerprint, Row)> = Vec::new();
        for shard in (0..shards).map(Shard) {
            let (_holding, disk) = create_shard(cluster, shard, pool, take)?;
            let index = hash::open(disk, pool, SHARD_BYTES)?;
            index.begin_rebuild()?;
            loop {
                if rows.is_empty() {
                    let Some(start) = from else { break };
                    rows = self.index.rows(start, ROWS_AT_ONCE)?;
                    from = rows.last().and_then(|(last, _)| last.successor());
                }
                let is_here = |row: &(Fingerprint, Row)| shard_of(&row.0.0, shards) == shard;
                let here = rows.iter().take_while(|row| is_here(row)).count();
                let here: Vec<_> = rows.drain(..here).collect();
                if here.is_empty() {
                    break;
                }
                if let Some((_, row)) = index.add_rows(&here)?.first() {
                    return Err(StoreError::damaged(format!(
                        "the fingerprint index has two rows for the content of block {}",
                        row.pba
                    )));
                }
                advance(here.len() as u64 * ROW_BYTES);
            }
            index.finish_rebuild(STREAM, self.root.next_batch.saturating_sub(1))?;
            let counts = index.counts();
            total.unique += counts.unique;
            total.shared += counts.shared;
            total.references += counts.references;
            index.close()?;
        }
        if total != self.index.counts() {
            return Err(StoreError::damaged(format!(
                "the fingerprint index counts {:?}, and its rows are {total:?}",
                self.index.counts()
            )));
        }
        Ok(())
    }

    fn copy_parts(
        &self,
        cluster: &dyn Cluster,
        parts: &[(Part, Arc<dyn Disk>)],
        take: &TakeOptions,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let what = Owned::Group(FIRST_GROUP);
        let failed = |error| StoreError::io(format_args!("creating {what}"), error);
        cluster.create(what).map_err(failed)?;
        let holding = take_owned(cluster, what, take)?;
        let identity = holding.create(Part::Superblock, PAGE_BYTES as u64);
        let superblock = Superblock {
            group: Some(FIRST_GROUP),
            ..self.superblock
        };
        write_superblock(&*identity.map_err(failed)?, &superblock)?;
        let mut meta = None;
        for (part, from) in parts {
            let len = from.len().map_err(|error| self.failed(*part, error))?;
            let to = holding.create(*part, len).map_err(failed)?;
            let first = match part {
                Part::Meta => ROOT_SLOTS * PAGE_BYTES as u64,
                _ => 0,
            };
            if *part == Part::Log {
                reserve(&*to, len).map_err(failed)?;
            }
            advance(first);
            let copied = copy(&**from, &*to, first..len, advance);
            copied
                .and_then(|()| to.sync())
                .map_err(|error| self.failed(*part, error))?;
            if *part == Part::Meta {
                meta = Some(to);
            }
        }
        let meta = meta.ok_or_else(|| StoreError::damaged("the pool has no metadata"))?;
        // Without it, there is no group.
        let root = Root {
            minor: MINOR_OF_GROUPS,
            pool_blocks: PBA_END,
            provisioning: Provisioning::Thin,
            ..self.root
        };
        write_root(&*meta, self.superblock.pool, &root)
    }

    /// The parts to copy, as far as they are there.
    fn parts(&self) -> Result<Vec<(Part, Arc<dyn Disk>)>> {
        let mut parts = Vec::new();
        for part in COPIED_PARTS {
            match self.engine.open(part) {
                Ok(disk) => parts.push((part, disk)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.failed(part, error)),
            }
        }
        Ok(parts)
    }

    fn failed(&self, part: Part, error: io::Error) -> StoreError {
        let part = self.engine.describe(part);
        StoreError::io(format_args!("copying {part}"), error)
    }
}

/// Has the index count all claims, and settles the open batch. A shard holds no row for a claim that it does not know of.
fn settle(store: &Store) -> Result<()> {
    store.pool.journal().check_writable()?;
    while store.dedup().count_batch_at_once()?.items() > 0 {}
    Ok(())
}

/// The space extents in which blocks are in use.
fn used_extents(
    engine: &dyn Engine,
    superblock: &Superblock,
    root: &Root,
    limits: &Limits,
) -> Result<Vec<SpaceExtent>> {
    let name = engine.describe(Part::Meta);
    let meta = engine.open(Part::Meta);
    let meta = meta.map_err(|error| StoreError::io(&name, error))?;
    let pages = Pages::new(meta, name, superblock.pool, limits.nodes_max);
    stored_extents(&pages, root.space)
}

/// Copies a range of a disk to a disk that has only zeros.
fn copy(
    from: &dyn Disk,
    to: &dyn Disk,
    range: Range<u64>,
    advance: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut bytes = vec![0; COPIED_TOGETHER_BYTES as usize];
    let mut at = range.start;
    while at < range.end {
        let count = COPIED_TOGETHER_BYTES.min(range.end - at);
        let some = &mut bytes[..count as usize];
        from.read_at(some, at)?;
        if some.iter().any(|byte| *byte != 0) {
            to.write_at(some, at)?;
        }
        at += count;
        advance(count);
    }
    Ok(())
}
