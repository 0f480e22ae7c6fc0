//! `onefold backup restore`

use super::into::restore_into;
use super::{BackupName, Context, MEMORY_DEFAULT, Opened, RepositoryArgs, backup_error, threads};
use crate::commands::foreground::interruption;
use crate::commands::parse_size;
use crate::image::ImageFormat;
use crate::image::writer::{Anywhere, ImageWriter, is_block_device};
use crate::output::Render;
use crate::progress::Progress;
use onefold_api::transfer::{Chunk, ChunkPool, Piece, VolumeImport, transfer};
use onefold_api::{Error, NewVolumeOptions, Result, size};
use onefold_backup::{BackupError, BlockReader, ReadCounts, Restore};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// The backup.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    name: BackupName,

    /// A new file, a block device, or - for standard output (these two raw only).
    #[arg(required_unless_present_any = ["volume", "into"], conflicts_with_all = ["volume", "into"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    repository: RepositoryArgs,

    /// Restore to a new volume of the pool.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,

    /// Restore into a volume of the same size that no client is attached to. Only what differs is written.
    #[arg(long, value_name = "NAME", conflicts_with = "volume")]
    into: Option<String>,

    /// The image's format.
    #[arg(long, value_enum, default_value = "raw")]
    image_format: ImageFormat,

    /// Overwrite a block device, or a volume.
    #[arg(long)]
    yes: bool,

    /// Threads that decompress and write a raw file. [default: the number of processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Memory for blocks that are needed again.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = MEMORY_DEFAULT)]
    memory: u64,

    #[command(flatten)]
    options: NewVolumeOptions,
}

/// A backup that was restored.
#[derive(Debug, Serialize)]
struct Reply {
    name: String,
    size_bytes: u64,
    /// What was written: data, and the rest are holes; into a volume, what differed.
    written_bytes: u64,
    /// Reads of packs; only where they were read in their order, for a raw image.
    pack_reads: Option<u64>,
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let blocks = BlockReader::new(Arc::clone(&opened.repository), args.memory as usize / 2);
    let from = RestoredFrom { opened, blocks };
    let interrupted = interruption()?;
    let restored = match (&args.file, &args.volume) {
        _ if args.into.is_some() => into_volume(context, &args, &from, &interrupted)?,
        (_, Some(volume)) => to_volume(context, &args, &from, volume, &interrupted)?,
        (Some(file), None) => to_file(context, &args, &from, file, &interrupted)?,
        (None, None) => return Err(Error::usage("restore to what? give a file, or --volume")),
    };
    match args.file.as_deref() == Some(Path::new("-")) {
        // Standard output has the disk.
        true => Ok(ExitCode::SUCCESS),
        false => context.print(&restored),
    }
}

/// The repository, and its blocks in memory.
struct RestoredFrom {
    opened: Opened,
    blocks: Arc<BlockReader>,
}

fn open(args: &Args, from: &RestoredFrom) -> Result<(Restore, String)> {
    let (source, number) = args.name.find(&from.opened)?;
    let restore = Restore::open(&from.blocks, &source, number, "backup restore");
    let name = format!("{}@{number}", source.source.name);
    Ok((restore.map_err(backup_error)?, name))
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
    if is_block_device(file) && !args.yes {
        return Err(Error::usage(format!(
            "this overwrites what is on the device {file:?}; nothing was changed, --yes goes on"
        )));
    }
    let (restore, name) = open(args, from)?;
    let size_bytes = restore.manifest().size_bytes;
    let mut image = ImageWriter::create(file, args.image_format, size_bytes)?;
    let progress = Progress::bytes(&context.output, "restoring");
    let mut pack_reads = None;
    let written_bytes = match image.anywhere() {
        Some(anywhere) => {
            let counts = read_anywhere(&restore, args, interrupted, &progress, &anywhere)?;
            pack_reads = Some(counts.pack_reads);
            counts.bytes
        }
        None => read_all(restore, interrupted, &progress, &mut |chunk| {
            image.write(&chunk)
        })?,
    };
    image.finish(size_bytes)?;
    Ok(Reply {
        name,
        size_bytes,
        written_bytes,
        pack_reads,
    })
}

