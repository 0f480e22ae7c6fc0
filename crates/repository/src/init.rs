//! Creates a repository.
//!
//! A new repository is prepared in a staging folder and comes into existence by renaming one folder: before that, no
//! command reads it, and `init` can be repeated. A process that dies afterwards leaves a repository that lacks at
//! most the object of which it has a copy.

use std::io;
use std::path::Path;

use onefold_format::backup::{ObjectName, RepositoryId, RepositoryObject, Sealing, Writers};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::access::{Access, RecoveryKey, wrap};
use crate::disk::{self, Entry, Root, joined};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::{Folder, fill_random, random_number};
use crate::layout::{LOST_AND_FOUND, hexadecimal, is_ours};
use crate::lease::STAGING;
use crate::objects::Objects;
use crate::seal::MasterKey;
use crate::trial::try_all;

/// The folder of the keys and of the copy of the repository's object: a repository exists once it is there.
const KEYS: &str = "keys";

/// The staging folder of an `init`. Dropping it removes it.
struct Coming<'a> {
    root: &'a Root,
    path: String,
}

/// Creates a repository in a new or empty folder, or in one in which an earlier attempt failed. Tries every file
/// system call that a repository needs. With encryption, also creates a recovery key, which is shown only once.
pub(crate) fn init(
    writers: Writers,
    root: &Path,
    access: &Access,
    now_unix_seconds: u64,
) -> Result<(Objects, Option<RecoveryKey>)> {
    let failed = |e: &io::Error| {
        RepositoryError::io(format_args!("cannot make a repository in {root:?}"), e)
    };
    let folder = disk::create_root(root).and_then(|()| Folder::open(root));
    let folder = folder.map_err(|e| failed(&e))?.for_writers(writers);
    let entries = folder.root().list("").map_err(|e| failed(&e))?;
    if !entries.iter().all(is_of_nobody) {
        let message = format!("{root:?} is not empty; a repository needs a folder of its own");
        return Err(RepositoryError::new(RepositoryErrorKind::Exists, message));
    }
    let (mut id, mut master) = ([0; 16], [0; 32]);
    let drawn = fill_random(&mut id).and_then(|()| fill_random(&mut master));
    drawn.map_err(|e| failed(&e))?;
    let id = RepositoryId(id);
    let (sealing, master) = match access {
        Access::Open => (Sealing::Authenticated, MasterKey::plain(id)),
        Access::Passphrase(_) | Access::KeyFile(_) => (Sealing::Encrypted, MasterKey(master)),
    };
    let identity = RepositoryObject {
        id,
        sealing,
        writers,
        created_unix_seconds: now_unix_seconds,
    };
    let objects = Objects::new(folder, identity, master);
    let staging = Coming::new(objects.root()).map_err(|e| failed(&e))?;
    try_all(staging.root, root, &staging.path, writers)?;
    let put = |name: ObjectName, bytes: &[u8]| {
        let path = joined(&staging.path, &name.path());
        let put = objects.folder().put(&path, bytes);
        put.map_err(|e| RepositoryError::io(format_args!("cannot write object {path}"), &e))
    };
    let mut recovery = None;
    if sealing == Sealing::Encrypted {
        let key = RecoveryKey::new()?;
        for (access, is_recovery) in [(access, false), (&key.access(), true)] {
            let key = wrap(objects.master(), access, is_recovery, now_unix_seconds)?;
            put(ObjectName::Key(key.number), &key.encode(id))?;
        }
        recovery = Some(key);
    }
    let object = objects.identity().encode();
    put(ObjectName::RepositoryCopy, &object)?;
    staging
        .arrive()
        .map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOTEMPTY | Errno::EXIST) => {
                let message = format!("another process has made a repository in {root:?}");
                RepositoryError::new(RepositoryErrorKind::Exists, message)
            }
            _ => failed(&e),
        })?;
    if let Err(error) = objects.put(ObjectName::Repository, &object) {
        staging.leave();
        return Err(error);
    }
    drop(staging);
    Ok((objects, recovery))
}

/// Whether an entry may be in a folder in which a repository is created.
fn is_of_nobody(entry: &Entry) -> bool {
    entry.name == LOST_AND_FOUND || is_of_init(entry)
}

/// Whether an entry has the name of a staging folder of an `init`.
pub(crate) fn is_of_init(entry: &Entry) -> bool {
    let number = entry.name.strip_prefix(STAGING).and_then(hexadecimal);
    entry.kind == FileType::Directory && number.is_some()
}

impl<'a> Coming<'a> {
    fn new(root: &'a Root) -> io::Result<Self> {
        let path = format!("{STAGING}{:016x}", random_number()?);
        root.create_folder(&path)?;
        Ok(Self { root, path })
    }

    /// Makes the repository exist.
    fn arrive(&self) -> io::Result<()> {
        self.root.rename(&joined(&self.path, KEYS), KEYS)?;
        self.root.sync_folder("").inspect_err(|_| self.leave())
    }

    /// Reverts [`Coming::arrive`].
    fn leave(&self) {
        let _ = self.root.remove_file(&ObjectName::Repository.path());
        let _ = self.root.rename(KEYS, &joined(&self.path, KEYS));
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        // Files that stay do no harm.
        if let Ok(all) = all_of_init(self.root, &self.path) {
            let _ = all.iter().try_for_each(|entry| entry.remove(self.root));
        }
    }
}

/// A file in the staging folder of an `init`, or the folder itself.
pub(crate) struct OfInit {
    pub(crate) path: String,
    pub(crate) is_folder: bool,
}

impl OfInit {
    pub(crate) fn remove(&self, root: &Root) -> io::Result<()> {
        if self.is_folder {
            root.remove_empty_folder(&self.path)
        } else {
            root.remove_file(&self.path)
        }
    }
}

/// Everything in the staging folder of an `init`, and last the folder itself; fails if it has foreign files.
pub(crate) fn all_of_init(root: &Root, folder: &str) -> io::Result<Vec<OfInit>> {
    let mut all = Vec::new();
    for entry in root.list(folder)? {
        let path = joined(folder, &entry.name);
        if !is_ours(&path, entry.kind) {
            let message = format!("{path} is not of onefold, and stays");
            return Err(io::Error::other(message));
        }
        match entry.kind {
            FileType::Directory => all.extend(all_of_init(root, &path)?),
            _ => all.push(OfInit {
                path,
                is_folder: false,
            }),
        }
    }
    all.push(OfInit {
        path: folder.to_owned(),
        is_folder: true,
    });
    Ok(all)
}
