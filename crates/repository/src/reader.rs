//! Whoever reads a backup says so, so that it is not forgotten meanwhile.
//!
//! Its lease is a folder like that of a writer, but any number of readers may have one. A repository that cannot
//! be written is read without.

use std::path::PathBuf;

use onefold_format::backup::{BackupNumber, ObjectName, SourceId};

use crate::disk;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::repository::Repository;
use crate::writer::{GONE, HeldLease, PATIENCE, SIGN, folder_name, give_back, this_lease};

/// A backup is read. Dropped, it is not any more.
pub struct Reading {
    lease: Option<HeldLease>,
    /// The folder of all who read the backup.
    readers: PathBuf,
}

impl Drop for Reading {
    fn drop(&mut self) {
        drop(self.lease.take());
        // It stays if others read the backup, too.
        let _ = disk::remove_empty_folder(&self.readers);
    }
}

impl Repository {
    /// Says that a backup is read, to do what `doing` says. To be said before its manifest is read.
    ///
    /// # Errors
    ///
    /// Any failure of writing, unless the repository cannot be written at all.
    pub fn reading(&self, source: SourceId, backup: BackupNumber, doing: &str) -> Result<Reading> {
        let failed =
            |e: &std::io::Error| RepositoryError::io("cannot say that a backup is read", e);
        let token = random_number().map_err(|e| failed(&e))?;
        let name = ObjectName::Reader(source, backup, token);
        let content = self.sealed(name, this_lease(doing)?.encode())?;
        let mut reading = Reading {
            lease: None,
            readers: self.readers_of(source, backup),
        };
        match self.put(name, &content) {
            Err(error) if error.kind() == RepositoryErrorKind::ReadOnly => return Ok(reading),
            put => put?,
        }
        let readers = reading.readers.clone();
        let sign = readers.join(folder_name(token)).join(SIGN);
        let lease = HeldLease::new(readers, token, self.beside(source, GONE, token));
        reading.lease = Some(lease);
        disk::create_new(&sign)
            .and_then(|mut file| disk::append(&mut file, &sign, &token.to_le_bytes()))
            .map_err(|e| failed(&e))?;
        Ok(reading)
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
        // It is empty, unless a reader has just come.
        let _ = disk::remove_empty_folder(&readers);
        Ok(())
    }

    fn readers_of(&self, source: SourceId, backup: BackupNumber) -> PathBuf {
        let readers = ObjectName::readers(source);
        let folder = self.folder.root().join(readers);
        folder.join(backup.to_string())
    }
}
