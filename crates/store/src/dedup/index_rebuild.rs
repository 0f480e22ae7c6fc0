//! Rebuilding the index: counted from the maps, or copied into one of another kind.
//!
//! A copy is made in a part of its own, and then replaces the index in one step:
//!
//! | a stop | leaves |
//! | --- | --- |
//! | while rows are copied | the old index, in use, and a part with the kind of the new one |
//! | while it takes the place | either of the two |
//! | afterwards | the new index |
//!
//! An unfinished copy is started again by the first operation that needs the index, or by the
//! daemon.
//!
//! Finder and collector wait until the end, so the rows do not change. The new index has no answers
//! to repeat: no batch may be open when it begins, and none that a crash could open again.

use std::sync::Arc;

use onefold_engine::Engine;
use onefold_format::IndexKind;
use onefold_index::{Fingerprint, FingerprintIndex, IndexReader};
use onefold_metadata::{Guard, Result, StoreError, StoreErrorKind};

use super::references::{ROWS_AT_ONCE, count_index};
use crate::batches::STREAM;
use crate::pool::Pool;
use crate::shared::check_is_alone;

/// The index as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = IndexStatReply))]
pub struct IndexStat {
    /// The back end of the index.
    pub kind: IndexKind,
    /// Published blocks with one reference.
    pub unique_blocks: u64,
    /// Published blocks with several references.
    pub shared_blocks: u64,
    /// References to published blocks.
    pub references: u64,
    /// Whether the index must be rebuilt from the pool before more blocks are shared.
    pub needs_rebuild: bool,
    /// The back end that the index is being converted to.
    pub converting_to: Option<IndexKind>,
    /// Size of the index on disk.
    pub bytes_on_disk: u64,
    /// The most memory that the index may use.
    pub memory_bytes_max: u64,
}

/// The fingerprint index as a whole: see [`Store::index`](crate::Store::index).
pub struct PoolIndex {
    pool: Arc<Pool>,
    engine: Arc<dyn Engine>,
}

impl PoolIndex {
    pub(crate) fn new(pool: Arc<Pool>, engine: Arc<dyn Engine>) -> Self {
        Self { pool, engine }
    }

