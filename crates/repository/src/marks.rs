//! Marks: objects whose existence is their meaning. A protection says that a backup must not be forgotten; a user of
//! popular blocks, that a source may need them. Their content only proves that they belong to the repository.

use onefold_format::backup::{ObjectName, PackReference, SourceId};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::NewObject;
use crate::repository::Repository;
use crate::sources::KnownSource;
use crate::writer::Writer;

impl Repository {
    /// The marks of a source that are missing or damaged.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn wrong_marks(&self, known: &KnownSource) -> Result<Vec<(ObjectName, RepositoryError)>> {
        let marks = if known.source.is_popular() {
            self.user_marks(known.id)?
        } else {
            self.disk_marks(known)?
        };
        let wrong = marks.into_iter().filter_map(|name| {
            let error = self.read_sealed(name).err()?;
            Some(match error.kind() {
                RepositoryErrorKind::NotFound => {
                    let error = RepositoryError::damaged(&name.path(), "it is not there");
                    (name, error)
                }
                _ => (name, error),
            })
        });
        Ok(wrong.collect())
    }

    fn user_marks(&self, popular: SourceId) -> Result<Vec<ObjectName>> {
        let users = self.users(popular)?.into_iter();
        let users = users.map(|source| ObjectName::User { popular, source });
        Ok(users.collect())
    }

    /// The protections of a source, and its user mark if a backup needs popular blocks or a block was moved to one.
    fn disk_marks(&self, known: &KnownSource) -> Result<Vec<ObjectName>> {
        let id = known.id;
        let protected = self.protected(id)?.into_iter();
        let mut marks: Vec<_> = protected
            .map(|backup| ObjectName::Protection(id, backup))
            .collect();
        if !self.needed_packs(id)?.popular.is_empty() || self.has_moved(id)? {
            let popular = self.popular_id(&known.source);
            marks.push(ObjectName::User {
                popular,
                source: id,
            });
        }
        Ok(marks)
    }

    /// Whether a pack of a source has moved blocks. Only packs that were written again can.
    fn has_moved(&self, source: SourceId) -> Result<bool> {
        let mut packs = self.packs(source)?;
        packs.retain(|(_, generation)| *generation > 0);
        for (number, generation) in packs {
            match self.pack_or_newer(source, number, generation) {
                Ok(Some(pack)) if !pack.popular_packs().is_empty() => return Ok(true),
                Err(error) if !error.is_of_object() => return Err(error),
                _ => {}
            }
        }
        Ok(false)
    }
}

impl Writer<'_> {
    /// Prepares references to popular packs: makes the packs' names durable, and records the source as a user of the
    /// popular blocks. Must be called before any object of the source refers to them. Popular blocks need no mark for
    /// themselves.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn begin_to_use(&self, packs: &[PackReference]) -> Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        let (repository, source) = (self.repository(), self.source());
        let popular = repository.popular_id(&source.source);
        repository.sync_packs(popular, packs)?;
        if source.id == popular {
            Ok(())
        } else {
            repository.add_user(popular, source.id)
        }
    }

    /// Writes missing or damaged marks of the source again. Returns how many were written.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn mend_marks(&self) -> Result<u64> {
        let wrong = self.repository().wrong_marks(self.source())?.into_iter();
        // An object of a newer version is not damaged.
        let damaged = wrong.filter(|(_, error)| error.is_of_object());
        let mut mended = 0;
        for (name, _) in damaged {
            self.put(name, Vec::new(), NewObject::commit_over)?;
            mended += 1;
        }
        Ok(mended)
    }
}
