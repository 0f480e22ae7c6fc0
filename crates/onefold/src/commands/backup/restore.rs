//! `onefold backup restore`

use super::into::{check_target, restore_into};
use super::losses::{Losses, MapFile};
use super::{
    BackupName, FOUND_DAMAGE, MEMORY_DEFAULT, Opened, RepositoryArgs, parse_memory, threads,
};
use crate::context::Context;
use crate::foreground::interruption;
use crate::image::ImageFormat;
use crate::image::writer::{Anywhere, ImageWriter, check_device, is_block_device};
use crate::output::Render;
use crate::overwriting::Overwritten;
use crate::progress::Progress;
use onefold_api::transfer::{Chunk, ChunkPool, Piece, VolumeImport, transfer};
use onefold_api::{Error, ErrorKind, NewVolumeOptions, Result, size};
use onefold_backup::{BackupError, BlockReader, LostBlocks, ReadCounts, Restore};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Backup to restore.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    name: BackupName,

    /// Image to create: a new file, a block device, or - for standard output (the last two raw only).
    #[arg(conflicts_with_all = ["volume", "into"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Restore to a new volume of the pool.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,

    /// Restore into an existing volume of the same size that has no clients attached. Only blocks that differ
    /// are written.
    #[arg(long, value_name = "NAME", conflicts_with = "volume")]
    into: Option<String>,

    /// Format of the image.
    #[arg(long, value_enum, default_value = "raw")]
    image_format: ImageFormat,

    /// Overwrite a block device, or a volume.
    #[arg(long)]
    yes: bool,

    /// Restore the intact parts of a damaged backup: lost blocks become holes, or keep their content with
    /// --into. Exit code 3 if anything is lost.
    #[arg(long)]
    salvage: bool,

    /// New file for a map, in GNU ddrescue's format, of restored and lost parts.
    #[arg(long, value_name = "FILE", requires = "salvage")]
    map: Option<PathBuf>,

    /// Number of threads that decompress and write a raw file. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Memory for cached blocks.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = MEMORY_DEFAULT)]
    memory: u64,

    #[command(flatten)]
    options: NewVolumeOptions,
}

/// The JSON document of `backup restore`.
#[derive(Debug, Serialize)]
struct Reply {
    name: String,
    size_bytes: u64,
    /// Bytes written: the data of an image, without holes; or the bytes that differed in a volume.
    written_bytes: u64,
    /// Reads of packs; set only for a raw image, for which packs are read in order.
    pack_reads: Option<u64>,
    /// With `--salvage`, the blocks that could not be restored.
    lost: Option<Losses>,
    /// Describes the content in place of lost blocks.
    #[serde(skip)]
    instead: &'static str,
}

/// The content in place of lost blocks in a new target.
const HOLES: &str = "there are zeros instead";

/// The content in place of lost blocks in an existing volume.
const KEPT: &str = "the volume keeps its earlier content there";

