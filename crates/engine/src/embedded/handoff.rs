//! Writes on their way from the threads that start them to the one that gives them to the kernel.
//!
//! A thread that starts a write leaves it here, and wakes the other thread when it has started all that it
//! has for now: so the kernel gets them together.
//!
//! Invariant: while something is here and the taker sleeps, or is about to, some thread that put something
//! here has yet to call [`Handoff::is_taker_to_wake`].

use super::sync::{Mutex, lock};

/// What was put here and not yet taken.
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

    /// Nothing more will come.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
    }

    /// Whether the caller has to wake the taker: it sleeps, there is something for it, and nobody else has
    /// been told so.
    #[must_use]
    pub(super) fn is_taker_to_wake(&self) -> bool {
        let mut state = lock(&self.state);
        let has_something = state.is_closed || !state.waiting.is_empty();
        has_something && std::mem::take(&mut state.taker_sleeps)
    }

    /// Everything that is here. The taker then sleeps until it is woken, unless it is told that nothing more
    /// will come.
    pub(super) fn take_before_sleep(&self, taken: &mut Vec<T>) -> bool {
        let mut state = lock(&self.state);
        taken.append(&mut state.waiting);
        state.taker_sleeps = !state.is_closed;
        state.is_closed
    }

    /// The taker is awake, for whatever reason.
    pub(super) fn awake(&self) {
        lock(&self.state).taker_sleeps = false;
    }
}
