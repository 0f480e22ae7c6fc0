//! One part of a pool as an open file or block device.
//!
//! Invariants: without O_DIRECT the alignment is 1 and nothing is ever copied. With it, the kernel
//! sees only offsets and lengths that are multiples of the alignment and buffers at multiples of
//! the memory alignment; other buffers go through an aligned copy.
//!
//! Crash behaviour: as for [`Disk`]. Nothing is cached here, so nothing is lost here.

use super::aligned::AlignedBuffer;
use super::ring::{self, Ring};
use super::syncs::Syncs;
use super::together;
use super::writeback::Writeback;
use crate::failure::explain;
use crate::{Disk, PreparedRead, PreparedWrite, ReadRange};
use rustix::fs::{Advice, FallocateFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Copies are made in pieces of this size, so that a large request does not double its memory (P9).
const BOUNCE_BYTES_MAX: usize = 1 << 20;

/// The alignment for O_DIRECT if the kernel does not report it: enough for every disk sector and
/// for the usual file system block.
const DIRECT_ALIGNMENT_DEFAULT: usize = 4096;

/// The least alignment for O_DIRECT: a disk's sector.
const DIRECT_ALIGNMENT_MIN: usize = 512;

/// Bytes written to the host's cache at a time. The cache keeps the data of one call in pieces as
/// large as the call, and the cost of a later write of a few blocks grows with the size of the
/// piece that it falls into.
const FOLIO_BYTES: usize = 64 << 10;

/// An open part.
pub(super) struct FileDisk {
    file: File,
    /// The part's name in errors.
    name: String,
    /// The size of a block device when it was last read; `None` for a file.
    device_bytes: Option<AtomicU64>,
    /// 1 unless the file is open with O_DIRECT.
    alignment: usize,
    /// The alignment of buffers, often smaller than the alignment of offsets.
    memory_alignment: usize,
    /// Reads beyond the end are errors, because only a damaged file is read there: for [`crate::Part::Data`].
    ends_are_errors: bool,
    /// The host reported once that it cannot take space back.
    discard_unsupported: AtomicBool,
    /// The file system reported once that it cannot tell whether a read would block.
    nowait_unsupported: AtomicBool,
    /// The regions that the host's cache may hold; `None` if writes bypass it.
    writeback: Option<Writeback>,
    /// For a part that several threads sync at once.
    syncs: Option<Syncs<File>>,
    /// For a part that is written past the host's cache, where the host allows it.
    ring: Option<Ring>,
}

impl FileDisk {
    /// Takes over an open file; errors call it `name`. `direct` means that it was opened with
    /// O_DIRECT.
    pub(super) fn new(file: File, name: String, direct: bool) -> io::Result<FileDisk> {
        let metadata = file
            .metadata()
            .map_err(|e| explain(format!("examining {name}"), e))?;
        let device_bytes = if metadata.file_type().is_block_device() {
            Some(device_size(&file, &name)?)
        } else {
            None
        };
        let len = device_bytes.unwrap_or(metadata.len());
        let (alignment, memory_alignment) = if direct {
            direct_alignment(&file, &name)?
        } else {
            (1, 1)
        };
        Ok(FileDisk {
            file,
            name,
            device_bytes: device_bytes.map(AtomicU64::new),
            alignment,
            memory_alignment,
            ends_are_errors: false,
            discard_unsupported: AtomicBool::new(false),
            nowait_unsupported: AtomicBool::new(false),
            writeback: (!direct).then(|| Writeback::new(len)),
            syncs: None,
            ring: None,
        })
    }

    /// Makes reads beyond the end fail from now on.
    pub(super) fn fail_beyond_the_end(&mut self) {
        self.ends_are_errors = true;
    }

    /// Lets several threads sync the part at once. After a failure, no further sync succeeds.
    pub(super) fn sync_from_many_threads(&mut self) -> io::Result<()> {
        let syncs = Syncs::new(&self.file);
        self.syncs = Some(syncs.map_err(|e| explain(format!("opening {}", self.name), e))?);
        Ok(())
    }

    /// Lets writes that bypass the host's cache proceed without a thread each, where the host allows it.
    pub(super) fn write_without_waiting(&mut self) {
        if self.alignment > 1 {
            let alignment = self.alignment.max(self.memory_alignment);
            self.ring = Ring::start(&self.file, &self.name, alignment).ok();
        }
    }

    /// Whether the kernel takes this range and this buffer as they are.
    fn is_aligned(&self, buf: &[u8], offset: u64) -> bool {
        // An empty request never gets to the kernel.
        buf.is_empty()
            || offset.is_multiple_of(self.alignment as u64)
                && buf.len().is_multiple_of(self.alignment)
                && buf.as_ptr().addr().is_multiple_of(self.memory_alignment)
    }

    /// Reads until `buf` is full or the end is reached. Fills the rest with zeros, unless bytes beyond the end are
    /// an error and the caller has more than `spare` of them.
    fn read_aligned(&self, buf: &mut [u8], offset: u64, spare: usize) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            match rustix::io::pread(&self.file, rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    // With O_DIRECT, only the end of the file cuts a read inside an alignment unit,
                    // and the kernel would refuse to continue from there.
                    if !count.is_multiple_of(self.alignment) {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.check_end(buf.len().saturating_sub(spare), done, offset)?;
        buf[done..].fill(0);
        Ok(())
    }

    /// Checks that a read of `wanted` bytes may find only `found`.
    fn check_end(&self, wanted: usize, found: usize, offset: u64) -> io::Result<()> {
        if found >= wanted || !self.ends_are_errors {
            return Ok(());
        }
        let end = offset.saturating_add(found as u64);
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("it ends at {end}, though data was stored behind that: it was cut"),
        ))
    }

    /// Reads through an aligned buffer, for a range or a buffer that the kernel would refuse.
    fn read_bounced(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let unit = self.alignment as u64;
        let head = (offset % unit) as usize;
        let span = (head + buf.len()).next_multiple_of(self.alignment);
        let capacity = span.min(BOUNCE_BYTES_MAX.next_multiple_of(self.alignment));
        let mut bounce = AlignedBuffer::new(capacity, self.alignment.max(self.memory_alignment));
        let mut skip = head;
        let mut start = offset - head as u64;
        let mut rest = buf;
        while !rest.is_empty() {
            let wanted = (skip + rest.len())
                .next_multiple_of(self.alignment)
                .min(capacity);
            let count = rest.len().min(wanted - skip);
            let piece = &mut bounce.bytes()[..wanted];
            self.read_aligned(piece, start, wanted - skip - count)?;
            let (filled, remaining) = rest.split_at_mut(count);
            filled.copy_from_slice(&piece[skip..skip + count]);
            rest = remaining;
            start = start.saturating_add(wanted as u64);
            skip = 0;
        }
        Ok(())
    }

    /// Reads data in the page cache; `false` as soon as a read would block.
    fn read_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        let mut done = 0;
        while done < buf.len() {
            let mut rest = [IoSliceMut::new(&mut buf[done..])];
            let at = offset.saturating_add(done as u64);
            match rustix::io::preadv2(&self.file, &mut rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                // A short read may mean the end of the file or of the cached part; the next round finds out.
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        self.check_end(buf.len(), done, offset)?;
        buf[done..].fill(0);
        Ok(true)
    }

    /// Writes all of `buf`, which must be aligned.
    fn write_aligned(&self, buf: &[u8], offset: u64) -> Result<(), io::Error> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let rest = &buf[done..];
            let piece = if self.alignment > 1 {
                rest
            } else {
                &rest[..rest.len().min(FOLIO_BYTES)]
            };
            match rustix::io::pwrite(&self.file, piece, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes through an aligned buffer, from one that the kernel would refuse.
    fn write_bounced(&self, buf: &[u8], offset: u64) -> Result<(), io::Error> {
        let capacity = buf
            .len()
            .min(BOUNCE_BYTES_MAX.next_multiple_of(self.alignment));
        let mut bounce = AlignedBuffer::new(capacity, self.alignment.max(self.memory_alignment));
        let mut at = offset;
        for piece in buf.chunks(capacity) {
            let copy = &mut bounce.bytes()[..piece.len()];
            copy.copy_from_slice(piece);
            self.write_aligned(copy, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// The size of a block device; `None` for a file.
    fn device_bytes(&self) -> Option<u64> {
        let size = self.device_bytes.as_ref();
        size.map(|size| size.load(Ordering::Relaxed))
    }

    /// `StorageFull` if `end` is beyond a device's end. Checked before anything is written, because
    /// the kernel would write as much as fits.
    fn check_room(&self, end: Option<u64>) -> io::Result<()> {
        match self.device_bytes() {
            Some(size) if end.is_none_or(|end| end > size) => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("the device has only {size} bytes"),
            )),
            _ => Ok(()),
        }
    }

    /// Adds the operation to an error.
    fn failed(&self, doing: &str, len: u64, offset: u64, cause: impl Into<io::Error>) -> io::Error {
        explain(
            format!("{doing} {len} bytes at {offset} of {}", self.name),
            cause,
        )
    }
}

impl Disk for FileDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let result = if self.is_aligned(buf, offset) {
            self.read_aligned(buf, offset, 0)
        } else {
            self.read_bounced(buf, offset)
        };
        result.map_err(|cause| self.failed("reading", buf.len() as u64, offset, cause))
    }

    fn read_together(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), (usize, io::Error)> {
        let mut is_read = Vec::new();
        if self.alignment > 1
            && ranges.len() > 1
            && ranges
                .iter()
                .all(|range| self.is_aligned(range.buf, range.offset))
        {
            is_read = together::read(&self.file, ranges);
        }
        for (n, range) in ranges.iter_mut().enumerate() {
            if !is_read.get(n).is_some_and(|is_read| *is_read) {
                let read = self.read_at(range.buf, range.offset);
                read.map_err(|error| (n, error))?;
            }
        }
        Ok(())
    }

    fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        if self.alignment > 1 {
            // O_DIRECT always asks the device.
            return Ok(false);
        }
        if !self.nowait_unsupported.load(Ordering::Relaxed) {
            match self.read_cached(buf, offset) {
                Ok(cached) => return Ok(cached),
                Err(cause) if cause.kind() == io::ErrorKind::Unsupported => {
                    self.nowait_unsupported.store(true, Ordering::Relaxed);
                }
                Err(cause) => {
                    return Err(self.failed("reading", buf.len() as u64, offset, cause));
                }
            }
        }
        // Whether it would block cannot be known here. Reading at once is right for the file
        // systems without this ability that matter (they are in memory), and correct on all.
        self.read_at(buf, offset)?;
        Ok(true)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        assert!(
            offset.is_multiple_of(self.alignment as u64)
                && buf.len().is_multiple_of(self.alignment),
            "a write of {} bytes at {offset} of {} lacks the alignment {}",
            buf.len(),
            self.name,
            self.alignment,
        );
        self.check_room(offset.checked_add(buf.len() as u64))
            .and_then(|()| {
                if self.is_aligned(buf, offset) {
                    self.write_aligned(buf, offset)
                } else {
                    self.write_bounced(buf, offset)
                }
            })
            .map_err(|cause| self.failed("writing", buf.len() as u64, offset, cause))?;
        if let Some(writeback) = &self.writeback {
            writeback.written(offset, buf.len());
        }
        Ok(())
    }

    fn prepare_write(&self, bytes: &[u8], offset: u64) -> Option<Box<dyn PreparedWrite>> {
        let ring = self.ring.as_ref()?;
        let unit = self.alignment;
        let is_aligned = offset.is_multiple_of(unit as u64) && bytes.len().is_multiple_of(unit);
        let has_room = self
            .check_room(offset.checked_add(bytes.len() as u64))
            .is_ok();
        (is_aligned && has_room).then(|| ring.prepare_write(bytes, offset))?
    }

    fn prepared_bytes_max(&self) -> usize {
        self.ring.as_ref().map_or(0, |_| ring::REQUEST_BYTES_MAX)
    }

    fn prepare_read(&self, ranges: &[(u64, usize)]) -> Option<Box<dyn PreparedRead>> {
        let ring = self.ring.as_ref()?;
        // Several go to the kernel together in `read_together`, and come back as one.
        let [(offset, len)] = *ranges else {
            return None;
        };
        let unit = self.alignment;
        let is_aligned = offset.is_multiple_of(unit as u64) && len.is_multiple_of(unit);
        is_aligned.then(|| ring.prepare_read(offset, len))?
    }

    fn prepared_read_bytes_max(&self) -> usize {
        self.prepared_bytes_max()
    }

    fn submit(&self) {
        if let Some(ring) = &self.ring {
            ring.submit();
        }
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(writeback) = &self.writeback {
            writeback.begin(&self.file);
        }
        let synced = match &self.syncs {
            Some(syncs) => syncs.sync(),
            None => self.file.sync_data(),
        };
        synced.map_err(|cause| explain(format!("syncing {}", self.name), cause))
    }

    fn forget_cached(&self) -> io::Result<()> {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)
            .map_err(|cause| explain(format!("dropping the cache of {}", self.name), cause))
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 || self.discard_unsupported.load(Ordering::Relaxed) {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.discard_unsupported.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(cause) => Err(self.failed("discarding", len, offset, cause)),
        }
    }

    fn reserve_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len);
        self.check_room(end)
            .and_then(|()| {
                if self.device_bytes.is_some() || len == 0 {
                    return Ok(());
                }
                match fallocate(&self.file, FallocateFlags::empty(), offset, len) {
                    Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                        let now = self.file.metadata()?.len();
                        match end.filter(|end| *end > now) {
                            Some(end) => self.file.set_len(end),
                            None => Ok(()),
                        }
                    }
                    result => Ok(result?),
                }
            })
            .map_err(|cause| self.failed("reserving", len, offset, cause))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let set = match &self.device_bytes {
            Some(size) => device_size(&self.file, &self.name).and_then(|now| {
                size.store(now, Ordering::Relaxed);
                self.check_room(Some(len))
            }),
            None => self.file.set_len(len),
        };
        set.map_err(|cause| explain(format!("making {} {len} bytes long", self.name), cause))
    }

    fn len(&self) -> io::Result<u64> {
        match self.device_bytes() {
            Some(size) => Ok(size),
            None => match self.file.metadata() {
                Ok(metadata) => Ok(metadata.len()),
                Err(cause) => Err(explain(
                    format!("finding the length of {}", self.name),
                    cause,
                )),
            },
        }
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        /// The unit of `st_blocks`, whatever the file system's block size.
        const STAT_BLOCK_BYTES: u64 = 512;
        match self.device_bytes() {
            Some(size) => Ok(size),
            None => match self.file.metadata() {
                Ok(metadata) => Ok(metadata.blocks() * STAT_BLOCK_BYTES),
                Err(cause) => Err(explain(format!("finding the size of {}", self.name), cause)),
            },
        }
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        if let Some(size) = self.device_bytes() {
            return Ok((offset < size).then_some(offset));
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                let len = self.len()?;
                Ok((offset < len).then_some(offset))
            }
            Err(cause) => Err(explain(
                format!("finding the allocated ranges of {}", self.name),
                cause,
            )),
        }
    }

    fn data_end(&self, offset: u64) -> io::Result<u64> {
        if self.device_bytes.is_some() {
            return self.len();
        }
        match rustix::fs::seek(&self.file, SeekFrom::Hole(offset)) {
            Ok(at) => Ok(at),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => self.len(),
            Err(cause) => Err(explain(
                format!("finding the holes of {}", self.name),
                cause,
            )),
        }
    }

    fn waits_to_allocate(&self) -> bool {
        // ext4 holds the file's lock alone while it writes directly to a hole.
        self.alignment > 1 && self.device_bytes.is_none()
    }

    fn host_free_bytes(&self) -> Option<u64> {
        if self.device_bytes.is_some() {
            return None;
        }
        let system = rustix::fs::fstatvfs(&self.file).ok()?;
        Some(system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn alignment(&self) -> usize {
        self.alignment
    }
}

/// The present size of a block device.
fn device_size(file: &File, name: &str) -> io::Result<u64> {
    rustix::fs::seek(file, SeekFrom::End(0))
        .map_err(|e| explain(format!("finding the size of {name}"), e))
}

/// `fallocate(2)`, repeated when a signal interrupts it.
fn fallocate(file: &File, flags: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, flags, offset, len) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// The alignments, of offsets and lengths and of buffers, that O_DIRECT needs for this file.
fn direct_alignment(file: &File, name: &str) -> io::Result<(usize, usize)> {
    let default = (DIRECT_ALIGNMENT_DEFAULT, DIRECT_ALIGNMENT_DEFAULT);
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    let Ok(status) = rustix::fs::statx(file, c"", flags, StatxFlags::DIOALIGN) else {
        return Ok(default);
    };
    if status.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(default);
    }
    let offset = status.stx_dio_offset_align as usize;
    let memory = status.stx_dio_mem_align as usize;
    if !offset.is_power_of_two() || !memory.is_power_of_two() {
        // With zero the kernel reports that this very file cannot be accessed directly.
        return Err(direct_unsupported(name));
    }
    Ok((offset.max(DIRECT_ALIGNMENT_MIN), memory))
}

/// The user's message when a file system refuses O_DIRECT.
pub(super) fn direct_unsupported(name: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!(
            "{name} is on a file system without direct access (O_DIRECT): use the host's page \
             cache instead"
        ),
    )
}
