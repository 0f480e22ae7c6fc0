//! Stage 3: reads the new blocks again, in the order of their addresses, and writes packs. Several threads
//! compress and seal; what is written does not depend on how many.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_index::Key;
use onefold_repository::{self as repository, GroupSealer, NewPack, SealedGroup};

use crate::create::Report;
use crate::detect::Detected;
use crate::disk::{Disk, read_blocks};
use crate::error::{BackupError, Result};
use crate::scan::of_row;

/// Where packs go, and how.
pub(crate) struct Target<'a> {
    pub(crate) writer: &'a repository::Writer<'a>,
    pub(crate) block_size: u32,
    pub(crate) first_pack: u64,
    /// Of zstd.
    pub(crate) level: i32,
    pub(crate) threads: usize,
}

/// A group on its way to a thread that seals it.
struct Job {
    sealer: GroupSealer,
    /// In its pack.
    number: u32,
    /// Among all groups.
    sequence: u64,
    blocks: Vec<u8>,
}

type Sealed = (u64, Result<SealedGroup>);

/// Returns the bytes of the packs.
pub(crate) fn store(
    disk: &mut dyn Disk,
    key: &Key,
    detected: &mut Detected,
    target: &Target<'_>,
    report: Report<'_>,
) -> Result<u64> {
    let threads = target.threads.max(1);
    // Room for every group that is on its way, so no send ever waits.
    let (jobs, job_receiver) = sync_channel::<Job>(2 * threads);
    let (sealed_sender, sealed) = sync_channel::<Sealed>(2 * threads);
    let job_receiver = Mutex::new(job_receiver);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (jobs, sealed) = (&job_receiver, sealed_sender.clone());
            scope.spawn(move || seal_all(jobs, &sealed));
        }
        drop(sealed_sender);
        let mut writer = Writer {
            target,
            jobs,
            sealed,
            on_their_way: 0,
            open: Vec::new(),
            arrived: BTreeMap::new(),
            next_sequence: 0,
            next_written: 0,
            stored_bytes: 0,
        };
        read_all(disk, key, detected, &mut writer, report)?;
        writer.finish()
    })
}

fn seal_all(jobs: &Mutex<Receiver<Job>>, sealed: &SyncSender<Sealed>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let group = job.sealer.seal(job.number, &job.blocks);
        let group = group.map_err(BackupError::from);
        if sealed.send((job.sequence, group)).is_err() {
            return;
        }
    }
}

/// Reads the new blocks and cuts them into groups.
fn read_all(
    disk: &mut dyn Disk,
    key: &Key,
    detected: &mut Detected,
    writer: &mut Writer<'_>,
    report: Report<'_>,
) -> Result<()> {
    let block_size = u64::from(writer.target.block_size);
    let all_bytes = detected.new_blocks * block_size;
    let (mut group, mut done) = (Group::default(), 0);
    for part in 0..detected.new_rows.count() {
        let mut rows = detected.new_rows.take(part)?;
        rows.sort_unstable_by_key(|row| of_row(row).1);
        for row in &rows {
            let (fingerprint, block) = of_row(row);
            group.blocks.push(block);
            group.fingerprints.push(fingerprint);
            if group.blocks.len() == BLOCKS_PER_GROUP {
                done += group.blocks.len() as u64;
                let full = std::mem::take(&mut group);
                let bytes = full.read(disk, key, writer.target.block_size)?;
                writer.send(full.fingerprints, bytes)?;
                report(done * block_size, all_bytes)?;
            }
        }
    }
    if !group.blocks.is_empty() {
        let bytes = group.read(disk, key, writer.target.block_size)?;
        writer.send(group.fingerprints, bytes)?;
    }
    Ok(())
}

/// The addresses and fingerprints of the blocks of a group.
#[derive(Default)]
struct Group {
    blocks: Vec<u64>,
    fingerprints: Vec<[u8; 16]>,
}

