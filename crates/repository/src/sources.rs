//! The sources of a repository, which can be searched by name, by id, and by origin.

use std::fmt;

use onefold_format::backup::{Label, Origin, Source, SourceId};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};

/// A source of a repository.
#[derive(Debug, Clone)]
pub struct KnownSource {
    /// The id of the source.
    pub id: SourceId,
    /// The source with the name and origin of its newest label.
    pub source: Source,
    /// The source as at its birth, as in its object and the copies.
    pub(crate) born: Source,
}

impl KnownSource {
    pub(crate) fn label(&self) -> Label {
        Label {
            name: self.source.name.clone(),
            origin: self.source.origin.clone(),
        }
    }
}

/// The sources of a repository.
#[derive(Debug, Default)]
pub struct Sources {
    /// Disks that are backed up, by name.
    pub disks: Vec<KnownSource>,
    /// The popular blocks of all domains.
    pub popular: Vec<KnownSource>,
    /// Errors of sources whose object and copies are all unreadable.
    pub damaged: Vec<RepositoryError>,
}

impl Sources {
    /// The disk with this name or id.
    ///
    /// # Errors
    ///
    /// `Invalid` if several have the name.
    pub fn named(&self, name: &str) -> Result<Option<&KnownSource>> {
        let mut named = self.disks.iter().filter(|disk| disk.source.name == name);
        match (named.next(), named.next()) {
            (Some(first), Some(second)) => {
                let message = format!(
                    "{} and {} are both called '{name}': name one by its id, or rename it: 'onefold backup rename {} NEW'",
                    first.id, second.id, second.id
                );
                Err(RepositoryError::new(RepositoryErrorKind::Invalid, message))
            }
            (Some(only), None) => Ok(Some(only)),
            (None, _) => {
                let mut disks = self.disks.iter();
                Ok(disks.find(|disk| disk.id.to_string() == name))
            }
        }
    }

    /// The disks with this origin.
    pub fn from_origin(&self, origin: &Origin) -> impl Iterator<Item = &KnownSource> {
        let disks = self.disks.iter();
        disks.filter(move |disk| disk.source.origin.as_ref() == Some(origin))
    }
}

/// A description for messages.
impl fmt::Display for KnownSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.source.is_popular() {
            write!(f, "the popular blocks of domain '{}'", self.source.domain)
        } else {
            write!(f, "'{}'", self.source.name)
        }
    }
}
