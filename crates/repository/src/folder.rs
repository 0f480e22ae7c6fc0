//! Objects as files of a folder. An object appears under its name only when it is complete and durable,
//! and its bytes never change after that.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::disk;

/// How the name of an object begins that is not complete.
pub(crate) const INCOMPLETE: &str = ".incomplete-";

/// A repository's folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    root: PathBuf,
}

/// An object that is being written. Dropped, it is gone.
pub(crate) struct NewObject {
    file: File,
    incomplete: PathBuf,
    wanted: PathBuf,
    is_kept: bool,
}

impl Folder {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A whole object that is known to be small.
    pub(crate) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.root.join(path))
    }

    pub(crate) fn open(&self, path: &str) -> io::Result<File> {
        File::open(self.root.join(path))
    }

    /// The names in a folder that are of objects or folders of ours; none if it is not there.
    pub(crate) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = self.list_all(path)?;
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    /// The names in a folder that begin with a dot.
    pub(crate) fn list_hidden(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = self.list_all(path)?;
        names.retain(|name| name.starts_with('.'));
        Ok(names)
    }

    fn list_all(&self, path: &str) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.root.join(path)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            // What is no text was not written by us.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    /// Removes an object durably, by way of a folder that is there: without it the object stays.
    pub(crate) fn remove_through(&self, path: &str, folder: &str) -> io::Result<()> {
        let object = self.root.join(path);
        let removed = self
            .root
            .join(folder)
            .join(format!("{INCOMPLETE}{:016x}", random_number()?));
        disk::rename(&object, &removed)?;
        disk::sync_folder(object.parent().unwrap_or(&self.root))?;
        disk::remove_file(&removed)
    }

    /// Removes an object durably.
    pub(crate) fn remove(&self, path: &str) -> io::Result<()> {
        let object = self.root.join(path);
        disk::remove_file(&object)?;
        disk::sync_folder(object.parent().unwrap_or(&self.root))
    }

    /// Starts an object. Its folders are made as needed, each durable before it is used.
    pub(crate) fn create(&self, path: &str) -> io::Result<NewObject> {
        let wanted = self.root.join(path);
        let folder = wanted.parent().unwrap_or(&self.root).to_owned();
        self.ensure(&folder)?;
        Self::start(wanted, &folder)
    }

    /// As [`Folder::create`], but what is not complete stands in a folder that is there: without it the object
    /// is not made.
    pub(crate) fn create_in(&self, path: &str, folder: &str) -> io::Result<NewObject> {
        let wanted = self.root.join(path);
        self.ensure(wanted.parent().unwrap_or(&self.root))?;
        Self::start(wanted, &self.root.join(folder))
    }

    fn start(wanted: PathBuf, folder: &Path) -> io::Result<NewObject> {
        let incomplete = folder.join(format!("{INCOMPLETE}{:016x}", random_number()?));
        Ok(NewObject {
            file: disk::create_new(&incomplete)?,
            incomplete,
            wanted,
            is_kept: false,
        })
    }

    /// Writes a whole object.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut object = self.create(path)?;
        object.write_all(bytes)?;
        object.commit()
    }

    /// The same, in the place of an object that is there.
    pub(crate) fn put_over(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut object = self.create(path)?;
        object.write_all(bytes)?;
        object.commit_over()
    }

    /// Makes what is in a folder durable.
    pub(crate) fn sync(&self, folder: &str) -> io::Result<()> {
        disk::sync_folder(&self.root.join(folder))
    }

    fn ensure(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() || folder == self.root {
            return Ok(());
        }
        let parent = folder.parent().unwrap_or(&self.root);
        self.ensure(parent)?;
        disk::create_folder(folder)?;
        disk::sync_folder(parent)
    }
}

impl NewObject {
    /// Writes what is buffered, and commits.
    pub(crate) fn complete(object: BufWriter<Self>) -> io::Result<()> {
        object.into_inner()?.commit()
    }

    /// Makes it durable, and then gives it its name.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`, and the object that is there stays as it is.
    pub(crate) fn commit(mut self) -> io::Result<()> {
        disk::sync(&self.file, &self.incomplete)?;
        self.is_kept = disk::rename_new(&self.incomplete, &self.wanted)?;
        self.sync_folder()
    }

    /// As [`NewObject::commit`], in the place of an object that is there.
    pub(crate) fn commit_over(mut self) -> io::Result<()> {
        disk::sync(&self.file, &self.incomplete)?;
        disk::rename(&self.incomplete, &self.wanted)?;
        self.is_kept = true;
        self.sync_folder()
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.wanted.parent().map_or(Ok(()), disk::sync_folder)
    }
}

impl Write for NewObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        disk::append(&mut self.file, &self.incomplete, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        if !self.is_kept {
            // Whoever dropped it has an error that matters more; what is left behind begins with a dot.
            let _ = disk::remove_file(&self.incomplete);
        }
    }
}

pub(crate) fn random_number() -> io::Result<u64> {
    let mut random = [0; 8];
    fill_random(&mut random)?;
    Ok(u64::from_le_bytes(random))
}

/// From the operating system.
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
