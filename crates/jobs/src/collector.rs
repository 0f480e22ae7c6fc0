//! The thread that makes sure that the index is valid, then does deletions and releases dropped
//! references.

use crate::flushes::FlushTurns;
use crate::foreground::{Foreground, PacedJob};
use crate::free_space::{FreeSpaceStep, FreeSpaceWork};
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::{JobCounts, JobKind, JobState, JobStatus};
use crate::limits::{
    COLLECT_INTERVAL, COLLECT_INTERVAL_BUSY, COLLECTOR_SHARE_FLOOR, DELETION_SHARE_FLOOR,
    DELETION_SHARE_MAX, POLL_INTERVAL, TEND_PAUSE,
};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::shrink::{Shrunk, shrink_now};
use crate::thread::JobThread;
use onefold_store::{
    COLLECT_BATCH_BLOCKS, HitsHeld, PoolStat, Result, SpaceLevel, Store, StoreErrorKind,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) static COLLECTOR: JobSpec = JobSpec {
    kind: JobKind::Collector,
    name: "the collector",
    needs_index: false,
    is_always_listed: true,
    backlog_blocks: |stat| stat.pending_release_blocks,
};

/// The deletions in progress are one job. The store keeps the failure of each deletion.
pub(crate) static DELETION: JobSpec = JobSpec {
    kind: JobKind::Deletion,
    name: "the deletion",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |stat| {
        let possible = stat
            .deletions
            .iter()
            .filter(|deletion| deletion.failure.is_none());
        let possible = possible.filter(|deletion| deletion.needed_by.is_empty());
        possible.map(|deletion| deletion.own_blocks).sum()
    },
};

pub(crate) static REBUILD: JobSpec = JobSpec {
    kind: JobKind::Rebuild,
    name: "the rebuild of the index",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

/// A status line for each failed deletion.
pub(crate) fn failed_deletions(stat: &PoolStat) -> impl Iterator<Item = JobStatus> {
    stat.deletions.iter().filter_map(|deletion| {
        Some(JobStatus {
            kind: JobKind::Deletion,
            volume: Some(deletion.name.clone()),
            state: JobState::Failed,
            message: Some(deletion.failure.clone()?),
            counts: JobCounts::default(),
            backlog_blocks: deletion.own_blocks,
            bytes_per_second: 0,
        })
    })
}

/// The collector's thread and its jobs.
pub(crate) struct Collector {
    store: Arc<Store>,
    thread: Arc<JobThread>,
    turns: Arc<FlushTurns>,
    foreground: Foreground,
    collector: Arc<JobHandle>,
    deletions: Deletions,
    rebuild: Arc<JobHandle>,
    free_space: FreeSpaceWork,
}

/// The job of a batch. It waits for no turn in a pool that is short of space, nor before a deletion. Free space is
/// preallocated while it waits.
struct Paced<'a> {
    store: &'a Store,
    job: &'a JobHandle,
    deletions: &'a Deletions,
    free_space: &'a mut FreeSpaceWork,
}

impl PacedJob for Paced<'_> {
    fn may_work(&self) -> bool {
        self.job.may_work()
    }

    fn is_urgent(&self) -> bool {
        !has_room(self.store) || self.deletions.is_urgent(self.store)
    }

    fn work_beside(&mut self) -> bool {
        let step = self.free_space.step(self.store, false);
        step.unwrap_or_else(|error| {
            tracing::error!(%error, "tending to free space failed");
            FreeSpaceStep::Nothing
        }) == FreeSpaceStep::Done
    }
}

/// Whether the pool has so much room that released blocks may become free later.
fn has_room(store: &Store) -> bool {
    matches!(store.space().level(), Ok(SpaceLevel::Ok))
}

/// The deletion job. It has a pacer of its own, so deletions yield to guests independently of the
/// collector.
struct Deletions {
    job: Arc<JobHandle>,
    foreground: Foreground,
    /// When failed deletions are retried.
    retry: Instant,
}

