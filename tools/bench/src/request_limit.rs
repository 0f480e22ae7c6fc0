//! A control group that limits the writes per second of its processes to a device, which makes a slow disk. Needs root.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{major, minor};
use std::os::unix::fs::MetadataExt;

/// The versions of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Limits only writes past the page cache.
    First,
    Second,
}

const ROOTS: [(Version, &str, &str); 2] = [
    (
        Version::First,
        "/sys/fs/cgroup/blkio",
        "blkio.throttle.write_iops_device",
    ),
    (Version::Second, "/sys/fs/cgroup", "cgroup.controllers"),
];

/// A control group with a limit of writes, removed when dropped.
pub(crate) struct RequestLimit {
    root: PathBuf,
    group: PathBuf,
    /// The file that holds the limit, and the text that removes the limit.
    file: &'static str,
    unlimited: String,
}

impl RequestLimit {
    /// Limits writes to the device that holds `directory`; an error says why that is not possible.
    pub(crate) fn new(directory: &Path, writes_per_second: u64) -> Result<RequestLimit> {
        let (version, root, _) = ROOTS
            .into_iter()
            .find(|(_, root, file)| Path::new(root).join(file).exists())
            .context("there are no control groups that limit requests")?;
        let device = whole_device(directory)?;
        let group = Path::new(root).join(format!("onefold-bench-{}", std::process::id()));
        let doing = || format!("cannot limit requests by {}", group.display());
        if version == Version::Second {
            fs::write(Path::new(root).join("cgroup.subtree_control"), "+io").with_context(doing)?;
        }
        fs::create_dir(&group).with_context(doing)?;
        let limit = RequestLimit {
            root: root.into(),
            group: group.clone(),
            file: file(version),
            unlimited: text(version, &device, None),
        };
        let limited = text(version, &device, Some(writes_per_second));
        fs::write(group.join(limit.file), limited).with_context(doing)?;
        Ok(limit)
    }

    /// Moves a process into the group.
    pub(crate) fn add(&self, process: u32) -> Result<()> {
        enter(&self.group, process)
    }

    /// Moves a process out of the group.
    pub(crate) fn release(&self, process: u32) -> Result<()> {
        enter(&self.root, process)
    }
}

impl Drop for RequestLimit {
    fn drop(&mut self) {
        // An empty group that remains does no harm, nor does one without a limit.
        let _ = fs::write(self.group.join(self.file), &self.unlimited);
        let _ = fs::remove_dir(&self.group);
    }
}

fn enter(group: &Path, process: u32) -> Result<()> {
    let file = group.join("cgroup.procs");
    fs::write(&file, process.to_string())
        .with_context(|| format!("cannot write to {}", file.display()))
}

fn file(version: Version) -> &'static str {
    match version {
        Version::First => "blkio.throttle.write_iops_device",
        Version::Second => "io.max",
    }
}

fn text(version: Version, device: &str, writes_per_second: Option<u64>) -> String {
    match (version, writes_per_second) {
        (Version::First, limit) => format!("{device} {}", limit.unwrap_or(0)),
        (Version::Second, Some(limit)) => format!("{device} wiops={limit}"),
        (Version::Second, None) => format!("{device} wiops=max"),
    }
}

/// The numbers of the device below a file system. For a partition, the numbers of the whole device, because only whole
/// devices have limits.
fn whole_device(directory: &Path) -> Result<String> {
    let metadata = fs::metadata(directory)
        .with_context(|| format!("cannot look at {}", directory.display()))?;
    let own = format!("{}:{}", major(metadata.dev()), minor(metadata.dev()));
    let entry = Path::new("/sys/dev/block").join(&own);
    let entry = fs::canonicalize(&entry)
        .with_context(|| format!("{} is on no block device", directory.display()))?;
    if !entry.join("partition").exists() {
        return Ok(own);
    }
    let parent = entry.parent().context("a partition without a device")?;
    let numbers = fs::read_to_string(parent.join("dev")).context("a device without numbers")?;
    Ok(numbers.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_words() {
        let words = |version, limit| text(version, "254:0", limit);
        assert_eq!(words(Version::First, Some(1000)), "254:0 1000");
        assert_eq!(words(Version::First, None), "254:0 0");
        assert_eq!(words(Version::Second, Some(1000)), "254:0 wiops=1000");
        assert_eq!(words(Version::Second, None), "254:0 wiops=max");
    }
}
