//! The clock of [`crate::pacing`]: measures guests' requests, and rests. Guests are those of all stores
//! (see [`crate::latency`]).

use crate::flushes::FlushTurns;
use crate::latency::GuestCounts;
use crate::limits::{
    BATCH_GAP, PIECE_BYTES, PIECE_BYTES_IDLE, PIECE_REST_FACTOR, PIECE_REST_MAX, PIECE_REST_MIN,
    REST_MIN, TEND_PAUSE, WINDOW,
};
use crate::pacing::{Pacer, Window};
use crate::registry::JobRegistry;
use crate::thread::JobThread;
use onefold_store::{Pace, Pacing};
use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measures guests' requests for a job's thread, and rests so that guests go first.
pub(crate) struct Foreground {
    registry: Arc<JobRegistry>,
    thread: Arc<JobThread>,
    pacer: Pacer,
    /// The start of the current window: before a batch.
    window_start: Mark,
    /// Rests that were too short to take, saved up.
    rest_owed: Duration,
}

/// A job whose batches rest.
pub(crate) trait PacedJob {
    /// Whether the batch may continue. Takes no lock of the registry.
    fn may_work(&self) -> bool;

    /// Whether the batch must not wait for a turn to flush the device.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Does a little other work while the batch waits for its turn. Returns whether there may be more.
    fn work_beside(&mut self) -> bool {
        false
    }

    /// Called after each rest.
    fn rested(&mut self, _guests_are_over_budget: bool) {}
}

/// The pace of a batch that is read in pieces.
struct Pieces<'a> {
    foreground: &'a mut Foreground,
    turns: &'a FlushTurns,
    job: &'a mut dyn PacedJob,
    /// The end of the last rest.
    began: Instant,
    is_first: bool,
}

impl Pieces<'_> {
    fn rested(&mut self) {
        self.began = Instant::now();
        self.job.rested(self.foreground.pacer.is_over_budget());
    }
}

