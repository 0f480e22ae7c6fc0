//! Marks: objects whose existence is their meaning. A protection says that a backup must not be forgotten; a user of
//! popular blocks, that a source may need them. Their content only proves that they belong to the repository.

use onefold_format::backup::{ObjectName, SourceId};

use crate::backup::Backups;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::fenced::Fenced;
use crate::folder::NewObject;
use crate::objects::Objects;
use crate::packs::Packs;
use crate::source::source_named;
use crate::sources::KnownSource;

/// The marks of a source.
pub(crate) struct Marks<'a> {
    objects: &'a Objects,
    known: &'a KnownSource,
}

impl<'a> Marks<'a> {
    pub(crate) fn of(objects: &'a Objects, known: &'a KnownSource) -> Self {
        Self { objects, known }
    }

    /// The marks that are missing or damaged.
    pub(crate) fn wrong(&self) -> Result<Vec<(ObjectName, RepositoryError)>> {
        let marks = if self.known.source.is_popular() {
            self.of_popular()?
        } else {
            self.of_disk()?
        };
        let wrong = marks.into_iter().filter_map(|name| {
            let error = self.objects.read_sealed(name).err()?;
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

    fn of_popular(&self) -> Result<Vec<ObjectName>> {
        let popular = self.known.id;
        let users = Users::of(self.objects, popular).all()?.into_iter();
        let users = users.map(|source| ObjectName::User { popular, source });
        Ok(users.collect())
    }

    /// The protections of a source, and its user mark if a backup needs popular blocks or a block was moved to one.
    fn of_disk(&self) -> Result<Vec<ObjectName>> {
        let (objects, id) = (self.objects, self.known.id);
        let backups = Backups::of(objects, id);
        let protected = backups.protected()?.into_iter();
        let mut marks: Vec<_> = protected
            .map(|backup| ObjectName::Protection(id, backup))
            .collect();
        if !backups.needed_packs()?.popular.is_empty() || Packs::of(objects, id).has_moved()? {
            let popular = objects.master().popular_id(&self.known.source);
            marks.push(ObjectName::User {
                popular,
                source: id,
            });
        }
        Ok(marks)
    }

    /// Writes missing or damaged marks again, under the lease of the source. Returns how many were written.
    pub(crate) fn mend(&self, fenced: &Fenced<'_>) -> Result<u64> {
        let wrong = self.wrong()?.into_iter();
        // An object of a newer version is not damaged.
        let damaged = wrong.filter(|(_, error)| error.is_of_object());
        let mut mended = 0;
        for (name, _) in damaged {
            fenced.put(name, Vec::new(), NewObject::commit_over)?;
            mended += 1;
        }
        Ok(mended)
    }
}

/// The sources whose backups may need the popular blocks of a domain.
pub(crate) struct Users<'a> {
    objects: &'a Objects,
    popular: SourceId,
}

impl<'a> Users<'a> {
    pub(crate) fn of(objects: &'a Objects, popular: SourceId) -> Self {
        Self { objects, popular }
    }

    /// All users, by the names of their marks.
    pub(crate) fn all(&self) -> Result<Vec<SourceId>> {
        let names = self.objects.names(&ObjectName::users(self.popular))?;
        Ok(names.iter().filter_map(|name| source_named(name)).collect())
    }

    /// Records that backups of a source may need popular blocks.
    pub(crate) fn add(&self, source: SourceId) -> Result<()> {
        let popular = self.popular;
        let name = ObjectName::User { popular, source };
        match self.objects.read_sealed(name) {
            // The process that wrote the mark may have died before its name was durable.
            Ok(_) => self.objects.sync_name(name),
            Err(error) if error.is_of_object() => {
                let content = self.objects.sealed(name, Vec::new())?;
                self.objects.put_over(name, &content)
            }
            Err(error) => Err(error),
        }
    }
}

/// Prepares references of a source to popular packs: makes the packs' names durable, and records the source as a user
/// of the popular blocks. Popular blocks need no mark for themselves.
pub(crate) fn begin_to_use(
    objects: &Objects,
    source: &KnownSource,
    numbers: impl Iterator<Item = u64>,
) -> Result<()> {
    let popular = objects.master().popular_id(&source.source);
    Packs::of(objects, popular).sync(numbers)?;
    if source.id == popular {
        Ok(())
    } else {
        Users::of(objects, popular).add(source.id)
    }
}
