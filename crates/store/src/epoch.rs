//! Epochs: how it is known that nobody reads a block any more.
//!
//! A read pins the current epoch before it looks a block up and unpins it when the data has been
//! read. A block that a map gave up is tagged with the epoch current at that time; whoever looked
//! it up before pinned that epoch or an earlier one. Once those pins are gone the block is in
//! nobody's hands (P3), in whichever volume the reader was.
//!
//! Pins of the last four epochs are counted apart. The epoch advances only when the counter that
//! the new one takes over has drained, so one slow read delays reuse but never the other reads.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

const COUNTERS: u64 = 4;

/// A counter on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

pub(crate) struct Epochs {
    current: AtomicU64,
    pins: [Counter; COUNTERS as usize],
}

/// Keeps every block that was mapped when it was taken from being reused.
pub(crate) struct Pin<'a> {
    counter: &'a AtomicU64,
}

/// The epoch in which a block was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

impl Epochs {
    pub(crate) fn new() -> Self {
        // Starting above the number of counters keeps the subtraction in `is_drained` positive.
        Self {
            current: AtomicU64::new(COUNTERS),
            pins: Default::default(),
        }
    }

    pub(crate) fn pin(&self) -> Pin<'_> {
        loop {
            let epoch = self.current.load(SeqCst);
            let counter = self.counter(epoch);
            counter.fetch_add(1, SeqCst);
            // The epoch may have moved on before the counter was raised; then the pin might
            // count for a later epoch than the one that whoever gave a block up has seen.
            if self.current.load(SeqCst) == epoch {
                return Pin { counter };
            }
            counter.fetch_sub(1, SeqCst);
        }
    }

    /// The tag for blocks that the maps no longer name.
    pub(crate) fn current(&self) -> Epoch {
        Epoch(self.current.load(SeqCst))
    }

    /// Moves on to the next epoch if its counter is free. To be called by one thread at a time.
    pub(crate) fn advance(&self) {
        let next = self.current.load(SeqCst) + 1;
        if self.counter(next).load(SeqCst) == 0 {
            self.current.store(next, SeqCst);
        }
    }

    /// Whether no read that pinned `epoch` or an earlier one is still under way.
    pub(crate) fn is_drained(&self, epoch: Epoch) -> bool {
        let current = self.current.load(SeqCst);
        let oldest_counted = current - (COUNTERS - 1);
        // Epochs older than that gave their counter away, so they had drained.
        epoch.0 < current
            && (oldest_counted..=epoch.0).all(|old| self.counter(old).load(SeqCst) == 0)
    }

    fn counter(&self, epoch: u64) -> &AtomicU64 {
        &self.pins[(epoch % COUNTERS) as usize].0
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, SeqCst);
    }
}
