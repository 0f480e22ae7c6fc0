//! Operations on a pool's objects, as its owner submits them.

use super::flights::Flights;
use super::head::SESSION_KEY;
use super::ownership::Ownership;
use onefold_rados::{Create, Pool, WhenFull, WriteOp};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What the disks of one engine share.
pub(super) struct Cluster {
    pub(super) pool: Pool,
    pub(super) ownership: Arc<Ownership>,
    pub(super) flights: Arc<Flights>,
    /// Bytes by which parts have grown since the cluster was asked for room.
    unasked_bytes: Mutex<u64>,
}

/// The object that is made to ask for room.
pub(super) const ROOM: &str = "g.0.room";

/// So much do parts grow without a question: little beside what a cluster keeps free when it is full (3 % by default), and
/// so much that the question takes no time.
const UNASKED_BYTES_MAX: u64 = 16 << 20;

impl Cluster {
    pub(super) fn new(pool: Pool, ownership: Arc<Ownership>) -> Cluster {
        Cluster {
            pool,
            ownership,
            flights: Arc::default(),
            unasked_bytes: Mutex::default(),
        }
    }

    /// Submits a change; `ended` hears of it on a thread of librados, or at once.
    pub(super) fn submit(
        &self,
        object: &str,
        change: ObjectChange,
        when_full: WhenFull,
        ended: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        if let Err(error) = self.ownership.admit() {
            return ended(Err(error));
        }
        let ObjectChange { op, doing, bytes } = change;
        let ticket = self.flights.begin(doing, object, bytes);
        let (flights, ownership) = (Arc::clone(&self.flights), Arc::clone(&self.ownership));
        self.pool
            .submit_write(object, op, when_full, move |changed| {
                flights.end(ticket);
                let changed = changed.map(drop);
                if let Err(error) = &changed {
                    check_owned(&ownership, error);
                }
                ended(changed);
            });
    }

    /// Submits reads of an object, each a place there and a length, as one operation; it is counted among what is
    /// under way. `ended` gets the bytes that each of them found, fewer than asked for at the object's end, or nothing
    /// if there is no such object.
    pub(super) fn read(
        &self,
        object: &str,
        places: impl IntoIterator<Item = (u64, usize)>,
        ended: impl FnOnce(io::Result<Option<Vec<Vec<u8>>>>) + Send + 'static,
    ) {
        if let Err(error) = self.ownership.admit() {
            return ended(Err(error));
        }
        let mut op = self.pool.read_op();
        for (offset, len) in places {
            op = op.read(offset, len);
        }
        let ticket = self.flights.begin("reading", object, 0);
        let (flights, ownership) = (Arc::clone(&self.flights), Arc::clone(&self.ownership));
        self.pool.submit_read(object, op, move |read| {
            flights.end(ticket);
            ended(match read {
                Ok(reply) => Ok(Some(reply.data)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => {
                    check_owned(&ownership, &error);
                    Err(error)
                }
            });
        });
    }

    /// Submits a change, and waits for its end.
    pub(super) fn change(&self, object: &str, change: ObjectChange) -> io::Result<()> {
        self.change_if(object, change, WhenFull::Go)
    }

    fn change_if(&self, object: &str, change: ObjectChange, when_full: WhenFull) -> io::Result<()> {
        let all = Countdown::new(1);
        self.submit(object, change, when_full, all.part());
        all.wait()
    }

    /// Asks for the room by which a part is about to grow, in bytes. `StorageFull` or `QuotaExceeded` if the
    /// cluster is full.
    ///
    /// Parts grow whether there is room or not, because what was promised to them must be there when nothing else
    /// is: so the cluster is asked before that, by an object which is made and removed again.
    pub(super) fn grows(&self, bytes: u64) -> io::Result<()> {
        let mut unasked = (self.unasked_bytes.lock()).unwrap_or_else(PoisonError::into_inner);
        *unasked = unasked.saturating_add(bytes);
        if *unasked < UNASKED_BYTES_MAX {
            return Ok(());
        }
        let remove = || ObjectChange {
            op: self.pool.write_op().remove(),
            doing: "removing",
            bytes: 0,
        };
        // One that a process left when it died would have the room that this asks for.
        match self.change(ROOM, remove()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let make = ObjectChange {
            op: self.pool.write_op().write(0, &[1]),
            doing: "writing",
            bytes: 1,
        };
        self.change_if(ROOM, make, WhenFull::Fail)?;
        *unasked = 0;
        // The next question removes it, or the end of the pool.
        let _ = self.change(ROOM, remove());
        Ok(())
    }

    /// A change that only the owner can make, of an object that has an owner.
    pub(super) fn asserted(&self) -> WriteOp {
        super::head::asserted(&self.pool, self.ownership.session())
    }

    /// A change of an object that belongs to this owner from now on. One that is not known to be there is made.
    pub(super) fn stamped(&self, is_made: bool) -> WriteOp {
        let op = self.pool.write_op();
        let op = if is_made {
            op.assert_exists()
        } else {
            op.create(Create::IfMissing)
        };
        op.set_xattr(SESSION_KEY, self.ownership.session().as_bytes())
    }
}

/// An error that only a former owner gets says who owns the pool.
fn check_owned(ownership: &Ownership, error: &io::Error) {
    if onefold_rados::is_fenced(error) {
        ownership.lose("this host was fenced");
    } else if onefold_rados::is_condition_failed(error) {
        ownership.lose("its objects have another owner");
    }
}

/// A change of one object, and what it is for messages.
pub(super) struct ObjectChange {
    pub(super) op: WriteOp,
    pub(super) doing: &'static str,
    /// Bytes that it writes.
    pub(super) bytes: usize,
}

/// Waits for several operations.
pub(super) struct Countdown<E = io::Error> {
    shared: Arc<Counted<E>>,
}

struct Counted<E> {
    state: Mutex<(usize, Result<(), E>)>,
    ended: Condvar,
}

impl<E: Send + 'static> Countdown<E> {
    /// For so many.
    pub(super) fn new(count: usize) -> Countdown<E> {
        Countdown {
            shared: Arc::new(Counted {
                state: Mutex::new((count, Ok(()))),
                ended: Condvar::new(),
            }),
        }
    }

    /// What hears of the end of one of them.
    pub(super) fn part(&self) -> impl FnOnce(Result<(), E>) + Send + use<E> + 'static {
        let shared = Arc::clone(&self.shared);
        move |result| {
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 -= 1;
            if result.is_err() {
                state.1 = result;
            }
            drop(state);
            shared.ended.notify_all();
        }
    }

    /// Until all have ended. Of several errors it is the last.
    pub(super) fn wait(&self) -> Result<(), E> {
        let mut state = (self.shared.state.lock()).unwrap_or_else(PoisonError::into_inner);
        while state.0 > 0 {
            let woken = self.shared.ended.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::replace(&mut state.1, Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_countdown_waits_for_the_last_one_also_after_an_error() {
        let all = Countdown::new(3);
        let mut parts: Vec<_> = (0..3).map(|_| all.part()).collect();
        let (told, hears) = mpsc::channel();
        let waits = thread::spawn(move || told.send(all.wait()).unwrap());
        let early = || hears.recv_timeout(Duration::from_millis(20)).is_ok();
        assert!(!early());
        (parts.remove(0))(Ok(()));
        assert!(!early());
        (parts.remove(0))(Err("broken"));
        assert!(!early());
        (parts.remove(0))(Ok(()));
        assert_eq!(hears.recv().unwrap(), Err("broken"));
        waits.join().unwrap();
    }
}
