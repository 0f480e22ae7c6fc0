//! Deduplication: blocks are published in the index, equal ones become one, and dropped references
//! are released. A lost index is rebuilt from the maps.
//!
//! The finder, the collector and the counting of claims announce their requests to the index, and settle its answers, so a
//! crash repeats them without counting anything twice (P4).

mod collector;
mod counting;
mod finder;
mod index_rebuild;
mod references;
mod unshare;

use std::ops::ControlFlow;
use std::sync::Arc;

use onefold_format::{DomainId, Pba};
use onefold_index::Fingerprint;
use onefold_metadata::sync::Mutex;
use rustc_hash::FxHashMap;

use crate::batches::Urgency;
use crate::pool::Pool;

pub use collector::COLLECT_BATCH_BLOCKS;
pub use counting::HitsHeld;
pub use finder::Ready;
pub use index_rebuild::{IndexStat, PoolIndex};
pub(crate) use references::{Window, fingerprint_published};
pub use unshare::{UnsharePlan, Unsharing};

/// The pace of a batch: it may rest, or break the batch off. A closure paces only the reading.
pub trait Pacing {
    /// Called before each piece of blocks is read. Returns how many bytes the piece may have.
    fn next_piece(&mut self) -> ControlFlow<(), u64>;

    /// Called before the batch is announced, which costs flushes of the device. Later it cannot be broken off.
    fn before_flushes(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut() -> ControlFlow<(), u64>> Pacing for F {
    fn next_piece(&mut self) -> ControlFlow<(), u64> {
        self()
    }
}

/// The pace of one batch.
pub type Pace<'a> = &'a mut dyn Pacing;

/// Finder, collector and counting of claims: see [`Store::dedup`](crate::Store::dedup).
pub struct Dedup {
    pool: Arc<Pool>,
    /// Held while the finder reads candidates: two of them at once would take the other's for their own.
    scanning: Mutex<()>,
}

impl Dedup {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            scanning: Mutex::default(),
        }
    }

    /// The fingerprints of the blocks that `items` have as long as they are `wanted`; nothing if `pace` breaks off. Blocks
    /// that cannot be read are left out.
    fn read_in_pieces<T>(
        &self,
        items: &[T],
        wanted: &dyn Fn(&T) -> Option<Pba>,
        domain: DomainId,
        urgency: Urgency,
        pace: Pace<'_>,
    ) -> Option<FxHashMap<Pba, Fingerprint>> {
        let pool = &self.pool;
        let mut read = FxHashMap::default();
        let mut rest = items;
        loop {
            // No rest for what is not read.
            let unwanted = rest.iter().take_while(|item| wanted(item).is_none());
            rest = &rest[unwanted.count()..];
            if rest.is_empty() {
                return Some(read);
            }
            let bytes = pace.next_piece().continue_value()?;
            let count = (bytes / pool.block_size()).clamp(1, rest.len() as u64) as usize;
            let (piece, later) = rest.split_at(count);
            let blocks: Vec<Pba> = piece.iter().filter_map(wanted).collect();
            let found = pool
                .batches()
                .run(urgency, || pool.blocks().fingerprints_now(domain, &blocks));
            read.extend(blocks.into_iter().zip(found.into_iter().flatten()));
            rest = later;
        }
    }
}
