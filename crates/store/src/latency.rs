//! Latencies of requests, counted as they end: the input of background work's pacing (P10).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use onefold_metadata::sync::AtomicU64;

/// Four buckets for each power of two of nanoseconds, up to 2^40 (18 minutes).
const BUCKETS: usize = 4 * 40;

/// Times of requests that ended.
pub(crate) struct Latencies([AtomicU64; BUCKETS]);

/// How many requests took how long, since the pool was opened or since an earlier count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencyCounts(Box<[u64; BUCKETS]>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    pub(crate) fn add(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0[bucket(nanoseconds)].fetch_add(1, Relaxed);
    }

    pub(crate) fn counts(&self) -> LatencyCounts {
        let counts = std::array::from_fn(|bucket| self.0[bucket].load(Relaxed));
        LatencyCounts(Box::new(counts))
    }
}

impl LatencyCounts {
    /// The number of requests that were counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The requests that ended after `earlier` was counted on the same pool.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = std::array::from_fn(|n| self.0[n].saturating_sub(earlier.0[n]));
        Self(Box::new(counts))
    }

    /// Nanoseconds that the fraction `p` (0 to 1) of the requests did not exceed, to within a
    /// fifth; 0 where there were none.
    #[must_use]
    pub fn percentile_ns(&self, p: f64) -> u64 {
        let wanted = (self.requests() as f64 * p.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return upper_bound(bucket);
            }
        }
        0
    }
}

/// The two bits after a number's highest choose among the four buckets of its power.
fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(4);
    let power = value.ilog2();
    let quarter = value >> (power - 2) & 3;
    ((power as usize * 4) + quarter as usize).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    let (power, quarter) = (bucket as u32 / 4, bucket as u64 % 4);
    ((4 + quarter + 1) << power) / 4
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::Latencies;
    use std::time::Duration;

    #[test]
    fn percentiles_are_right_to_a_fifth() {
        let latencies = Latencies::new();
        for n in 1..=1000 {
            latencies.add(Duration::from_micros(n));
        }
        let counts = latencies.counts();
        for (p, exact) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let got = counts.percentile_ns(p);
            assert!(got >= exact && got <= exact * 5 / 4, "{p}: {got}");
        }
        latencies.add(Duration::from_secs(1 << 40));
        let later = latencies.counts().since(&counts);
        assert_eq!(later.requests(), 1);
        assert_eq!(counts.since(&counts).percentile_ns(0.99), 0);
    }
}