impl Collector {
    pub(crate) fn new(
        store: &Arc<Store>,
        [collector, deletion, rebuild]: [Arc<JobHandle>; 3],
        turns: Arc<FlushTurns>,
        latency_budget: Duration,
    ) -> Self {
        let thread = Arc::clone(collector.thread());
        let pacer = Pacer::new(latency_budget, DELETION_SHARE_FLOOR).at_most(DELETION_SHARE_MAX);
        let deletions = Deletions {
            job: deletion,
            foreground: Foreground::new(store, &thread, pacer),
            retry: Instant::now(),
        };
        let pacer = Pacer::new(latency_budget, COLLECTOR_SHARE_FLOOR);
        Self {
            store: Arc::clone(store),
            foreground: Foreground::new(store, &thread, pacer),
            thread,
            turns,
            collector,
            deletions,
            rebuild,
            free_space: FreeSpaceWork::new(),
        }
    }

    /// Runs until it is stopped.
    pub(crate) fn run(&mut self) {
        self.rebuild_index();
        let mut failures = 0;
        while !self.thread.is_stopping() {
            let deletes = self.deletions.step(&self.store);
            if (deletes && !self.is_batch_whole()) || !self.collector.begin() {
                if !deletes && !self.tend_free_space_once() {
                    self.thread.wait(POLL_INTERVAL);
                }
                continue;
            }
            self.finish_shrinking();
            if !self.collector.may_work() {
                self.collector.end();
                continue;
            }
            if self.collect(&mut failures) {
                // Also while one whole batch follows the other.
                self.tend_free_space_once();
                self.let_gather();
                self.deletions.foreground.was_idle();
            }
        }
    }

    /// Releases a batch of references. Returns whether it worked.
    fn collect(&mut self, failures: &mut u32) -> bool {
        let (store, job) = (&*self.store, &*self.collector);
        let may_work = || job.may_work();
        let mut paced = Paced {
            store,
            job,
            deletions: &self.deletions,
            free_space: &mut self.free_space,
        };
        let (collected, worked) = self.foreground.in_pieces(&self.turns, &mut paced, |pace| {
            let held = count_most_claims(store, &may_work)?;
            match held {
                _ if !may_work() => Ok(None),
                None => store.dedup().collect_batch_paced(pace),
                // Hits are held back until the batch has ended.
                Some(_held) => store.dedup().collect_batch().map(Some),
            }
        });
        match collected {
            Ok(report) => {
                *failures = 0;
                let report = report.unwrap_or_default();
                let step = Step {
                    bytes: report.released * u64::from(self.store.block_size()),
                    left_blocks: 0,
                    has_more: report.released > 0,
                };
                self.collector
                    .end_batch(step, |counts| counts.add_collected(&report));
                self.foreground.rest_after(worked);
                true
            }
            Err(error) => {
                *failures += 1;
                self.collector.fail(&error);
                self.thread.sleep(retry_pause(*failures));
                // An unfinished repair leaves an index that has to be counted again.
                if error.kind() == StoreErrorKind::Busy {
                    self.rebuild_index();
                }
                false
            }
        }
    }

    fn is_batch_whole(&self) -> bool {
        let queued = self.store.dedup().pending_release_blocks();
        queued.is_ok_and(|queued| queued >= COLLECT_BATCH_BLOCKS)
    }

