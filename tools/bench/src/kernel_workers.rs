//! Counts the requests that the io_uring of a process passes to workers of the kernel, by tracefs. Needs root.
//!
//! A request goes to a worker if it would have to wait, as a direct write into a hole of a file does. Events are counted
//! in a tracing instance, which other users of the kernel's tracing do not notice.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use onefold_harness::cleanup::Mount;
use onefold_harness::command::Cmd;

/// The event of a request that goes to a worker.
const EVENT: &str = "events/io_uring/io_uring_queue_async_work/enable";

/// The size of each processor's buffer. Events are only counted, so the buffer may be overwritten.
const BUFFER_KIB: &str = "16";

/// The lines of a buffer's statistics that together count all events.
const COUNTS: [&str; 2] = ["entries: ", "overrun: "];

/// A count of requests, for as long as this exists.
pub(crate) struct KernelWorkers {
    instance: PathBuf,
    _mount: Mount,
}

impl KernelWorkers {
    /// Counts the requests of a process from now on, with a mount point in `directory`; an error says why that is not
    /// possible.
    pub(crate) fn watch(process: u32, directory: &Path) -> Result<KernelWorkers> {
        let point = directory.join("tracefs");
        fs::create_dir_all(&point).context("cannot make a mount point")?;
        let mount = Mount::new(point.clone());
        let tracefs = Cmd::new("mount").args(["-t", "tracefs", "tracefs"]);
        tracefs.arg(&point).run()?;
        let name = format!("onefold-bench-{}", std::process::id());
        let instance = point.join("instances").join(name);
        fs::create_dir(&instance).context("cannot make a tracing instance")?;
        let workers = KernelWorkers {
            instance,
            _mount: mount,
        };
        workers.set("buffer_size_kb", BUFFER_KIB)?;
        // The threads that the process starts later are counted as well.
        workers.set("options/event-fork", "1")?;
        workers.set("set_event_pid", &threads(process)?)?;
        workers.set(EVENT, "1")?;
        Ok(workers)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The number of requests so far.
    pub(crate) fn passed_on(&self) -> Result<u64> {
        let buffers = fs::read_dir(self.instance.join("per_cpu"));
        let mut buffers = buffers.context("cannot list buffers")?;
        buffers.try_fold(0, |sum, buffer| {
            let path = buffer.context("cannot list buffers")?.path().join("stats");
            let stats = fs::read_to_string(&path);
            let stats = stats.with_context(|| format!("cannot read {}", path.display()))?;
            Ok(sum + events(&stats)?)
        })
    }
}

impl Drop for KernelWorkers {
    fn drop(&mut self) {
        // An instance that remains counts nothing once the process has ended.
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The numbers of a process's threads.
fn threads(process: u32) -> Result<String> {
    let list = fs::read_dir(format!("/proc/{process}/task")).context("cannot list threads")?;
    let names = list.flatten().map(|thread| thread.file_name());
    let names: Vec<_> = names.filter_map(|name| name.into_string().ok()).collect();
    Ok(names.join(" "))
}

/// The events that a buffer has had, from its statistics.
fn events(stats: &str) -> Result<u64> {
    COUNTS.iter().try_fold(0, |sum, name| {
        let line = stats.lines().find_map(|line| line.strip_prefix(name));
        let count = line.and_then(|count| count.trim().parse::<u64>().ok());
        let count = count.with_context(|| format!("no {name}in: {stats}"))?;
        Ok(sum + count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwritten_events_count() {
        let stats = "entries: 12\noverrun: 300\ncommit overrun: 0\nbytes: 480\n";
        assert_eq!(events(stats).unwrap(), 312);
        assert!(events("entries: 12\n").is_err());
    }
}
