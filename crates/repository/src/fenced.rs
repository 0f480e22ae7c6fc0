//! Objects of a source that are written and removed under its lease.
//!
//! New objects are staged in the holder's folder, and objects that go are renamed into it first. Another process takes
//! a lease by renaming that folder away, so no step of a holder that has lost its lease takes effect.

use std::io::{self, Write};

use onefold_format::backup::{Closed, ObjectName, SourceId};
use rustix::fs::FileType;

use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::NewObject;
use crate::lease::{HeldLease, folder_name};
use crate::objects::Objects;
use crate::seal::ChunkKey;

/// The lease of a source, and what its holder does with it. Dropping it releases the lease.
pub(crate) struct Fenced<'a> {
    objects: &'a Objects,
    source: SourceId,
    /// The holder's folder, relative to the repository's folder.
    folder: String,
    lease: HeldLease,
}

impl<'a> Fenced<'a> {
    pub(crate) fn new(objects: &'a Objects, source: SourceId, lease: HeldLease) -> Self {
        Self {
            objects,
            source,
            folder: joined(&ObjectName::writer(source), &folder_name(lease.token())),
            lease,
        }
    }

    pub(crate) fn objects(&self) -> &'a Objects {
        self.objects
    }

    /// The id of the source.
    pub(crate) fn source(&self) -> SourceId {
        self.source
    }

    /// The retired folder of the lease stays when the lease is dropped.
    pub(crate) fn keep_remains(&self) {
        self.lease.keep_remains();
    }

    /// Makes the names in the source's folders durable. Processes that died may have left names that are not, and this
    /// holder builds on what it sees. It leaves out the many folders of packs and of their tables: names of packs are
    /// synced before something refers to them.
    pub(crate) fn sync_names(&self) -> Result<()> {
        let source = format!("sources/{}", self.source);
        let folder = self.objects.folder();
        let others = [
            ObjectName::packs(self.source),
            ObjectName::tables(self.source),
            ObjectName::readers(self.source),
            ObjectName::writer(self.source),
        ];
        for name in self.objects.folders(&source)? {
            let path = joined(&source, &name);
            if !others.contains(&path) {
                folder
                    .sync(&path)
                    .map_err(|e| self.failed("sync", &path, &e))?;
            }
        }
        folder
            .sync(&source)
            .map_err(|e| self.failed("sync", &source, &e))
    }

    /// Starts an object with chunks, staged in the holder's folder.
    pub(crate) fn create(&self, name: ObjectName) -> Result<(NewObject, ChunkKey)> {
        let path = name.path();
        let object = self.objects.folder().create_in(&path, &self.folder);
        let object = object.map_err(|e| self.failed("write", &path, &e))?;
        self.objects.begin(name, object)
    }

    /// Writes an object with one chunk.
    pub(crate) fn put(
        &self,
        name: ObjectName,
        content: Vec<u8>,
        commit: impl FnOnce(NewObject) -> io::Result<()>,
    ) -> Result<()> {
        let path = name.path();
        let content = self.objects.sealed(name, content)?;
        let object = self.objects.folder().create_in(&path, &self.folder);
        let written = object.and_then(|mut object| {
            object.write_all(&content)?;
            commit(object)
        });
        written.map_err(|e| self.failed("write", &path, &e))
    }

    /// Records durably, next to the lease, which backup is being made.
    pub(crate) fn put_under_way(&self, closed: &Closed) -> Result<()> {
        let name = ObjectName::UnderWay(self.source, self.lease.token());
        self.put(name, closed.encode(), NewObject::commit_over)?;
        let writer = ObjectName::writer(self.source);
        let source = format!("sources/{}", self.source);
        let mut folders = [&writer, &source].into_iter();
        let synced = folders.try_for_each(|folder| self.objects.folder().sync(folder));
        synced.map_err(|e| self.failed("write", &name.path(), &e))
    }

    /// Removes an object of the source, if it exists. With a pack, also removes the copy of its table, after the pack.
    pub(crate) fn remove(&self, name: ObjectName) -> Result<()> {
        let path = name.path();
        match self.objects.check_removable(name) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound && self.is_held() => {
                return Ok(());
            }
            // If the lease is lost, report that instead.
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
            removable => removable?,
        }
        match self.objects.folder().remove_through(&path, &self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_held() => {}
            removed => removed.map_err(|e| self.failed("remove", &path, &e))?,
        }
        match name {
            ObjectName::Pack {
                number, generation, ..
            } => self.remove_table(number, generation),
            _ => Ok(()),
        }
    }

    /// Removes the copy of the table of a pack that is gone. A damaged copy stays, and `verify` reports it.
    pub(crate) fn remove_table(&self, number: u64, generation: u32) -> Result<()> {
        match self.remove(ObjectName::Table {
            source: self.source,
            number,
            generation,
        }) {
            Err(error) if error.is_of_object() => Ok(()),
            removed => removed,
        }
    }

    fn is_held(&self) -> bool {
        let kind = self.objects.root().kind(&self.folder);
        kind.is_ok_and(|kind| kind == Some(FileType::Directory))
    }

    fn failed(&self, verb: &str, path: &str, error: &io::Error) -> RepositoryError {
        if error.kind() == io::ErrorKind::NotFound && !self.is_held() {
            let message = "another process has taken over the source, because this one gave no sign of life \
                           for two minutes; the work that it began does not count";
            return RepositoryError::new(RepositoryErrorKind::InUse, message);
        }
        RepositoryError::io(format_args!("cannot {verb} object {path}"), error)
    }
}
