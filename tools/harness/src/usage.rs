//! Processor time of a thread and of the programs that it waits for.
//!
//! The kernel adds a process's time to its parent's when the parent waits for it, but only for the whole parent. Here
//! each thread has its own sum, so threads that run programs at the same time can be told apart. A daemon that outlives
//! its starter is in no sum.

use std::cell::Cell;
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use rustix::time::{ClockId, clock_gettime};

/// The niceness of work that lets others have the processors first. With 19 it would hardly begin beside others.
const NICENESS: i32 = 10;

thread_local! {
    /// Clock ticks of the programs that this thread has waited for, and of those that they waited for.
    static WAITED_FOR_TICKS: Cell<u64> = const { Cell::new(0) };
}

/// Processor time that this thread has used so far, with the programs that it has waited for, and those that they
/// waited for.
pub fn processor_time() -> Duration {
    let own = clock_gettime(ClockId::ThreadCPUTime);
    // The clock of a thread is never negative.
    let own = Duration::try_from(own).unwrap_or_default();
    own + Duration::from_secs_f64(seconds(WAITED_FOR_TICKS.get()))
}

/// Lets other work have the processors first: this thread, and the programs that it starts from now on, get a tenth of
/// a processor that others keep busy, and all of an idle one.
pub fn let_others_first() {
    // Linux sets it for the calling thread only. A thread that is not allowed to do this works like the others.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// Adds the time of a child that has ended. The caller waits for it afterwards, because its entry in `/proc` disappears
/// with that. With `block` this waits for the end; otherwise a child that still runs adds nothing.
pub(crate) fn add_ended(child: Pid, block: bool) {
    let mut options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    options.set(WaitIdOptions::NOHANG, !block);
    let ended = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(child), options));
    // Without its time the child is still waited for.
    let Ok(Some(_)) = ended else { return };
    let path = format!("/proc/{}/stat", child.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    if let Some(ticks) = Ticks::parse(&stat) {
        WAITED_FOR_TICKS.set(WAITED_FOR_TICKS.get() + ticks.own + ticks.waited_for);
    }
}

/// Converts ticks of the kernel's clock to seconds.
pub(crate) fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Processor time of a process in user and kernel mode, in clock ticks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Of all its threads.
    pub(crate) own: u64,
    /// Of the children that it has waited for, and theirs.
    pub(crate) waited_for: u64,
}

impl Ticks {
    /// From a `/proc/PID/stat` line. The name in parentheses may hold anything.
    pub(crate) fn parse(stat: &str) -> Option<Ticks> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let mut fields = after_name.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<u64>().ok();
        Some(Ticks {
            own: next()? + next()?,
            waited_for: next()? + next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Cmd;

    #[test]
    fn processor_time_is_read_past_any_name() {
        let stat = "12 (a ) b) S 1 2 3 4 5 6 7 8 9 10 400 56 7 2 20 0 1 0 100 0 0";
        let expected = Ticks {
            own: 456,
            waited_for: 9,
        };
        assert_eq!(Ticks::parse(stat), Some(expected));
        assert_eq!(Ticks::parse("12 (a) S 1"), None);
    }

    #[test]
    fn programs_count_for_the_thread_that_waits_for_them() {
        // The inner shell is killed after a second of processor time. The outer one waits for it, and adds nothing. The
        // limit counts nanoseconds and `/proc` counts ticks, so a machine whose processors are taken away counts less
        // than the second; half of it tells a program from none.
        let busy = "sh -c 'ulimit -t 1; while :; do :; done'; true";
        let half = Duration::from_millis(500);
        let before = processor_time();
        let elsewhere = std::thread::spawn(move || {
            Cmd::new("sh").args(["-c", busy]).run().unwrap();
            processor_time()
        });
        let elsewhere = elsewhere.join().unwrap();
        assert!(elsewhere >= half, "{elsewhere:?}");
        let here = processor_time() - before;
        assert!(here < half, "{here:?}");
        let log = tempfile::NamedTempFile::new().unwrap();
        let shell = Cmd::new("sh").args(["-c", busy]);
        let mut running = shell.spawn_logged(log.path()).unwrap();
        assert!(running.ask_to_end_after(Duration::MAX).unwrap().success());
        let waited = processor_time() - before;
        assert!(waited >= half, "{waited:?}");
    }
}
