//! Serves backups as read-only NBD exports, directly from their repository.

use onefold_api::backup::BackupName;
use onefold_api::{Error, Result};
use onefold_backup::{BackupError, BlockReader, Difference, LostBlocks, Opened, Restore};
use onefold_format::backup::{BackupNumber, SourceId};
use onefold_nbd::{
    AttachError, Attached, Blocking, Change, ChangedExtent, Changes, Export, ExportError,
    ExportSummary, Exports, Extent, Failure, Peer,
};
use onefold_repository::KnownSource;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The backups of a repository, by `SOURCE@N`.
pub(crate) struct BackupExports {
    opened: Opened,
    blocks: Arc<BlockReader>,
    /// The named backups; `None` for all.
    named: Option<BTreeSet<String>>,
    lost: Mutex<BTreeMap<(SourceId, BackupNumber), Arc<LostBlocks>>>,
}

/// A backup as an NBD export.
struct BackupExport {
    name: String,
    restore: Restore,
    /// Blocks whose damage has already been logged.
    lost: Arc<LostBlocks>,
}

/// The changes between two backups of a source.
struct BackupChanges {
    backup: Arc<BackupExport>,
    since: Restore,
}

impl BackupExports {
    /// The named backups, or all that the repository has while it is served if none is named.
    pub(crate) fn new(opened: Opened, names: &[BackupName], memory_bytes: usize) -> Result<Self> {
        let named = names.iter().map(|name| {
            let (source, number) = name.find(&opened)?;
            Ok(BackupName::new(&source, number).to_string())
        });
        let named = named.collect::<Result<BTreeSet<String>>>()?;
        Ok(Self {
            blocks: BlockReader::new(Arc::clone(opened.repository()), memory_bytes),
            opened,
            named: (!named.is_empty()).then_some(named),
            lost: Mutex::default(),
        })
    }

    /// Number of the named backups; `None` for all.
    pub(crate) fn named(&self) -> Option<u64> {
        self.named.as_ref().map(|named| named.len() as u64)
    }

    fn all(&self) -> Result<BTreeSet<String>> {
        if let Some(named) = &self.named {
            return Ok(named.clone());
        }
        let repository = self.blocks.repository();
        let mut names = BTreeSet::new();
        for source in repository.sources()?.disks {
            let numbers = repository.backups(source.id)?;
            let name = |number| BackupName::new(&source, number).to_string();
            names.extend(numbers.into_iter().map(name));
        }
        Ok(names)
    }

    fn find(&self, name: &str) -> std::result::Result<(KnownSource, BackupNumber), AttachError> {
        let name: BackupName = name.parse().map_err(|_| AttachError::Unknown)?;
        let found = name.find(&self.opened);
        let (source, number) = found.map_err(|_| AttachError::Unknown)?;
        let full = BackupName::new(&source, number).to_string();
        match &self.named {
            Some(named) if !named.contains(&full) => Err(AttachError::Unknown),
            _ => Ok((source, number)),
        }
    }

    fn open(
        &self,
        source: &KnownSource,
        number: BackupNumber,
    ) -> std::result::Result<Restore, AttachError> {
        Restore::open(&self.blocks, source, number, "backup mount")
            .map_err(|error| AttachError::Refused(Error::from(error).to_string()))
    }
}

impl Exports for BackupExports {
    fn names(&self, after: Option<&str>, names_max: usize) -> Vec<String> {
        let all = self.all().unwrap_or_else(|error| {
            tracing::error!("the backups cannot be listed: {error}");
            BTreeSet::new()
        });
        let names = all
            .into_iter()
            .filter(|name| after.is_none_or(|after| name.as_str() > after));
        names.take(names_max).collect()
    }

    fn describe(&self, name: &str) -> std::result::Result<ExportSummary, AttachError> {
        let (source, number) = self.find(name)?;
        let manifest = self.blocks.repository().manifest(source.id, number);
        let manifest = manifest.map_err(|error| AttachError::Refused(error.to_string()))?;
        Ok(ExportSummary {
            size_bytes: manifest.size_bytes,
            preferred_block_bytes: manifest.block_size,
            read_only: true,
        })
    }

