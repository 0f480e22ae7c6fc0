//! Which volume is next: passes over all of them, in turn, batch by batch.
//!
//! A pass scans one volume from its start to its end, in batches. A new one begins when the
//! volume's interval has passed since the last one *began*. Volumes with a pass in progress, or
//! due, take turns after every batch, so that a large one does not delay the others.
//!
//! There is no clock in here: the time comes with each call.

use crate::limits::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use onefold_store::{Lba, StoreError, StoreErrorKind};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The volumes, by their keys, and the progress of each.
#[derive(Debug)]
pub(crate) struct Passes<K> {
    turns: BTreeMap<K, Turn>,
    /// The volumes in turn: the first one that has anything to do is next.
    order: VecDeque<K>,
}

#[derive(Debug)]
struct Turn {
    interval: Duration,
    /// The start of the next batch of the pass in progress.
    cursor: Option<Lba>,
    /// When the last pass began.
    began: Option<Instant>,
    /// After a failure, no batch begins before this time.
    not_before: Option<Instant>,
    /// Failures in a row.
    failures: u32,
}

impl Turn {
    /// When the volume has something to do; `None` if it has already.
    fn due(&self) -> Option<Instant> {
        let round = match (self.cursor, self.began) {
            (None, Some(began)) => began.checked_add(self.interval),
            _ => None,
        };
        round.max(self.not_before)
    }
}

/// The pause after this number of failures in a row.
pub(crate) fn retry_pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (RETRY_PAUSE_MIN * (1 << doublings)).min(RETRY_PAUSE_MAX)
}

/// The pause after an error, and the count of failures in a row. Jobs that are paused, for as long as a shared pool is
/// counted, have not failed.
pub(crate) fn pause_after(error: &StoreError, failures: &mut u32) -> Duration {
    if error.kind() == StoreErrorKind::Paused {
        return RETRY_PAUSE_MIN;
    }
    *failures = failures.saturating_add(1);
    retry_pause(*failures)
}

impl<K: Copy + Ord> Passes<K> {
    pub(crate) fn new() -> Self {
        Self {
            turns: BTreeMap::new(),
            order: VecDeque::new(),
        }
    }

    /// Sets the volumes, with their intervals. Volumes that were there before keep their place; new
    /// ones are due at once.
    pub(crate) fn set_volumes(&mut self, volumes: impl IntoIterator<Item = (K, Duration)>) {
        let mut before = std::mem::take(&mut self.turns);
        for (key, interval) in volumes {
            let turn = before.remove(&key).unwrap_or_else(|| {
                self.order.push_back(key);
                Turn {
                    interval,
                    cursor: None,
                    began: None,
                    not_before: None,
                    failures: 0,
                }
            });
            self.turns.insert(key, Turn { interval, ..turn });
        }
        self.order.retain(|key| self.turns.contains_key(key));
    }

    /// The volume whose turn it is and where its batch begins, if any that is `allowed` has
    /// anything to do. It goes to the end of the queue.
    pub(crate) fn next(&mut self, now: Instant, allowed: impl Fn(&K) -> bool) -> Option<(K, Lba)> {
        let is_ready = |key: &K| {
            let turn = self.turns.get(key);
            turn.is_some_and(|turn| turn.due().is_none_or(|due| due <= now)) && allowed(key)
        };
        let place = self.order.iter().position(is_ready)?;
        let key = self.order.remove(place)?;
        self.order.push_back(key);
        let turn = self.turns.get_mut(&key)?;
        let cursor = *turn.cursor.get_or_insert_with(|| {
            turn.began = Some(now);
            Lba(0)
        });
        Some((key, cursor))
    }

    /// Notes that a batch of the volume is done. The next one begins at `cursor`; `None` ends the
    /// pass.
    pub(crate) fn advance(&mut self, key: K, cursor: Option<Lba>) {
        if let Some(turn) = self.turns.get_mut(&key) {
            turn.cursor = cursor;
            turn.not_before = None;
            turn.failures = 0;
        }
    }

