//! Locks on ranges of a volume's blocks.
//!
//! A write holds its blocks from before it looks them up until the map has changed, so no two requests
//! place, rewrite or release the same block at once ([step 3 lock]). The lock is never held across an
//! index call, and across a commit only if the writer itself needs one. Reads take no lock: they pin an
//! epoch instead. A write in place past the host's cache keeps its blocks locked until the device has
//! written them, although its thread already does other work.
//!
//! Ranges are granted in the order of arrival where they overlap, so a large TRIM is not starved
//! by small writes, and two requests can never wait for each other.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use onefold_engine::Blocking;

use crate::sync::{Condvar, Mutex, lock};

/// The locked ranges of one volume.
#[derive(Default)]
pub struct BlockLocks {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// In order of arrival. A range is granted once no earlier range overlaps it. The list is
    /// short: one for each thread that is inside a request, and one for each write in flight
    /// without a thread.
    ranges: Vec<(u64, Range<u64>)>,
    next_ticket: u64,
    waiting: usize,
}

/// Holds a range of blocks until it is dropped, on any thread.
pub struct BlockGuard {
    locks: Arc<BlockLocks>,
    ticket: u64,
}

impl BlockLocks {
    /// Locks `blocks`; `None` if they are in use and the caller must not block.
    pub fn lock(self: &Arc<Self>, blocks: Range<u64>, blocking: Blocking) -> Option<BlockGuard> {
        let mut queue = lock(&self.queue);
        let free = !queue.is_blocked(u64::MAX, &blocks);
        if !free && blocking == Blocking::No {
            return None;
        }
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.ranges.push((ticket, blocks.clone()));
        if !free {
            queue.waiting += 1;
            while queue.is_blocked(ticket, &blocks) {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            queue.waiting -= 1;
        }
        Some(BlockGuard {
            locks: Arc::clone(self),
            ticket,
        })
    }
}

impl Queue {
    /// Whether a range that came before `ticket` overlaps `blocks`.
    fn is_blocked(&self, ticket: u64, blocks: &Range<u64>) -> bool {
        let overlaps = |other: &Range<u64>| other.start < blocks.end && blocks.start < other.end;
        self.ranges
            .iter()
            .any(|(before, range)| *before < ticket && overlaps(range))
    }
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        let mut queue = lock(&self.locks.queue);
        queue.ranges.retain(|(ticket, _)| *ticket != self.ticket);
        if queue.waiting > 0 {
            self.locks.changed.notify_all();
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::sync::atomic::Ordering::SeqCst;

    use onefold_engine::Blocking;
    use shuttle::thread;

    use super::{Arc, BlockLocks};
    use crate::sync::{AtomicU64, lock};

    /// Shuttle itself fails if all threads wait: a lost wake-up or a deadlock.
    #[test]
    fn shuttle_overlapping_ranges_exclude_each_other() {
        shuttle::check_random(
            || {
                let locks = Arc::new(BlockLocks::default());
                let users: Arc<[AtomicU64; 4]> = Arc::default();
                let ranges = [0..2, 1..3, 0..4, 3..4].map(|range| {
                    let (locks, users) = (Arc::clone(&locks), Arc::clone(&users));
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let guard = locks.lock(range.clone(), Blocking::Yes);
                            for block in range.clone() {
                                assert_eq!(users[block as usize].fetch_add(1, SeqCst), 0);
                            }
                            thread::yield_now();
                            for block in range.clone() {
                                users[block as usize].fetch_sub(1, SeqCst);
                            }
                            drop(guard);
                        }
                    })
                });
                for thread in ranges {
                    thread.join().unwrap();
                }
                assert!(lock(&locks.queue).ranges.is_empty());
            },
            5_000,
        );
    }

    #[test]
    fn shuttle_a_large_range_is_not_overtaken() {
        shuttle::check_random(
            || {
                let locks = Arc::new(BlockLocks::default());
                let first = locks.lock(0..1, Blocking::Yes);
                let large = {
                    let locks = Arc::clone(&locks);
                    thread::spawn(move || drop(locks.lock(0..4, Blocking::Yes)))
                };
                while lock(&locks.queue).waiting == 0 {
                    thread::yield_now();
                }
                assert!(locks.lock(3..4, Blocking::No).is_none());
                drop(first);
                drop(locks.lock(3..4, Blocking::Yes));
                large.join().unwrap();
            },
            2_000,
        );
    }
}