    /// Numbers of the other backups of the source.
    fn snapshots(&self, name: &str, snapshots_max: usize) -> Vec<String> {
        let Ok((source, number)) = self.find(name) else {
            return Vec::new();
        };
        let numbers = self.blocks.repository().backups(source.id);
        let others = numbers
            .into_iter()
            .flatten()
            .filter(|other| *other != number);
        others
            .take(snapshots_max)
            .map(|other| other.to_string())
            .collect()
    }

    fn attach(
        &self,
        name: &str,
        since: &[String],
        _peer: &Peer,
    ) -> std::result::Result<Attached, AttachError> {
        let (source, number) = self.find(name)?;
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = Arc::clone(lost.entry((source.id, number)).or_default());
        let backup = Arc::new(BackupExport {
            name: BackupName::new(&source, number).to_string(),
            restore: self.open(&source, number)?,
            lost,
        });
        let changes = since.iter().map(|since| {
            let since = since.parse().map_err(|_| AttachError::Unknown)?;
            let changes: Arc<dyn Changes> = Arc::new(BackupChanges {
                backup: Arc::clone(&backup),
                since: self.open(&source, BackupNumber(since))?,
            });
            Ok(changes)
        });
        Ok(Attached {
            changes: changes.collect::<std::result::Result<_, _>>()?,
            export: backup,
        })
    }
}

/// Fails with `WouldBlock` if the caller must not block, because recipes may have to be read; a worker then
/// retries.
fn may_wait(blocking: Blocking) -> std::result::Result<(), ExportError> {
    match blocking {
        Blocking::Yes => Ok(()),
        Blocking::No => Err(ExportError::WouldBlock),
    }
}

impl BackupExport {
    /// Converts an error; logs each damaged block only once.
    fn failed(&self, error: BackupError) -> ExportError {
        let BackupError::Damaged { block, blocks, .. } = error else {
            return failed(error);
        };
        let blocks = block..block + blocks.max(1);
        if self.lost.add(blocks, &error) {
            tracing::error!("{}: {error}", self.name);
        }
        ExportError::Failed {
            failure: Failure::LoggedIo,
            source: Box::new(error),
        }
    }
}

fn failed(error: BackupError) -> ExportError {
    ExportError::Failed {
        failure: Failure::Io,
        source: Box::new(error),
    }
}

impl Export for BackupExport {
    fn size_bytes(&self) -> u64 {
        self.restore.manifest().size_bytes
    }

    fn preferred_block_bytes(&self) -> u32 {
        self.restore.manifest().block_size
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        blocking: Blocking,
    ) -> std::result::Result<(), ExportError> {
        if blocking == Blocking::Yes {
            return self.restore.read(offset, buf).map_err(|e| self.failed(e));
        }
        let read = self.restore.read_from_memory(offset, buf);
        if read.map_err(|e| self.failed(e))? {
            Ok(())
        } else {
            Err(ExportError::WouldBlock)
        }
    }

    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> std::result::Result<Vec<Extent>, ExportError> {
        may_wait(blocking)?;
        let runs = self
            .restore
            .extents(&range, extents_max)
            .map_err(|e| self.failed(e))?;
        let extent = |run: onefold_backup::Run<bool>| Extent {
            len: run.bytes,
            data: run.what,
        };
        Ok(runs.into_iter().map(extent).collect())
    }

    /// Reads the range, whose blocks then stay in the cache for a while.
    fn prefetch(
        &self,
        range: Range<u64>,
        scratch: &mut [u8],
    ) -> std::result::Result<(), ExportError> {
        let mut at = range.start;
        while at < range.end && !scratch.is_empty() {
            let piece = (scratch.len() as u64).min(range.end - at) as usize;
            self.restore
                .read(at, &mut scratch[..piece])
                .map_err(|e| self.failed(e))?;
            at += piece as u64;
        }
        Ok(())
    }
}

impl Changes for BackupChanges {
    fn extents(
        &self,
        range: Range<u64>,
        extents_max: usize,
        blocking: Blocking,
    ) -> std::result::Result<Vec<ChangedExtent>, ExportError> {
        may_wait(blocking)?;
        let differences = self
            .backup
            .restore
            .differences(&self.since, &range, extents_max);
        let extent = |run: onefold_backup::Run<Difference>| ChangedExtent {
            len: run.bytes,
            change: match run.what {
                Difference::Same => Change::Same,
                Difference::Data => Change::Data,
                Difference::Zeros => Change::Zero,
            },
        };
        Ok(differences
            .map_err(failed)?
            .into_iter()
            .map(extent)
            .collect())
    }
}
