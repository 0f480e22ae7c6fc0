//! Whether a request may wait.

/// Whether a request may wait for the disk, for room, or for another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// Answer from memory or fail with [`StoreErrorKind::WouldBlock`](crate::StoreErrorKind::WouldBlock). What has been written by
    /// then is part of what the caller asked for, so that asking again is all there is to do.
    No,
    /// Take the time it needs.
    Yes,
}