impl Group {
    /// Reads its blocks, which must be what they were.
    fn read(&self, disk: &mut dyn Disk, key: &Key, block_size: u32) -> Result<Vec<u8>> {
        let block_bytes = block_size as usize;
        let mut bytes = vec![0; self.blocks.len() * block_bytes];
        let mut at = 0;
        for run in self.blocks.chunk_by(|a, b| a + 1 == *b) {
            let end = at + run.len() * block_bytes;
            read_blocks(disk, run[0] * u64::from(block_size), &mut bytes[at..end])?;
            at = end;
        }
        let mut found = Vec::with_capacity(self.blocks.len());
        key.fingerprints(&bytes, block_bytes, &mut found);
        let pairs = found.iter().zip(&self.fingerprints);
        match pairs
            .zip(&self.blocks)
            .find(|((now, then), _)| now.0 != **then)
        {
            None => Ok(bytes),
            Some((_, block)) => Err(BackupError::Changed { block: *block }),
        }
    }
}

/// Sends groups to be sealed, and writes them in their order.
struct Writer<'a> {
    target: &'a Target<'a>,
    jobs: SyncSender<Job>,
    sealed: Receiver<Sealed>,
    on_their_way: usize,
    /// The pack that is written, and the one after it, if that has begun; with the fingerprints of
    /// their groups that are not written yet.
    open: Vec<Open>,
    /// Sealed groups that others must precede.
    arrived: BTreeMap<u64, SealedGroup>,
    next_sequence: u64,
    next_written: u64,
    stored_bytes: u64,
}

struct Open {
    pack: NewPack,
    fingerprints: std::collections::VecDeque<Vec<[u8; 16]>>,
}

const GROUPS_PER_PACK: u64 = BLOCKS_PER_PACK / BLOCKS_PER_GROUP as u64;

impl Writer<'_> {
    fn send(&mut self, fingerprints: Vec<[u8; 16]>, blocks: Vec<u8>) -> Result<()> {
        let target = self.target;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if sequence.is_multiple_of(GROUPS_PER_PACK) {
            let number = target.first_pack + sequence / GROUPS_PER_PACK;
            let new = target.writer.new_pack(number, 0, target.block_size);
            self.open.push(Open {
                pack: new?,
                fingerprints: std::collections::VecDeque::new(),
            });
        }
        let Some(open) = self.open.last_mut() else {
            return Err(stopped());
        };
        open.fingerprints.push_back(fingerprints);
        let job = Job {
            sealer: open.pack.sealer(target.level),
            number: (sequence % GROUPS_PER_PACK) as u32,
            sequence,
            blocks,
        };
        if self.on_their_way == 2 * target.threads.max(1) {
            self.receive()?;
        }
        self.jobs.send(job).map_err(|_| stopped())?;
        self.on_their_way += 1;
        Ok(())
    }

    /// Takes a sealed group, and writes all whose turn it is.
    fn receive(&mut self) -> Result<()> {
        let (sequence, group) = self.sealed.recv().map_err(|_| stopped())?;
        self.on_their_way -= 1;
        self.arrived.insert(sequence, group?);
        while let Some(group) = self.arrived.remove(&self.next_written) {
            let Some(open) = self.open.first_mut() else {
                return Err(stopped());
            };
            let fingerprints = open.fingerprints.pop_front().unwrap_or_default();
            open.pack.push(&group, fingerprints.into_iter().map(Some))?;
            self.next_written += 1;
            if self.next_written.is_multiple_of(GROUPS_PER_PACK) {
                self.stored_bytes += self.open.remove(0).pack.finish()?;
            }
        }
        Ok(())
    }

    /// Writes what is left, and makes it durable. Returns the bytes of all packs.
    fn finish(mut self) -> Result<u64> {
        while self.on_their_way > 0 {
            self.receive()?;
        }
        for open in self.open.drain(..) {
            self.stored_bytes += open.pack.finish()?;
        }
        Ok(self.stored_bytes)
    }
}

/// A thread that seals has ended before its time, by a panic.
fn stopped() -> BackupError {
    BackupError::Temporary(std::io::Error::other("a thread of the backup ended early"))
}