    /// Resumes an interrupted shrinking of the pool.
    fn finish_shrinking(&mut self) {
        if !matches!(self.store.space().shrinking_to(), Ok(Some(_))) {
            return;
        }
        let mut began = Instant::now();
        let shrunk = shrink_now(&self.store, &mut |_, _| {
            self.foreground.rest_after(began.elapsed());
            began = Instant::now();
            if self.collector.may_work() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match shrunk {
            Ok(Shrunk::Done | Shrunk::Cancelled | Shrunk::BrokenOff) => {}
            Ok(Shrunk::Stuck(left)) => tracing::error!(
                "the pool keeps its size: {left} blocks beyond the new end stay in use; run `pool check`"
            ),
            Err(error) => {
                tracing::error!(%error, "shrinking the pool failed");
                self.thread.sleep(retry_pause(1));
            }
        }
    }

    /// Waits until a batch is full or has waited long enough: a batch costs the disk the same
    /// however few items it has.
    fn let_gather(&mut self) {
        let began = Instant::now();
        while !self.thread.is_stopping()
            && began.elapsed() < self.gathering_time()
            && !self.is_batch_whole()
            && !self.deletions.is_urgent(&self.store)
        {
            self.tend_free_space(Instant::now() + POLL_INTERVAL);
            self.foreground.was_idle();
        }
    }

    /// How long references that fill less than a batch may gather.
    fn gathering_time(&self) -> Duration {
        if self.foreground.guests_are_at_rest() || !has_room(&self.store) {
            COLLECT_INTERVAL
        } else {
            COLLECT_INTERVAL_BUSY
        }
    }

    /// Preallocates spare blocks, and gives others back to the host, until `until`.
    fn tend_free_space(&mut self, until: Instant) {
        let left = || until.saturating_duration_since(Instant::now());
        while !left().is_zero() && self.tend_free_space_once() {}
        self.thread.sleep(left());
    }

    /// Does one step of work on free space. Returns whether more can be done now. A paused collector gives nothing back;
    /// spare blocks are for guests, and are preallocated all the same.
    fn tend_free_space_once(&mut self) -> bool {
        if self.thread.is_stopping() {
            return false;
        }
        let began = Instant::now();
        let may_give_back = self.collector.begin();
        let guests_are_at_rest = self.foreground.guests_are_at_rest();
        let step = self.free_space.step(&self.store, guests_are_at_rest);
        let more = match step {
            Ok(FreeSpaceStep::Done) => Ok(true),
            Ok(FreeSpaceStep::MayGiveBack(bytes)) if may_give_back => {
                self.store.space().give_back(bytes)
            }
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        };
        if may_give_back {
            self.collector.end();
        }
        match more {
            Ok(true) => {
                self.foreground
                    .rest_if_needed_after(began.elapsed(), TEND_PAUSE);
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::error!(%error, "tending to free space failed");
                false
            }
        }
    }

    /// Rebuilds the index if needed. Until this succeeds, this thread and the finder do nothing
    /// else.
    fn rebuild_index(&mut self) {
        let block_size = u64::from(self.store.block_size());
        let mut failures = 0;
        while !self.thread.is_stopping() {
            let mut began = Instant::now();
            let mut done_before = 0;
            let rebuilt = self.store.index().rebuild_if_needed(&mut |done, all| {
                let left_blocks = all.saturating_sub(done);
                self.rebuild.set_under_way(left_blocks);
                let step = Step {
                    bytes: done.saturating_sub(done_before) * block_size,
                    left_blocks,
                    has_more: true,
                };
                self.rebuild.advance(step, |counts| counts.scanned = done);
                done_before = done;
                self.foreground.rest_after(began.elapsed());
                began = Instant::now();
            });
            match rebuilt {
                Ok(is_new) => {
                    let count = |counts: &mut JobCounts| counts.passes += u64::from(is_new);
                    self.rebuild.end_batch(Step::default(), count);
                    let signal = self.thread.signal();
                    return signal.change(|flags| flags.is_index_ready = true);
                }
                Err(error) => {
                    failures += 1;
                    self.rebuild.fail(&error);
                    self.thread.sleep(retry_pause(failures));
                }
            }
        }
    }
}

/// Counts claims down to one batch if references wait to be released. The release itself waits for the remaining claims
/// and cannot be stopped or paused, so few should remain. Hits still make claims until this has counted as many as
/// existed at the start; then it holds hits back, and the returned guard keeps holding them.
fn count_most_claims<'a>(
    store: &'a Store,
    may_work: &dyn Fn() -> bool,
) -> Result<Option<HitsHeld<'a>>> {
    let mut held = None;
    if store.dedup().pending_release_blocks()? == 0 {
        return Ok(held);
    }
    let before = store.dedup().claimed_blocks()?;
    let mut counted = 0;
    while store.dedup().claimed_blocks()? > COLLECT_BATCH_BLOCKS && may_work() {
        if counted >= before && held.is_none() {
            held = Some(store.dedup().hold_hits()?);
        }
        match store.dedup().count_batch_at_once()?.items() {
            0 => break,
            more => counted += more,
        }
    }
    Ok(held)
}

impl Deletions {
    /// Does one step of a deletion, and returns whether more is to do. A failed deletion is retried
    /// only after all others are done, and not before `retry`.
    fn step(&mut self, store: &Store) -> bool {
        let Some(failures) = store.deletions().next_failures() else {
            return false;
        };
        if (failures > 0 && Instant::now() < self.retry) || !self.job.begin() {
            return false;
        }
        let began = Instant::now();
        let done = store.deletions().step();
        let blocks = done.as_ref().ok().copied().flatten();
        let step = Step {
            bytes: blocks.unwrap_or(0) * u64::from(store.block_size()),
            left_blocks: 0,
            has_more: blocks.is_some(),
        };
        self.job
            .end_batch(step, |counts| counts.deleted += blocks.unwrap_or(0));
        match done {
            Ok(blocks) => {
                self.foreground.rest_after(began.elapsed());
                blocks.is_some()
            }
            // The deletion may wait for the next batch of the collector. Other deletions can
            // proceed without it.
            Err(_) => {
                self.retry = Instant::now() + retry_pause(failures + 1);
                store.deletions().next_failures() == Some(0)
            }
        }
    }

