//! Changes a source while holding its lease (`leases.rs`). Other processes only forget and protect backups, note damage
//! and, in the store of popular blocks, add packs. `history/closing.rs` has what a writer notes of backups' numbers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onefold_format::backup::{
    BackupNumber, Closed, Condemned, Label, Manifest, ObjectName, PackReference, SourceId, Witness,
};

use crate::backup::{NeededPacks, NewRecipe};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::fenced::Fenced;
use crate::folder::{NewObject, fill_random};
use crate::lease::{remains, remove_lease};
use crate::marks::{Marks, begin_to_use};
use crate::pack::Pack;
use crate::packing::NewPack;
use crate::packs::Packs;
use crate::repository::Repository;
use crate::source::Catalogue;
use crate::sources::KnownSource;
use crate::table::table_of;

/// Changes a source while it holds the lease. Dropping it releases the lease.
pub struct Writer<'a> {
    repository: &'a Repository,
    source: KnownSource,
    /// The backup that is being made: if it is not completed, its number must be closed.
    under_way: Mutex<Option<BackupNumber>>,
    fenced: Fenced<'a>,
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

    /// Takes the lease of a source, to do what `doing` says.
    ///
    /// # Errors
    ///
    /// `InUse` if another process has it; `Interrupted`; any failure of reading or writing.
    pub fn writer(&self, source: SourceId, doing: &str) -> Result<Writer<'_>> {
        let writer = Writer::of(self, source, doing)?;
        if Catalogue::of(self.objects()).is_half_removed(writer.source())? {
            let message = format!(
                "{} is being removed; 'onefold backup remove' completes that",
                writer.source()
            );
            return Err(RepositoryError::new(RepositoryErrorKind::NotFound, message));
        }
        writer.complete_birth()?;
        Ok(writer)
    }
}

/// Closes the number of a backup that was not completed. If that fails, the next holder closes it.
impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.close_under_way().is_err() {
            self.fenced.keep_remains();
        }
    }
}

