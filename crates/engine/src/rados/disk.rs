//! A part of a pool in Ceph, stored as objects.
//!
//! A write that was acknowledged to a guest must survive the death of the process, so a write of data returns once the
//! cluster has acknowledged it, and is durable then. Writes of other parts return when they are submitted, and a sync
//! waits for all of them. RADOS applies the operations of one client on one object in the order of their submission, so
//! later reads see these writes. Once a write has failed, reads fail until a sync has returned the error.
//!
//! A read of data fails if an object is missing or too short: the cluster has lost it. Other parts are also read where
//! nothing was ever written, and their content is checked: missing bytes read as zeros.
//!
//! Data and secret of a pool that hosts share are open on each of them. No head lists them, so they have no length: they
//! reach as far as blocks can have addresses.
//!
//! Invariants:
//! - All objects of a part are below its reach, which the head records before the first of them is created.
//! - A guarded object belongs to the owner's session from the opening of its part on.

use super::behind::Behind;
use super::head::{Change, Entry, Made};
use super::names::object_name;
use super::operations::{Countdown, OPERATIONS_MAX, ObjectChange, Operations, missing_is_fine};
use super::place::{self, OBJECT_BYTES, Piece, Place, by_object, pieces};
use super::prepared::{PreparedChange, PreparedOperations};
use crate::failure::explain;
use crate::{Disk, Part, PreparedRead, PreparedWrite, ReadRange, WriteRange};
use onefold_rados::WhenFull;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// In-flight bytes of writes, of all parts together, above which further writes wait.
const UNDER_WAY_BYTES_MAX: usize = 16 << 20;

/// The most places in an object that one operation reads or writes: an OSD handles them one after the other, and delays
/// all other operations on the object's placement group until it is done.
const PLACES_MAX: usize = 64;

/// The longest write that is prepared. The transfer of a longer one outweighs the cost of a thread.
const PREPARED_BYTES_MAX: usize = 256 << 10;

/// An open part.
pub(super) struct RadosDisk {
    owner: Arc<Operations>,
    part: Part,
    base: String,
    /// The part's name in errors.
    name: String,
    entry: Mutex<Entry>,
    /// The part's length according to the head.
    stored_len: AtomicU64,
    behind: Arc<Behind>,
}

impl RadosDisk {
    /// Opens a part that the head lists; its guarded objects belong to this owner afterwards. `made` of them are known
    /// to exist: if one of these is missing, the cluster has lost records of the log or a list that exists nowhere
    /// else, and opening fails.
    pub(super) fn open(
        owner: &Arc<Operations>,
        part: Part,
        entry: Entry,
        made: u64,
        name: String,
    ) -> io::Result<RadosDisk> {
        let disk = RadosDisk {
            owner: Arc::clone(owner),
            part,
            base: owner.estate.base(part, entry.generation),
            name,
            entry: Mutex::new(entry),
            stored_len: AtomicU64::new(entry.len),
            behind: Arc::default(),
        };
        let stamped = disk.stamp(0..entry.objects(), made)?;
        if stamped > made {
            let change = Change::begin(owner.pool(), owner.session());
            disk.change_head(change.made(part, disk.made_of(&entry, stamped)))?;
        }
        if part != Part::Data {
            // Bytes beyond the length were never synced, and must not reappear when the part grows again. Data has its
            // length before anything is written there.
            disk.clear(entry.len, entry.reach - entry.len)
                .map_err(|error| disk.failed("cutting off", entry.len..entry.reach, error))?;
        }
        Ok(disk)
    }

    /// Opens a part of the pool that all its hosts share: it is as long as it may ever be.
    pub(super) fn open_shared(
        owner: &Arc<Operations>,
        part: Part,
        len: u64,
        name: String,
    ) -> RadosDisk {
        RadosDisk {
            owner: Arc::clone(owner),
            part,
            base: owner.estate.base(part, 0),
            name,
            entry: Mutex::new(Entry {
                generation: 0,
                len,
                reach: len,
            }),
            stored_len: AtomicU64::new(len),
            behind: Arc::default(),
        }
    }

    /// Whether the part belongs to all hosts of the pool, and so has no length that this owner could change.
    fn is_shared(&self) -> bool {
        self.owner.estate.shares(self.part)
    }

    fn guards(&self, object: u64) -> bool {
        self.owner.estate.guards(self.part, object)
    }