    /// Whether a deletion that has not failed is pending.
    fn is_urgent(&self, store: &Store) -> bool {
        self.job.may_work() && store.deletions().next_failures() == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::new_store;
    use onefold_store::{Blocking, DedupMode, Lba, Ready, Volume, VolumeOptions, VolumeSettings};
    use std::cell::Cell;

    const BLOCK: u64 = 4096;
    const CLAIMED: u64 = 40_000;

    /// A store with many claims on one block, and a reference to release.
    fn claimed() -> (Arc<Store>, Arc<Volume>) {
        let (_, store) = new_store(256 << 20);
        let inline = VolumeOptions::new(1 << 30).with(VolumeSettings {
            dedup: DedupMode::Inline,
            ..VolumeSettings::default()
        });
        for (name, options) in [("a", &VolumeOptions::new(1 << 20)), ("b", &inline)] {
            store.create_volume(name, options).unwrap();
        }
        let (published, volume) = (store.volume("a").unwrap(), store.volume("b").unwrap());
        published.write(0, &[7; 8192], Blocking::Yes).unwrap();
        let batch = store
            .dedup()
            .find_batch(&published, &mut Lba(0), Ready::All);
        assert_eq!(batch.unwrap().scanned, 2);
        write(&volume, 0, CLAIMED);
        published.write(0, &[8; 4096], Blocking::Yes).unwrap();
        assert_eq!(store.dedup().claimed_blocks().unwrap(), CLAIMED);
        assert_eq!(store.dedup().pending_release_blocks().unwrap(), 1);
        (store, volume)
    }

    fn write(volume: &Volume, first: u64, blocks: u64) {
        let end = first + blocks;
        for lba in (first..end).step_by(1024) {
            let data = vec![7; (1024.min(end - lba) * BLOCK) as usize];
            volume.write(lba * BLOCK, &data, Blocking::Yes).unwrap();
        }
    }

    fn held_blocks(volume: &Volume) -> u64 {
        volume.inline_stat().refused.held_blocks
    }

    #[test]
    fn writes_make_claims_while_the_collector_has_others_counted() {
        let (store, volume) = claimed();
        let batches = Cell::new(0);
        let may_work = || {
            write(&volume, CLAIMED + batches.get(), 1);
            batches.set(batches.get() + 1);
            true
        };
        let held = count_most_claims(&store, &may_work).unwrap();
        assert!(held.is_none() && batches.get() == 2);
        assert_eq!(held_blocks(&volume), 0);
        assert!(store.dedup().claimed_blocks().unwrap() <= COLLECT_BATCH_BLOCKS);
        assert_eq!(store.dedup().collect_batch().unwrap().released, 1);
    }

    #[test]
    fn writes_that_make_claims_as_fast_as_they_are_counted_are_stopped() {
        let (store, volume) = claimed();
        let next = Cell::new(CLAIMED);
        let may_work = || {
            if held_blocks(&volume) == 0 {
                write(&volume, next.get(), COLLECT_BATCH_BLOCKS);
                next.set(next.get() + COLLECT_BATCH_BLOCKS);
            }
            true
        };
        let held = count_most_claims(&store, &may_work).unwrap();
        assert!(held.is_some() && held_blocks(&volume) > 0);
        assert_eq!(store.dedup().collect_batch().unwrap().released, 1);
        drop(held);
        let before = held_blocks(&volume);
        write(&volume, next.get(), 1);
        assert_eq!(held_blocks(&volume), before);
    }

    #[test]
    fn the_collector_can_be_stopped_while_it_has_claims_counted() {
        let (store, _volume) = claimed();
        let batches = Cell::new(0);
        let may_work = || batches.replace(batches.get() + 1) == 0;
        assert!(count_most_claims(&store, &may_work).unwrap().is_none());
        let left = store.dedup().claimed_blocks().unwrap();
        assert_eq!(left, CLAIMED - COLLECT_BATCH_BLOCKS);
    }
}
