//! How often jobs may flush the device while guests are busy.
//!
//! A flush writes out all of the device's cache, and guests' requests wait for it on many disks. Each batch needs
//! [`BATCH_FLUSHES`] of them, however few items it has. So all jobs of all stores together take turns, one batch at a time:
//! stores may well lie on the same device, and the more stores have batches, the longer each waits.
//!
//! There is no clock in here: the present time comes in.

use crate::limits::{BATCH_FLUSHES, FLUSH_INTERVAL};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Turns of batches, at least as far apart as their flushes need.
#[derive(Debug, Default)]
pub(crate) struct FlushTurns {
    /// The next turn that nobody has taken.
    next: Mutex<Option<Instant>>,
}

impl FlushTurns {
    /// Takes the next turn, and returns the time from `now` until it comes.
    pub(crate) fn take(&self, now: Instant) -> Duration {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + FLUSH_INTERVAL * BATCH_FLUSHES);
        turn - now
    }

    /// Gives back a turn that was not waited for: a batch that is broken off, or that became urgent.
    pub(crate) fn give_back(&self) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = next.and_then(|next| next.checked_sub(FLUSH_INTERVAL * BATCH_FLUSHES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_millis(750);

    #[test]
    fn turns_are_as_far_apart_as_the_flushes_of_a_batch() {
        let (turns, now) = (FlushTurns::default(), Instant::now());
        assert_eq!(turns.take(now), Duration::ZERO);
        assert_eq!(turns.take(now), TURN);
        assert_eq!(turns.take(now + TURN / 2), TURN * 3 / 2);
        let later = now + TURN * 10;
        assert_eq!(turns.take(later), Duration::ZERO, "none are saved up");
        assert_eq!(turns.take(later), TURN);
    }

    #[test]
    fn a_turn_that_was_not_used_delays_nobody() {
        let (turns, now) = (FlushTurns::default(), Instant::now());
        turns.take(now);
        for _ in 0..100 {
            assert_eq!(turns.take(now), TURN);
            turns.give_back();
        }
    }
}
