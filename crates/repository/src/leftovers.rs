//! What commands left that were killed. It is in nobody's way, and takes room.

use std::fs::{DirEntry, Metadata};
use std::io;
use std::path::Path;
use std::time::Duration;

use onefold_format::backup::{BackupNumber, Lease, LeaseName, ObjectName, SourceId};

use crate::disk;
use crate::error::{RepositoryError, Result};
use crate::folder::INCOMPLETE;
use crate::repository::Repository;
use crate::writer::{COMING, GONE, folder_name, give_back, has_remains, is_running, token_in};

/// What is younger may still be completed.
const AGE: Duration = Duration::from_secs(3600);

/// Files that were left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Repository {
    /// Counts what commands left that were killed.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn leftovers(&self) -> Result<Leftovers> {
        self.find_leftovers(false)
    }

    /// Removes it.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn remove_leftovers(&self) -> Result<Leftovers> {
        self.find_leftovers(true)
    }

    fn find_leftovers(&self, are_removed: bool) -> Result<Leftovers> {
        let mut found = Leftovers::default();
        let root = self.folder.root();
        let mut search = Search {
            found: &mut found,
            are_removed,
        };
        let failed = |e: io::Error| RepositoryError::io("cannot look for what was left behind", &e);
        search.incomplete_in(root).map_err(failed)?;
        search.incomplete_in(&root.join("keys")).map_err(failed)?;
        for source in self.source_ids()? {
            let folder = self.leases(source);
            let folder = folder.parent().unwrap_or(root);
            search.of_source(folder).map_err(failed)?;
            if let Some(holder) = token_in(&self.leases(source))
                && self.is_known_dead(ObjectName::Lease(source, holder))
            {
                let held = self.leases(source).join(folder_name(holder));
                search.count_all(&held).map_err(failed)?;
                if are_removed {
                    self.has_ended(LeaseName { source, holder })?;
                }
            }
            for (backup, holder) in self.readers(source).map_err(failed)? {
                if self.is_known_dead(ObjectName::Reader(source, backup, holder)) {
                    let readers = self.readers_of(source, backup);
                    let held = readers.join(folder_name(holder));
                    search.count_all(&held).map_err(failed)?;
                    if are_removed {
                        give_back(&readers, holder, &self.beside(source, GONE, holder));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Whoever has, or had, the lease of a reader.
    fn readers(&self, source: SourceId) -> io::Result<Vec<(BackupNumber, u64)>> {
        let mut readers = Vec::new();
        for backup in self.folder.list(&ObjectName::readers(source))? {
            let Ok(backup) = backup.parse().map(BackupNumber) else {
                continue;
            };
            for entry in entries(&self.readers_of(source, backup))? {
                let holder = entry.file_name().into_string().ok();
                let holder = holder.and_then(|name| u64::from_str_radix(&name, 16).ok());
                readers.extend(holder.map(|holder| (backup, holder)));
            }
        }
        Ok(readers)
    }

    /// Whether the holder of a lease was a process of this machine that has ended.
    fn is_known_dead(&self, lease: ObjectName) -> bool {
        let content = self.read_sealed(lease);
        let lease = content.ok().and_then(|it| Lease::decode(&it).ok());
        lease.is_some_and(|lease| is_running(lease.holder) == Some(false))
    }
}

struct Search<'a> {
    found: &'a mut Leftovers,
    are_removed: bool,
}

impl Search<'_> {
    fn incomplete_in(&mut self, folder: &Path) -> io::Result<()> {
        for entry in entries(folder)? {
            let (name, metadata) = (entry.file_name(), entry.metadata()?);
            let is_incomplete = name.to_string_lossy().starts_with(INCOMPLETE);
            if is_incomplete && metadata.is_file() && is_old(&metadata) {
                self.count(&metadata);
                if self.are_removed {
                    disk::remove_file(&entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// In the folder of a source, and those in it that have objects.
    fn of_source(&mut self, folder: &Path) -> io::Result<()> {
        self.incomplete_in(folder)?;
        for entry in entries(folder)? {
            let (name, metadata) = (entry.file_name(), entry.metadata()?);
            let name = name.to_string_lossy();
            if !metadata.is_dir() || name == "writer" {
                continue;
            }
            if name.starts_with(GONE) && has_remains(&entry.path()) {
                // The next holder of the lease needs it.
            } else if name.starts_with(GONE) || name.starts_with(COMING) && is_old(&metadata) {
                self.count_all(&entry.path())?;
                if self.are_removed {
                    disk::remove_folder(&entry.path())?;
                }
            } else {
                self.incomplete_in(&entry.path())?;
            }
        }
        Ok(())
    }

    fn count_all(&mut self, folder: &Path) -> io::Result<()> {
        for entry in entries(folder)? {
            let metadata = entry.metadata()?;
            match metadata.is_dir() {
                true => self.count_all(&entry.path())?,
                false => self.count(&metadata),
            }
        }
        Ok(())
    }

    fn count(&mut self, file: &Metadata) {
        self.found.files += 1;
        self.found.bytes += file.len();
    }
}

/// None if there is no such folder.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

fn is_old(metadata: &Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|it| it.elapsed().ok());
    age.is_some_and(|age| age > AGE)
}
