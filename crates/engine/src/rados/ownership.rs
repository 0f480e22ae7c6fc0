//! One owner of a pool among all hosts of a cluster (promise P7).
//!
//! The holder of the lock on the head owns the pool. RADOS locks are advisory, so a new owner blocklists the old one
//! and waits for the OSD map that says so before it breaks the lock. A late operation may reach an OSD that does not have
//! this map yet, so each object of the log, and the first object of every other part but the data, bears the session of
//! the owner that opened the part, and every write to it asserts that session.
//!
//! An owner answers hosts that ask for it, so that a pool is not taken from a live owner. An owner that the cluster no
//! longer confirms submits no operation of the pool's parts until it is confirmed again; one that has lost the pool never
//! submits any again.

use super::fences;
use super::head::{self, HEAD};
use super::run::RunDirectory;
use onefold_rados::{Client, Locker, Notification, Pool, Watch};
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The name of the lock.
const LOCK: &str = "owner";

/// The cluster ends the watch of an owner that has been silent for this long.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// An owner that has not been confirmed for this long submits nothing, as if its watch had ended.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(60);

/// How long one question to an owner waits for its answer.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two questions to an owner.
const QUESTION_PAUSE: Duration = Duration::from_millis(500);

/// How long an owner that gives up the pool may take for its guests' requests and its last checkpoint.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(120);

/// Questions to owners.
const ARE_YOU_THERE: &[u8] = b"are you there";
const RELEASE: &[u8] = b"release";

/// Answers of owners, which their session follows.
const HERE: &str = "here ";
const RELEASING: &str = "releasing ";

/// How to become the owner of a pool.
#[derive(Debug, Clone, Copy)]
pub struct TakeOptions {
    /// How long an owner of another run directory may be silent before it is considered dead. One of the same directory
    /// is dead, because this process has the directory's lock.
    pub patience: Duration,
    /// Ask a live owner to give up the pool.
    pub asks: bool,
    /// How often the owner renews the fences of former owners.
    pub fence_interval: Duration,
}

/// Why a pool was not taken.
#[derive(Debug)]
pub enum TakeError {
    /// The pool has a live owner.
    Held {
        /// The owner's process and host.
        owner: String,
    },
    /// An operation on the cluster failed.
    Io(io::Error),
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TakeError::Held { owner } => write!(f, "the pool is in use by {owner}"),
            TakeError::Io(error) => error.fmt(f),
        }
    }
}

impl Error for TakeError {}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> TakeError {
        TakeError::Io(error)
    }
}

/// An event that an owner has to react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerEvent {
    /// Close the pool: another host wants it.
    ReleaseWanted,
    /// End: another host has taken the pool. Submitted operations no longer take effect.
    Lost {
        /// How the loss was noticed.
        reason: String,
    },
    /// End: the pool no longer exists in the cluster.
    Gone,
}

type OnEvent = Box<dyn Fn(OwnerEvent) + Send + Sync>;

/// The right to change a pool.
pub(super) struct Ownership {
    session: String,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standing: Standing,
    on_event: Option<Arc<OnEvent>>,
    /// The engine is being dropped.
    is_ending: bool,
    /// The cluster was asked for the head, and has not answered yet.
    is_looking: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Owner,
    /// The cluster no longer confirms the owner.
    Unconfirmed,
    Lost(Loss),
}

/// Why an owner lost the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Loss {
    /// Taken by another host; the text says how this was noticed.
    Taken(String),
    /// The cluster has no head of the pool.
    Gone,
}

impl Loss {
    fn event(&self) -> OwnerEvent {
        match self {
            Loss::Taken(reason) => OwnerEvent::Lost {
                reason: reason.clone(),
            },
            Loss::Gone => OwnerEvent::Gone,
        }
    }

    /// The error of every operation that is submitted afterwards.
    fn error(&self) -> io::Error {
        io::Error::other(match self {
            Loss::Taken(reason) => format!(
                "another host has taken the pool ({reason}); this process can not use it any more"
            ),
            Loss::Gone => "the cluster has no such pool any more".to_owned(),
        })
    }
}

