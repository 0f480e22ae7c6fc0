//! The files of a path.
//!
//! Symbolic links below a path are not followed, and pipes, sockets and devices there are not read; a
//! path that was named may itself be a link, or a block device. Files come in the order of their names,
//! so that an analysis says the same each time.

use std::fs::{File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use walkdir::WalkDir;

/// What could not be read, or not as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Of the file or folder.
    pub path: PathBuf,
    /// What was wrong.
    pub what: String,
}

/// What there is to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Survey {
    /// Files and devices.
    pub files: u64,
    /// Of these, those without content.
    pub empty_files: u64,
    /// What they have, holes included, in bytes.
    pub bytes: u64,
    /// Symbolic links and special files, which are not read.
    pub skipped: u64,
}

/// One file to be read.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// As long as this was when it was found.
    pub(crate) bytes: u64,
    pub(crate) stamp: Option<Stamp>,
}

/// What changes when a file does.
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

/// What a walk meets.
pub(crate) enum Met {
    File(Found),
    /// A link or a special file.
    Skipped,
    Problem(Problem),
}

/// Counts what there is under these paths. What cannot be looked at counts nothing.
#[must_use]
pub fn survey(paths: &[PathBuf]) -> Survey {
    let mut survey = Survey::default();
    for met in paths.iter().flat_map(|path| walk(path)) {
        match met {
            Met::File(found) => {
                survey.files += 1;
                survey.empty_files += u64::from(found.bytes == 0);
                survey.bytes += found.bytes;
            }
            Met::Skipped => survey.skipped += 1,
            Met::Problem(_) => {}
        }
    }
    survey
}

/// What is under a path, or the path itself.
pub(crate) fn walk(path: &Path) -> impl Iterator<Item = Met> + use<> {
    let entries = WalkDir::new(path).sort_by_file_name();
    entries.into_iter().filter_map(|entry| match entry {
        Err(error) => {
            let path = error.path().map(Path::to_owned).unwrap_or_default();
            let what = match error.io_error() {
                Some(error) => error.to_string(),
                None => error.to_string(),
            };
            Some(Met::Problem(Problem { path, what }))
        }
        Ok(entry) if entry.file_type().is_dir() => None,
        // A link to a folder, which is gone through.
        Ok(entry) if entry.depth() == 0 && entry.path().is_dir() => None,
        Ok(entry) => Some(look_at(entry.path(), entry.depth() == 0)),
    })
}

fn look_at(path: &Path, is_named: bool) -> Met {
    let looked = match is_named {
        true => path.metadata(),
        false => path.symlink_metadata(),
    };
    let found = looked.and_then(|metadata| {
        if metadata.is_file() {
            return Ok(Some(Found {
                path: path.to_owned(),
                bytes: metadata.len(),
                stamp: Some(Stamp::of(&metadata)),
            }));
        }
        if is_named && metadata.file_type().is_block_device() {
            return Ok(Some(Found {
                path: path.to_owned(),
                bytes: device_bytes(path)?,
                stamp: None,
            }));
        }
        Ok(None)
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

/// A device's length is only known by seeking to its end.
fn device_bytes(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}
