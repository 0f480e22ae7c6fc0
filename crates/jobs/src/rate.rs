//! A recent rate in bytes per second.
//!
//! There is no clock in here: the time comes with each call.

use crate::limits::RATE_WINDOW;
use std::time::Instant;

/// Counts bytes in windows; the rate is taken from the last whole window.
#[derive(Debug)]
pub(crate) struct Rate {
    start: Instant,
    bytes: u64,
    bytes_per_second: u64,
}

impl Rate {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            start: now,
            bytes: 0,
            bytes_per_second: 0,
        }
    }

    /// Counts `bytes` more.
    pub(crate) fn add(&mut self, now: Instant, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.roll(now);
    }

    /// The rate now. Without progress for two windows it is zero.
    pub(crate) fn bytes_per_second(&mut self, now: Instant) -> u64 {
        self.roll(now);
        self.bytes_per_second
    }

    fn roll(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.start);
        if elapsed >= RATE_WINDOW {
            self.bytes_per_second = (self.bytes as f64 / elapsed.as_secs_f64()) as u64;
            self.start = now;
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_rate_is_that_of_the_last_whole_window() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut rate = Rate::new(start);
        rate.add(at(1000), 3000);
        assert_eq!(rate.bytes_per_second(at(1999)), 0, "not known yet");
        rate.add(at(2000), 1000);
        assert_eq!(rate.bytes_per_second(at(2001)), 2000);
        rate.add(at(3000), 10_000);
        assert_eq!(rate.bytes_per_second(at(3999)), 2000);
        assert_eq!(rate.bytes_per_second(at(4000)), 5000);
        assert_eq!(rate.bytes_per_second(at(6000)), 0);
    }
}
