//! Which backups a source has had, and their state: a missing backup is damage unless an object says that its number
//! is closed.
//!
//! Backups have consecutive numbers from 1 on. Each number that was ever used has a manifest, or it is *closed*: by a
//! tombstone, or by an object that tombstones were folded into. A process that makes a backup records the number next
//! to its lease before it writes any other object with the number; if it dies, the next holder of the lease closes
//! the number.

mod closing;
mod course;

pub use course::Course;

use std::collections::BTreeSet;
use std::ops::Range;

use onefold_format::backup::{BackupNumber, Closed, Manifest, ObjectName, SourceId};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::host::now;
use crate::layout::{RETIRED, hexadecimal};
use crate::repository::{Repository, source_named};
use crate::sources::KnownSource;

/// The most missing backups that are listed, so that a file with a huge number for a name cannot exhaust memory.
const MISSING_MAX: usize = 1000;

/// How often a folder is listed again because an object in it was removed concurrently.
const LISTINGS_MAX: u32 = 10;

/// How far a source has come. These numbers only grow, unless the source's storage goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// Every backup with a lower number was completed, or its number is closed.
    pub next: u64,
    /// Packs with lower numbers may have been written.
    pub next_pack: u64,
}

impl Reached {
    /// How far a completed backup proves that its source has come.
    #[must_use]
    pub fn by(backup: BackupNumber, manifest: &Manifest) -> Self {
        let last = manifest.own_packs.last();
        Self {
            next: backup.0 + 1,
            next_pack: last.map_or(0, |pack| pack.number + 1),
        }
    }

    /// Whether both numbers are at least those in `other`.
    #[must_use]
    pub fn is_as_far_as(&self, other: Self) -> bool {
        self.next >= other.next && self.next_pack >= other.next_pack
    }

    /// The higher value of each number.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            next: self.next.max(other.next),
            next_pack: self.next_pack.max(other.next_pack),
        }
    }
}

/// All backup numbers of a source, and their state.
#[derive(Debug)]
pub struct History {
    /// Backups that exist, in order.
    pub backups: Vec<BackupNumber>,
    /// Backups whose manifests are missing although their numbers are not closed: the first thousand, in order.
    pub missing: Vec<BackupNumber>,
    /// Closed numbers whose manifests are still there, or there again.
    pub returned: Vec<BackupNumber>,
    /// The number of the next backup: higher than all numbers that were used.
    pub next: BackupNumber,
    /// Packs with lower numbers may have been written, according to closed objects and listed packs.
    pub next_pack: u64,
    /// Objects that close numbers and cannot be read.
    pub damaged: Vec<RepositoryError>,
    /// Packs with lower numbers may have been written, according to closed objects alone.
    closed_next_pack: u64,
    /// All closed numbers.
    closed: Ranges,
    tombstones: Vec<BackupNumber>,
    /// The folded objects, by generation, with the numbers that each closes.
    folded: Vec<(u32, Ranges)>,
}

/// Ascending ranges of numbers, neither empty nor adjacent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn contains(&self, number: u64) -> bool {
        let at = self.0.partition_point(|range| range.end <= number);
        self.0.get(at).is_some_and(|range| range.start <= number)
    }

    fn add(&mut self, more: impl IntoIterator<Item = Range<u64>>) {
        self.0.extend(more);
        self.0.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(self.0.len());
        for range in self.0.drain(..) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        self.0 = merged;
    }
}

impl History {
    /// Fails if a backup is missing.
    ///
    /// # Errors
    ///
    /// `Damaged`, with a remedy.
    pub fn check_complete(&self, source: &KnownSource) -> Result<()> {
        let Some(first) = self.missing.first() else {
            return Ok(());
        };
        let numbers: Vec<_> = self.missing.iter().map(ToString::to_string).collect();
        let (numbers, name) = (numbers.join(", "), &source.source.name);
        let message = format!(
            "{source}: the manifest of backup {numbers} is missing, and nothing says that it was forgotten: put it back \
             under {}, or say that it was meant: 'onefold backup forget {name}@{first} --yes'",
            ObjectName::manifests(source.id)
        );
        Err(RepositoryError::new(RepositoryErrorKind::Damaged, message))
    }
}

