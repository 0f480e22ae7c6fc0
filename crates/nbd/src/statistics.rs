//! Counts of clients' requests.
//!
//! Each connection counts in separate memory, so that connections do not slow each other down; the
//! threads that serve one connection share its counters. A snapshot adds up the existing
//! connections and the registry's totals of ended ones.
//!
//! Invariants:
//! - A request that has arrived whole is counted exactly once, whichever thread answers it, and
//!   before its reply is sent: a client that has a reply finds it counted.
//! - A request that does not arrive whole is not counted, except a write that has begun with the
//!   first piece of its payload. Requests to disconnect are not counted.
//! - Totals never go down, except by [`crate::Server::forget_statistics`].

use crate::wire::{Request, command};
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds, inclusive, of all buckets of a [`Histogram`] but the last, which has none: 16 µs
/// and its doubles up to 8.4 s. Less than the first is the time of a system call or two; more than
/// the last means that a disk does not answer, or that a volume waits for space.
pub const DURATION_BUCKETS: [Duration; 20] = {
    let mut bounds = [Duration::ZERO; 20];
    let mut n = 0;
    while n < bounds.len() {
        bounds[n] = Duration::from_nanos(FIRST_BOUND_NANOSECONDS << n);
        n += 1;
    }
    bounds
};

const FIRST_BOUND_NANOSECONDS: u64 = 16_000;

const BUCKETS: usize = DURATION_BUCKETS.len() + 1;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// Send data.
    Read,
    /// Store data.
    Write,
    /// Make answered requests durable.
    Flush,
    /// Forget data.
    Trim,
    /// Store zeros.
    Zero,
    /// Bring data into memory.
    Cache,
    /// Send the states of a range.
    Status,
    /// Something that the server does not know.
    Other,
}

impl Op {
    /// All kinds of requests.
    pub const ALL: [Op; 8] = [
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Trim,
        Op::Zero,
        Op::Cache,
        Op::Status,
        Op::Other,
    ];

    /// The kind's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Trim => "trim",
            Op::Zero => "zero",
            Op::Cache => "cache",
            Op::Status => "status",
            Op::Other => "other",
        }
    }

    fn of(command: u16) -> Self {
        match command {
            command::READ => Op::Read,
            command::WRITE => Op::Write,
            command::FLUSH => Op::Flush,
            command::TRIM => Op::Trim,
            command::WRITE_ZEROES => Op::Zero,
            command::CACHE => Op::Cache,
            command::BLOCK_STATUS => Op::Status,
            _ => Op::Other,
        }
    }

    /// Whether the lengths of these requests are counted.
    fn has_bytes(self) -> bool {
        matches!(self, Op::Read | Op::Write | Op::Trim | Op::Zero)
    }
}

/// A value for each [`Op`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerOp<T>([T; Op::ALL.len()]);

impl<T> Index<Op> for PerOp<T> {
    type Output = T;
    fn index(&self, op: Op) -> &T {
        &self.0[op as usize]
    }
}

impl<T> IndexMut<Op> for PerOp<T> {
    fn index_mut(&mut self, op: Op) -> &mut T {
        &mut self.0[op as usize]
    }
}

/// Numbers of requests by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcomes {
    /// Answered without an error.
    pub ok: u64,
    /// Answered with an error, or not at all: the request panicked, or its connection broke before
    /// the reply was ready.
    pub error: u64,
}

/// The requests of a client, or of all clients of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Requests that arrived whole, without disconnect requests. A request that waits for space, or
    /// for anything else, is counted when it is answered.
    pub requests: PerOp<Outcomes>,
    /// Bytes of the data sent and stored, and of the ranges trimmed and zeroed, by requests that
    /// succeeded. Zero for other ops.
    pub bytes: PerOp<u64>,
    /// Requests that found no free thread of the server, or none in their volume's share. A request that waits for
    /// space is counted each time it is retried and finds none.
    pub waited_for_worker: u64,
}

/// How long requests took: from having been read from the socket, with their payload, until their
/// replies are handed to the send queue. Replies to requests that came with one read go out together.
/// A large write for which there is no large buffer is timed from its first piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    /// Requests that took at most the bound in [`DURATION_BUCKETS`] and more than the one before it.
    /// The last bucket is for durations above all bounds. Not cumulative.
    pub buckets: [u64; BUCKETS],
    /// All durations together.
    pub sum: Duration,
}

impl Histogram {
    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The counts of one export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExportStatistics {
    /// Clients that are attached now.
    pub clients: usize,
    /// The requests of the export's present and former clients.
    pub totals: Totals,
}

/// The counts since the server started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerStatistics {
    /// By the name of the export; only exports that have had a client.
    pub exports: BTreeMap<String, ExportStatistics>,
    /// Durations across all exports, including forgotten ones, with both outcomes.
    pub durations: PerOp<Histogram>,
}

