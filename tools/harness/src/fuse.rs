//! An export as a file, mounted by nbdfuse for as long as a test needs it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::cleanup::Mount;
use crate::command::{Cmd, Running};
use crate::server::STOP_LIMIT;

/// How long nbdfuse may take to mount.
const MOUNT_LIMIT: Duration = Duration::from_secs(30);

/// An export, mounted.
pub struct Fused {
    /// The file with the content of the export.
    pub disk: PathBuf,
    running: Running,
    _mount: Mount,
}

impl Fused {
    /// Mounts the export below a directory, in which no other file is called `mount`.
    ///
    /// # Errors
    /// nbdfuse does not mount; the error has its output.
    pub fn new(directory: &Path, uri: &str) -> Result<Fused> {
        let point = directory.join("mount");
        std::fs::create_dir_all(&point).context("cannot make the mount point")?;
        let disk = point.join("disk");
        let log = directory.join("nbdfuse.log");
        let mount = Mount::new(point);
        let mut running = Cmd::new("nbdfuse").arg(&disk).arg(uri).spawn_logged(&log)?;
        let start = Instant::now();
        while !disk.exists() {
            if running.try_wait()?.is_some() || start.elapsed() > MOUNT_LIMIT {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                bail!("nbdfuse does not mount: {said}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Fused {
            disk,
            running,
            _mount: mount,
        })
    }

    /// Flushes and unmounts.
    ///
    /// # Errors
    /// The flush fails, or nbdfuse does not end.
    pub fn finish(mut self) -> Result<()> {
        Cmd::new("sync").arg(&self.disk).run()?;
        self.running.signal(Signal::INT)?;
        // nbdfuse's status after a signal differs between versions; the flush has succeeded.
        self.running.wait_at_most(STOP_LIMIT).map(drop)
    }
}