    /// Rebuilds the index from the maps, if it does not match them: after a stop that it could not
    /// survive. Resumes an interrupted conversion. Volumes stay in service; finder and collector
    /// wait. `progress` gets the number of blocks done, and the most there are. Returns whether there
    /// was anything to do.
    ///
    /// # Errors
    ///
    /// Errors of the disk and the index; `Damaged` if a map cannot be read.
    pub fn rebuild_if_needed(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<bool> {
        if self.pool.index().is_shared() {
            return Ok(false);
        }
        let pool = &self.pool;
        let _job = pool.batches().job()?;
        let needs_rebuild = pool.index().get()?.needs_rebuild();
        if needs_rebuild {
            count_index(pool, progress)?;
        }
        match pool.index().next_kind() {
            Some(kind) if pool.journal().check_writable().is_ok() => {
                self.copy(kind, progress)?;
                Ok(true)
            }
            _ => Ok(needs_rebuild),
        }
    }

    /// Replaces the index by an empty one, and counts it from the maps. Volumes stay in service;
    /// finder and collector wait. If it ends early, the next opening counts again. `progress` gets
    /// the number of published blocks read, and the most there are.
    ///
    /// # Errors
    ///
    /// Errors of the disk and the index; `Damaged` if a map cannot be read; `ReadOnly`.
    pub fn rebuild(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        check_is_alone(&self.pool, "rebuilding the index")?;
        let _job = self.pool.batches().job()?;
        self.pool.journal().check_writable()?;
        self.recount(self.pool.index().kind(), progress)
    }

    /// Converts the index to this kind, by copying its rows; if they cannot be used, by counting
    /// them from the maps. Volumes stay in service; finder and collector wait. After a stop the next
    /// opening starts again, and the old index is used until the new one is complete. `progress` gets
    /// the number of blocks done, and the most there are.
    ///
    /// # Errors
    ///
    /// Errors of the disk and the index, which leave the old index unchanged; `ReadOnly`.
    pub fn convert(&self, kind: IndexKind, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        check_is_alone(&self.pool, "converting the index")?;
        let pool = &self.pool;
        let _job = pool.batches().job()?;
        pool.journal().check_writable()?;
        // Nothing may hold the old index when the new one takes its place.
        let is_ready = pool.index().ready().is_ok();
        if !is_ready {
            self.recount(kind, progress)
        } else if kind == pool.index().kind() {
            pool.index().give_up_next(&*self.engine)
        } else {
            self.copy(kind, progress)
        }
    }

    /// Makes index and maps comparable: an interrupted count is finished, and announced items are
    /// settled. The caller holds the job lock.
    pub(crate) fn settle(&self) -> Result<()> {
        let pool = &self.pool;
        if pool.index().get()?.needs_rebuild() {
            count_index(pool, &mut |_, _| {})?;
        }
        pool.batches().settle_open_batch().map(|_| ())
    }

    /// Counts the index again from the maps, in a new one if the existing one is unusable. The caller
    /// holds the job lock.
    pub(crate) fn repair(&self, is_unreadable: bool) -> Result<()> {
        let pool = &self.pool;
        let is_usable =
            |index: Arc<dyn FingerprintIndex>| index.rows(Fingerprint::default(), 1).is_ok();
        if is_unreadable || !pool.index().get().is_ok_and(is_usable) {
            let bytes = pool.limits().index_bytes;
            pool.index().replace(
                &*self.engine,
                pool.index().kind(),
                pool.superblock().pool,
                bytes,
            )?;
        }
        count_index(pool, &mut |_, _| {})?;
        pool.batches().settle_open_batch().map(|_| ())
    }

    /// The state of the index.
    ///
    /// # Errors
    ///
    /// `Damaged` if it cannot be used; `Io` if the host cannot report its allocation.
    pub fn stat(&self) -> Result<IndexStat> {
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
            memory_bytes_max: self.pool.limits().index_bytes as u64,
        })
    }

    /// The caller holds the job lock.
    fn recount(&self, kind: IndexKind, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let pool = &self.pool;
        pool.index().give_up_next(&*self.engine)?;
        let bytes = pool.limits().index_bytes;
        pool.index()
            .replace(&*self.engine, kind, pool.superblock().pool, bytes)?;
        count_index(pool, progress)?;
        pool.batches().settle_open_batch().map(|_| ())
    }

    /// The caller holds the job lock.
    fn copy(&self, kind: IndexKind, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let pool = &self.pool;
        let last_number = self.settle_durably()?;
        let copied = self.fill_next(kind, last_number, progress);
        if let Err(error) = copied {
            // The space is worth more than the copied rows: a resumed copy would only fail again.
            if let Err(further) = pool.index().give_up_next(&*self.engine) {
                tracing::warn!("the part of the index that was copied stays: {further}");
            }
            return Err(error.during("converting the index"));
        }
        let (superblock, bytes) = (pool.superblock(), pool.limits().index_bytes);
        pool.index()
            .install_next(&*self.engine, superblock.index, superblock.pool, bytes)?;
        // An index in memory that could not be read back is empty.
        if pool.index().get()?.needs_rebuild() {
            count_index(pool, progress)
        } else {
            Ok(())
        }
    }

    fn fill_next(
        &self,
        kind: IndexKind,
        last_number: u64,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let pool = &self.pool;
        let old = pool.index().ready()?;
        let _memory = pool.scan_memory();
        let bytes = pool.limits().check_bytes;
        let next = pool
            .index()
            .begin_next(&*self.engine, kind, pool.superblock().pool, bytes)?;
        self.copy_rows(&*old, &*next, progress)?;
        next.finish_rebuild(STREAM, last_number)?;
        Ok(next.close()?)
    }

    /// Settles the open batch, so that no crash can open it again. Returns the last number that a
    /// batch had.
    fn settle_durably(&self) -> Result<u64> {
        self.pool.batches().settle_open_batch()?;
        if Guard::SettledBeforeConversion.holds() {
            self.pool.journal().commit_in_background()?;
        }
        let metadata = self.pool.journal().metadata()?;
        let batches = &metadata.batches();
        match batches.open() {
            None => Ok(batches.next_number() - 1),
            Some(batch) => Err(StoreError::new(
                StoreErrorKind::Busy,
                format!("batch {} cannot be ended", batch.number),
            )),
        }
    }

    fn copy_rows(
        &self,
        from: &dyn IndexReader,
        into: &dyn FingerprintIndex,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let all = from.counts().rows();
        let (mut next, mut done) = (Some(Fingerprint::default()), 0);
        while let Some(first) = next {
            let (rows, refused) = self.pool.background().run(|| -> Result<_> {
                let rows = from.rows(first, ROWS_AT_ONCE)?;
                let refused = into.add_rows(&rows)?;
                Ok((rows, refused))
            })?;
            if !refused.is_empty() {
                return Err(miscopied("rows were refused"));
            }
            next = rows.last().and_then(|(last, _)| last.successor());
            done += rows.len() as u64;
            progress(done, all.max(done));
        }
        if into.counts() == from.counts() {
            Ok(())
        } else {
            Err(miscopied("its rows are not as many as it counts"))
        }
    }
}

fn miscopied(what: &str) -> StoreError {
    StoreError::damaged(format!(
        "the fingerprint index: {what}; `index rebuild` counts it from the maps"
    ))
}
