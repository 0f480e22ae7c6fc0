//! Labels: the name and the origin of a source, if they have changed since its birth.
//!
//! The newest readable label counts. The label before it is kept, so that a damaged label loses only one change.

use onefold_format::backup::{Label, ObjectName, SourceId};

use crate::error::{RepositoryError, Result};
use crate::repository::Repository;
use crate::sources::KnownSource;

impl Repository {
    /// The newest readable label of a source, if any.
    pub(crate) fn label(&self, source: SourceId) -> Result<Option<Label>> {
        for generation in self.labels(source)?.into_iter().rev() {
            match self.label_in(ObjectName::Label(source, generation)) {
                Ok(label) => return Ok(Some(label)),
                Err(error) if error.is_of_object() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The error of a source's newest label, if that is unreadable.
    pub(crate) fn wrong_label(
        &self,
        known: &KnownSource,
    ) -> Result<Option<(ObjectName, RepositoryError)>> {
        let newest = self.labels(known.id)?.pop();
        let Some(name) = newest.map(|generation| ObjectName::Label(known.id, generation)) else {
            return Ok(None);
        };
        let error = self.label_in(name).err();
        Ok(error.map(|error| {
            let message =
                format!("{error}; until 'onefold backup rename' the source is called {known}");
            (name, RepositoryError::new(error.kind(), message))
        }))
    }

    /// The generations of a source's labels, in order.
    pub(crate) fn labels(&self, source: SourceId) -> Result<Vec<u32>> {
        self.generations(&ObjectName::labels(source))
    }

    fn label_in(&self, name: ObjectName) -> Result<Label> {
        let content = self.read_sealed(name)?;
        Label::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }
}
