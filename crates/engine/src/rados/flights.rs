//! Operations in flight, so that the log can report how many wait for the cluster, and since when.
//!
//! An operation is never cancelled: Ceph keeps it until it can be done, however long that takes, and a cancelled one
//! could still take effect later.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An operation in flight for longer than this is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// In-flight operations of one engine.
#[derive(Default)]
pub(super) struct Flights {
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Default)]
struct State {
    /// Operations by number, in the order in which they began.
    under_way: BTreeMap<u64, Flight>,
    next: u64,
    /// Bytes of in-flight writes.
    bytes: usize,
    /// The last report said that operations wait.
    is_reported: bool,
}

struct Flight {
    began: Instant,
    doing: &'static str,
    object: String,
    bytes: usize,
}

/// Identifies an operation in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket(u64);

impl Flights {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the start of an operation.
    pub(super) fn begin(&self, doing: &'static str, object: &str, bytes: usize) -> Ticket {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.bytes += bytes;
        let flight = Flight {
            began: Instant::now(),
            doing,
            object: object.to_owned(),
            bytes,
        };
        state.under_way.insert(number, flight);
        Ticket(number)
    }

    /// Records the end of an operation.
    pub(super) fn end(&self, ticket: Ticket) {
        let mut state = self.state();
        if let Some(flight) = state.under_way.remove(&ticket.0) {
            state.bytes -= flight.bytes;
        }
        drop(state);
        self.landed.notify_all();
    }

    /// Bytes of in-flight writes.
    pub(super) fn bytes(&self) -> usize {
        self.state().bytes
    }

    /// Waits until fewer bytes than this are in flight.
    pub(super) fn wait_for_room(&self, bytes: usize) {
        let mut state = self.state();
        while state.bytes >= bytes {
            state = self
                .landed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns a report for the user when operations become late, and when none is late any more.
    pub(super) fn news(&self) -> Option<News> {
        let mut state = self.state();
        let oldest = state.under_way.values().next();
        let waited = oldest.map(|flight| flight.began.elapsed());
        let is_late = waited.is_some_and(|waited| waited >= PATIENCE);
        if is_late == state.is_reported {
            return None;
        }
        let news = match (oldest, waited) {
            (Some(flight), Some(waited)) if is_late => News::Waits {
                operations: state.under_way.len(),
                oldest: format!("{} {}", flight.doing, flight.object),
                waited,
            },
            _ => News::GoesOn,
        };
        state.is_reported = is_late;
        Some(news)
    }
}

/// A report on operations that take long.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// At least one operation is late.
    Waits {
        operations: usize,
        oldest: String,
        waited: Duration,
    },
    /// No operation is late any more.
    GoesOn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_reported_once_and_its_end_too() {
        let flights = Flights::default();
        assert_eq!(flights.news(), None);
        let first = flights.begin("writing", "d.1", 10);
        let second = flights.begin("reading", "d.2", 0);
        assert_eq!((flights.news(), flights.bytes()), (None, 10));
        let long_ago = Instant::now().checked_sub(PATIENCE).unwrap();
        flights.state().under_way.get_mut(&0).unwrap().began = long_ago;
        let Some(News::Waits {
            operations, oldest, ..
        }) = flights.news()
        else {
            panic!("nobody is told");
        };
        assert_eq!((operations, oldest.as_str()), (2, "writing d.1"));
        assert_eq!(flights.news(), None);
        flights.end(first);
        assert_eq!(flights.news(), Some(News::GoesOn));
        flights.end(second);
        assert_eq!((flights.news(), flights.bytes()), (None, 0));
        flights.wait_for_room(1);
    }
}
