//! The thread that makes sure that the indexes are valid, then does deletions and releases dropped
//! references. The stores take turns, a step each.
//!
//! A rebuild of an index, and a shrinking of a pool, are one long step, so the other stores have their turns within it.

use crate::deletion::{Deletion, Deletions};
use crate::flushes::FlushTurns;
use crate::foreground::{Foreground, PacedJob};
use crate::free_space::{FreeSpaceStep, FreeSpaceWork};
use crate::handle::{JobHandle, Step};
use crate::job::JobCounts;
use crate::limits::{
    COLLECT_INTERVAL, COLLECT_INTERVAL_BUSY, COLLECTOR_SHARE_FLOOR, POLL_INTERVAL, TEND_PAUSE,
    WINDOW,
};
use crate::pacing::Pacer;
use crate::passes::{pause_after, retry_pause};
use crate::registry::JobRegistry;
use crate::shrink::{Shrunk, shrink_now};
use crate::store_jobs::{StoreJobs, StoreNumber};
use crate::thread::JobThread;
use onefold_store::{
    COLLECT_BATCH_BLOCKS, CollectReport, HitsHeld, Result, SpaceLevel, Store, StoreError,
    StoreErrorKind,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The collector's thread.
pub(crate) struct Collector {
    registry: Arc<JobRegistry>,
    thread: Arc<JobThread>,
    turns: Arc<FlushTurns>,
    foreground: Foreground,
    deletions: Deletions,
    /// The states of the stores, except the one whose turn it is.
    states: BTreeMap<StoreNumber, State>,
    /// The store with a long step in progress. The other stores have turns within it, but no long steps.
    long_step: Option<StoreNumber>,
}

/// The state of one store. It does not hold the store.
struct State {
    /// Whether the index may have to be rebuilt. Until this succeeds, nothing else is done for the store.
    rebuilds: bool,
    /// After a failure, nothing is done for the store before this time.
    not_before: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// Since when references gather for the next batch.
    gathers_since: Option<Instant>,
    /// Other groups of a shared pool held all blocks of the last batch.
    are_held: bool,
    deletion: Deletion,
    free_space: FreeSpaceWork,
    /// The store's jobs that could not work in the last turn.
    held_up: Vec<Arc<JobHandle>>,
}

impl State {
    fn new() -> Self {
        Self {
            rebuilds: true,
            not_before: None,
            failures: 0,
            are_held: false,
            gathers_since: None,
            deletion: Deletion::new(),
            free_space: FreeSpaceWork::new(),
            held_up: Vec::new(),
        }
    }

    /// Notes a failure, and leaves the store alone for some time.
    fn fail(&mut self, error: &StoreError) {
        self.not_before = Instant::now().checked_add(pause_after(error, &mut self.failures));
    }
}

/// The job of a batch. It waits for no turn in a pool that is short of space, nor before a deletion; nor if another pool is
/// short and has references to release, because the thread has to get there. Free space of all stores is preallocated
/// while it waits.
struct Paced<'a> {
    jobs: &'a StoreJobs,
    registry: &'a JobRegistry,
    free_space: &'a mut FreeSpaceWork,
    others: &'a mut BTreeMap<StoreNumber, State>,
}

impl PacedJob for Paced<'_> {
    fn may_work(&self) -> bool {
        self.jobs.collecting.may_work()
    }

    fn is_urgent(&self) -> bool {
        let mut stores = self.registry.all().into_iter();
        !has_room(self.jobs.store())
            || Deletions::are_urgent(self.jobs)
            || stores.any(|jobs| is_pressing(&jobs))
    }

    fn work_beside(&mut self) -> bool {
        let mut has_more = prepare_space(self.jobs.store(), self.free_space);
        for (number, state) in &mut *self.others {
            if let Some(jobs) = self.registry.get(*number) {
                has_more |= prepare_space(jobs.store(), &mut state.free_space);
            }
        }
        has_more
    }
}

/// Does one step of work on free space that guests need. Returns whether there may be more.
fn prepare_space(store: &Store, free_space: &mut FreeSpaceWork) -> bool {
    let step = free_space.step(store, false);
    step.unwrap_or_else(|error| {
        tracing::error!(%error, "tending to free space failed");
        FreeSpaceStep::Nothing
    }) == FreeSpaceStep::Done
}

/// Whether the pool has so much room that released blocks may become free later.
fn has_room(store: &Store) -> bool {
    matches!(store.space().level(), Ok(SpaceLevel::Ok))
}

/// Whether the pool is short of space, and releasing references may help.
fn is_pressing(jobs: &StoreJobs) -> bool {
    let queued = jobs.store().dedup().pending_release_blocks();
    !has_room(jobs.store()) && queued.is_ok_and(|queued| queued > 0) && jobs.collecting.may_work()
}

