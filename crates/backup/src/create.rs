//! Makes a backup of a disk, stage by stage.

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::{BackupNumber, ChangedBy, Counts, Manifest, PoolSnapshot};
use onefold_index::Key;
use onefold_repository::Writer;

use crate::detect::detect;
use crate::disk::{ChangedBlocks, Disk};
use crate::error::Result;
use crate::publish::RecipeWriter;
use crate::scan::scan;
use crate::store::{Target, store};

/// Hears of `done` of `all` bytes of a stage, and may stop the backup.
pub type Report<'a> = &'a mut dyn FnMut(u64, u64) -> Result<()>;

/// How a backup is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// The backup with which the disk's changes are compared; none if they are not known, and everything
    /// is read.
    pub parent: Option<BackupNumber>,
    /// The snapshot that is backed up, if it is one.
    pub base: Option<PoolSnapshot>,
    /// The moment that it holds.
    pub unix_seconds: u64,
    /// Its tags.
    pub tags: Vec<String>,
    /// Of zstd.
    pub level: i32,
    /// Threads that compress.
    pub threads: usize,
    /// Memory for each stage, in bytes.
    pub memory_bytes: usize,
}

/// A backup that was made.
#[derive(Debug, Clone)]
pub struct Created {
    /// Its number.
    pub backup: BackupNumber,
    /// Its manifest.
    pub manifest: Manifest,
}

/// Backs a disk up, as the next backup of the writer's source. It is durable when this returns, and does not
/// exist before.
///
/// # Errors
///
/// If the disk cannot be read, or changes meanwhile; if the repository cannot be written.
pub fn create(
    writer: &Writer<'_>,
    disk: &mut dyn Disk,
    options: &Options,
    report: Report<'_>,
) -> Result<Created> {
    let repository = writer.repository();
    let source = writer.source();
    let block_size = source.source.block_size;
    let (id, size_bytes) = (source.id, disk.size_bytes());
    let disk_blocks = size_bytes.div_ceil(block_size.into());
    let parent = options.parent.map(|parent| repository.recipe(id, parent));
    let parent = parent.transpose()?;
    let backup = repository.next_backup(source)?;
    let key = Key::derive(&repository.fingerprint_secret(), 0);
    let memory_bytes = options.memory_bytes;

    let mut changes = ChangedBlocks::new(disk, block_size);
    let scanned = scan(&mut changes, &key, block_size, memory_bytes / 4, report)?;
    let read_blocks = scanned.read_blocks;
    let mut detected = detect(repository, id, scanned, disk_blocks, memory_bytes)?;
    let first_pack = repository.next_pack(source)?;
    let target = Target {
        writer,
        block_size,
        first_pack,
        level: options.level,
        threads: options.threads,
    };
    let stored_bytes = store(disk, &key, &mut detected, &target, report)?;
    let new_blocks = detected.new_blocks;
    let recipe = RecipeWriter {
        recipe: writer.new_recipe(backup)?,
        parent,
        detected,
        first_number: first_pack * BLOCKS_PER_PACK,
        changes: ChangedBlocks::new(disk, block_size),
        disk_blocks,
    };
    let (recipe_pages, totals) = recipe.write()?;
    let manifest = Manifest {
        size_bytes,
        block_size,
        changed_by: match options.parent {
            None => ChangedBy::Nobody,
            Some(_) => ChangedBy::Layers,
        },
        unix_seconds: options.unix_seconds,
        parent: options.parent,
        base: options.base,
        counts: Counts {
            logical_blocks: totals.logical_blocks,
            read_blocks,
            new_blocks,
            stored_bytes,
        },
        recipe_pages,
        numbers: totals.numbers,
        tags: options.tags.clone(),
    };
    writer.publish(backup, &manifest)?;
    Ok(Created { backup, manifest })
}
