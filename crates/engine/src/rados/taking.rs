//! One owner of an estate among all hosts of a cluster (promise P7).
//!
//! The holder of the lock on the head owns the estate. RADOS locks are advisory, so a new owner blocklists the old one
//! and waits for the OSD map that says so before it breaks the lock. A late operation may reach an OSD that does not have
//! this map yet, so each object of the log, and the first object of every other part but the data and the secret of a
//! shared pool, bears the session of the owner that opened the part, and every write to it asserts that session.
//!
//! A fence ends the whole client, so a host loses all of its groups and shards with one of them.

use super::fences::{self, Kept};
use super::head::{self, Session};
use super::messages::{self, Presence};
use super::names::Estate;
use super::ownership::Ownership;
use super::run::RunDirectory;
use crate::cluster::{TakeError, TakeOptions};
use onefold_rados::{Client, Locker, Pool};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The name of the lock.
pub(super) const LOCK: &str = "owner";

/// How long one question to an owner waits for its answer.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two questions to an owner.
const QUESTION_PAUSE: Duration = Duration::from_millis(500);

/// How long an owner that gives its estate up may take for its guests' requests and its last checkpoint.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(120);

/// A client that takes estates, its pool, and the fences it has made.
pub(super) struct Taker {
    pub(super) client: Client,
    pub(super) pool: Pool,
    pub(super) kept: Kept,
    /// Addresses that this process has fenced, perhaps again: their owners are dead. No lock is taken while this one is held.
    fenced: Mutex<BTreeSet<String>>,
}

impl Taker {
    pub(super) fn new(client: Client, pool: Pool, kept: Kept) -> Taker {
        Taker {
            client,
            pool,
            kept,
            fenced: Mutex::default(),
        }
    }

    /// Takes the estate, and returns the right to change it. The caller has read the head: locking would create a
    /// missing one. `is_ours` returns whether this process owns the estate with this session.
    ///
    /// The owner of a pool may fence others, and has renewed the fences that the head lists (`fences.rs`). A host of a
    /// shared pool has done both when it began.
    pub(super) fn take(
        &self,
        estate: Estate,
        run: &Path,
        is_ours: impl Fn(&str) -> bool,
        options: &TakeOptions,
    ) -> Result<Arc<Ownership>, TakeError> {
        let mut run = RunDirectory::open(run, estate)?;
        let session = new_session()?;
        let taking = Taking {
            taker: self,
            estate,
            head: estate.head(),
            session: &session,
            options,
        };
        let has_fenced = taking.lock(&run, is_ours)?;
        let can_fence = if has_fenced || self.kept == Kept::InDirectory {
            Ok(())
        } else {
            fences::try_out(&self.client)
        };
        let fenced = can_fence.and_then(|()| match self.kept {
            Kept::InHead => self.restore_fences(),
            // Another host may have fenced the owner before and given the estate up since. From now on, a write to an
            // object makes the cluster know that fence (P7).
            Kept::InDirectory => self.client.wait_for_latest_osdmap(),
        });
        let begun = fenced.and_then(|()| taking.begin(&mut run));
        if begun.is_err() {
            // Reports the first error. If this fails, too, the lock stays, and the next owner breaks it.
            let _ = self.pool.unlock(&taking.head, LOCK, &session);
        }
        Ok(Arc::new(Ownership::new(estate, begun?)))
    }

    /// Makes sure that former owners which the pool lists stay fenced.
    pub(super) fn restore_fences(&self) -> io::Result<()> {
        let addresses = fences::restore(&self.client, &self.pool, self.kept)?;
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.extend(addresses);
        Ok(())
    }

    /// Releases the lock of an owner that could not begin.
    pub(super) fn release(&self, ownership: &Ownership) {
        let head = ownership.estate().head();
        // Reports the first error. If this fails, too, the lock stays, and the next owner breaks it.
        let _ = self.pool.unlock(&head, LOCK, &ownership.session().id);
    }

    /// Fences a client. If this process has fenced it before, the cluster may have lost the fence since, but the pool has
    /// kept the address.
    fn fence(&self, address: &str, may_wake: bool) -> io::Result<()> {
        let may_wake = may_wake && !self.has_fenced(address);
        fences::fence(&self.client, &self.pool, self.kept, address, may_wake)?;
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.insert(address.to_owned());
        Ok(())
    }

    fn has_fenced(&self, address: &str) -> bool {
        let fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.contains(address)
    }

    fn is_this_client(&self, holder: &Locker) -> bool {
        holder.client == format!("client.{}", self.client.instance_id())
    }
}

/// One attempt to take an estate.
struct Taking<'a> {
    taker: &'a Taker,
    estate: Estate,
    head: String,
    session: &'a str,
    options: &'a TakeOptions,
}

