//! Epochs: how to find out that no read of a block is left.
//!
//! A read pins the current epoch before it looks a block up and unpins it when the data has been
//! read. A released block is tagged with the epoch current at that time; a read that looked it up
//! before pinned that epoch or an earlier one. Once those pins are gone no reader has the block
//! (P3), in whichever volume the reader was.
//!
//! Pins of the last four epochs are counted separately. The epoch advances only when the counter
//! that the new one takes over has drained, so one slow read delays reuse but never the other
//! reads.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_metadata::sync::AtomicU64;

const COUNTERS: u64 = 4;

/// A counter that has a cache line to itself.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

/// The readers of blocks, counted by the epoch in which they began.
pub struct Epochs {
    current: AtomicU64,
    pins: [Counter; COUNTERS as usize],
}

/// Prevents the reuse of every block that was mapped when the pin was taken.
pub struct Pin<'a> {
    counter: &'a AtomicU64,
}

/// A [`Pin`] that another thread can drop later.
pub struct LongPin {
    epochs: Arc<Epochs>,
    epoch: u64,
}

/// The epoch in which a block was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Epochs {
    pub(super) fn new() -> Self {
        // Starting above the number of counters keeps the subtraction in `is_drained` positive.
        Self {
            current: AtomicU64::new(COUNTERS),
            pins: Default::default(),
        }
    }

    /// Prevents the reuse of every block that is mapped now (P3).
    pub fn pin(&self) -> Pin<'_> {
        let counter = self.counter(self.count_reader());
        Pin { counter }
    }

    /// Like [`Epochs::pin`], for a read that ends on another thread.
    pub fn pin_long(self: &Arc<Self>) -> LongPin {
        LongPin {
            epoch: self.count_reader(),
            epochs: Arc::clone(self),
        }
    }

    /// Counts a reader in the current epoch, and returns the epoch.
    fn count_reader(&self) -> u64 {
        loop {
            let epoch = self.current.load(SeqCst);
            let counter = self.counter(epoch);
            counter.fetch_add(1, SeqCst);
            // The epoch may have moved on before the counter was raised; then the pin might count
            // for a later epoch than the one that the releasing thread has seen.
            if self.current.load(SeqCst) == epoch {
                return epoch;
            }
            counter.fetch_sub(1, SeqCst);
        }
    }

    /// The tag for blocks that the maps no longer refer to: blocks released from now on get this epoch or a
    /// later one.
    pub fn current(&self) -> Epoch {
        Epoch(self.current.load(SeqCst))
    }

    /// Advances to the next epoch if its counter is free. Only one thread at a time may call this.
    pub(super) fn advance(&self) {
        let next = self.current.load(SeqCst) + 1;
        if self.counter(next).load(SeqCst) == 0 {
            self.current.store(next, SeqCst);
        }
    }

    /// Whether no read that pinned `epoch` or an earlier one is still in flight.
    pub(super) fn is_drained(&self, epoch: Epoch) -> bool {
        let current = self.current.load(SeqCst);
        let oldest_counted = current - (COUNTERS - 1);
        // Older epochs gave their counter away, so they had drained.
        epoch.0 < current
            && (oldest_counted..=epoch.0).all(|old| self.counter(old).load(SeqCst) == 0)
    }

    fn counter(&self, epoch: u64) -> &AtomicU64 {
        &self.pins[(epoch % COUNTERS) as usize].0
    }
}

impl Drop for LongPin {
    fn drop(&mut self) {
        self.epochs.counter(self.epoch).fetch_sub(1, SeqCst);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, SeqCst);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use shuttle::sync::mpsc::channel;
    use shuttle::thread;

    use super::{COUNTERS, Epoch, Epochs};
    use onefold_metadata::sync::{AtomicU64, Mutex, lock};

    /// A map of one entry, which refers to one block after another, each once.
    struct OneEntry {
        epochs: Epochs,
        entry: AtomicU64,
        /// Blocks that were released and not reused yet.
        deferred_frees: Mutex<Vec<(Epoch, u64)>>,
        reused_below: AtomicU64,
    }

    impl OneEntry {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                epochs: Epochs::new(),
                entry: AtomicU64::new(0),
                deferred_frees: Mutex::default(),
                reused_below: AtomicU64::new(0),
            })
        }

        fn replace(&self, block: u64) {
            self.entry.store(block + 1, SeqCst);
            let tag = self.epochs.current();
            lock(&self.deferred_frees).push((tag, block));
        }

        fn reclaim(&self) {
            self.epochs.advance();
            lock(&self.deferred_frees).retain(|(tag, block)| {
                let drained = self.epochs.is_drained(*tag);
                if drained {
                    self.reused_below.fetch_max(block + 1, SeqCst);
                }
                !drained
            });
        }

        fn assert_not_reused(&self, block: u64) {
            let is_reused = self.reused_below.load(SeqCst) > block;
            assert!(
                !is_reused,
                "block {block} was reused while it was being read"
            );
        }
    }

    /// Readers, a thread that releases blocks, and one that advances the epoch and reuses blocks.
    #[test]
    fn shuttle_no_block_is_reused_while_it_is_read() {
        let interleave = || {
            let one = OneEntry::new();
            let reader = || {
                let one = Arc::clone(&one);
                thread::spawn(move || {
                    let _pin = one.epochs.pin();
                    let block = one.entry.load(SeqCst);
                    thread::yield_now();
                    one.assert_not_reused(block);
                })
            };
            let readers = [reader(), reader()];
            let giver = {
                let one = Arc::clone(&one);
                thread::spawn(move || (0..2).for_each(|block| one.replace(block)))
            };
            let reclaimer = {
                let one = Arc::clone(&one);
                thread::spawn(move || (0..COUNTERS).for_each(|_| one.reclaim()))
            };
            for thread in readers.into_iter().chain([giver, reclaimer]) {
                thread.join().unwrap();
            }
            // No reads are left, so everything drains.
            one.reclaim();
            one.reclaim();
            assert!(lock(&one.deferred_frees).is_empty());
        };
        shuttle::check_random(interleave, 20_000);
    }

    /// A reader that stops inside `pin` while the epoch goes round all counters. The second check
    /// of the epoch is for this case: without it this test fails.
    #[test]
    fn shuttle_a_reader_may_be_slow_to_pin() {
        let interleave = || {
            let one = OneEntry::new();
            let (resolved, when_resolved) = channel();
            let (reclaimed, when_reclaimed) = channel();
            let giver = {
                let one = Arc::clone(&one);
                thread::spawn(move || {
                    when_resolved.recv().unwrap();
                    one.replace(0);
                })
            };
            let reader = {
                let one = Arc::clone(&one);
                thread::spawn(move || {
                    let _pin = one.epochs.pin();
                    let block = one.entry.load(SeqCst);
                    resolved.send(()).unwrap();
                    when_reclaimed.recv().unwrap();
                    one.assert_not_reused(block);
                })
            };
            for _ in 0..COUNTERS {
                one.reclaim();
            }
            reclaimed.send(()).unwrap();
            for thread in [giver, reader] {
                thread.join().unwrap();
            }
        };
        shuttle::check_pct(interleave, 20_000, 4);
    }
}
