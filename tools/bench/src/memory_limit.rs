//! A control group with little memory, page cache included. Needs root.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::plan::SERVER_PROCESSOR;
use onefold_harness::command::Cmd;

/// The directories of control groups, of version 1 and version 2, and the names of their memory limits.
const HIERARCHIES: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
];

/// A control group with a memory limit, removed when dropped.
pub(crate) struct MemoryLimit {
    group: PathBuf,
}

impl MemoryLimit {
    pub(crate) fn new(bytes: u64) -> Result<MemoryLimit> {
        let present = |(root, file): &&(&str, &str)| {
            Path::new(root).join(file).exists()
                || Path::new(root).join("cgroup.controllers").exists()
        };
        let (root, file) = HIERARCHIES
            .iter()
            .find(present)
            .context("there are no control groups for memory")?;
        let group = Path::new(root).join(format!("onefold-bench-{}", std::process::id()));
        let doing = || format!("cannot limit memory by {} (it needs root)", group.display());
        fs::create_dir(&group).with_context(doing)?;
        let limit = MemoryLimit {
            group: group.clone(),
        };
        fs::write(group.join(file), bytes.to_string()).with_context(doing)?;
        Ok(limit)
    }

    /// A command that runs a program inside the group, on the server's processor.
    pub(crate) fn pinned(&self, program: &Path) -> Cmd {
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec taskset -c {SERVER_PROCESSOR} \"$@\"",
            self.group.display()
        );
        Cmd::new("sh").args(["-c", &enter, "sh"]).arg(program)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // An empty group that remains does no harm.
        let _ = fs::remove_dir(&self.group);
    }
}
