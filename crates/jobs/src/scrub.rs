//! The scrub's thread: a step of the requested run, a rest, and so on. It also checks blocks that
//! guests could not read, and retries unreadable ones.
//!
//! A run belongs to the pool, not to the thread: an interrupted one is resumed automatically.

use crate::foreground::Foreground;
use crate::handle::{JobHandle, JobSpec, Step};
use crate::job::JobKind;
use crate::limits::{LOOK_AGAIN_INTERVAL, POLL_INTERVAL, SCRUB_SHARE_FLOOR, WINDOW};
use crate::pacing::Pacer;
use crate::passes::retry_pause;
use onefold_store::{Pba, Result, ScrubRun, ScrubStatus, Store};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) static SCRUB: JobSpec = JobSpec {
    kind: JobKind::Scrub,
    name: "the scrub",
    needs_index: true,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

/// Runs until it is stopped.
pub(crate) fn run(store: &Arc<Store>, job: &JobHandle, latency_budget: Duration) {
    let thread = job.thread();
    let pacer = Pacer::new(latency_budget, SCRUB_SHARE_FLOOR);
    let mut foreground = Foreground::new(store, thread, pacer);
    let (mut scrub, mut bound) = (ScrubRun::default(), RateBound::new(Instant::now()));
    let mut failures = 0;
    let mut looked = None;
    let (mut looked_again, mut look_from) = (Instant::now(), Pba(0));
    while !thread.is_stopping() {
        if looked.is_none_or(|at: Instant| at.elapsed() >= POLL_INTERVAL) {
            looked = Some(Instant::now());
            if let Err(error) = store.scrub().look_at_suspects() {
                tracing::error!(%error, "cannot list unreadable blocks");
            }
        }
        if looked_again.elapsed() >= LOOK_AGAIN_INTERVAL {
            looked_again = Instant::now();
            match store.scrub().look_at_unreadable(&mut look_from) {
                Ok(0) => {}
                Ok(good) => tracing::warn!("{good} blocks that could not be read are good again"),
                Err(error) => tracing::error!(%error, "cannot check bad blocks again"),
            }
        }
        let status = store.scrub().status().ok();
        let under_way = status.filter(|status| status.left_blocks > 0);
        if let Some(status) = &under_way {
            job.set_under_way(status.left_blocks);
        }
        let Some(status) = under_way.filter(|_| job.begin()) else {
            // Notes for the current window may be outdated when the run is resumed.
            scrub = ScrubRun::default();
            thread.wait(POLL_INTERVAL);
            foreground.was_idle();
            continue;
        };
        let began = Instant::now();
        match store.scrub().step(&mut scrub) {
            Ok(report) => {
                failures = 0;
                let step = Step {
                    bytes: report.bytes,
                    left_blocks: status.left_blocks.saturating_sub(report.passed_blocks),
                    has_more: !report.is_over,
                };
                job.end_batch(step, |counts| counts.add_scrubbed(&report));
                foreground.rest_after(began.elapsed());
                let pause = bound.pause_after(report.bytes, &status, Instant::now());
                thread.sleep(pause);
            }
            Err(error) => {
                failures += 1;
                job.fail(&error);
                thread.sleep(retry_pause(failures));
            }
        }
    }
    if let Err(error) = store.scrub().save() {
        tracing::warn!(%error, "cannot save the scrub's progress; after a restart it resumes somewhat earlier");
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