impl Taking<'_> {
    /// Stamps the session, under the lock, so that no other host changes it.
    fn begin(&self, run: &mut RunDirectory) -> io::Result<Session> {
        let pool = &self.taker.pool;
        let before = head::read(pool, self.estate);
        let before = before.map_err(|error| {
            if self.remove_if_empty() {
                io::Error::new(io::ErrorKind::NotFound, "it was removed a moment ago")
            } else {
                error
            }
        })?;
        let session = Session {
            id: self.session.to_owned(),
            number: match self.estate {
                Estate::Pool => 0,
                Estate::Shared(_) => before.number.checked_add(1).ok_or_else(|| {
                    let message =
                        format!("{} has had all numbers of sessions", self.estate.title());
                    io::Error::new(io::ErrorKind::InvalidData, message)
                })?,
            },
        };
        run.begin(&before.session, &session.id)?;
        head::set_owner(pool, self.estate, &session, &this_process())?;
        run.has_begun(&session.id)?;
        Ok(session)
    }

    /// Removes a head that only the lock has made, because its owner has removed the estate a moment ago. Returns
    /// whether it is one.
    fn remove_if_empty(&self) -> bool {
        let pool = &self.taker.pool;
        match head::read_texts(pool, &self.head) {
            Ok((texts, version)) if texts.is_empty() => {
                let remove = pool.write_op().assert_version(version).remove();
                // If this fails, others have changed it.
                let _ = pool.change(&self.head, remove);
                true
            }
            _ => false,
        }
    }

    /// Takes the lock, and fences a dead holder first. Returns whether it fenced one.
    fn lock(&self, run: &RunDirectory, is_ours: impl Fn(&str) -> bool) -> Result<bool, TakeError> {
        let pool = &self.taker.pool;
        let (mut released_until, mut has_fenced) = (None, false);
        loop {
            match pool.lock_exclusive(&self.head, LOCK, self.session, &this_process(), None) {
                Ok(()) => return Ok(has_fenced),
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                Err(error) => return Err(error.into()),
            }
            let Some(holder) = pool.lockers(&self.head, LOCK)?.into_iter().next() else {
                continue;
            };
            let is_dead = run.is_of_the_dead(&holder.cookie) && !self.taker.is_this_client(&holder);
            if !is_dead && !self.taker.has_fenced(&holder.address) {
                match self.ask(&holder)? {
                    Asked::Left => continue,
                    Asked::Answered(Presence::Here) => return Err(self.held(None)?),
                    Asked::Answered(Presence::Releasing) => {
                        let until = *released_until
                            .get_or_insert_with(|| Instant::now() + RELEASE_TIME_MAX);
                        if Instant::now() >= until {
                            let why = "was asked to give it up and still has not";
                            return Err(self.held(Some(why))?);
                        }
                        thread::sleep(QUESTION_PAUSE);
                        continue;
                    }
                    Asked::Silent if is_ours(&holder.cookie) => {
                        return Err(self.held(Some("is this process, and does not answer"))?);
                    }
                    Asked::Silent => {}
                }
            }
            has_fenced |= self.replace(&holder, !is_dead)?;
        }
    }

    fn held(&self, which: Option<&str>) -> io::Result<TakeError> {
        let owner = head::read(&self.taker.pool, self.estate)?.owner;
        let owner = which.map_or(owner.clone(), |which| format!("{owner}, which {which}"));
        Ok(TakeError::Held { owner })
    }

    /// Asks the holder of the lock until it answers, gives up the lock, or the patience ends.
    fn ask(&self, holder: &Locker) -> io::Result<Asked> {
        let (pool, until) = (&self.taker.pool, Instant::now() + self.options.patience);
        let question = if self.options.asks {
            messages::RELEASE
        } else {
            messages::ARE_YOU_THERE
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = QUESTION_TIMEOUT.min(left).max(Duration::from_secs(1));
            let replies = match pool.notify_now(&self.head, question, timeout) {
                Ok(replies) => replies,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Default::default(),
                Err(error) => return Err(error),
            };
            let mut answers = replies.replies.iter();
            let of_holder = |payload: &[u8]| messages::presence_of(payload, &holder.cookie);
            if let Some(answer) = answers.find_map(|reply| of_holder(&reply.payload)) {
                return Ok(Asked::Answered(answer));
            }
            // One that has given up is alive, and must not be fenced.
            let lockers = pool.lockers(&self.head, LOCK)?;
            if !lockers.iter().any(|locker| locker.cookie == holder.cookie) {
                return Ok(Asked::Left);
            }
            if left.is_zero() {
                return Ok(Asked::Silent);
            }
            thread::sleep(QUESTION_PAUSE.min(left));
        }
    }

    /// Makes sure that no operation of the holder takes effect any more, and then breaks its lock. If the holder
    /// `may_wake`, because it is not a process of this run directory, the pool keeps its address, so that the fence is
    /// renewed. Returns whether the holder was fenced: not if it is this client, which has a lock that it could not
    /// release.
    fn replace(&self, holder: &Locker, may_wake: bool) -> io::Result<bool> {
        let pool = &self.taker.pool;
        let Locker {
            client: name,
            address,
            cookie,
        } = holder;
        let fences = !self.taker.is_this_client(holder);
        if fences {
            let title = self.estate.title();
            tracing::info!("fencing the owner before of {title}, {name} at {address}");
            self.taker.fence(address, may_wake)?;
        }
        match pool.break_lock(&self.head, LOCK, name, cookie) {
            // Another host that wants the estate was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(fences),
            broken => broken.map(|()| fences),
        }
    }
}

/// The outcome of a question to an owner.
enum Asked {
    Answered(Presence),
    /// It has given up the lock.
    Left,
    Silent,
}

/// This process and its host, for messages.
fn this_process() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("process {} on host {host}", std::process::id())
}

fn new_session() -> io::Result<String> {
    let id = crate::host::random_id()?;
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}
