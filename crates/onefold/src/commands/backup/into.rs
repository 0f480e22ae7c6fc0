//! Restores into an existing volume, and writes only blocks that differ.

use crate::commands::backup::restore::stopped_by;
use crate::progress::Progress;
use crate::session::Session;
use onefold_api::{
    DiffContent, DiffExtent, Error, ErrorKind, NextPage, PoolStat, ProblemReason, Result,
    SnapshotDiff, VolumeReply, VolumeStat,
};
use onefold_backup::{LostBlocks, Restore};
use onefold_nbd::client::{Address, Client};
use onefold_store::{Blocking, SECTOR_BYTES, Volume, split_name};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The unit of comparison.
const BLOCK_BYTES: usize = 4096;

/// The volume to write, through the store or through the daemon.
enum Target {
    Store(Arc<Volume>),
    Nbd(Client),
}

/// Makes a volume equal to a backup, and returns the number of bytes that differed. Blocks that cannot be
/// restored keep their content if `lost` is given, which records them; without it they are errors. After an
/// interruption, part of the volume is restored, and another run restores the rest.
pub(super) fn restore_into(
    session: &Session,
    volume: &str,
    restore: &Restore,
    lost: Option<&LostBlocks>,
    interrupted: &AtomicBool,
    progress: &Progress,
) -> Result<u64> {
    // An image can end inside a sector, but a volume cannot: the rest of the sector is filled with zeros.
    let size_bytes = restore.manifest().size_bytes.next_multiple_of(SECTOR_BYTES);
    let mut target = Target::open(session, volume, size_bytes)?;
    let mut volume_data = VolumeData::of(session, volume);
    let mut backup_data = BackupData::of(restore, size_bytes);
    let (mut wanted, mut found) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let (mut at, mut changed_bytes) = (0, 0);
    while at < size_bytes {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Error::failed(
                "interrupted; a part of the volume is restored, and the same command restores the rest",
            ));
        }
        let start = volume_data.next(at)?.min(backup_data.next(at)?);
        at = at.max(start - start % CHUNK_BYTES as u64);
        if at >= size_bytes {
            break;
        }
        let len = (size_bytes - at).min(CHUNK_BYTES as u64) as usize;
        let (wanted, found) = (&mut wanted[..len], &mut found[..len]);
        target.read(at, found)?;
        match lost {
            None => restore.read(at, wanted).map_err(stopped_by)?,
            Some(lost) => {
                let read = restore.read_past_damage(at, wanted, lost);
                read?;
                keep_lost(restore, lost, at, wanted, found);
            }
        }
        for range in differing(wanted, found) {
            changed_bytes += range.len() as u64;
            target.write(at + range.start as u64, &wanted[range])?;
        }
        at += len as u64;
        progress.set(at, size_bytes);
    }
    progress.set(size_bytes, size_bytes);
    target.flush()?;
    Ok(changed_bytes)
}

/// Finds the data of the backup. Each hole is walked only once.
struct BackupData<'a> {
    restore: &'a Restore,
    end: u64,
    /// The last result.
    known: Option<u64>,
}

impl<'a> BackupData<'a> {
    fn of(restore: &'a Restore, end: u64) -> Self {
        Self {
            restore,
            end,
            known: None,
        }
    }

    /// The next byte with data at or after `at`, or the end if there is none. `at` must not decrease between
    /// calls.
    fn next(&mut self, at: u64) -> Result<u64> {
        if let Some(known) = self.known.filter(|known| *known >= at) {
            return Ok(known);
        }
        let hole = match self.hole(at..at + 1)? {
            0 => 0,
            _ => self.hole(at..self.end)?,
        };
        self.known = Some(at + hole);
        Ok(at + hole)
    }

    /// Length of the hole at the start of the range, in bytes.
    fn hole(&self, range: Range<u64>) -> Result<u64> {
        let runs = self.restore.extents(&range, 1)?;
        Ok(runs
            .first()
            .map_or(0, |run| if run.what { 0 } else { run.bytes }))
    }
}

/// Finds the data of the volume, so that a large disk with little data is not read completely.
struct VolumeData<'a> {
    session: &'a Session,
    name: &'a str,
    /// The remaining extents of a page.
    extents: VecDeque<DiffExtent>,
    /// Where the next page begins; `Some(None)` for the first page.
    page: Option<Option<NextPage>>,
}

impl<'a> VolumeData<'a> {
    fn of(session: &'a Session, name: &'a str) -> Self {
        Self {
            session,
            name,
            extents: VecDeque::new(),
            page: Some(None),
        }
    }

