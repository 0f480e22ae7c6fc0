//! A source has one writer at a time: the holder of its lease.
//!
//! The lease is a folder of the holder's own in `writer`. It is taken and released by renaming, and renaming a folder
//! to `writer` fails while another holder's folder is in it. A process that takes the lease of a silent holder renames
//! that holder's folder away, which fences it (`fenced.rs`): none of its later steps takes effect, however late it
//! wakes.
//!
//! Clocks are not trusted: a holder on this machine is looked up among its processes, and the heartbeat of a holder on
//! another machine is watched.

use std::io;

use onefold_format::backup::{LeaseName, ObjectName, SourceId, Writers};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::fenced::Fenced;
use crate::folder::random_number;
use crate::holders::Holders;
use crate::layout::RETIRED;
use crate::lease::{
    HEARTBEAT, HeldLease, STAGING, folder_name, give_back, holder_of, is_holder, lease_folder,
    not_taken, put_aside, remove_lease, this_lease,
};
use crate::objects::Objects;
use crate::source::Catalogue;
use crate::waiting::Waiting;

/// The prefix of foreign files that were moved out of a folder of leases.
const FOREIGN: &str = ".foreign-";

/// How often taking a lease is tried: a try fails if another process comes first, or a foreign file is in the way.
const TRIES: u32 = 100;

/// The leases for changing the sources of a repository.
pub(crate) struct Leases<'a> {
    objects: &'a Objects,
    waiting: &'a Waiting,
}

impl<'a> Leases<'a> {
    pub(crate) fn new(objects: &'a Objects, waiting: &'a Waiting) -> Self {
        Self { objects, waiting }
    }

    /// Waits until it is known for each source whether its lease is free, watching all of them at the same time. Ends
    /// the leases of holders without a heartbeat.
    pub(crate) fn wait_for(&self, sources: &[SourceId]) -> Result<Vec<Result<()>>> {
        let living = self.outlive(sources)?.into_iter();
        let both = sources.iter().zip(living);
        Ok(both
            .map(|(source, living)| {
                living.map_or(Ok(()), |who| Err(self.is_in_use(*source, &who)?))
            })
            .collect())
    }