    fn entry(&self) -> MutexGuard<'_, Entry> {
        // Each change is complete in itself.
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, doing: &str, range: Range<u64>, error: io::Error) -> io::Error {
        let (len, at) = (range.end - range.start, range.start);
        explain(
            format!("{doing} {len} bytes at {at} of {}", self.name),
            error,
        )
    }

    fn end_of(&self, doing: &str, offset: u64, len: u64) -> io::Result<u64> {
        place::end(offset, len).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{doing} {len} bytes at {offset} of {}: that is beyond the largest size of a part",
                    self.name
                ),
            )
        })
    }

    /// Makes the guarded objects of this range this owner's; objects before `made` exist already. Returns the end of
    /// the guarded ones.
    fn stamp(&self, objects: Range<u64>, made: u64) -> io::Result<u64> {
        let start = objects.start;
        let guarded: Vec<u64> = objects.take_while(|object| self.guards(*object)).collect();
        let end = start + guarded.len() as u64;
        let all = Countdown::new(guarded.len());
        for object in guarded {
            let (name, is_made) = (self.object(object), object < made);
            let change = ObjectChange {
                op: self.owner.stamped(is_made),
                doing: "taking over",
                bytes: 0,
            };
            let (ended, of) = (all.part(), name.clone());
            let ended = move |stamped: io::Result<()>| {
                ended(stamped.map_err(|error| match error.kind() {
                    // Not `NotFound`, because the part exists.
                    io::ErrorKind::NotFound => io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("its object {of} is missing: the cluster has lost it"),
                    ),
                    _ => error,
                }));
            };
            self.owner.submit(&name, change, WhenFull::Go, ended);
        }
        all.wait()
            .map_err(|error| explain(format!("taking over {}", self.name), error))?;
        Ok(end)
    }

    /// The number of guarded objects as the head records it, if the part has any.
    fn made_of(&self, entry: &Entry, objects: u64) -> Option<Made> {
        (objects > 0).then_some(Made {
            generation: entry.generation,
            objects,
        })
    }

    fn change_head(&self, change: Change) -> io::Result<()> {
        let change = ObjectChange {
            op: change.into_op(),
            doing: "changing",
            bytes: 0,
        };
        let changed = self.owner.change(&self.owner.head, change);
        changed.map_err(|error| explain(format!("changing the length of {}", self.name), error))
    }

    fn object(&self, object: u64) -> String {
        object_name(&self.base, object)
    }

    /// Grows the part to at least this length, before anything is written there.
    fn grow(&self, end: u64) -> io::Result<()> {
        let mut entry = self.entry();
        if end <= entry.len {
            return Ok(());
        }
        if self.is_shared() {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "byte {end} of {} is beyond its end at {}",
                    self.name, entry.len
                ),
            ));
        }
        if self.part != Part::Data {
            // Data needs no check: guests learn that the cluster is full when they write.
            let grows = self.owner.grows(end - entry.len);
            grows.map_err(|error| self.failed("growing by", entry.len..end, error))?;
        }
        let mut grown = *entry;
        if grown.set_len(end) {
            self.store_entry(&entry, grown)?;
        }
        *entry = grown;
        Ok(())
    }

    /// Stores this entry in the head. The caller holds the lock on the part's entry.
    fn store_entry(&self, before: &Entry, entry: Entry) -> io::Result<()> {
        let session = self.owner.session();
        let mut change = Change::begin(self.owner.pool(), session).part(self.part, Some(entry));
        if before.objects() < entry.objects() {
            let (old, new) = (before.objects(), entry.objects());
            let stamped = self.stamp(old..new, 0)?;
            if stamped > old {
                change = change.made(self.part, self.made_of(&entry, stamped));
            }
        }
        self.change_head(change)?;
        self.stored_len.store(entry.len, Ordering::SeqCst);
        Ok(())
    }

    /// Makes a change that writes to one object. Each write is an offset and the bytes.
    fn write_change<'a>(
        &self,
        object: u64,
        writes: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) -> ObjectChange {
        let op = if self.guards(object) {
            self.owner.asserted()
        } else {
            self.owner.pool().write_op()
        };
        let mut change = ObjectChange {
            op,
            doing: "writing",
            bytes: 0,
        };
        for (offset, bytes) in writes {
            change.op = change.op.write(offset, bytes);
            change.bytes += bytes.len();
        }
        change
    }

    /// Guests' writes fail in a full cluster; the pool's settings decide whether the guest waits. The other parts are
    /// written up to their length even then, because nothing can make room without them, and a failed commit ends the
    /// session; they grow only where there is room.
    fn when_full(&self) -> WhenFull {
        match self.part {
            Part::Data => WhenFull::Fail,
            _ => WhenFull::Go,
        }
    }

    fn write_behind(&self, bytes: &[u8], offset: u64) {
        for piece in pieces(offset, bytes.len() as u64) {
            self.owner.host.flights.wait_for_room(UNDER_WAY_BYTES_MAX);
            let write = (piece.offset, &bytes[piece.bytes.clone()]);
            let change = self.write_change(piece.object, [write]);
            let object = self.object(piece.object);
            let ended = self.behind.begin();
            self.owner.submit(&object, change, self.when_full(), ended);
        }
    }

    /// Submits one operation that reads these places of one object.
    fn begin_read(
        &self,
        places: &[Place],
        ended: impl FnOnce(io::Result<Option<Vec<Vec<u8>>>>) + Send + 'static,
    ) {
        let asked = places
            .iter()
            .map(|place| (place.piece.offset, place.piece.len()));
        let object = self.object(places[0].piece.object);
        self.owner.read(&object, asked, ended);
    }

    /// Copies the bytes that an operation has read into the buffers of the requests.
    fn take_read(
        &self,
        places: &[Place],
        read: io::Result<Option<Vec<Vec<u8>>>>,
        ranges: &mut [ReadRange<'_>],
    ) -> Result<(), (usize, io::Error)> {
        match read {
            Ok(found) => {
                let is_missing = found.is_none();
                let all = found.unwrap_or_default().into_iter();
                let all = all.chain(std::iter::repeat_with(Vec::new));
                for (Place { request, piece }, bytes) in places.iter().zip(all) {
                    if self.part == Part::Data && bytes.len() < piece.len() {
                        let ends = (!is_missing).then(|| piece.offset + bytes.len() as u64);
                        let error = self.lost(piece.object, ends);
                        return Err(self.failed_read(*request, ranges, error));
                    }
                    let buf = &mut ranges[*request].buf[piece.bytes.clone()];
                    buf[..bytes.len()].copy_from_slice(&bytes);
                    buf[bytes.len()..].fill(0);
                }
                Ok(())
            }
            // Repeats the reads one by one, to find out which of them fails.
            Err(_) if places.len() > 1 => places.iter().try_for_each(|place| {
                let place = std::slice::from_ref(place);
                let (sender, end) = mpsc::channel();
                self.begin_read(place, move |read| {
                    let _ = sender.send(read);
                });
                let gone = |_| Err(io::Error::other("a read was dropped"));
                self.take_read(place, end.recv().unwrap_or_else(gone), ranges)
            }),
            Err(error) => Err(self.failed_read(places[0].request, ranges, error)),
        }
    }

    fn failed_read(
        &self,
        request: usize,
        ranges: &[ReadRange<'_>],
        error: io::Error,
    ) -> (usize, io::Error) {
        let ReadRange { buf, offset } = &ranges[request];
        let range = *offset..*offset + buf.len() as u64;
        (request, self.failed("reading", range, error))
    }

    /// The error of a read of data from an object that is missing, or that ends at this byte.
    fn lost(&self, object: u64, ends: Option<u64>) -> io::Error {
        let name = self.object(object);
        let what = match ends {
            None => format!("object {name} is missing"),
            Some(end) => format!("object {name} ends at byte {end}"),
        };
        io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("{what}, though data was stored there: the cluster has lost it"),
        )
    }

    /// Zeroes a range. Objects that it covers entirely are removed, unless they are guarded.
    fn clear(&self, offset: u64, len: u64) -> io::Result<()> {
        let pieces: Vec<Piece> = pieces(offset, len).collect();
        for some in pieces.chunks(OPERATIONS_MAX) {
            let all = Countdown::new(some.len());
            for piece in some {
                let is_guarded = self.guards(piece.object);
                let op = match (is_guarded, piece.is_whole()) {
                    (true, _) => self.owner.asserted().zero(piece.offset, piece.len() as u64),
                    (false, true) => self.owner.pool().write_op().remove(),
                    // An operation on a missing object would create it.
                    (false, false) => (self.owner.pool().write_op())
                        .assert_exists()
                        .zero(piece.offset, piece.len() as u64),
                };
                let change = ObjectChange {
                    op,
                    doing: "giving back",
                    bytes: 0,
                };
                let object = self.object(piece.object);
                let ended = missing_is_fine(all.part());
                self.owner.submit(&object, change, WhenFull::Go, ended);
            }
            all.wait()?;
        }
        Ok(())
    }
}

