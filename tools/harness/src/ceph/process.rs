//! Daemons that outlive the program which starts them, and the programs that make their data, identified by process
//! number and start time.
//!
//! A process records itself before it begins, so a starter that is killed at any moment leaves none without a record.
//! The start time distinguishes it from a later process with the same number.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::command::{Cmd, Running};

/// How long a daemon may take to record itself.
const RECORD_LIMIT: Duration = Duration::from_secs(10);

/// The poll interval for the record.
const RECORD_POLL: Duration = Duration::from_millis(2);

/// How long a process may take to end after SIGKILL. It may be in the middle of a large write.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// Closes inherited files: a daemon would otherwise hold the locks and pipes of its starter. Then raises the limit of
/// open files, writes number and start time to the file of the first argument, and executes the other arguments.
const LAUNCH: &str = r#"
record=$1
shift
for entry in /proc/$$/fd/*; do
    number=${entry##*/}
    if [ "$number" -gt 2 ]; then eval "exec $number>&-"; fi
done
ulimit -Sn hard
read -r -a stat < /proc/$$/stat
printf '%s %s\n' "$$" "${stat[21]}" > "$record"
exec "$@"
"#;

/// Starts a program that the caller waits for, and records it as a daemon is recorded.
pub(super) fn spawn(command: &[&str], record: &Path, log: &Path) -> Result<Running> {
    recording(Cmd::new("bash"), command, record).spawn_logged(log)
}

/// Starts a daemon in a session of its own, in this directory.
pub(super) fn launch(command: &[&str], directory: &Path, record: &Path, log: &Path) -> Result<()> {
    // The record of an earlier daemon.
    match fs::remove_file(record) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", record.display()));
        }
        _ => {}
    }
    let session = Cmd::new("setsid").args(["--fork", "bash"]);
    let status = recording(session, command, record)
        .dir(directory)
        // Debian builds Ceph with the C library's allocator, which would keep much memory for each thread.
        .env("MALLOC_ARENA_MAX", "4")
        .spawn_logged(log)?
        .wait()?;
    if !status.success() {
        bail!("setsid failed ({status})");
    }
    let start = Instant::now();
    while recorded(record)?.is_none() {
        if start.elapsed() > RECORD_LIMIT {
            bail!("{command:?} did not start; see {}", log.display());
        }
        std::thread::sleep(RECORD_POLL);
    }
    Ok(())
}

/// Completes a shell command so that it records itself and then executes `command`.
fn recording(shell: Cmd, command: &[&str], record: &Path) -> Cmd {
    let shell = shell.args(["-c", LAUNCH, "launch"]).arg(record);
    shell.args(command)
}

/// A running process.
pub(super) struct Process {
    pidfd: OwnedFd,
}

impl Process {
    /// The process of a record, if it still runs.
    pub(super) fn find(record: &Path) -> Result<Option<Process>> {
        let Some((number, start_time)) = recorded(record)? else {
            return Ok(None);
        };
        let Some(pid) = Pid::from_raw(number) else {
            return Ok(None);
        };
        // Opened first and checked afterwards, so that the number cannot pass to another process in between.
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error).context("cannot hold on to a daemon"),
        };
        // The process can end at any moment, and then the file is gone.
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        Ok((running_since(&stat) == Some(start_time)).then_some(Process { pidfd }))
    }

    /// Sends a signal. A process that has ended is not an error.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot send {signal:?}")),
        }
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(super) fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        let timeout = Timespec::try_from(KILL_LIMIT).context("no such time")?;
        let ended = poll(
            &mut [PollFd::new(&self.pidfd, PollFlags::IN)],
            Some(&timeout),
        )
        .context("cannot wait for a daemon")?;
        if ended == 0 {
            bail!("a daemon did not end within {} s", KILL_LIMIT.as_secs());
        }
        Ok(())
    }
}

/// Number and start time in a record; `None` if there is no record, or an incomplete one.
fn recorded(record: &Path) -> Result<Option<(i32, u64)>> {
    let text = match fs::read_to_string(record) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", record.display()));
        }
    };
    Ok(parse(&text))
}

fn parse(text: &str) -> Option<(i32, u64)> {
    let (number, start_time) = text.strip_suffix('\n')?.split_once(' ')?;
    Some((number.parse().ok()?, start_time.parse().ok()?))
}

/// The start time in a line of `/proc/PID/stat`; `None` if the process has ended and waits to be reaped.
fn running_since(stat: &str) -> Option<u64> {
    // The name in parentheses may hold anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?;
    let start_time = fields.nth(18)?.parse().ok()?;
    (state != "Z" && state != "X").then_some(start_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Launches a command. Returns the path of its record, by which a process that did not start it can find it.
    fn launched(directory: &Path, command: &[&str]) -> std::path::PathBuf {
        let record = directory.join("record");
        launch(command, directory, &record, &directory.join("log")).unwrap();
        record
    }

    #[test]
    fn a_daemon_is_found_by_its_record_and_killed() {
        let directory = tempfile::tempdir().unwrap();
        let record = launched(directory.path(), &["sleep", "1000"]);
        let process = Process::find(&record).unwrap().unwrap();
        process.signal(Signal::STOP).unwrap();
        process.kill().unwrap();
        assert!(Process::find(&record).unwrap().is_none());
    }

    #[test]
    fn a_daemon_inherits_no_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let files = directory.path().join("files");
        let list = format!("ls /proc/$$/fd > {0}.new; mv {0}.new {0}", files.display());
        // Without the flag that closes it on exec, as the lock of flock(1).
        let inherited = fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        launched(directory.path(), &["bash", "-c", &list]);
        let start = Instant::now();
        while !files.exists() {
            assert!(start.elapsed() < RECORD_LIMIT);
            std::thread::sleep(RECORD_POLL);
        }
        assert_eq!(fs::read_to_string(&files).unwrap(), "0\n1\n2\n");
    }

    #[test]
    fn another_process_with_the_number_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("record");
        let our_number = std::process::id();
        fs::write(&record, format!("{our_number} 1\n")).unwrap();
        assert!(Process::find(&record).unwrap().is_none());
        assert!(
            Process::find(&directory.path().join("none"))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn the_start_time_is_found_past_any_name() {
        let stat = |state| {
            format!("7 (a ) b) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 0")
        };
        assert_eq!(running_since(&stat("S")), Some(4711));
        assert_eq!(running_since(&stat("Z")), None);
        assert_eq!(running_since(""), None);
        assert_eq!(parse("12 34\n"), Some((12, 34)));
        assert_eq!(parse("12 3"), None);
    }
}
