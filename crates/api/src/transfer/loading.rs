//! Finds the duplicates of an image while it is loaded.
//!
//! One thread writes arriving pieces; another publishes written blocks, one batch per [`IMPORT_BATCH_BLOCKS`]
//! written. The writer waits when it is too far ahead, so an image of duplicates never takes much more room
//! in the pool than its new blocks. An image that cannot be published is still loaded, and left to the
//! finder.

use crate::error::Result;
use crate::limits::{IMPORT_BATCH_BLOCKS, IMPORT_BATCHES_AHEAD_MAX};
use onefold_store::{BatchReport, Import, Store};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Results of publishing an image.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) unique_blocks: u64,
    pub(super) duplicate_blocks: u64,
    /// Whether the index had no room for some blocks.
    is_index_full: bool,
    /// Why publishing stopped before the end, if it did.
    stopped_by: Option<String>,
}

impl Published {
    /// The reason if not everything was published.
    pub(super) fn failure(&self) -> Option<String> {
        let full = "the index has no room for all of them";
        let stopped_by = self.stopped_by.clone();
        stopped_by.or_else(|| self.is_index_full.then(|| full.to_owned()))
    }

    fn add(&mut self, report: &BatchReport) {
        self.unique_blocks += report.unique;
        self.duplicate_blocks += report.duplicates;
        self.is_index_full |= report.declined > 0;
    }
}

/// Calls `load`, which reports its writes to the [`Loading`], and publishes them concurrently. Returns when
/// both are done; if loading fails, after the batch in progress.
pub(super) fn load_and_publish<T>(
    store: &Store,
    import: &Import,
    load: impl FnOnce(&Loading) -> Result<T>,
) -> Result<(T, Published)> {
    let loading = Loading::new(store.block_size());
    thread::scope(|scope| {
        let publisher = scope.spawn(|| {
            let _gone = PublisherGone(&loading);
            let mut published = Published::default();
            if let Err(error) = publish(store, import, &loading, &mut published) {
                published.stopped_by = Some(error.to_string());
            }
            published
        });
        let loaded = {
            let mut end = LoadingEnd {
                loading: &loading,
                stage: Stage::Abandoned,
            };
            let loaded = load(&loading);
            if loaded.is_ok() {
                end.stage = Stage::Loaded;
            }
            loaded
        };
        let published = publisher.join().unwrap_or_else(|_| Published {
            stopped_by: Some("the thread that looked for them ended".to_owned()),
            ..Published::default()
        });
        Ok((loaded?, published))
    })
}

fn publish(
    store: &Store,
    import: &Import,
    loading: &Loading,
    published: &mut Published,
) -> Result<()> {
    store.index().rebuild_if_needed(&mut |_, _| {})?;
    loop {
        match loading.wait_for_batch() {
            Stage::Loading => published.add(&import.dedup_batch()?),
            Stage::Abandoned => return Ok(()),
            Stage::Loaded => break,
        }
    }
    // This ends the pass that began during loading; blocks that it may have missed take another pass. If the
    // index is full, that pass would only find the same blocks again.
    publish_to_end(import, published)?;
    if !published.is_index_full {
        publish_to_end(import, published)?;
    }
    Ok(())
}

fn publish_to_end(import: &Import, published: &mut Published) -> Result<()> {
    loop {
        let report = import.dedup_batch()?;
        published.add(&report);
        if report.at_end {
            return Ok(());
        }
    }
}

/// Progress of the writer and the publisher; each waits here for the other.
pub(super) struct Loading {
    batch_bytes: u64,
    progress: Mutex<Progress>,
    changed: Condvar,
}

struct Progress {
    stage: Stage,
    written_bytes: u64,
    /// Number of batches that the publisher has begun.
    batches_begun: u64,
    has_publisher: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// More data will be written.
    Loading,
    /// All data is written.
    Loaded,
    /// Loading has failed.
    Abandoned,
}

impl Loading {
    fn new(block_size: u32) -> Self {
        Self {
            batch_bytes: IMPORT_BATCH_BLOCKS * u64::from(block_size),
            progress: Mutex::new(Progress {
                stage: Stage::Loading,
                written_bytes: 0,
                batches_begun: 0,
                has_publisher: true,
            }),
            changed: Condvar::new(),
        }
    }

    /// Records that `bytes` more were written. Waits while publishing is too far behind.
    pub(super) fn add_written(&self, bytes: u64) {
        let mut progress = self.progress();
        progress.written_bytes += bytes;
        self.changed.notify_all();
        let is_ahead = |progress: &mut Progress| {
            let batches = progress.written_bytes / self.batch_bytes;
            progress.has_publisher && batches > progress.batches_begun + IMPORT_BATCHES_AHEAD_MAX
        };
        drop(self.changed.wait_while(progress, is_ahead));
    }

    /// Waits until there is a batch to publish, or the loading has ended.
    fn wait_for_batch(&self) -> Stage {
        let must_wait = |progress: &mut Progress| {
            let batches = progress.written_bytes / self.batch_bytes;
            progress.stage == Stage::Loading && batches <= progress.batches_begun
        };
        let waited = self.changed.wait_while(self.progress(), must_wait);
        let mut progress = waited.unwrap_or_else(PoisonError::into_inner);
        progress.batches_begun += 1;
        self.changed.notify_all();
        progress.stage
    }

    /// Locks the progress. A panic elsewhere leaves it consistent, because each change is complete in itself.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard that notifies the publisher how loading ended, even by a panic.
struct LoadingEnd<'a> {
    loading: &'a Loading,
    stage: Stage,
}

impl Drop for LoadingEnd<'_> {
    fn drop(&mut self) {
        self.loading.progress().stage = self.stage;
        self.loading.changed.notify_all();
    }
}

/// Guard that notifies the writer that publishing has ended, even by a panic.
struct PublisherGone<'a>(&'a Loading);

impl Drop for PublisherGone<'_> {
    fn drop(&mut self) {
        self.0.progress().has_publisher = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const BLOCK_SIZE: u32 = 4096;
    const BATCH_BYTES: u64 = IMPORT_BATCH_BLOCKS * BLOCK_SIZE as u64;

    #[test]
    fn the_publisher_gets_a_batch_for_every_so_many_bytes() {
        let loading = Loading::new(BLOCK_SIZE);
        loading.add_written(BATCH_BYTES - 1);
        loading.add_written(1);
        loading.add_written(BATCH_BYTES * 2);
        for _ in 0..3 {
            assert_eq!(loading.wait_for_batch(), Stage::Loading);
        }
        loading.progress().stage = Stage::Loaded;
        assert_eq!(loading.wait_for_batch(), Stage::Loaded);
    }

    #[test]
    fn the_writer_is_never_further_ahead_than_it_may() {
        let loading = Loading::new(BLOCK_SIZE);
        let written = AtomicU64::new(0);
        let batches = 5 * IMPORT_BATCHES_AHEAD_MAX;
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..batches {
                    written.fetch_add(1, Ordering::SeqCst);
                    loading.add_written(BATCH_BYTES);
                }
            });
            for begun in 0..batches {
                // Count the writer that waits inside `add_written`, too.
                let ahead = written.load(Ordering::SeqCst).saturating_sub(begun);
                assert!(ahead <= IMPORT_BATCHES_AHEAD_MAX + 1, "{ahead}");
                assert_eq!(loading.wait_for_batch(), Stage::Loading);
            }
        });
    }

    #[test]
    fn without_a_publisher_nobody_waits() {
        let loading = Loading::new(BLOCK_SIZE);
        drop(PublisherGone(&loading));
        loading.add_written(BATCH_BYTES * 100);
    }
}
