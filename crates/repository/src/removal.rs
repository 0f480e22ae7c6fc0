//! Removes a source with all of its objects.
//!
//! Whenever the process dies, the source is either complete or gone, and no other source is affected:
//!
//! 1. Its backups are forgotten; then packs and recipes are removed, because no backup needs them.
//! 2. It is removed from the users of popular blocks, because none of its backups needs any.
//! 3. The objects that record used numbers are removed, last the one that has all of them: the source is as at its
//!    birth.
//! 4. Its object is removed. A source that is as at its birth and has no object does not exist, so nothing of it is
//!    missing. Copies of the object and labels stay a little longer, so that an interrupted removal can be found and
//!    completed.
//! 5. All other objects are removed, and the folders last.

use onefold_format::backup::{ObjectName, Place, SourceId};

use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::repository::Repository;
use crate::sources::KnownSource;
use crate::writer::Writer;

impl Repository {
    /// Removes a source with all its backups. After an interruption, calling it again completes the removal.
    ///
    /// # Errors
    ///
    /// `InUse` if another process has the lease of the source or reads a backup, and `Invalid` if a backup is
    /// protected: nothing is removed then. `Interrupted`. `Damaged` if an object is not known to be of this
    /// repository: it stays, with all objects that would be removed after it. Any failure of reading or writing.
    pub fn remove_source(&self, source: SourceId) -> Result<()> {
        let writer = self.lease_of(source, "backup remove")?;
        writer.remove_content()?;
        drop(writer);
        self.remove_folders(source)
    }

    /// Removes a source that was added for a backup, unless it has a backup. Returns whether it was removed.
    ///
    /// # Errors
    ///
    /// As [`Repository::remove_source`].
    pub fn remove_unused_source(&self, source: SourceId) -> Result<bool> {
        let writer = self.lease_of(source, "backup create")?;
        // A closed number belongs to the backup that failed.
        let history = self.history(source)?;
        let has_any = [&history.backups, &history.missing, &history.returned];
        if has_any.into_iter().any(|backups| !backups.is_empty()) {
            return Ok(false);
        }
        writer.remove_content()?;
        drop(writer);
        self.remove_folders(source)?;
        Ok(true)
    }

    /// The source with this name or id whose removal was interrupted after it had ceased to exist.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn half_removed(&self, name: &str) -> Result<Option<KnownSource>> {
        for id in self.source_ids()? {
            let known = match self.known(id) {
                Ok(Some(known)) if known.source.name == name || id.to_string() == name => known,
                Ok(_) => continue,
                Err(error) if error.is_of_object() => continue,
                Err(error) => return Err(error),
            };
            if self.is_half_removed(&known)? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// The bytes of all packs of a source.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn stored_bytes(&self, source: SourceId) -> Result<u64> {
        let mut bytes = 0;
        for (number, generation) in self.pack_generations(source)? {
            let path = ObjectName::Pack {
                source,
                number,
                generation,
            };
            let path = path.path();
            let stat = self.folder.root().stat(&path);
            let stat = stat
                .map_err(|e| RepositoryError::io(format_args!("cannot read object {path}"), &e))?;
            bytes += stat.map_or(0, |stat| stat.st_size as u64);
        }
        Ok(bytes)
    }

    /// Removes the empty folders of a source that no longer exists.
    fn remove_folders(&self, source: SourceId) -> Result<()> {
        let root = self.folder.root();
        let all = format!("sources/{source}");
        let mut folders = vec![all.clone()];
        for place in Place::all(false) {
            folders.push(place.path(source));
        }
        folders.extend([
            ObjectName::tables(source),
            ObjectName::damage(source),
            ObjectName::closed(source),
            ObjectName::labels(source),
            ObjectName::protections(source),
            ObjectName::readers(source),
            ObjectName::writer(source),
        ]);
        for parent in [
            ObjectName::packs(source),
            ObjectName::tables(source),
            ObjectName::readers(source),
        ] {
            let names = self.folder.folders(&parent);
            let names =
                names.map_err(|e| RepositoryError::io(format_args!("cannot list {parent}"), &e))?;
            folders.extend(names.iter().map(|name| joined(&parent, name)));
        }
        for folder in folders.iter().rev() {
            // A folder with foreign files stays, which does no harm.
            let _ = root.remove_empty_folder(folder);
        }
        Ok(())
    }
}

impl Writer<'_> {
    fn remove_content(&self) -> Result<()> {
        let (repository, id) = (self.repository(), self.source().id);
        let history = repository.history(id)?;
        let backups = [&history.backups, &history.missing, &history.returned];
        let backups: Vec<_> = backups.into_iter().flatten().copied().collect();
        if let Some(backup) = repository.protected(id)?.first() {
            let message = format!("backup {backup} is protected");
            return Err(RepositoryError::new(RepositoryErrorKind::Invalid, message));
        }
        let all: Vec<_> = backups.iter().map(|backup| (id, *backup)).collect();
        let are_read = repository.check_not_read(&all)?;
        are_read.into_iter().collect::<Result<()>>()?;
        for backup in backups {
            repository.forget(id, backup)?;
        }
        for backup in repository.numbers(&ObjectName::manifests(id))? {
            self.remove(ObjectName::Manifest(id, backup))?;
        }
        for (number, generation) in repository.pack_generations(id)? {
            repository.waiting.check_interrupted(format_args!(
                "before the source was removed; the same command does the rest"
            ))?;
            self.remove(ObjectName::Pack {
                source: id,
                number,
                generation,
            })?;
        }
        for (number, generation) in repository.tables(id)? {
            self.remove_table(number, generation)?;
        }
        for backup in repository.recipes(id)? {
            self.remove(ObjectName::Recipe(id, backup))?;
        }
        for name in repository.damage_objects(id)? {
            self.remove(name)?;
        }
        self.leave_popular()?;
        self.forget_numbers()?;
        self.remove(ObjectName::Source(id))?;
        // The last copy is the last object that has the source's name at its birth.
        if let [last, others @ ..] = Place::all(false) {
            for place in others {
                self.remove(ObjectName::Copy(id, *place))?;
            }
            for generation in repository.labels(id)? {
                self.remove(ObjectName::Label(id, generation))?;
            }
            self.remove(ObjectName::Copy(id, *last))?;
        }
        Ok(())
    }

    fn leave_popular(&self) -> Result<()> {
        let (repository, id) = (self.repository(), self.source().id);
        for popular in repository.source_ids()? {
            if repository.users(popular)?.contains(&id) {
                self.remove(ObjectName::User {
                    popular,
                    source: id,
                })?;
            }
        }
        Ok(())
    }

    /// Removes the objects with closed numbers. First folds all numbers into one object, so that none is missing in
    /// between.
    fn forget_numbers(&self) -> Result<()> {
        let (repository, id) = (self.repository(), self.source().id);
        let tombstones = ObjectName::tombstones(id);
        if !repository.numbers(&tombstones)?.is_empty() {
            self.fold(0)?;
        }
        for backup in repository.numbers(&tombstones)? {
            self.remove(ObjectName::Tombstone(id, backup))?;
        }
        for generation in repository.generations(&ObjectName::closed(id))? {
            self.remove(ObjectName::Closed(id, generation))?;
        }
        Ok(())
    }
}
