//! A reader registers itself so that the backup is not forgotten while it is in use.
//!
//! A reader's lease is a folder like a writer's lease, but any number of readers may have one.

use onefold_format::backup::{BackupNumber, ObjectName, SourceId};

use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::random_number;
use crate::holders::Holders;
use crate::layout::{RETIRED, decimal, hexadecimal};
use crate::lease::{
    HEARTBEAT, HeldLease, files_of_lease, folder_name, give_back, lease_folder, this_lease,
};
use crate::objects::Objects;
use crate::waiting::Waiting;

/// The registration of a reader, which ends when this is dropped.
pub struct Reading {
    _lease: Option<HeldLease>,
}

/// The readers of the backups of a repository.
pub(crate) struct Readers<'a> {
    objects: &'a Objects,
    waiting: &'a Waiting,
}

impl<'a> Readers<'a> {
    pub(crate) fn new(objects: &'a Objects, waiting: &'a Waiting) -> Self {
        Self { objects, waiting }
    }

    /// Registers this process as a reader of a backup. A repository that is full or read-only is read without
    /// registration.
    pub(crate) fn register(
        &self,
        source: SourceId,
        backup: BackupNumber,
        doing: &str,
    ) -> Result<Reading> {
        let lease = match self.take(source, backup, doing) {
            Ok(lease) => Some(lease),
            Err(error) => match error.kind() {
                RepositoryErrorKind::ReadOnly | RepositoryErrorKind::NoSpace => None,
                _ => return Err(error),
            },
        };
        Ok(Reading { _lease: lease })
    }

    fn take(&self, source: SourceId, backup: BackupNumber, doing: &str) -> Result<HeldLease> {
        let failed =
            |e: &std::io::Error| RepositoryError::io("cannot say that a backup is read", e);
        let token = random_number().map_err(|e| failed(&e))?;
        let name = ObjectName::Reader(source, backup, token);
        let readers = readers_of(source, backup);
        let sign = format!("{readers}/{}/{HEARTBEAT}", folder_name(token));
        let content = self.objects.sealed(name, this_lease(doing)?.encode())?;
        self.objects.put(name, &content)?;
        let root = self.objects.root();
        let lease = HeldLease::new(root, readers, token, lease_folder(source, RETIRED, token));
        root.create_new(&sign)
            .and_then(|mut file| root.append(&mut file, &sign, &token.to_le_bytes()))
            .map_err(|e| failed(&e))?;
        Ok(lease)
    }

    /// Fails for each backup that is being read, and names the reader. Waits for all silent readers at the same time.
    pub(crate) fn check_none(
        &self,
        backups: &[(SourceId, BackupNumber)],
    ) -> Result<Vec<Result<()>>> {
        let mut readers = Vec::new();
        let listed = backups.iter().enumerate().map(|(at, (source, backup))| {
            let tokens = self.of(*source, *backup)?.into_iter();
            let name = |token| ObjectName::Reader(*source, *backup, token);
            readers.extend(tokens.map(|token| (at, token, name(token))));
            Ok(())
        });
        let mut checked: Vec<Result<()>> = listed.collect();
        let names: Vec<_> = readers.iter().map(|(_, _, name)| *name).collect();
        let living = Holders::new(self.objects, self.waiting).living(&names)?;
        for ((at, token, _), who) in readers.into_iter().zip(living) {
            let (source, backup) = backups[at];
            match who {
                Some(who) => {
                    let message = format!("backup {backup} is being read by {who}");
                    checked[at] = Err(RepositoryError::new(RepositoryErrorKind::InUse, message));
                }
                None => {
                    let retired = lease_folder(source, RETIRED, token);
                    let readers = readers_of(source, backup);
                    give_back(self.objects.root(), &readers, token, &retired);
                }
            }
        }
        Ok(checked)
    }

    /// The reader leases of a backup, living or dead. A folder with only foreign files is not a lease.
    pub(crate) fn of(&self, source: SourceId, backup: BackupNumber) -> Result<Vec<u64>> {
        let readers = readers_of(source, backup);
        let names = self.objects.folders(&readers)?;
        let mut tokens: Vec<_> = names.iter().filter_map(|name| hexadecimal(name)).collect();
        tokens.retain(|token| {
            let name = ObjectName::Reader(source, backup, *token);
            let folder = joined(&readers, &folder_name(*token));
            self.objects.check_removable(name).is_ok()
                || files_of_lease(self.objects.root(), &[folder]).is_ok()
        });
        Ok(tokens)
    }

    /// All reader leases of a source, living or dead.
    pub(crate) fn all(&self, source: SourceId) -> Result<Vec<(BackupNumber, u64)>> {
        let mut readers = Vec::new();
        let names = self.objects.folders(&ObjectName::readers(source))?;
        for backup in names.iter().filter_map(|name| decimal(name)) {
            let backup = BackupNumber(backup);
            let holders = self.of(source, backup)?.into_iter();
            readers.extend(holders.map(|holder| (backup, holder)));
        }
        Ok(readers)
    }

    /// Removes the folder of the readers of a backup that was forgotten. Until then it stays, because a reader may be
    /// about to register.
    pub(crate) fn remove_folder(&self, source: SourceId, backup: BackupNumber) {
        // It may be missing or not empty, which does no harm.
        let folder = readers_of(source, backup);
        let _ = self.objects.root().remove_empty_folder(&folder);
    }
}

pub(crate) fn readers_of(source: SourceId, backup: BackupNumber) -> String {
    joined(&ObjectName::readers(source), &backup.to_string())
}
