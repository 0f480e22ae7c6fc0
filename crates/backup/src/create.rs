//! Makes backups of disks, stage by stage.

use std::path::PathBuf;

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{
    BackupNumber, ChangedBy, Manifest, NumberRun, PackReference, PoolSnapshot, SourceId, Witness,
    packs_of, witness_of,
};
use onefold_index::Key;
use onefold_repository::{KnownSource, Repository, Writer};

use crate::cache::TableCache;
use crate::detect::{Detected, Scanned, detect};
use crate::disk::{ChangedBlocks, Disk};
use crate::error::{BackupError, Result};
use crate::publish::{NewNumbers, Numbering, RecipeWriter, Totals};
use crate::ranks::Ranks;
use crate::records::Place;
use crate::scan::{Filter, Rows, scan};
use crate::store::{NewBlocks, StoredPacks, Target, store};
use crate::temporary::Temporary;

/// Reports that `done` of `all` bytes of a stage are finished; an error stops the backup.
pub type Report<'a> = &'a mut dyn FnMut(u64, u64) -> Result<()>;

/// A disk to back up, and its circumstances.
pub struct DiskToBackUp<'a> {
    /// The writer that holds the lease of the disk's source.
    pub writer: &'a Writer<'a>,
    /// The disk.
    pub disk: Box<dyn Disk + 'a>,
    /// The parent backup to which the disk's changes relate; `None` if changes are not known and everything is read.
    pub parent: Option<BackupNumber>,
    /// The pool's snapshot that is backed up, if any.
    pub base: Option<PoolSnapshot>,
    /// The point in time that the backup represents.
    pub unix_seconds: u64,
    /// The name of the user's snapshot that is backed up, without the volume's name; empty if there is none.
    pub snapshot: String,
}

/// How backups are made.
#[derive(Debug, Clone)]
pub struct Options {
    /// The tags of the new backups.
    pub tags: Vec<String>,
    /// The name of this host.
    pub host: String,
    /// The compression level for zstd.
    pub level: i32,
    /// Threads that compress.
    pub threads: usize,
    /// Memory for each stage, in bytes.
    pub memory_bytes: usize,
    /// The folder of temporary files. They take 48 bytes for each block that is read, and at most as much for each
    /// stored block of the sources.
    pub temporary: PathBuf,
}

/// A backup that was made.
#[derive(Debug, Clone)]
pub struct Created {
    /// The number of the backup.
    pub backup: BackupNumber,
    /// The manifest of the backup.
    pub manifest: Manifest,
}

/// The result of backing up several disks together.
#[derive(Debug, Default)]
pub struct Batch {
    /// For each disk, its backup or why there is none. A failure that does not concern a single disk ends the batch:
    /// the disks after it are missing.
    pub backups: Vec<Result<Created>>,
    /// How many popular blocks were stored.
    pub new_popular_blocks: u64,
    /// Bytes of the popular packs that were written.
    pub popular_bytes: u64,
    /// Packs that cannot be read. Their blocks were stored again where a disk still has the content.
    pub damaged: Vec<String>,
}

