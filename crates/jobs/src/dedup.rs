//! All duplicates that are there now, found and shared at once, for `pool dedup`.

use crate::job::JobCounts;
use crate::limits::BATCH_GAP;
use crate::trim::wait_until_free;
use onefold_store::{DedupMode, Lba, Ready, Result, Store, StoreErrorKind, Volume};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DedupTotals {
    /// What was found and released. A round is a volume gone through.
    pub counts: JobCounts,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// It was broken off before its end.
    pub was_broken_off: bool,
}

/// Does what deletions have left to do. Looks at every block that is dirty then, whatever interval,
/// rounds and paused jobs say: in all volumes whose dedup is offline, or in the one that is named
/// whatever its dedup. Then releases what is given up until nothing is, or as much as was at the end of looking where guests
/// give up more meanwhile, and returns once that is free. Takes turns with the background jobs, and rests for
/// nobody.
///
/// `progress(done, all)` counts blocks, anew in each of the up to four steps: rebuilding the index
/// if that is needed, deleting, looking, releasing. It can break the work off between batches.
///
/// # Errors
///
/// `NotFound` for a volume that does not exist; those of the disk and of the index.
pub fn dedup_now(
    store: &Store,
    volume: Option<&str>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<DedupTotals> {
    let began = Instant::now();
    let named = volume.map(|name| store.volume(name)).transpose()?;
    // Nothing can be shared before the end of these, so they cannot be broken off.
    store.rebuild_index_if_needed(&mut |done, all| {
        let _ = progress(done, all);
    })?;
    let deleted = store.finish_deletions(&mut |done, all| {
        let _ = progress(done, all);
    });
    let volumes = named.map_or_else(|| volumes_with_dedup(store), |volume| vec![volume]);
    let mut counts = JobCounts::default();
    let flow = match find_all(store, &volumes, &mut counts, progress) {
        Ok(ControlFlow::Continue(())) => collect_all(store, &mut counts, progress)?,
        Ok(broken) => broken,
        Err(error) if error.kind() == StoreErrorKind::NoSpace => {
            // What is released may be the room that the finder misses.
            let _ = collect_all(store, &mut counts, progress)?;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    wait_until_free(store)?;
    // A deletion that cannot go on keeps nothing from being shared.
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
        .filter(|volume| volume.options().dedup == DedupMode::Offline)
        .collect()
}

fn find_all(
    store: &Store,
    volumes: &[Arc<Volume>],
    counts: &mut JobCounts,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let all = volumes.iter().map(|volume| volume.dirty_blocks()).sum();
    for volume in volumes {
        let mut cursor = Lba(0);
        loop {
            let report = match store.dedup_batch(volume, &mut cursor, Ready::All) {
                Ok(report) => report,
                Err(error) if error.kind() == StoreErrorKind::Gone => break,
                Err(error) => return Err(error),
            };
            counts.add_batch(&report);
            // What guests wrote meanwhile is looked at too, but was not promised.
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
    let all = store.stat()?.queued_blocks;
    // The queue is first in, first out: these are the ones that were in it.
    while counts.released < all {
        let report = store.collect_batch()?;
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
