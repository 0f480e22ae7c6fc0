//! Finds and adds sources of a repository.

use std::time::Duration;

use onefold_format::backup::{ObjectName, Place, Source, SourceId};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::repository::Repository;
use crate::sources::{KnownSource, Sources};

/// How often adding a source is tried again while others add the same name, and the longest pause between two tries.
const BIRTHS_MAX: u32 = 16;
const BIRTH_PAUSE_MS: u64 = 200;

impl Repository {
    /// All sources.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn sources(&self) -> Result<Sources> {
        let mut sources = Sources::default();
        for id in self.source_ids()? {
            match self.known(id) {
                Ok(Some(known)) if known.source.is_popular() => sources.popular.push(known),
                Ok(Some(known)) if self.is_half_removed(&known)? => {}
                Ok(Some(known)) => sources.disks.push(known),
                // A command died before it had completed the source.
                Ok(None) if self.packs(id)?.is_empty() => {}
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

    /// The source with this name or id.
    ///
    /// # Errors
    ///
    /// `Invalid` if several have the name; any failure of reading.
    pub fn source(&self, name: &str) -> Result<Option<KnownSource>> {
        Ok(self.sources()?.named(name)?.cloned())
    }

    /// The source with this id, read from its object or a copy.
    pub(crate) fn known(&self, id: SourceId) -> Result<Option<KnownSource>> {
        let Some(born) = self.born(id)? else {
            return Ok(None);
        };
        let source = match self.label(id)? {
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
            match self.source_in(name) {
                Ok(source) => return Ok(Some(source)),
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                Err(error) if error.is_of_object() => damaged = damaged.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// Adds a disk, with a random id.
    ///
    /// # Errors
    ///
    /// `InUse` if another disk has the name; any failure of writing.
    pub fn add_source(&self, source: Source) -> Result<KnownSource> {
        let draw = || random_number().map_err(|e| RepositoryError::io("no random numbers", &e));
        let mut births = 0;
        loop {
            let id = SourceId(draw()?.max(1));
            let name = ObjectName::Source(id);
            self.put(name, &self.sealed(name, source.encode())?)?;
            // Checked after writing: of two commands that add the same name concurrently, the later one sees the other.
            let sources = self.sources()?;
            let mut others = sources.disks.iter().filter(|disk| disk.id != id);
            let Some(other) = others.find(|disk| disk.source.name == source.name) else {
                return self.born_source(id, source);
            };
            self.remove(name)?;
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

    /// Completes the birth of a source whose object was written.
    fn born_source(&self, id: SourceId, source: Source) -> Result<KnownSource> {
        let known = KnownSource {
            id,
            born: source.clone(),
            source,
        };
        self.complete_source(&known)?;
        Ok(known)
    }

    /// The store of popular blocks that a source shares with others; created if it does not exist.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn popular(&self, source: &Source) -> Result<KnownSource> {
        let id = self.popular_id(source);
        if let Some(known) = self.known(id)? {
            // The process that created it may have died.
            if self.packs(id)?.is_empty() {
                self.complete_source(&known)?;
            }
            return Ok(known);
        }
        let popular = Source {
            name: String::new(),
            origin: None,
            ..source.clone()
        };
        let name = ObjectName::Source(id);
        match self.put(name, &self.sealed(name, popular.encode())?) {
            Err(error) if error.kind() == RepositoryErrorKind::InUse => {
                self.known(id)?.ok_or(error)
            }
            put => put.and_then(|()| self.born_source(id, popular)),
        }
    }

    /// Errors of a source's object, of its copies, and of its newest label.
    #[must_use]
    pub fn wrong_copies(&self, known: &KnownSource) -> Vec<(ObjectName, RepositoryError)> {
        let copies = Place::all(known.source.is_popular()).iter();
        let copies = copies.map(|place| ObjectName::Copy(known.id, *place));
        let names = std::iter::once(ObjectName::Source(known.id)).chain(copies);
        let wrong = names.filter_map(|name| {
            let error = match self.source_in(name) {
                Ok(source) if source == known.born => return None,
                Ok(_) => RepositoryError::damaged(&name.path(), "it is of another source"),
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {
                    RepositoryError::damaged(&name.path(), "it is not there")
                }
                Err(error) => error,
            };
            Some((name, error))
        });
        let wrong_label = match self.wrong_label(known) {
            Ok(wrong) => wrong,
            Err(error) => Some((ObjectName::Source(known.id), error)),
        };
        wrong.chain(wrong_label).collect()
    }

    /// Fails if a folder of the source may have been replaced, because then its former content is unknown.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub fn check_places(&self, known: &KnownSource) -> Result<()> {
        let wrong = self.wrong_copies(known).into_iter();
        let mut copies = wrong.filter(|(name, _)| matches!(name, ObjectName::Copy(..)));
        copies.next().map_or(Ok(()), |(_, error)| {
            let message = format!(
                "{known}: {error}; 'onefold backup repair' makes it again if its folder is still the same"
            );
            Err(RepositoryError::new(RepositoryErrorKind::Damaged, message))
        })
    }
}
