//! A source has one writer at a time: the holder of its lease.
//!
//! The lease is a folder of the holder's own in `writer`. It is taken and released by renaming, and renaming a folder
//! to `writer` fails while another holder's folder is in it. The holder stages all objects that it writes there, and
//! renames all objects that it removes into it first. A process that takes the lease of a silent holder renames that
//! holder's folder away, which fences it: none of its later steps takes effect, however late it wakes.
//!
//! Clocks are not trusted: a holder on this machine is looked up among its processes, and the heartbeat of a holder on
//! another machine is watched.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onefold_format::backup::{
    BackupNumber, Closed, Condemned, Label, LeaseName, Manifest, ObjectName, SourceId, Writers,
};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::disk::joined;
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::folder::{NewObject, random_number};
use crate::layout::RETIRED;
use crate::lease::{
    HEARTBEAT, HeldLease, STAGING, folder_name, give_back, is_holder, not_taken, put_aside,
    remove_lease, this_lease, token_in,
};
use crate::repository::Repository;
use crate::seal::ChunkKey;
use crate::sources::KnownSource;

/// The prefix of foreign files that were moved out of a folder of leases.
const FOREIGN: &str = ".foreign-";

/// How often taking a lease is tried: a try fails if another process comes first, or a foreign file is in the way.
const TRIES: u32 = 100;

/// Changes a source while it holds the lease. Dropping it releases the lease.
pub struct Writer<'a> {
    repository: &'a Repository,
    source: KnownSource,
    /// The holder's folder, relative to the repository's folder.
    folder: String,
    /// The backup that is being made: if it is not completed, its number must be closed.
    under_way: Mutex<Option<BackupNumber>>,
    lease: HeldLease,
}

