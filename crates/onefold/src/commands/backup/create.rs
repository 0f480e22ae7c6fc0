//! `onefold backup create`

use super::base::{Parent, Pool};
use super::disk::PoolDisk;
use super::identity::{Choice, FoundDisk, Identified, origin_of};
use super::link::Link;
use super::wanted::Wanted;
use super::{
    LEVEL_DEFAULT, MEMORY_DEFAULT, Opened, RepositoryArgs, now_unix_seconds, parse_memory,
    reporting, threads,
};
use crate::context::Context;
use crate::image::ImageFormat;
use crate::image::reader::{ImageOptions, open_image};
use crate::output::Render;
use crate::progress::Progress;
use crate::session::Session;
use onefold_api::{Error, ErrorKind, Result, size};
use onefold_backup::folders::{self, CACHE};
use onefold_backup::{
    Batch, Created, DiskToBackUp, ImageDisk, Options, TableCache, check_parent, create,
    last_step_back,
};
use onefold_format::backup::{ChangedBy, SourceId};
use onefold_repository::{KnownSource, Reached, Repository, Writer, host_name};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Block size for disks that are not in a pool.
const BLOCK_SIZE: u32 = 4096;

/// Domain of disks that are not in a pool: the default domain of volumes.
const DOMAIN: &str = "default";

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Disks to back up: a volume of the pool, as of one moment; a snapshot; or a disk image or device, with
    /// its name in the repository.
    #[arg(
        value_name = "VOLUME|VOLUME@SNAPSHOT|NAME=FILE",
        required_unless_present = "all"
    )]
    disks: Vec<Wanted>,

    /// Back up all volumes of the pool, in addition to the named disks.
    #[arg(long)]
    all: bool,

    /// With --all, leave out volumes whose name matches. `*` stands for any characters, `?` for one, `[a-z]`
    /// for one of several. May be given several times.
    #[arg(long, value_name = "PATTERN", requires = "all")]
    exclude: Vec<glob::Pattern>,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    choice: Choice,

    /// Format of disk images, which is never detected. Without this option, images are read as raw.
    #[arg(long, value_enum)]
    image_format: Option<ImageFormat>,

    /// Read other files to which a qcow2 image refers, too. Only for images that you trust.
    #[arg(long)]
    allow_backing: bool,

    /// Read all of a volume, not only the changes since its last backup. The result is the same.
    #[arg(long)]
    full: bool,

    /// Keep the volume's snapshot as the base of the next backup, which then reads only changes, or drop it
    /// to save pool space.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = Base::Keep)]
    base: Base,

    /// Tag by which to find the backups later; may be given several times.
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,

    /// Compression level of zstd, 1 to 19.
    #[arg(long, value_name = "LEVEL", default_value_t = LEVEL_DEFAULT, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,

    /// Number of threads that compress and encrypt. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Memory limit of each stage.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = MEMORY_DEFAULT)]
    memory: u64,

    /// Folder for temporary files: 48 bytes for each block that is read, and up to as much for each block
    /// that is stored. [default: TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR")]
    temp: Option<PathBuf>,

    /// Folder in which this host caches the contents of the repository's packs: 12 bytes for each stored
    /// block. With the cache, a small backup reads little of the repository. [default: $CACHE_DIRECTORY, or
    /// /var/cache/onefold for root, or $XDG_CACHE_HOME/onefold]
    #[arg(long, env = "ONEFOLD_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Do not use the cache.
    #[arg(long)]
    no_cache: bool,

    /// Run at normal priority. Without this option, a host whose guests use all processors is backed up
    /// slowly.
    #[arg(long)]
    hurry: bool,
}

/// The fate of a snapshot after its backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Base {
    /// Keep the snapshot until the next backup.
    Keep,
    /// Delete the snapshot, and the base of the previous backup, too.
    Drop,
}

/// The JSON document of `backup create`.
#[derive(Debug, Default, Serialize)]
struct Reply {
    backups: Vec<BackupReply>,
    /// New content that several of the disks have, which is stored once.
    new_popular_bytes: u64,
    /// Bytes that the new popular content takes in the repository, compressed.
    stored_popular_bytes: u64,
    seconds: f64,
    /// Why other backups were not made.
    failures: Vec<String>,
}

