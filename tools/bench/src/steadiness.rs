//! Finds the moments in which the machine itself was slow.
//!
//! The processors of a virtual machine are sometimes slowed down as a whole, whatever runs on them: some hosts let them
//! have a tenth of their speed for a tenth of a second, every few seconds. That affects more than one request in a
//! hundred, so a 99th percentile would show little else. These moments are left out for all servers alike. They are
//! detected independently of the servers: by the processor time of the same short computation, repeated on the client's
//! processor.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The interval at which the computation runs, which takes a hundredth of the processor.
const PERIOD: Duration = Duration::from_millis(5);

/// Steps of the computation, which takes about 10 us.
const STEPS: u32 = 10_000;

/// The machine is slow when the computation takes this many times its median.
const SLOW_FACTOR: f64 = 2.0;

/// How long before the first slow computation the slowness may have begun.
const BEFORE_MS: f64 = 5.0;

/// How long the machine counts as slow after the last slow computation, while queued requests are answered.
const AFTER_MS: f64 = 50.0;

/// Repeats the computation in a thread while something is measured.
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Sample>>>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at_ms: f64,
    cost_ns: u64,
}

impl Watch {
    pub(crate) fn start(processor: usize) -> Result<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || {
                let mut processors = CpuSet::new();
                processors.set(processor);
                sched_setaffinity(None, &processors).context("cannot stay on one processor")?;
                let mut samples = Vec::new();
                // Take at least one sample, however soon it is over.
                loop {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH);
                    samples.push(Sample {
                        at_ms: now.context("the clock is not set")?.as_secs_f64() * 1e3,
                        // The minimum of two: an interrupt during one of them says nothing about the machine.
                        cost_ns: cost_ns().min(cost_ns()),
                    });
                    if is_over.load(Ordering::Relaxed) {
                        return Ok(samples);
                    }
                    thread::sleep(PERIOD);
                }
            })
            .context("cannot start a thread")?;
        Ok(Watch { stop, thread })
    }

    pub(crate) fn end(self) -> Result<SlowSpans> {
        Ok(SlowSpans::of(&self.samples()?))
    }

    fn samples(self) -> Result<Vec<Sample>> {
        self.stop.store(true, Ordering::Relaxed);
        let samples = self.thread.join();
        samples.map_err(|_| anyhow!("the watch panicked"))?
    }
}

/// Processor time of one computation.
fn cost_ns() -> u64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let start = now();
    let mut number = black_box(1u64);
    for _ in 0..STEPS {
        // Each step needs the result of the one before.
        number = black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
    }
    now() - start
}

/// The times at which the machine was slow, in milliseconds of the Unix epoch, in order.
#[derive(Debug, PartialEq)]
pub(crate) struct SlowSpans(Vec<(f64, f64)>);

impl SlowSpans {
    fn of(samples: &[Sample]) -> SlowSpans {
        let mut costs: Vec<u64> = samples.iter().map(|sample| sample.cost_ns).collect();
        costs.sort_unstable();
        let median = costs.get(costs.len() / 2).map_or(0.0, |cost| *cost as f64);
        let mut spans: Vec<(f64, f64)> = Vec::new();
        for sample in samples {
            if sample.cost_ns as f64 <= SLOW_FACTOR * median {
                continue;
            }
            let (start, end) = (sample.at_ms - BEFORE_MS, sample.at_ms + AFTER_MS);
            match spans.last_mut() {
                Some((_, last_end)) if start <= *last_end => *last_end = end,
                _ => spans.push((start, end)),
            }
        }
        SlowSpans(spans)
    }

    pub(crate) fn contain(&self, at_ms: f64) -> bool {
        let after = self.0.partition_point(|(start, _)| *start <= at_ms);
        after > 0 && at_ms <= self.0[after - 1].1
    }
}

#[cfg(test)]
impl<const N: usize> From<[(f64, f64); N]> for SlowSpans {
    fn from(spans: [(f64, f64); N]) -> Self {
        SlowSpans(spans.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(costs: &[u64]) -> SlowSpans {
        let samples = costs.iter().enumerate().map(|(n, cost_ns)| Sample {
            at_ms: 1000.0 + 5.0 * n as f64,
            cost_ns: *cost_ns,
        });
        SlowSpans::of(&samples.collect::<Vec<_>>())
    }

    #[test]
    fn a_slow_moment_is_left_out_with_what_surrounds_it() {
        let slow = spans(&[10, 11, 9, 150, 120, 19, 10, 10, 10, 12]);
        assert_eq!(slow, SlowSpans(vec![(1010.0, 1070.0)]));
        let inside = [1009.9, 1010.0, 1040.0, 1070.0, 1070.1].map(|at| slow.contain(at));
        assert_eq!(inside, [false, true, true, true, false]);
    }

    #[test]
    fn a_steady_machine_leaves_nothing_out() {
        assert_eq!(spans(&[10, 14, 9, 15, 19, 10, 10]), SlowSpans(Vec::new()));
        assert!(!spans(&[]).contain(1000.0));
    }

    #[test]
    fn moments_apart_are_spans_apart() {
        let mut costs = vec![10; 60];
        (costs[0], costs[1], costs[40]) = (90, 90, 90);
        assert_eq!(
            spans(&costs),
            SlowSpans(vec![(995.0, 1055.0), (1195.0, 1250.0)])
        );
    }

    #[test]
    fn a_watch_sees_something() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let processor = (0..CpuSet::MAX_CPU).find(|n| allowed.is_set(*n)).unwrap();
        let watch = Watch::start(processor).unwrap();
        let samples = watch.samples().unwrap();
        assert!(!samples.is_empty() && samples.iter().all(|sample| sample.cost_ns > 0));
    }
}
