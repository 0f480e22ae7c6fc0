//! Operations on an estate's objects, as its owner submits them.

use super::ends::Ends;
use super::head::{Entry, SESSION_KEY, asserted};
use super::held::FENCED;
use super::host::Host;
use super::names::{Estate, object_name};
use super::ownership::Ownership;
use crate::Part;
use onefold_rados::{Create, Pool, WhenFull, WriteOp};
use std::io;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// The state that the disks of one estate share.
pub(super) struct Operations {
    pub(super) host: Arc<Host>,
    pub(super) estate: Estate,
    pub(super) ownership: Arc<Ownership>,
    /// The name of the head.
    pub(super) head: String,
    /// Where prepared writes end, once there was one; nothing if no thread could be started.
    ends: OnceLock<Option<Ends>>,
}

/// The most operations that one call has in flight.
pub(super) const OPERATIONS_MAX: usize = 128;

/// Bytes by which parts may grow without asking the cluster for room: few compared to the space that a cluster keeps
/// free when it is full (3 % by default), and enough that asking takes no noticeable time.
const UNASKED_BYTES_MAX: u64 = 16 << 20;

impl Operations {
    pub(super) fn new(host: &Arc<Host>, ownership: &Arc<Ownership>) -> Operations {
        let estate = ownership.estate();
        Operations {
            host: Arc::clone(host),
            estate,
            ownership: Arc::clone(ownership),
            head: estate.head(),
            ends: OnceLock::new(),
        }
    }

    /// Where prepared writes end. Each estate has a thread of its own: one that waits for the cluster does not keep the
    /// writes of others from ending.
    pub(super) fn ends(&self) -> Option<&Ends> {
        self.ends.get_or_init(|| Ends::start().ok()).as_ref()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.host.taker.pool
    }

    /// The present owner's session.
    pub(super) fn session(&self) -> &str {
        &self.ownership.session().id
    }

    /// Submits a change. Calls `ended` with the result, on a thread of librados or at once.
    pub(super) fn submit(
        &self,
        object: &str,
        change: ObjectChange,
        when_full: WhenFull,
        ended: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        let admitted = match self.ownership.admit() {
            Ok(admitted) => admitted,
            Err(error) => return ended(Err(error)),
        };
        let ObjectChange { op, doing, bytes } = change;
        let ticket = self.host.flights.begin(doing, object, bytes);
        let (host, ownership) = (Arc::clone(&self.host), Arc::clone(&self.ownership));
        self.pool()
            .submit_write(object, op, when_full, move |changed| {
                host.flights.end(ticket);
                let changed = changed.map(drop);
                if let Err(error) = &changed {
                    check_owned(&host, &ownership, error);
                }
                drop(admitted);
                ended(changed);
            });
    }

