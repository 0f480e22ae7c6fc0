//! An estate that this process owns, as other hosts see it: the watch on its head, by which they ask for the owner and
//! call it.
//!
//! An owner answers hosts that ask for it, so that an estate is not taken from a live owner.

use super::messages::{self, Called, Presence, Question};
use super::ownership::Ownership;
use super::serving::{self, Queue};
use super::taking::LOCK;
use crate::cluster::{Answer, Reply};
use onefold_rados::{Notification, Pool, Watch};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

/// The cluster ends the watch of an owner that has been silent for this long.
const WATCH_TIMEOUT: Duration = Duration::from_secs(30);

/// An owner that has not been confirmed for this long submits nothing, as if its watch had ended.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(60);

/// The reason of a loss: another host has blocklisted this client, with everything that it owns.
pub(super) const FENCED: &str = "this host was fenced";

/// An estate that this process owns.
pub(super) struct Held {
    pool: Pool,
    head: String,
    pub(super) ownership: Arc<Ownership>,
    /// Nothing once the estate was given up. Its lock is held while a watch begins or ends, and taken before `service`.
    watch: Mutex<Option<Watch>>,
    /// The answerer of calls. No other lock is taken while this one is held.
    service: Mutex<Service>,
    answered: Condvar,
    /// The cluster was asked for the head, and has not answered yet. Guards nothing else.
    is_looking: AtomicBool,
    /// Answers no call, for tests: like a process that is frozen. Guards nothing else.
    is_silent: AtomicBool,
    /// Set once it is noticed that this client was fenced, with everything that it owns. Guards nothing else.
    is_fenced: Arc<AtomicBool>,
}

/// The answerer of calls.
#[derive(Default)]
struct Service {
    answer: Option<(Arc<dyn Answer>, Queue)>,
    /// Calls that are being answered on the serving threads.
    running: usize,
    is_given_up: bool,
}

impl Held {
    /// Begins to answer other hosts for an owner.
    pub(super) fn begin(
        pool: &Pool,
        ownership: Arc<Ownership>,
        is_fenced: Arc<AtomicBool>,
    ) -> io::Result<Arc<Held>> {
        let held = Arc::new(Held {
            pool: pool.clone(),
            head: ownership.estate().head(),
            ownership,
            watch: Mutex::default(),
            service: Mutex::default(),
            answered: Condvar::new(),
            is_looking: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            is_fenced,
        });
        *held.watch() = Some(held.begin_watch()?);
        Ok(held)
    }

    fn watch(&self) -> MutexGuard<'_, Option<Watch>> {
        // Each change is complete in itself.
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn service(&self) -> MutexGuard<'_, Service> {
        // Each change is complete in itself.
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_watch(self: &Arc<Self>) -> io::Result<Watch> {
        let held = Arc::downgrade(self);
        let on_notify = move |question: Notification| {
            if let Some(held) = held.upgrade() {
                held.hear(question);
            }
        };
        // The next check of the watch notices the error.
        let on_error = |_| {};
        self.pool
            .watch(&self.head, Some(WATCH_TIMEOUT), on_notify, on_error)
    }

    /// Answers another host, on a thread that must not wait.
    fn hear(self: &Arc<Self>, question: Notification) {
        if self.is_silent.load(Ordering::SeqCst) || self.ownership.is_lost() {
            return;
        }
        let session = &self.ownership.session().id;
        let answer = match messages::question(question.payload()) {
            Some(Question::AreYouThere) => Presence::Here,
            Some(Question::Release) if self.ownership.want_release() => Presence::Releasing,
            Some(Question::Release) => Presence::Here,
            Some(Question::Call(_)) => return self.hear_call(question),
            None => return,
        };
        // A host that gets no answer asks again.
        let _ = question.reply(&messages::presence(&answer, session));
    }

    fn hear_call(self: &Arc<Self>, call: Notification) {
        let mut service = self.service();
        let Some((answer, queue)) = service.answer.clone() else {
            drop(service);
            let unserved = messages::called(&Called::Unserved, &self.ownership.session().id);
            let _ = call.reply(&unserved);
            return;
        };
        service.running += 1;
        drop(service);
        // Dropped with the call if the queue is full: then the caller does not know the outcome, and asks again.
        let running = Running(Arc::clone(self));
        let work = move || running.answer(&*answer, call);
        let _ = queue.try_send(Box::new(work));
    }

    /// Sends the reply to a call, unless the estate has another owner by now.
    fn reply(&self, call: Notification, reply: &[u8]) {
        let is_silent = self.is_silent.load(Ordering::SeqCst);
        if is_silent || self.ownership.is_lost() || self.service().is_given_up {
            return;
        }
        let session = &self.ownership.session().id;
        // A caller that gets no answer does not know the outcome.
        let _ = call.reply(&messages::called(&Called::Reply(reply), session));
    }