impl Repository {
    /// Takes the leases of sources, to do what `doing` says. Waits for all silent holders at the same time.
    ///
    /// # Errors
    ///
    /// `Interrupted`. For each source: as [`Repository::writer`].
    pub fn writers(&self, sources: &[SourceId], doing: &str) -> Result<Vec<Result<Writer<'_>>>> {
        let waited = self.wait_for_leases(sources)?.into_iter();
        let both = sources.iter().zip(waited);
        Ok(both
            .map(|(source, waited)| waited.and_then(|()| self.writer(*source, doing)))
            .collect())
    }

    /// Waits until it is known for each source whether its lease is free, watching all of them at the same time. Ends
    /// the leases of holders without a heartbeat.
    ///
    /// # Errors
    ///
    /// `Interrupted`. For each source: `InUse` if another process has its lease; any failure of reading.
    pub fn wait_for_leases(&self, sources: &[SourceId]) -> Result<Vec<Result<()>>> {
        let living = self.outlive(sources)?.into_iter();
        let both = sources.iter().zip(living);
        Ok(both
            .map(|(source, living)| {
                living.map_or(Ok(()), |who| Err(self.is_in_use(*source, &who)?))
            })
            .collect())
    }

    /// Takes the lease of a source, to do what `doing` says.
    ///
    /// # Errors
    ///
    /// `InUse` if another process has it; `Interrupted`; any failure of reading or writing.
    pub fn writer(&self, source: SourceId, doing: &str) -> Result<Writer<'_>> {
        let writer = self.lease_of(source, doing)?;
        if self.is_half_removed(writer.source())? {
            let message = format!(
                "{} is being removed; 'onefold backup remove' completes that",
                writer.source()
            );
            return Err(RepositoryError::new(RepositoryErrorKind::NotFound, message));
        }
        writer.complete_birth()?;
        Ok(writer)
    }

    /// Takes the lease of a source, even if the source is half removed.
    pub(crate) fn lease_of(&self, source: SourceId, doing: &str) -> Result<Writer<'_>> {
        let token = random_number().map_err(|e| not_taken(&e))?;
        let staging = self.lease_folder(source, STAGING, token);
        let taken = self.prepare_lease(source, token, doing, &staging);
        if let Err(error) = taken.and_then(|()| self.take_lease(source, token, &staging)) {
            let _ = remove_lease(self.folder.root(), &staging);
            return Err(error);
        }
        let retired = self.lease_folder(source, RETIRED, token);
        let lease = HeldLease::new(
            self.folder.root(),
            ObjectName::writer(source),
            token,
            retired,
        );
        // Read under the lease, so that no other process can change it any more.
        let known = self.known(source)?.ok_or_else(|| {
            RepositoryError::new(RepositoryErrorKind::NotFound, "the source is gone")
        })?;
        let writer = Writer {
            repository: self,
            source: known,
            folder: joined(&ObjectName::writer(source), &folder_name(token)),
            under_way: Mutex::new(None),
            lease,
        };
        writer.sweep()?;
        Ok(writer)
    }

    /// Writes the files of a lease into a staging folder.
    fn prepare_lease(
        &self,
        source: SourceId,
        token: u64,
        doing: &str,
        staging: &str,
    ) -> Result<()> {
        let lease = this_lease(doing)?;
        let content = self.sealed(ObjectName::Lease(source, token), lease.encode())?;
        let root = self.folder.root();
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

    fn take_lease(&self, source: SourceId, token: u64, staging: &str) -> Result<()> {
        let (root, leases) = (self.folder.root(), ObjectName::writer(source));
        for _ in 0..TRIES {
            let taken = self.move_lease(source, token, staging);
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
    fn move_lease(&self, source: SourceId, token: u64, staging: &str) -> io::Result<()> {
        let (root, leases) = (self.folder.root(), ObjectName::writer(source));
        if self.object.writers == Writers::Many {
            return root.rename(staging, &leases);
        }
        if root.kind(&leases)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        root.rename(staging, &leases)?;
        let entries = root.list(&leases)?;
        if entries.iter().filter(|entry| is_holder(entry)).count() > 1 {
            give_back(
                root,
                &leases,
                token,
                &self.lease_folder(source, RETIRED, token),
            );
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(())
    }

    /// Moves foreign files out of the folder of leases, because a folder with files cannot be replaced. Leaves
    /// holders' folders alone. If the path is not a folder, moves it away as a whole.
    fn move_foreign(&self, source: SourceId) -> Result<()> {
        let (root, leases) = (self.folder.root(), ObjectName::writer(source));
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
            let aside =
                self.lease_folder(source, FOREIGN, random_number().map_err(|e| not_taken(&e))?);
            match root.rename(&path, &aside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(not_taken(&error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The holder of the lease of a source, if it is held.
    pub(crate) fn holder(&self, source: SourceId) -> Option<u64> {
        token_in(self.folder.root(), &ObjectName::writer(source))
    }

    /// The path of a folder next to the folder of leases.
    pub(crate) fn lease_folder(&self, source: SourceId, kind: &str, token: u64) -> String {
        format!("sources/{source}/{kind}{token:016x}")
    }

    /// For each source, the living holder of its lease, if any. Ends the leases of dead holders.
    fn outlive(&self, sources: &[SourceId]) -> Result<Vec<Option<String>>> {
        let mut living = vec![None; sources.len()];
        let held = sources.iter().enumerate();
        let held = held.filter_map(|(at, source)| Some((at, *source, self.holder(*source)?)));
        let held: Vec<_> = held.collect();
        let names = held
            .iter()
            .map(|(_, source, token)| ObjectName::Lease(*source, *token));
        let holders = self.living_holders(&names.collect::<Vec<_>>())?;
        for ((at, source, token), who) in held.into_iter().zip(holders) {
            if who.is_none() {
                let retired = self.lease_folder(source, RETIRED, token);
                put_aside(
                    self.folder.root(),
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
        let known = self.known(source)?;
        let what = known.map_or_else(|| "the source".to_owned(), |known| known.to_string());
        let message = format!("{what} is in use by {who}; try again when it has ended");
        Ok(RepositoryError::new(RepositoryErrorKind::InUse, message))
    }

    /// All leases that are held, or were when their holder died.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn held_leases(&self) -> Result<Vec<LeaseName>> {
        let held = self.source_ids()?.into_iter().filter_map(|source| {
            let holder = self.holder(source)?;
            Some(LeaseName { source, holder })
        });
        Ok(held.collect())
    }

    /// Whether all of these leases have ended. Ends the leases of holders without a heartbeat.
    ///
    /// # Errors
    ///
    /// `Interrupted`; any failure of reading.
    pub fn have_ended(&self, leases: &[LeaseName]) -> Result<bool> {
        let is_held = |lease: &&LeaseName| self.holder(lease.source) == Some(lease.holder);
        let held: Vec<_> = leases.iter().filter(is_held).collect();
        let sources: Vec<_> = held.iter().map(|lease| lease.source).collect();
        let living = self.outlive(&sources)?;
        // Another process may have taken the lease since.
        let mut both = held.iter().zip(living);
        Ok(!both.any(|(lease, who)| who.is_some() && is_held(lease)))
    }

    /// The popular blocks that are about to be removed, if any.
    ///
    /// # Errors
    ///
    /// `Damaged`; any failure of reading.
    pub fn condemned(&self, popular: SourceId) -> Result<Option<Condemned>> {
        let name = ObjectName::Condemned(popular);
        match self.read_sealed(name) {
            Ok(content) => {
                let condemned = Condemned::decode(&content);
                condemned
                    .map(Some)
                    .map_err(|e| RepositoryError::format(&name.path(), e))
            }
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Closes the number of a backup that was not completed. If that fails, the next holder closes it.
impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.close_under_way().is_err() {
            self.lease.keep_remains();
        }
    }
}

/// Poisoning is ignored, because no code panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Writer<'_> {
    /// The repository.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        self.repository
    }

    /// The source, which no other process can change while this exists.
    #[must_use]
    pub fn source(&self) -> &KnownSource {
        &self.source
    }

    /// Notes the new name and origin of the source.
    pub(crate) fn labelled(&mut self, label: Label) {
        self.source.source = self.source.source.clone().labelled(label);
    }

    /// Starts an object with chunks, staged in the holder's folder.
    pub(crate) fn create(&self, name: ObjectName) -> Result<(NewObject, ChunkKey)> {
        let path = name.path();
        let object = self.repository.folder.create_in(&path, &self.folder);
        let object = object.map_err(|e| self.failed("write", &path, &e))?;
        self.repository.begin(name, object)
    }

    /// Makes a backup exist (B1). All objects that its manifest needs must be durable.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn publish(&self, backup: BackupNumber, manifest: &Manifest) -> Result<()> {
        let name = ObjectName::Manifest(self.source.id, backup);
        self.put(name, manifest.encode(), NewObject::commit)?;
        *lock(&self.under_way) = None;
        Ok(())
    }

    /// Records durably which backup is being made, before any other object has its number.
    pub(crate) fn set_under_way(&self, backup: BackupNumber, closed: &Closed) -> Result<()> {
        let name = ObjectName::UnderWay(self.source.id, self.lease.token());
        self.put(name, closed.encode(), NewObject::commit_over)?;
        let writer = ObjectName::writer(self.source.id);
        let source = format!("sources/{}", self.source.id);
        let mut folders = [&writer, &source].into_iter();
        let synced = folders.try_for_each(|folder| self.repository.folder.sync(folder));
        synced.map_err(|e| self.failed("write", &name.path(), &e))?;
        *lock(&self.under_way) = Some(backup);
        Ok(())
    }

    /// Closes the number of the last backup if it was not completed.
    pub(crate) fn close_under_way(&self) -> Result<()> {
        let mut under_way = lock(&self.under_way);
        if let Some(backup) = *under_way {
            self.close(backup)?;
            *under_way = None;
        }
        Ok(())
    }

    /// Completes an empty source whose creator died.
    fn complete_birth(&self) -> Result<()> {
        let history = self.repository.history(self.source.id)?;
        match (history.next.0, history.next_pack) {
            (1, 0) => self.mend_copies().map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Closes the numbers of backups that dead holders left open, and removes their folders.
    fn sweep(&self) -> Result<()> {
        for (folder, holder) in self.repository.remains(self.source.id)? {
            // A folder that stays takes some space, and the next holder finds it.
            if self.close_remains(&folder, holder).is_ok() {
                let _ = remove_lease(self.repository.folder.root(), &folder);
            }
        }
        Ok(())
    }

    /// Writes the list of popular blocks that are about to be removed.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn condemn(&self, condemned: &Condemned) -> Result<()> {
        let name = ObjectName::Condemned(self.source.id);
        self.put(name, condemned.encode(), NewObject::commit_over)
    }

    pub(crate) fn put(
        &self,
        name: ObjectName,
        content: Vec<u8>,
        commit: impl FnOnce(NewObject) -> io::Result<()>,
    ) -> Result<()> {
        use std::io::Write;
        let path = name.path();
        let content = self.repository.sealed(name, content)?;
        let object = self.repository.folder.create_in(&path, &self.folder);
        let written = object.and_then(|mut object| {
            object.write_all(&content)?;
            commit(object)
        });
        written.map_err(|e| self.failed("write", &path, &e))
    }

    /// Removes an object of the source, if it exists. With a pack, also removes the copy of its table, after the pack.
    ///
    /// # Errors
    ///
    /// As [`Repository::check_removable`]; `InUse` if the lease is lost; any failure of writing.
    pub fn remove(&self, name: ObjectName) -> Result<()> {
        let path = name.path();
        match self.repository.check_removable(name) {
            Err(error) if error.kind() == RepositoryErrorKind::NotFound && self.is_held() => {
                return Ok(());
            }
            // If the lease is lost, report that instead.
            Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
            removable => removable?,
        }
        match self.repository.folder.remove_through(&path, &self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_held() => {}
            removed => removed.map_err(|e| self.failed("remove", &path, &e))?,
        }
        match name {
            ObjectName::Pack {
                number, generation, ..
            } => self.remove_table(number, generation),
            _ => Ok(()),
        }
    }

    /// Removes the copy of the table of a pack that is gone. A damaged copy stays, and `verify` reports it.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn remove_table(&self, number: u64, generation: u32) -> Result<()> {
        match self.remove(ObjectName::Table {
            source: self.source().id,
            number,
            generation,
        }) {
            Err(error) if error.is_of_object() => Ok(()),
            removed => removed,
        }
    }

    fn is_held(&self) -> bool {
        let kind = self.repository.folder.root().kind(&self.folder);
        kind.is_ok_and(|kind| kind == Some(FileType::Directory))
    }

    fn failed(&self, verb: &str, path: &str, error: &io::Error) -> RepositoryError {
        if error.kind() == io::ErrorKind::NotFound && !self.is_held() {
            let message = "another process has taken over the source, because this one gave no sign of life \
                           for two minutes; the work that it began does not count";
            return RepositoryError::new(RepositoryErrorKind::InUse, message);
        }
        RepositoryError::io(format_args!("cannot {verb} object {path}"), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use onefold_format::backup::{Lease, ProcessId};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use crate::waiting::Waiting;

    struct Scene {
        folder: tempfile::TempDir,
        repository: Repository,
        source: SourceId,
    }

    fn scene() -> Scene {
        use onefold_format::backup::Source;

        let folder = tempfile::tempdir().unwrap();
        let (mut repository, _) =
            Repository::init(&folder.path().join("r"), &Access::Open, 1).unwrap();
        repository.wait_with(Waiting::default().with_lease_timeout(Duration::from_millis(300)));
        let source = Source {
            name: "web".to_owned(),
            domain: String::new(),
            block_size: 4096,
            origin: None,
        };
        let source = repository.add_source(source).unwrap().id;
        Scene {
            folder,
            repository,
            source,
        }
    }

    impl Scene {
        /// Changes the holder of the lease.
        fn give_lease(&self, change: impl FnOnce(&mut ProcessId)) {
            let token = self.repository.holder(self.source).unwrap();
            let name = ObjectName::Lease(self.source, token);
            let content = self.repository.read_sealed(name).unwrap();
            let mut lease = Lease::decode(&content).unwrap();
            change(&mut lease.holder);
            let bytes = self.repository.sealed(name, lease.encode()).unwrap();
            std::fs::write(self.folder.path().join("r").join(name.path()), bytes).unwrap();
        }

        fn writer_again(&self) -> Result<Writer<'_>> {
            self.repository.writer(self.source, "test")
        }

        fn folders(&self) -> Vec<String> {
            let folder = self
                .folder
                .path()
                .join("r/sources")
                .join(self.source.to_string());
            let entries = std::fs::read_dir(folder).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        }
    }

    fn manifest() -> Manifest {
        Manifest {
            size_bytes: 0,
            block_size: 4096,
            changed_by: onefold_format::backup::ChangedBy::Nobody,
            unix_seconds: 1,
            parent: None,
            base: None,
            counts: onefold_format::backup::Counts::default(),
            recipe: onefold_format::backup::Witness([0; 16]),
            recipe_pages: Vec::new(),
            own: Vec::new(),
            popular: Vec::new(),
            own_packs: Vec::new(),
            popular_packs: Vec::new(),
            host: String::new(),
            snapshot: String::new(),
            tags: Vec::new(),
        }
    }

    #[test]
    fn a_lease_is_given_back() {
        let scene = scene();
        for _ in 0..3 {
            let writer = scene.repository.writer(scene.source, "test").unwrap();
            assert_eq!(writer.source().source.name, "web");
            let refused = scene.writer_again().err().unwrap();
            assert_eq!(refused.kind(), RepositoryErrorKind::InUse);
        }
        assert_eq!(
            scene.folders(),
            [
                "backups",
                "forgotten",
                "packs",
                "recipes",
                "source",
                "writer"
            ]
        );
    }

    /// Some file systems merge folders on a rename: the result looks as if two leases had been taken at once.
    #[test]
    fn of_two_leases_that_were_put_together_none_is_had() {
        let mut scene = scene();
        scene.repository.object.writers = Writers::One;
        let (root, source) = (scene.repository.folder.root(), scene.source);
        let staging = scene.repository.lease_folder(source, STAGING, 1);
        root.create_folder(&staging).unwrap();
        for token in [1, 2] {
            root.create_folder(&joined(&staging, &folder_name(token)))
                .unwrap();
        }
        let both = scene
            .repository
            .move_lease(source, 1, &staging)
            .unwrap_err();
        assert_eq!(both.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(scene.repository.holder(source), Some(2));
        assert!(!scene.folders().iter().any(|name| name.starts_with('.')));
        // A free lease can be taken and released.
        root.remove_empty_folder(&joined(&ObjectName::writer(source), &folder_name(2)))
            .unwrap();
        for _ in 0..2 {
            scene.repository.writer(source, "test").unwrap();
        }
    }

    #[test]
    fn the_lease_of_a_process_that_has_ended_is_taken_at_once() {
        let mut scene = scene();
        let waiting = Waiting::new(|whom| panic!("{whom}"), || false);
        scene.repository.wait_with(waiting);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        // A process that has ended, and one whose number belongs to another process now.
        for process in [u64::from(child.id()), 1] {
            let first = scene.repository.writer(scene.source, "test").unwrap();
            scene.give_lease(|holder| (holder.process, holder.started) = (process, u64::MAX));
            let second = scene.repository.writer(scene.source, "test").unwrap();
            drop((first, second));
        }
    }

    #[test]
    fn a_holder_elsewhere_keeps_the_lease_as_long_as_it_gives_signs() {
        let scene = scene();
        let writer = scene.repository.writer(scene.source, "test").unwrap();
        scene.give_lease(|holder| holder.boot[0] ^= 1);
        let sign = joined(&writer.folder, HEARTBEAT);
        let root = scene.repository.folder.root().clone();
        let is_over = Arc::new(AtomicBool::new(false));
        let beat = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                for count in 0_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    root.overwrite(&sign, &count.to_le_bytes()).unwrap();
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let refused = scene.writer_again().err().unwrap();
        assert_eq!(refused.kind(), RepositoryErrorKind::InUse);
        is_over.store(true, Ordering::Relaxed);
        beat.join().unwrap();
        writer.publish(BackupNumber(1), &manifest()).unwrap();
    }

    #[test]
    fn nothing_that_a_late_holder_does_takes_effect() {
        let scene = scene();
        let late = scene.repository.writer(scene.source, "test").unwrap();
        late.publish(BackupNumber(1), &manifest()).unwrap();
        let recipe = late.new_recipe(BackupNumber(2)).unwrap();
        let pack = late.new_pack(late.source(), 0).unwrap();
        scene.give_lease(|holder| holder.boot[0] ^= 1);
        let new = scene.writer_again().unwrap();
        let before = late.source().source.clone();
        assert!(recipe.finish().is_err() && pack.finish().is_err());
        let name = ObjectName::Manifest(scene.source, BackupNumber(1));
        for done in [
            late.publish(BackupNumber(2), &manifest()),
            late.remove(name),
            late.fold(9),
            late.new_pack(late.source(), 1).map(drop),
        ] {
            let error = done.unwrap_err();
            assert_eq!(error.kind(), RepositoryErrorKind::InUse);
            assert!(error.to_string().contains("taken over"), "{error}");
        }
        let backups = scene.repository.backups(scene.source).unwrap();
        assert_eq!(backups, [BackupNumber(1)]);
        assert_eq!(scene.repository.recipes(scene.source).unwrap(), []);
        assert_eq!(scene.repository.packs(scene.source).unwrap(), []);
        assert_eq!(
            scene
                .repository
                .known(scene.source)
                .unwrap()
                .unwrap()
                .source,
            before
        );
        // Dropping the late writer ends no other lease.
        drop(late);
        new.publish(BackupNumber(2), &manifest()).unwrap();
        new.remove(name).unwrap();
        new.remove(name).unwrap();
        drop(new);
        assert_eq!(
            scene.folders(),
            [
                "backups",
                "closed",
                "forgotten",
                "packs",
                "recipes",
                "source",
                "tables",
                "writer"
            ]
        );
    }
}
