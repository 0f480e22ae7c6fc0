//! Stage 3: reads the new blocks again, in the order of their addresses, and writes packs. Several threads
//! compress and seal; the result does not depend on their number.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use onefold_format::backup::pack::{BLOCKS_PER_GROUP, BLOCKS_PER_PACK};
use onefold_format::backup::{PackReference, Slot};
use onefold_index::Key;
use onefold_repository::{self as repository, GroupSealer, KnownSource, NewPack, SealedGroup};

use crate::create::{DiskToBackUp, Report};
use crate::disk::{Disk, read_blocks};
use crate::error::{BackupError, Result, stopped};
use crate::ranks::Ranks;
use crate::records::{ByPlace, NewBlock, Place};

/// Where packs are written, and how.
pub(crate) struct Target<'a> {
    pub(crate) writer: &'a repository::Writer<'a>,
    /// The owner of the packs: a source, or the store of popular blocks.
    pub(crate) of: &'a KnownSource,
    pub(crate) first_pack: u64,
    /// The compression level for zstd.
    pub(crate) level: i32,
    pub(crate) threads: usize,
}

/// The new blocks in a range of places.
pub(crate) struct NewBlocks<'a> {
    pub(crate) rows: &'a mut ByPlace<NewBlock>,
    pub(crate) places: Range<Place>,
    /// How many new blocks there are.
    pub(crate) blocks: u64,
    /// Records the places of the blocks that are stored.
    pub(crate) ranks: &'a mut Ranks,
}

/// Packs that were written.
#[derive(Debug, Default)]
pub(crate) struct StoredPacks {
    /// The packs, in ascending order.
    pub(crate) packs: Vec<PackReference>,
    pub(crate) bytes: u64,
}

/// A group for a thread that compresses and seals.
struct Job {
    sealer: GroupSealer,
    /// The group's number in its pack.
    number: u32,
    /// The group's number among all groups.
    sequence: u64,
    blocks: Vec<u8>,
}

type Sealed = (u64, Result<SealedGroup>);

