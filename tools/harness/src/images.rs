//! Different real disk images: ext4 file systems that hold unpacked Debian packages.
//!
//! Made without root (`apt-get download`, `dpkg-deb -x`, `mkfs.ext4 -d`) and only from the package sources that this
//! machine's apt is set up with. They share a base system, as the disks of virtual machines do, and otherwise differ.
//! They are kept below the target directory, so that only the first run takes the time to make them.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cleanup::Scratch;
use crate::command::Cmd;
use crate::packages;
use crate::workspace::Workspace;

/// Packages in every image. Names without version numbers, so that other Debian releases have them, too.
const BASE: &[&str] = &[
    "apt",
    "bash",
    "coreutils",
    "dpkg",
    "e2fsprogs",
    "git",
    "iproute2",
    "libc6",
    "locales",
    "openssl",
    "perl-base",
    "sudo",
    "systemd",
    "tzdata",
    "udev",
    "util-linux",
];

/// Packages of a web server's disk.
const WEB: &[&str] = &[
    "mariadb-server-core",
    "nginx-common",
    "phpmyadmin",
    "python3-django",
    "wordpress",
];

/// Packages of a developer's disk.
const DEV: &[&str] = &[
    "cmake",
    "cmake-data",
    "emacs-common",
    "gdb",
    "iso-codes",
    "mercurial-common",
    "python3-numpy",
    "vim-runtime",
];

/// Packages of a mail server's disk.
const MAIL: &[&str] = &["dovecot-core", "exim4-daemon-light", "spamassassin"];

/// The images that can be made. The first two are the demo's.
const RECIPES: [Recipe; 3] = [
    Recipe {
        name: "web",
        size: "640M",
        packages: WEB,
    },
    Recipe {
        name: "dev",
        size: "768M",
        packages: DEV,
    },
    Recipe {
        name: "mail",
        size: "384M",
        packages: MAIL,
    },
];

/// An image of `mkfs.ext4`, made from a set of packages.
struct Recipe {
    name: &'static str,
    size: &'static str,
    packages: &'static [&'static str],
}

/// A raw image file.
pub struct Image {
    /// The image's name, and the name of its volume in a pool.
    pub name: String,
    /// The path of the image file.
    pub path: PathBuf,
    /// The size of the disk.
    pub size_bytes: u64,
    /// The size of the sparse file on disk.
    pub data_bytes: u64,
}

/// `cargo xtask images`
pub fn run(workspace: &Workspace) -> Result<()> {
    packages::require(packages::CLIENTS)?;
    for image in make(workspace)? {
        println!("{}  {}", image.path.display(), image.describe());
    }
    Ok(())
}

/// Makes two images, or returns the images of an earlier run.
pub fn make(workspace: &Workspace) -> Result<Vec<Image>> {
    let [web, dev, _] = &RECIPES;
    make_by(workspace, &[web, dev])
}

/// Makes three images: the two of [`make`], and a smaller one.
pub fn make_three(workspace: &Workspace) -> Result<Vec<Image>> {
    make_by(workspace, &RECIPES.each_ref())
}

fn make_by(workspace: &Workspace, recipes: &[&Recipe]) -> Result<Vec<Image>> {
    let cache = workspace.cache("images")?;
    // Another process that needs the same images waits until they are made.
    let lock = File::create(cache.join("lock")).context("cannot lock the images")?;
    lock.lock().context("cannot lock the images")?;
    recipes
        .iter()
        .map(|recipe| recipe.make(workspace, &cache))
        .collect()
}

impl Image {
    /// The image's sizes, as text.
    pub fn describe(&self) -> String {
        format!(
            "{} MiB, of which {} MiB hold data",
            self.size_bytes >> 20,
            self.data_bytes >> 20
        )
    }

    /// An image that the user provides.
    pub fn of_user(path: &Path) -> Result<Image> {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let name = name.with_context(|| format!("{} has no name", path.display()))?;
        Image::at(name, path.to_owned())
    }

    fn at(name: &str, path: PathBuf) -> Result<Image> {
        let metadata = std::fs::metadata(&path)
            .with_context(|| format!("cannot look at the image {}", path.display()))?;
        // st_blocks counts units of 512 bytes, whatever the file system's block size.
        let data_bytes = metadata.blocks() * 512;
        Ok(Image {
            name: name.to_owned(),
            path,
            size_bytes: metadata.len(),
            data_bytes,
        })
    }
}

impl Recipe {
    fn make(&self, workspace: &Workspace, cache: &Path) -> Result<Image> {
        let image = cache.join(format!("{}.raw", self.name));
        let recipe = cache.join(format!("{}.recipe", self.name));
        let text = self.text();
        // The recipe is written last: if it exists and is the same, the image is complete.
        let same = std::fs::read_to_string(&recipe).is_ok_and(|made| made == text);
        if !(same && image.exists()) {
            let scratch = Scratch::new(&workspace.scratch_parent(), "image")?;
            self.build(scratch.path(), &image)?;
            std::fs::write(&recipe, text)
                .with_context(|| format!("cannot write {}", recipe.display()))?;
        }
        Image::at(self.name, image)
    }

    fn all_packages(&self) -> impl Iterator<Item = &'static str> {
        BASE.iter().chain(self.packages).copied()
    }

    fn text(&self) -> String {
        format!(
            "2 {} {}\n",
            self.size,
            self.all_packages().collect::<Vec<_>>().join(" ")
        )
    }

    fn build(&self, scratch: &Path, image: &Path) -> Result<()> {
        let names: Vec<&str> = self.all_packages().collect();
        let tree = packages::unpack(&names, scratch)?;
        let made = scratch.join("image.raw");
        // 4 KiB blocks as every installer makes them; a fixed UUID and hash seed, so that the
        // same packages give nearly the same image.
        let uuid = "6f6e6566-6f6c-4664-8000-000000000001";
        Cmd::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-U", uuid, "-L", self.name])
            .arg("-E")
            .arg(format!("hash_seed={uuid},lazy_itable_init=0"))
            .arg("-d")
            .arg(&tree)
            .arg(&made)
            .arg(self.size)
            .run()?;
        // mkfs.ext4 writes zeros into its journal and tables; without them, the file's size on disk equals its content.
        Cmd::new("fallocate").arg("--dig-holes").arg(&made).run()?;
        std::fs::rename(&made, image)
            .with_context(|| format!("cannot move the image to {}", image.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_overlap_and_differ() {
        let [web, dev, mail] = &RECIPES;
        for (one, other) in [(web, dev), (dev, mail), (mail, web)] {
            assert!(BASE.iter().all(|name| one.text().contains(name)));
            assert!(
                one.packages
                    .iter()
                    .all(|name| !other.packages.contains(name))
            );
        }
    }

    #[test]
    fn no_package_is_named_twice() {
        for recipe in &RECIPES {
            let mut names: Vec<_> = recipe.all_packages().collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
