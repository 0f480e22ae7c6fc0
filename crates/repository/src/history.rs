//! Which backups a source has had, and their state: a missing backup is damage unless an object says that its number
//! is closed.
//!
//! Backups have consecutive numbers from 1 on. Each number that was ever used has a manifest, or it is *closed*: by a
//! tombstone, or by an object that tombstones were folded into. A process that makes a backup records the number next
//! to its lease before it writes any other object with the number; if it dies, the next holder of the lease closes
//! the number.

mod closing;
pub(crate) mod course;

use std::collections::BTreeSet;
use std::ops::Range;

use onefold_format::backup::{BackupNumber, Closed, Manifest, ObjectName, SourceId};

use crate::error::{RepositoryError, RepositoryErrorKind, Result};
use crate::lease::{holder_of, remains};
use crate::objects::Objects;
use crate::packs::Packs;
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

    /// Reads which backup numbers of a source were used, and their state.
    pub(crate) fn read(objects: &Objects, source: SourceId) -> Result<History> {
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
        used.extend(objects.numbers(&ObjectName::recipes(source))?);
        used.extend(objects.numbers(&ObjectName::protections(source))?);
        let under_way = under_way(objects, source)?;
        let manifests = objects.numbers(&ObjectName::manifests(source))?;
        used.extend(manifests.iter().copied());
        history.add_tombstones(objects, source)?;
        history.add_folded(objects, source)?;
        let last_closed = history.closed.0.last().map_or(0, |range| range.end - 1);
        let last_used = used.last().map_or(0, |last| last.0);
        let last = last_used.max(last_closed);
        history.next = BackupNumber(last + 1);
        let packs = Packs::of(objects, source).newest()?;
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

    fn add_tombstones(&mut self, objects: &Objects, source: SourceId) -> Result<()> {
        for backup in objects.numbers(&ObjectName::tombstones(source))? {
            match read_closed(objects, ObjectName::Tombstone(source, backup)) {
                Ok(closed) => {
                    self.tombstones.push(backup);
                    self.closed_next_pack = self.closed_next_pack.max(closed.next_pack);
                    // The object's name is authentic, so it closes this number.
                    let number = backup.0..backup.0 + 1;
                    self.closed.add([number]);
                }
                // Folded by a concurrent prune.
                Err(error) if error.kind() == RepositoryErrorKind::NotFound => {}
                Err(error) if error.is_of_object() => self.damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn add_folded(&mut self, objects: &Objects, source: SourceId) -> Result<()> {
        let folder = ObjectName::closed(source);
        let mut listings = 0;
        'listing: loop {
            self.folded.clear();
            listings += 1;
            let mut damaged = Vec::new();
            for generation in objects.generations(&folder)? {
                match read_closed(objects, ObjectName::Closed(source, generation)) {
                    Ok(closed) => {
                        self.closed_next_pack = self.closed_next_pack.max(closed.next_pack);
                        self.closed.add(closed.backups.iter().cloned());
                        self.folded.push((generation, Ranges(closed.backups)));
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
            self.damaged.extend(damaged);
            return Ok(());
        }
    }
}

fn read_closed(objects: &Objects, name: ObjectName) -> Result<Closed> {
    let content = objects.read_sealed(name)?;
    Closed::decode(&content).map_err(|e| RepositoryError::format(&name.path(), e))
}

/// The backups that are being made, or were when their process died.
fn under_way(objects: &Objects, source: SourceId) -> Result<Vec<BackupNumber>> {
    let holder = holder_of(objects.root(), source);
    let held = holder.map(|token| {
        let name = ObjectName::UnderWay(source, token);
        (name.path(), name)
    });
    let remains = remains(objects, source)?.into_iter();
    let remains = remains.map(|(path, token)| {
        let path = format!("{path}/{}", ObjectName::UNDER_WAY);
        (path, ObjectName::UnderWay(source, token))
    });
    let mut backups = Vec::new();
    for (path, name) in held.into_iter().chain(remains) {
        let content = objects.read_sealed_at(&path, name);
        let closed = content
            .ok()
            .and_then(|content| Closed::decode(&content).ok());
        let numbers = closed.into_iter().flat_map(|closed| closed.backups);
        backups.extend(numbers.map(|range| BackupNumber(range.start)));
    }
    Ok(backups)
}
