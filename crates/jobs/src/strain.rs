//! Whether guests are strained: their requests take longer than the budget, and no processor is idle. A
//! volume with `--dedup auto` does not go in line then, because each write would need more processor time.
//!
//! Neither condition alone counts. A slow disk makes requests take long, and deduplication in line
//! sends it fewer of them; busy processors do not matter to guests that are served in time. If the kernel
//! does not report how busy the processors are, guests count as not strained.
//!
//! Processors are the host's, and whoever uses them takes them from the guests of every store. So guests count as strained
//! if the latency of any store exceeds the budget, and all stores are told.

use crate::limits::{PROCESSOR_LEFT_OVER, WINDOW};
use crate::registry::JobRegistry;
use std::fs::read_to_string;
use std::sync::Arc;
use std::time::Instant;

/// Reports to all stores whether guests are strained; dropping it reports that they are not.
pub(crate) struct Strain {
    registry: Arc<JobRegistry>,
    since: Instant,
    before: Option<Ticks>,
}

/// Time spent since the machine was started by the processors that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    processors: u64,
    /// Idle time, including waiting for a disk.
    idle: u64,
    all: u64,
}

impl Strain {
    pub(crate) fn new(registry: &Arc<JobRegistry>) -> Self {
        Self {
            registry: Arc::clone(registry),
            since: Instant::now(),
            before: Ticks::now(),
        }
    }

    /// Measures and reports again, once a window has passed.
    pub(crate) fn look(&mut self, is_over_budget: bool) {
        if self.since.elapsed() < WINDOW {
            return;
        }
        let now = Ticks::now();
        let left_over = match (now, self.before) {
            (Some(now), Some(before)) => now.left_over_since(before),
            _ => None,
        };
        self.report(is_strained(is_over_budget, left_over));
        (self.since, self.before) = (Instant::now(), now);
    }

    fn report(&self, are_strained: bool) {
        self.registry
            .for_each(|jobs| jobs.store().set_guests_strained(are_strained));
    }
}

impl Drop for Strain {
    fn drop(&mut self) {
        self.report(false);
    }
}

/// Whether guests are strained while `left_over` processors are idle.
fn is_strained(is_over_budget: bool, left_over: Option<f64>) -> bool {
    is_over_budget && left_over.is_some_and(|left_over| left_over < PROCESSOR_LEFT_OVER)
}

impl Ticks {
    fn now() -> Option<Self> {
        let status = read_to_string("/proc/thread-self/status").ok()?;
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Self::of(&read_to_string("/proc/stat").ok()?, allowed)
    }

    /// Sums the lines `cpuN user nice system idle iowait irq softirq steal` for each N in a list such
    /// as `0-3,8`.
    fn of(stat: &str, allowed: &str) -> Option<Self> {
        let ranges = allowed.trim().split(',').map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<u64>().ok()?..=last.parse().ok()?)
        });
        let ranges: Vec<_> = ranges.collect::<Option<_>>()?;
        let mut sum = Self {
            processors: 0,
            idle: 0,
            all: 0,
        };
        for line in stat.lines() {
            let mut words = line.split_ascii_whitespace();
            let number = words.next().and_then(|name| name.strip_prefix("cpu"));
            let Some(number) = number.and_then(|number| number.parse().ok()) else {
                continue;
            };
            if !ranges.iter().any(|range| range.contains(&number)) {
                continue;
            }
            let times = words.take(8).map(|word| word.parse().ok());
            let times: Vec<u64> = times.collect::<Option<_>>()?;
            sum.processors += 1;
            sum.idle += times.get(3)? + times.get(4)?;
            sum.all += times.iter().sum::<u64>();
        }
        (sum.processors > 0).then_some(sum)
    }

    /// How many processors were idle on average; `None` if no time has passed.
    fn left_over_since(self, before: Self) -> Option<f64> {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        (all > 0).then(|| idle as f64 / all as f64 * self.processors as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  40 4 40 400 40 0 0 4 9 9\n\
                        cpu0 10 1 10 100 10 0 0 1 9 9\n\
                        cpu1 20 2 20 200 20 0 0 2 9 9\n\
                        cpu12 10 1 10 100 10 0 0 1 9 9\n\
                        intr 12 0 0\n";

    fn of(allowed: &str) -> Option<(u64, u64, u64)> {
        Ticks::of(STAT, allowed).map(|ticks| (ticks.processors, ticks.idle, ticks.all))
    }

    #[test]
    fn only_processors_count_that_this_process_may_use() {
        assert_eq!(of("\t0-1,12"), Some((3, 440, 528)));
        assert_eq!(of("\t1"), Some((1, 220, 264)));
        assert_eq!(of("0,2-11"), Some((1, 110, 132)));
        assert_eq!(of("5"), None);
        assert_eq!(of("all"), None);
        assert_eq!(Ticks::of("cpu0 1 2 3\n", "0"), None);
        let Some(now) = Ticks::now() else {
            panic!("this machine does not tell");
        };
        assert!(now.processors >= 1 && now.idle <= now.all);
    }

    #[test]
    fn idle_time_is_in_processors() {
        let before = Ticks {
            processors: 4,
            idle: 1000,
            all: 5000,
        };
        let later = |idle, all| Ticks {
            idle: before.idle + idle,
            all: before.all + all,
            ..before
        };
        assert_eq!(later(30, 40).left_over_since(before), Some(3.0));
        assert_eq!(later(1, 40).left_over_since(before), Some(0.1));
        assert_eq!(before.left_over_since(before), None);
    }

    #[test]
    fn guests_are_strained_by_long_requests_and_busy_processors_together() {
        assert!(is_strained(true, Some(0.1)));
        assert!(!is_strained(false, Some(0.1)));
        assert!(!is_strained(true, Some(0.5)));
        assert!(!is_strained(true, None));
    }
}
