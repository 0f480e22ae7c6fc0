//! A kernel and a root file system in memory for a guest, made of Debian packages without root.
//!
//! Kernel, its modules and busybox come from packages that are unpacked and not installed; the other programs are this
//! machine's own, with the libraries that they load. Both are kept below the target directory, so that only the first
//! run takes the time to make them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use onefold_harness::cleanup::Scratch;
use onefold_harness::command::Cmd;
use onefold_harness::packages;
use onefold_harness::workspace::Workspace;

/// A package that always depends on the present kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

const BUSYBOX: &str = "busybox-static";

/// Modules in the order of their dependencies. A module without a file is built into the kernel.
const MODULES: [&str; 6] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
];

/// This machine's programs that the guest runs.
const PROGRAMS: [&str; 3] = ["e2fsck", "fio", "mkfs.ext4"];

/// Executes the lines of the console, and prints the status of each.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /dev /mnt /proc /sys /tmp
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in MODULES; do
    for file in /modules/$module.ko*; do
        test ! -e $file || insmod $file
    done
done
stty -echo
status=0
while echo "guest: status $status"; read -r line; do
    eval "$line" </dev/null
    status=$?
done
"#;

/// The two files that a guest boots from.
pub(crate) struct GuestImage {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

impl GuestImage {
    /// Returns the image of an earlier run, or makes a new one.
    pub(crate) fn make(workspace: &Workspace) -> Result<GuestImage> {
        let cache = workspace.cache("guest")?;
        let image = GuestImage {
            kernel: cache.join("vmlinuz"),
            initramfs: cache.join("initramfs"),
        };
        let recipe = cache.join("recipe");
        let text = format!("{KERNEL} {BUSYBOX} {}\n{}", PROGRAMS.join(" "), init());
        // The recipe is written last: if it exists and is the same, both files are complete.
        let same = std::fs::read_to_string(&recipe).is_ok_and(|made| made == text);
        if !(same && image.kernel.exists() && image.initramfs.exists()) {
            let scratch = Scratch::new(&workspace.scratch_parent(), "guest-image")?;
            image.build(scratch.path())?;
            std::fs::write(&recipe, text)
                .with_context(|| format!("cannot write {}", recipe.display()))?;
        }
        Ok(image)
    }

    fn build(&self, scratch: &Path) -> Result<()> {
        let kernel = packages::dependency(KERNEL)?;
        let unpacked = packages::unpack(&[&kernel, BUSYBOX], scratch)?;
        let version = kernel.trim_start_matches("linux-image-");
        copy(
            &unpacked.join(format!("boot/vmlinuz-{version}")),
            &self.kernel,
        )?;
        let root = scratch.join("root");
        for directory in ["bin", "modules"] {
            std::fs::create_dir_all(root.join(directory))
                .with_context(|| format!("cannot make a directory in {}", root.display()))?;
        }
        let busybox = root.join("bin/busybox");
        let name = Cmd::new("find")
            .arg(&unpacked)
            .args(["-path", "*/bin/busybox"])
            .read()?;
        copy(Path::new(name.trim()), &busybox)?;
        copy_modules(&unpacked, &root)?;
        for program in PROGRAMS {
            copy_program(program, &root)?;
        }
        let file = root.join("init");
        std::fs::write(&file, init())
            .and_then(|()| std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", file.display()))?;
        Cmd::new("sh")
            .args(["-c", "find . | \"$1\" cpio -o -H newc > \"$2\"", "sh"])
            .arg(&busybox)
            .arg(&self.initramfs)
            .dir(&root)
            .run()
    }
}

fn init() -> String {
    INIT.replace("MODULES", &MODULES.join(" "))
}

fn copy_modules(unpacked: &Path, root: &Path) -> Result<()> {
    let mut found = 0;
    for module in MODULES {
        let paths = Cmd::new("find")
            .arg(unpacked)
            .args(["-name", &format!("{module}.ko*")])
            .read()?;
        for path in paths.lines().map(Path::new) {
            let name = path.file_name().context("a module has no name")?;
            copy(path, &root.join("modules").join(name))?;
            found += 1;
        }
    }
    ensure!(found > 0, "{KERNEL} has none of the modules for its disks");
    Ok(())
}

/// Copies a program and the files that the dynamic linker loads for it, to the same paths.
fn copy_program(name: &str, root: &Path) -> Result<()> {
    let path = Cmd::new("sh")
        .args(["-c", "command -v \"$1\"", "sh", name])
        .read()?;
    copy(Path::new(path.trim()), &root.join("bin").join(name))?;
    let linked = Cmd::new("ldd").arg(path.trim()).read()?;
    for library in libraries(&linked)? {
        let inside = root.join(library.trim_start_matches('/'));
        if !inside.exists() {
            copy(Path::new(library), &inside)?;
        }
    }
    Ok(())
}

/// The paths in the output of `ldd`, without the addresses.
fn libraries(linked: &str) -> Result<Vec<&str>> {
    if let Some(line) = linked.lines().find(|line| line.contains("not found")) {
        bail!("a library is missing: {}", line.trim());
    }
    let words = linked.split_whitespace();
    Ok(words.filter(|word| word.starts_with('/')).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().context("a file without a directory")?;
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::copy(from, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths() {
        let linked = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux.so.2 (0x00007f)\n";
        assert_eq!(
            libraries(linked).unwrap(),
            ["/lib/libc.so.6", "/lib64/ld-linux.so.2"]
        );
        assert!(libraries("\tlibx.so => not found\n").is_err());
    }
}
