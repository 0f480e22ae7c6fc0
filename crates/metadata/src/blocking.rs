//! Whether a request may wait.

/// Whether a request may wait for the disk, for room, or for another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// Answer from memory or fail with
    /// [`StoreErrorKind::WouldBlock`](crate::StoreErrorKind::WouldBlock). Data written by then is
    /// part of the request, so the caller simply asks again.
    No,
    /// Take the time it needs.
    Yes,
}