    /// Takes the lease of a source, to do what `doing` says.
    pub(crate) fn take(&self, source: SourceId, doing: &str) -> Result<Fenced<'a>> {
        let token = random_number().map_err(|e| not_taken(&e))?;
        let staging = lease_folder(source, STAGING, token);
        let taken = self.prepare(source, token, doing, &staging);
        if let Err(error) = taken.and_then(|()| self.take_prepared(source, token, &staging)) {
            let _ = remove_lease(self.objects.root(), &staging);
            return Err(error);
        }
        let retired = lease_folder(source, RETIRED, token);
        let leases = ObjectName::writer(source);
        let lease = HeldLease::new(self.objects.root(), leases, token, retired);
        Ok(Fenced::new(self.objects, source, lease))
    }

    /// Writes the files of a lease into a staging folder.
    fn prepare(&self, source: SourceId, token: u64, doing: &str, staging: &str) -> Result<()> {
        let lease = this_lease(doing)?;
        let content = self
            .objects
            .sealed(ObjectName::Lease(source, token), lease.encode())?;
        let root = self.objects.root();
        let own = joined(staging, &folder_name(token));
        let write = |name: &str, bytes: &[u8]| {
            let path = joined(&own, name);
            root.append(&mut root.create_new(&path)?, &path, bytes)
        };
        root.create_folder(staging)
            .and_then(|()| root.create_folder(&own))
            .and_then(|()| write("lease", &content))
            .and_then(|_| write(HEARTBEAT, &token.to_le_bytes()))
            .map(drop)
            .map_err(|e| not_taken(&e))
    }

    fn take_prepared(&self, source: SourceId, token: u64, staging: &str) -> Result<()> {
        let (root, leases) = (self.objects.root(), ObjectName::writer(source));
        for _ in 0..TRIES {
            let taken = self.rename(source, token, staging);
            match taken.map_err(|e| (Errno::from_io_error(&e), e)) {
                Ok(()) => return Ok(()),
                Err((Some(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR), _)) => {
                    if let Some(who) = self.outlive(&[source])?.remove(0) {
                        return Err(self.is_in_use(source, &who)?);
                    }
                    self.move_foreign(source)?;
                    // Some file systems cannot replace even an empty folder. If another process has taken the lease
                    // since, the folder is not empty and stays.
                    let _ = root.remove_empty_folder(&leases);
                }
                Err((_, error)) => return Err(not_taken(&error)),
            }
        }
        let message = format!(
            "the lease of the source cannot be taken: something that is not of onefold comes back into {leases}, or other \
             processes are always sooner"
        );
        Err(RepositoryError::new(RepositoryErrorKind::InUse, message))
    }

    /// Renames a staging folder to the folder of leases. With one writer, the file system may merge folders instead
    /// of failing. So the target must not exist, and a process that finds another holder afterwards releases its
    /// lease: of two concurrent processes, neither gets it.
    fn rename(&self, source: SourceId, token: u64, staging: &str) -> io::Result<()> {
        let (root, leases) = (self.objects.root(), ObjectName::writer(source));
        if self.objects.identity().writers == Writers::Many {
            return root.rename(staging, &leases);
        }
        if root.kind(&leases)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        root.rename(staging, &leases)?;
        let entries = root.list(&leases)?;
        if entries.iter().filter(|entry| is_holder(entry)).count() > 1 {
            give_back(root, &leases, token, &lease_folder(source, RETIRED, token));
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(())
    }

    /// Moves foreign files out of the folder of leases, because a folder with files cannot be replaced. Leaves
    /// holders' folders alone. If the path is not a folder, moves it away as a whole.
    fn move_foreign(&self, source: SourceId) -> Result<()> {
        let (root, leases) = (self.objects.root(), ObjectName::writer(source));
        let moved = match root.kind(&leases).map_err(|e| not_taken(&e))? {
            Some(FileType::Directory) => {
                let entries = root.list(&leases).map_err(|e| not_taken(&e))?.into_iter();
                let foreign = entries.filter(|entry| !is_holder(entry));
                foreign.map(|entry| joined(&leases, &entry.name)).collect()
            }
            Some(_) => vec![leases],
            None => Vec::new(),
        };
        for path in moved {
            let aside = lease_folder(source, FOREIGN, random_number().map_err(|e| not_taken(&e))?);
            match root.rename(&path, &aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(not_taken(&error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// For each source, the living holder of its lease, if any. Ends the leases of dead holders.
    fn outlive(&self, sources: &[SourceId]) -> Result<Vec<Option<String>>> {
        let mut living = vec![None; sources.len()];
        let held = sources.iter().enumerate();
        let held = held.filter_map(|(at, source)| {
            Some((at, *source, holder_of(self.objects.root(), *source)?))
        });
        let held: Vec<_> = held.collect();
        let names = held
            .iter()
            .map(|(_, source, token)| ObjectName::Lease(*source, *token));
        let holders =
            Holders::new(self.objects, self.waiting).living(&names.collect::<Vec<_>>())?;
        for ((at, source, token), who) in held.into_iter().zip(holders) {
            if who.is_none() {
                let retired = lease_folder(source, RETIRED, token);
                put_aside(
                    self.objects.root(),
                    &ObjectName::writer(source),
                    token,
                    &retired,
                );
            }
            living[at] = who;
        }
        Ok(living)
    }

    /// The error for a source whose lease is held.
    fn is_in_use(&self, source: SourceId, who: &str) -> Result<RepositoryError> {
        let known = Catalogue::of(self.objects).known(source)?;
        let what = known.map_or_else(|| "the source".to_owned(), |known| known.to_string());
        let message = format!("{what} is in use by {who}; try again when it has ended");
        Ok(RepositoryError::new(RepositoryErrorKind::InUse, message))
    }

    /// All leases that are held, or were when their holder died.
    pub(crate) fn held(&self) -> Result<Vec<LeaseName>> {
        let held = Catalogue::of(self.objects)
            .ids()?
            .into_iter()
            .filter_map(|source| {
                let holder = holder_of(self.objects.root(), source)?;
                Some(LeaseName { source, holder })
            });
        Ok(held.collect())
    }

    /// Whether all of these leases have ended. Ends the leases of holders without a heartbeat.
    pub(crate) fn have_ended(&self, leases: &[LeaseName]) -> Result<bool> {
        let is_held =
            |lease: &&LeaseName| holder_of(self.objects.root(), lease.source) == Some(lease.holder);
        let held: Vec<_> = leases.iter().filter(is_held).collect();
        let sources: Vec<_> = held.iter().map(|lease| lease.source).collect();
        let living = self.outlive(&sources)?;
        // Another process may have taken the lease since.
        let mut both = held.iter().zip(living);
        Ok(!both.any(|(lease, who)| who.is_some() && is_held(lease)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::repository::Repository;
    use onefold_format::backup::Source;

    /// Some file systems merge folders on a rename: the result looks as if two leases had been taken at once.
    #[test]
    fn of_two_leases_that_were_put_together_none_is_had() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let (repository, _) = Repository::init_for(Writers::One, &path, &Access::Open, 1).unwrap();
        let source = Source {
            name: "web".to_owned(),
            domain: String::new(),
            block_size: 4096,
            origin: None,
        };
        let source = repository.add_source(source).unwrap().id;
        let root = repository.objects().root();
        let staging = lease_folder(source, STAGING, 1);
        root.create_folder(&staging).unwrap();
        for token in [1, 2] {
            root.create_folder(&joined(&staging, &folder_name(token)))
                .unwrap();
        }
        let both = repository.leases().rename(source, 1, &staging).unwrap_err();
        assert_eq!(both.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(holder_of(root, source), Some(2));
        let entries = root.list(&format!("sources/{source}")).unwrap();
        assert!(!entries.iter().any(|entry| entry.name.starts_with('.')));
        // A free lease can be taken and released.
        root.remove_empty_folder(&joined(&ObjectName::writer(source), &folder_name(2)))
            .unwrap();
        for _ in 0..2 {
            repository.writer(source, "test").unwrap();
        }
    }
}