impl ServerStatistics {
    /// Adds the counters of one connection to `export`.
    pub(crate) fn add(&mut self, export: &str, counters: &Counters) -> &mut ExportStatistics {
        let of_export = self.exports.entry(export.to_owned()).or_default();
        of_export.totals.waited_for_worker += counters.waited_for_worker.load(Ordering::Relaxed);
        for op in Op::ALL {
            counters.ops[op as usize].add_to(op, &mut of_export.totals, &mut self.durations[op]);
        }
        of_export
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Error,
}

impl Outcome {
    pub(crate) fn of<T, E>(done: &Result<T, E>) -> Self {
        match done {
            Ok(_) => Outcome::Ok,
            Err(_) => Outcome::Error,
        }
    }
}

/// A request that has arrived whole and is not counted yet. Counting it consumes it.
#[derive(Debug)]
pub(crate) struct Received {
    op: Op,
    bytes: u64,
    at: Instant,
}

impl Received {
    pub(crate) fn new(request: &Request, at: Instant) -> Self {
        let op = Op::of(request.command);
        let bytes = if op.has_bytes() {
            request.len.into()
        } else {
            0
        };
        Self { op, bytes, at }
    }
}

/// The counters of one connection, in separate cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    ops: [OpCounters; Op::ALL.len()],
    waited_for_worker: AtomicU64,
    has_asked: AtomicBool,
}

/// All counters are relaxed: a snapshot does not have to be of one moment, and each value only goes
/// up.
#[derive(Debug, Default)]
struct OpCounters {
    /// Requests by duration. The number of requests is the sum and has no counter.
    ok: [AtomicU64; BUCKETS],
    error: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Notes that the client has sent a request, whole or not.
    pub(crate) fn note_request(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Counts a request that has to wait for a worker.
    pub(crate) fn note_wait(&self) {
        self.waited_for_worker.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Counts a request whose reply is about to be sent.
    pub(crate) fn count(&self, request: Received, outcome: Outcome, now: Instant) {
        let counters = &self.ops[request.op as usize];
        let duration = now.saturating_duration_since(request.at);
        // Enough for 584 years.
        let nanoseconds = duration.as_nanos() as u64;
        let buckets = match outcome {
            Outcome::Ok => &counters.ok,
            Outcome::Error => &counters.error,
        };
        buckets[bucket_of(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        counters
            .nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
        if outcome == Outcome::Ok && request.bytes > 0 {
            counters.bytes.fetch_add(request.bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals {
            waited_for_worker: self.waited_for_worker.load(Ordering::Relaxed),
            ..Totals::default()
        };
        for op in Op::ALL {
            self.ops[op as usize].add_to(op, &mut totals, &mut Histogram::default());
        }
        totals
    }
}

impl OpCounters {
    fn add_to(&self, op: Op, totals: &mut Totals, durations: &mut Histogram) {
        let outcomes = &mut totals.requests[op];
        for (ended, total) in [
            (&self.ok, &mut outcomes.ok),
            (&self.error, &mut outcomes.error),
        ] {
            for (bucket, sum) in ended.iter().zip(&mut durations.buckets) {
                let count = bucket.load(Ordering::Relaxed);
                *total += count;
                *sum += count;
            }
        }
        durations.sum += Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed));
        totals.bytes[op] += self.bytes.load(Ordering::Relaxed);
    }
}

fn bucket_of(nanoseconds: u64) -> usize {
    let doubles = nanoseconds.saturating_sub(1) / FIRST_BOUND_NANOSECONDS;
    ((u64::BITS - doubles.leading_zeros()) as usize).min(DURATION_BUCKETS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        assert_eq!(bucket_of(0), 0);
        for (n, bound) in DURATION_BUCKETS.iter().enumerate() {
            let nanoseconds = bound.as_nanos() as u64;
            assert_eq!(bucket_of(nanoseconds), n);
            assert_eq!(bucket_of(nanoseconds + 1), n + 1);
        }
        assert_eq!(bucket_of(u64::MAX), DURATION_BUCKETS.len());
    }

    #[test]
    fn ops_are_in_the_order_of_their_numbers() {
        assert!(Op::ALL.iter().map(|op| *op as usize).eq(0..Op::ALL.len()));
    }

    #[test]
    fn connections_to_an_export_are_added_up_and_failed_requests_have_no_bytes() {
        let now = Instant::now();
        let request = |command, len| {
            let (flags, cookie, offset) = (0, 1, 0);
            let request = Request {
                flags,
                command,
                cookie,
                offset,
                len,
            };
            Received::new(&request, now)
        };
        let (one, other) = (Counters::default(), Counters::default());
        let later = now + Duration::from_micros(20);
        one.count(request(command::WRITE, 4096), Outcome::Ok, later);
        one.count(request(command::WRITE, 4096), Outcome::Error, later);
        one.count(request(command::FLUSH, 77), Outcome::Ok, now);
        other.count(request(command::WRITE, 512), Outcome::Ok, now);
        other.count(request(99, 512), Outcome::Error, now);

        let mut statistics = ServerStatistics::default();
        statistics.add("a", &one);
        let of_a = statistics.add("a", &other);
        assert_eq!(
            of_a.totals.requests[Op::Write],
            Outcomes { ok: 2, error: 1 }
        );
        assert_eq!(
            of_a.totals.requests[Op::Flush],
            Outcomes { ok: 1, error: 0 }
        );
        assert_eq!(
            of_a.totals.requests[Op::Other],
            Outcomes { ok: 0, error: 1 }
        );
        assert_eq!(of_a.totals.bytes[Op::Write], 4608);
        assert_eq!(of_a.totals.bytes[Op::Flush], 0);
        let writes = statistics.durations[Op::Write];
        assert_eq!((writes.buckets[0], writes.buckets[1]), (1, 2));
        assert_eq!(writes.count(), 3);
        assert_eq!(writes.sum, Duration::from_micros(40));
        assert_eq!(
            one.totals().requests[Op::Write],
            Outcomes { ok: 1, error: 1 }
        );
    }
}