    /// The next byte with data at or after `at`, or the largest number if there is none. `at` must not
    /// decrease between calls.
    fn next(&mut self, at: u64) -> Result<u64> {
        loop {
            while let Some(extent) = self.extents.front() {
                if extent.offset + extent.length > at {
                    return Ok(extent.offset.max(at));
                }
                self.extents.pop_front();
            }
            let Some(page) = self.page else {
                return Ok(u64::MAX);
            };
            let request = SnapshotDiff {
                since: None,
                name: self.name.to_owned(),
                page,
            };
            let reply = self.session.call(&request, &mut |_, _| {})?;
            let data = reply.extents.into_iter();
            self.extents
                .extend(data.filter(|extent| extent.content == DiffContent::Data));
            self.page = reply.next.map(Some);
        }
    }
}

/// Keeps the volume's content where the backup's blocks are lost.
fn keep_lost(restore: &Restore, lost: &LostBlocks, at: u64, wanted: &mut [u8], found: &[u8]) {
    let block_size = u64::from(restore.manifest().block_size);
    let end = at + wanted.len() as u64;
    for blocks in lost.ranges(at / block_size..end.div_ceil(block_size)) {
        let from = (blocks.start * block_size).max(at) - at;
        let to = (blocks.end * block_size).min(end) - at;
        let kept = from as usize..to as usize;
        wanted[kept.clone()].copy_from_slice(&found[kept]);
    }
}

/// Ranges of blocks that differ.
fn differing(wanted: &[u8], found: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let blocks = wanted.chunks(BLOCK_BYTES).zip(found.chunks(BLOCK_BYTES));
    for ((one, other), n) in blocks.zip(0..) {
        if one == other {
            continue;
        }
        let start = n * BLOCK_BYTES;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = start + one.len(),
            _ => runs.push(start..start + one.len()),
        }
    }
    runs
}

/// Refuses a volume that cannot take a backup of this size. Changes nothing.
pub(super) fn check_target(session: &Session, name: &str, size_bytes: u64) -> Result<VolumeReply> {
    let stat = VolumeStat {
        name: name.to_owned(),
        exact: false,
    };
    let volume = session.call(&stat, &mut |_, _| {})?;
    if split_name(name).1.is_some() {
        return Err(Error::usage(format!(
            "'{name}' is a snapshot, which stays as it is; restore into a volume"
        )));
    }
    if volume.stat.size_bytes != size_bytes.next_multiple_of(SECTOR_BYTES) {
        return Err(Error::usage(format!(
            "'{name}' has {} bytes, and the backup {size_bytes}; 'onefold volume resize' changes that",
            volume.stat.size_bytes
        )));
    }
    if !volume.clients.is_empty() {
        return Err(Error::new(
            ErrorKind::InUse,
            format!("'{name}' is attached by {}", volume.clients.join(", ")),
        ));
    }
    let problems = session.call(&PoolStat {}, &mut |_, _| {})?.problems;
    let read_only = problems
        .into_iter()
        .find(|problem| problem.reason == ProblemReason::ReadOnly);
    match read_only {
        Some(problem) => Err(Error::new(ErrorKind::ReadOnly, problem.message)),
        None => Ok(volume),
    }
}

impl Target {
    fn open(session: &Session, name: &str, size_bytes: u64) -> Result<Self> {
        let stat = check_target(session, name, size_bytes)?;
        if let Session::Direct { service, .. } = session {
            return Ok(Self::Store(service.store.volume(name)?));
        }
        let uri = stat.nbd_uri.ok_or_else(|| {
            Error::failed(format!(
                "the daemon does not serve the volume '{name}' over NBD"
            ))
        })?;
        let address: Address = uri.parse().map_err(Error::failed)?;
        let client = Client::connect(&address);
        let client = client.map_err(|e| Error::io(format_args!("cannot attach to {uri}"), &e))?;
        Ok(Self::Nbd(client))
    }

    fn read(&mut self, at: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Store(volume) => Ok(volume.read(at, bytes, Blocking::Yes)?),
            Self::Nbd(client) => client.read(bytes, at).map_err(|e| failed("read", at, &e)),
        }
    }

    /// Blocks of zeros are released, not stored, in both cases.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Store(volume) => Ok(volume.write(at, bytes, Blocking::Yes)?),
            Self::Nbd(client) => client
                .write(0, bytes, at)
                .map_err(|e| failed("write", at, &e)),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Self::Store(volume) => Ok(volume.flush()?),
            Self::Nbd(client) => client.flush().map_err(|e| failed("flush", 0, &e)),
        }
    }
}

fn failed(verb: &str, at: u64, error: &std::io::Error) -> Error {
    Error::io(format_args!("cannot {verb} the volume at byte {at}"), error)
}