/// Poisoning is ignored, because no code panics while it holds the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Writer<'a> {
    /// Takes the lease of a source, even if the source is half removed.
    pub(crate) fn of(
        repository: &'a Repository,
        source: SourceId,
        doing: &str,
    ) -> Result<Writer<'a>> {
        let fenced = repository.leases().take(source, doing)?;
        fenced.sync_names()?;
        // Read under the lease, so that no other process can change it any more.
        let known = Catalogue::of(repository.objects()).known(source)?;
        let known = known.ok_or_else(|| {
            RepositoryError::new(RepositoryErrorKind::NotFound, "the source is gone")
        })?;
        let writer = Writer {
            repository,
            source: known,
            under_way: Mutex::new(None),
            fenced,
        };
        writer.sweep()?;
        Ok(writer)
    }

    /// Writes and removes objects through the holder's folder, so that nothing takes effect once the lease is lost.
    pub(crate) fn fenced(&self) -> &Fenced<'a> {
        &self.fenced
    }

    /// The repository.
    #[must_use]
    pub fn repository(&self) -> &'a Repository {
        self.repository
    }

    /// The source, as it was read under the lease.
    #[must_use]
    pub fn source(&self) -> &KnownSource {
        &self.source
    }

    /// Takes over, in memory, the name and origin that were just written.
    pub(crate) fn labelled(&mut self, label: Label) {
        self.source.source = self.source.source.clone().labelled(label);
    }

    /// Makes a backup exist (B1). Its recipe must be durable. Packs that it needs may have been left by a process that
    /// died, so this makes the names of those durable first that no backup of the source needs yet; `needed` are the
    /// others.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn publish(
        &self,
        backup: BackupNumber,
        manifest: &Manifest,
        needed: &NeededPacks,
    ) -> Result<()> {
        let own = manifest.own_packs.iter().map(|pack| pack.number);
        self.sync_packs(own.filter(|number| !needed.own.contains_key(number)))?;
        if !manifest.popular_packs.is_empty() {
            let popular = manifest.popular_packs.iter().map(|pack| pack.number);
            self.begin_to_use(popular.filter(|number| !needed.popular.contains_key(number)))?;
        }
        let name = ObjectName::Manifest(self.source.id, backup);
        self.fenced
            .put(name, manifest.encode(), NewObject::commit)?;
        *lock(&self.under_way) = None;
        Ok(())
    }

    /// Records durably which backup is being made, before any other object has its number.
    pub(crate) fn set_under_way(&self, backup: BackupNumber, closed: &Closed) -> Result<()> {
        self.fenced.put_under_way(closed)?;
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
        for (folder, holder) in remains(self.fenced.objects(), self.source.id)? {
            // A folder that stays keeps its number from looking missing, and the next holder closes it.
            if self.close_remains(&folder, holder).is_ok() {
                let _ = remove_lease(self.fenced.objects().root(), &folder);
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
        self.fenced
            .put(name, condemned.encode(), NewObject::commit_over)
    }

    /// Removes an object of the source, if it exists. With a pack, also removes the copy of its table, after the pack.
    ///
    /// # Errors
    ///
    /// As [`Repository::check_removable`]; `InUse` if the lease is lost; any failure of writing.
    pub fn remove(&self, name: ObjectName) -> Result<()> {
        self.fenced.remove(name)
    }

    /// Removes the copy of the table of a pack that is gone. A damaged copy stays, and `verify` reports it.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn remove_table(&self, number: u64, generation: u32) -> Result<()> {
        self.fenced.remove_table(number, generation)
    }

    /// Starts the recipe of a backup.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn new_recipe(&self, backup: BackupNumber) -> Result<NewRecipe> {
        NewRecipe::start(&self.fenced, backup)
    }

    /// Starts pack `number` of the source, or of popular blocks.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn new_pack(&self, of: &KnownSource, number: u64) -> Result<NewPack> {
        let mut witness = Witness([0; 16]);
        fill_random(&mut witness.0).map_err(|e| RepositoryError::io("no random numbers", &e))?;
        NewPack::start(&self.fenced, of, PackReference { number, witness }, 0)
    }

    /// Starts a new generation of a pack of the source, or of popular blocks. It may refer to the same popular packs
    /// as the generation before.
    ///
    /// # Errors
    ///
    /// As [`Writer::new_pack`].
    pub fn new_generation(
        &self,
        of: &KnownSource,
        before: &Pack,
        generation: u32,
    ) -> Result<NewPack> {
        let mut pack = NewPack::start(&self.fenced, of, before.reference(), generation)?;
        pack.refer_to(before.popular_packs());
        Ok(pack)
    }

    /// Writes the copy of a pack's table again.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of writing.
    pub fn put_table(&self, pack: &Pack) -> Result<()> {
        let name = table_of(self.source.id, pack.reference().number, pack.generation());
        let content = pack.table_copy().encode();
        self.fenced.put(name, content, NewObject::commit_over)
    }

    /// Prepares references to popular packs: makes the packs' names durable, and records the source as a user of the
    /// popular blocks. Must be called before any object of the source refers to them. Popular blocks need no mark for
    /// themselves.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn begin_to_use(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        begin_to_use(self.fenced.objects(), &self.source, numbers)
    }

    /// Makes the names of packs of the source durable, of all their generations. Must come before an older generation
    /// is removed, or a durable object refers to a pack: another process may have written it, and died.
    ///
    /// # Errors
    ///
    /// Any failure of syncing.
    pub fn sync_packs(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        Packs::of(self.fenced.objects(), self.source.id).sync(numbers)
    }

    /// Writes missing or damaged marks of the source again. Returns how many were written.
    ///
    /// # Errors
    ///
    /// `InUse` if the lease is lost; any failure of reading or writing.
    pub fn mend_marks(&self) -> Result<u64> {
        Marks::of(self.fenced.objects(), &self.source).mend(&self.fenced)
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

    use crate::disk::joined;
    use crate::lease::{HEARTBEAT, folder_name, holder_of};
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
            let token = holder_of(self.repository.objects().root(), self.source).unwrap();
            let name = ObjectName::Lease(self.source, token);
            let content = self.repository.objects().read_sealed(name).unwrap();
            let mut lease = Lease::decode(&content).unwrap();
            change(&mut lease.holder);
            let bytes = self
                .repository
                .objects()
                .sealed(name, lease.encode())
                .unwrap();
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
        let root = scene.repository.objects().root().clone();
        let holder = holder_of(&root, scene.source).unwrap();
        let held = joined(&ObjectName::writer(scene.source), &folder_name(holder));
        let sign = joined(&held, HEARTBEAT);
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
        writer
            .publish(BackupNumber(1), &manifest(), &NeededPacks::default())
            .unwrap();
    }

    #[test]
    fn nothing_that_a_late_holder_does_takes_effect() {
        let scene = scene();
        let late = scene.repository.writer(scene.source, "test").unwrap();
        late.publish(BackupNumber(1), &manifest(), &NeededPacks::default())
            .unwrap();
        let recipe = late.new_recipe(BackupNumber(2)).unwrap();
        let pack = late.new_pack(late.source(), 0).unwrap();
        scene.give_lease(|holder| holder.boot[0] ^= 1);
        let new = scene.writer_again().unwrap();
        let before = late.source().source.clone();
        assert!(recipe.finish().is_err() && pack.finish().is_err());
        let name = ObjectName::Manifest(scene.source, BackupNumber(1));
        for done in [
            late.publish(BackupNumber(2), &manifest(), &NeededPacks::default()),
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
        let known = Catalogue::of(scene.repository.objects()).known(scene.source);
        assert_eq!(known.unwrap().unwrap().source, before);
        // Dropping the late writer ends no other lease.
        drop(late);
        new.publish(BackupNumber(2), &manifest(), &NeededPacks::default())
            .unwrap();
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