impl Disk for RadosDisk {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.read_together(&mut [ReadRange { buf, offset }]);
        read.map_err(|(_, error)| error)
    }

    fn read_together(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), (usize, io::Error)> {
        for (n, range) in ranges.iter().enumerate() {
            self.end_of("reading", range.offset, range.buf.len() as u64)
                .map_err(|error| (n, error))?;
        }
        let asked = ranges
            .iter()
            .map(|range| (range.offset, range.buf.len() as u64));
        let operations = by_object(asked, PLACES_MAX);
        let (sender, ends) = mpsc::channel();
        let mut begun = 0;
        for ended in 0..operations.len() {
            while begun < operations.len() && begun < ended + OPERATIONS_MAX {
                let (number, sender) = (begun, sender.clone());
                self.begin_read(&operations[begun], move |read| {
                    // After an error, the receiver is gone.
                    let _ = sender.send((number, read));
                });
                begun += 1;
            }
            let gone = |_| (0, io::Error::other("a read was dropped"));
            let (number, read) = ends.recv().map_err(gone)?;
            self.take_read(&operations[number], read, ranges)?;
        }
        // Later reads see a write that has returned, or they fail.
        self.behind
            .check()
            .map_err(|error| (0, explain(format!("reading {}", self.name), error)))
    }

    fn try_read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.part == Part::Data {
            let written = self.write_together(&[WriteRange { bytes, offset }]);
            return written.map_err(|(_, error)| error);
        }
        let end = self.end_of("writing", offset, bytes.len() as u64)?;
        if !bytes.is_empty() {
            self.grow(end)?;
            self.write_behind(bytes, offset);
        }
        Ok(())
    }

    fn write_together(&self, ranges: &[WriteRange<'_>]) -> Result<(), (usize, io::Error)> {
        let mut ends = Vec::with_capacity(ranges.len());
        for (n, range) in ranges.iter().enumerate() {
            let end = self.end_of("writing", range.offset, range.bytes.len() as u64);
            ends.push(end.map_err(|error| (n, error))?);
        }
        for (n, range) in ranges.iter().enumerate() {
            if !range.bytes.is_empty() {
                self.grow(ends[n]).map_err(|error| (n, error))?;
            }
        }
        let asked = ranges
            .iter()
            .map(|range| (range.offset, range.bytes.len() as u64));
        let operations = by_object(asked, PLACES_MAX);
        // Waits for all operations even after an error: the caller may reuse their places afterwards.
        let all = Countdown::new(operations.len());
        for places in &operations {
            let bytes = |place: &Place| &ranges[place.request].bytes[place.piece.bytes.clone()];
            let writes = places
                .iter()
                .map(|place| (place.piece.offset, bytes(place)));
            let object = places[0].piece.object;
            let change = self.write_change(object, writes);
            // A failed operation has made none of its writes.
            let (n, ended) = (places[0].request, all.part());
            let ended = move |written: io::Result<()>| ended(written.map_err(|error| (n, error)));
            self.owner
                .submit(&self.object(object), change, self.when_full(), ended);
        }
        all.wait().map_err(|(n, error)| {
            let range = ranges[n].offset..ends[n];
            (n, self.failed("writing", range, error))
        })
    }

    fn prepare_write(&self, bytes: &[u8], offset: u64) -> Option<Box<dyn PreparedWrite>> {
        let end = place::end(offset, bytes.len() as u64)?;
        let is_refused = bytes.is_empty()
            || bytes.len() > self.prepared_bytes_max()
            || end > self.entry().len
            || self.owner.host.flights.bytes() + bytes.len() > UNDER_WAY_BYTES_MAX;
        let mut pieces = pieces(offset, bytes.len() as u64);
        let piece = pieces.next().filter(|_| !is_refused)?;
        if pieces.next().is_some() {
            return None;
        }
        Some(Box::new(PreparedChange {
            ends: self.owner.ends()?.clone(),
            owner: Arc::clone(&self.owner),
            object: self.object(piece.object),
            change: self.write_change(piece.object, [(piece.offset, bytes)]),
            bytes: bytes.to_vec(),
            doing: format!("writing {} bytes at {offset} of {}", bytes.len(), self.name),
        }))
    }

    fn prepared_bytes_max(&self) -> usize {
        match self.part {
            Part::Data => PREPARED_BYTES_MAX,
            _ => 0,
        }
    }

    fn prepare_read(&self, ranges: &[(u64, usize)]) -> Option<Box<dyn PreparedRead>> {
        let bytes = ranges.iter().map(|(_, len)| *len).sum::<usize>();
        if bytes == 0 || bytes > self.prepared_read_bytes_max() {
            return None;
        }
        for (offset, len) in ranges {
            place::end(*offset, *len as u64)?;
        }
        let asked = ranges.iter().map(|(offset, len)| (*offset, *len as u64));
        let operations = by_object(asked, PLACES_MAX);
        let named = operations.into_iter().map(|places| {
            let object = self.object(places[0].piece.object);
            (object, places)
        });
        Some(Box::new(PreparedOperations {
            owner: Arc::clone(&self.owner),
            operations: named.collect(),
            lens: ranges.iter().map(|(_, len)| *len).collect(),
        }))
    }

    fn prepared_read_bytes_max(&self) -> usize {
        match self.part {
            Part::Data => PREPARED_BYTES_MAX,
            _ => 0,
        }
    }

    fn is_cached(&self) -> bool {
        false
    }

    fn is_durable_once_written(&self) -> bool {
        self.part == Part::Data
    }

    fn writes_are_whole(&self) -> bool {
        true
    }

    fn sync(&self) -> io::Result<()> {
        let failed = |error| explain(format!("syncing {}", self.name), error);
        self.behind.wait().map_err(failed)?;
        let entry = self.entry();
        if self.stored_len.load(Ordering::SeqCst) != entry.len {
            self.store_entry(&entry, *entry)?;
        }
        Ok(())
    }

    fn forget_cached(&self) -> io::Result<()> {
        // Nothing is cached here, and OSDs read the data that they have acknowledged.
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = self.end_of("giving back", offset, len)?;
        let end = end.min(self.entry().reach);
        let len = end.saturating_sub(offset);
        self.clear(offset, len)
            .map_err(|error| self.failed("giving back", offset..offset + len, error))
    }

    fn reserve_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = self.end_of("reserving", offset, len)?;
        if self.is_shared() {
            return Ok(());
        }
        self.grow(end)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.end_of("setting the length to", 0, len)?;
        if self.is_shared() {
            return Ok(());
        }
        let mut entry = self.entry();
        let before = *entry;
        if len < before.len {
            // RADOS applies this after the writes that were submitted before.
            self.clear(len, before.reach - len)
                .map_err(|error| self.failed("cutting off", len..before.reach, error))?;
        }
        let mut changed = before;
        changed.set_len(len);
        self.store_entry(&before, changed)?;
        *entry = changed;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.entry().len)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        // Ceph knows how much space a pool takes, but not a single part.
        self.len()
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let entry = *self.entry();
        if self.is_shared() {
            // Too long to look through it.
            return Ok((offset < entry.len).then_some(offset));
        }
        let first = offset / OBJECT_BYTES;
        let objects: Vec<u64> = (first..entry.len.div_ceil(OBJECT_BYTES)).collect();
        for some in objects.chunks(OPERATIONS_MAX) {
            let (sender, ends) = mpsc::channel();
            for object in some {
                let (object, sender) = (*object, sender.clone());
                // Reading one byte is enough, and cheap for the cluster.
                self.owner
                    .read(&self.object(object), [(0, 1)], move |read| {
                        let _ = sender.send((object, read));
                    });
            }
            drop(sender);
            let mut found: Option<u64> = None;
            for (object, read) in ends {
                let read =
                    read.map_err(|error| explain(format!("looking into {}", self.name), error))?;
                let mut bytes = read.iter().flatten();
                if bytes.any(|bytes| !bytes.is_empty()) {
                    found = Some(found.map_or(object, |smallest| smallest.min(object)));
                }
            }
            if let Some(object) = found {
                return Ok(Some(offset.max(object * OBJECT_BYTES)));
            }
        }
        Ok(None)
    }

    fn data_end(&self, offset: u64) -> io::Result<u64> {
        Ok((offset / OBJECT_BYTES + 1) * OBJECT_BYTES)
    }

    fn host_free_bytes(&self) -> Option<u64> {
        None
    }

    fn alignment(&self) -> usize {
        1
    }
}

impl Drop for RadosDisk {
    fn drop(&mut self) {
        // Makes the next opening of the part see all writes. An error has no receiver left: unsynced writes may be
        // lost.
        let _ = self.sync();
    }
}