#[derive(Debug, Serialize)]
struct BackupReply {
    /// Name of the backup, SOURCE@N.
    name: String,
    /// Name of the disk, which may differ from the name of its source.
    disk: String,
    size_bytes: u64,
    /// Bytes of data on the disk.
    logical_bytes: u64,
    /// How changes were found: `layers`, from the pool's layers; or `nobody`, if everything was read.
    changed_by: &'static str,
    /// The number of the parent backup.
    parent: Option<u64>,
    /// Bytes that were read from the disk, without blocks that are known to be zeros.
    read_bytes: u64,
    /// Bytes of data that popular blocks hold.
    popular_bytes: u64,
    /// Bytes of content that the repository did not have and that was stored for this source alone.
    new_bytes: u64,
    /// Bytes that the source's new content takes in the repository, compressed.
    stored_bytes: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    for (n, wanted) in args.disks.iter().enumerate() {
        let before = &args.disks[..n];
        if before.iter().any(|earlier| earlier.disk() == wanted.disk()) {
            let message = format!("'{}' is named twice", wanted.disk());
            return Err(Error::usage(message));
        }
    }
    // Before slow work such as deriving a key, and before any thread is started: threads inherit the class.
    if !args.hurry
        && let Err(error) = onefold_jobs::enter_idle_class()
    {
        tracing::debug!("the backup runs at ordinary priority: {error}");
    }
    args.choice.check(args.all, args.disks.len())?;
    let (opened, interrupted) = args.repository.open_to_change(context)?;
    let cache = args.open_cache(context, opened.repository());
    let job = Job {
        context,
        args,
        opened: &opened,
        repository: opened.repository(),
        cache: cache.as_ref(),
        interrupted: &interrupted,
        unix_seconds: now_unix_seconds(),
    };
    let needs_pool = |wanted: &Wanted| !matches!(wanted, Wanted::Image { .. });
    let (mut reply, mut failures) = if args.all || args.disks.iter().any(needs_pool) {
        context.with_session(|session| job.with_snapshots(session))?
    } else {
        job.back_up(&args.disks, None)?
    };
    let warn = |failure: &Error| context.output.warn(format_args!("{failure}"));
    reply.failures = failures.iter().map(ToString::to_string).collect();
    if reply.backups.is_empty()
        && let Some(failure) = failures.pop()
    {
        failures.iter().for_each(warn);
        return Err(failure);
    }
    failures.iter().for_each(warn);
    if let Some(error) = cache.as_ref().and_then(TableCache::take_failure) {
        note_cache(context, &error);
    }
    context.output.document(&reply)?;
    if failures.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

impl Args {
    /// Opens the host's cache of the repository's tables, which are read from the repository without it.
    fn open_cache(&self, context: &Context, repository: &Repository) -> Option<TableCache> {
        if self.no_cache {
            return None;
        }
        let folder = self.cache.clone().or_else(|| CACHE.usual())?;
        let opened = TableCache::open(&folder, repository, self.memory as usize);
        opened.inspect_err(|error| note_cache(context, error)).ok()
    }
}

fn note_cache(context: &Context, error: &io::Error) {
    context.output.note(format_args!(
        "the cache of tables is not used, and they are read from the repository: {error}"
    ));
}

/// A disk, and the lease of its source.
type Taken<'d, 'r> = (&'d Wanted, Writer<'r>);

struct Job<'a> {
    context: &'a Context,
    args: &'a Args,
    opened: &'a Opened,
    repository: &'a Repository,
    /// `None` if the host has no place for a cache.
    cache: Option<&'a TableCache>,
    interrupted: &'a AtomicBool,
    unix_seconds: u64,
}

