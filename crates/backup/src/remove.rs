//! Removes a source with all its backups.

use onefold_format::backup::BackupNumber;
use onefold_repository::KnownSource;

use crate::error::{BackupError, Result};
use crate::finding::no_source;
use crate::opening::Opened;

/// What the removal of a source removes.
#[derive(Debug)]
pub struct RemovePlan {
    /// The source.
    pub source: KnownSource,
    /// Numbers of the source's backups.
    pub backups: Vec<BackupNumber>,
    /// Number of the source's packs.
    pub packs: u64,
    /// Bytes of the source's packs.
    pub stored_bytes: u64,
}

impl RemovePlan {
    /// Plans the removal of the source with this name or id, or of what an interrupted removal left of it.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such source. `Invalid` if a backup is protected. `Damaged` if the source went back.
    pub fn new(opened: &Opened, name: &str) -> Result<Self> {
        let repository = opened.repository();
        let source = match repository.source(name)? {
            Some(known) => Some(known),
            None => repository.half_removed(name)?,
        };
        let source = source.ok_or_else(|| no_source(name))?;
        opened.check(source.id)?;
        let plan = Self {
            backups: repository.backups(source.id)?,
            packs: repository.packs(source.id)?.len() as u64,
            stored_bytes: repository.stored_bytes(source.id)?,
            source,
        };
        let source = &plan.source;
        if let Some(backup) = repository.protected(source.id)?.first() {
            let name = &source.source.name;
            return Err(BackupError::usage(format!(
                "{name}@{backup} is protected, so {source} stays; 'onefold backup unprotect {name}@{backup}' ends that"
            )));
        }
        Ok(plan)
    }

    /// Removes the source.
    ///
    /// # Errors
    ///
    /// If the source is in use, or an object cannot be removed.
    pub fn carry_out(&self, opened: &Opened) -> Result<()> {
        let source = &self.source;
        // First, so that an interrupted removal does not look like a repository that went back.
        opened.forget(source.id);
        let removed = opened.repository().remove_source(source.id);
        removed.map_err(|error| {
            BackupError::from(error).within(format_args!("{source} is not removed"))
        })?;
        // A concurrent command may have seen and remembered the source.
        opened.forget(source.id);
        Ok(())
    }
}
