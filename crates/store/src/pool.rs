//! State that all volumes of an open pool share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use onefold_format::{Secret, Superblock};
use onefold_journal::{BackgroundWork, BadBlocks, DataDisk, Journal, LossList};
use onefold_metadata::sync::{AtomicBool, Mutex, MutexGuard, lock};
use onefold_metadata::{Limits, Maps, Result, Room};

use crate::batches::{Batches, ClaimedFingerprints, IndexSlot};
use crate::blocks::{Blocks, Fingerprinter};
use crate::latency::Latencies;
use crate::shared::{Group, Shared};
use crate::volume::Recent;

/// What volumes share. Each part does its own work; this only holds them together.
pub(crate) struct Pool {
    superblock: Superblock,
    limits: Limits,
    journal: Arc<Journal>,
    background: Arc<BackgroundWork>,
    blocks: Arc<Blocks>,
    batches: Batches,
    /// In a group of a shared pool.
    group: Option<Group>,
    /// Blocks and volumes that a failed sync damaged.
    losses: LossList,
    /// Held while the memory of [`Limits::check_bytes`] is in use.
    scan_memory: Mutex<()>,
    latencies: Latencies,
    hash_cache_room: Arc<Room>,
    recent: Recent,
    /// Relaxed: a hint, which nothing else depends on.
    guests_strained: AtomicBool,
}

/// The components of a pool.
pub(crate) struct PoolParts {
    pub(crate) superblock: Superblock,
    pub(crate) limits: Limits,
    pub(crate) journal: Journal,
    pub(crate) background: Arc<BackgroundWork>,
    pub(crate) index: IndexSlot,
    pub(crate) shared: Option<Shared>,
    pub(crate) secret: Secret,
    pub(crate) bad: BadBlocks,
    pub(crate) losses: LossList,
}

impl Pool {
    pub(crate) fn new(parts: PoolParts) -> Result<Self> {
        let PoolParts {
            superblock,
            limits,
            journal,
            background,
            index,
            shared,
            secret,
            bad,
            losses,
        } = parts;
        let journal = Arc::new(journal);
        let next_batch = journal.metadata()?.batches().next_number();
        let fingerprinter = Fingerprinter::new(secret, superblock.block_size);
        let blocks = Blocks::new(
            Arc::clone(&journal),
            fingerprinter,
            bad,
            superblock.block_size,
        );
        let blocks = Arc::new(blocks);
        let group = shared.map(|shared| Group::new(&journal, shared));
        let batches = Batches::new(
            Arc::clone(&journal),
            Arc::clone(&blocks),
            Arc::clone(&background),
            index,
            ClaimedFingerprints::new(limits.claim_fingerprints_max),
            next_batch,
            group.as_ref().map(|group| Arc::clone(group.leases())),
        );
        Ok(Self {
            superblock,
            limits,
            journal,
            background,
            blocks,
            batches,
            group,
            losses,
            scan_memory: Mutex::default(),
            latencies: Latencies::new(),
            hash_cache_room: Room::new(limits.hash_cache_bytes),
            recent: Recent::new(limits.recent_bytes),
            guests_strained: AtomicBool::new(false),
        })
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn background(&self) -> &Arc<BackgroundWork> {
        &self.background
    }

    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// What a group of a shared pool has, and a pool with one owner has not.
    pub(crate) fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    pub(crate) fn losses(&self) -> &LossList {
        &self.losses
    }

    /// The turn to use the memory of [`Limits::check_bytes`].
    pub(crate) fn scan_memory(&self) -> MutexGuard<'_, ()> {
        lock(&self.scan_memory)
    }

    pub(crate) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    pub(crate) fn hash_cache_room(&self) -> &Arc<Room> {
        &self.hash_cache_room
    }

    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Whether guests' requests take too long for want of processor time.
    pub(crate) fn are_guests_strained(&self) -> bool {
        self.guests_strained.load(Relaxed)
    }

    pub(crate) fn set_guests_strained(&self, strained: bool) {
        self.guests_strained.store(strained, Relaxed);
    }

    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.superblock.block_size)
    }

    pub(crate) fn maps(&self) -> &Maps {
        self.journal.maps()
    }

    pub(crate) fn index(&self) -> &IndexSlot {
        self.batches.index()
    }

    pub(crate) fn bad(&self) -> &BadBlocks {
        self.blocks.bad()
    }

    pub(crate) fn data(&self) -> &DataDisk {
        self.journal.data()
    }
}
