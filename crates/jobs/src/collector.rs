//! The thread that makes sure that the index is valid, then does deletions and releases dropped
//! references.

use crate::foreground::Foreground;
use crate::limits::{
    COLLECT_INTERVAL, COLLECTOR_SHARE_FLOOR, DELETION_SHARE_FLOOR, DELETION_SHARE_MAX,
    GIVE_BACK_BYTES, GIVE_BACK_PAUSE, POLL_INTERVAL,
};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::registry::{JobRegistry, WorkerKind};
use crate::shrink::{Shrunk, shrink_now};
use onefold_store::{COLLECT_BATCH_BLOCKS, Store, StoreErrorKind};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs until the job registry stops it.
pub(crate) fn run(store: &Arc<Store>, registry: &Arc<JobRegistry>, latency_budget: Duration) {
    let pacer = Pacer::new(latency_budget, COLLECTOR_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, registry, WorkerKind::Collector, pacer);
    let pacer = Pacer::new(latency_budget, DELETION_SHARE_FLOOR).at_most(DELETION_SHARE_MAX);
    let mut deletions = Foreground::new(store, registry, WorkerKind::Collector, pacer);
    rebuild_index(store, registry, &mut foreground);
    let mut failures = 0;
    let mut retry = Instant::now();
    while !registry.is_stopping() {
        let deletes = delete(store, registry, &mut deletions, &mut retry);
        let has_batch = is_batch_whole(store);
        if (deletes && !has_batch) || !registry.begin_collect() {
            if !deletes {
                registry.wait(POLL_INTERVAL);
            }
            continue;
        }
        finish_shrinking(store, registry, &mut foreground);
        let began = Instant::now();
        match store.collect_batch() {
            Ok(report) => {
                failures = 0;
                registry.collected(&report, store.block_size());
                foreground.rest_after(began.elapsed());
                let_gather(store, registry, &mut foreground);
                deletions.was_idle();
            }
            Err(error) => {
                failures += 1;
                registry.collect_failed(&error);
                registry.sleep(retry_pause(failures));
                // A repair that did not get to its end leaves an index to be counted again.
                if error.kind() == StoreErrorKind::Busy {
                    rebuild_index(store, registry, &mut foreground);
                }
            }
        }
    }
}

/// Does a step of the pending deletions. Returns whether there is more. Failed deletions are
/// retried once no other is left, and not before `retry`.
fn delete(
    store: &Store,
    registry: &JobRegistry,
    foreground: &mut Foreground,
    retry: &mut Instant,
) -> bool {
    let Some(failures) = store.next_deletion_failures() else {
        return false;
    };
    if (failures > 0 && Instant::now() < *retry) || !registry.begin_delete() {
        return false;
    }
    let began = Instant::now();
    let done = store.deletion_step();
    registry.deleted(&done, store.block_size());
    match done {
        Ok(blocks) => {
            foreground.rest_after(began.elapsed());
            blocks.is_some()
        }
        // The collector may do next what the deletion waits for; other deletions need not wait for
        // that.
        Err(_) => {
            *retry = Instant::now() + retry_pause(failures + 1);
            store.next_deletion_failures() == Some(0)
        }
    }
}

fn is_batch_whole(store: &Store) -> bool {
    let queued = store.queued_blocks();
    queued.is_ok_and(|queued| queued >= COLLECT_BATCH_BLOCKS)
}

/// Resumes an interrupted shrinking of the pool.
fn finish_shrinking(store: &Store, registry: &JobRegistry, foreground: &mut Foreground) {
    if !matches!(store.shrinking_to(), Ok(Some(_))) {
        return;
    }
    let mut began = Instant::now();
    let shrunk = shrink_now(store, &mut |_, _| {
        foreground.rest_after(began.elapsed());
        began = Instant::now();
        match registry.begin_collect() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    match shrunk {
        Ok(Shrunk::Done | Shrunk::Cancelled | Shrunk::BrokenOff) => {}
        Ok(Shrunk::Stuck(left)) => tracing::error!(
            "the pool keeps its size: {left} blocks beyond the new end stay in use; run `pool check`"
        ),
        Err(error) => {
            tracing::error!(%error, "shrinking the pool failed");
            registry.sleep(retry_pause(1));
        }
    }
}

/// A batch costs the disk the same however few items it has, so it waits until it is full or has
/// waited long enough.
fn let_gather(store: &Store, registry: &JobRegistry, foreground: &mut Foreground) {
    let began = Instant::now();
    while !registry.is_stopping()
        && began.elapsed() < COLLECT_INTERVAL
        && !is_batch_whole(store)
        && !registry.may_delete_now(store)
    {
        give_back(store, registry, foreground, Instant::now() + POLL_INTERVAL);
        foreground.was_idle();
    }
}

/// Until then gives free space back to the host, a little at a time while guests are busy: a hole
/// in the pool's file keeps all writes waiting while it is made.
fn give_back(store: &Store, registry: &JobRegistry, foreground: &mut Foreground, until: Instant) {
    let left = || until.saturating_duration_since(Instant::now());
    while !left().is_zero() && !registry.is_stopping() && registry.begin_collect() {
        let more = store.give_back(GIVE_BACK_BYTES);
        registry.gave_back();
        match more {
            Ok(true) if foreground.guests_are_idle() => {}
            Ok(true) => registry.sleep(GIVE_BACK_PAUSE.min(left())),
            Ok(false) => break,
            Err(error) => {
                tracing::error!(%error, "discarding free blocks failed");
                break;
            }
        }
        foreground.was_idle();
    }
    registry.sleep(left());
}

/// Until it has worked, neither thread does anything else.
fn rebuild_index(store: &Store, registry: &JobRegistry, foreground: &mut Foreground) {
    let block_size = store.block_size();
    let mut failures = 0;
    while !registry.is_stopping() {
        let mut began = Instant::now();
        let rebuilt = store.rebuild_index_if_needed(&mut |done_blocks, all_blocks| {
            registry.rebuilding(done_blocks, all_blocks, block_size);
            foreground.rest_after(began.elapsed());
            began = Instant::now();
        });
        match rebuilt {
            Ok(_) => return registry.set_index_ready(),
            Err(error) => {
                failures += 1;
                registry.rebuild_failed(&error);
                registry.sleep(retry_pause(failures));
            }
        }
    }
}
