//! `onefold backup mount`: backups as read-only NBD exports, directly from the repository.

use super::{BackupName, MEMORY_DEFAULT, Opened, RepositoryArgs};
use crate::context::Context;
use crate::daemon::log_to_stderr;
use crate::foreground::stop_when_interrupted;
use onefold_api::{Error, Result, size};
use onefold_backup::{BackupError, BlockReader, Difference, LostBlocks, Restore};
use onefold_format::backup::{BackupNumber, SourceId};
use onefold_nbd::{
    AttachError, Attached, Blocking, Change, ChangedExtent, Changes, Export, ExportError,
    ExportSummary, Exports, Extent, Failure, ListenAddress, ListenOptions, Listener, Peer, Server,
    ServerLimits,
};
use onefold_repository::KnownSource;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The least memory: half of it is for clients, each of which takes about 290 KiB, and a program that copies
/// a disk counts as four clients.
const MEMORY_MIN: u64 = 8 << 20;

/// Time that requests in progress have to finish at shutdown.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Backups to serve. If none is named, all backups of the repository are served, including new ones.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    names: Vec<BackupName>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Address for NBD clients: unix:PATH or HOST:PORT. May be given several times.
    #[arg(long = "nbd", value_name = "ADDRESS", required = true)]
    addresses: Vec<ListenAddress>,

    /// Allow addresses other than loopback. Any client that reaches them can read the backups.
    #[arg(long)]
    insecure_listen: bool,

    /// Memory for cached blocks, at least 8 MiB. Clients and their requests take as much again; 64 MiB are
    /// enough for 110 clients.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = MEMORY_DEFAULT)]
    memory: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let limits = |memory_bytes: u64| ServerLimits {
        memory_bytes: memory_bytes as usize,
        ..ServerLimits::default()
    };
    if args.memory < MEMORY_MIN {
        return Err(Error::usage(format!(
            "--memory {} is too little: {} are needed, and serve {} clients",
            size::display(args.memory),
            size::display(MEMORY_MIN),
            limits(MEMORY_MIN).clients_max()
        )));
    }
    log_to_stderr();
    let opened = args.repository.open(context)?;
    let named = args.names.iter().map(|name| {
        let (source, number) = name.find(&opened)?;
        Ok(format!("{}@{number}", source.source.name))
    });
    let named = named.collect::<Result<BTreeSet<String>>>()?;
    let count = named.len() as u64;
    let mounted = Mounted {
        blocks: BlockReader::new(Arc::clone(opened.repository()), args.memory as usize),
        opened,
        named: (!named.is_empty()).then_some(named),
        lost: Mutex::default(),
    };
    let options = ListenOptions {
        insecure_listen: args.insecure_listen,
        ..ListenOptions::default()
    };
    let listen = |address: &ListenAddress| {
        Listener::bind(address, &options).map_err(|error| Error::failed(error.to_string()))
    };
    let listeners = args.addresses.iter().map(listen);
    let listeners = listeners.collect::<Result<Vec<_>>>()?;
    let (stop, stopped) = channel();
    let is_stopping = AtomicBool::new(false);
    stop_when_interrupted(move || {
        let _ = stop.send(());
        is_stopping.swap(true, Ordering::Relaxed)
    })?;
    let server = Server::start(listeners, Arc::new(mounted), &limits(args.memory));
    let server = server.map_err(|e| Error::io("cannot serve the backups", &e))?;
    let addresses = args.addresses.iter().map(ToString::to_string);
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    match count {
        0 => context
            .output
            .note(format_args!("all backups are served on {addresses}")),
        _ => {
            let served = size::count(count, "backup");
            context
                .output
                .note(format_args!("{served} served on {addresses}"));
        }
    }
    // The channel closes only when the process ends.
    let _ = stopped.recv();
    let ended = server.shutdown(DRAIN_TIME_MAX);
    if ended.cut_off > 0 {
        let clients = size::count(ended.cut_off as u64, "client");
        context.output.note(format_args!("{clients} cut off"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The backups of a repository, by `SOURCE@N`.
struct Mounted {
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

impl Mounted {
    fn all(&self) -> Result<BTreeSet<String>> {
        if let Some(named) = &self.named {
            return Ok(named.clone());
        }
        let repository = self.blocks.repository();
        let mut names = BTreeSet::new();
        for source in repository.sources()?.disks {
            let numbers = repository.backups(source.id)?;
            let name = |number| format!("{}@{number}", source.source.name);
            names.extend(numbers.into_iter().map(name));
        }
        Ok(names)
    }

    fn find(&self, name: &str) -> std::result::Result<(KnownSource, BackupNumber), AttachError> {
        let name: BackupName = name.parse().map_err(|_| AttachError::Unknown)?;
        let found = name.find(&self.opened);
        let (source, number) = found.map_err(|_| AttachError::Unknown)?;
        let full = format!("{}@{number}", source.source.name);
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

impl Exports for Mounted {
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
            name: format!("{}@{number}", source.source.name),
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
