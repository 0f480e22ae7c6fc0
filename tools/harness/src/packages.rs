//! The system packages and Cargo tools that the tasks use. As root they are installed without a question; otherwise an
//! error names the one command that installs them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::Cmd;
use crate::workspace::Workspace;

/// Packages of `demo`, `clients`, `reconnect`, `kill-loop`, `guest` and `bench`.
pub const CLIENTS: &[&str] = &[
    "e2fsprogs",  // mkfs.ext4 -d, e2fsck, debugfs
    "fio",        // load with verification
    "gdisk",      // sgdisk
    "fuse3",      // fusermount3, through which nbdfuse mounts
    "libnbd-bin", // nbdinfo, nbdcopy, nbdfuse
    "qemu-utils", // qemu-img, qemu-io, qemu-nbd
];

/// More packages of `sick-disk`.
pub const SICK_DISKS: &[&str] = &["nbdkit", "mount"];

/// More packages of `guest`, and of `clients` for `qemu-storage-daemon`.
pub const EMULATION: &[&str] = &["qemu-system-x86"];

/// More packages of `docs`.
pub const DOCUMENTS: &[&str] = &["curl", "jq"];

/// More packages of `metrics`. promtool is in the package of Prometheus.
pub const MONITORING: &[&str] = &["curl", "prometheus"];

/// The package that `bench study` compares with.
pub const DUPEREMOVE: &[&str] = &["duperemove"];

/// Packages of `ceph`. The Python module comes with the third.
pub const CEPH: &[&str] = &["ceph-mon", "ceph-osd", "ceph-common"];

/// More packages of `fuzz`: libFuzzer is C++ and is compiled when the targets are built.
pub const FUZZING: &[&str] = &["g++"];

/// Makes sure that the packages are installed.
///
/// # Errors
/// Without root, an error that lists the missing packages and how to install them.
pub fn require(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|name| !installed(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("{}", how_to_install(&missing));
    }
    println!("installing the system packages {}", missing.join(" "));
    // The package lists of a fresh machine are empty or old, and an old list names files that no longer exist.
    apt_get().args(["-qq", "update"]).run()?;
    apt_get()
        .args(["-qq", "-y", "--no-install-recommends", "install"])
        .args(&missing)
        .run()?;
    if let Some(name) = missing.iter().find(|name| !installed(name)) {
        bail!("the system package {name} is still missing after apt-get install");
    }
    Ok(())
}

/// apt-get in its quiet, unattended form.
pub fn apt_get() -> Cmd {
    Cmd::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive")
}

/// Downloads packages and unpacks them into `scratch/tree`, whose path is returned. Nothing is installed, so this needs
/// no root.
pub fn unpack(names: &[&str], scratch: &Path) -> Result<PathBuf> {
    let (debs, tree) = (scratch.join("debs"), scratch.join("tree"));
    for directory in [&debs, &tree] {
        std::fs::create_dir(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    // The download runs as the calling user: apt's own user can not write into our directory, and
    // apt would warn about that for each file.
    with_package_lists(|| {
        apt_get()
            .args(["-qq", "-o", "APT::Sandbox::User=root", "download"])
            .args(names)
            .dir(&debs)
            .run()
    })?;
    let mut files = std::fs::read_dir(&debs)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .with_context(|| format!("cannot list {}", debs.display()))?;
    if files.len() < names.len() {
        bail!("apt-get download brought {} files only", files.len());
    }
    files.sort_by_key(std::fs::DirEntry::file_name);
    for file in files {
        Cmd::new("dpkg-deb")
            .arg("--extract")
            .arg(file.path())
            .arg(&tree)
            .run()?;
    }
    Ok(tree)
}

/// The real package behind a virtual one.
pub fn dependency(name: &str) -> Result<String> {
    let text = with_package_lists(|| Cmd::new("apt-cache").args(["depends", name]).read())?;
    let first = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: "));
    first
        .map(str::to_owned)
        .with_context(|| format!("the system package {name} depends on nothing"))
}

/// Runs `work`. If it fails, updates the package lists, which needs root, and runs it again.
fn with_package_lists<T>(work: impl Fn() -> Result<T>) -> Result<T> {
    let first = match work() {
        Ok(done) => return Ok(done),
        Err(error) => error,
    };
    if !rustix::process::geteuid().is_root() {
        let hint = "cannot download Debian packages; if apt's package lists are missing or \
                    old, bring them up to date with:  sudo apt-get update";
        return Err(first.context(hint));
    }
    apt_get().args(["-qq", "update"]).run()?;
    work()
}

/// Makes sure that `cargo fuzz` is installed, from crates.io.
pub fn require_cargo_fuzz(workspace: &Workspace) -> Result<()> {
    if workspace.cargo().args(["fuzz", "--version"]).run().is_ok() {
        return Ok(());
    }
    println!("installing the Cargo tool cargo-fuzz");
    workspace
        .cargo()
        .args(["install", "--quiet", "--locked", "cargo-fuzz"])
        .run()
}

fn installed(package: &str) -> bool {
    Cmd::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status}", package])
        .read()
        .is_ok_and(|status| status.trim() == "installed")
}

fn how_to_install(missing: &[&str]) -> String {
    let list = missing.join(" ");
    format!(
        "these system packages are missing: {list}\n\
         install them with:  sudo apt-get update && sudo apt-get install -y {list}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_what_is_missing_and_one_command() {
        let message = how_to_install(&["fio", "fuse3"]);
        assert!(message.contains("missing: fio fuse3\n"));
        assert!(message.contains("sudo apt-get install -y fio fuse3"));
    }

    #[test]
    fn an_unknown_package_is_not_installed() {
        assert!(!installed("no-such-package-at-all"));
    }
}
