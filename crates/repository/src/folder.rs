//! Objects as files of a folder. An object appears under its name only when it is complete and durable,
//! and its bytes never change after that.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use onefold_format::backup::Writers;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::disk::{Root, joined, split};

/// The prefix of the names of incomplete objects.
pub(crate) const INCOMPLETE: &str = ".incomplete-";

/// The most bytes of an object that is always small.
const SMALL_BYTES_MAX: u64 = 1 << 16;

/// A repository's folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: Root,
    /// Folders in it whose names this process has made durable, with the names of the folders that they are in.
    durable: Arc<Mutex<BTreeSet<String>>>,
}

/// An object that is being written. Dropping it discards it.
pub(crate) struct NewObject {
    root: Root,
    file: File,
    incomplete: String,
    wanted: String,
    is_kept: bool,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            root: Root::open(path)?,
            durable: Arc::default(),
        })
    }

    /// Sets the number of writers, which decides how objects get their names.
    pub(crate) fn for_writers(self, writers: Writers) -> Self {
        Self {
            root: self.root.for_writers(writers),
            ..self
        }
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// Reads a small object whole.
    pub(crate) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.root.open_file(path)?;
        file.take(SMALL_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn open_file(&self, path: &str) -> io::Result<File> {
        self.root.open_file(path)
    }

    /// The names of the complete objects in a folder; empty if there is no folder.
    pub(crate) fn objects(&self, path: &str) -> io::Result<Vec<String>> {
        self.names(path, FileType::RegularFile, |name| !name.starts_with('.'))
    }

    /// The names of the folders in a folder, except names that begin with a dot.
    pub(crate) fn folders(&self, path: &str) -> io::Result<Vec<String>> {
        self.names(path, FileType::Directory, |name| !name.starts_with('.'))
    }

    /// The names of the folders in a folder that begin with `prefix`.
    pub(crate) fn folders_with(&self, path: &str, prefix: &str) -> io::Result<Vec<String>> {
        self.names(path, FileType::Directory, |name| name.starts_with(prefix))
    }

    fn names(
        &self,
        path: &str,
        kind: FileType,
        is_wanted: impl Fn(&str) -> bool,
    ) -> io::Result<Vec<String>> {
        let entries = self.root.list(path)?.into_iter();
        let wanted = entries.filter(|entry| entry.kind == kind && is_wanted(&entry.name));
        Ok(wanted.map(|entry| entry.name).collect())
    }

    /// Removes an object durably, by first renaming it into `folder`: if that folder is gone, the object stays.
    pub(crate) fn remove_through(&self, path: &str, folder: &str) -> io::Result<()> {
        let removed = incomplete_in(folder)?;
        self.root.rename(path, &removed)?;
        self.root.sync_folder(split(path).0)?;
        self.root.remove_file(&removed)
    }

    /// Removes an object durably.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        self.root.remove_file(path)?;
        self.root.sync_folder(split(path).0)
    }

    /// Starts an object. Creates missing folders, each durable before it is used.
    pub(crate) fn create(&self, path: &str) -> io::Result<NewObject> {
        let (folder, _) = split(path);
        self.ensure(folder)?;
        self.start(path, folder)
    }

    /// As [`Folder::create`], but stages the incomplete object in `folder`: if that folder is gone, the object cannot
    /// be completed.
    pub(crate) fn create_in(&self, path: &str, folder: &str) -> io::Result<NewObject> {
        self.ensure(split(path).0)?;
        self.start(path, folder)
    }

    fn start(&self, wanted: &str, folder: &str) -> io::Result<NewObject> {
        let incomplete = incomplete_in(folder)?;
        Ok(NewObject {
            root: self.root.clone(),
            file: self.root.create_new(&incomplete)?,
            incomplete,
            wanted: wanted.to_owned(),
            is_kept: false,
        })
    }

    /// Writes a complete object.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut object = self.create(path)?;
        object.write_all(bytes)?;
        object.commit()
    }

    /// Writes an object, followed by `more` bytes of allocated blocks.
    pub(crate) fn put_with_room(&self, path: &str, bytes: &[u8], more: u64) -> io::Result<()> {
        let mut object = self.create(path)?;
        object.write_all(bytes)?;
        let NewObject {
            file, incomplete, ..
        } = &mut object;
        self.root.allocate(file, incomplete, more)?;
        object.commit()
    }

    /// As [`Folder::put`], but replaces an existing object.
    pub(crate) fn put_over(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut object = self.create(path)?;
        object.write_all(bytes)?;
        object.commit_over()
    }

    /// Makes the names in a folder durable.
    pub(crate) fn sync(&self, folder: &str) -> io::Result<()> {
        self.root.sync_folder(folder)
    }

    /// Makes a folder exist durably. One that is there may have been created by a process that died before it could
    /// sync the name, so this process syncs the name of each folder once.
    fn ensure(&self, folder: &str) -> io::Result<()> {
        if folder.is_empty() {
            return Ok(());
        }
        let is_there = self.root.kind(folder)? == Some(FileType::Directory);
        let durable = || self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        if is_there && durable().contains(folder) {
            return Ok(());
        }
        let (parent, _) = split(folder);
        self.ensure(parent)?;
        if !is_there {
            self.root.create_folder(folder)?;
        }
        self.root.sync_folder(parent)?;
        durable().insert(folder.to_owned());
        Ok(())
    }
}

impl NewObject {
    /// Flushes the buffer, and commits.
    pub(crate) fn complete(object: BufWriter<Self>) -> io::Result<()> {
        object.into_inner()?.commit()
    }

    /// Makes the object durable, and then gives it its name.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`; the existing object stays as it is.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        self.root.sync(&self.file, &self.incomplete)?;
        self.is_kept = self.root.rename_new(&self.incomplete, &self.wanted)?;
        self.sync_folder()
    }

    /// As [`NewObject::commit`], but replaces an existing object.
    pub(crate) fn commit_over(mut self) -> io::Result<()> {
        self.root.sync(&self.file, &self.incomplete)?;
        self.root.rename(&self.incomplete, &self.wanted)?;
        self.is_kept = true;
        self.sync_folder()
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.root.sync_folder(split(&self.wanted).0)
    }
}

impl Write for NewObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.root.append(&mut self.file, &self.incomplete, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        if !self.is_kept {
            // The caller has a more important error; a file that stays begins with a dot.
            let _ = self.root.remove_file(&self.incomplete);
        }
    }
}

/// A new path in a folder for an incomplete object.
fn incomplete_in(folder: &str) -> io::Result<String> {
    Ok(joined(
        folder,
        &format!("{INCOMPLETE}{:016x}", random_number()?),
    ))
}

pub(crate) fn random_number() -> io::Result<u64> {
    let mut random = [0; 8];
    fill_random(&mut random)?;
    Ok(u64::from_le_bytes(random))
}

/// Fills `bytes` with random bytes of the operating system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[at..], rustix::rand::GetRandomFlags::empty()) {
            Ok(filled) => at += filled,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
