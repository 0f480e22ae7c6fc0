//! `onefold backup create`

use super::base::Pool;
use super::disk::{self, SinceDisk};
use super::{
    Context, MEMORY_DEFAULT, RepositoryArgs, backup_error, now_unix_seconds, repository_error,
};
use crate::commands::foreground::interruption;
use crate::commands::parse_size;
use crate::image::ImageFormat;
use crate::image::reader::{ImageOptions, open_image};
use crate::output::Render;
use crate::progress::Progress;
use crate::session::Session;
use onefold_api::{Error, ErrorKind, Result, SnapshotName, check_name, size};
use onefold_backup::{BackupError, Created, Disk, ImageDisk, Options, create};
use onefold_format::backup::{BackupNumber, ChangedBy, PoolSnapshot, Source};
use onefold_repository::{KnownSource, Repository, Writer};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
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

    /// Read all of a volume, and not only what changed since its last backup. The result is the same.
    #[arg(long)]
    full: bool,

    /// What becomes of the snapshot of a volume: with it, the next backup reads only what changed; without
    /// it, the pool need not keep what guests overwrite meanwhile.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Base::Keep)]
    base: Base,

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

/// What becomes of a snapshot once it is backed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Base {
    /// It stays until the next backup.
    Keep,
    /// It goes, and so does that of the backup before.
    Drop,
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
    /// Who said what changed: `layers`, the pool's; or `nobody`, and everything was read.
    changed_by: &'static str,
    /// The number of the backup since which it changed.
    parent: Option<u64>,
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
        false => job.all(job.writers(BLOCK_SIZE)?, None)?,
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

/// A disk to be backed up, and what is known of it.
struct Opened<'a> {
    disk: Box<dyn Disk + 'a>,
    parent: Option<BackupNumber>,
    base: Option<PoolSnapshot>,
    unix_seconds: u64,
}

