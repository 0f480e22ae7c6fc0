//! The right to change an estate, and its end.
//!
//! An owner that the cluster no longer confirms submits no operation of the estate's parts until it is confirmed again;
//! one that has lost the estate, or has given it up, never submits any again.

use super::head::Session;
use super::names::Estate;
use crate::cluster::{OnEvent, OwnerEvent};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The right to change an estate.
pub(super) struct Ownership {
    estate: Estate,
    session: Session,
    /// Whether it stands, and the callback for its end. No other lock is taken while this one is held.
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Standing,
    /// Operations that were admitted and have not ended.
    in_flight: usize,
    on_event: Option<Arc<OnEvent>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Owner,
    /// The cluster no longer confirms the owner.
    Unconfirmed,
    /// This process gives the estate up, and submits nothing more.
    GivenUp,
    Lost(Loss),
}

/// An operation that was admitted. Dropped when it ends.
#[must_use]
pub(super) struct Admitted(Arc<Ownership>);

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_flight -= 1;
        let was_last = state.in_flight == 0;
        drop(state);
        if was_last {
            self.0.changed.notify_all();
        }
    }
}

/// Why an owner lost its estate.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Loss {
    /// Taken by another host; the text says how this was noticed.
    Taken(String),
    /// The cluster has no head any more.
    Gone,
    /// This process has removed the estate.
    Removed,
}

impl Loss {
    fn event(&self) -> Option<OwnerEvent> {
        match self {
            Loss::Taken(reason) => Some(OwnerEvent::Lost {
                reason: reason.clone(),
            }),
            Loss::Gone => Some(OwnerEvent::Gone),
            Loss::Removed => None,
        }
    }

    /// The error of every operation that is submitted afterwards.
    fn error(&self, estate: Estate) -> io::Error {
        let title = estate.title();
        io::Error::other(match self {
            Loss::Taken(reason) => format!(
                "another host has taken {title} ({reason}); this process can not use it any more"
            ),
            Loss::Gone if estate == Estate::Pool => {
                "the cluster has no such pool any more".to_owned()
            }
            Loss::Gone | Loss::Removed => format!("the cluster has no {title} any more"),
        })
    }
}

impl Ownership {
    pub(super) fn new(estate: Estate, session: Session) -> Ownership {
        Ownership {
            estate,
            session,
            state: Mutex::new(State {
                standing: Standing::Owner,
                in_flight: 0,
                on_event: None,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn estate(&self) -> Estate {
        self.estate
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an operation may be submitted. Fails once the estate is lost or given up.
    pub(super) fn admit(self: &Arc<Self>) -> io::Result<Admitted> {
        let mut state = self.state();
        loop {
            match &state.standing {
                Standing::Owner => {
                    state.in_flight += 1;
                    return Ok(Admitted(Arc::clone(self)));
                }
                Standing::Lost(loss) => return Err(loss.error(self.estate)),
                Standing::GivenUp => {
                    let title = self.estate.title();
                    return Err(io::Error::other(format!(
                        "this process has given {title} up"
                    )));
                }
                Standing::Unconfirmed => state = self.wait(state),
            }
        }
    }

    /// Admits no more operations, and waits for those in flight, unless the estate is lost: the next owner may rely on the
    /// end of all operations of this one (P7).
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        if !matches!(state.standing, Standing::Lost(_)) {
            state.standing = Standing::GivenUp;
        }
        self.changed.notify_all();
        while state.in_flight > 0 && state.standing == Standing::GivenUp {
            state = self.wait(state);
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that another host has taken the estate.
    pub(super) fn lose(&self, reason: &str) {
        self.end_by(Loss::Taken(reason.to_owned()));
    }

    /// Records that the cluster has no head any more.
    pub(super) fn lose_head(&self) {
        self.end_by(Loss::Gone);
    }

    /// Records that this process has removed the estate.
    pub(super) fn end_removed(&self) {
        self.end_by(Loss::Removed);
    }

    fn end_by(&self, loss: Loss) {
        let mut state = self.state();
        if matches!(state.standing, Standing::Lost(_)) {
            return;
        }
        let event = loss.event();
        state.standing = Standing::Lost(loss);
        let on_event = state.on_event.clone();
        drop(state);
        self.changed.notify_all();
        if let (Some(on_event), Some(event)) = (on_event, event) {
            on_event(event);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state().standing, Standing::Lost(_))
    }

    pub(super) fn confirm(&self, is_confirmed: bool) {
        let mut state = self.state();
        let standing = if is_confirmed {
            Standing::Owner
        } else {
            Standing::Unconfirmed
        };
        let is_over = matches!(state.standing, Standing::GivenUp | Standing::Lost(_));
        if state.standing == standing || is_over {
            return;
        }
        state.standing = standing;
        drop(state);
        self.changed.notify_all();
        let title = self.estate.title();
        if is_confirmed {
            tracing::info!("the cluster confirms this owner of {title} again");
        } else {
            tracing::warn!(
                "the cluster does not confirm this owner of {title} any more: nothing is sent until it does"
            );
        }
    }

    /// Sets the callback for events. Calls it at once if the estate is lost already.
    pub(super) fn set_on_event(&self, on_event: OnEvent) {
        let on_event = Arc::new(on_event);
        let mut state = self.state();
        state.on_event = Some(Arc::clone(&on_event));
        let standing = state.standing.clone();
        drop(state);
        if let Standing::Lost(loss) = standing
            && let Some(event) = loss.event()
        {
            on_event(event);
        }
    }

    /// Passes on that another host wants the estate. Returns whether there is a callback.
    pub(super) fn want_release(&self) -> bool {
        let on_event = self.state().on_event.clone();
        let is_heard = on_event.is_some();
        if let Some(on_event) = on_event {
            on_event(OwnerEvent::ReleaseWanted);
        }
        is_heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn an_owner_gives_up_once_no_operation_is_in_flight() {
        let session = Session {
            id: "a".to_owned(),
            number: 0,
        };
        let ownership = Arc::new(Ownership::new(Estate::Pool, session));
        let in_flight = ownership.admit().unwrap();
        let (told, hears) = mpsc::channel();
        let gives_up = Arc::clone(&ownership);
        let thread = thread::spawn(move || {
            gives_up.give_up();
            told.send(()).unwrap();
        });
        assert!(hears.recv_timeout(Duration::from_millis(50)).is_err());
        let refused = ownership.admit().err().unwrap();
        assert!(refused.to_string().contains("given"), "{refused}");
        assert!(!ownership.is_lost());
        drop(in_flight);
        hears.recv().unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn an_unconfirmed_owner_waits_and_one_that_lost_the_pool_fails() {
        let session = Session {
            id: "a".to_owned(),
            number: 0,
        };
        let ownership = Arc::new(Ownership::new(Estate::Pool, session));
        drop(ownership.admit().unwrap());
        ownership.confirm(false);
        let (told, hears) = mpsc::channel();
        let waits = Arc::clone(&ownership);
        let of_thread = told.clone();
        let thread = thread::spawn(move || of_thread.send(waits.admit().is_ok()).unwrap());
        let early = hears.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err());
        ownership.confirm(true);
        assert!(hears.recv().unwrap());
        thread.join().unwrap();
        ownership.lose("a test");
        ownership.confirm(true);
        let refused = ownership.admit().err().unwrap();
        assert!(refused.to_string().contains("a test"), "{refused}");
        let (told, hears) = mpsc::channel();
        ownership.set_on_event(Box::new(move |event| told.send(event).unwrap()));
        let reason = "a test".to_owned();
        assert_eq!(hears.recv().unwrap(), OwnerEvent::Lost { reason });
    }
}
