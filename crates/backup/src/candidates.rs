//! Backups of a source, as rules look at them.

use onefold_format::backup::{BackupNumber, SourceId};
use onefold_repository::{Repository, RepositoryError};
use onefold_retention::Item;

use crate::error::Result;

/// A backup that may be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) number: BackupNumber,
    pub(crate) unix_seconds: u64,
    pub(crate) tags: Vec<String>,
    pub(crate) is_protected: bool,
    /// Whether the backup is of a user's snapshot, and has the snapshot's time.
    pub(crate) is_of_snapshot: bool,
}

/// Backups that could be read, in order, and the errors of the others.
pub(crate) struct Candidates {
    pub(crate) backups: Vec<Candidate>,
    pub(crate) unreadable: Vec<RepositoryError>,
}

impl Candidate {
    pub(crate) fn item(&self) -> Item<'_> {
        Item {
            unix_seconds: self.unix_seconds,
            tags: &self.tags,
            is_protected: self.is_protected,
        }
    }
}

impl Candidates {
    /// Reads the backups of a source. Rules do not apply to those that cannot be read.
    pub(crate) fn all(repository: &Repository, source: SourceId) -> Result<Self> {
        Self::some(repository, source, &repository.backups(source)?)
    }

    /// Reads some of the backups of a source.
    pub(crate) fn some(
        repository: &Repository,
        source: SourceId,
        backups: &[BackupNumber],
    ) -> Result<Self> {
        let protected = repository.protected(source)?;
        let mut read = Self {
            backups: Vec::new(),
            unreadable: Vec::new(),
        };
        for number in backups.iter().copied() {
            match repository.listed_manifest(source, number) {
                Ok(None) => {}
                Ok(Some(manifest)) => read.backups.push(Candidate {
                    number,
                    unix_seconds: manifest.unix_seconds,
                    is_of_snapshot: !manifest.snapshot.is_empty(),
                    tags: manifest.tags,
                    is_protected: protected.contains(&number),
                }),
                Err(error) => read.unreadable.push(error),
            }
        }
        Ok(read)
    }
}
