//! How many spare blocks are kept from the host: enough for the small writes of the next minutes.
//!
//! There is no clock in here: the time that has passed comes in.

use crate::limits::{
    SPARE_BYTES_MAX, SPARE_BYTES_MIN, SPARE_INTERVAL, SPARE_INTERVALS, SPARE_POOL_DIVISOR,
    SPARE_POOL_DIVISOR_MAX,
};
use std::time::Duration;

/// The number of bytes in spare blocks that a pool keeps.
#[derive(Debug)]
pub(crate) struct SpareTarget {
    pool_bytes: u64,
    /// Bytes in new blocks of small requests, at the start of the interval.
    used_before: u64,
    elapsed: Duration,
    /// The most that one of the last intervals used. It falls slowly, because guests that rest come back.
    used_most: u64,
}

impl SpareTarget {
    pub(crate) fn new() -> Self {
        Self {
            pool_bytes: 0,
            used_before: 0,
            elapsed: Duration::ZERO,
            used_most: 0,
        }
    }

    /// Notes, after `elapsed`, the pool's size and the bytes in new blocks of small requests since the pool was opened.
    pub(crate) fn note(&mut self, elapsed: Duration, pool_bytes: u64, used_bytes: u64) {
        self.pool_bytes = pool_bytes;
        self.elapsed += elapsed;
        let used = used_bytes.saturating_sub(self.used_before);
        self.used_most = self.used_most.max(used);
        if self.elapsed >= SPARE_INTERVAL {
            self.used_most = used.max(self.used_most - self.used_most / SPARE_INTERVALS);
            (self.elapsed, self.used_before) = (Duration::ZERO, used_bytes);
        }
    }

    /// Bytes in spare blocks to keep.
    pub(crate) fn bytes(&self) -> u64 {
        let part = self.pool_bytes / SPARE_POOL_DIVISOR;
        let least = part.clamp(SPARE_BYTES_MIN, SPARE_BYTES_MAX / 8);
        let most = SPARE_BYTES_MAX.min(self.pool_bytes / SPARE_POOL_DIVISOR_MAX);
        least.max(self.used_most * SPARE_INTERVALS).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn target(pool_bytes: u64) -> SpareTarget {
        let mut target = SpareTarget::new();
        target.note(Duration::ZERO, pool_bytes, 0);
        target
    }

    #[test]
    fn a_pool_keeps_a_small_part_of_itself() {
        assert_eq!(target(16 << 30).bytes(), 256 * MIB);
        assert_eq!(target(1 << 40).bytes(), SPARE_BYTES_MAX / 8);
        // However small it is, most of it is for data.
        assert_eq!(target(64 * MIB).bytes(), 8 * MIB);
    }

    #[test]
    fn it_follows_what_guests_use_and_falls_slowly() {
        let mut target = target(1 << 40);
        target.note(SPARE_INTERVAL / 2, 1 << 40, 512 * MIB);
        assert_eq!(target.bytes(), 512 * MIB * SPARE_INTERVALS, "at once");
        target.note(SPARE_INTERVAL / 2, 1 << 40, 512 * MIB);
        target.note(SPARE_INTERVAL, 1 << 40, 512 * MIB);
        let one_later = target.bytes();
        assert!(one_later < 512 * MIB * SPARE_INTERVALS && one_later > 512 * MIB);
        for _ in 0..100 {
            target.note(SPARE_INTERVAL, 1 << 40, 512 * MIB);
        }
        assert_eq!(target.bytes(), SPARE_BYTES_MAX / 8);
        target.note(SPARE_INTERVAL, 1 << 40, 1 << 40);
        assert_eq!(target.bytes(), SPARE_BYTES_MAX);
    }
}