fn is_batch_whole(store: &Store) -> bool {
    let queued = store.dedup().pending_release_blocks();
    queued.is_ok_and(|queued| queued >= COLLECT_BATCH_BLOCKS)
}

impl Collector {
    pub(crate) fn new(
        registry: &Arc<JobRegistry>,
        thread: &Arc<JobThread>,
        turns: Arc<FlushTurns>,
        latency_budget: Duration,
    ) -> Self {
        let pacer = Pacer::new(latency_budget, COLLECTOR_SHARE_FLOOR);
        Self {
            registry: Arc::clone(registry),
            thread: Arc::clone(thread),
            turns,
            foreground: Foreground::new(registry, thread, pacer),
            deletions: Deletions::new(registry, thread, latency_budget),
            states: BTreeMap::new(),
            long_step: None,
        }
    }

    /// Runs until it is stopped.
    pub(crate) fn run(&mut self) {
        while !self.thread.is_stopping() {
            let changes = self.registry.changes();
            if self.take_turns() {
                continue;
            }
            // Paused jobs may be resumed, and stores may be added.
            let held_up: Vec<_> = self
                .states
                .values()
                .flat_map(|state| &state.held_up)
                .collect();
            self.thread.sleep_unless(POLL_INTERVAL, || {
                self.registry.changes() != changes || held_up.iter().any(|job| job.may_work())
            });
            self.foreground.was_idle();
            self.deletions.were_idle();
        }
    }

    /// Gives each store a turn, except one with a long step in progress. Returns whether there is more to do now.
    fn take_turns(&mut self) -> bool {
        let numbers = self.registry.numbers();
        self.states
            .retain(|number, _| numbers.binary_search(number).is_ok());
        let mut has_more = false;
        for number in numbers {
            if self.thread.is_stopping() {
                return false;
            }
            if self.long_step != Some(number)
                && let Some(jobs) = self.registry.get(number)
            {
                let mut state = self.states.remove(&number).unwrap_or_else(State::new);
                has_more |= self.turn(&jobs, &mut state);
                state.held_up = [&jobs.collecting, &jobs.deletion]
                    .into_iter()
                    .filter(|job| !job.may_work())
                    .cloned()
                    .collect();
                self.states.insert(number, state);
            }
        }
        has_more
    }

    /// Does the next step for a store. Returns whether there is more to do now.
    fn turn(&mut self, jobs: &StoreJobs, state: &mut State) -> bool {
        if state.not_before.is_some_and(|time| Instant::now() < time) {
            return false;
        }
        if state.rebuilds {
            return self.long_step.is_none() && self.rebuild_index(jobs, state);
        }
        if let Some(since) = state.gathers_since {
            if self.gathers(jobs, since, state.are_held) {
                return self.tend_free_space(jobs, state);
            }
            state.gathers_since = None;
        }
        let deletes = self.deletions.step(jobs, &mut state.deletion);
        if (deletes && !is_batch_whole(jobs.store())) || !jobs.collecting.begin() {
            return deletes || self.tend_free_space(jobs, state);
        }
        self.finish_shrinking(jobs);
        if !jobs.collecting.may_work() {
            jobs.collecting.end();
            return true;
        }
        if self.collect(jobs, state) {
            // Also while one whole batch follows the other.
            self.tend_free_space(jobs, state);
            state.gathers_since = Some(Instant::now());
        }
        true
    }

