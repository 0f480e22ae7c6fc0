//! Files left behind by killed commands. They do no harm, but take space.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onefold_format::backup::{LeaseName, ObjectName, SourceId};
use rustix::fs::FileType;

use crate::disk::{Root, joined};
use crate::error::{RepositoryError, Result};
use crate::holders::is_known_dead;
use crate::init::{all_of_init, is_of_init};
use crate::layout::{RETIRED, is_incomplete, is_ours};
use crate::lease::{
    STAGING, files_of_lease, folder_name, give_back, has_remains, holder_of, lease_folder,
    lease_folders, remove_lease,
};
use crate::leases::Leases;
use crate::objects::Objects;
use crate::reader::{Readers, readers_of};
use crate::source::Catalogue;
use crate::waiting::Waiting;

/// Younger files may still be completed.
const AGE: Duration = Duration::from_secs(3600);

/// The number and size of files left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// How many files.
    pub files: u64,
    /// The size of the files in bytes.
    pub bytes: u64,
}

impl Leftovers {
    /// Counts the files left behind by killed commands, and removes them if `are_removed`.
    pub(crate) fn find(objects: &Objects, waiting: &Waiting, are_removed: bool) -> Result<Self> {
        let mut search = Search {
            root: objects.root(),
            found: Leftovers::default(),
            are_removed,
        };
        search.incomplete_in("").map_err(|e| failed(&e))?;
        search.incomplete_in("keys").map_err(|e| failed(&e))?;
        search.of_init().map_err(|e| failed(&e))?;
        for source in Catalogue::of(objects).ids()? {
            let folder = format!("sources/{source}");
            search.of_source(&folder).map_err(|e| failed(&e))?;
            search.lease_of(objects, waiting, source)?;
            search.readers_of(objects, waiting, source)?;
        }
        Ok(search.found)
    }
}

fn failed(error: &io::Error) -> RepositoryError {
    RepositoryError::io("cannot look for leftovers of killed commands", error)
}

struct Search<'a> {
    root: &'a Root,
    found: Leftovers,
    are_removed: bool,
}

impl Search<'_> {
    fn incomplete_in(&mut self, folder: &str) -> io::Result<()> {
        for entry in self.root.list(folder)? {
            let path = joined(folder, &entry.name);
            let is_left = entry.kind == FileType::RegularFile && is_incomplete(&entry.name);
            if is_left && self.is_old(&path)? {
                self.count(&path)?;
                if self.are_removed {
                    self.root.remove_file(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Finds staging folders of killed `init` commands.
    fn of_init(&mut self) -> io::Result<()> {
        let entries = self.root.list("")?.into_iter();
        for folder in entries.filter(is_of_init).map(|entry| entry.name) {
            if !self.is_old(&folder)? {
                continue;
            }
            // A folder with foreign files stays, and `verify` reports them.
            for left in all_of_init(self.root, &folder).into_iter().flatten() {
                if !left.is_folder {
                    self.count(&left.path)?;
                }
                if self.are_removed {
                    left.remove(self.root)?;
                }
            }
        }
        Ok(())
    }

    /// Finds files in the folder of a source, and in its folders that have objects.
    fn of_source(&mut self, folder: &str) -> io::Result<()> {
        self.incomplete_in(folder)?;
        for entry in self.root.list(folder)? {
            let (name, path) = (&entry.name, joined(folder, &entry.name));
            if entry.kind != FileType::Directory || !is_ours(&path, entry.kind) || name == "writer"
            {
                continue;
            }
            if name.starts_with(RETIRED) && has_remains(self.root, &path) {
                // The next holder of the lease needs it.
            } else if name.starts_with(RETIRED)
                || name.starts_with(STAGING) && self.is_old(&path)?
            {
                self.count_lease(&path);
                if self.are_removed {
                    let _ = remove_lease(self.root, &path);
                }
            } else {
                self.incomplete_in(&path)?;
            }
        }
        Ok(())
    }

    /// Finds the lease of a source, if its holder is dead.
    fn lease_of(&mut self, objects: &Objects, waiting: &Waiting, source: SourceId) -> Result<()> {
        if let Some(holder) = holder_of(self.root, source)
            && is_known_dead(objects, ObjectName::Lease(source, holder))
        {
            let held = joined(&ObjectName::writer(source), &folder_name(holder));
            self.count_lease(&held);
            if self.are_removed {
                Leases::new(objects, waiting).have_ended(&[LeaseName { source, holder }])?;
            }
        }
        Ok(())
    }

    /// Finds the leases of dead readers of a source.
    fn readers_of(&mut self, objects: &Objects, waiting: &Waiting, source: SourceId) -> Result<()> {
        for (backup, holder) in Readers::new(objects, waiting).all(source)? {
            if is_known_dead(objects, ObjectName::Reader(source, backup, holder)) {
                let readers = readers_of(source, backup);
                let held = joined(&readers, &folder_name(holder));
                self.count_lease(&held);
                if self.are_removed {
                    let retired = lease_folder(source, RETIRED, holder);
                    give_back(self.root, &readers, holder, &retired);
                }
            }
        }
        Ok(())
    }

    /// Counts the files of a lease's folder. A folder with foreign files stays, and `verify` reports them.
    fn count_lease(&mut self, folder: &str) {
        let folders = lease_folders(self.root, folder);
        let files = folders.and_then(|folders| files_of_lease(self.root, &folders));
        for file in files.into_iter().flatten() {
            let _ = self.count(&file);
        }
    }

    fn count(&mut self, path: &str) -> io::Result<()> {
        if let Some(stat) = self.root.stat(path)? {
            self.found.files += 1;
            self.found.bytes += stat.st_size as u64;
        }
        Ok(())
    }

    fn is_old(&self, path: &str) -> io::Result<bool> {
        let Some(stat) = self.root.stat(path)? else {
            return Ok(false);
        };
        let modified = UNIX_EPOCH + Duration::from_secs(stat.st_mtime.try_into().unwrap_or(0));
        let age = SystemTime::now().duration_since(modified);
        Ok(age.is_ok_and(|age| age > AGE))
    }
}
