//! The measurements: latencies, and the progress over time.

use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

/// The longest latency that is distinguished: an hour, in nanoseconds.
const LATENCY_MAX: u64 = 3_600_000_000_000;

/// Digits of a latency that are kept.
const DIGITS: u8 = 3;

/// The shortest interval of a timeline.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Intervals that a timeline has at most.
const INTERVALS_MAX: usize = 1024;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Gets data.
    Read,
    /// Puts data.
    Write,
    /// Makes written data durable.
    Flush,
}

/// Requests of one kind.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Bytes of all requests together.
    pub bytes: u64,
    /// Latencies in nanoseconds, to three digits.
    pub latency: Histogram<u64>,
}

/// The measurements of one part of a load.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The requests by kind: reads, writes, flushes.
    operations: [Measured; 3],
    /// Bytes that were read and written, over time.
    pub timeline: Timeline,
}

impl Measurement {
    /// An empty measurement.
    ///
    /// # Errors
    ///
    /// Never: the bounds of the histograms are valid.
    pub(crate) fn new() -> Result<Self, CreationError> {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX, DIGITS)?;
        let none = Measured { bytes: 0, latency };
        Ok(Self {
            operations: [none.clone(), none.clone(), none],
            timeline: Timeline::default(),
        })
    }

    /// The measurements of one kind of request.
    #[must_use]
    pub fn of(&self, operation: Operation) -> &Measured {
        &self.operations[operation as usize]
    }

    /// Adds a request that ended `end` after the start of the measurement.
    pub(crate) fn add(
        &mut self,
        operation: Operation,
        bytes: u64,
        latency: Duration,
        end: Duration,
    ) {
        let measured = &mut self.operations[operation as usize];
        measured.bytes += bytes;
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        measured.latency.saturating_record(nanoseconds.max(1));
        self.timeline.add(operation, bytes, end);
    }

    /// Adds the measurements of another job in the same period.
    pub(crate) fn join(&mut self, mut other: Self) {
        for (own, other) in self.operations.iter_mut().zip(&other.operations) {
            own.bytes += other.bytes;
            // Never fails: both have the same bounds.
            let _ = own.latency.add(&other.latency);
        }
        self.timeline.join(&mut other.timeline);
    }
}

/// How many bytes were read and written in each of a number of equal intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    /// The length of each interval. It doubles whenever there would be more than 1,024 of them.
    pub interval: Duration,
    /// Bytes read and bytes written in each interval.
    pub bytes: Vec<[u64; 2]>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            interval: INTERVAL_MIN,
            bytes: Vec::new(),
        }
    }
}

impl Timeline {
    fn add(&mut self, operation: Operation, bytes: u64, at: Duration) {
        let place = loop {
            let place = (at.as_nanos() / self.interval.as_nanos()) as usize;
            if place < INTERVALS_MAX {
                break place;
            }
            self.coarsen();
        };
        if self.bytes.len() <= place {
            self.bytes.resize(place + 1, [0; 2]);
        }
        if let Some(sum) = self.bytes[place].get_mut(operation as usize) {
            *sum += bytes;
        }
    }

    /// Merges each pair of intervals into one.
    fn coarsen(&mut self) {
        let pairs = self.bytes.chunks(2);
        let sum = |pair: &[[u64; 2]]| {
            let sum = |n: usize| pair.iter().map(|interval| interval[n]).sum();
            [sum(0), sum(1)]
        };
        self.bytes = pairs.map(sum).collect();
        self.interval *= 2;
    }

    fn join(&mut self, other: &mut Self) {
        while self.interval < other.interval {
            self.coarsen();
        }
        while other.interval < self.interval {
            other.coarsen();
        }
        let len = self.bytes.len().max(other.bytes.len());
        self.bytes.resize(len, [0; 2]);
        for (own, other) in self.bytes.iter_mut().zip(&other.bytes) {
            own[0] += other[0];
            own[1] += other[1];
        }
    }
}