    /// Notes that a batch of the volume failed. It is retried after a pause that grows with each
    /// failure; see [`pause_after`].
    pub(crate) fn fail(&mut self, key: K, now: Instant, error: &StoreError) {
        if let Some(turn) = self.turns.get_mut(&key) {
            turn.not_before = now.checked_add(pause_after(error, &mut turn.failures));
        }
    }

    /// Whether the last batch of the volume failed.
    pub(crate) fn has_failed(&self, key: K) -> bool {
        let turn = self.turns.get(&key);
        turn.is_some_and(|turn| turn.failures > 0)
    }

    /// Leaves the volume alone for some time.
    pub(crate) fn put_off(&mut self, key: K, now: Instant, pause: Duration) {
        if let Some(turn) = self.turns.get_mut(&key) {
            turn.not_before = now.checked_add(pause);
        }
    }

    /// The time until one of the `allowed` volumes has something to do, at most `most`.
    pub(crate) fn idle_time(
        &self,
        now: Instant,
        most: Duration,
        allowed: impl Fn(&K) -> bool,
    ) -> Duration {
        let allowed = self.turns.iter().filter(|(key, _)| allowed(key));
        let wait = |(_, turn): (&K, &Turn)| {
            let due = turn.due();
            due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now))
        };
        allowed.map(wait).min().map_or(most, |wait| wait.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    fn everyone(_: &char) -> bool {
        true
    }

    fn passes(volumes: &str) -> Passes<char> {
        let mut passes = Passes::new();
        passes.set_volumes(volumes.chars().map(|key| (key, TEN)));
        passes
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn volumes_take_turns_after_every_batch() {
        let mut passes = passes("abc");
        let now = Instant::now();
        let mut seen = String::new();
        for n in 0..7 {
            let (key, cursor) = passes.next(now, everyone).unwrap();
            seen.push(key);
            assert_eq!(cursor, Lba(n / 3 * 100));
            passes.advance(key, Some(Lba(cursor.0 + 100)));
        }
        assert_eq!(seen, "abcabca");
    }

    #[test]
    fn a_short_volume_is_not_kept_waiting_by_a_long_one() {
        let mut passes = passes("ab");
        let now = Instant::now();
        for _ in 0..3 {
            let (key, _) = passes.next(now, everyone).unwrap();
            passes.advance(key, (key == 'a').then_some(Lba(7)));
        }
        assert_eq!(passes.next(now, everyone), Some(('a', Lba(7))));
        let later = at(now, 10);
        assert_eq!(passes.next(later, everyone), Some(('b', Lba(0))));
        assert_eq!(passes.next(later, everyone), Some(('a', Lba(7))));
    }

    #[test]
    fn a_round_begins_an_interval_after_the_last_one_began() {
        let mut passes = passes("a");
        let start = Instant::now();
        assert_eq!(passes.next(start, everyone), Some(('a', Lba(0))));
        passes.advance('a', Some(Lba(5)));
        assert_eq!(passes.next(at(start, 4), everyone), Some(('a', Lba(5))));
        passes.advance('a', None);
        assert_eq!(passes.next(at(start, 9), everyone), None);
        assert_eq!(
            passes.idle_time(at(start, 9), TEN, everyone),
            Duration::from_secs(1)
        );
        assert_eq!(
            passes
                .idle_time(start, Duration::from_secs(3), everyone)
                .as_secs(),
            3
        );
        assert_eq!(passes.next(at(start, 10), everyone), Some(('a', Lba(0))));
        assert_eq!(
            passes.idle_time(at(start, 10), TEN, everyone),
            Duration::ZERO
        );
        // A pass that took longer than the interval is followed by the next one at once.
        passes.advance('a', None);
        assert_eq!(passes.next(at(start, 30), everyone), Some(('a', Lba(0))));
    }

    #[test]
    fn a_shorter_interval_counts_at_once() {
        let mut passes = passes("a");
        let start = Instant::now();
        passes.next(start, everyone);
        passes.advance('a', None);
        assert_eq!(passes.next(at(start, 2), everyone), None);
        passes.set_volumes([('a', Duration::from_secs(1))]);
        assert_eq!(passes.next(at(start, 2), everyone), Some(('a', Lba(0))));
    }

    fn failure() -> StoreError {
        StoreError::new(StoreErrorKind::Io, "the disk has failed")
    }

    #[test]
    fn volumes_come_and_go_and_the_others_stay_where_they_are() {
        let mut passes = passes("ab");
        let now = Instant::now();
        passes.next(now, everyone);
        passes.advance('a', Some(Lba(5)));
        passes.set_volumes(['a', 'c'].map(|key| (key, TEN)));
        assert_eq!(passes.next(now, everyone), Some(('a', Lba(5))));
        assert_eq!(passes.next(now, everyone), Some(('c', Lba(0))));
        // A report on a volume that is gone changes nothing.
        passes.advance('b', Some(Lba(1)));
        passes.fail('b', now, &failure());
        passes.set_volumes([]);
        assert_eq!(passes.next(now, everyone), None);
        assert_eq!(passes.idle_time(now, TEN, everyone), TEN);
    }

    #[test]
    fn who_is_not_allowed_loses_nothing_but_time() {
        let mut passes = passes("ab");
        let now = Instant::now();
        passes.next(now, everyone);
        passes.advance('a', Some(Lba(5)));
        assert_eq!(passes.next(now, |key| *key != 'a'), Some(('b', Lba(0))));
        passes.advance('b', None);
        assert_eq!(passes.next(now, |key| *key != 'a'), None);
        assert_eq!(passes.idle_time(now, TEN * 2, |key| *key != 'a'), TEN);
        assert_eq!(passes.next(now, everyone), Some(('a', Lba(5))));
    }

    #[test]
    fn a_failed_batch_is_tried_again_after_longer_and_longer_pauses() {
        let mut passes = passes("a");
        let mut now = Instant::now();
        passes.next(now, everyone);
        passes.advance('a', Some(Lba(5)));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(passes.next(now, everyone), Some(('a', Lba(5))));
            passes.fail('a', now, &failure());
            let pause = passes.idle_time(now, Duration::MAX, everyone);
            assert_eq!(
                passes.next(now + pause - Duration::from_nanos(1), everyone),
                None
            );
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        // A success resets the failures.
        assert!(passes.has_failed('a'));
        passes.advance('a', Some(Lba(6)));
        assert!(!passes.has_failed('a'));
        passes.fail('a', now, &failure());
        assert_eq!(passes.idle_time(now, Duration::MAX, everyone).as_secs(), 1);
        assert_eq!(retry_pause(u32::MAX), RETRY_PAUSE_MAX);
    }

    #[test]
    fn paused_jobs_have_not_failed() {
        let mut passes = passes("a");
        let now = Instant::now();
        let paused = StoreError::new(StoreErrorKind::Paused, "the pool is being checked");
        passes.next(now, everyone);
        for _ in 0..9 {
            passes.fail('a', now, &paused);
            assert_eq!(passes.idle_time(now, Duration::MAX, everyone).as_secs(), 1);
            assert!(!passes.has_failed('a'));
        }
    }

    #[test]
    fn a_volume_can_be_put_off_for_longer_than_its_interval() {
        let mut passes = passes("a");
        let now = Instant::now();
        passes.next(now, everyone);
        passes.advance('a', None);
        passes.put_off('a', now, TEN * 6);
        assert_eq!(passes.next(at(now, 59), everyone), None);
        assert_eq!(passes.next(at(now, 60), everyone), Some(('a', Lba(0))));
    }
}
