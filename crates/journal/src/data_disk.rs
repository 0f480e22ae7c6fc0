//! The pool's data: where blocks are read and written. Only a commit syncs it.
//!
//! Zeros are not stored, so no reader ever reads a block that holds only zeros. If the disk never tears the write of
//! a block, such a block was lost: its object is gone, and a later write to another block has recreated it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_engine::{Disk, PreparedRead, PreparedWrite, ReadRange, WriteRange};
use onefold_format::{LostRun, Pba, Provisioning};
use onefold_metadata::sync::AtomicBool;
use onefold_metadata::{Guard, PbaRun, StoreError};

use super::block_set::BlockSet;
use super::doubted::Doubted;
use super::log::Tail;

/// The part `data`.
pub struct DataDisk {
    disk: Arc<dyn Disk>,
    name: String,
    /// Writes bypass the host's cache, so that each of them waits for the disk.
    writes_wait: bool,
    provisioning: Provisioning,
    /// A block that reads as zeros was lost: see above.
    zeros_are_losses: bool,
    /// Data was written since the last sync started.
    unsynced: AtomicBool,
    doubted: Doubted,
    /// Blocks whose content a failed sync lost: see `losses.rs`.
    lost: BlockSet,
    block_size: u64,
}

impl DataDisk {
    /// The data part, with nothing unsynced. Reads of the lost blocks fail.
    pub fn new(disk: Arc<dyn Disk>, name: String, block_size: u32, lost: &[LostRun]) -> Self {
        let data = Self {
            writes_wait: !disk.is_cached(),
            provisioning: Provisioning::Thin,
            zeros_are_losses: disk.writes_are_whole(),
            disk,
            name,
            unsynced: AtomicBool::new(false),
            doubted: Doubted::default(),
            lost: BlockSet::default(),
            block_size: u64::from(block_size),
        };
        for LostRun { start, count } in lost {
            data.lost.add(start.0..start.0 + count);
        }
        data
    }

    /// The disk of a pool with this provisioning.
    #[must_use]
    pub fn provisioned(self, provisioning: Provisioning) -> Self {
        Self {
            provisioning,
            ..self
        }
    }

    /// Whether the host has allocated all of the disk's space: then the disk is like a device.
    pub fn provisioning(&self) -> Provisioning {
        self.provisioning
    }

    /// Whether each write waits for the disk.
    pub fn writes_wait(&self) -> bool {
        self.writes_wait
    }

