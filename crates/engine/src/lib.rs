//! Durable storage for the parts of pools.
//!
//! May use: `rados`, and identifiers of the format. Must not: interpret the bytes that it keeps.
//!
//! A pool is made of a few *parts*, each a flat space of bytes that its sole owner reads and writes
//! at explicit offsets. An [`Engine`] locates the parts; a [`Disk`] is one of them. Neither
//! interprets the bytes.
//!
//! There are three implementations: [`embedded`], files or a block device of this machine, [`rados`],
//! objects in a Ceph cluster, and `simulated` (cargo feature of that name), which keeps everything in
//! memory and fails in every way that the contract of [`Disk`] allows. All of them pass one
//! conformance suite.
//!
//! Hosts that share a pool have a [`Cluster`], from which each takes the parts that it owns.

use std::io;
use std::sync::Arc;

mod blocking;
pub mod cluster;
pub mod embedded;
mod failure;
mod host;
mod host_memory;
pub mod rados;
#[cfg(feature = "simulated")]
pub mod simulated;

pub use blocking::Blocking;
pub use cluster::{Cluster, Directory, Holding};

/// The parts of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The pool's identity: written once at creation.
    Superblock,
    /// Copy-on-write metadata pages and the two root slots.
    Meta,
    /// The ring of commit frames.
    Log,
    /// The data blocks.
    Data,
    /// The fingerprint index.
    Index,
    /// A new index, which is going to replace [`Part::Index`].
    NextIndex,
    /// The secret that keys are derived from.
    Secret,
    /// The scrub's progress, and the list of bad blocks.
    Scrub,
    /// Blocks whose content a failed sync lost, and the volumes that lost writes. Missing until
    /// there are any.
    Losses,
}

impl Part {
    /// Every part.
    pub const ALL: [Part; 9] = [
        Part::Superblock,
        Part::Meta,
        Part::Log,
        Part::Data,
        Part::Index,
        Part::NextIndex,
        Part::Secret,
        Part::Scrub,
        Part::Losses,
    ];

    /// The part's name: lower case, unique, and the same in every version.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Superblock => "superblock",
            Part::Meta => "meta",
            Part::Log => "log",
            Part::Data => "data",
            Part::Index => "index",
            Part::NextIndex => "index-next",
            Part::Secret => "secret",
            Part::Scrub => "scrub",
            Part::Losses => "losses",
        }
    }
}

/// A durable space of bytes with a sole owner.
///
/// Calls may come from many threads at once. The disk orders nothing between calls that overlap in
/// time: of two writes to the same bytes either may win, and a read concurrent with a write may see
/// parts of both. A write that has returned is seen by every read that starts afterwards.
///
/// Writes become durable with the next [`Disk::sync`] that starts after they returned; until then
/// a power loss may keep any subset of their 512-byte sectors, in any order.
///
/// The death of the process alone loses no write of [`Part::Data`] that has returned, because the next process has to
/// find the writes that guests were answered for (P12). Of other parts it may lose as much as a power loss: files lose
/// nothing, and a cluster loses unacknowledged writes. The death of the process makes nothing durable.
///
/// Every error names the part, the place in it and the operation. Its kind is [`io::ErrorKind::StorageFull`] (or
/// `QuotaExceeded`) when there is no room.
#[expect(
    clippy::len_without_is_empty,
    reason = "a disk is never asked whether it is empty"
)]
pub trait Disk: Send + Sync {
    /// Fills `buf` from `offset`. Bytes never written, and bytes beyond the end, read as zeros; a
    /// block device may instead return its content from before it became part of a pool.
    ///
    /// [`Part::Data`] is read only where something was written and not discarded since (P2): the reader has the place
    /// from a map. So a disk that finds nothing there has lost data. A read beyond the end, or of a cluster's object
    /// that is missing or too short, is an error, `UnexpectedEof`. A disk that cannot detect the loss, as in a hole of
    /// a file, returns zeros.
    ///
    /// Any offset and length will do, but ranges and buffers that have the disk's
    /// [alignment](Disk::alignment) save a copy. After an error `buf` is undefined.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Like one [`Disk::read_at`] per range, concurrently if the disk can do that. After an error, which has the number
    /// of a range that could not be read, all buffers are undefined.
    fn read_together(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), (usize, io::Error)> {
        for (n, range) in ranges.iter_mut().enumerate() {
            let read = self.read_at(range.buf, range.offset);
            read.map_err(|error| (n, error))?;
        }
        Ok(())
    }