/// By several threads, in the order of packs.
fn read_anywhere(
    restore: &Restore,
    args: &Args,
    interrupted: &AtomicBool,
    progress: &Progress,
    image: &Anywhere<'_>,
) -> Result<ReadCounts> {
    let counts = restore.manifest().counts;
    let all = counts.logical_blocks * u64::from(restore.manifest().block_size);
    let (done, failure) = (AtomicU64::new(0), Mutex::new(None));
    let read = restore.read_anywhere(threads(args.threads), args.memory as usize, &|at, bytes| {
        let len = bytes.len() as u64;
        progress.set(done.fetch_add(len, Ordering::Relaxed) + len, all);
        let written = match interrupted.load(Ordering::Relaxed) {
            true => Err(Error::failed("interrupted; the restore is not complete")),
            false => image.write(at, bytes),
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
        (Err(error), None) => Err(backup_error(error)),
    }
}

fn to_volume(
    context: &Context,
    args: &Args,
    from: &RestoredFrom,
    volume: &str,
    interrupted: &AtomicBool,
) -> Result<Reply> {
    let (restore, name) = open(args, from)?;
    let size_bytes = restore.manifest().size_bytes;
    let import = VolumeImport {
        name: volume.to_owned(),
        image_bytes: size_bytes,
        options: args.options.clone(),
    };
    import.check()?;
    drop(restore);
    let progress = Progress::bytes(&context.output, "restoring");
    context.with_session(|session| {
        let (sender, receiver) = transfer();
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let (restore, _) = open(args, from)?;
                let sent = read_all(restore, interrupted, &progress, &mut |chunk| {
                    let gone = || Error::failed("the import ended early");
                    sender
                        .blocking_send(Ok(Piece::Data(chunk)))
                        .map_err(|_| gone())
                });
                let last = sent.clone().map(|_| Piece::End {
                    image_bytes: size_bytes,
                });
                // A receiver that is gone has its own reason.
                let _ = sender.blocking_send(last);
                drop(sender);
                sent
            });
            let imported = session.import(&import, receiver);
            let sent = reading.join();
            imported?;
            let written_bytes = sent.map_err(|_| Error::failed("the restore panicked"))??;
            Ok(Reply {
                name,
                size_bytes,
                written_bytes,
                pack_reads: None,
            })
        })
    })
}

fn into_volume(
    context: &Context,
    args: &Args,
    from: &RestoredFrom,
    interrupted: &AtomicBool,
) -> Result<Reply> {
    let volume = args.into.as_deref().unwrap_or_default();
    let (restore, name) = open(args, from)?;
    if !args.yes {
        return Err(Error::usage(format!(
            "this makes volume '{volume}' what {name} is, and what it holds besides is lost unless a snapshot \
             has it; nothing was changed, --yes goes on"
        )));
    }
    let progress = Progress::bytes(&context.output, "restoring");
    let written_bytes = context
        .with_session(|session| restore_into(session, volume, &restore, interrupted, &progress))?;
    Ok(Reply {
        name,
        size_bytes: restore.manifest().size_bytes,
        written_bytes,
        pack_reads: None,
    })
}

/// Passes the data on in chunks. Returns how many bytes there were.
fn read_all(
    restore: Restore,
    interrupted: &AtomicBool,
    progress: &Progress,
    write: &mut dyn FnMut(Chunk) -> Result<()>,
) -> Result<u64> {
    let (pool, size_bytes) = (ChunkPool::default(), restore.manifest().size_bytes);
    let (mut written_bytes, mut failure) = (0, None);
    let read = restore.read_all(&mut |at, bytes| {
        let mut chunk = pool.take(at);
        chunk.set_len(bytes.len());
        chunk.as_mut().copy_from_slice(bytes);
        progress.set(at, size_bytes);
        written_bytes += bytes.len() as u64;
        let written = match interrupted.load(Ordering::Relaxed) {
            true => Err(Error::failed("interrupted; the restore is not complete")),
            false => write(chunk),
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
        (Err(error), None) => Err(backup_error(error)),
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
        )
    }
}
