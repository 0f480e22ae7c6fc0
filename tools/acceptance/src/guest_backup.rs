//! The part of `cargo xtask guest` in which a guest runs on last night's disk, served from the repository.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::guest::{FILES, Guest};
use crate::guest_image::GuestImage;
use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::server::{Address, Daemon, Product};

/// The file that the guest writes to its overlay.
const WRITTEN: &str = "/mnt/written-in-the-night";

/// Backs up the volume with the files, serves the backup, and boots a guest from an overlay on it.
pub(crate) fn run(
    product: &Product,
    volume: &str,
    image: &GuestImage,
    scratch: &Scratch,
) -> Result<()> {
    let key = scratch.path().join("key");
    std::fs::write(&key, "a key that only this guest's backups have")
        .context("cannot write the key")?;
    let repository = scratch.path().join("repository");
    let backup = |verb: &[&str]| {
        let command = product.command().args(["--quiet", "backup"]).args(verb);
        let command = command.arg("--repository").arg(&repository);
        command.arg("--key-file").arg(&key)
    };
    backup(&["init"]).run()?;
    backup(&["create", volume]).run()?;
    let name = format!("{volume}@1");
    let content = || content(backup(&["restore", &name, "-"]));
    let before = content()?;

    let address = Address::Unix(scratch.path().join("backup.sock"));
    let mount = backup(&["mount", "--nbd", &address.option()]);
    let log = scratch.path().join("mount.log");
    let mounted = Daemon::start(mount, std::slice::from_ref(&address), &log)?;
    let overlay = scratch.path().join("live.qcow2");
    Cmd::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(address.uri(&name))
        .arg(&overlay)
        .run()?;
    run_on(&overlay, image, scratch).context("on the overlay over its backup")?;
    mounted.stop()?;

    ensure!(before == content()?, "the guest changed its backup");
    let findings = backup(&["verify", "--data"]).read();
    findings.context("the repository is damaged")?;
    println!("another guest ran on a backup of the files, found them and wrote over them");
    Ok(())
}

/// Checks that the guest finds all files, and can write another.
fn run_on(overlay: &Path, image: &GuestImage, scratch: &Scratch) -> Result<()> {
    let overlay = overlay.display().to_string().replace(',', ",,");
    let disk = format!("driver=qcow2,file.driver=file,file.filename={overlay}");
    let log = scratch.path().join("console-of-the-backup.log");
    let mut guest = Guest::boot(image, &[("files", disk)], &log)?;
    guest.run("e2fsck -f -n /dev/vda && mount -t ext4 /dev/vda /mnt")?;
    for directory in FILES.split_whitespace() {
        guest.run(&format!("diff -r {directory} /mnt{directory}"))?;
    }
    guest.run(&format!("cp /bin/busybox {WRITTEN} && umount /mnt"))?;
    guest.run("e2fsck -f -n /dev/vda && mount -t ext4 /dev/vda /mnt")?;
    guest.run(&format!("cmp /bin/busybox {WRITTEN} && umount /mnt"))?;
    guest.power_off()
}

fn content(restore: Cmd) -> Result<Vec<u8>> {
    let output = restore.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot restore: {said}");
    Ok(output.stdout)
}
