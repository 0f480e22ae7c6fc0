//! The restore of a backup.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use onefold_backup::{BlockReader, LostBlocks, RestoredBackup, Supervision};
use serde::{Deserialize, Serialize};

use super::create::ImageFormat;
use super::name::BackupName;
use super::options::{MEMORY_DEFAULT, parse_memory};
use super::request::{RepositoryRequest, RepositoryUse, RepositoryVerb};
use super::service::{Outcome, RepositoryService};
use crate::error::{Error, Result};
use crate::options::NewVolumeOptions;
use crate::service::check_name;

/// Restores a backup to a new or existing volume, a file, a block device or standard output.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRestore {
    /// Backup to restore.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    pub name: BackupName,

    /// Image to create: a new file, a block device, or - for standard output (the last two raw only).
    #[arg(conflicts_with_all = ["volume", "into"])]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub file: Option<PathBuf>,

    /// Restore to a new volume of the pool.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,

    /// Restore into an existing volume of the same size that has no clients attached. Only blocks that differ
    /// are written.
    #[arg(long, value_name = "NAME", conflicts_with = "volume")]
    pub into: Option<String>,

    /// Format of the image.
    #[arg(long, value_enum, default_value = "raw")]
    #[serde(default)]
    pub image_format: ImageFormat,

    /// Overwrite a block device, or a volume.
    #[arg(long)]
    #[serde(default)]
    pub yes: bool,

    /// Restore the intact parts of a damaged backup: lost blocks become holes, or keep their content with
    /// --into. Exit code 3 if anything is lost.
    #[arg(long)]
    #[serde(default)]
    pub salvage: bool,

    /// New file for a map, in GNU ddrescue's format, of restored and lost parts.
    #[arg(long, value_name = "FILE", requires = "salvage")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub map: Option<PathBuf>,

    /// Number of threads that decompress and write a raw file. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,

    /// Memory for cached blocks.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = MEMORY_DEFAULT)]
    pub memory: u64,

    /// How a new volume takes part in deduplication, and its share of the pool.
    #[command(flatten)]
    #[serde(flatten)]
    pub options: NewVolumeOptions,
}

/// A backup that was restored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BackupRestoreReply {
    /// Name of the backup, SOURCE@N.
    pub name: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// What was written.
    #[serde(flatten)]
    pub restored: RestoredBytes,
    /// With `--salvage`, the blocks that could not be restored.
    pub lost: Option<RestoreLosses>,
    /// Whether an existing volume keeps its earlier content in place of lost blocks, for the text.
    #[serde(skip)]
    pub keeps_lost: bool,
}

/// The blocks that could not be restored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestoreLosses {
    /// Bytes of the disk that are lost.
    pub bytes: u64,
    /// The lost ranges of the disk, in ascending order.
    pub ranges: Vec<RestoreLostRange>,
    /// The first twenty reasons for the losses.
    pub reasons: Vec<String>,
}

/// A range of blocks that could not be restored.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestoreLostRange {
    /// The first block, in blocks of the backup.
    pub lba: u64,
    /// Number of blocks in the range.
    pub blocks: u64,
    /// Offset of the range's first byte on the disk.
    pub offset_bytes: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

impl RestoreLosses {
    fn of(backup: &RestoredBackup, lost: &LostBlocks) -> Self {
        let (size_bytes, block_size) = (backup.size_bytes(), backup.block_size());
        let range = |blocks: Range<u64>| {
            let offset_bytes = blocks.start * block_size;
            RestoreLostRange {
                lba: blocks.start,
                blocks: blocks.end - blocks.start,
                offset_bytes,
                // The last block of the disk may be shorter.
                bytes: (blocks.end * block_size).min(size_bytes) - offset_bytes,
            }
        };
        let ranges: Vec<_> = lost.ranges(0..u64::MAX).into_iter().map(range).collect();
        Self {
            bytes: ranges.iter().map(|range| range.bytes).sum(),
            ranges,
            reasons: lost.reasons(),
        }
    }
}

/// What a restore wrote.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestoredBytes {
    /// Bytes written: the data of an image, without holes; or the bytes that differed in a volume.
    pub written_bytes: u64,
    /// Reads of packs; set only for a raw image, for which packs are read in order.
    pub pack_reads: Option<u64>,
}

/// A target of restores, which the caller opens.
pub trait RestoreTarget {
    /// Refuses a target that cannot take the backup, or whose content may not be overwritten. Changes nothing.
    ///
    /// # Errors
    /// The reason, and a remedy.
    fn prepare(&self, backup: &RestoredBackup) -> Result<()>;

    /// Writes the backup.
    ///
    /// # Errors
    /// Damage of the backup, the interruption, or a failure of the target.
    fn write(&self, backup: &RestoredBackup, supervision: &Supervision) -> Result<RestoredBytes>;
}

impl RepositoryVerb for BackupRestore {
    const NAME: &'static str = "backup restore";
    type Reply = BackupRestoreReply;

    fn check(&self) -> Result<()> {
        if let Some(volume) = &self.volume {
            check_name(volume)?;
            self.options.check()
        } else if self.file.is_none() && self.into.is_none() {
            Err(Error::usage(
                "restore to what? give a new file or a device, --volume for a new volume, or --into for a volume \
                 that is there",
            ))
        } else {
            Ok(())
        }
    }
}

impl RepositoryRequest for BackupRestore {
    const USE: RepositoryUse = RepositoryUse::LongRead;

    fn run(&self, at: &mut RepositoryService<'_>) -> Result<BackupRestoreReply> {
        let target = at.restore_target()?;
        let (source, number) = self.name.find(at.opened())?;
        let blocks = BlockReader::new(Arc::clone(at.repository()), self.memory as usize / 2);
        let backup = RestoredBackup::open(&blocks, &source, number, self.salvage)?;
        backup.check()?;
        target.prepare(&backup)?;
        let restored = target.write(&backup, at.supervision())?;
        let lost = backup.lost().map(|lost| RestoreLosses::of(&backup, lost));
        if lost.as_ref().is_some_and(|lost| lost.bytes > 0) {
            at.found(Outcome::Damaged);
        }
        Ok(BackupRestoreReply {
            name: backup.name().to_owned(),
            size_bytes: backup.size_bytes(),
            restored,
            lost,
            keeps_lost: self.into.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restore_needs_a_target() {
        let request = |target: &[&str]| {
            let words = ["restore", "web@1"].iter().chain(target);
            let command = BackupRestore::augment_args(clap::Command::new("restore"));
            let matches = command.try_get_matches_from(words).unwrap();
            <BackupRestore as clap::FromArgMatches>::from_arg_matches(&matches).unwrap()
        };
        for target in [&["file"][..], &["--volume", "web"], &["--into", "web"]] {
            request(target).check().unwrap();
        }
        for target in [&[][..], &["--volume", "a@b"]] {
            let error = request(target).check().unwrap_err();
            assert_eq!(error.kind, crate::ErrorKind::Usage, "{error}");
        }
    }
}
