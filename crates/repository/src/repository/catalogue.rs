//! Requests that concern the sources of a repository.

use onefold_format::backup::{Condemned, LeaseName, ObjectName, Source, SourceId};

use super::Repository;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::marks::{Marks, Users};
use crate::source::Catalogue;
use crate::sources::{KnownSource, Sources};

impl Repository {
    /// The ids of all sources, including stores of popular blocks.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn source_ids(&self) -> Result<Vec<SourceId>> {
        Catalogue::of(&self.objects).ids()
    }

    /// All sources.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn sources(&self) -> Result<Sources> {
        Catalogue::of(&self.objects).all()
    }

    /// The source with this name or id.
    ///
    /// # Errors
    ///
    /// `Invalid` if several have the name; any failure of reading.
    pub fn source(&self, name: &str) -> Result<Option<KnownSource>> {
        Ok(self.sources()?.named(name)?.cloned())
    }

    /// Whether there is a source with this id; a damaged source counts.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn has_source(&self, source: SourceId) -> Result<bool> {
        Catalogue::of(&self.objects).has(source)
    }

    /// Adds a disk, with a random id.
    ///
    /// # Errors
    ///
    /// `InUse` if another disk has the name; any failure of writing.
    pub fn add_source(&self, source: Source) -> Result<KnownSource> {
        Catalogue::of(&self.objects).add(source)
    }

    /// The store of popular blocks that a source shares with others; created if it does not exist.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn popular(&self, source: &Source) -> Result<KnownSource> {
        Catalogue::of(&self.objects).popular(source)
    }

    /// The id of the store of popular blocks that a source shares with others. The store may not exist yet.
    #[must_use]
    pub fn popular_id(&self, source: &Source) -> SourceId {
        self.objects.master().popular_id(source)
    }

    /// Errors of a source's object, of its copies, and of its newest label.
    #[must_use]
    pub fn wrong_copies(&self, known: &KnownSource) -> Vec<(ObjectName, RepositoryError)> {
        Catalogue::of(&self.objects).wrong_copies(known)
    }

    /// Fails if a folder of the source may have been replaced, because then its former content is unknown.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub fn check_places(&self, known: &KnownSource) -> Result<()> {
        Catalogue::of(&self.objects).check_places(known)
    }

    /// The marks of a source that are missing or damaged.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn wrong_marks(&self, known: &KnownSource) -> Result<Vec<(ObjectName, RepositoryError)>> {
        Marks::of(&self.objects, known).wrong()
    }

    /// The source with this name or id whose removal was interrupted after it had ceased to exist.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn half_removed(&self, name: &str) -> Result<Option<KnownSource>> {
        Catalogue::of(&self.objects).half_removed(name)
    }

    /// The error for a missing source whose backups may need popular blocks.
    #[must_use]
    pub fn missing_source(&self, source: SourceId) -> RepositoryError {
        let message = format!(
            "source {source} is missing: put its folder back under sources; its backups may need popular blocks"
        );
        RepositoryError::new(RepositoryErrorKind::Damaged, message)
    }

    /// The sources whose backups may need popular blocks.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn users(&self, popular: SourceId) -> Result<Vec<SourceId>> {
        Users::of(&self.objects, popular).all()
    }

    /// The popular blocks that are about to be removed, if any.
    ///
    /// # Errors
    ///
    /// `Damaged`; any failure of reading.
    pub fn condemned(&self, popular: SourceId) -> Result<Option<Condemned>> {
        let name = ObjectName::Condemned(popular);
        match self.objects.read_sealed(name) {
            Ok(content) => {
                let condemned = Condemned::decode(&content);
                condemned
                    .map(Some)
                    .map_err(|e| RepositoryError::format(&name.path(), e))
            }
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until it is known for each source whether its lease is free, watching all of them at the same time. Ends
    /// the leases of holders without a heartbeat.
    ///
    /// # Errors
    ///
    /// `Interrupted`. For each source: `InUse` if another process has its lease; any failure of reading.
    pub fn wait_for_leases(&self, sources: &[SourceId]) -> Result<Vec<Result<()>>> {
        self.leases().wait_for(sources)
    }

    /// All leases that are held, or were when their holder died.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn held_leases(&self) -> Result<Vec<LeaseName>> {
        self.leases().held()
    }

    /// Whether all of these leases have ended. Ends the leases of holders without a heartbeat.
    ///
    /// # Errors
    ///
    /// `Interrupted`; any failure of reading.
    pub fn have_ended(&self, leases: &[LeaseName]) -> Result<bool> {
        self.leases().have_ended(leases)
    }
}
