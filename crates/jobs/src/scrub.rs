//! The scrub's thread: a step of the requested run of each store in turn, a rest, and so on. It also checks blocks that
//! guests could not read, and retries unreadable ones.
//!
//! A run belongs to the pool, not to the thread: an interrupted one is resumed automatically.

use crate::foreground::Foreground;
use crate::handle::Step;
use crate::limits::{LOOK_AGAIN_INTERVAL, POLL_INTERVAL, SCRUB_SHARE_FLOOR, WINDOW};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use crate::registry::JobRegistry;
use crate::store_jobs::StoreJobs;
use crate::thread::JobThread;
use onefold_store::{Pba, Result, ScrubRun, ScrubStatus, Store};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Runs until it is stopped.
pub(crate) fn run(registry: &Arc<JobRegistry>, thread: &Arc<JobThread>, latency_budget: Duration) {
    let pacer = Pacer::new(latency_budget, SCRUB_SHARE_FLOOR);
    let mut foreground = Foreground::new(registry, thread, pacer);
    let mut states = BTreeMap::new();
    while !thread.is_stopping() {
        let mut next = Next::Waits;
        registry.take_turns(
            &mut states,
            |_| Scrubbing::new(),
            |jobs, state| {
                next = next.min(state.turn(jobs, &mut foreground));
            },
        );
        match next {
            Next::Now => {}
            Next::In(pause) => thread.sleep(pause.min(POLL_INTERVAL)),
            Next::Waits => {
                thread.wait(POLL_INTERVAL);
                foreground.was_idle();
            }
        }
    }
    for jobs in registry.all() {
        save(jobs.store());
    }
}

/// Stores the progress of a run, so that it is resumed where it was.
pub(crate) fn save(store: &Store) {
    if let Err(error) = store.scrub().save() {
        tracing::warn!(%error, "cannot save the scrub's progress; after a restart it resumes somewhat earlier");
    }
}

/// When the next step of a run is due; the earliest is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Now,
    In(Duration),
    /// There is no run in progress, or it is paused.
    Waits,
}

/// The state of one store's scrub.
struct Scrubbing {
    run: ScrubRun,
    bound: RateBound,
    failures: u32,
    /// No step begins before this time.
    not_before: Instant,
    looked: Option<Instant>,
    looked_again: Instant,
    look_from: Pba,
    /// Blocks could not be marked as bad. That is tried again when blocks are looked at again.
    is_marking_late: bool,
}

impl Scrubbing {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            run: ScrubRun::default(),
            bound: RateBound::new(now),
            failures: 0,
            not_before: now,
            looked: None,
            looked_again: now,
            look_from: Pba(0),
            is_marking_late: false,
        }
    }

    /// Does one step, if one is due.
    fn turn(&mut self, jobs: &StoreJobs, foreground: &mut Foreground) -> Next {
        let pause = self.not_before.saturating_duration_since(Instant::now());
        if !pause.is_zero() {
            return Next::In(pause);
        }
        let (store, job) = (jobs.store(), &jobs.scrub);
        self.look_at_bad_blocks(store);
        let status = store.scrub().status().ok();
        let under_way = status.filter(|status| status.left_blocks > 0);
        if let Some(status) = &under_way {
            job.set_under_way(status.left_blocks);
        }
        let Some(status) = under_way.filter(|_| job.begin()) else {
            // Notes for the current window may be outdated when the run is resumed.
            self.run = ScrubRun::default();
            return Next::Waits;
        };
        self.step(jobs, foreground, &status);
        Next::Now
    }

    fn look_at_bad_blocks(&mut self, store: &Store) {
        let is_time = self.looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL);
        if is_time {
            self.looked = Some(Instant::now());
            if let Err(error) = store.scrub().look_at_suspects() {
                tracing::error!(%error, "cannot list unreadable blocks");
            }
        }
        let is_due = self.looked_again.elapsed() >= LOOK_AGAIN_INTERVAL;
        if is_due {
            self.looked_again = Instant::now();
            match store.scrub().look_at_unreadable(&mut self.look_from) {
                Ok(0) => {}
                Ok(good) => tracing::warn!("{good} blocks that could not be read are good again"),
                Err(error) => tracing::error!(%error, "cannot check bad blocks again"),
            }
        }
        if is_due || is_time && !self.is_marking_late {
            let marked = store.scrub().mark_for_all_groups(is_due);
            if let Err(error) = &marked {
                tracing::warn!("other groups cannot learn of bad blocks yet: {error}");
            }
            self.is_marking_late = marked.is_err();
        }
    }

    fn step(&mut self, jobs: &StoreJobs, foreground: &mut Foreground, status: &ScrubStatus) {
        let job = &jobs.scrub;
        let began = Instant::now();
        let pause = match jobs.store().scrub().step(&mut self.run) {
            Ok(report) => {
                self.failures = 0;
                let step = Step {
                    bytes: report.bytes,
                    left_blocks: status.left_blocks.saturating_sub(report.passed_blocks),
                    has_more: !report.is_over,
                };
                job.end_batch(step, |counts| counts.add_scrubbed(&report));
                foreground.rest_after_unless(began.elapsed(), &|| job.is_leaving());
                self.bound.pause_after(report.bytes, status, Instant::now())
            }
            Err(error) => {
                self.failures += 1;
                job.fail(&error);
                retry_pause(self.failures)
            }
        };
        let now = Instant::now();
        self.not_before = now.checked_add(pause).unwrap_or(now + LOOK_AGAIN_INTERVAL);
    }
}