fn no_target() -> Error {
    Error::usage(
        "restore to what? give a new file or a device, --volume for a new volume, or --into for a volume that is there",
    )
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    if args.file.is_none() && args.volume.is_none() && args.into.is_none() {
        return Err(no_target());
    }
    let opened = args.repository.open(context)?;
    let blocks = BlockReader::new(Arc::clone(opened.repository()), args.memory as usize / 2);
    let from = RestoredFrom { opened, blocks };
    let interrupted = interruption()?;
    let map = args.map.as_deref().map(MapFile::create).transpose()?;
    let restored = match (&args.file, &args.volume) {
        _ if args.into.is_some() => into_volume(context, &args, &from, &interrupted)?,
        (_, Some(volume)) => to_volume(context, &args, &from, volume, &interrupted)?,
        (Some(file), None) => to_file(context, &args, &from, file, &interrupted)?,
        (None, None) => return Err(no_target()),
    };
    if let (Some(map), Some(losses)) = (map, &restored.lost) {
        map.write(losses, &restored.name, restored.size_bytes)?;
    }
    if args.file.as_deref() == Some(Path::new("-")) {
        // Standard output carries the disk.
        restored.warn(context);
    } else {
        context.output.document(&restored)?;
    }
    match &restored.lost {
        Some(lost) if lost.bytes > 0 => Ok(ExitCode::from(FOUND_DAMAGE)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A repository, and its cache of blocks.
struct RestoredFrom {
    opened: Opened,
    blocks: Arc<BlockReader>,
}

/// A backup that is being restored.
struct Backup {
    restore: Restore,
    name: String,
    /// Records blocks that cannot be restored; if `None`, damage ends the restore.
    lost: Option<LostBlocks>,
}

impl Backup {
    fn new(args: &Args, from: &RestoredFrom) -> Result<Self> {
        let (source, number) = args.name.find(&from.opened)?;
        let name = format!("{}@{number}", source.source.name);
        let restore = Restore::open(&from.blocks, &source, number, "backup restore");
        let restore = restore.map_err(Error::from).map_err(|mut error| {
            if error.kind == ErrorKind::Damaged {
                error.message += &format!(
                    "; it says where the blocks of {name} are, so all of {name} is lost, and other backups of \
                     '{}' are not concerned",
                    source.source.name
                );
            }
            error
        })?;
        let lost = args.salvage.then(LostBlocks::default);
        Ok(Self {
            restore,
            name,
            lost,
        })
    }

    /// Fails if objects that the backup needs are missing or damaged, unless it is restored without them.
    /// Called before anything is written.
    fn check(&self) -> Result<()> {
        match self.lost {
            Some(_) => Ok(()),
            None => {
                let checked = self.restore.check_objects();
                checked.map_err(|error| {
                    salvageable(
                        error,
                        "nothing was written; --salvage restores what can be restored",
                    )
                })
            }
        }
    }

    fn size_bytes(&self) -> u64 {
        self.restore.manifest().size_bytes
    }

    fn reply(self, written_bytes: u64, instead: &'static str) -> Reply {
        let lost = self.lost.as_ref();
        Reply {
            size_bytes: self.size_bytes(),
            written_bytes,
            pack_reads: None,
            lost: lost.map(|lost| Losses::of(&self.restore, lost)),
            instead,
            name: self.name,
        }
    }
}

/// Adds a hint for the user to an error about damage.
fn salvageable(error: BackupError, hint: &str) -> Error {
    let mut error = Error::from(error);
    if error.kind == ErrorKind::Damaged {
        error.message += &format!("; {hint}");
    }
    error
}

/// Adds a hint to an error about damage that is found while the target is written.
pub(super) fn stopped_by(error: BackupError) -> Error {
    salvageable(error, "--salvage restores the rest")
}

fn to_file(
    context: &Context,
    args: &Args,
    from: &RestoredFrom,
    file: &Path,
    interrupted: &AtomicBool,
) -> Result<Reply> {
    let is_raw_only = is_block_device(file) || file == Path::new("-");
    if is_raw_only && args.image_format != ImageFormat::Raw {
        return Err(Error::usage(
            "only a raw image can be written to a block device or to standard output",
        ));
    }
    let backup = Backup::new(args, from)?;
    backup.check()?;
    let size_bytes = backup.size_bytes();
    if is_block_device(file) && !args.yes {
        check_device(file, size_bytes)?;
        return Err(Overwritten::new(file).refusal(size_bytes));
    }
    let mut image = ImageWriter::create(file, args.image_format, size_bytes)?;
    let progress = Progress::bytes(&context.output, "restoring");
    let mut pack_reads = None;
    let written_bytes = match image.anywhere() {
        Some(anywhere) => {
            let counts = read_anywhere(&backup, args, interrupted, &progress, &anywhere)?;
            pack_reads = Some(counts.pack_reads);
            counts.bytes
        }
        None => read_all(&backup, interrupted, &progress, &mut |chunk| {
            image.write(&chunk)
        })?,
    };
    image.finish(size_bytes)?;
    let reply = backup.reply(written_bytes, HOLES);
    Ok(Reply {
        pack_reads,
        ..reply
    })
}

/// Restores with several threads, in the order of packs.
fn read_anywhere(
    backup: &Backup,
    args: &Args,
    interrupted: &AtomicBool,
    progress: &Progress,
    image: &Anywhere<'_>,
) -> Result<ReadCounts> {
    let (restore, lost) = (&backup.restore, backup.lost.as_ref());
    let counts = restore.manifest().counts;
    let all = counts.logical_blocks * u64::from(restore.manifest().block_size);
    let (done, failure) = (AtomicU64::new(0), Mutex::new(None));
    let (threads, memory_bytes) = (threads(args.threads), args.memory as usize);
    let read = restore.read_anywhere(threads, memory_bytes, lost, &|at, bytes| {
        let len = bytes.len() as u64;
        progress.set(done.fetch_add(len, Ordering::Relaxed) + len, all);
        let written = if interrupted.load(Ordering::Relaxed) {
            Err(Error::failed("interrupted; the restore is not complete"))
        } else {
            image.write(at, bytes)
        };
        written.map_err(|error| {
            let message = error.to_string();
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            BackupError::Receiver(message)
        })
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    match (read, failure) {
        (Ok(counts), _) => Ok(counts),
        (Err(_), Some(failure)) => Err(failure),
        (Err(error), None) => Err(stopped_by(error)),
    }
}

fn to_volume(
    context: &Context,
    args: &Args,
    from: &RestoredFrom,
    volume: &str,
    interrupted: &AtomicBool,
) -> Result<Reply> {
    let backup = Backup::new(args, from)?;
    let size_bytes = backup.size_bytes();
    let import = VolumeImport {
        name: volume.to_owned(),
        image_bytes: size_bytes,
        options: args.options.clone(),
    };
    import.check()?;
    backup.check()?;
    let progress = Progress::bytes(&context.output, "restoring");
    let written_bytes = context.with_session(|session| {
        let (sender, receiver) = transfer();
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let sent = read_all(&backup, interrupted, &progress, &mut |chunk| {
                    let gone = || Error::failed("the import ended early");
                    sender
                        .blocking_send(Ok(Piece::Data(chunk)))
                        .map_err(|_| gone())
                });
                let last = sent.clone().map(|_| Piece::End {
                    image_bytes: size_bytes,
                });
                // If the receiver is gone, it has its own error.
                let _ = sender.blocking_send(last);
                drop(sender);
                sent
            });
            let imported = session.import(&import, receiver);
            let sent = reading.join();
            imported?;
            sent.map_err(|_| Error::failed("the restore panicked"))?
        })
    })?;
    Ok(backup.reply(written_bytes, HOLES))
}

fn into_volume(
    context: &Context,
    args: &Args,
    from: &RestoredFrom,
    interrupted: &AtomicBool,
) -> Result<Reply> {
    let volume = args.into.as_deref().unwrap_or_default();
    let backup = Backup::new(args, from)?;
    backup.check()?;
    if !args.yes {
        let size_bytes = backup.size_bytes();
        context.with_session(|session| check_target(session, volume, size_bytes))?;
        let name = &backup.name;
        return Err(Error::usage(format!(
            "this makes volume '{volume}' what {name} is, and its other data is lost unless a snapshot \
             has it; nothing was changed, --yes goes on"
        )));
    }
    let progress = Progress::bytes(&context.output, "restoring");
    let written_bytes = context.with_session(|session| {
        let (restore, lost) = (&backup.restore, backup.lost.as_ref());
        restore_into(session, volume, restore, lost, interrupted, &progress)
    })?;
    Ok(backup.reply(written_bytes, KEPT))
}

/// Sends the data in chunks. Returns the number of bytes.
fn read_all(
    backup: &Backup,
    interrupted: &AtomicBool,
    progress: &Progress,
    write: &mut dyn FnMut(Chunk) -> Result<()>,
) -> Result<u64> {
    let (pool, size_bytes) = (ChunkPool::default(), backup.size_bytes());
    let (mut written_bytes, mut failure) = (0, None);
    let read = backup
        .restore
        .read_all(backup.lost.as_ref(), &mut |at, bytes| {
            let mut chunk = pool.take(at);
            chunk.set_len(bytes.len());
            chunk.as_mut().copy_from_slice(bytes);
            progress.set(at, size_bytes);
            written_bytes += bytes.len() as u64;
            let written = if interrupted.load(Ordering::Relaxed) {
                Err(Error::failed("interrupted; the restore is not complete"))
            } else {
                write(chunk)
            };
            written.map_err(|error| {
                let message = error.to_string();
                failure = Some(error);
                BackupError::Receiver(message)
            })
        });
    match (read, failure) {
        (Ok(()), _) => Ok(written_bytes),
        (Err(_), Some(failure)) => Err(failure),
        (Err(error), None) => Err(stopped_by(error)),
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "backup {} restored: {}, {} of it written",
            self.name,
            size::display(self.size_bytes),
            size::display(self.written_bytes)
        )?;
        let mut lost = self.lost.iter();
        lost.try_for_each(|lost| lost.text(out, self.instead))
    }
}

impl Reply {
    /// Prints the losses as warnings, because standard output carries the image.
    fn warn(&self, context: &Context) {
        let mut text = Vec::new();
        let Some(lost) = self.lost.as_ref().filter(|lost| lost.bytes > 0) else {
            return;
        };
        // Writing to memory cannot fail.
        let _ = lost.text(&mut text, self.instead);
        for line in String::from_utf8_lossy(&text).lines() {
            context.output.warn(line);
        }
    }
}
