//! Finds and adds sources of a repository.

use std::time::Duration;

use onefold_format::backup::{BackupNumber, ObjectName, Place, Source, SourceId};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::history::History;
use crate::label::Labels;
use crate::layout::hexadecimal;
use crate::objects::Objects;
use crate::packs::Packs;
use crate::sources::{KnownSource, Sources};

/// How often adding a source is tried again while others add the same name, and the longest pause between two tries.
const BIRTHS_MAX: u32 = 16;
const BIRTH_PAUSE_MS: u64 = 200;

/// The sources of a repository, as its folder has them.
pub(crate) struct Catalogue<'a> {
    objects: &'a Objects,
}

impl<'a> Catalogue<'a> {
    pub(crate) fn of(objects: &'a Objects) -> Self {
        Self { objects }
    }

    /// The ids of all sources, including stores of popular blocks.
    pub(crate) fn ids(&self) -> Result<Vec<SourceId>> {
        let names = self.objects.folder().folders("sources");
        let names = names
            .map_err(|e| RepositoryError::io("cannot list the sources of the repository", &e))?;
        Ok(names.iter().filter_map(|name| source_named(name)).collect())
    }

    /// All sources.
    pub(crate) fn all(&self) -> Result<Sources> {
        let mut sources = Sources::default();
        for id in self.ids()? {
            match self.known(id) {
                Ok(Some(known)) if known.source.is_popular() => sources.popular.push(known),
                Ok(Some(known)) if self.is_half_removed(&known)? => {}
                Ok(Some(known)) => sources.disks.push(known),
                // A command died before it had completed the source.
                Ok(None) if Packs::of(self.objects, id).newest()?.is_empty() => {}
                Ok(None) => {
                    let path = ObjectName::Source(id).path();
                    let error = RepositoryError::damaged(&path, "it is not there, nor a copy");
                    sources.damaged.push(error);
                }
                Err(error) if error.is_of_object() => sources.damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        let by_name = |a: &KnownSource, b: &KnownSource| a.source.name.cmp(&b.source.name);
        sources.disks.sort_by(by_name);
        Ok(sources)
    }

    /// The source with this id, read from its object or a copy.
    pub(crate) fn known(&self, id: SourceId) -> Result<Option<KnownSource>> {
        let Some(born) = self.born(id)? else {
            return Ok(None);
        };
        let source = match Labels::of(self.objects, id).newest()? {
            Some(label) => born.clone().labelled(label),
            None => born.clone(),
        };
        Ok(Some(KnownSource { id, source, born }))
    }

    fn born(&self, id: SourceId) -> Result<Option<Source>> {
        let places = [false, true].into_iter().flat_map(Place::all);
        let copies = places.map(|place| ObjectName::Copy(id, *place));
        let mut damaged = None;
        for name in std::iter::once(ObjectName::Source(id)).chain(copies) {
            match self.read(name) {
                Ok(source) => return Ok(Some(source)),
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                Err(error) if error.is_of_object() => damaged = damaged.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// Adds a disk, with a random id.
    pub(crate) fn add(&self, source: Source) -> Result<KnownSource> {
        let draw = || random_number().map_err(|e| RepositoryError::io("no random numbers", &e));
        let mut births = 0;
        loop {
            let id = SourceId(draw()?.max(1));
            let name = ObjectName::Source(id);
            self.objects
                .put(name, &self.objects.sealed(name, source.encode())?)?;
            // Checked after writing: of two commands that add the same name concurrently, the later one sees the other.
            let sources = self.all()?;
            let mut others = sources.disks.iter().filter(|disk| disk.id != id);
            let Some(other) = others.find(|disk| disk.source.name == source.name) else {
                return self.born_source(id, source);
            };
            self.objects.remove(name)?;
            births += 1;
            // If each sees the other, both withdraw, and a random pause decides who comes first in the next try.
            if births == BIRTHS_MAX || self.wrong_copies(other).is_empty() {
                let id = other.id;
                let message = format!("{other} is a source of the repository already ({id})");
                return Err(RepositoryError::new(RepositoryErrorKind::InUse, message));
            }
            std::thread::sleep(Duration::from_millis(draw()? % BIRTH_PAUSE_MS));
        }
    }

    fn read(&self, name: ObjectName) -> Result<Source> {
        let content = self.objects.read_sealed(name)?;
        Source::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// Creates the folders of a new source, with copies of its object.
    fn complete(&self, known: &KnownSource) -> Result<()> {
        for place in Place::all(known.source.is_popular()) {
            let name = ObjectName::Copy(known.id, *place);
            self.objects
                .put_over(name, &self.objects.sealed(name, known.born.encode())?)?;
        }
        Ok(())
    }

    /// Completes the birth of a source whose object was written.
    fn born_source(&self, id: SourceId, source: Source) -> Result<KnownSource> {
        let known = KnownSource {
            id,
            born: source.clone(),
            source,
        };
        self.complete(&known)?;
        Ok(known)
    }

    /// The store of popular blocks that a source shares with others; created if it does not exist.
    pub(crate) fn popular(&self, source: &Source) -> Result<KnownSource> {
        let id = self.objects.master().popular_id(source);
        if let Some(known) = self.known(id)? {
            // The process that created it may have died.
            if Packs::of(self.objects, id).newest()?.is_empty() {
                self.complete(&known)?;
            }
            return Ok(known);
        }
        let popular = Source {
            name: String::new(),
            origin: None,
            ..source.clone()
        };
        let name = ObjectName::Source(id);
        match self
            .objects
            .put(name, &self.objects.sealed(name, popular.encode())?)
        {
            Err(error) if error.kind() == RepositoryErrorKind::InUse => {
                self.known(id)?.ok_or(error)
            }
            put => put.and_then(|()| self.born_source(id, popular)),
        }
    }

    /// Errors of a source's object, of its copies, and of its newest label.
    pub(crate) fn wrong_copies(&self, known: &KnownSource) -> Vec<(ObjectName, RepositoryError)> {
        let copies = Place::all(known.source.is_popular()).iter();
        let copies = copies.map(|place| ObjectName::Copy(known.id, *place));
        let names = std::iter::once(ObjectName::Source(known.id)).chain(copies);
        let wrong = names.filter_map(|name| {
            let error = match self.read(name) {
                Ok(source) if source == known.born => return None,
                Ok(_) => RepositoryError::damaged(&name.path(), "it is of another source"),
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                    RepositoryError::damaged(&name.path(), "it is not there")
                }
                Err(error) => error,
            };
            Some((name, error))
        });
        let wrong_label = match Labels::of(self.objects, known.id).wrong(known) {
            Ok(wrong) => wrong,
            Err(error) => Some((ObjectName::Source(known.id), error)),
        };
        wrong.chain(wrong_label).collect()
    }

    /// Fails if a folder of the source may have been replaced, because then its former content is unknown.
    pub(crate) fn check_places(&self, known: &KnownSource) -> Result<()> {
        let wrong = self.wrong_copies(known).into_iter();
        let mut copies = wrong.filter(|(name, _)| matches!(name, ObjectName::Copy(..)));
        copies.next().map_or(Ok(()), |(_, error)| {
            let message = format!(
                "{known}: {error}; 'onefold backup repair' makes it again if its folder is still the same"
            );
            Err(RepositoryError::new(RepositoryErrorKind::Damaged, message))
        })
    }

    /// Whether there is a source with this id; a damaged source counts.
    pub(crate) fn has(&self, source: SourceId) -> Result<bool> {
        match self.known(source) {
            Ok(known) => Ok(known.is_some()),
            Err(error) if error.is_of_object() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether a source has lost its object and is empty: a removal deletes the object after all content.
    pub(crate) fn is_half_removed(&self, known: &KnownSource) -> Result<bool> {
        let path = ObjectName::Source(known.id).path();
        let object = self.objects.root().kind(&path);
        let object = object
            .map_err(|e| RepositoryError::io(format_args!("cannot read object {path}"), &e))?;
        if object.is_some() || known.source.is_popular() {
            return Ok(false);
        }
        let history = History::read(self.objects, known.id)?;
        let is_as_born = history.next == BackupNumber(1) && history.next_pack == 0;
        Ok(is_as_born && history.damaged.is_empty())
    }

    /// The source with this name or id whose removal was interrupted after it had ceased to exist.
    pub(crate) fn half_removed(&self, name: &str) -> Result<Option<KnownSource>> {
        for id in self.ids()? {
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
}

/// The source whose folder has this name.
pub(crate) fn source_named(name: &str) -> Option<SourceId> {
    hexadecimal(name).map(SourceId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::repository::Repository;
    use std::sync::Barrier;

    #[test]
    fn of_several_that_add_a_source_at_once_one_does() {
        for _ in 0..5 {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("r");
            Repository::init(&root, &Access::Open, 1).unwrap();
            let all_are_there = Barrier::new(4);
            let add = || {
                let repository = Repository::open(&root, &Access::Open).unwrap();
                all_are_there.wait();
                repository.add_source(Source {
                    name: "web".to_owned(),
                    domain: "default".to_owned(),
                    block_size: 4096,
                    origin: None,
                })
            };
            let added = std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(add));
                threads.map(|thread| thread.join().unwrap())
            });
            let alone: Vec<_> = added.iter().flatten().map(|known| known.id).collect();
            let repository = Repository::open(&root, &Access::Open).unwrap();
            let there = repository.sources().unwrap().disks;
            assert_eq!(alone, [there[0].id], "{added:?}");
            assert_eq!(there.len(), 1);
        }
    }
}