impl Ownership {
    fn new(session: String) -> Ownership {
        Ownership {
            session,
            state: Mutex::new(State {
                standing: Standing::Owner,
                on_event: None,
                is_ending: false,
                is_looking: false,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an operation may be submitted. Fails once the pool is lost.
    pub(super) fn admit(&self) -> io::Result<()> {
        let mut state = self.state();
        loop {
            match &state.standing {
                Standing::Owner => return Ok(()),
                Standing::Lost(loss) => return Err(loss.error()),
                Standing::Unconfirmed => {
                    let woken = self.changed.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Records that another host has taken the pool.
    pub(super) fn lose(&self, reason: &str) {
        self.end_by(Loss::Taken(reason.to_owned()));
    }

    /// Records that the cluster has no head of the pool.
    pub(super) fn lose_pool(&self) {
        self.end_by(Loss::Gone);
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
        if let Some(on_event) = on_event {
            on_event(event);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state().standing, Standing::Lost(_))
    }

    fn confirm(&self, is_confirmed: bool) {
        let mut state = self.state();
        let standing = if is_confirmed {
            Standing::Owner
        } else {
            Standing::Unconfirmed
        };
        if state.standing == standing || matches!(state.standing, Standing::Lost(_)) {
            return;
        }
        state.standing = standing;
        drop(state);
        self.changed.notify_all();
        if is_confirmed {
            tracing::info!("the cluster confirms this owner again");
        } else {
            tracing::warn!(
                "the cluster does not confirm this owner any more: nothing is sent until it does"
            );
        }
    }

    /// Sets the callback for events. Calls it at once if the pool is lost already.
    pub(super) fn set_on_event(&self, on_event: OnEvent) {
        let on_event = Arc::new(on_event);
        let mut state = self.state();
        state.on_event = Some(Arc::clone(&on_event));
        let standing = state.standing.clone();
        drop(state);
        if let Standing::Lost(loss) = standing {
            on_event(loss.event());
        }
    }

    /// Ends all pauses, because the engine is being dropped.
    pub(super) fn end(&self) {
        self.state().is_ending = true;
        self.changed.notify_all();
    }

    /// Waits for this time, or until the engine ends. Returns whether the engine continues.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_ending || left.is_zero() {
                return !state.is_ending;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Answers a host that asks for the owner, on a thread that must not wait.
    fn answer(&self, question: Notification) {
        let word = match question.payload() {
            ARE_YOU_THERE => HERE,
            RELEASE => {
                let on_event = self.state().on_event.clone();
                match on_event {
                    Some(on_event) => {
                        on_event(OwnerEvent::ReleaseWanted);
                        RELEASING
                    }
                    None => HERE,
                }
            }
            _ => return,
        };
        // A host that gets no answer asks again.
        let _ = question.reply(format!("{word}{}", self.session).as_bytes());
    }
}

/// Takes the pool, and returns the right to change it. The caller has read the head: locking would create a missing one.
///
/// A new owner may fence others, and has renewed the fences that the head lists (`fences.rs`).
pub(super) fn take(
    client: &Client,
    pool: &Pool,
    run: &mut RunDirectory,
    options: TakeOptions,
) -> Result<Arc<Ownership>, TakeError> {
    let session = new_session()?;
    let has_fenced = lock(client, pool, run, &session, options)?;
    let can_fence = if has_fenced {
        Ok(())
    } else {
        fences::try_out(client)
    };
    let fenced = can_fence.and_then(|()| fences::restore(client, pool));
    let begun = fenced.and_then(|()| begin(pool, run, &session));
    if begun.is_err() {
        // Reports the first error. If this fails, too, the lock stays, and the next owner breaks it.
        let _ = pool.unlock(HEAD, LOCK, &session);
    }
    begun?;
    Ok(Arc::new(Ownership::new(session)))
}

fn begin(pool: &Pool, run: &mut RunDirectory, session: &str) -> io::Result<()> {
    // Under the lock, no other host changes the session.
    let before = head::read(pool)?.session;
    run.begin(&before, session)?;
    head::set_owner(pool, session, &this_process())?;
    run.has_begun(session)
}

/// Takes the lock, and fences a dead holder first. Returns whether it fenced one.
fn lock(
    client: &Client,
    pool: &Pool,
    run: &RunDirectory,
    session: &str,
    options: TakeOptions,
) -> Result<bool, TakeError> {
    let (mut released_until, mut has_fenced) = (None, false);
    loop {
        match pool.lock_exclusive(HEAD, LOCK, session, &this_process(), None) {
            Ok(()) => return Ok(has_fenced),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => return Err(error.into()),
        }
        let Some(holder) = pool.lockers(HEAD, LOCK)?.into_iter().next() else {
            continue;
        };
        let is_dead = run.is_of_the_dead(&holder.cookie);
        if !is_dead {
            match ask(pool, &holder, options)? {
                Some(Answer::Here) => {
                    let owner = head::read(pool)?.owner;
                    return Err(TakeError::Held { owner });
                }
                Some(Answer::Releasing) => {
                    let until =
                        *released_until.get_or_insert_with(|| Instant::now() + RELEASE_TIME_MAX);
                    if Instant::now() >= until {
                        let owner = format!(
                            "{}, which was asked to give it up and still has not",
                            head::read(pool)?.owner
                        );
                        return Err(TakeError::Held { owner });
                    }
                    thread::sleep(QUESTION_PAUSE);
                    continue;
                }
                None => {}
            }
        }
        fence(client, pool, &holder, !is_dead)?;
        has_fenced = true;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Here,
    Releasing,
}

/// Asks the holder of the lock until it answers or the patience ends.
fn ask(pool: &Pool, holder: &Locker, options: TakeOptions) -> io::Result<Option<Answer>> {
    let until = Instant::now() + options.patience;
    let question = if options.asks { RELEASE } else { ARE_YOU_THERE };
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = QUESTION_TIMEOUT.min(left).max(Duration::from_secs(1));
        let replies = match pool.notify_now(HEAD, question, timeout) {
            Ok(replies) => replies,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Default::default(),
            Err(error) => return Err(error),
        };
        let mut answers = replies.replies.iter();
        let answer = answers.find_map(|reply| answer_of(&reply.payload, &holder.cookie));
        if answer.is_some() || left.is_zero() {
            return Ok(answer);
        }
        thread::sleep(QUESTION_PAUSE.min(left));
    }
}

/// Parses an owner's answer. Returns nothing if another session sent it.
fn answer_of(payload: &[u8], session: &str) -> Option<Answer> {
    let said = std::str::from_utf8(payload).ok()?;
    let is_of = |word: &str| said.strip_prefix(word) == Some(session);
    match () {
        () if is_of(HERE) => Some(Answer::Here),
        () if is_of(RELEASING) => Some(Answer::Releasing),
        () => None,
    }
}

/// Makes sure that no operation of the holder takes effect any more, and then breaks its lock. If the holder `may_wake`,
/// because it is not a process of this run directory, the head keeps its address, so that the fence is renewed.
fn fence(client: &Client, pool: &Pool, holder: &Locker, may_wake: bool) -> io::Result<()> {
    tracing::info!(
        "fencing the owner before, {} at {}",
        holder.client,
        holder.address
    );
    fences::fence(client, pool, &holder.address, may_wake)?;
    match pool.break_lock(HEAD, LOCK, &holder.client, &holder.cookie) {
        // Another host that wants the pool was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        broken => broken,
    }
}

/// Gives up the pool. The caller has waited for all operations.
pub(super) fn give_up(pool: &Pool, ownership: &Ownership) {
    if ownership.is_lost() {
        return;
    }
    if let Err(error) = pool.unlock(HEAD, LOCK, ownership.session()) {
        tracing::warn!("the lock of the pool stays until the next owner breaks it: {error}");
    }
}

/// Watches the head, to answer hosts that ask for the owner.
pub(super) fn watch(pool: &Pool, ownership: &Arc<Ownership>) -> io::Result<Watch> {
    let answers = Arc::clone(ownership);
    // The next check of the watch notices the error.
    let on_error = |_| {};
    pool.watch(
        HEAD,
        Some(WATCH_TIMEOUT),
        move |question| answers.answer(question),
        on_error,
    )
}

/// Checks whether the cluster still confirms the owner. Returns the watch, or a new one.
pub(super) fn confirm(
    pool: &Pool,
    ownership: &Arc<Ownership>,
    watching: Watch,
) -> io::Result<Watch> {
    match watching.check() {
        Ok(age) => {
            ownership.confirm(age < CONFIRMED_WITHIN);
            return Ok(watching);
        }
        Err(error) if onefold_rados::is_fenced(&error) => {
            ownership.lose("this host was fenced");
            return Ok(watching);
        }
        Err(_) => {}
    }
    // The watch has ended, perhaps after a lapse of contact. A host that took the pool has fenced this one first;
    // otherwise the pool is still ours.
    ownership.confirm(false);
    drop(watching);
    let again = watch(pool, ownership)?;
    let lockers = pool.lockers(HEAD, LOCK)?;
    if lockers
        .iter()
        .any(|locker| locker.cookie == ownership.session())
    {
        ownership.confirm(true);
    } else {
        ownership.lose("its lock is gone");
    }
    Ok(again)
}

/// Asks the cluster for the head of the pool, without waiting, unless the last such request is pending. This is how an
/// owner learns that its pool was removed: any other object may be missing legitimately.
pub(super) fn look_for_head(pool: &Pool, ownership: &Arc<Ownership>) {
    let mut state = ownership.state();
    if std::mem::replace(&mut state.is_looking, true) {
        return;
    }
    drop(state);
    let asks = Arc::clone(ownership);
    pool.submit_read(HEAD, pool.read_op().stat(), move |found| {
        asks.state().is_looking = false;
        match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => asks.lose_pool(),
            // The next request finds out.
            _ => {}
        }
    });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn an_unconfirmed_owner_waits_and_one_that_lost_the_pool_fails() {
        let ownership = Arc::new(Ownership::new("a".to_owned()));
        ownership.admit().unwrap();
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
        assert!(
            ownership
                .admit()
                .unwrap_err()
                .to_string()
                .contains("a test")
        );
        let (told, hears) = mpsc::channel();
        ownership.set_on_event(Box::new(move |event| told.send(event).unwrap()));
        let reason = "a test".to_owned();
        assert_eq!(hears.recv().unwrap(), OwnerEvent::Lost { reason });
    }

    #[test]
    fn only_the_holder_of_the_lock_answers_for_it() {
        assert_eq!(answer_of(b"here abc", "abc"), Some(Answer::Here));
        assert_eq!(answer_of(b"releasing abc", "abc"), Some(Answer::Releasing));
        for said in [&b"here abd"[..], b"here ", b"abc", b"\xff"] {
            assert_eq!(answer_of(said, "abc"), None);
        }
    }
}