impl Pacing for Pieces<'_> {
    fn next_piece(&mut self) -> ControlFlow<(), u64> {
        let bytes = if mem::take(&mut self.is_first) {
            self.foreground.piece_bytes()
        } else {
            let worked = self.began.elapsed();
            self.foreground.rest_between_pieces(worked, self.job)
        };
        self.rested();
        if self.job.may_work() {
            ControlFlow::Continue(bytes)
        } else {
            ControlFlow::Break(())
        }
    }

    fn before_flushes(&mut self) -> ControlFlow<()> {
        let may_work = self.foreground.wait_for_turn(self.turns, self.job);
        self.rested();
        if may_work {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

/// A point in time, with the counts of requests answered before it.
struct Mark {
    time: Instant,
    counts: GuestCounts,
}

impl Mark {
    fn now(registry: &JobRegistry) -> Self {
        Self {
            time: Instant::now(),
            counts: GuestCounts::now(registry),
        }
    }

    fn window_until(&self, end: &Self) -> Window {
        let length = end.time.saturating_duration_since(self.time);
        end.counts.window_since(&self.counts, length)
    }
}

impl Foreground {
    pub(crate) fn new(registry: &Arc<JobRegistry>, thread: &Arc<JobThread>, pacer: Pacer) -> Self {
        Self {
            window_start: Mark::now(registry),
            registry: Arc::clone(registry),
            thread: Arc::clone(thread),
            pacer,
            rest_owed: Duration::ZERO,
        }
    }

    /// Rests after a batch that took `worked`, as long as guests need.
    pub(crate) fn rest_after(&mut self, worked: Duration) {
        self.rest_after_unless(worked, &|| false);
    }

    /// Rests after a batch that took `worked` only if guests need it, and then for at least `rest_min`. Short rests
    /// are saved up and taken together.
    pub(crate) fn rest_if_needed_after(&mut self, worked: Duration, rest_min: Duration) {
        self.notice_guests();
        let rest = self.pacer.rest_after(worked);
        if rest.is_zero() {
            self.rest_owed = Duration::ZERO;
        } else {
            self.rest_owed += rest.max(rest_min);
        }
        if self.rest_owed >= REST_MIN {
            let rest = mem::take(&mut self.rest_owed);
            self.rest_shown(rest, &|| false);
        }
        self.observe();
    }

    /// Like [`Foreground::rest_after`], but the rest ends as soon as `is_urgent`.
    pub(crate) fn rest_after_unless(&mut self, worked: Duration, is_urgent: &dyn Fn() -> bool) {
        self.notice_guests();
        let rest = self.pacer.rest_after(worked);
        if rest.is_zero() {
            self.thread.sleep(BATCH_GAP);
        } else {
            self.rest_shown(rest, is_urgent);
        }
        self.observe();
    }

    /// Rests after a piece of a batch was read in `worked`, and returns how many bytes the next one may have. A batch that
    /// may not continue rests no longer.
    fn rest_between_pieces(&mut self, worked: Duration, job: &dyn PacedJob) -> u64 {
        self.notice_guests();
        if !self.pacer.guests_are_at_rest() {
            let rest = self.pacer.rest_after(worked);
            // On a slow disk a piece takes longer than the longest rest, and guests come first there, too.
            let most = PIECE_REST_MAX.max(worked * PIECE_REST_FACTOR);
            self.rest_shown(rest.clamp(PIECE_REST_MIN, most), &|| !job.may_work());
        }
        self.observe();
        self.piece_bytes()
    }

    /// Does the work of a batch, which is read in pieces with rests between them, and then waits for its turn to flush.
    /// Also returns the time since the last rest.
    pub(crate) fn in_pieces<T>(
        &mut self,
        turns: &FlushTurns,
        job: &mut dyn PacedJob,
        work: impl FnOnce(Pace<'_>) -> T,
    ) -> (T, Duration) {
        let mut pieces = Pieces {
            began: Instant::now(),
            is_first: true,
            foreground: self,
            turns,
            job,
        };
        let done = work(&mut pieces);
        (done, pieces.began.elapsed())
    }

    /// Waits until the job's batch may flush the device: for a turn, unless guests are at rest or the batch is urgent.
    /// Returns whether the job may still work.
    pub(crate) fn wait_for_turn(&mut self, turns: &FlushTurns, job: &mut dyn PacedJob) -> bool {
        self.notice_guests();
        if self.pacer.guests_are_at_rest() || !job.may_work() || job.is_urgent() {
            return job.may_work();
        }
        let end = Instant::now() + turns.take(Instant::now());
        self.thread.set_resting(true);
        let is_turn = loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break true;
            }
            if !job.may_work() || job.is_urgent() || self.pacer.guests_are_at_rest() {
                break false;
            }
            let pause = if job.work_beside() {
                TEND_PAUSE
            } else {
                WINDOW
            };
            // Not `sleep_unless`: the job looks at the signal, too.
            self.thread.wait(left.min(pause));
            self.was_idle();
        };
        self.thread.set_resting(false);
        // Otherwise turns that nobody waits for would run ahead of the time.
        if !is_turn || !job.may_work() {
            turns.give_back();
        }
        job.may_work()
    }

    /// How many bytes of a batch may be read at a time.
    fn piece_bytes(&self) -> u64 {
        if self.pacer.guests_are_at_rest() {
            PIECE_BYTES_IDLE
        } else {
            PIECE_BYTES
        }
    }

    fn rest_shown(&self, time: Duration, is_urgent: &dyn Fn() -> bool) {
        self.thread.set_resting(true);
        self.rest(time, is_urgent);
        self.thread.set_resting(false);
    }

    /// Notices guests that have become busy before the window ends: the window can no longer be
    /// idle.
    fn notice_guests(&mut self) {
        if self.pacer.guests_are_idle() {
            let mut window = self.window_start.window_until(&Mark::now(&self.registry));
            window.length = window.length.max(WINDOW);
            if !window.is_idle() {
                self.pacer.glance(&window);
            }
        }
    }

    /// Feeds the pacer the window that has ended, if one has.
    fn observe(&mut self) {
        if self.window_start.time.elapsed() >= WINDOW {
            let now = Mark::now(&self.registry);
            self.pacer.observe(&self.window_start.window_until(&now));
            self.window_start = now;
        }
    }

    /// Whether guests have been idle for some time.
    pub(crate) fn guests_are_at_rest(&self) -> bool {
        self.pacer.guests_are_at_rest()
    }

    /// Whether guests' latency exceeded the budget in the last window.
    pub(crate) fn guests_are_over_budget(&self) -> bool {
        self.pacer.is_over_budget()
    }

    /// Sleeps for `time`, or until guests are idle for a window.
    fn rest(&self, time: Duration, is_urgent: &dyn Fn() -> bool) {
        let start = Instant::now();
        let mut mark = Mark::now(&self.registry);
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() || self.thread.is_stopping() || is_urgent() {
                return;
            }
            self.thread.sleep_unless(left.min(WINDOW), is_urgent);
            let now = Mark::now(&self.registry);
            let window = mark.window_until(&now);
            if window.length >= WINDOW && window.is_idle() {
                return;
            }
            mark = now;
        }
    }

    /// Notes that the thread was idle for a while, so that guests' latencies are not blamed on its
    /// work.
    pub(crate) fn was_idle(&mut self) {
        if self.window_start.time.elapsed() < WINDOW {
            return;
        }
        let now = Mark::now(&self.registry);
        self.pacer.glance(&self.window_start.window_until(&now));
        self.window_start = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BATCH_FLUSHES, FINDER_SHARE_FLOOR, FLUSH_INTERVAL};
    use crate::scene::new_registry;
    use std::cell::Cell;

    /// A job whose batch becomes urgent, or is broken off, once it waits.
    struct Hurried {
        looks: Cell<u32>,
        is_broken_off: bool,
    }

    impl PacedJob for Hurried {
        fn may_work(&self) -> bool {
            self.looks.get() == 0 || !self.is_broken_off
        }

        fn is_urgent(&self) -> bool {
            self.looks.replace(1) > 0
        }
    }

    #[test]
    fn turns_that_nobody_waits_for_are_given_back() {
        let registry = new_registry();
        let thread = &registry.threads().finder;
        let pacer = Pacer::new(Duration::from_millis(2), FINDER_SHARE_FLOOR);
        let mut foreground = Foreground::new(&registry, thread, pacer);
        let turns = FlushTurns::default();
        let now = Instant::now();
        turns.take(now);
        for is_broken_off in [false, true] {
            for _ in 0..100 {
                let mut job = Hurried {
                    looks: Cell::new(0),
                    is_broken_off,
                };
                let may_work = foreground.wait_for_turn(&turns, &mut job);
                assert_eq!(may_work, !is_broken_off);
            }
        }
        assert!(turns.take(now) <= FLUSH_INTERVAL * BATCH_FLUSHES);
    }
}
