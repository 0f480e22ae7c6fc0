//! Requests that concern the content of a source: its backups, packs and damage.

use onefold_format::backup::{BackupNumber, Manifest, ObjectName, SourceId};

use super::Repository;
use crate::backup::{Backups, NeededPacks, Recipe};
use crate::damage::{DamageRecord, KnownDamage};
use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::history::course::Course;
use crate::history::{History, Reached};
use crate::pack::Pack;
use crate::packs::{Packs, draw_popular};
use crate::reader::Reading;
use crate::sources::KnownSource;
use crate::table::Tables;

impl Repository {
    /// Reads which backup numbers of a source were used, and their state.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn history(&self, source: SourceId) -> Result<History> {
        History::read(&self.objects, source)
    }

    /// Finds how far a source has come, given that it had come as far as `known`. Unless it has gone back, this lists
    /// two folders, and reads one manifest if there is a new one.
    ///
    /// Only manifests and closed numbers count, not recipes or records of backups in progress: a completed backup whose
    /// manifest is hidden counts as gone.
    ///
    /// # Errors
    ///
    /// Any failure of listing or reading.
    pub fn course(&self, source: SourceId, known: Reached) -> Result<Course> {
        Course::find(&self.objects, source, known)
    }

    /// The backups of a source, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn backups(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        Backups::of(&self.objects, source).all()
    }

    /// Backups with a recipe, in order: some of them may be forgotten.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn recipes(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        Backups::of(&self.objects, source).recipes()
    }

    /// Backups that are protected from being forgotten, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn protected(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        Backups::of(&self.objects, source).protected()
    }

    /// Protects a backup from being forgotten, or ends its protection.
    ///
    /// # Errors
    ///
    /// Any failure of writing.
    pub fn protect(
        &self,
        source: SourceId,
        backup: BackupNumber,
        is_protected: bool,
    ) -> Result<()> {
        Backups::of(&self.objects, source).protect(backup, is_protected)
    }

    /// The manifest of a backup.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`.
    pub fn manifest(&self, source: SourceId, backup: BackupNumber) -> Result<Manifest> {
        Backups::of(&self.objects, source).manifest(backup)
    }

    /// The manifest of a backup that was listed a moment ago; `None` if another command has forgotten it since.
    ///
    /// # Errors
    ///
    /// `NotFound` if it is gone without a tombstone; `Damaged`; any failure of reading.
    pub fn listed_manifest(
        &self,
        source: SourceId,
        backup: BackupNumber,
    ) -> Result<Option<Manifest>> {
        Backups::of(&self.objects, source).listed_manifest(backup)
    }

    /// The packs that the backups of a source need. Skips unreadable manifests, which `verify` reports.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn needed_packs(&self, source: SourceId) -> Result<NeededPacks> {
        Backups::of(&self.objects, source).needed_packs()
    }

    /// The recipe of a backup.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such backup; `Damaged`.
    pub fn recipe(&self, source: SourceId, backup: BackupNumber) -> Result<Recipe> {
        Backups::of(&self.objects, source).recipe(backup)
    }

    /// Registers this process as a reader of a backup, to do what `doing` says. Must be called before the manifest is
    /// read. A repository that is full or read-only is read without registration.
    ///
    /// # Errors
    ///
    /// Any other failure of writing.
    pub fn reading(&self, source: SourceId, backup: BackupNumber, doing: &str) -> Result<Reading> {
        self.readers().register(source, backup, doing)
    }

    /// Forgets backups: writes the tombstone of each before it removes the manifest. Recipes stay until the source is
    /// pruned. If a manifest is already missing, the tombstone records that the loss is accepted. Waits for all silent
    /// readers at the same time.
    ///
    /// # Errors
    ///
    /// `Interrupted`. For each backup: `Invalid` if it is protected; `InUse` if it is being read; any failure of
    /// writing.
    pub fn forget_all(&self, backups: &[(SourceId, BackupNumber)]) -> Result<Vec<Result<()>>> {
        let checked = self.readers().check_none(backups)?.into_iter();
        let both = checked.zip(backups);
        Ok(both
            .map(|(checked, (source, backup))| checked.and_then(|()| self.forget(*source, *backup)))
            .collect())
    }

    /// Forgets a backup, as with [`Repository::forget_all`].
    ///
    /// # Errors
    ///
    /// The errors of each backup in [`Repository::forget_all`].
    pub fn forget(&self, source: SourceId, backup: BackupNumber) -> Result<()> {
        self.waiting
            .check_interrupted(format_args!("before backup {backup} was forgotten"))?;
        let backups = Backups::of(&self.objects, source);
        if backups.protected()?.contains(&backup) {
            let message = format!("backup {backup} is protected");
            return Err(RepositoryError::new(RepositoryErrorKind::Invalid, message));
        }
        // Checked again, because a reader may have come while the command waited for others.
        let readers = self.readers();
        readers.check_none(&[(source, backup)])?.remove(0)?;
        backups.bury(backup)?;
        match self.objects.remove(ObjectName::Manifest(source, backup)) {
            // A damaged manifest stays, with its number closed; `prune` reports it.
            Err(error) if !error.is_of_object() => return Err(error),
            _ => {}
        }
        readers.remove_folder(source, backup);
        Ok(())
    }

    /// The packs of a source, in order: numbers and newest generations.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn packs(&self, source: SourceId) -> Result<Vec<(u64, u32)>> {
        Packs::of(&self.objects, source).newest()
    }

    /// All generations of the packs of a source, in order.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn pack_generations(&self, source: SourceId) -> Result<Vec<(u64, u32)>> {
        Packs::of(&self.objects, source).generations()
    }

    /// The size of a pack's file, without opening it; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn pack_bytes(
        &self,
        source: SourceId,
        number: u64,
        generation: u32,
    ) -> Result<Option<u64>> {
        Packs::of(&self.objects, source).bytes_of(number, generation)
    }

    /// The bytes of all packs of a source.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn stored_bytes(&self, source: SourceId) -> Result<u64> {
        Packs::of(&self.objects, source).stored_bytes()
    }

    /// The number of the next pack of a source. It is higher than the number of every pack that is listed, has a copy
    /// of its table, was ever removed from the source, or is needed by a backup.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn next_pack(&self, source: &KnownSource, needed: &NeededPacks) -> Result<u64> {
        Backups::of(&self.objects, source.id).next_pack(needed)
    }

    /// The error for a missing pack that a backup needs.
    #[must_use]
    pub fn missing_pack(&self, source: SourceId, number: u64) -> RepositoryError {
        Packs::of(&self.objects, source).missing(number)
    }

    /// Draws a random number for the first of some popular packs, so that concurrent writers of such packs do not
    /// have to coordinate.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers.
    pub fn draw_popular_pack() -> Result<u64> {
        draw_popular()
    }

    /// Opens a pack; if a concurrent prune has replaced the listed generation, opens the newer one. `None` if the
    /// pack is gone.
    ///
    /// # Errors
    ///
    /// `Damaged`; any failure of reading.
    pub fn pack_or_newer(
        &self,
        source: SourceId,
        number: u64,
        generation: u32,
    ) -> Result<Option<Pack>> {
        Packs::of(&self.objects, source).open_or_newer(number, generation)
    }

    /// Opens a pack: reads and authenticates its table, or the copy of the table if that fails.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`.
    pub fn pack(&self, source: SourceId, number: u64, generation: u32) -> Result<Pack> {
        Packs::of(&self.objects, source).open(number, generation)
    }

    /// A missing pack, known by the copy of its table: all of its blocks are lost.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged`; any failure of reading.
    pub fn lost_pack(&self, source: SourceId, number: u64, generation: u32) -> Result<Pack> {
        Packs::of(&self.objects, source).lost(number, generation)
    }

    /// The packs of a source whose tables have copies, in order: numbers and generations.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn tables(&self, source: SourceId) -> Result<Vec<(u64, u32)>> {
        Tables::of(&self.objects, source).all()
    }

    /// Checks that the copy of a pack's table is there and matches.
    ///
    /// # Errors
    ///
    /// `Damaged`; any failure of reading.
    pub fn check_table(&self, source: SourceId, pack: &Pack) -> Result<()> {
        Tables::of(&self.objects, source).check(pack)
    }

    /// The recorded damage of a source, or of popular blocks.
    ///
    /// # Errors
    ///
    /// Any failure of listing or reading. Errors that affect a single object are in [`KnownDamage::wrong`].
    pub fn known_damage(&self, source: SourceId) -> Result<KnownDamage> {
        DamageRecord::of(&self.objects, source).read()
    }

    /// Records `found` as the damage of a source, and removes the objects that were read into `before`. Objects that
    /// other verifications have written since then stay. Unreadable objects are removed, too, if `found` covers all
    /// packs.
    ///
    /// # Errors
    ///
    /// Any failure of writing: then the earlier record is still complete.
    pub fn remember_damage(
        &self,
        source: SourceId,
        found: &KnownDamage,
        before: &KnownDamage,
        is_of_all: bool,
    ) -> Result<()> {
        let record = DamageRecord::of(&self.objects, source);
        record.replace(found, before, is_of_all)
    }
}
