//! Which part of the log's ring is in use.

use std::sync::atomic::Ordering::SeqCst;

use onefold_metadata::sync::AtomicU64;

/// The used part of the log's ring.
pub(super) struct LogSpan {
    pub(super) ring_bytes: u64,
    start: AtomicU64,
    end: AtomicU64,
    /// Bytes that are sealed and being written.
    sealed: AtomicU64,
}

impl LogSpan {
    pub(super) fn new(ring_bytes: u64, start: u64, end: u64) -> Self {
        let (start, end) = (AtomicU64::new(start), AtomicU64::new(end));
        Self {
            ring_bytes,
            start,
            end,
            sealed: AtomicU64::new(0),
        }
    }

    /// Bytes that a replay would read now, including a commit in progress.
    pub(super) fn used(&self) -> u64 {
        self.end.load(SeqCst) + self.sealed.load(SeqCst) - self.start.load(SeqCst)
    }

    pub(super) fn seal(&self, bytes: u64) {
        self.sealed.store(bytes, SeqCst);
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, SeqCst);
        self.sealed.store(0, SeqCst);
    }

    pub(super) fn set_start(&self, start: u64) {
        self.start.store(start, SeqCst);
    }
}
