//! Cleans everything up: processes, mounts, clusters and scratch directories are listed here while they exist, so that
//! a signal ends them as a normal return does through `Drop`.
//!
//! Processes are held by pidfd, so a signal cannot hit another process that got the same number. A SIGKILL of this
//! process cannot be caught; then servers stay until killed.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Everything that has to be cleaned up when a signal ends the run.
struct Leftovers {
    processes: Vec<Process>,
    mounts: Vec<PathBuf>,
    services: Vec<Service>,
    directories: Vec<PathBuf>,
}

/// A process that was started and has not been waited for.
struct Process {
    pidfd: Arc<OwnedFd>,
    /// The process cleans up after itself if it is asked to end and given time.
    cleans_up: bool,
}

/// Daemons that outlive the program that starts them.
#[derive(Clone)]
struct Service {
    directory: PathBuf,
    /// Stops the daemons that work in the directory, without starting a process.
    stop: fn(&Path) -> Result<()>,
}

impl Service {
    fn stop(&self) {
        if let Err(error) = (self.stop)(&self.directory) {
            eprintln!(
                "cannot stop what works in {}: {error:#}",
                self.directory.display()
            );
        }
    }
}

/// How long all processes that clean up may take together.
const CLEANING_LIMIT: Duration = Duration::from_secs(10);

static LEFTOVERS: Mutex<Leftovers> = Mutex::new(Leftovers {
    processes: Vec::new(),
    mounts: Vec::new(),
    services: Vec::new(),
    directories: Vec::new(),
});

fn leftovers() -> MutexGuard<'static, Leftovers> {
    // The lists are valid after any panic: each change to them is one push or one retain.
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes SIGINT, SIGTERM and SIGHUP clean up and exit with 128 + the signal's number.
pub fn install_signal_handler() -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot install the signal handler")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("\nstopped by a signal, cleaning up");
            remove_everything();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

fn remove_everything() {
    // The lock is held until the exit, so that no thread starts a process in the meantime.
    let left = leftovers();
    let (cleaning, other): (Vec<_>, Vec<_>) =
        left.processes.iter().partition(|process| process.cleans_up);
    // An error means that the process is gone, which is the goal.
    for process in other {
        let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
    }
    for process in &cleaning {
        let _ = pidfd_send_signal(&process.pidfd, Signal::TERM);
    }
    let deadline = Instant::now() + CLEANING_LIMIT;
    for process in &cleaning {
        wait_until(&process.pidfd, deadline);
        let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
    }
    for mount in &left.mounts {
        unmount(mount);
    }
    left.services.iter().for_each(Service::stop);
    for directory in &left.directories {
        // A killed process may still create files for an instant; a second try is enough.
        if std::fs::remove_dir_all(directory).is_err() && directory.exists() {
            std::thread::sleep(std::time::Duration::from_millis(200));
            if let Err(error) = std::fs::remove_dir_all(directory) {
                eprintln!("cannot remove {}: {error}", directory.display());
            }
        }
    }
    std::mem::forget(left);
}

/// Waits until the process has ended, or the deadline has passed.
fn wait_until(process: &OwnedFd, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).ok();
    // A failed wait counts as ended.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], timeout.as_ref());
}

/// Lists a process until [`forget_process`]. On a signal, a process that cleans up is asked to end; any other is
/// killed.
pub(crate) fn remember_process(pidfd: Arc<OwnedFd>, cleans_up: bool) {
    let process = Process { pidfd, cleans_up };
    leftovers().processes.push(process);
}

pub(crate) fn forget_process(pidfd: &Arc<OwnedFd>) {
    leftovers()
        .processes
        .retain(|listed| !Arc::ptr_eq(&listed.pidfd, pidfd));
}

/// A mount point that is unmounted at the end.
pub struct Mount {
    path: PathBuf,
}

impl Mount {
    /// Lists a path where something is mounted, or will be.
    pub fn new(path: PathBuf) -> Mount {
        leftovers().mounts.push(path.clone());
        Mount { path }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.path);
        leftovers().mounts.retain(|listed| *listed != self.path);
    }
}

fn unmount(path: &Path) {
    // Lazily, because the server behind the mount may be dead; and quietly, because usually it is unmounted already.
    // The second program is for the kernel's own mounts.
    for (program, options) in [
        ("fusermount3", &["-u", "-z"][..]),
        ("umount", &["-l", "-d", "-q"]),
    ] {
        let _ = Command::new(program)
            .args(options)
            .arg(path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// Stops, when dropped, daemons that would outlive this program.
pub struct Stopping {
    service: Service,
}

impl Stopping {
    /// Lists daemons that work in a directory, or will. `stop` must start no process.
    pub fn new(directory: PathBuf, stop: fn(&Path) -> Result<()>) -> Stopping {
        let service = Service { directory, stop };
        leftovers().services.push(service.clone());
        Stopping { service }
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        self.service.stop();
        let directory = &self.service.directory;
        (leftovers().services).retain(|listed| listed.directory != *directory);
    }
}

/// A directory that is removed with its contents, on success, failure and signals.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty directory in `parent`, which is made if it does not exist.
    pub fn new(parent: &Path, purpose: &str) -> Result<Scratch> {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make the directory {}", parent.display()))?;
        let path = tempfile::Builder::new()
            .prefix(&format!("onefold-{purpose}-"))
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?
            .keep();
        leftovers().directories.push(path.clone());
        Ok(Scratch { path })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
        leftovers()
            .directories
            .retain(|listed| *listed != self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_disappears_with_its_content() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(&parent.path().join("made"), "unit").unwrap();
        let path = scratch.path().to_path_buf();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::fs::write(path.join("a/b/file"), b"x").unwrap();
        assert!(leftovers().directories.contains(&path));
        drop(scratch);
        assert!(!path.exists());
        assert!(!leftovers().directories.contains(&path));
    }
}
