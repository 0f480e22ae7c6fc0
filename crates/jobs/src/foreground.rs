//! The clock of [`crate::pacing`]: measures guests' requests, and rests.

use crate::limits::{BATCH_GAP, REST_MIN, WINDOW};
use crate::pacing::{Pacer, Window};
use crate::thread::JobThread;
use onefold_store::{LatencyCounts, Store};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A job thread's measurements of the guests, who go first.
pub(crate) struct Foreground {
    store: Arc<Store>,
    thread: Arc<JobThread>,
    pacer: Pacer,
    /// The start of the current window: before a batch.
    window_start: Mark,
    /// Too short to be taken yet.
    rest_owed: Duration,
}

/// A moment, and the requests that had been answered by then.
struct Mark {
    time: Instant,
    counts: LatencyCounts,
}

impl Mark {
    fn now(store: &Store) -> Self {
        Self {
            time: Instant::now(),
            counts: store.latencies(),
        }
    }

    fn window_until(&self, end: &Self) -> Window {
        let length = end.time.saturating_duration_since(self.time);
        Window::new(length, &end.counts.since(&self.counts))
    }
}

impl Foreground {
    pub(crate) fn new(store: &Arc<Store>, thread: &Arc<JobThread>, pacer: Pacer) -> Self {
        Self {
            window_start: Mark::now(store),
            store: Arc::clone(store),
            thread: Arc::clone(thread),
            pacer,
            rest_owed: Duration::ZERO,
        }
    }

    /// Rests after a batch of this duration, as long as guests need.
    pub(crate) fn rest_after(&mut self, worked: Duration) {
        self.rest_after_unless(worked, &|| false);
    }

    /// Rests after a batch of this duration only if guests need that, and then no less than `rest_min`, or later for
    /// several batches at once.
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

    /// As [`Foreground::rest_after`], until something is more urgent than that.
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

    fn rest_shown(&self, time: Duration, is_urgent: &dyn Fn() -> bool) {
        self.thread.set_resting(true);
        self.rest(time, is_urgent);
        self.thread.set_resting(false);
    }

    /// Guests that begin do not have to wait for the window's end: it can not be idle any more.
    fn notice_guests(&mut self) {
        if self.pacer.guests_are_idle() {
            let mut window = self.window_start.window_until(&Mark::now(&self.store));
            window.length = window.length.max(WINDOW);
            if !window.is_idle() {
                self.pacer.glance(&window);
            }
        }
    }

    /// Learns from the window that has ended, if one has.
    fn observe(&mut self) {
        if self.window_start.time.elapsed() >= WINDOW {
            let now = Mark::now(&self.store);
            self.pacer.observe(&self.window_start.window_until(&now));
            self.window_start = now;
        }
    }

    /// According to the last window.
    pub(crate) fn guests_are_idle(&self) -> bool {
        self.pacer.guests_are_idle()
    }

    /// Likewise.
    pub(crate) fn guests_are_over_budget(&self) -> bool {
        self.pacer.is_over_budget()
    }

    /// Guests that fall silent end it early.
    fn rest(&self, time: Duration, is_urgent: &dyn Fn() -> bool) {
        let start = Instant::now();
        let mut mark = Mark::now(&self.store);
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left.is_zero() || self.thread.is_stopping() || is_urgent() {
                return;
            }
            self.thread.sleep_unless(left.min(WINDOW), is_urgent);
            let now = Mark::now(&self.store);
            let window = mark.window_until(&now);
            if window.length >= WINDOW && window.is_idle() {
                return;
            }
            mark = now;
        }
    }

    /// The thread has had nothing to do for a while, so it did not cause the guests' latencies.
    pub(crate) fn was_idle(&mut self) {
        let now = Mark::now(&self.store);
        let window = self.window_start.window_until(&now);
        if window.length >= WINDOW {
            self.pacer.glance(&window);
            self.window_start = now;
        }
    }
}