    /// Reads bytes; see `onefold_engine::Disk`. A lost block is an error, as in every other read.
    pub fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.check_kept(buf.len(), at)?;
        self.disk.read_at(buf, at)?;
        self.check_whole(buf, at)
    }

    /// Refuses bytes if a block of them was lost, or may have been: zeros in a part of a block do not prove that
    /// the rest is zeros. An ordinary read, which may wait, finds out.
    ///
    /// # Errors
    ///
    /// `InvalidData` with the block's address.
    pub fn check_found(&self, read: &[u8], at: u64) -> io::Result<()> {
        match self.zeros_in(read, at).next() {
            None => Ok(()),
            Some((at, _)) => Err(self.nothing_at(at)),
        }
    }

    /// Refuses bytes of a lost block. Reads the whole block if only a part of it was read, and that
    /// part is zeros.
    fn check_whole(&self, read: &[u8], at: u64) -> io::Result<()> {
        for (at, mut is_lost) in self.zeros_in(read, at) {
            if !is_lost {
                let mut block = vec![0; self.block_size as usize];
                self.disk.read_at(&mut block, at)?;
                is_lost = is_zeros(&block);
            }
            if is_lost {
                return Err(self.nothing_at(at));
            }
        }
        Ok(())
    }

    /// The blocks of which only zeros were read, by start, and whether all of the block was read; none if zeros
    /// prove nothing.
    fn zeros_in(&self, read: &[u8], at: u64) -> impl Iterator<Item = (u64, bool)> {
        let (unit, mut rest, mut at) = (self.block_size, read, at);
        let is_proof = self.zeros_are_losses && Guard::LostIsNotZeros.holds();
        let pieces = std::iter::from_fn(move || {
            let skip = at % unit;
            let (piece, after) = rest.split_at((unit - skip).min(rest.len() as u64) as usize);
            let start = at - skip;
            (rest, at) = (after, at + piece.len() as u64);
            (!piece.is_empty()).then_some((start, piece))
        });
        let zeros = pieces.filter(move |(_, piece)| is_proof && is_zeros(piece));
        zeros.map(move |(start, piece)| (start, piece.len() as u64 == unit))
    }

    fn nothing_at(&self, at: u64) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "reading {} bytes at {at} of {}: there is nothing, though data was stored there: it was lost",
                self.block_size, self.name
            ),
        )
    }

    /// Reads several ranges at the same time; see `onefold_engine::Disk`.
    pub fn read_together(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), (usize, io::Error)> {
        for (n, ReadRange { buf, offset }) in ranges.iter().enumerate() {
            let kept = self.check_kept(buf.len(), *offset);
            kept.map_err(|error| (n, error))?;
        }
        self.disk.read_together(ranges)?;
        for (n, ReadRange { buf, offset }) in ranges.iter().enumerate() {
            let found = self.check_whole(buf, *offset);
            found.map_err(|error| (n, error))?;
        }
        Ok(())
    }

    /// Reads data that the host has in memory; returns false if it does not.
    pub fn try_read_at(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        self.check_kept(buf.len(), at)?;
        let is_read = self.disk.try_read_at(buf, at)?;
        if is_read {
            self.check_whole(buf, at)?;
        }
        Ok(is_read)
    }

    /// Like [`DataDisk::try_read_at`], for several ranges.
    pub fn try_read_each(&self, ranges: &mut [ReadRange<'_>]) -> Result<bool, (usize, io::Error)> {
        for (n, ReadRange { buf, offset }) in ranges.iter_mut().enumerate() {
            let read = self.try_read_at(buf, *offset);
            if !read.map_err(|error| (n, error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the disk's content, lost or not.
    pub(super) fn read_medium(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.disk.read_at(buf, at)
    }

    /// Refuses a read of lost blocks.
    #[inline]
    fn check_kept(&self, len: usize, at: u64) -> io::Result<()> {
        if self.lost.is_any() {
            self.check_not_lost(len, at)
        } else {
            Ok(())
        }
    }

    fn check_not_lost(&self, len: usize, at: u64) -> io::Result<()> {
        let end = (at + len as u64).div_ceil(self.block_size);
        match self.lost.first_within(&(at / self.block_size..end)) {
            None => Ok(()),
            Some(block) => Err(io::Error::other(format!(
                "the disk lost block {block} of the pool when a sync failed; it can be read again once \
                 it has been written whole"
            ))),
        }
    }

    /// Whether any of these blocks is lost.
    #[inline]
    pub fn is_any_lost(&self, run: PbaRun) -> bool {
        let blocks = run.start.0..run.start.0 + run.count;
        self.lost.is_any() && self.lost.first_within(&blocks).is_some()
    }

    /// Whether a block is lost.
    #[inline]
    pub fn is_lost(&self, pba: Pba) -> bool {
        self.is_any_lost(PbaRun {
            start: pba,
            count: 1,
        })
    }

    /// The number of lost blocks.
    pub fn lost_blocks(&self) -> u64 {
        self.lost.blocks()
    }

    /// Whether any block is lost.
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.lost.is_any()
    }

    pub(super) fn lost(&self) -> Vec<LostRun> {
        self.lost.runs()
    }

    /// Marks blocks as lost.
    pub(super) fn lose(&self, run: PbaRun) {
        self.lost.add(run.start.0..run.start.0 + run.count);
    }

    /// Marks a block as not lost. Returns whether it was.
    pub(super) fn find(&self, pba: Pba) -> bool {
        self.lost.remove(pba.0..pba.0 + 1)
    }

    /// Writes bytes. The flag is raised after the write and before the record, or the reply: a commit
    /// that then finds it raised syncs this write.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let written = self.disk.write_at(bytes, at);
        self.unsynced.store(true, SeqCst);
        written
    }

    /// Writes several ranges at the same time; see `onefold_engine::Disk`. The flag is raised as by
    /// [`DataDisk::write_at`].
    pub fn write_together(&self, ranges: &[WriteRange<'_>]) -> Result<(), (usize, io::Error)> {
        let written = self.disk.write_together(ranges);
        self.unsynced.store(true, SeqCst);
        written
    }

    /// The longest write that can be prepared, in bytes; 0 if none can.
    pub fn prepared_bytes_max(&self) -> usize {
        self.disk.prepared_bytes_max()
    }

    /// Prepares a write; see `onefold_engine::Disk`. On its completion the caller first calls
    /// [`DataDisk::mark_unsynced`], as [`DataDisk::write_at`] does.
    pub fn prepare_write(&self, bytes: &[u8], at: u64) -> Option<Box<dyn PreparedWrite>> {
        self.disk.prepare_write(bytes, at)
    }

    /// The longest read that can be prepared, in bytes; 0 if none can.
    pub fn prepared_read_bytes_max(&self) -> usize {
        self.disk.prepared_read_bytes_max()
    }

    /// Prepares a read; see `onefold_engine::Disk`. The caller passes its bytes to [`DataDisk::check_found`].
    pub fn prepare_read(&self, ranges: &[(u64, usize)]) -> Option<Box<dyn PreparedRead>> {
        // A pool with lost blocks uses ordinary reads, which find out which blocks are lost.
        if self.lost.is_any() {
            return None;
        }
        self.disk.prepare_read(ranges)
    }

    /// Submits the requests that were started.
    pub fn submit(&self) {
        self.disk.submit();
    }

    /// Bytes in a block.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// The part's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_unsynced(&self) -> bool {
        self.unsynced.load(SeqCst)
    }

    /// Notes that data was written.
    pub fn mark_unsynced(&self) {
        self.unsynced.store(true, SeqCst);
    }

    /// Takes the flag: returns whether there is anything to sync, and clears it until the next write.
    pub(super) fn take_unsynced(&self) -> bool {
        self.unsynced.swap(false, SeqCst)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    /// Marks the new blocks of these records as doubted, after a failed sync.
    pub(super) fn doubt(&self, tail: &Tail) {
        self.doubted.add(tail);
    }

    /// Refuses data read from blocks whose content may be another volume's.
    pub(super) fn check_believed(&self, blocks: &Range<u64>) -> io::Result<()> {
        self.doubted.check(blocks)
    }

    /// Drops the host's cache, so that later reads come from the medium.
    pub fn read_afresh(&self) -> onefold_metadata::Result<()> {
        let forgotten = self.disk.forget_cached();
        forgotten.map_err(|error| {
            let what = format_args!("reading {} afresh", self.name);
            StoreError::io(what, error)
        })
    }

    /// Gives bytes that nothing reads back to the host; see `onefold_engine::Disk`.
    pub fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        self.disk.discard(at, len)
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }

    /// Whether a write for which the host has to allocate space makes other requests wait.
    pub(super) fn waits_to_allocate(&self) -> bool {
        self.provisioning == Provisioning::Thin && self.disk.waits_to_allocate()
    }

    /// Refuses to allocate more than the host has: it would give all that it has before it fails.
    pub(super) fn check_room(&self, len: u64) -> io::Result<()> {
        onefold_engine::check_room(&*self.disk, len)
    }

    /// Has the host allocate space for free blocks, and writes zeros to it. Nothing has to be synced for that: what free
    /// blocks hold does not matter.
    pub(super) fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        // Reserving is short; a write to a hole would make other requests wait until it has ended.
        self.disk.reserve_range(at, len)?;
        self.disk.write_at(&vec![0; len as usize], at)
    }

    /// The length of the disk in bytes.
    pub(super) fn len(&self) -> onefold_metadata::Result<u64> {
        let len = self.disk.len();
        len.map_err(|error| StoreError::io(&self.name, error))
    }

    /// The next address for which the host has allocated space.
    pub(super) fn next_data(&self, at: u64) -> io::Result<Option<u64>> {
        self.disk.next_data(at)
    }

    /// The end of the allocated space at this address.
    pub(super) fn data_end(&self, at: u64) -> io::Result<u64> {
        self.disk.data_end(at)
    }

    pub(super) fn allocated_bytes(&self) -> io::Result<u64> {
        self.disk.allocated_bytes()
    }

    /// Bytes that the host could still allocate; nothing if it has allocated all that the disk needs.
    pub(super) fn host_free_bytes(&self) -> Option<u64> {
        match self.provisioning {
            Provisioning::Thin => self.disk.host_free_bytes(),
            Provisioning::Thick => None,
        }
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