/// Backs up disks, each as the next backup of its source. The sources have the same domain and block size; contents
/// that several of the disks have are stored once. A backup exists only when it is complete, and is durable when this
/// returns. If one disk cannot be read, the others are backed up. With the host's `cache`, only tables of packs that
/// may have contents of these disks are read.
///
/// # Errors
///
/// `NoRoom` if the temporary files might not fit, before anything is read; if the repository cannot be written before
/// there is any backup; if reading a shared block from one of the disks fails, or finds it changed.
pub fn create(
    repository: &Repository,
    disks: &mut [DiskToBackUp<'_>],
    options: &Options,
    cache: Option<&TableCache>,
    report: Report<'_>,
) -> Result<Batch> {
    let Some(first) = disks.first() else {
        return Ok(Batch::default());
    };
    let of_first = first.writer.source().source.clone();
    if disks.len() > Place::DISKS_MAX {
        return Err(BackupError::Source(format!(
            "{} disks are too many for one command",
            disks.len()
        )));
    }
    let key = Key::derive(&repository.fingerprint_secret(), 0);
    let popular = repository.popular_id(&of_first);
    let mut backup = Backup {
        repository,
        key,
        options,
        temporary: Temporary {
            folder: options.temporary.clone(),
            memory_bytes: options.memory_bytes,
        },
        failed: disks.iter().map(|_| None).collect(),
    };
    let (rows, scanned) = backup.scan(disks, report)?;
    let mut detected = detect(
        repository,
        popular,
        rows,
        &scanned,
        &backup.temporary,
        cache,
    )?;
    let mut batch = Batch {
        damaged: std::mem::take(&mut detected.damaged),
        ..Batch::default()
    };
    let mut popular = backup.store_popular(disks, &mut detected, &mut batch, report)?;
    for (n, scanned) in scanned.iter().enumerate() {
        let made = match backup.failed[n].take() {
            Some(failed) => Err(failed),
            None => backup.finish(n, disks, &mut detected, scanned, &mut popular, report),
        };
        let goes_on = made.as_ref().map_or_else(BackupError::is_of_disk, |_| true);
        batch.backups.push(made);
        if !goes_on {
            break;
        }
    }
    Ok(batch)
}

struct Backup<'a> {
    repository: &'a Repository,
    key: Key,
    options: &'a Options,
    temporary: Temporary,
    /// For each disk, why it cannot be backed up, if so.
    failed: Vec<Option<BackupError>>,
}

