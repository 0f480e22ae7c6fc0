//! Work that no guest waits for, run on otherwise idle processors.
//!
//! Most of a batch is reading blocks back, fingerprinting them and asking the index. It holds
//! nothing that guests need, so it runs in the scheduler's idle class: any other thread that wakes
//! up gets the processor at once, and not only when a time slice of several milliseconds is over.
//! The rest of a batch is short and holds locks that guests may wait for. It runs at ordinary
//! priority, because a holder of such a lock that gets no processor would stop the guests.
//!
//! A thread that has entered the idle class may not be allowed to leave it again, so each piece of
//! work gets its own thread.
//!
//! On a host without idle processors a piece may take minutes. While a caller waits for background work,
//! that work is hurried: pieces in progress and new ones run at ordinary priority. A hurried piece does
//! not return to the idle class.
//!
//! Lock rule: no thread of the idle class ever holds this file's lock, because hurrying the others
//! needs it.

use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use libc::pid_t;
use onefold_store::BackgroundExecutor;

/// Runs background work in the scheduler's idle class, unless it is hurried.
#[derive(Debug, Default)]
pub(crate) struct IdleClass {
    threads: Mutex<Threads>,
}

/// The background threads that exist. A thread leaves the list before it exits, so the kernel
/// cannot have reused its id.
#[derive(Debug, Default)]
struct Threads {
    at_work: Vec<pid_t>,
    is_hurried: bool,
    /// Set once the warning that the system does not let threads leave the class has been logged.
    is_refusal_logged: bool,
}

impl BackgroundExecutor for IdleClass {
    fn run(&self, work: &mut (dyn FnMut() + Send)) {
        let work = Mutex::new(work);
        let run = || (work.lock().unwrap_or_else(PoisonError::into_inner))();
        let ((told, hears), (tells, heard)) = (channel(), channel());
        let stages = Stages { told, heard };
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("background".to_owned());
            let spawned = thread.spawn_scoped(scope, move || {
                // SAFETY: takes nothing and cannot fail.
                stages.pass(unsafe { libc::gettid() });
                let _last = LastStage(&stages);
                run();
            });
            match spawned {
                Ok(thread) => {
                    self.attend(&hears, &tells);
                    if let Err(panic) = thread.join() {
                        resume_unwind(panic);
                    }
                }
                // Without a thread to spare, do the work on this one.
                Err(_) => run(),
            }
        });
    }

    fn set_hurried(&self, is_hurried: bool) {
        let mut threads = self.threads();
        threads.is_hurried = is_hurried;
        if !is_hurried {
            return;
        }
        let mut refused = None;
        for thread in &threads.at_work {
            refused = schedule(*thread, libc::SCHED_OTHER).err().or(refused);
        }
        if let Some(error) = refused
            && !std::mem::replace(&mut threads.is_refusal_logged, true)
        {
            tracing::warn!(
                "background work that a command waits for cannot be hurried without CAP_SYS_NICE or \
                 LimitNICE=20, and on a busy host may take minutes to end: {error}"
            );
        }
    }
}

impl IdleClass {
    /// Puts a starting thread into the idle class, and forgets it when it has ended.
    fn attend(&self, stages: &Receiver<pid_t>, passed: &Sender<()>) {
        // The channel calls cannot fail: the thread sends twice before it exits.
        let Ok(thread) = stages.recv() else { return };
        let mut threads = self.threads();
        threads.at_work.push(thread);
        if !threads.is_hurried
            && let Err(error) = schedule(thread, libc::SCHED_IDLE)
        {
            // Not fatal: the work only disturbs guests more.
            tracing::debug!("background work runs at ordinary priority: {error}");
        }
        drop(threads);
        let _ = passed.send(());
        let _ = stages.recv();
        self.threads().at_work.retain(|other| *other != thread);
        let _ = passed.send(());
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The two points, before and after its work, at which a background thread waits for the thread
/// that attends it.
struct Stages {
    told: Sender<pid_t>,
    heard: Receiver<()>,
}

impl Stages {
    fn pass(&self, thread: pid_t) {
        // Both calls fail only if the attending thread has panicked.
        let _ = self.told.send(thread);
        let _ = self.heard.recv();
    }
}

/// Passes the last stage when it is dropped: after the work, even if the work panicked.
struct LastStage<'a>(&'a Stages);

impl Drop for LastStage<'_> {
    fn drop(&mut self) {
        self.0.pass(0);
    }
}

/// Puts the calling thread, and all threads that it starts afterwards, into the idle class.
///
/// # Errors
///
/// If the system does not allow it. The work can still run, at ordinary priority.
pub fn enter_idle_class() -> io::Result<()> {
    schedule(0, libc::SCHED_IDLE)
}

pub(crate) fn schedule(thread: pid_t, policy: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call, which only reads them.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The scheduling policy of the calling thread; `None` if the kernel lacks the file.
    fn policy() -> Option<String> {
        let stat = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        stat.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == "policy").then(|| value.trim().to_owned())
        })
    }

    pub(crate) fn is_policy(expected: libc::c_int) -> bool {
        policy().is_none_or(|policy| policy == expected.to_string())
    }

    #[test]
    fn work_is_done_on_another_thread_of_the_idle_policy() {
        let caller = thread::current().id();
        let mut seen = None;
        IdleClass::default().run(&mut || {
            seen = Some((thread::current().id(), is_policy(libc::SCHED_IDLE)));
        });
        let (thread, is_idle) = seen.unwrap();
        assert_ne!(thread, caller);
        assert!(is_idle);
    }

    #[test]
    fn what_a_thread_of_the_idle_class_starts_is_in_it() {
        let of_child = thread::spawn(|| {
            enter_idle_class().unwrap();
            thread::spawn(|| is_policy(libc::SCHED_IDLE))
                .join()
                .unwrap()
        });
        assert!(of_child.join().unwrap());
        assert!(is_policy(libc::SCHED_OTHER));
    }

    #[test]
    fn work_in_progress_and_later_work_can_be_hurried() {
        let executor = IdleClass::default();
        let (begun, is_begun) = channel();
        let (hurried, is_hurried) = channel();
        let is_hurried = Mutex::new(is_hurried);
        thread::scope(|scope| {
            let working = scope.spawn(|| {
                let mut seen = None;
                executor.run(&mut || {
                    begun.send(()).unwrap();
                    is_hurried.lock().unwrap().recv().unwrap();
                    let is_ordinary = is_policy(libc::SCHED_OTHER);
                    // Leaving the idle class takes a privilege.
                    seen = Some(is_ordinary || schedule(0, libc::SCHED_OTHER).is_err());
                });
                seen
            });
            is_begun.recv().unwrap();
            executor.set_hurried(true);
            hurried.send(()).unwrap();
            assert_eq!(working.join().unwrap(), Some(true));
        });
        let mut is_ordinary = false;
        executor.run(&mut || is_ordinary = is_policy(libc::SCHED_OTHER));
        assert!(is_ordinary);
        executor.set_hurried(false);
        let mut is_idle = false;
        executor.run(&mut || is_idle = is_policy(libc::SCHED_IDLE));
        assert!(is_idle, "no waiter is left");
        assert!(executor.threads().at_work.is_empty());
    }

    #[test]
    fn work_that_panicked_is_no_longer_at_work() {
        let executor = IdleClass::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            executor.run(&mut || panic!("broken work"));
        }));
        assert!(panicked.is_err() && executor.threads().at_work.is_empty());
    }

    #[test]
    #[should_panic(expected = "broken work")]
    fn a_panic_reaches_the_caller() {
        IdleClass::default().run(&mut || panic!("broken work"));
    }
}