    /// Submits reads of an object, each an offset and a length, as one operation, which counts as in flight until it
    /// ends. `ended` receives the bytes of each read: fewer than requested at the object's end, and nothing at all if
    /// the object does not exist.
    pub(super) fn read(
        &self,
        object: &str,
        places: impl IntoIterator<Item = (u64, usize)>,
        ended: impl FnOnce(io::Result<Option<Vec<Vec<u8>>>>) + Send + 'static,
    ) {
        let admitted = match self.ownership.admit() {
            Ok(admitted) => admitted,
            Err(error) => return ended(Err(error)),
        };
        let mut op = self.pool().read_op();
        for (offset, len) in places {
            op = op.read(offset, len);
        }
        let ticket = self.host.flights.begin("reading", object, 0);
        let (host, ownership) = (Arc::clone(&self.host), Arc::clone(&self.ownership));
        self.pool().submit_read(object, op, move |read| {
            host.flights.end(ticket);
            let read = match read {
                Ok(reply) => Ok(Some(reply.data)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => {
                    check_owned(&host, &ownership, &error);
                    Err(error)
                }
            };
            drop(admitted);
            ended(read);
        });
    }

    /// Submits a change and waits for its end.
    pub(super) fn change(&self, object: &str, change: ObjectChange) -> io::Result<()> {
        self.change_if(object, change, WhenFull::Go)
    }

    fn change_if(&self, object: &str, change: ObjectChange, when_full: WhenFull) -> io::Result<()> {
        let all = Countdown::new(1);
        self.submit(object, change, when_full, all.part());
        all.wait()
    }

    /// Checks for room before a part grows by this many bytes; asks the cluster only from time to time. `StorageFull`
    /// or `QuotaExceeded` if the cluster is full.
    ///
    /// Growing itself succeeds in a full cluster, because space that was promised to a part must be there when nothing
    /// else is. So the cluster is asked beforehand, by creating an object and removing it again.
    pub(super) fn grows(&self, bytes: u64) -> io::Result<()> {
        let host = &self.host;
        let mut unasked = (host.unasked_bytes.lock()).unwrap_or_else(PoisonError::into_inner);
        *unasked = unasked.saturating_add(bytes);
        if *unasked < UNASKED_BYTES_MAX {
            return Ok(());
        }
        let remove = || ObjectChange {
            op: self.pool().write_op().remove(),
            doing: "removing",
            bytes: 0,
        };
        // An object that a killed process left already has its space, so writing to it would prove nothing.
        match self.change(&host.room, remove()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let make = ObjectChange {
            op: self.pool().write_op().write(0, &[1]),
            doing: "writing",
            bytes: 1,
        };
        self.change_if(&host.room, make, WhenFull::Fail)?;
        *unasked = 0;
        // If this fails, the next call removes the object, or the removal of the pool does.
        let _ = self.change(&host.room, remove());
        Ok(())
    }

    /// Removes all objects of a part.
    pub(super) fn remove_objects(&self, part: Part, entry: Entry) -> io::Result<()> {
        let base = self.estate.base(part, entry.generation);
        let objects: Vec<u64> = (0..entry.objects()).collect();
        for some in objects.chunks(OPERATIONS_MAX) {
            let all = Countdown::new(some.len());
            for object in some {
                let name = object_name(&base, *object);
                let change = ObjectChange {
                    op: self.pool().write_op().remove(),
                    doing: "removing",
                    bytes: 0,
                };
                self.submit(&name, change, WhenFull::Go, missing_is_fine(all.part()));
            }
            all.wait()?;
        }
        Ok(())
    }

    /// Begins a change that takes effect only if the object belongs to this owner's session.
    pub(super) fn asserted(&self) -> WriteOp {
        asserted(self.pool(), self.session())
    }

    /// Begins a change that makes an object this owner's. Creates the object unless it is known to exist.
    pub(super) fn stamped(&self, is_made: bool) -> WriteOp {
        let op = self.pool().write_op();
        let op = if is_made {
            op.assert_exists()
        } else {
            op.create(Create::IfMissing)
        };
        op.set_xattr(SESSION_KEY, self.session().as_bytes())
    }
}

/// Marks the ownership as lost if the error is one that only a former owner gets; a fence ends all that this client
/// owns.
fn check_owned(host: &Host, ownership: &Ownership, error: &io::Error) {
    if onefold_rados::is_fenced(error) {
        ownership.lose(FENCED);
        host.lose_all();
    } else if onefold_rados::is_condition_failed(error) {
        ownership.lose("its objects have another owner");
    }
}

/// Treats a missing object as removed.
pub(super) fn missing_is_fine(
    ended: impl FnOnce(io::Result<()>) + Send + 'static,
) -> impl FnOnce(io::Result<()>) + Send + 'static {
    |changed| match changed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => ended(Ok(())),
        changed => ended(changed),
    }
}

/// A change of one object, and a verb for messages.
pub(super) struct ObjectChange {
    pub(super) op: WriteOp,
    pub(super) doing: &'static str,
    /// The number of bytes that the change writes.
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
    /// Waits for `count` operations.
    pub(super) fn new(count: usize) -> Countdown<E> {
        Countdown {
            shared: Arc::new(Counted {
                state: Mutex::new((count, Ok(()))),
                ended: Condvar::new(),
            }),
        }
    }

    /// Returns the callback for the end of one operation.
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

    /// Waits until all operations have ended. Of several errors, returns the last.
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
