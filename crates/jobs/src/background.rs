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

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Does `work` and returns.
pub(crate) fn run_in_background(work: &mut (dyn FnMut() + Send)) {
    let work = Mutex::new(work);
    let run = || (work.lock().unwrap_or_else(PoisonError::into_inner))();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("background".to_owned());
        let spawned = thread.spawn_scoped(scope, || {
            give_way();
            run();
        });
        match spawned {
            Ok(thread) => {
                if let Err(panic) = thread.join() {
                    resume_unwind(panic);
                }
            }
            // Without a thread to spare the work is done all the same.
            Err(_) => run(),
        }
    });
}

/// Takes the idle policy for the calling thread. Without it the work only disturbs more.
fn give_way() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameters outlive the call, which only reads them.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!("background work runs at ordinary priority: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::run_in_background;
    use std::thread;

    #[test]
    fn work_is_done_on_another_thread_of_the_idle_policy() {
        let caller = thread::current().id();
        let mut seen = None;
        run_in_background(&mut || {
            let stat = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
            let policy = stat.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == "policy").then(|| value.trim().to_owned())
            });
            seen = Some((thread::current().id(), policy));
        });
        let (thread, policy) = seen.unwrap();
        assert_ne!(thread, caller);
        // A kernel without this file cannot be asked.
        assert!(policy.is_none_or(|policy| policy == libc::SCHED_IDLE.to_string()));
    }

    #[test]
    #[should_panic(expected = "broken work")]
    fn a_panic_reaches_the_caller() {
        run_in_background(&mut || panic!("broken work"));
    }
}
