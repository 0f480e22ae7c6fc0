//! Records that the holder of a source's lease writes: closed backup numbers, and the source's label.

use onefold_format::backup::{BackupNumber, Closed, Label, ObjectName, Place, SourceId};

use super::{History, Ranges, Reached, read_closed};
use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::NewObject;
use crate::host::now_unix_seconds;
use crate::label::Labels;
use crate::layout::is_ours;
use crate::writer::Writer;

impl Writer<'_> {
    /// Begins the next backup of the source, and records that its number is used.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn begin_backup(&self) -> Result<BackupNumber> {
        self.close_under_way()?;
        let history = self.repository().history(self.source().id)?;
        let closed = Closed::one(history.next, history.next_pack, now_unix_seconds());
        self.set_under_way(history.next, &closed)?;
        Ok(history.next)
    }

    /// Closes the number of a backup that was not completed.
    pub(crate) fn close(&self, backup: BackupNumber) -> Result<()> {
        let id = self.source().id;
        let objects = self.repository().objects();
        let history = self.repository().history(id)?;
        // Nothing else shows that the number is used once the holder's folder is gone. The name may not be durable yet,
        // because its sync failed.
        if history.backups.contains(&backup) {
            return objects.sync_name(ObjectName::Manifest(id, backup));
        }
        if history.closed.contains(backup.0) {
            return objects.sync_name(ObjectName::Tombstone(id, backup));
        }
        let closed = Closed::one(backup, history.next_pack, now_unix_seconds());
        let name = ObjectName::Tombstone(id, backup);
        self.fenced()
            .put(name, closed.encode(), NewObject::commit_over)
    }

    /// Closes the number of a backup that a dead holder left open. `folder` is that holder's retired folder.
    pub(crate) fn close_remains(&self, folder: &str, holder: u64) -> Result<()> {
        let name = ObjectName::UnderWay(self.source().id, holder);
        let path = format!("{folder}/{}", ObjectName::UNDER_WAY);
        let content = match self.repository().objects().read_sealed_at(&path, name) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => return Ok(()),
            content => content?,
        };
        let closed = Closed::decode(&content).map_err(|e| RepositoryError::format(&path, e))?;
        let mut numbers = closed.backups.iter().map(|range| BackupNumber(range.start));
        numbers.try_for_each(|backup| self.close(backup))
    }

    /// Folds all tombstones into one object, and records the next pack number. Each number stays closed by two
    /// objects: a tombstone is removed once the object before the new one has its number, too.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn fold(&self, next_pack: u64) -> Result<()> {
        let id = self.source().id;
        let history = self.repository().history(id)?;
        let next_pack = next_pack.max(history.next_pack);
        let newest = history.folded.last();
        let is_new = newest.is_none_or(|(_, numbers)| *numbers != history.closed);
        let is_older = next_pack > self.newest_next_pack(&history);
        if is_new || is_older {
            self.write_folded(&history, &history.closed, next_pack)
        } else {
            Ok(())
        }
    }

    /// Accepts that the source went back: numbers below `reached` are never used again. The numbers of lost backups
    /// are closed, so these do not count as missing.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn accept_rollback(&self, reached: Reached) -> Result<()> {
        // Each number is closed by two objects.
        for _ in 0..2 {
            let history = self.repository().history(self.source().id)?;
            let mut closed = history.closed.clone();
            let first = history.backups.last().map_or(1, |last| last.0 + 1);
            if first < reached.next {
                closed.add(std::iter::once(first..reached.next));
            }
            let next_pack = reached.next_pack.max(history.next_pack);
            self.write_folded(&history, &closed, next_pack)?;
        }
        Ok(())
    }

    /// Writes the next generation of folded tombstones, and removes the objects that it makes redundant.
    fn write_folded(&self, history: &History, numbers: &Ranges, next_pack: u64) -> Result<()> {
        let id = self.source().id;
        let newest = history.folded.last();
        let generation = newest.map_or(0, |(generation, _)| generation + 1);
        let closed = Closed {
            unix_seconds: now_unix_seconds(),
            next_pack,
            backups: numbers.0.clone(),
        };
        let name = ObjectName::Closed(id, generation);
        self.fenced()
            .put(name, closed.encode(), NewObject::commit_over)?;
        if let Some((_, before)) = newest {
            let in_both = history
                .tombstones
                .iter()
                .filter(|backup| before.contains(backup.0));
            for backup in in_both {
                self.remove(ObjectName::Tombstone(id, *backup))?;
            }
        }
        let [older @ .., _] = &history.folded[..] else {
            return Ok(());
        };
        for (generation, _) in older {
            self.remove(ObjectName::Closed(id, *generation))?;
        }
        Ok(())
    }

    fn newest_next_pack(&self, history: &History) -> u64 {
        let newest = history.folded.last().map(|(generation, _)| *generation);
        let name = newest.map(|generation| ObjectName::Closed(self.source().id, generation));
        let closed = name.and_then(|name| read_closed(self.repository().objects(), name).ok());
        closed.map_or(0, |closed| closed.next_pack)
    }

    /// Writes the source's object and its copies again if they are missing or damaged. Returns how many were written.
    /// Does not write a copy into a folder that may have been replaced: one that is empty although the source has
    /// packs, or needs some.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn mend_copies(&self) -> Result<u64> {
        let known = self.source();
        let mut mended = 0;
        for (name, error) in self.repository().wrong_copies(known) {
            // An object of a newer version is not damaged.
            if !error.is_of_object() {
                continue;
            }
            if let ObjectName::Copy(id, place) = name
                && !self.is_same(id, place)?
            {
                continue;
            }
            let content = match name {
                ObjectName::Label(..) => known.label().encode(),
                _ => known.born.encode(),
            };
            self.fenced().put(name, content, NewObject::commit_over)?;
            mended += 1;
        }
        Ok(mended)
    }

    fn is_same(&self, id: SourceId, place: Place) -> Result<bool> {
        let path = place.path(id);
        let entries = self.repository().objects().root().list(&path);
        let entries =
            entries.map_err(|e| RepositoryError::io(format_args!("cannot list {path}"), &e))?;
        let mut complete = entries.iter().filter(|entry| !entry.name.starts_with('.'));
        let has_objects = complete.any(|entry| is_ours(&joined(&path, &entry.name), entry.kind));
        let may_be_empty = match place {
            // Lost tombstones and users are noticed as missing.
            Place::Tombstones | Place::Users => true,
            Place::Manifests | Place::Recipes => self.repository().packs(id)?.is_empty(),
            Place::Packs => self.repository().needed_packs(id)?.own.is_empty(),
        };
        Ok(may_be_empty || has_objects)
    }

    /// Gives the source another name, another origin, or both.
    ///
    /// # Errors
    ///
    /// `Exists` if another disk has the name; `InUse` if the lease is lost; any failure of reading or writing.
    pub fn set_label(&mut self, label: Label) -> Result<()> {
        let (repository, id) = (self.repository(), self.source().id);
        let sources = repository.sources()?;
        let mut others = sources.disks.iter().filter(|disk| disk.id != id);
        if let Some(other) = others.find(|disk| disk.source.name == label.name) {
            let message = format!("{other} is another source of the repository ({})", other.id);
            return Err(RepositoryError::new(RepositoryErrorKind::Exists, message));
        }
        let labels = Labels::of(repository.objects(), id).generations()?;
        let generation = labels.last().map_or(1, |newest| newest + 1);
        let name = ObjectName::Label(id, generation);
        self.fenced().put(name, label.encode(), NewObject::commit)?;
        if let [older @ .., _] = &labels[..] {
            for generation in older {
                match self.remove(ObjectName::Label(id, *generation)) {
                    // A damaged label stays, but no longer counts.
                    Err(error) if !error.is_of_object() => return Err(error),
                    _ => {}
                }
            }
        }
        self.labelled(label);
        Ok(())
    }
}