impl Job<'_> {
    /// Backs up with a snapshot of each volume, all at one moment.
    fn with_snapshots(&self, session: &Session) -> Result<Vec<BackupReply>> {
        let mut pool = Pool::new(session, self.repository.id())?;
        // Before the snapshots: whoever has the sources may be about to delete those that it does not know.
        let writers = self.writers(pool.block_size)?;
        let volumes = self.args.sources.iter().filter_map(|wanted| match wanted {
            Wanted::Volume(name) => Some(name.as_str()),
            Wanted::Snapshot { .. } | Wanted::Image { .. } => None,
        });
        pool.take(&volumes.collect::<Vec<_>>())?;
        let made = self.all(writers, Some(&mut pool));
        pool.clear(&self.context.output);
        made
    }

    /// The right to change each source, and new sources where there are none.
    fn writers(&self, pool_block_size: u32) -> Result<Vec<Writer<'_>>> {
        let each = self.args.sources.iter().map(|wanted| {
            let block_size = match wanted {
                Wanted::Image { .. } => BLOCK_SIZE,
                Wanted::Volume(_) | Wanted::Snapshot { .. } => pool_block_size,
            };
            let source = self.source(wanted.source(), block_size)?;
            let writer = self.repository.writer(source.id, "backup create");
            writer.map_err(repository_error)
        });
        each.collect()
    }

    fn all(
        &self,
        writers: Vec<Writer<'_>>,
        mut pool: Option<&mut Pool<'_>>,
    ) -> Result<Vec<BackupReply>> {
        let each = self.args.sources.iter().zip(writers);
        let each = each.map(|(wanted, writer)| {
            let began = Instant::now();
            let mut opened = match (wanted, pool.as_deref()) {
                (Wanted::Image { file, .. }, _) => self.open_image(file)?,
                (Wanted::Volume(_) | Wanted::Snapshot { .. }, Some(pool)) => {
                    self.open_snapshot(wanted, &writer, pool)?
                }
                (_, None) => return Err(Error::usage("volumes are backed up from a pool")),
            };
            let made = self.one(&writer, &mut opened)?;
            let seconds = began.elapsed().as_secs_f64();
            let reply = BackupReply::of(writer.source(), &made, seconds);
            drop(opened);
            if let (Wanted::Volume(name), Some(pool)) = (wanted, pool.as_deref_mut()) {
                let snapshot = pool.taken(name)?;
                let is_kept = self.args.base == Base::Keep;
                pool.backed_up(&snapshot, is_kept, &self.context.output);
            }
            Ok(reply)
        });
        each.collect()
    }

    fn open_image(&self, file: &Path) -> Result<Opened<'_>> {
        let options = ImageOptions {
            format: self.args.image_format,
            allow_backing: self.args.allow_backing,
            stream_bytes: None,
        };
        let image = open_image(file, &options, &self.context.output)?;
        Ok(Opened {
            disk: Box::new(ImageDisk(image)),
            parent: None,
            base: None,
            unix_seconds: self.unix_seconds,
        })
    }

    fn open_snapshot<'p>(
        &self,
        wanted: &Wanted,
        writer: &Writer<'_>,
        pool: &Pool<'p>,
    ) -> Result<Opened<'p>> {
        let volume = wanted.source();
        let snapshots = pool.snapshots(volume)?;
        let snapshot = match wanted {
            Wanted::Snapshot { name, .. } => {
                let name = String::from(name.clone());
                let found = snapshots.iter().find(|it| it.name == name);
                found.cloned().ok_or_else(|| {
                    let message = format!("there is no snapshot '{name}'");
                    Error::new(ErrorKind::NotFound, message)
                })?
            }
            Wanted::Volume(_) | Wanted::Image { .. } => pool.taken(volume)?,
        };
        let disk = disk::open(pool.session, &snapshot)?;
        let parent = match self.args.full {
            true => None,
            false => pool.parent(self.repository, writer.source(), &snapshots)?,
        };
        let mut opened = Opened {
            disk,
            parent: None,
            base: Some(pool.base_of(&snapshot)),
            unix_seconds: snapshot.created_unix_seconds,
        };
        let Some(parent) = parent else {
            return Ok(opened);
        };
        match SinceDisk::new(pool.session, opened.disk, parent.base, snapshot.name) {
            Ok(disk) => {
                opened.disk = Box::new(disk);
                opened.parent = Some(parent.backup);
            }
            Err((disk, error)) => {
                opened.disk = disk;
                self.context.output.note(format_args!(
                    "all of '{volume}' is read: what changed since {volume}@{} of the repository is \
                     not known: {error}",
                    parent.backup
                ));
            }
        }
        Ok(opened)
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

    fn one(&self, writer: &Writer<'_>, opened: &mut Opened<'_>) -> Result<Created> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let options = Options {
            parent: opened.parent,
            base: opened.base,
            unix_seconds: opened.unix_seconds,
            tags: self.args.tags.clone(),
            level: self.args.level,
            threads: self.args.threads.map_or(processors, usize::from),
            memory_bytes: self.args.memory as usize,
        };
        let label = format!("backing up {}", writer.source().source.name);
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
        let disk = opened.disk.as_mut();
        create(writer, disk, &options, report).map_err(backup_error)
    }
}

impl BackupReply {
    fn of(source: &KnownSource, made: &Created, seconds: f64) -> Self {
        let (counts, block_size) = (made.manifest.counts, u64::from(made.manifest.block_size));
        Self {
            name: format!("{}@{}", source.source.name, made.backup),
            size_bytes: made.manifest.size_bytes,
            logical_bytes: counts.logical_blocks * block_size,
            changed_by: match made.manifest.changed_by {
                ChangedBy::Nobody => "nobody",
                ChangedBy::Layers => "layers",
            },
            parent: made.manifest.parent.map(|parent| parent.0),
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
                "{}: {} of data, {} read, {} of it new, stored in {}; {:.1} s",
                backup.name,
                size::display(backup.logical_bytes),
                size::display(backup.read_bytes),
                size::display(backup.new_bytes),
                size::display(backup.stored_bytes),
                backup.seconds
            )
        })
    }
}
