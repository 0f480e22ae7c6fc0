//! Finds and shares all present duplicates at once, for `pool dedup`.

use crate::job::JobCounts;
use crate::limits::BATCH_GAP;
use crate::trim::wait_until_free;
use onefold_store::{Lba, Ready, Result, Store, StoreErrorKind, Volume};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The result of `pool dedup`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DedupTotals {
    /// Duplicates found and references released. A pass is one scan of a volume.
    pub counts: JobCounts,
    /// The duration in seconds.
    pub seconds: f64,
    /// Whether the caller cancelled it before its end.
    pub was_broken_off: bool,
}

/// Finishes pending deletions. Then scans every block that is pending dedup, regardless of interval, rounds and paused
/// jobs: in all volumes whose dedup is offline, or in the given volume whatever its dedup. Then drains
/// the release queue, up to its length when scanning ended, and returns once those blocks are free. It
/// takes turns with the background jobs and is not throttled; while it runs, no job waits for an idle
/// processor.
///
/// `progress(done, all)` counts blocks, from zero in each of the up to four steps: rebuilding the
/// index if that is needed, deleting, scanning, releasing. It can cancel between batches.
///
/// # Errors
///
/// `NotFound` for a volume that does not exist; errors of the disk and of the index.
pub fn dedup_now(
    store: &Store,
    volume: Option<&str>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<DedupTotals> {
    let began = Instant::now();
    let _hurry = store.hurry_background();
    let named = volume.map(|name| store.volume(name)).transpose()?;
    // Nothing can be shared before these steps end, so they cannot be cancelled.
    store.index().rebuild_if_needed(&mut |done, all| {
        let _ = progress(done, all);
    })?;
    let deleted = store.deletions().finish(&mut |done, all| {
        let _ = progress(done, all);
    });
    let volumes = named.map_or_else(|| volumes_with_dedup(store), |volume| vec![volume]);
    let mut counts = JobCounts::default();
    let flow = match find_all(store, &volumes, &mut counts, progress) {
        Ok(ControlFlow::Continue(())) => collect_all(store, &mut counts, progress)?,
        Ok(broken) => broken,
        Err(error) if error.kind() == StoreErrorKind::NoSpace => {
            // The release may make the room that the finder lacks.
            let _ = collect_all(store, &mut counts, progress)?;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    wait_until_free(store)?;
    // A failed deletion does not prevent sharing.
    deleted?;
    Ok(DedupTotals {
        counts,
        seconds: began.elapsed().as_secs_f64(),
        was_broken_off: flow.is_break(),
    })
}

fn volumes_with_dedup(store: &Store) -> Vec<Arc<Volume>> {
    let volumes = store.volumes_to_share().into_iter();
    volumes
        .filter(|volume| volume.settings().dedup.is_on())
        .collect()
}

fn find_all(
    store: &Store,
    volumes: &[Arc<Volume>],
    counts: &mut JobCounts,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let all = volumes
        .iter()
        .map(|volume| volume.pending_dedup_blocks())
        .sum();
    for volume in volumes {
        let mut cursor = Lba(0);
        loop {
            let report = match store.dedup().find_batch(volume, &mut cursor, Ready::All) {
                Ok(report) => report,
                Err(error) if error.kind() == StoreErrorKind::Gone => break,
                Err(error) => return Err(error),
            };
            counts.add_batch(&report);
            // Blocks that guests write during the scan are scanned too, but this is not promised.
            if progress(counts.scanned.min(all), all).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if report.at_end {
                counts.passes += 1;
                break;
            }
            thread::sleep(BATCH_GAP);
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn collect_all(
    store: &Store,
    counts: &mut JobCounts,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    // As with references, claims made from now on are not waited for. The first call also settles a batch
    // that a crash left open, which may drop references.
    let claimed = store.dedup().claimed_blocks()?;
    let mut settled = 0;
    loop {
        let report = store.dedup().count_batch()?;
        counts.add_counted(&report);
        settled += report.items();
        if report.items() == 0 || settled >= claimed {
            break;
        }
        thread::sleep(BATCH_GAP);
    }
    let all = store.stat()?.pending_release_blocks;
    // The queue is first in, first out: these are the references that were in it.
    while counts.released < all {
        let report = store.dedup().collect_batch()?;
        counts.add_collected(&report);
        if report.released == 0 {
            break;
        }
        if progress(counts.released.min(all), all).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        thread::sleep(BATCH_GAP);
    }
    Ok(ControlFlow::Continue(()))
}