    /// Like [`Disk::read_at`], but returns `Ok(false)`, with `buf` undefined, if the caller would have to wait for the
    /// device.
    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Writes all of `buf` at `offset`, growing the disk where needed. A device does not grow:
    /// beyond its end is `StorageFull`.
    ///
    /// After an error any subset of the sectors may have been written. Panics if `offset` or the
    /// length lacks the disk's [alignment](Disk::alignment), which is a defect of the caller.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Like one [`Disk::write_at`] per range, concurrently if the disk can do that; ranges do not overlap. All writes
    /// have ended when this returns. After an error, which has the number of a range that could not be written, any
    /// subset of the sectors of all ranges may have been written.
    fn write_together(&self, ranges: &[WriteRange<'_>]) -> Result<(), (usize, io::Error)> {
        for (n, range) in ranges.iter().enumerate() {
            let written = self.write_at(range.bytes, range.offset);
            written.map_err(|error| (n, error))?;
        }
        Ok(())
    }

    /// Copies `bytes` for a write at `offset` for which no thread waits. Returns nothing if the disk has only
    /// [`Disk::write_at`], has no room for another such write now, or would refuse the write.
    fn prepare_write(&self, _bytes: &[u8], _offset: u64) -> Option<Box<dyn PreparedWrite>> {
        None
    }

    /// The longest write that [`Disk::prepare_write`] takes, in bytes; 0 if it takes none.
    fn prepared_bytes_max(&self) -> usize {
        0
    }

    /// Prepares a read of these ranges for which no thread waits. Returns nothing if the disk has only
    /// [`Disk::read_together`], or the ranges are too long or too many.
    fn prepare_read(&self, _ranges: &[(u64, usize)]) -> Option<Box<dyn PreparedRead>> {
        None
    }

    /// The longest read that [`Disk::prepare_read`] takes, all ranges together, in bytes; 0 if it takes none.
    fn prepared_read_bytes_max(&self) -> usize {
        0
    }

    /// Whether writes go to memory of this host, where a read finds them without waiting.
    fn is_cached(&self) -> bool {
        self.alignment() == 1
    }

    /// Whether a write that has returned is durable, so that no later failure can lose it.
    fn is_durable_once_written(&self) -> bool {
        false
    }

    /// Whether a write of at most a block takes effect whole or not at all, even if the process or the host dies. Then
    /// a block to which no zeros were written never reads as zeros, unless it was lost.
    fn writes_are_whole(&self) -> bool {
        false
    }

    /// Begins the requests that were started since the last call. A started request may wait for this.
    fn submit(&self) {}

    /// Makes every write, discard, reservation and change of length that returned before this call
    /// started durable.
    ///
    /// After an error none of them may be relied on, even if a later call succeeds: the operating
    /// system may have dropped them. So a failed sync is never simply retried.
    fn sync(&self) -> io::Result<()>;

    /// Makes later reads come from the medium. After a failed [`Disk::sync`] the host's cache may
    /// hold data that the medium never got, marked clean; a caller that has to trust its reads
    /// syncs first and then forgets.
    ///
    /// # Errors
    ///
    /// None that matter where the host has no such cache.
    fn forget_cached(&self) -> io::Result<()>;

    /// Gives the range back to the host. It reads as zeros or as before until it is written again.
    /// Where the host cannot take space back this succeeds and the space stays allocated.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Reserves space so that later writes below `len` do not fail for want of it, and makes the
    /// disk at least that long; never shrinks. A later discard cancels its range's reservation. If
    /// the host cannot reserve, the disk only becomes that long.
    fn reserve(&self, len: u64) -> io::Result<()> {
        self.reserve_range(0, len)
    }

    /// Like [`Disk::reserve`], for writes to this range.
    fn reserve_range(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the disk exactly this long: the data beyond a smaller length is lost, and an added
    /// range reads as zeros. A device keeps its length, which may have grown since it was opened:
    /// more is `StorageFull`, and less changes nothing.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Length in bytes (a device's size).
    fn len(&self) -> io::Result<u64>;

    /// Bytes that the host has really allocated for the disk; the disk's length, if the host cannot tell.
    fn allocated_bytes(&self) -> io::Result<u64>;

    /// The first byte at or after `offset` for which the host may have allocated space; nothing if
    /// it has none up to the end. If the host cannot tell, that is `offset` itself. Space that was reserved and not
    /// written need not count.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>>;

    /// The end of the allocated space that contains the byte at `offset`, where [`Disk::next_data`] found some; the end
    /// of a part of it will do. If the host cannot tell, that is the disk's end.
    fn data_end(&self, offset: u64) -> io::Result<u64>;

    /// Whether a write for which the host has to allocate space makes other requests wait until it has ended.
    fn waits_to_allocate(&self) -> bool {
        false
    }

    /// Bytes that the host could still allocate for the disk, shared with everything else on its file system; nothing
    /// for a device, which has all of its space already, and if the host cannot tell.
    fn host_free_bytes(&self) -> Option<u64>;

    /// Alignment in bytes that offsets and lengths of writes must have, and that reads and buffers should have; a power
    /// of two, 1 if there is no requirement.
    fn alignment(&self) -> usize;
}

/// Refuses to allocate `len` bytes if the host has fewer: it would give the disk all that is left before it fails, and
/// others on its file system would have none.
///
/// # Errors
///
/// `StorageFull`, with both numbers.
pub fn check_room(disk: &dyn Disk, len: u64) -> io::Result<()> {
    match disk.host_free_bytes() {
        Some(free) if free < len => Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{len} bytes are needed, and the file system has {free} free"),
        )),
        _ => Ok(()),
    }
}

