//! Whoever reads a backup says so, so that it is not forgotten meanwhile.
//!
//! Its lease is a folder like that of a writer, but any number of readers may have one.

use onefold_format::backup::{BackupNumber, ObjectName, SourceId};

use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::layout::{GONE, hexadecimal};
use crate::repository::Repository;
use crate::writer::{HeldLease, SIGN, files_of_lease, folder_name, give_back, this_lease};

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
        let readers = readers_of(source, backup);
        let sign = format!("{readers}/{}/{SIGN}", folder_name(token));
        self.put(name, &self.sealed(name, this_lease(doing)?.encode())?)?;
        let root = self.folder.root();
        let lease = HeldLease::new(root, readers, token, self.beside(source, GONE, token));
        root.create_new(&sign)
            .and_then(|mut file| root.append(&mut file, &sign, &token.to_le_bytes()))
            .map_err(|e| failed(&e))?;
        Ok(lease)
    }

    /// Fails for each backup that somebody reads, and says who. Readers who do not answer are waited for at the same time.
    ///
    /// # Errors
    ///
    /// `Interrupted`. For each backup: `InUse`; any failure of listing.
    pub(crate) fn check_not_read(
        &self,
        backups: &[(SourceId, BackupNumber)],
    ) -> Result<Vec<Result<()>>> {
        let mut readers = Vec::new();
        let listed = backups.iter().enumerate().map(|(at, (source, backup))| {
            let tokens = self.readers(*source, *backup)?.into_iter();
            let name = |token| ObjectName::Reader(*source, *backup, token);
            readers.extend(tokens.map(|token| (at, token, name(token))));
            Ok(())
        });
        let mut checked: Vec<Result<()>> = listed.collect();
        let names: Vec<_> = readers.iter().map(|(_, _, name)| *name).collect();
        let living = self.living_holders(&names)?;
        for ((at, token, _), who) in readers.into_iter().zip(living) {
            let (source, backup) = backups[at];
            match who {
                Some(who) => {
                    let message = format!("backup {backup} is being read by {who}");
                    checked[at] = Err(RepositoryError::new(RepositoryErrorKind::InUse, message));
                }
                None => {
                    let gone = self.beside(source, GONE, token);
                    let readers = readers_of(source, backup);
                    give_back(self.folder.root(), &readers, token, &gone);
                }
            }
        }
        Ok(checked)
    }

    /// Whoever has, or had, the lease of a reader of a backup. A folder that has no lease, but something that is not of
    /// ours, is none.
    pub(crate) fn readers(&self, source: SourceId, backup: BackupNumber) -> Result<Vec<u64>> {
        let readers = readers_of(source, backup);
        let names = self.folder.folders(&readers);
        let names =
            names.map_err(|e| RepositoryError::io(format_args!("cannot list {readers}"), &e))?;
        let mut tokens: Vec<_> = names.iter().filter_map(|name| hexadecimal(name)).collect();
        tokens.retain(|token| {
            let name = ObjectName::Reader(source, backup, *token);
            let folder = joined(&readers, &folder_name(*token));
            self.check_removable(name).is_ok()
                || files_of_lease(self.folder.root(), &[folder]).is_ok()
        });
        Ok(tokens)
    }

    /// Those who read a backup were in this folder. It goes with the backup: while there is one, a reader may be
    /// about to come.
    pub(crate) fn remove_readers_of(&self, source: SourceId, backup: BackupNumber) {
        // Not there, or not empty: it is in nobody's way.
        let folder = readers_of(source, backup);
        let _ = self.folder.root().remove_empty_folder(&folder);
    }
}

pub(crate) fn readers_of(source: SourceId, backup: BackupNumber) -> String {
    joined(&ObjectName::readers(source), &backup.to_string())
}
