//! Labels: the name and the origin of a source, if they have changed since its birth.
//!
//! The newest readable label counts. The label before it is kept, so that a damaged label loses only one change.

use onefold_format::backup::{Label, ObjectName, SourceId};

use crate::error::{RepositoryError, Result};
use crate::objects::Objects;
use crate::sources::KnownSource;

/// The labels of a source.
pub(crate) struct Labels<'a> {
    objects: &'a Objects,
    source: SourceId,
}

impl<'a> Labels<'a> {
    pub(crate) fn of(objects: &'a Objects, source: SourceId) -> Self {
        Self { objects, source }
    }

    /// The newest readable label, if any.
    pub(crate) fn newest(&self) -> Result<Option<Label>> {
        for generation in self.generations()?.into_iter().rev() {
            match self.read(ObjectName::Label(self.source, generation)) {
                Ok(label) => return Ok(Some(label)),
                Err(error) if error.is_of_object() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The error of the newest label, if that is unreadable.
    pub(crate) fn wrong(
        &self,
        known: &KnownSource,
    ) -> Result<Option<(ObjectName, RepositoryError)>> {
        let newest = self.generations()?.pop();
        let Some(name) = newest.map(|generation| ObjectName::Label(self.source, generation)) else {
            return Ok(None);
        };
        let error = self.read(name).err();
        Ok(error.map(|error| {
            let message =
                format!("{error}; until 'onefold backup rename' the source is called {known}");
            (name, RepositoryError::new(error.kind(), message))
        }))
    }

    /// The generations of the labels, in order.
    pub(crate) fn generations(&self) -> Result<Vec<u32>> {
        self.objects.generations(&ObjectName::labels(self.source))
    }

    fn read(&self, name: ObjectName) -> Result<Label> {
        let content = self.objects.read_sealed(name)?;
        Label::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }
}