    /// Answers calls from now on.
    pub(super) fn serve(&self, answer: Arc<dyn Answer>, queue: Queue) {
        let former = self.service().answer.replace((answer, queue));
        // Dropping it may wait for the cluster, so not under the lock, which threads of librados take.
        drop(former);
    }

    /// Ends the answers for good.
    pub(super) fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    fn lose_fenced(&self) {
        self.is_fenced.store(true, Ordering::SeqCst);
        self.ownership.lose(FENCED);
    }

    /// Checks whether the cluster still confirms the owner, without waiting for it. A thread of its own renews a watch
    /// that has ended, and ends that of a lost estate.
    pub(super) fn confirm(self: &Arc<Self>) {
        let watch = match self.watch.try_lock() {
            Ok(watch) => watch,
            Err(TryLockError::Poisoned(watch)) => watch.into_inner(),
            // It is being renewed.
            Err(TryLockError::WouldBlock) => return,
        };
        let checked = watch.as_ref().map(Watch::check);
        // Before a loss is reported.
        drop(watch);
        match checked {
            None => return,
            Some(Ok(age)) if !self.ownership.is_lost() => {
                return self.ownership.confirm(age < CONFIRMED_WITHIN);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) if onefold_rados::is_fenced(&error) => self.lose_fenced(),
            Some(Err(_)) => self.ownership.confirm(false),
        }
        let held = Arc::clone(self);
        let renew = thread::Builder::new().name("rados-watch".to_owned());
        // If no thread can be started, the next check tries again.
        let _ = renew.spawn(move || held.renew_watch());
    }

    /// Renews a watch that has ended, perhaps after a lapse of contact. A host that took the estate has fenced this one
    /// first; otherwise the estate is still ours. The watch of a lost one only ends, because callers would wait for it.
    fn renew_watch(self: &Arc<Self>) {
        let mut watch = self.watch();
        let Some(ended) = watch.take() else { return };
        drop(ended);
        if self.ownership.is_lost() {
            return;
        }
        let renewed = self.begin_watch().and_then(|again| {
            *watch = Some(again);
            self.pool.lockers(&self.head, LOCK)
        });
        drop(watch);
        match renewed {
            Ok(lockers) => {
                let session = &self.ownership.session().id;
                if lockers.iter().any(|locker| locker.cookie == *session) {
                    self.ownership.confirm(true);
                } else {
                    self.ownership.lose("its lock is gone");
                }
            }
            Err(error) if onefold_rados::is_fenced(&error) => self.lose_fenced(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.ownership.lose_head(),
            Err(error) => {
                let title = self.ownership.estate().title();
                self.ownership.lose(&format!(
                    "other hosts cannot ask this one for {title}: {error}"
                ));
            }
        }
    }

    /// Asks the cluster for the head, without waiting, unless the last such request is pending. This is how an owner
    /// learns that its estate was removed: any other object may be missing legitimately.
    pub(super) fn look_for_head(self: &Arc<Self>) {
        if self.ownership.is_lost() || self.is_looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let held = Arc::clone(self);
        let stat = self.pool.read_op().stat();
        self.pool.submit_read(&self.head, stat, move |found| {
            held.is_looking.store(false, Ordering::SeqCst);
            match found {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    held.ownership.lose_head();
                }
                // The next request finds out.
                _ => {}
            }
        });
    }

    /// Answers no more calls. Waits for those that are being answered, unless this is inside of one.
    pub(super) fn end_service(&self) {
        let mut service = self.service();
        let ended = service.answer.take();
        while service.running > 0 && !serving::is_serving() {
            let woken = self.answered.wait(service);
            service = woken.unwrap_or_else(PoisonError::into_inner);
        }
        drop(service);
        // It may have the last disk of the estate, which waits for the cluster.
        drop(ended);
    }

    /// Gives the estate up, once its operations have ended.
    pub(super) fn give_up(&self) {
        self.end_service();
        self.service().is_given_up = true;
        // Other hosts that ask get answers until then.
        self.ownership.give_up();
        // Dropped before the lock is released: this owner may not answer for the next one.
        let watch = self.watch().take();
        drop(watch);
        if self.ownership.is_lost() || self.is_silent.load(Ordering::SeqCst) {
            return;
        }
        let session = &self.ownership.session().id;
        if let Err(error) = self.pool.unlock(&self.head, LOCK, session) {
            let title = self.ownership.estate().title();
            tracing::warn!("the lock of {title} stays until the next owner breaks it: {error}");
        }
    }
}

/// A call that is being answered, or waits for that.
struct Running(Arc<Held>);

impl Running {
    fn answer(self, answer: &dyn Answer, call: Notification) {
        let request = match messages::question(call.payload()) {
            Some(Question::Call(request)) => request.to_vec(),
            _ => return,
        };
        let held = Arc::clone(&self.0);
        let reply: Reply = Box::new(move |bytes| held.reply(call, &bytes));
        answer.answer(request, reply);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.service().running -= 1;
        self.0.answered.notify_all();
    }
}
