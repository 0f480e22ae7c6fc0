//! Writes on their way from the threads that start them to the thread that submits them to the kernel.
//!
//! A thread puts each started write here, and wakes the submitting thread when it has started all that it has for now:
//! so the kernel receives them together.
//!
//! Invariant: while there are items and the taker sleeps, or is about to, some thread that put an item has yet to call
//! [`Handoff::is_taker_to_wake`].

use super::sync::{Mutex, lock};

/// Items that have not been taken yet.
pub(super) struct Handoff<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    waiting: Vec<T>,
    /// The taker waits to be woken, or is about to.
    taker_sleeps: bool,
    is_closed: bool,
}

impl<T> Handoff<T> {
    pub(super) fn new() -> Handoff<T> {
        Handoff {
            state: Mutex::new(State {
                waiting: Vec::new(),
                taker_sleeps: false,
                is_closed: false,
            }),
        }
    }

    pub(super) fn put(&self, item: T) {
        lock(&self.state).waiting.push(item);
    }

    /// Closes the handoff: no more items will come.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
    }

    /// Whether the caller has to wake the taker: the taker sleeps, there is work for it, and no other caller got this
    /// answer.
    #[must_use]
    pub(super) fn is_taker_to_wake(&self) -> bool {
        let mut state = lock(&self.state);
        let has_something = state.is_closed || !state.waiting.is_empty();
        has_something && std::mem::take(&mut state.taker_sleeps)
    }

    /// Takes all items. Returns whether the handoff is closed; if it is open, the taker sleeps next, until it is woken.
    pub(super) fn take_before_sleep(&self, taken: &mut Vec<T>) -> bool {
        let mut state = lock(&self.state);
        taken.append(&mut state.waiting);
        state.taker_sleeps = !state.is_closed;
        state.is_closed
    }

    /// Notes that the taker is awake, for whatever reason.
    pub(super) fn awake(&self) {
        lock(&self.state).taker_sleeps = false;
    }
}