/// Reserves the space of a new disk, if the host has as much: see [`check_room`].
///
/// # Errors
///
/// Those of [`check_room`] and [`Disk::reserve`].
pub fn reserve(disk: &dyn Disk, len: u64) -> io::Result<()> {
    check_room(disk, len)?;
    disk.reserve(len)
}

/// A range to read together with others, and its buffer.
pub struct ReadRange<'a> {
    /// The buffer, which is filled entirely.
    pub buf: &'a mut [u8],
    /// The offset of the first byte.
    pub offset: u64,
}

/// A range to write together with others, and its bytes.
pub struct WriteRange<'a> {
    /// The bytes, all of which are written.
    pub bytes: &'a [u8],
    /// The offset of the first byte.
    pub offset: u64,
}

/// A prepared write. Dropping it instead of starting it has no effect.
pub trait PreparedWrite: Send {
    /// Starts the write. When it has returned, in the sense of [`Disk`], or failed, `ended` is called with the result
    /// and the bytes of the write, on a thread on which it must not wait for an operation of the engine. It may take
    /// locks whose holders do.
    fn start(self: Box<Self>, ended: WriteEnded);
}

/// A prepared read. Dropping it instead of starting it has no effect.
pub trait PreparedRead: Send {
    /// Starts the read. When it has ended, `ended` is called with the bytes of each range, on a thread on which it must
    /// not wait for anything, not even a lock whose holder waits for the engine; with nothing if any range could not be
    /// read: the caller then reads in the ordinary way and gets the error.
    fn start(self: Box<Self>, ended: ReadEnded);
}

/// Called with the result of a read.
pub type ReadEnded = Box<dyn FnOnce(Option<Vec<Vec<u8>>>) + Send>;

/// Called with the result of a write.
pub type WriteEnded = Box<dyn FnOnce(io::Result<()>, &[u8]) + Send>;

/// Memory that outlives the process, but not the host.
///
/// A pool has one such memory. Every later process finds its content until the host stops; then it may hold anything,
/// and [`Engine::boot_id`] changes. A process that dies inside a write leaves any part of it, but all or nothing of a
/// word. Nothing is ever synced.
#[expect(clippy::len_without_is_empty, reason = "it is never empty")]
pub trait HostMemory: Send + Sync {
    /// The memory's length in bytes.
    fn len(&self) -> usize;

    /// Fills `buf` from `offset`. Panics beyond the end, which is a defect of the caller.
    fn read_at(&self, buf: &mut [u8], offset: usize);

    /// Writes all of `bytes` at `offset`. Panics beyond the end, as above.
    fn write_at(&self, bytes: &[u8], offset: usize);

    /// Writes 8 bytes, little-endian, at a multiple of 8: all of them or none. Panics elsewhere and
    /// beyond the end, as above.
    fn write_word(&self, word: u64, offset: usize);

    /// Sets bits of a word, like [`HostMemory::write_word`]. Other bits stay, whatever other threads set at the same
    /// time.
    fn set_bits(&self, bits: u64, offset: usize);
}

/// The durable parts of one pool.
///
/// A part is open at most once at a time; once its [`Disk`] is dropped it may be opened again.
pub trait Engine: Send + Sync {
    /// Creates an empty part of `len` bytes (sparse), whose existence and length are durable when
    /// this returns. An existing one is an error, `AlreadyExists`.
    fn create(&self, part: Part, len: u64) -> io::Result<Arc<dyn Disk>>;

    /// Opens an existing part. A missing one is `NotFound`.
    fn open(&self, part: Part) -> io::Result<Arc<dyn Disk>>;

    /// Puts a part into the place of another, which is gone afterwards. This happens entirely or not at all, even in a
    /// crash, and is durable when it returns. Neither part may be open. A missing `part` is `NotFound`. After any other
    /// error it is unknown whether it happened, even for later reads, until a new engine is made.
    fn replace(&self, place: Part, part: Part) -> io::Result<()>;

    /// Removes a part that is not open, durably. A missing part is no error.
    fn remove(&self, part: Part) -> io::Result<()>;

    /// The pool's memory that outlives the process, at least `len` bytes long; created with zeros if there is none. All
    /// of its space is reserved: `StorageFull` if the host has too little.
    fn host_memory(&self, len: usize) -> io::Result<Arc<dyn HostMemory>>;

    /// Identifies this boot of the host among all others.
    fn boot_id(&self) -> io::Result<[u8; 16]>;

    /// Whether the host failed to write out data of this pool since it was last asked, in this process
    /// or in one that is dead; `false` where the host cannot tell. It may count failures of other
    /// files on the same file system.
    ///
    /// # Errors
    ///
    /// The host cannot be asked.
    fn has_lost_writes(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// The part's name in messages, such as a path.
    fn describe(&self, part: Part) -> String;

    /// 16 unguessable bytes, for pool ids and keys.
    fn random_id(&self) -> io::Result<[u8; 16]>;

    /// Seconds since the Unix epoch.
    fn unix_seconds(&self) -> u64;
}