/// Scrubs to the end of the run in progress, for a process that has the pool to itself.
/// `progress(done, all)` counts blocks of the pool, and can cancel between steps. Returns whether
/// it cancelled.
///
/// # Errors
///
/// Errors of [`Scrub::step`](onefold_store::Scrub::step).
pub fn scrub_now(
    store: &Store,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    store.index().rebuild_if_needed(&mut |_, _| {})?;
    let (mut scrub, mut bound) = (ScrubRun::default(), RateBound::new(Instant::now()));
    let all = store.scrub().status()?.left_blocks;
    loop {
        let status = store.scrub().status()?;
        let report = store.scrub().step(&mut scrub)?;
        let left = status.left_blocks.saturating_sub(report.passed_blocks);
        if progress(all.saturating_sub(left), all).is_break() {
            store.scrub().save()?;
            return Ok(ControlFlow::Break(()));
        }
        if report.is_over {
            return Ok(ControlFlow::Continue(()));
        }
        thread::sleep(bound.pause_after(report.bytes, &status, Instant::now()));
    }
}

/// Limits reads to a number of bytes per second. There is no clock in here.
struct RateBound {
    /// The time at which the rate allows the bytes read so far.
    due: Instant,
}

impl RateBound {
    fn new(now: Instant) -> Self {
        Self { due: now }
    }

    /// The pause after reading this many bytes. At most a tenth of a second of unused time can be
    /// made up for, which covers the duration of the reading itself.
    fn pause_after(&mut self, bytes: u64, status: &ScrubStatus, now: Instant) -> Duration {
        if status.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let time = bytes as f64 / status.bytes_per_second as f64;
        let pause = Duration::try_from_secs_f64(time).unwrap_or(Duration::MAX);
        let began = self.due.max(now.checked_sub(WINDOW).unwrap_or(now));
        self.due = began.checked_add(pause).unwrap_or(began);
        self.due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_over_many_steps() {
        let status = |bytes_per_second| ScrubStatus {
            pool_blocks: 1000,
            next_block: 0,
            left_blocks: 1000,
            bytes_per_second,
            ended_unix_seconds: 0,
            bad_blocks: 0,
        };
        let start = Instant::now();
        let mut bound = RateBound::new(start);
        assert_eq!(
            bound.pause_after(1 << 30, &status(0), start),
            Duration::ZERO
        );
        let (mut now, work) = (start, Duration::from_millis(3));
        for _ in 0..1000 {
            now += work;
            now += bound.pause_after(4 << 20, &status(200 << 20), now);
        }
        let took = now.duration_since(start).as_secs_f64();
        assert!((19.9..20.3).contains(&took), "{took}");
    }
}
