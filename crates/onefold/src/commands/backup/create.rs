//! `onefold backup create`

use super::{
    Context, MEMORY_DEFAULT, RepositoryArgs, backup_error, disk, now_unix_seconds, repository_error,
};
use crate::commands::foreground::{interruption, random_seed};
use crate::commands::parse_size;
use crate::image::ImageFormat;
use crate::image::reader::{ImageOptions, open_image};
use crate::output::Render;
use crate::progress::Progress;
use crate::session::Session;
use onefold_api::{
    Error, PoolStat, Result, SnapshotCreate, SnapshotDelete, SnapshotName, check_name, size,
};
use onefold_backup::{BackupError, Created, Disk, ImageDisk, Options, create};
use onefold_format::backup::Source;
use onefold_repository::{KnownSource, Repository};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of a block of a disk that no pool has.
const BLOCK_SIZE: u32 = 4096;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// What is backed up: a volume of the pool, as it is at one moment; a snapshot; or a disk image or
    /// device, with the name that it has in the repository.
    #[arg(value_name = "VOLUME|VOLUME@SNAPSHOT|NAME=FILE", required = true)]
    sources: Vec<Wanted>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// The format of disk images. It is never guessed. Without this they are raw.
    #[arg(long, value_enum)]
    image_format: Option<ImageFormat>,

    /// Also read other files that a qcow2 image refers to. Only for images that you trust.
    #[arg(long)]
    allow_backing: bool,

    /// A word to remember the backups by; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,

    /// zstd's level, 1 to 19.
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,

    /// Threads that compress and encrypt. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Memory for each stage.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = MEMORY_DEFAULT)]
    memory: u64,
}

/// What is to be backed up.
#[derive(Debug, Clone)]
enum Wanted {
    Volume(String),
    Snapshot { volume: String, name: SnapshotName },
    Image { name: String, file: PathBuf },
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wanted = match (text.split_once('='), text.split_once('@')) {
            (Some((name, file)), _) => Self::Image {
                name: name.to_owned(),
                file: PathBuf::from(file),
            },
            (None, Some((volume, _))) => Self::Snapshot {
                volume: volume.to_owned(),
                name: text.parse()?,
            },
            (None, None) => Self::Volume(text.to_owned()),
        };
        check_name(wanted.source()).map_err(|error| error.to_string())?;
        Ok(wanted)
    }
}

impl Wanted {
    /// Its name in the repository.
    fn source(&self) -> &str {
        match self {
            Self::Volume(name) | Self::Image { name, .. } => name,
            Self::Snapshot { volume, .. } => volume,
        }
    }
}

/// The backups that were made.
#[derive(Debug, Serialize)]
struct Reply {
    backups: Vec<BackupReply>,
}

#[derive(Debug, Serialize)]
struct BackupReply {
    /// SOURCE@N.
    name: String,
    size_bytes: u64,
    /// Data of the disk.
    logical_bytes: u64,
    /// Read from the disk; what it knows to be zeros is not.
    read_bytes: u64,
    /// Content that the source did not have in the repository.
    new_bytes: u64,
    /// What that takes there, compressed.
    stored_bytes: u64,
    seconds: f64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    for (n, wanted) in args.sources.iter().enumerate() {
        let before = &args.sources[..n];
        if before.iter().any(|it| it.source() == wanted.source()) {
            let message = format!("'{}' is to be backed up twice", wanted.source());
            return Err(Error::usage(message));
        }
    }
    let repository = args.repository.open()?;
    let interrupted = interruption()?;
    let job = Job {
        context,
        args,
        repository: &repository,
        interrupted: &interrupted,
        unix_seconds: now_unix_seconds(),
    };
    let needs_pool = |wanted: &Wanted| !matches!(wanted, Wanted::Image { .. });
    let backups = match args.sources.iter().any(needs_pool) {
        true => context.with_session(|session| job.with_snapshots(session))?,
        false => job.all(None)?,
    };
    context.print(&Reply { backups })
}

struct Job<'a> {
    context: &'a Context,
    args: &'a Args,
    repository: &'a Repository,
    interrupted: &'a AtomicBool,
    unix_seconds: u64,
}

/// A pool, and the name of the snapshots that were taken of its volumes.
struct Pool<'a> {
    session: &'a Session,
    snapshot: &'a str,
    block_size: u32,
}