/// Stores new blocks.
pub(crate) fn store(
    disks: &mut [DiskToBackUp<'_>],
    key: &Key,
    new: NewBlocks<'_>,
    target: &Target<'_>,
    report: Report<'_>,
) -> Result<StoredPacks> {
    if new.blocks == 0 {
        return Ok(StoredPacks::default());
    }
    store_groups(target, |writer| read_all(disks, key, new, writer, report))
}

/// Stores the groups that `send_all` sends.
pub(crate) fn store_groups(
    target: &Target<'_>,
    send_all: impl FnOnce(&mut Writer<'_>) -> Result<()>,
) -> Result<StoredPacks> {
    let threads = target.threads.max(1);
    // Room for every group in flight, so that no send blocks.
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
            stored: StoredPacks::default(),
        };
        send_all(&mut writer)?;
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
    disks: &mut [DiskToBackUp<'_>],
    key: &Key,
    new: NewBlocks<'_>,
    writer: &mut Writer<'_>,
    report: Report<'_>,
) -> Result<()> {
    let block_size = writer.target.of.source.block_size;
    let all_bytes = new.blocks * u64::from(block_size);
    let (mut group, mut done) = (Group::default(), 0);
    while let Some(NewBlock { place, fingerprint }) = new.rows.next_in(&new.places)? {
        new.ranks.push(place)?;
        group.places.push(place);
        group.fingerprints.push(fingerprint.bytes());
        if group.places.len() == BLOCKS_PER_GROUP {
            done += group.places.len() as u64;
            let full = std::mem::take(&mut group);
            let bytes = full.read(disks, key, block_size)?;
            writer.send(full.fingerprints, bytes)?;
            report(done * u64::from(block_size), all_bytes)?;
        }
    }
    if !group.places.is_empty() {
        let bytes = group.read(disks, key, block_size)?;
        writer.send(group.fingerprints, bytes)?;
    }
    report(all_bytes, all_bytes)
}

/// The places and fingerprints of the blocks of a group.
#[derive(Default)]
struct Group {
    places: Vec<Place>,
    fingerprints: Vec<[u8; 16]>,
}

impl Group {
    /// Reads the group's blocks and checks that they still match their fingerprints.
    fn read(&self, disks: &mut [DiskToBackUp<'_>], key: &Key, block_size: u32) -> Result<Vec<u8>> {
        let block_bytes = block_size as usize;
        let mut bytes = vec![0; self.places.len() * block_bytes];
        let (mut at, mut found) = (0, Vec::with_capacity(self.places.len()));
        for run in self.places.chunk_by(|a, b| a.0 + 1 == b.0) {
            let end = at + run.len() * block_bytes;
            let disk: &mut dyn Disk = disks[run[0].disk()].disk.as_mut();
            let from = run[0].block() * u64::from(block_size);
            read_blocks(disk, from, &mut bytes[at..end])
                .map_err(|error| error.of(&disks[run[0].disk()]))?;
            at = end;
        }
        key.fingerprints(&bytes, block_bytes, &mut found);
        let mut pairs = found.iter().zip(&self.fingerprints).zip(&self.places);
        match pairs.find(|((now, then), _)| now.0 != **then) {
            None => Ok(bytes),
            Some((_, place)) => {
                let block = place.block();
                Err(BackupError::Changed { block }.of(&disks[place.disk()]))
            }
        }
    }
}

/// Sends groups to the sealing threads, and writes the sealed groups in order.
pub(crate) struct Writer<'a> {
    target: &'a Target<'a>,
    jobs: SyncSender<Job>,
    sealed: Receiver<Sealed>,
    on_their_way: usize,
    /// The pack being written and, if it has begun, the next one, each with the fingerprints of its groups that are not
    /// written yet.
    open: Vec<Open>,
    /// Sealed groups that wait for earlier ones.
    arrived: BTreeMap<u64, SealedGroup>,
    next_sequence: u64,
    next_written: u64,
    stored: StoredPacks,
}

struct Open {
    pack: NewPack,
    fingerprints: VecDeque<Vec<[u8; 16]>>,
}

const GROUPS_PER_PACK: u64 = BLOCKS_PER_PACK / BLOCKS_PER_GROUP as u64;

impl Writer<'_> {
    /// Sends the next group: 64 blocks, and fewer only in the last one.
    pub(crate) fn send(&mut self, fingerprints: Vec<[u8; 16]>, blocks: Vec<u8>) -> Result<()> {
        let target = self.target;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        if sequence.is_multiple_of(GROUPS_PER_PACK) {
            let number = target.first_pack + sequence / GROUPS_PER_PACK;
            let pack = target.writer.new_pack(target.of, number)?;
            self.stored.packs.push(pack.reference());
            self.open.push(Open {
                pack,
                fingerprints: VecDeque::new(),
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

    /// Receives a sealed group, and writes all groups that are next in order.
    fn receive(&mut self) -> Result<()> {
        let (sequence, group) = self.sealed.recv().map_err(|_| stopped())?;
        self.on_their_way -= 1;
        self.arrived.insert(sequence, group?);
        while let Some(group) = self.arrived.remove(&self.next_written) {
            let Some(open) = self.open.first_mut() else {
                return Err(stopped());
            };
            let fingerprints = open.fingerprints.pop_front().unwrap_or_default();
            let slots = fingerprints.into_iter().map(Slot::Stored);
            open.pack.push(&group, slots)?;
            self.next_written += 1;
            if self.next_written.is_multiple_of(GROUPS_PER_PACK) {
                self.stored.bytes += self.open.remove(0).pack.finish()?;
            }
        }
        Ok(())
    }

    /// Writes the remaining groups, and makes the packs durable.
    fn finish(mut self) -> Result<StoredPacks> {
        while self.on_their_way > 0 {
            self.receive()?;
        }
        for open in self.open.drain(..) {
            self.stored.bytes += open.pack.finish()?;
        }
        Ok(self.stored)
    }
}
