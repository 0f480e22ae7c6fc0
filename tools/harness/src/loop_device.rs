//! A file as a block device, for as long as a test needs it.
//!
//! The kernel detaches the device once no process has it open, whether this process ends well or is killed.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::Cmd;

/// A loop device.
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a file, past the host's page cache.
    ///
    /// # Errors
    /// The system has no loop devices, or this process may not use them.
    pub fn attach(file: &Path) -> Result<LoopDevice> {
        let attach = Cmd::new("losetup").args(["--find", "--show", "--direct-io=on"]);
        let path = PathBuf::from(attach.arg(file).read()?.trim());
        let open = File::open(&path);
        // A device that is open stays until it is closed.
        Cmd::new("losetup").arg("--detach").arg(&path).run()?;
        let open = open.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(LoopDevice { path, _open: open })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
