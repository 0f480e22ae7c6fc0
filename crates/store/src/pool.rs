//! State that all volumes of an open pool share.

use std::sync::{Arc, OnceLock};

use onefold_format::{Secret, Superblock};
use onefold_journal::{BackgroundWork, BadBlocks, DataDisk, Journal, LossList};
use onefold_metadata::sync::{AtomicBool, Mutex};
use onefold_metadata::{Limits, Maps, Result, Room};

use crate::batches::{Batches, ClaimedFingerprints, ClaimsAlarm, IndexSlot};
use crate::blocks::{Blocks, Fingerprinter};
use crate::latency::Latencies;
use crate::volume::Recent;

pub(crate) struct Pool {
    pub(crate) superblock: Superblock,
    pub(crate) limits: Limits,
    pub(crate) journal: Arc<Journal>,
    pub(crate) background: Arc<BackgroundWork>,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) batches: Batches,
    /// Blocks and volumes that a failed sync damaged.
    pub(crate) losses: LossList,
    pub(crate) claims_alarm: OnceLock<ClaimsAlarm>,
    /// Held while the memory of [`Limits::check_bytes`] is in use.
    pub(crate) scan_memory: Mutex<()>,
    /// Held while blocks are moved from beyond the pool's new end.
    pub(crate) shrinking: Mutex<()>,
    pub(crate) latencies: Latencies,
    pub(crate) hash_cache_room: Arc<Room>,
    pub(crate) recent: Recent,
    /// Relaxed: a hint, which nothing else depends on.
    pub(crate) guests_strained: AtomicBool,
}

/// The components of a pool.
pub(crate) struct PoolParts {
    pub(crate) superblock: Superblock,
    pub(crate) limits: Limits,
    pub(crate) journal: Journal,
    pub(crate) background: Arc<BackgroundWork>,
    pub(crate) index: IndexSlot,
    pub(crate) secret: Secret,
    pub(crate) bad: BadBlocks,
    pub(crate) losses: LossList,
}

impl Pool {
    pub(crate) fn new(parts: PoolParts) -> Self {
        let PoolParts {
            superblock,
            limits,
            journal,
            background,
            index,
            secret,
            bad,
            losses,
        } = parts;
        let journal = Arc::new(journal);
        let fingerprinter = Fingerprinter::new(secret, superblock.block_size);
        let blocks = Blocks::new(
            Arc::clone(&journal),
            fingerprinter,
            bad,
            superblock.block_size,
        );
        let blocks = Arc::new(blocks);
        let batches = Batches::new(
            Arc::clone(&journal),
            Arc::clone(&blocks),
            Arc::clone(&background),
            index,
            ClaimedFingerprints::new(limits.claim_fingerprints_max),
        );
        Self {
            superblock,
            limits,
            journal,
            background,
            blocks,
            batches,
            losses,
            claims_alarm: OnceLock::new(),
            scan_memory: Mutex::default(),
            shrinking: Mutex::default(),
            latencies: Latencies::new(),
            hash_cache_room: Room::new(limits.hash_cache_bytes),
            recent: Recent::new(limits.recent_bytes),
            guests_strained: AtomicBool::new(false),
        }
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

    /// Whether blocks are being moved from beyond the pool's new end.
    pub(crate) fn is_shrinking(&self) -> Result<bool> {
        let metadata = self.journal.metadata()?;
        Ok(metadata.space().end() < metadata.space().blocks())
    }

    pub(crate) fn data(&self) -> &DataDisk {
        self.journal.data()
    }
}