    /// Releases a batch of references. Returns whether it succeeded.
    fn collect(&mut self, jobs: &StoreJobs, state: &mut State) -> bool {
        let (store, job) = (jobs.store(), &jobs.collecting);
        let may_work = || job.may_work();
        let mut paced = Paced {
            jobs,
            registry: &self.registry,
            free_space: &mut state.free_space,
            others: &mut self.states,
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
                state.failures = 0;
                let report = report.unwrap_or_default();
                state.are_held = report.released == 0 && report.held > 0;
                end_batch(jobs, &report);
                self.foreground
                    .rest_after_unless(worked, &|| job.is_leaving());
                true
            }
            Err(error) => {
                job.fail(&error);
                state.fail(&error);
                // An unfinished repair leaves an index that has to be counted again.
                state.rebuilds = error.kind() == StoreErrorKind::Busy;
                false
            }
        }
    }

    /// Whether references that were released last at `since` still gather: until a batch is full or has waited long
    /// enough, because a batch costs the disk the same however few items it has. References to blocks that other groups
    /// hold gather however many they are.
    fn gathers(&self, jobs: &StoreJobs, since: Instant, are_held: bool) -> bool {
        since.elapsed() < self.gathering_time(jobs.store())
            && (are_held || !is_batch_whole(jobs.store()))
            && !Deletions::are_urgent(jobs)
    }

    /// How long references that fill less than a batch may gather.
    fn gathering_time(&self, store: &Store) -> Duration {
        if self.foreground.guests_are_at_rest() || !has_room(store) {
            COLLECT_INTERVAL
        } else {
            COLLECT_INTERVAL_BUSY
        }
    }

    /// Resumes an interrupted shrinking of the pool.
    fn finish_shrinking(&mut self, jobs: &StoreJobs) {
        let store = jobs.store();
        if self.long_step.is_some() || !matches!(store.space().shrinking_to(), Ok(Some(_))) {
            return;
        }
        let job = &jobs.collecting;
        let mut began = Instant::now();
        let shrunk = self.do_long_step(jobs, |collector, others| {
            shrink_now(store, &mut |_, _| {
                collector
                    .foreground
                    .rest_after_unless(began.elapsed(), &|| job.is_leaving());
                others.take_turns(collector, jobs);
                began = Instant::now();
                if job.may_work() {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        });
        match shrunk {
            Ok(Shrunk::Done | Shrunk::Cancelled | Shrunk::BrokenOff) => {}
            Ok(Shrunk::Stuck(left)) => tracing::error!(
                "the pool keeps its size: {left} blocks beyond the new end stay in use; run `pool check`"
            ),
            Err(error) => {
                tracing::error!(%error, "shrinking the pool failed");
                self.thread
                    .sleep_unless(retry_pause(1), || job.is_leaving());
            }
        }
    }

    /// Does a step of one store in which the others have turns.
    fn do_long_step<T>(
        &mut self,
        jobs: &StoreJobs,
        step: impl FnOnce(&mut Self, &mut TurnsWithin) -> T,
    ) -> T {
        self.long_step = Some(jobs.number());
        let done = step(self, &mut TurnsWithin(Instant::now()));
        self.long_step = None;
        done
    }

    /// Does one step of work on free space. Returns whether more can be done now. A paused collector gives nothing back;
    /// spare blocks are for guests, and are preallocated all the same.
    fn tend_free_space(&mut self, jobs: &StoreJobs, state: &mut State) -> bool {
        if self.thread.is_stopping() {
            return false;
        }
        let (store, job) = (jobs.store(), &jobs.collecting);
        let began = Instant::now();
        let may_give_back = job.begin();
        let guests_are_at_rest = self.foreground.guests_are_at_rest();
        let step = state.free_space.step(store, guests_are_at_rest);
        let more = match step {
            Ok(FreeSpaceStep::Done) => Ok(true),
            Ok(FreeSpaceStep::MayGiveBack(bytes)) if may_give_back => {
                store.space().give_back(bytes)
            }
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        };
        if may_give_back {
            job.end();
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
    /// else for the store. Returns whether it succeeded.
    fn rebuild_index(&mut self, jobs: &StoreJobs, state: &mut State) -> bool {
        let (store, rebuild) = (jobs.store(), &jobs.rebuild);
        let block_size = u64::from(store.block_size());
        let mut began = Instant::now();
        let mut done_before = 0;
        let rebuilt = self.do_long_step(jobs, |collector, others| {
            store.index().rebuild_if_needed(&mut |done, all| {
                let left_blocks = all.saturating_sub(done);
                rebuild.set_under_way(left_blocks);
                let step = Step {
                    bytes: done.saturating_sub(done_before) * block_size,
                    left_blocks,
                    has_more: true,
                };
                rebuild.advance(step, |counts| counts.scanned = done);
                done_before = done;
                collector
                    .foreground
                    .rest_after_unless(began.elapsed(), &|| rebuild.is_leaving());
                others.take_turns(collector, jobs);
                began = Instant::now();
            })
        });
        match rebuilt {
            Ok(is_new) => {
                let count = |counts: &mut JobCounts| counts.passes += u64::from(is_new);
                rebuild.end_batch(Step::default(), count);
                (state.rebuilds, state.failures) = (false, 0);
                let signal = self.thread.signal();
                signal.change(|| jobs.flags().set_index_ready());
                true
            }
            Err(error) => {
                rebuild.fail(&error);
                state.fail(&error);
                false
            }
        }
    }
}

/// The turns that other stores have within a long step of one, not more often than guests are looked at. Keeps when they
/// had the last one.
struct TurnsWithin(Instant);

impl TurnsWithin {
    fn take_turns(&mut self, collector: &mut Collector, jobs: &StoreJobs) {
        if self.0.elapsed() >= WINDOW && !jobs.flags().is_leaving() {
            collector.take_turns();
            self.0 = Instant::now();
        }
    }
}

fn end_batch(jobs: &StoreJobs, report: &CollectReport) {
    let step = Step {
        bytes: report.released * u64::from(jobs.store().block_size()),
        left_blocks: 0,
        has_more: report.released > 0,
    };
    jobs.collecting
        .end_batch(step, |counts| counts.add_collected(report));
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
