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

use crate::damage::DamageRecord;
use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::label::Labels;
use crate::objects::Objects;
use crate::repository::Repository;
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
        let removal = Removal {
            writer: Writer::of(self, source, "backup remove")?,
        };
        removal.finish()
    }

    /// Removes a source that was added for a backup, unless it has a backup. Returns whether it was removed.
    ///
    /// # Errors
    ///
    /// As [`Repository::remove_source`].
    pub fn remove_unused_source(&self, source: SourceId) -> Result<bool> {
        let removal = Removal {
            writer: Writer::of(self, source, "backup create")?,
        };
        // A closed number belongs to the backup that failed.
        let history = self.history(source)?;
        let has_any = [&history.backups, &history.missing, &history.returned];
        if has_any.into_iter().any(|backups| !backups.is_empty()) {
            return Ok(false);
        }
        removal.finish()?;
        Ok(true)
    }
}

/// The removal of a source, whose lease it holds.
struct Removal<'a> {
    writer: Writer<'a>,
}

impl Removal<'_> {
    fn finish(self) -> Result<()> {
        self.remove_content()?;
        let (repository, source) = (self.writer.repository(), self.writer.source().id);
        drop(self);
        remove_folders(repository.objects(), source)
    }

    fn remove_content(&self) -> Result<()> {
        let (repository, id) = (self.writer.repository(), self.writer.source().id);
        let history = repository.history(id)?;
        let backups = [&history.backups, &history.missing, &history.returned];
        let backups: Vec<_> = backups.into_iter().flatten().copied().collect();
        if let Some(backup) = repository.protected(id)?.first() {
            let message = format!("backup {backup} is protected");
            return Err(RepositoryError::new(RepositoryErrorKind::Invalid, message));
        }
        let all: Vec<_> = backups.iter().map(|backup| (id, *backup)).collect();
        let are_read = repository.readers().check_none(&all)?;
        are_read.into_iter().collect::<Result<()>>()?;
        for backup in backups {
            repository.forget(id, backup)?;
        }
        for backup in repository.objects().numbers(&ObjectName::manifests(id))? {
            self.writer.remove(ObjectName::Manifest(id, backup))?;
        }
        for (number, generation) in repository.pack_generations(id)? {
            repository.waiting().check_interrupted(format_args!(
                "before the source was removed; the same command does the rest"
            ))?;
            self.writer.remove(ObjectName::Pack {
                source: id,
                number,
                generation,
            })?;
        }
        for (number, generation) in repository.tables(id)? {
            self.writer.remove_table(number, generation)?;
        }
        for backup in repository.recipes(id)? {
            self.writer.remove(ObjectName::Recipe(id, backup))?;
        }
        for name in DamageRecord::of(repository.objects(), id).names()? {
            self.writer.remove(name)?;
        }
        self.leave_popular()?;
        self.forget_numbers()?;
        self.writer.remove(ObjectName::Source(id))?;
        // The last copy is the last object that has the source's name at its birth.
        if let [last, others @ ..] = Place::all(false) {
            for place in others {
                self.writer.remove(ObjectName::Copy(id, *place))?;
            }
            for generation in Labels::of(repository.objects(), id).generations()? {
                self.writer.remove(ObjectName::Label(id, generation))?;
            }
            self.writer.remove(ObjectName::Copy(id, *last))?;
        }
        Ok(())
    }

    fn leave_popular(&self) -> Result<()> {
        let (repository, id) = (self.writer.repository(), self.writer.source().id);
        for popular in repository.source_ids()? {
            if repository.users(popular)?.contains(&id) {
                self.writer.remove(ObjectName::User {
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
        let (repository, id) = (self.writer.repository(), self.writer.source().id);
        let tombstones = ObjectName::tombstones(id);
        if !repository.objects().numbers(&tombstones)?.is_empty() {
            self.writer.fold(0)?;
        }
        for backup in repository.objects().numbers(&tombstones)? {
            self.writer.remove(ObjectName::Tombstone(id, backup))?;
        }
        for generation in repository.objects().generations(&ObjectName::closed(id))? {
            self.writer.remove(ObjectName::Closed(id, generation))?;
        }
        Ok(())
    }
}

/// Removes the empty folders of a source that no longer exists.
fn remove_folders(objects: &Objects, source: SourceId) -> Result<()> {
    let root = objects.root();
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
        let names = objects.folders(&parent)?;
        folders.extend(names.iter().map(|name| joined(&parent, name)));
    }
    for folder in folders.iter().rev() {
        // A folder with foreign files stays, which does no harm.
        let _ = root.remove_empty_folder(folder);
    }
    Ok(())
}