impl Repository {
    /// Reads which backup numbers of a source were used, and their state.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn history(&self, source: SourceId) -> Result<History> {
        let mut history = History {
            backups: Vec::new(),
            missing: Vec::new(),
            returned: Vec::new(),
            next: BackupNumber(1),
            next_pack: 0,
            damaged: Vec::new(),
            closed_next_pack: 0,
            closed: Ranges::default(),
            tombstones: Vec::new(),
            folded: Vec::new(),
        };
        // This order keeps a backup that is concurrently published or forgotten from looking missing: first read all
        // objects with its number, then the backup in progress, then manifests, and tombstones last.
        let mut used: BTreeSet<BackupNumber> = BTreeSet::new();
        used.extend(self.numbers(&ObjectName::recipes(source))?);
        used.extend(self.numbers(&ObjectName::protections(source))?);
        let under_way = self.under_way(source)?;
        let manifests = self.numbers(&ObjectName::manifests(source))?;
        used.extend(manifests.iter().copied());
        self.add_tombstones(source, &mut history)?;
        self.add_folded(source, &mut history)?;
        let last_closed = history.closed.0.last().map_or(0, |range| range.end - 1);
        let last_used = used.last().map_or(0, |last| last.0);
        let last = last_used.max(last_closed);
        history.next = BackupNumber(last + 1);
        let packs = self.packs(source)?;
        let after_packs = packs.last().map_or(0, |(number, _)| number + 1);
        history.next_pack = history.closed_next_pack.max(after_packs);
        let closed = &history.closed;
        let is_closed = |backup: &BackupNumber| closed.contains(backup.0);
        let (returned, backups) = manifests.iter().copied().partition(is_closed);
        (history.returned, history.backups) = (returned, backups);
        let there: BTreeSet<_> = manifests.into_iter().chain(under_way).collect();
        history.missing = (1..=last)
            .map(BackupNumber)
            .filter(|backup| !history.closed.contains(backup.0) && !there.contains(backup))
            .take(MISSING_MAX)
            .collect();
        Ok(history)
    }

    /// Whether there is a source with this id; a damaged source counts.
    ///
    /// # Errors
    ///
    /// Any failure of reading.
    pub fn has_source(&self, source: SourceId) -> Result<bool> {
        match self.known(source) {
            Ok(known) => Ok(known.is_some()),
            Err(error) if error.is_of_object() => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn add_tombstones(&self, source: SourceId, history: &mut History) -> Result<()> {
        for backup in self.numbers(&ObjectName::tombstones(source))? {
            match self.closed(ObjectName::Tombstone(source, backup)) {
                Ok(closed) => {
                    history.tombstones.push(backup);
                    history.closed_next_pack = history.closed_next_pack.max(closed.next_pack);
                    // The object's name is authentic, so it closes this number.
                    let number = backup.0..backup.0 + 1;
                    history.closed.add([number]);
                }
                // Folded by a concurrent prune.
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                Err(error) if error.is_of_object() => history.damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn add_folded(&self, source: SourceId, history: &mut History) -> Result<()> {
        let folder = ObjectName::closed(source);
        let mut listings = 0;
        'listing: loop {
            history.folded.clear();
            listings += 1;
            let mut damaged = Vec::new();
            for generation in self.generations(&folder)? {
                match self.closed(ObjectName::Closed(source, generation)) {
                    Ok(closed) => {
                        history.closed_next_pack = history.closed_next_pack.max(closed.next_pack);
                        history.closed.add(closed.backups.iter().cloned());
                        history.folded.push((generation, Ranges(closed.backups)));
                    }
                    // Replaced by a newer generation since the folder was listed. A dangling link would stay, hence
                    // the limit.
                    Err(error)
                        if error.kind() == RepositoryErrorKind::NotFound
                            && listings < LISTINGS_MAX =>
                    {
                        continue 'listing;
                    }
                    Err(error) if error.is_of_object() => damaged.push(error),
                    Err(error) => return Err(error),
                }
            }
            history.damaged.extend(damaged);
            return Ok(());
        }
    }

    fn closed(&self, name: ObjectName) -> Result<Closed> {
        let content = self.read_sealed(name)?;
        Closed::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
    }

    /// The backups that are being made, or were when their process died.
    fn under_way(&self, source: SourceId) -> Result<Vec<BackupNumber>> {
        let holder = self.holder(source);
        let held = holder.map(|token| {
            let name = ObjectName::UnderWay(source, token);
            (name.path(), name)
        });
        let remains = self.remains(source)?.into_iter();
        let remains = remains.map(|(path, token)| {
            let path = format!("{path}/{}", ObjectName::UNDER_WAY);
            (path, ObjectName::UnderWay(source, token))
        });
        let mut backups = Vec::new();
        for (path, name) in held.into_iter().chain(remains) {
            let content = self.read_sealed_at(&path, name);
            let closed = content
                .ok()
                .and_then(|content| Closed::decode(&content).ok());
            let numbers = closed.into_iter().flat_map(|closed| closed.backups);
            backups.extend(numbers.map(|range| BackupNumber(range.start)));
        }
        Ok(backups)
    }

    /// The retired folders of leases, with the numbers of their holders.
    pub(crate) fn remains(&self, source: SourceId) -> Result<Vec<(String, u64)>> {
        let folder = format!("sources/{source}");
        let names = self.folder.folders_with(&folder, RETIRED);
        let names =
            names.map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))?;
        let retired = names.iter().filter_map(|name| {
            let token = hexadecimal(name.strip_prefix(RETIRED)?)?;
            Some((format!("{folder}/{name}"), token))
        });
        Ok(retired.collect())
    }

    /// Writes the tombstone of a backup, whether its manifest is there or not.
    pub(crate) fn bury(&self, source: SourceId, backup: BackupNumber) -> Result<()> {
        // The manifest may be the last object that shows which pack numbers were used.
        let own = self.manifest(source, backup).ok();
        let last = own.and_then(|manifest| manifest.own_packs.last().map(|pack| pack.number + 1));
        let next_pack = self.history(source)?.next_pack.max(last.unwrap_or(0));
        let closed = Closed::one(backup, next_pack, now());
        let name = ObjectName::Tombstone(source, backup);
        self.put_over(name, &self.sealed(name, closed.encode())?)
    }

    /// Records that backups of a source may need popular blocks.
    ///
    /// # Errors
    ///
    /// Any failure of reading or writing.
    pub fn add_user(&self, popular: SourceId, source: SourceId) -> Result<()> {
        let name = ObjectName::User { popular, source };
        match self.read_sealed(name) {
            Ok(_) => Ok(()),
            Err(error) if error.is_of_object() => {
                self.put_over(name, &self.sealed(name, Vec::new())?)
            }
            Err(error) => Err(error),
        }
    }

    /// The sources whose backups may need popular blocks.
    ///
    /// # Errors
    ///
    /// Any failure of listing.
    pub fn users(&self, popular: SourceId) -> Result<Vec<SourceId>> {
        let folder = ObjectName::users(popular);
        let names = self.folder.objects(&folder);
        let names =
            names.map_err(|e| RepositoryError::io(format_args!("cannot list {folder}"), &e))?;
        Ok(names.iter().filter_map(|name| source_named(name)).collect())
    }

    /// The error for a missing source whose backups may need popular blocks.
    #[must_use]
    pub fn missing_source(&self, source: SourceId) -> RepositoryError {
        let message = format!(
            "source {source} is missing: put its folder back under sources; its backups may need popular blocks"
        );
        RepositoryError::new(RepositoryErrorKind::Damaged, message)
    }

    /// Whether a source has lost its object and is empty: a removal deletes the object after all content.
    pub(crate) fn is_half_removed(&self, known: &KnownSource) -> Result<bool> {
        let path = ObjectName::Source(known.id).path();
        let object = self.folder.root().kind(&path);
        let object = object
            .map_err(|e| RepositoryError::io(format_args!("cannot read object {path}"), &e))?;
        if object.is_some() || known.source.is_popular() {
            return Ok(false);
        }
        let history = self.history(known.id)?;
        let is_as_born = history.next == BackupNumber(1) && history.next_pack == 0;
        Ok(is_as_born && history.damaged.is_empty())
    }

    /// The numbers below 2^32 in a folder, in order.
    pub(crate) fn generations(&self, folder: &str) -> Result<Vec<u32>> {
        let numbers = self.numbers(folder)?.into_iter();
        let mut generations: Vec<u32> = numbers
            .filter_map(|number| number.0.try_into().ok())
            .collect();
        generations.sort_unstable();
        Ok(generations)
    }
}