impl Job<'_> {
    /// Backs up, with snapshots of all volumes at the same moment.
    fn with_snapshots(&self, session: &Session) -> Result<(Reply, Vec<Error>)> {
        let link = Link {
            session,
            output: &self.context.output,
            interrupted: self.interrupted,
        };
        let mut pool = Pool::new(link, self.repository.id())?;
        if pool.is_paused()? {
            self.context.output.note(format_args!(
                "the daemon's job 'copying' is paused, and the backup waits for it; 'onefold job resume copying' resumes it"
            ));
        }
        let disks = self.disks(&pool)?;
        let made = self.back_up(&disks, Some(&mut pool));
        pool.clear(&self.context.output);
        made
    }

    /// The named disks and, with `--all`, the other volumes.
    fn disks(&self, pool: &Pool<'_>) -> Result<Vec<Wanted>> {
        let mut disks = self.args.disks.clone();
        if self.args.all {
            let is_left_out = |name: &String| {
                let mut patterns = self.args.exclude.iter();
                patterns.any(|pattern| pattern.matches(name))
                    || self.args.disks.iter().any(|wanted| wanted.disk() == name)
            };
            let volumes = pool.volumes()?.into_iter();
            let volumes = volumes.filter(|name| !is_left_out(name));
            disks.extend(volumes.map(Wanted::Volume));
        }
        Ok(disks)
    }

    /// Makes the backups. Returns them, and the errors of the rest.
    fn back_up(
        &self,
        disks: &[Wanted],
        mut pool: Option<&mut Pool<'_>>,
    ) -> Result<(Reply, Vec<Error>)> {
        let began = Instant::now();
        let mut new = BTreeSet::new();
        let taken = self.writers(disks, pool.as_deref(), &mut new);
        let (mut writers, mut failures) =
            taken.inspect_err(|_| self.remove_unused(&new, Vec::new()))?;
        if let Some(pool) = pool.as_deref_mut() {
            // After the leases are taken: their previous holder may have been about to delete new snapshots.
            let volumes = writers.iter().filter_map(|(wanted, _)| wanted.volume());
            failures.extend(pool.take(&volumes.collect::<Vec<_>>()));
            let is_taken = |name| pool.taken(name).is_ok();
            writers.retain(|(wanted, _)| wanted.volume().is_none_or(is_taken));
        }
        let groups = alike(&writers);
        let mut reply = Reply::default();
        for ((_, block_size), group) in &groups {
            let (mut disks, mut opened) = (Vec::new(), Vec::new());
            for (wanted, writer) in group.iter().map(|n| &writers[*n]) {
                match self.open(wanted, writer, pool.as_deref()) {
                    Ok(disk) => {
                        disks.push(disk);
                        opened.push((*wanted, writer));
                    }
                    Err(failure) => failures.push(failure),
                }
            }
            if disks.is_empty() {
                continue;
            }
            let batch = match self.create(&mut disks) {
                Ok(batch) => batch,
                Err(error) => {
                    failures.push(error);
                    break;
                }
            };
            self.note_damage(&batch);
            reply.new_popular_bytes += batch.new_popular_blocks * u64::from(*block_size);
            reply.stored_popular_bytes += batch.popular_bytes;
            let mut seen = Vec::new();
            for ((wanted, writer), made) in opened.into_iter().zip(batch.backups) {
                match made {
                    Ok(made) => {
                        let reached = Reached::by(made.backup, &made.manifest);
                        seen.push((writer.source().id, reached));
                        let backup = BackupReply::of(wanted, writer.source(), &made);
                        reply.backups.push(backup);
                        if let Some(step) = last_step_back(self.repository, writer.source()) {
                            self.context
                                .output
                                .warn(onefold_api::backup::step_back(&step));
                        }
                        self.backed_up(wanted, pool.as_deref_mut())?;
                    }
                    Err(error) => failures.push(Error::from(error)),
                }
            }
            self.opened.saw(&seen);
        }
        self.remove_unused(&new, writers);
        reply.seconds = began.elapsed().as_secs_f64();
        Ok((reply, failures))
    }

    /// Removes new sources that got no backup, once their leases are released.
    fn remove_unused(&self, new: &BTreeSet<SourceId>, writers: Vec<Taken<'_, '_>>) {
        drop(writers);
        for source in new {
            match self.opened.repository().remove_unused_source(*source) {
                Ok(false) => {}
                Ok(true) => self.opened.forget(*source),
                Err(error) => {
                    let output = &self.context.output;
                    output.warn(format_args!("a source without a backup is left: {error}"));
                }
            }
        }
    }

    /// Called when a backup is durable: its snapshot becomes the base, or will be deleted.
    fn backed_up(&self, wanted: &Wanted, pool: Option<&mut Pool<'_>>) -> Result<()> {
        if let (Wanted::Volume(name), Some(pool)) = (wanted, pool) {
            let snapshot = pool.taken(name)?;
            let is_kept = self.args.base == Base::Keep;
            pool.backed_up(&snapshot, is_kept, &self.context.output);
        }
        Ok(())
    }

    /// Takes the leases of the disks' sources, creating missing sources, which are added to `new`. Also
    /// returns the errors of disks that are left out.
    fn writers<'d>(
        &self,
        disks: &'d [Wanted],
        pool: Option<&Pool<'_>>,
        new: &mut BTreeSet<SourceId>,
    ) -> Result<(Vec<Taken<'d, '_>>, Vec<Error>)> {
        let (mut sources, mut failures) = (Vec::<(&Wanted, Identified)>::new(), Vec::new());
        for wanted in disks {
            let identified = self.source_of(wanted, pool).and_then(|identified| {
                let id = identified.source.id;
                if identified.is_new {
                    new.insert(id);
                }
                match sources.iter().find(|(_, before)| before.source.id == id) {
                    Some((before, _)) => Err(Error::usage(format!(
                        "'{}' and '{}' are the same disk, source {} of the repository",
                        before.disk(),
                        wanted.disk(),
                        identified.source
                    ))),
                    None => Ok(identified),
                }
            });
            match identified {
                Ok(identified) => sources.push((wanted, identified)),
                Err(failure) => failures.push(failure),
            }
        }
        // Always in the same order, so that two commands with the same sources cannot deadlock.
        sources.sort_by_key(|(_, identified)| identified.source.id);
        let ids = sources.iter().map(|(_, identified)| identified.source.id);
        let ids: Vec<_> = ids.collect();
        let taken = self.repository.writers(&ids, "backup create");
        let taken = taken?;
        let mut writers = Vec::new();
        for ((wanted, identified), writer) in sources.into_iter().zip(taken) {
            let writer = writer.map_err(Error::from);
            match writer.and_then(|writer| self.labelled(wanted, identified, writer)) {
                Ok(writer) => writers.push((wanted, writer)),
                Err(failure) => failures.push(failure),
            }
        }
        let place = |wanted: &Wanted| {
            let mut disks = disks.iter();
            disks.position(|disk| disk.disk() == wanted.disk())
        };
        writers.sort_by_key(|(wanted, _)| place(wanted));
        Ok((writers, failures))
    }

    fn labelled<'r>(
        &self,
        wanted: &Wanted,
        Identified { source, label, .. }: Identified,
        mut writer: Writer<'r>,
    ) -> Result<Writer<'r>> {
        // The source was chosen before its lease was taken: another command may have changed its name or disk
        // since.
        if writer.source().source != source.source {
            let message = format!(
                "{source} of the repository was changed by another command just now; try again"
            );
            return Err(Error::new(ErrorKind::InUse, message));
        }
        if let Some(label) = label {
            writer.set_label(label)?;
        }
        let (name, disk) = (&source.source.name, wanted.disk());
        if name != disk {
            let output = &self.context.output;
            output.note(format_args!("'{disk}' continues the source '{name}'"));
        }
        Ok(writer)
    }

    /// Finds or creates the source of a disk. A disk that does not exist gets no source.
    fn source_of(&self, wanted: &Wanted, pool: Option<&Pool<'_>>) -> Result<Identified> {
        let disk = match (wanted, pool) {
            (Wanted::Volume(name) | Wanted::Snapshot { volume: name, .. }, Some(pool)) => {
                pool.disk(name)?
            }
            (Wanted::Image { name, file }, _) => FoundDisk {
                name,
                domain: DOMAIN.to_owned(),
                block_size: BLOCK_SIZE,
                origin: origin_of(file)?,
            },
            (_, None) => return Err(Error::usage("volumes are backed up from a pool")),
        };
        let identified = self.args.choice.identify(self.opened, disk)?;
        self.opened.check(identified.source.id)?;
        Ok(identified)
    }

    fn open<'p>(
        &'p self,
        wanted: &Wanted,
        writer: &'p Writer<'p>,
        pool: Option<&Pool<'p>>,
    ) -> Result<DiskToBackUp<'p>> {
        match (wanted, pool) {
            (Wanted::Image { file, .. }, _) => self.open_image(file, writer),
            (wanted, Some(pool)) => self.open_snapshot(wanted, writer, pool),
            (_, None) => Err(Error::usage("volumes are backed up from a pool")),
        }
    }

    fn open_image<'p>(&self, file: &Path, writer: &'p Writer<'p>) -> Result<DiskToBackUp<'p>> {
        let options = ImageOptions {
            format: self.args.image_format,
            allow_backing: self.args.allow_backing,
            stream_bytes: None,
        };
        let failed = |e| Error::io(format_args!("cannot open {file:?}"), &e);
        let disk = ImageDisk::open(file, failed, || {
            open_image(file, &options, &self.context.output)
        })?;
        Ok(DiskToBackUp {
            writer,
            disk: Box::new(disk),
            parent: None,
            base: None,
            unix_seconds: self.unix_seconds,
            snapshot: String::new(),
        })
    }

    fn open_snapshot<'p>(
        &self,
        wanted: &Wanted,
        writer: &'p Writer<'p>,
        pool: &Pool<'p>,
    ) -> Result<DiskToBackUp<'p>> {
        let volume = wanted.disk();
        let snapshots = pool.snapshots(volume)?;
        let snapshot = match wanted {
            Wanted::Snapshot { name, .. } => {
                let name = String::from(name.clone());
                let found = snapshots.iter().find(|snapshot| snapshot.stat.name == name);
                found.cloned().ok_or_else(|| {
                    let message = format!("there is no snapshot '{name}'");
                    Error::new(ErrorKind::NotFound, message)
                })?
            }
            Wanted::Volume(_) | Wanted::Image { .. } => pool.taken(volume)?,
        };
        let mut disk = PoolDisk::open(self.context.pool()?, pool.link, &snapshot)?;
        let mut parent = if self.args.full {
            None
        } else {
            pool.parent(
                self.repository,
                writer.source(),
                &snapshots,
                &self.context.output,
            )?
        };
        let output = &self.context.output;
        let source = &writer.source().source.name;
        if let Some(Parent { backup, .. }) = &parent
            && let Err(error) = check_parent(self.repository, writer.source(), *backup, self.cache)
        {
            output.warn(format_args!(
                "all of '{volume}' is read: {source}@{backup} of the repository cannot be restored: {error}"
            ));
            parent = None;
        }
        if let Some(Parent { backup, base }) = &parent
            && let Err(error) = disk.compare_with(base.clone())
        {
            output.note(format_args!(
                "all of '{volume}' is read: what changed since {source}@{backup} of the repository is not \
                 known: {error}"
            ));
            parent = None;
        }
        Ok(DiskToBackUp {
            writer,
            disk: Box::new(disk),
            parent: parent.map(|parent| parent.backup),
            base: Some(pool.base_of(&snapshot)),
            unix_seconds: snapshot.stat.created_unix_seconds,
            snapshot: wanted.snapshot(),
        })
    }

    fn create(&self, disks: &mut [DiskToBackUp<'_>]) -> Result<Batch> {
        let options = Options {
            tags: self.args.tags.clone(),
            host: host_name(),
            level: self.args.level,
            threads: threads(self.args.threads),
            memory_bytes: self.args.memory as usize,
            temporary: folders::temporary(self.args.temp.as_deref()),
        };
        let label = match &*disks {
            [disk] => format!("backing up {}", disk.writer.source().source.name),
            disks => format!("backing up {} disks", disks.len()),
        };
        let progress = Progress::bytes(&self.context.output, &label);
        let state = "incomplete data is not a backup";
        let report = &mut reporting(&progress, self.interrupted, state);
        create(self.repository, disks, &options, self.cache, report).map_err(Error::from)
    }

    fn note_damage(&self, batch: &Batch) {
        for damaged in &batch.damaged {
            self.context.output.warn(format_args!(
                "{damaged}; the blocks that the disks still have were stored again"
            ));
        }
    }
}

