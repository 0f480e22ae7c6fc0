//! Windows of a guest's load: spans of time, and the latencies that the load's log has for them.
//!
//! A load runs all the time, and its log is cut into windows afterwards: the load has no start or end of its own in any
//! window, and windows that follow each other see nearly the same machine.

use std::ops::Range;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use onefold_harness::fio::Request;

/// The length of a window, in which a guest runs either alone or next to another load. It is short because other work
/// on the host's processors changes from minute to minute by more than the differences that are measured here.
pub(crate) const WINDOW: Duration = Duration::from_secs(2);

/// The percentiles of a window, in percent.
pub(crate) const PERCENTILES: [usize; 3] = [50, 95, 99];

/// The time, in milliseconds of the Unix epoch.
pub(crate) fn epoch_ms() -> Result<f64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(since.context("the clock is wrong")?.as_secs_f64() * 1000.0)
}

/// The work of a daemon since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) at_ms: f64,
    /// References that writes of guests have dropped, each of which was a copy.
    pub(crate) copies: u64,
    /// Bytes that the finder has read.
    pub(crate) found_bytes: u64,
    /// Requests that the ring has passed to workers of the kernel, where they can be counted.
    pub(crate) passed_on: Option<u64>,
}

/// The time of a window, and the counts before and after it.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// In milliseconds of the Unix epoch.
    pub(crate) time: Range<f64>,
    pub(crate) before: Counts,
    pub(crate) after: Counts,
}

impl Span {
    /// The growth per second of a count that was `before` and `after` the window.
    fn per_second(&self, before: u64, after: u64) -> f64 {
        let seconds = (self.after.at_ms - self.before.at_ms) / 1000.0;
        (after as f64 - before as f64) / seconds
    }
}

/// A guest's requests and the daemon's work in a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Latencies at [`PERCENTILES`].
    pub(crate) latencies_us: [f64; PERCENTILES.len()],
    pub(crate) requests_per_second: f64,
    pub(crate) copies_per_second: f64,
    pub(crate) finder_mb_per_second: f64,
    pub(crate) passed_on_per_second: Option<f64>,
}

impl Window {
    /// The window of the requests that were answered in this span.
    fn cut(requests: &[Request], span: &Span) -> Result<Window> {
        let answered = requests
            .iter()
            .filter(|request| span.time.contains(&request.at_ms));
        let mut latencies: Vec<f64> = answered.map(|request| request.latency_us).collect();
        latencies.sort_by(f64::total_cmp);
        let [p50, p95, p99] = PERCENTILES.map(|percent| percentile(&latencies, percent));
        let percentiles = p50.zip(p95).zip(p99);
        let ((p50, p95), p99) = percentiles.context("no request was answered in a window")?;
        let seconds = (span.time.end - span.time.start) / 1000.0;
        let (before, after) = (&span.before, &span.after);
        let passed_on = before.passed_on.zip(after.passed_on);
        Ok(Window {
            latencies_us: [p50, p95, p99],
            requests_per_second: latencies.len() as f64 / seconds,
            copies_per_second: span.per_second(before.copies, after.copies),
            finder_mb_per_second: span.per_second(before.found_bytes, after.found_bytes) / 1e6,
            passed_on_per_second: passed_on.map(|(before, after)| span.per_second(before, after)),
        })
    }
}

/// The value that this part of the sorted samples does not exceed.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    sorted.get(sorted.len() * percent / 100).copied()
}

/// A window with deduplication, and one without it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) with: Window,
    pub(crate) without: Window,
}

impl Pair {
    /// Cuts both windows out of the log of one load.
    pub(crate) fn cut(requests: &[Request], spans: &Spans) -> Result<Pair> {
        Ok(Pair {
            with: Window::cut(requests, &spans.with)?,
            without: Window::cut(requests, &spans.without)?,
        })
    }

    /// The ratios of the latencies at [`PERCENTILES`].
    pub(crate) fn ratios(&self) -> [f64; PERCENTILES.len()] {
        std::array::from_fn(|n| self.with.latencies_us[n] / self.without.latencies_us[n])
    }
}

/// The spans of a pair.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    pub(crate) with: Span,
    pub(crate) without: Span,
}

/// Measures with deduplication and without it, in either order, and returns the results in this order.
pub(crate) fn in_either_order<T>(
    with_is_first: bool,
    mut measure: impl FnMut(bool) -> Result<T>,
) -> Result<(T, T)> {
    let first = measure(with_is_first)?;
    let second = measure(!with_is_first)?;
    Ok(if with_is_first {
        (first, second)
    } else {
        (second, first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(at_ms: f64, copies: u64, passed_on: Option<u64>) -> Counts {
        Counts {
            at_ms,
            copies,
            found_bytes: copies * 1_000_000,
            passed_on,
        }
    }

    /// A span from `start` to `start` + 100 ms, whose counts are 200 ms apart.
    fn span(start: f64, passed_on: Option<u64>) -> Span {
        Span {
            time: start..start + 100.0,
            before: counts(start - 50.0, 10, Some(5)),
            after: counts(start + 150.0, 30, passed_on),
        }
    }

    /// A request in each millisecond, which took 1 us more than the one before.
    fn requests() -> Vec<Request> {
        let request = |n: u32| Request {
            at_ms: f64::from(n),
            latency_us: f64::from(n),
            is_write: n.is_multiple_of(2),
        };
        (0..1000).map(request).collect()
    }

    #[test]
    fn a_window_has_the_requests_that_were_answered_in_it() {
        let window = Window::cut(&requests(), &span(200.0, Some(9))).unwrap();
        let expected = Window {
            latencies_us: [250.0, 295.0, 299.0],
            requests_per_second: 1000.0,
            copies_per_second: 100.0,
            finder_mb_per_second: 100.0,
            passed_on_per_second: Some(20.0),
        };
        assert_eq!(window, expected);
        assert!(Window::cut(&requests(), &span(2000.0, None)).is_err());
    }

    #[test]
    fn a_count_that_is_missing_once_is_unknown() {
        let window = Window::cut(&requests(), &span(200.0, None)).unwrap();
        assert_eq!(window.passed_on_per_second, None);
    }

    #[test]
    fn percentiles_of_few_samples_are_samples() {
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0, 4.0], 50), Some(3.0));
    }

    #[test]
    fn a_pair_is_the_same_in_either_order() {
        for with_is_first in [true, false] {
            let mut order = Vec::new();
            let measured = in_either_order(with_is_first, |with| {
                order.push(with);
                Ok(span(if with { 400.0 } else { 100.0 }, Some(5)))
            });
            assert_eq!(order, [with_is_first, !with_is_first]);
            let (with, without) = measured.unwrap();
            let pair = Pair::cut(&requests(), &Spans { with, without }).unwrap();
            assert_eq!(pair.ratios(), [450.0 / 150.0, 495.0 / 195.0, 499.0 / 199.0]);
        }
    }
}
