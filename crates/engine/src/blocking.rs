//! Whether a call may wait.

/// Whether a call may wait: for the disk, for room, or for another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// Answer from memory, or fail with the callee's error `WouldBlock`. Data that was already written is part of the
    /// request, so the caller simply repeats it.
    No,
    /// Take the time it needs.
    Yes,
}