/// Groups sources that can share blocks: those in the same domain with the same block size.
fn alike<'a>(writers: &'a [Taken<'_, '_>]) -> BTreeMap<(&'a str, u32), Vec<usize>> {
    let mut groups: BTreeMap<(&str, u32), Vec<usize>> = BTreeMap::new();
    for (n, (_, writer)) in writers.iter().enumerate() {
        let source = &writer.source().source;
        let group = groups.entry((&source.domain, source.block_size));
        group.or_default().push(n);
    }
    groups
}

impl BackupReply {
    fn of(wanted: &Wanted, source: &KnownSource, made: &Created) -> Self {
        let (counts, block_size) = (made.manifest.counts, u64::from(made.manifest.block_size));
        Self {
            name: format!("{}@{}", source.source.name, made.backup),
            disk: wanted.disk().to_owned(),
            size_bytes: made.manifest.size_bytes,
            logical_bytes: counts.logical_blocks * block_size,
            changed_by: match made.manifest.changed_by {
                ChangedBy::Nobody => "nobody",
                ChangedBy::Layers => "layers",
            },
            parent: made.manifest.parent.map(|parent| parent.0),
            read_bytes: counts.read_blocks * block_size,
            popular_bytes: counts.popular_blocks * block_size,
            new_bytes: counts.new_blocks * block_size,
            stored_bytes: counts.stored_bytes,
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        for backup in &self.backups {
            writeln!(
                out,
                "{}: {} of data, {} read, {} popular, {} new, stored in {}",
                backup.name,
                size::display(backup.logical_bytes),
                size::display(backup.read_bytes),
                size::display(backup.popular_bytes),
                size::display(backup.new_bytes),
                size::display(backup.stored_bytes),
            )?;
        }
        if self.new_popular_bytes > 0 {
            writeln!(
                out,
                "{} that several have, stored once in {}",
                size::display(self.new_popular_bytes),
                size::display(self.stored_popular_bytes)
            )?;
        }
        writeln!(out, "took {:.1} s", self.seconds)
    }
}
