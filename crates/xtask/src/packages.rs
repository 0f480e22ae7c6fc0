//! The system packages and Cargo tools that the tasks use: installed when that needs no
//! question (as root), named with the one command that installs them otherwise.

use anyhow::{Result, bail};

use crate::command::Cmd;
use crate::workspace::Workspace;

/// What `demo`, `clients`, `kill-loop` and `bench` run.
pub(crate) const CLIENTS: &[&str] = &[
    "e2fsprogs",  // mkfs.ext4 -d, e2fsck, debugfs
    "fio",        // load with verification
    "fuse3",      // fusermount3, through which nbdfuse mounts
    "libnbd-bin", // nbdinfo, nbdcopy, nbdfuse
    "qemu-utils", // qemu-img, qemu-io, qemu-nbd
];

/// What `bench study` compares with.
pub(crate) const DUPEREMOVE: &[&str] = &["duperemove"];

/// What `fuzz` needs in addition: libFuzzer is C++ and is compiled on the spot.
pub(crate) const FUZZING: &[&str] = &["g++"];

/// Makes sure that the packages are there.
///
/// # Errors
/// Without root, an error that lists exactly what is missing and how to install it.
pub(crate) fn require(packages: &[&str]) -> Result<()> {
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
    // Package lists of a fresh machine are empty or old, and an old list names files that are
    // gone.
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
pub(crate) fn apt_get() -> Cmd {
    Cmd::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive")
}

/// Makes sure that `cargo fuzz` is there; crates.io is its source.
pub(crate) fn require_cargo_fuzz(workspace: &Workspace) -> Result<()> {
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
