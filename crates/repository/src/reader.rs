//! Whoever reads a backup says so, so that it is not forgotten meanwhile.
//!
//! Its lease is a folder like that of a writer, but any number of readers may have one.

use std::path::PathBuf;

use onefold_format::backup::{BackupNumber, ObjectName, SourceId};

use crate::disk;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::repository::Repository;
use crate::writer::{GONE, HeldLease, PATIENCE, SIGN, folder_name, give_back, this_lease};

/// A backup is read. Dropped, it is not any more.
pub struct Reading {
    _lease: Option<HeldLease>,
}

impl Repository {
    /// Says that a backup is read, to do what `doing` says. To be said before its manifest is read. A repository that
    /// is full, or cannot be written, is read all the same.
    ///
    /// # Errors
    ///
    /// Any other failure of writing.
    pub fn reading(&self, source: SourceId, backup: BackupNumber, doing: &str) -> Result<Reading> {
        let lease = match self.reader_lease(source, backup, doing) {
            Ok(lease) => Some(lease),
            Err(error) => match error.kind() {
                RepositoryErrorKind::ReadOnly | RepositoryErrorKind::NoSpace => None,
                _ => return Err(error),
            },
        };
        Ok(Reading { _lease: lease })
    }

    fn reader_lease(
        &self,
        source: SourceId,
        backup: BackupNumber,
        doing: &str,
    ) -> Result<HeldLease> {
        let failed =
            |e: &std::io::Error| RepositoryError::io("cannot say that a backup is read", e);
        let token = random_number().map_err(|e| failed(&e))?;
        let name = ObjectName::Reader(source, backup, token);
        let readers = self.readers_of(source, backup);
        let sign = readers.join(folder_name(token)).join(SIGN);
        self.put(name, &self.sealed(name, this_lease(doing)?.encode())?)?;
        let lease = HeldLease::new(readers, token, self.beside(source, GONE, token));
        disk::create_new(&sign)
            .and_then(|mut file| disk::append(&mut file, &sign, &token.to_le_bytes()))
            .map_err(|e| failed(&e))?;
        Ok(lease)
    }

    /// Fails if somebody reads a backup, and says who.
    pub(crate) fn check_not_read(&self, source: SourceId, backup: BackupNumber) -> Result<()> {
        let readers = self.readers_of(source, backup);
        for entry in std::fs::read_dir(&readers).into_iter().flatten().flatten() {
            let token = entry.file_name().into_string().ok();
            let token = token.and_then(|name| u64::from_str_radix(&name, 16).ok());
            let Some(token) = token else { continue };
            let name = ObjectName::Reader(source, backup, token);
            if let Some(who) = self.alive_holder(name, &entry.path(), PATIENCE) {
                let message = format!("backup {backup} is being read by {who}");
                return Err(RepositoryError::new(RepositoryErrorKind::InUse, message));
            }
            give_back(&readers, token, &self.beside(source, GONE, token));
        }
        Ok(())
    }

    /// Those who read a backup were in this folder. It goes with the backup: while there is one, a reader may be
    /// about to come.
    pub(crate) fn remove_readers_of(&self, source: SourceId, backup: BackupNumber) {
        // Not there, or not empty: it is in nobody's way.
        let _ = disk::remove_empty_folder(&self.readers_of(source, backup));
    }

    pub(crate) fn readers_of(&self, source: SourceId, backup: BackupNumber) -> PathBuf {
        let readers = ObjectName::readers(source);
        let folder = self.folder.root().join(readers);
        folder.join(backup.to_string())
    }
}
