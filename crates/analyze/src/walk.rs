//! The files of a path.
//!
//! Symbolic links below a path are not followed, and pipes, sockets and devices there are not read;
//! a given path may itself be a link, or a block device. Files are visited in the order of their
//! names, so that repeated analyses agree.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use onefold_image::{
    Backing, Image, ImageError, QCOW2_MAGIC, Qcow2Image, RawImage, looks_like_qcow2,
};
use serde::Serialize;
use walkdir::WalkDir;

/// A file or folder that could not be read, or not as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// The problem.
    pub what: String,
}

/// The data to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Survey {
    /// Files and devices.
    pub files: u64,
    /// Files and devices without content.
    pub empty_files: u64,
    /// Total size of the files, holes included, in bytes.
    pub bytes: u64,
    /// Symbolic links and special files, which are not read.
    pub skipped: u64,
}

/// A file to be read.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// The length when it was found: of the file, or of the disk inside it.
    pub(crate) bytes: u64,
    pub(crate) stamp: Option<Stamp>,
    /// If present, the file is read as the disk inside it.
    disk: Option<Backing>,
}

impl Found {
    /// Whether the file begins with these bytes like a qcow2 image, and is read as a plain file.
    pub(crate) fn is_unopened(&self, first: &[u8]) -> bool {
        self.disk.is_none() && first.starts_with(&QCOW2_MAGIC)
    }

    /// Opens a separate reader for the caller.
    pub(crate) fn open(&self) -> Result<Box<dyn Image>, ImageError> {
        let file = File::open(&self.path).map_err(ImageError::from)?;
        Ok(match self.disk {
            Some(backing) => Box::new(Qcow2Image::open(file, &self.path, DISK, backing)?),
            None => Box::new(RawImage::new(file, FILE)?),
        })
    }
}

/// The file's name in messages, which its path precedes.
const FILE: &str = "the file";
const DISK: &str = "the image";

/// Fields that change when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// An object found by a walk.
pub(crate) enum Met {
    File(Found),
    /// A link or a special file.
    Skipped,
    Problem(Problem),
}

/// Counts the data under these paths. Unreadable files count as zero. With `disks`, qcow2 images
/// count as the disks inside them.
#[must_use]
pub fn survey(paths: &[PathBuf], disks: Option<Backing>) -> Survey {
    let mut survey = Survey::default();
    let all = paths.iter().flat_map(|path| walk(path, disks));
    all.for_each(|met| survey.count(&met));
    survey
}

impl Survey {
    pub(crate) fn count(&mut self, met: &Met) {
        match met {
            Met::File(found) => {
                self.files += 1;
                self.empty_files += u64::from(found.bytes == 0);
                self.bytes += found.bytes;
            }
            Met::Skipped => self.skipped += 1,
            Met::Problem(_) => {}
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.empty_files += other.empty_files;
        self.bytes += other.bytes;
        self.skipped += other.skipped;
    }
}

/// The files under a path, or the path itself. With `disks`, a file that begins as a qcow2 image is
/// the disk inside it.
pub(crate) fn walk(path: &Path, disks: Option<Backing>) -> impl Iterator<Item = Met> + use<> {
    let entries = WalkDir::new(path).sort_by_file_name();
    entries.into_iter().filter_map(move |entry| match entry {
        Err(error) => {
            let path = error.path().map(Path::to_owned).unwrap_or_default();
            let what = match error.io_error() {
                Some(error) => error.to_string(),
                None => error.to_string(),
            };
            Some(Met::Problem(Problem { path, what }))
        }
        Ok(entry) if entry.file_type().is_dir() => None,
        // A link to a folder, whose content is visited.
        Ok(entry) if entry.depth() == 0 && entry.path().is_dir() => None,
        Ok(entry) => Some(look_at(entry.path(), entry.depth() == 0, disks)),
    })
}

fn look_at(path: &Path, is_named: bool, disks: Option<Backing>) -> Met {
    let looked = if is_named {
        path.metadata()
    } else {
        path.symlink_metadata()
    };
    let found = looked.map_err(ImageError::from).and_then(|metadata| {
        let is_device = is_named && metadata.file_type().is_block_device();
        if !metadata.is_file() && !is_device {
            return Ok(None);
        }
        let mut found = Found {
            path: path.to_owned(),
            bytes: metadata.len(),
            stamp: (!is_device).then(|| Stamp::of(&metadata)),
            disk: None,
        };
        if disks.is_some() && looks_like_qcow2(&File::open(path)?) {
            found.disk = disks;
        }
        if is_device || found.disk.is_some() {
            found.bytes = found.open()?.size_bytes();
        }
        Ok(Some(found))
    });
    match found {
        Ok(Some(found)) => Met::File(found),
        Ok(None) if is_named => Met::Problem(Problem {
            path: path.to_owned(),
            what: "is neither a file nor a folder nor a block device".to_owned(),
        }),
        Ok(None) => Met::Skipped,
        Err(error) => Met::Problem(Problem {
            path: path.to_owned(),
            what: error.to_string(),
        }),
    }
}