impl Job<'_> {
    /// Backs up with a snapshot of each volume, all at one moment, which are deleted in the end.
    fn with_snapshots(&self, session: &Session) -> Result<Vec<BackupReply>> {
        let snapshot = format!("onefold-backup-{:016x}", random_seed());
        let volumes = self.args.sources.iter().filter_map(|wanted| match wanted {
            Wanted::Volume(name) => Some(format!("{name}@{snapshot}")),
            Wanted::Snapshot { .. } | Wanted::Image { .. } => None,
        });
        let names = volumes.map(|name| name.parse().map_err(Error::usage));
        let names: Vec<SnapshotName> = names.collect::<Result<_>>()?;
        let block_size = session.call(&PoolStat {}, &mut |_, _| {})?.block_size;
        if !names.is_empty() {
            let create = SnapshotCreate {
                names: names.clone(),
            };
            session.call(&create, &mut |_, _| {})?;
        }
        let pool = Pool {
            session,
            snapshot: &snapshot,
            block_size,
        };
        let made = self.all(Some(&pool));
        for name in names {
            let delete = SnapshotDelete {
                name,
                yes: true,
                force: true,
            };
            if let Err(error) = session.call(&delete, &mut |_, _| {}) {
                let what = "a snapshot that was made for the backup is left";
                self.context.output.warn(format_args!("{what}: {error}"));
            }
        }
        made
    }

    fn all(&self, pool: Option<&Pool<'_>>) -> Result<Vec<BackupReply>> {
        let each = self.args.sources.iter().map(|wanted| {
            let (mut disk, block_size) = self.open(wanted, pool)?;
            let source = self.source(wanted.source(), block_size)?;
            let began = Instant::now();
            let made = self.one(&source, disk.as_mut())?;
            Ok(BackupReply::of(
                &source,
                &made,
                began.elapsed().as_secs_f64(),
            ))
        });
        each.collect()
    }

    fn open(&self, wanted: &Wanted, pool: Option<&Pool<'_>>) -> Result<(Box<dyn Disk>, u32)> {
        let name = match (wanted, pool) {
            (Wanted::Image { file, .. }, _) => {
                let options = ImageOptions {
                    format: self.args.image_format,
                    allow_backing: self.args.allow_backing,
                    stream_bytes: None,
                };
                let image = open_image(file, &options, &self.context.output)?;
                return Ok((Box::new(ImageDisk(image)), BLOCK_SIZE));
            }
            (Wanted::Volume(name), Some(pool)) => format!("{name}@{}", pool.snapshot),
            (Wanted::Snapshot { name, .. }, Some(_)) => String::from(name.clone()),
            (_, None) => return Err(Error::usage("volumes are backed up from a pool")),
        };
        let Some(pool) = pool else {
            return Err(Error::usage("volumes are backed up from a pool"));
        };
        Ok((disk::open(pool.session, &name)?, pool.block_size))
    }

    /// The source of this name; a new one where there is none.
    fn source(&self, name: &str, block_size: u32) -> Result<KnownSource> {
        let found = self.repository.source(name).map_err(repository_error)?;
        if let Some(found) = found {
            if found.source.block_size != block_size {
                return Err(Error::usage(format!(
                    "'{name}' has blocks of {} bytes in the repository, and of {block_size} here; back \
                     it up as another source",
                    found.source.block_size
                )));
            }
            return Ok(found);
        }
        let source = Source {
            name: name.to_owned(),
            block_size,
            volume: None,
            next_backup: 1,
            next_pack: 0,
        };
        self.repository.add_source(source).map_err(repository_error)
    }

    fn one(&self, source: &KnownSource, disk: &mut dyn Disk) -> Result<Created> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let options = Options {
            parent: None,
            base: None,
            unix_seconds: self.unix_seconds,
            tags: self.args.tags.clone(),
            level: self.args.level,
            threads: self.args.threads.map_or(processors, usize::from),
            memory_bytes: self.args.memory as usize,
        };
        let label = format!("backing up {}", source.source.name);
        let progress = Progress::bytes(&self.context.output, &label);
        let report = &mut |done, all| {
            progress.set(done, all);
            match self.interrupted.load(Ordering::Relaxed) {
                true => Err(BackupError::Receiver(
                    "interrupted; no backup was made".to_owned(),
                )),
                false => Ok(()),
            }
        };
        create(self.repository, source, disk, &options, report).map_err(backup_error)
    }
}

impl BackupReply {
    fn of(source: &KnownSource, made: &Created, seconds: f64) -> Self {
        let (counts, block_size) = (made.manifest.counts, u64::from(made.manifest.block_size));
        Self {
            name: format!("{}@{}", source.source.name, made.backup),
            size_bytes: made.manifest.size_bytes,
            logical_bytes: counts.logical_blocks * block_size,
            read_bytes: counts.read_blocks * block_size,
            new_bytes: counts.new_blocks * block_size,
            stored_bytes: counts.stored_bytes,
            seconds,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.backups.iter().try_for_each(|backup| {
            writeln!(
                out,
                "{}: {} of data, {} of it new, stored in {}; {:.1} s",
                backup.name,
                size::display(backup.logical_bytes),
                size::display(backup.new_bytes),
                size::display(backup.stored_bytes),
                backup.seconds
            )
        })
    }
}