impl Backup<'_> {
    /// Reads the disks. Returns the rows of their blocks, and each disk.
    fn scan(
        &mut self,
        disks: &mut [DiskToBackUp<'_>],
        report: Report<'_>,
    ) -> Result<(Rows, Vec<Scanned>)> {
        let mut scanned = self.disks_to_scan(disks)?;
        self.check_room(disks, &scanned)?;
        let mut rows = Rows::new(&self.temporary);
        let all: u64 = disks.iter().map(|disk| disk.disk.size_bytes()).sum();
        let mut before = 0;
        for (n, (disk, of_disk)) in disks.iter_mut().zip(&mut scanned).enumerate() {
            let source = disk.writer.source();
            let block_size = source.source.block_size;
            let size_bytes = disk.disk.size_bytes();
            let mut changes = ChangedBlocks::new(disk.disk.as_mut(), block_size);
            let report = &mut |done, _| report(before + done, all);
            let read = if of_disk.blocks <= Place::BLOCKS_MAX {
                scan(n, &mut changes, &self.key, block_size, &mut rows, report)
            } else {
                Err(BackupError::Source("the disk is too large".to_owned()))
            };
            match read.map_err(|error| error.of_source(&source.source.name)) {
                Ok(read) => of_disk.read_blocks = read,
                Err(error) if error.is_of_disk() => {
                    of_disk.has_failed = true;
                    self.failed[n] = Some(error);
                }
                Err(error) => return Err(error),
            }
            before += size_bytes;
        }
        Ok((rows, scanned))
    }

    fn disks_to_scan(&self, disks: &[DiskToBackUp<'_>]) -> Result<Vec<Scanned>> {
        let each = disks.iter().map(|disk| {
            let source = disk.writer.source();
            let block_size = source.source.block_size;
            Ok(Scanned {
                source: source.id,
                blocks: disk.disk.size_bytes().div_ceil(block_size.into()),
                needed: self.repository.needed_packs(source.id)?,
                read_blocks: 0,
                has_failed: false,
            })
        });
        each.collect()
    }

    /// Checks that the temporary files fit. Counts changed blocks only if there is no room for whole disks.
    fn check_room(&self, disks: &mut [DiskToBackUp<'_>], scanned: &[Scanned]) -> Result<()> {
        let packs = scanned
            .iter()
            .map(|disk| disk.needed.own.len())
            .sum::<usize>()
            + scanned
                .iter()
                .map(|disk| disk.needed.popular.len())
                .max()
                .unwrap_or(0);
        let stored = packs as u64 * BLOCKS_PER_PACK;
        let check = |read: u64| {
            let compared = Filter::passing(self.options.memory_bytes, stored, read);
            self.temporary.check_room(read.saturating_add(compared))
        };
        if check(scanned.iter().map(|disk| disk.blocks).sum()).is_ok() {
            return Ok(());
        }
        let mut read = 0;
        for disk in disks {
            let block_size = disk.writer.source().source.block_size;
            let mut changes = ChangedBlocks::new(disk.disk.as_mut(), block_size);
            // A disk that cannot be read here fails when it is scanned.
            while let Ok(Some(run)) = changes.next() {
                read += if run.has_data {
                    run.blocks.end - run.blocks.start
                } else {
                    0
                };
            }
        }
        check(read)
    }

    /// Stores the new popular blocks, and returns their numbers.
    fn store_popular(
        &self,
        disks: &mut [DiskToBackUp<'_>],
        detected: &mut Detected,
        batch: &mut Batch,
        report: Report<'_>,
    ) -> Result<NewNumbers> {
        let blocks = detected.new_popular_blocks;
        let first_pack = Repository::draw_popular_pack()?;
        let mut ranks = self.ranks();
        if blocks > 0 {
            let of_first = disks[0].writer.source().source.clone();
            let popular = self.repository.popular(&of_first)?;
            let new = NewBlocks {
                rows: &mut detected.new_popular,
                places: Place::new(0, 0)..Place::new(disks.len(), 0),
                blocks,
                ranks: &mut ranks,
            };
            let stored = self.store(disks, 0, &popular, first_pack, new, report)?;
            detected.note(popular.id, &stored.packs);
            batch.popular_bytes = stored.bytes;
            batch.new_popular_blocks = blocks;
        }
        Ok(NewNumbers::from_pack(first_pack, ranks))
    }

    fn ranks(&self) -> Ranks {
        Ranks::new(&self.temporary, 16)
    }

    /// Stores blocks under the lease of disk `n`'s source.
    fn store(
        &self,
        disks: &mut [DiskToBackUp<'_>],
        n: usize,
        of: &KnownSource,
        first_pack: u64,
        new: NewBlocks<'_>,
        report: Report<'_>,
    ) -> Result<StoredPacks> {
        let target = Target {
            writer: disks[n].writer,
            of,
            first_pack,
            level: self.options.level,
            threads: self.options.threads,
        };
        store(disks, &self.key, new, &target, report)
    }

    /// Stores the new blocks that only disk `n` has, and publishes its backup.
    fn finish(
        &self,
        n: usize,
        disks: &mut [DiskToBackUp<'_>],
        detected: &mut Detected,
        scanned: &Scanned,
        popular: &mut NewNumbers,
        report: Report<'_>,
    ) -> Result<Created> {
        let (writer, repository) = (disks[n].writer, self.repository);
        let (source, new_blocks) = (writer.source(), detected.own_blocks[n]);
        let first_pack = repository.next_pack(source, &scanned.needed)?;
        let mut own = self.ranks();
        let new = NewBlocks {
            rows: &mut detected.own,
            places: Place::all_of(n),
            blocks: new_blocks,
            ranks: &mut own,
        };
        let stored = self.store(disks, n, source, first_pack, new, report)?;
        detected.note(source.id, &stored.packs);

        let disk = &mut disks[n];
        let (block_size, size_bytes) = (source.source.block_size, disk.disk.size_bytes());
        let parent = disk
            .parent
            .map(|backup| repository.recipe(source.id, backup))
            .transpose()?;
        let of_parent = parent
            .as_ref()
            .map(|recipe| packs_needed(recipe.manifest()));
        let backup = writer.begin_backup()?;
        let recipe = RecipeWriter {
            recipe: writer.new_recipe(backup)?,
            parent,
            disk: n,
            numbering: Numbering {
                own: NewNumbers::from_pack(first_pack, own),
                popular,
            },
            decided: &mut detected.decided,
            changes: ChangedBlocks::new(disk.disk.as_mut(), block_size),
            disk_blocks: size_bytes.div_ceil(block_size.into()),
        };
        let ((recipe, recipe_pages), totals) = recipe.write()?;
        disks[n].check_unchanged()?;
        let disk = &disks[n];
        let (own_packs, popular_packs) =
            detected.packs(source, &totals, of_parent.unwrap_or_default())?;
        let manifest = Manifest {
            size_bytes,
            block_size,
            changed_by: disk.changed_by(),
            unix_seconds: disk.unix_seconds,
            parent: disk.parent,
            base: disk.base,
            counts: totals.counts(scanned.read_blocks, new_blocks, stored.bytes),
            recipe,
            recipe_pages,
            own: totals.own,
            popular: totals.popular,
            own_packs,
            popular_packs,
            host: self.options.host.clone(),
            snapshot: disk.snapshot.clone(),
            tags: self.options.tags.clone(),
        };
        writer.publish(backup, &manifest, &scanned.needed)?;
        Ok(Created { backup, manifest })
    }
}

/// The own packs and the popular packs that a backup needs.
type PacksNeeded = (Vec<PackReference>, Vec<PackReference>);

fn packs_needed(manifest: &Manifest) -> PacksNeeded {
    (manifest.own_packs.clone(), manifest.popular_packs.clone())
}

impl Detected {
    /// Remembers the witnesses of packs that were written.
    fn note(&mut self, store: SourceId, packs: &[PackReference]) {
        let known = packs
            .iter()
            .map(|pack| ((store, pack.number), pack.witness));
        self.witnesses.extend(known);
    }

    /// The packs that a backup needs. Packs that its parent also needs keep the witnesses that the parent names,
    /// whichever packs are listed now.
    fn packs(
        &self,
        source: &KnownSource,
        totals: &Totals,
        of_parent: PacksNeeded,
    ) -> Result<PacksNeeded> {
        let (own, popular) = of_parent;
        Ok((
            self.references(source.id, &totals.own, &own)?,
            self.references(self.popular, &totals.popular, &popular)?,
        ))
    }

    fn references(
        &self,
        store: SourceId,
        runs: &[NumberRun],
        of_parent: &[PackReference],
    ) -> Result<Vec<PackReference>> {
        let each = packs_of(runs).map(|number| {
            let here = || self.witnesses.get(&(store, number)).copied();
            let witness: Option<Witness> = witness_of(of_parent, number).or_else(here);
            let witness = witness.ok_or_else(|| {
                let message = format!("pack {number} is needed, and its witness is not known");
                BackupError::Temporary(std::io::Error::other(message))
            })?;
            Ok(PackReference { number, witness })
        });
        each.collect()
    }
}

impl DiskToBackUp<'_> {
    fn check_unchanged(&mut self) -> Result<()> {
        let unchanged = self.disk.check_unchanged();
        unchanged.map_err(|error| error.of(self))
    }

    fn changed_by(&self) -> ChangedBy {
        match self.parent {
            None => ChangedBy::Nobody,
            Some(_) => ChangedBy::Layers,
        }
    }

    fn name(&self) -> &str {
        &self.writer.source().source.name
    }
}

impl BackupError {
    /// Adds the name of the disk to an error about a disk.
    pub(crate) fn of(self, disk: &DiskToBackUp<'_>) -> Self {
        self.of_source(disk.name())
    }

    fn of_source(self, name: &str) -> Self {
        match self {
            Self::Source(_) | Self::Changed { .. } => Self::OfDisk {
                name: name.to_owned(),
                error: Box::new(self),
            },
            other => other,
        }
    }

    fn is_of_disk(&self) -> bool {
        matches!(self, Self::OfDisk { .. })
    }
}
