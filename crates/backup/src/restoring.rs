//! Restores a whole backup to a target that the caller writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use onefold_format::backup::BackupNumber;
use onefold_repository::{KnownSource, RepositoryErrorKind};

use crate::blocks::BlockReader;
use crate::by_pack::ReadCounts;
use crate::error::{BackupError, Result};
use crate::lost::LostBlocks;
use crate::restore::Restore;
use crate::supervision::{ProgressUnit, ShowProgress, Supervision};

/// The state of an interrupted restore.
const INCOMPLETE: &str = "the restore is not complete";

/// A backup that is being restored.
pub struct RestoredBackup {
    restore: Restore,
    name: String,
    /// Records blocks that cannot be restored; if `None`, damage ends the restore.
    lost: Option<LostBlocks>,
}

/// How several threads read a backup.
#[derive(Debug, Clone, Copy)]
pub struct ReadingOptions {
    /// Number of threads.
    pub threads: usize,
    /// Memory for blocks that are read and not yet written.
    pub memory_bytes: usize,
}

impl RestoredBackup {
    /// Opens a backup to restore it. With `is_salvaged`, it is restored without the blocks that are damaged.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Damaged` if it is not known where the backup's blocks are.
    pub fn open(
        blocks: &Arc<BlockReader>,
        source: &KnownSource,
        number: BackupNumber,
        is_salvaged: bool,
    ) -> Result<Self> {
        let name = format!("{}@{number}", source.source.name);
        let restore = Restore::open(blocks, source, number, "backup restore");
        let restore = restore.map_err(|error| {
            hinted(
                error,
                format_args!(
                    "it says where the blocks of {name} are, so all of {name} is lost, and other backups of '{}' are not \
                     concerned",
                    source.source.name
                ),
            )
        })?;
        Ok(Self {
            restore,
            name,
            lost: is_salvaged.then(LostBlocks::default),
        })
    }

    /// Fails if objects that the backup needs are missing or damaged, unless it is restored without them.
    /// Called before anything is written.
    ///
    /// # Errors
    ///
    /// `Damaged`, with the first affected block.
    pub fn check(&self) -> Result<()> {
        if self.lost.is_some() {
            return Ok(());
        }
        self.restore.check_objects().map_err(|error| {
            hinted(
                error,
                "nothing was written; --salvage restores what can be restored",
            )
        })
    }

    /// Name of the backup, SOURCE@N.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size of the disk.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.restore.manifest().size_bytes
    }

    /// Size of the blocks in which the backup is stored.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.restore.manifest().block_size.into()
    }

    /// The blocks that could not be restored; `None` if damage ends the restore.
    #[must_use]
    pub fn lost(&self) -> Option<&LostBlocks> {
        self.lost.as_ref()
    }

    pub(crate) fn restore(&self) -> &Restore {
        &self.restore
    }

    /// Passes all data to `write`, in ascending order. Returns the number of bytes.
    ///
    /// # Errors
    ///
    /// Damage, if the backup is not salvaged; the interruption; or the error of `write`.
    pub fn read_all<E: From<BackupError>>(
        &self,
        supervision: &Supervision,
        mut write: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E> {
        let (show, size_bytes) = (begin(supervision), self.size_bytes());
        let (mut written_bytes, mut failure) = (0, None);
        let read = self.restore.read_all(self.lost(), &mut |at, bytes| {
            show(at, size_bytes);
            written_bytes += bytes.len() as u64;
            let written = supervision.check(INCOMPLETE).map_err(E::from);
            written.and_then(|()| write(at, bytes)).map_err(|error| {
                failure = Some(error);
                ended()
            })
        });
        match (read, failure) {
            (Ok(()), _) => Ok(written_bytes),
            (Err(_), Some(failure)) => Err(failure),
            (Err(error), None) => Err(stopped_by(error).into()),
        }
    }

    /// Passes all data to `write` on several threads, in the order of packs, which is fast.
    ///
    /// # Errors
    ///
    /// Damage, if the backup is not salvaged; the interruption; or the error of `write`.
    pub fn read_anywhere<E: From<BackupError> + Send>(
        &self,
        supervision: &Supervision,
        options: ReadingOptions,
        write: impl Fn(u64, &[u8]) -> std::result::Result<(), E> + Sync,
    ) -> std::result::Result<ReadCounts, E> {
        let show = begin(supervision);
        let all = self.restore.manifest().counts.logical_blocks * self.block_size();
        let (done, failure) = (AtomicU64::new(0), Mutex::new(None));
        let ReadingOptions {
            threads,
            memory_bytes,
        } = options;
        let read = self
            .restore
            .read_anywhere(threads, memory_bytes, self.lost(), &|at, bytes| {
                let len = bytes.len() as u64;
                show(done.fetch_add(len, Ordering::Relaxed) + len, all);
                let written = supervision.check(INCOMPLETE).map_err(E::from);
                written.and_then(|()| write(at, bytes)).map_err(|error| {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    ended()
                })
            });
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (read, failure) {
            (Ok(counts), _) => Ok(counts),
            (Err(_), Some(failure)) => Err(failure),
            (Err(error), None) => Err(stopped_by(error).into()),
        }
    }
}

pub(crate) fn begin(supervision: &Supervision) -> ShowProgress {
    supervision.begin("restoring", ProgressUnit::Bytes)
}

/// Ends reading after an error that is kept elsewhere, because it is of the writer's type.
fn ended() -> BackupError {
    BackupError::Receiver("the target cannot be written".to_owned())
}

/// Adds a hint for the user to an error about damage that is found while the target is written.
pub(crate) fn stopped_by(error: BackupError) -> BackupError {
    hinted(error, "--salvage restores the rest")
}

/// Adds a hint for the user to an error about damage.
fn hinted(error: BackupError, hint: impl std::fmt::Display) -> BackupError {
    match error.kind() {
        RepositoryErrorKind::Damaged => {
            BackupError::refused(RepositoryErrorKind::Damaged, format!("{error}; {hint}"))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_damage_has_a_hint() {
        let damage = BackupError::refused(RepositoryErrorKind::Damaged, "block 7");
        let hinted = stopped_by(damage);
        assert_eq!(hinted.to_string(), "block 7; --salvage restores the rest");
        assert_eq!(hinted.kind(), RepositoryErrorKind::Damaged);
        let full = BackupError::refused(RepositoryErrorKind::NoSpace, "full");
        assert_eq!(stopped_by(full).to_string(), "full");
    }
}
