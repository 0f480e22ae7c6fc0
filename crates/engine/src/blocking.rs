//! Whether a call may wait.

/// Whether a call may wait: for the disk, for room, or for another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// Answer from memory, or fail with the callee's error `WouldBlock`. Data written by then is
    /// part of the request, so the caller simply asks again.
    No,
    /// Take the time it needs.
    Yes,
}
