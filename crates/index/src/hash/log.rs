//! The log: the changes of every batch, one frame each, in extents that link to their successors.
//!
//! A frame:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic, `1FLG` |
//! | 4 | 4 | kind: 1 batch, 2 link, 3 parts of batches, 4 holders, 5 marks |
//! | 8 | 8 | life: which of the indexes that ever were in this part |
//! | 16 | 8 | sequence number |
//! | 24 | 8 | bytes, from the magic to the end of the body |
//! | 32 | 16 | hash of the frame before |
//! | 48 | 16 | hash: BLAKE3 of the pool's id and the frame with this field zero, cut to 128 bits |
//! | 64 | | body |
//!
//! Frames begin at sectors. The last sector of an extent is kept for a link: a frame whose body says where the next
//! extent is, with a number that no other link has. A link follows the last frame that found room.
//!
//! Each frame has the hash of the one before. So a frame that a crash left behind the end, or in an
//! extent whose link was lost, is never mistaken for the successor of a later frame.
//!
//! A frame is durable before the next one is begun, so the log ends where a frame is missing,
//! unless there is a later one: then it had existed, and the index is damaged. The exception is a
//! link, which the sync of the frame behind it makes durable; so at most one link is not durable.
//!
//! # Where there is no room
//!
//! The extent for the next link is reserved ahead, so that the log can continue while the host is
//! full. A write that fails for want of room may have left any of its sectors, even all of them,
//! and none counts:
//!
//! - A frame is replaced: the next frame is written to the same place, with the same number. If the
//!   log continues in another extent instead, the place is overwritten with zeros before the link
//!   is written, since a reader prefers the frame to the link.
//! - A link points to an extent that stays the next one, so whichever of several attempts a crash
//!   leaves, its target is valid.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use onefold_engine::Disk;
use onefold_format::PoolId;

use super::space::{Extent, Space, pages_for};
use crate::{IndexError, Result};

const MAGIC: [u8; 4] = *b"1FLG";

const KIND_BATCH: u32 = 1;
const KIND_LINK: u32 = 2;
const KIND_PARTS: u32 = 3;
const KIND_HOLDERS: u32 = 4;
const KIND_MARKS: u32 = 5;

/// Bytes of a frame before its body.
pub(super) const FRAME_HEADER_BYTES: usize = 64;

const HASH_OFFSET: usize = 48;
const HASH_BYTES: usize = 16;

const SECTOR_BYTES: u64 = 512;

/// Pages of the first extent.
const FIRST_EXTENT_PAGES: u64 = 16;

/// Bytes that are searched at a time for frames behind the end.
const PIECE_BYTES: u64 = 1 << 20;

const LINK_BYTES: usize = FRAME_HEADER_BYTES + 24;

/// What a frame holds, unless it is a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// The changes of one batch.
    Batch,
    /// The changes of parts of batches, of any number of streams.
    Parts,
    /// The list of streams that may hold rows.
    Holders,
    /// The blocks that are marked as bad.
    Marks,
}

impl FrameKind {
    pub(super) const ALL: [FrameKind; 4] = [
        FrameKind::Batch,
        FrameKind::Parts,
        FrameKind::Holders,
        FrameKind::Marks,
    ];

    fn number(self) -> u32 {
        match self {
            FrameKind::Batch => KIND_BATCH,
            FrameKind::Parts => KIND_PARTS,
            FrameKind::Holders => KIND_HOLDERS,
            FrameKind::Marks => KIND_MARKS,
        }
    }
}

/// The hash of a frame.
pub(super) type FrameHash = [u8; HASH_BYTES];

/// A place between two frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) extent: Extent,
    /// Where the next frame begins, in bytes from the extent's beginning.
    pub(super) at: u64,
    /// The sequence number of the next frame.
    pub(super) sequence: u64,
    /// The hash of the frame before.
    pub(super) previous: FrameHash,
}

impl Position {
    /// Where a new log begins.
    pub(super) fn first(extent: Extent) -> Position {
        Position {
            extent,
            at: 0,
            sequence: 1,
            previous: FrameHash::default(),
        }
    }

    fn offset(&self) -> u64 {
        self.extent.offset() + self.at
    }

    /// Bytes for frames from here to the end of the extent.
    fn room(&self) -> u64 {
        (self.extent.bytes() - SECTOR_BYTES).saturating_sub(self.at)
    }

    /// Moves behind a frame of this many bytes.
    fn advance(&mut self, bytes: usize, hash: FrameHash) {
        self.at += (bytes as u64).next_multiple_of(SECTOR_BYTES);
        self.sequence += 1;
        self.previous = hash;
    }
}

/// The log of an open index.
pub(super) struct Log {
    pool: PoolId,
    life: u64,
    /// Most pages of an extent, unless it holds a larger frame.
    extent_pages: u64,
    /// The first frame in each extent, from the one that has the oldest frame in use.
    marks: VecDeque<Position>,
    tail: Position,
    /// Whether the room behind the tail is reserved.
    is_reserved: bool,
    /// Extents to continue in, in their order, which are reserved. A link that failed may point to
    /// the first one, so they serve nothing else.
    ahead: VecDeque<Extent>,
    /// Whether a frame at the tail could not be written, and may be there nevertheless.
    is_torn: bool,
    /// Whether a crash may undo the last link.
    is_link_fresh: bool,
}

impl Log {
    /// An empty log in an extent of its own.
    pub(super) fn new(pool: PoolId, life: u64, extent_pages: u64, space: &mut Space) -> Log {
        let tail = Position::first(space.take(extent_pages.min(FIRST_EXTENT_PAGES)));
        Log::at(pool, life, extent_pages, VecDeque::from([tail]), tail)
    }

    fn at(
        pool: PoolId,
        life: u64,
        extent_pages: u64,
        marks: VecDeque<Position>,
        tail: Position,
    ) -> Log {
        Log {
            pool,
            life,
            extent_pages,
            marks,
            tail,
            is_reserved: false,
            ahead: VecDeque::new(),
            is_torn: false,
            is_link_fresh: false,
        }
    }

    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// The sequence number of the last frame.
    pub(super) fn last(&self) -> u64 {
        self.tail.sequence - 1
    }

    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.marks.iter().map(|mark| mark.extent)
    }

    /// Writes a frame. `frame` has [`FRAME_HEADER_BYTES`] bytes before its body. It is not durable
    /// when this returns, but after the next sync; the caller then calls [`Log::synced`].
    ///
    /// # Errors
    /// After [`IndexError::NoRoom`] another frame can be written in its place.
    pub(super) fn append(
        &mut self,
        disk: &dyn Disk,
        space: &mut Space,
        kind: FrameKind,
        frame: &mut Vec<u8>,
    ) -> Result<()> {
        while frame.len() as u64 > self.tail.room() {
            self.link(disk, space, frame.len())?;
        }
        self.is_torn = true;
        let hash = self.write(disk, self.tail.offset(), kind.number(), frame)?;
        self.is_torn = false;
        self.tail.advance(frame.len(), hash);
        Ok(())
    }

    /// Notes that everything written is durable.
    pub(super) fn synced(&mut self) {
        self.is_link_fresh = false;
    }

    /// Provides room for frames of this many bytes together, behind the tail or in an extent to
    /// continue in.
    pub(super) fn secure(
        &mut self,
        disk: &dyn Disk,
        space: &mut Space,
        bytes: usize,
    ) -> Result<()> {
        if !self.is_reserved {
            let offset = self.tail.offset();
            let end = self.tail.extent.offset() + self.tail.extent.bytes();
            disk.reserve_range(offset, end - offset)
                .map_err(IndexError::of_write)?;
            self.is_reserved = true;
        }
        let ahead = self
            .ahead
            .iter()
            .map(|extent| Position::first(*extent).room());
        let most = ahead.chain([self.tail.room()]).max();
        if most.is_none_or(|most| most < bytes as u64) {
            self.reserve_ahead(disk, space, bytes)?;
        }
        Ok(())
    }

    /// Reserves an extent to continue in, with room for this many bytes.
    fn reserve_ahead(
        &mut self,
        disk: &dyn Disk,
        space: &mut Space,
        bytes: usize,
    ) -> Result<Extent> {
        // Small logs take little space, and large ones have few extents.
        let live: u64 = self.marks.iter().map(|mark| mark.extent.pages).sum();
        let needed = pages_for(bytes.saturating_add(SECTOR_BYTES as usize));
        let extent = space.take(live.min(self.extent_pages).max(needed));
        if let Err(error) = disk.reserve_range(extent.offset(), extent.bytes()) {
            space.give(extent);
            return Err(IndexError::of_write(error));
        }
        self.ahead.push_back(extent);
        Ok(extent)
    }

    /// Continues in the next extent; if none is reserved, in one with room for this many bytes.
    fn link(&mut self, disk: &dyn Disk, space: &mut Space, bytes: usize) -> Result<()> {
        let extent = match self.ahead.front() {
            Some(extent) => *extent,
            None => self.reserve_ahead(disk, space, bytes)?,
        };
        if self.is_link_fresh {
            // If only the later of two links survived a crash, the frames before it would seem to
            // have existed.
            disk.sync()?;
            self.is_link_fresh = false;
        }
        if self.is_torn {
            disk.write_at(&[0; SECTOR_BYTES as usize], self.tail.offset())
                .map_err(IndexError::of_write)?;
            self.is_torn = false;
        }
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame.extend(extent.start.to_le_bytes());
        frame.extend(extent.pages.to_le_bytes());
        frame.extend(unique_number().to_le_bytes());
        let hash = self.write(disk, link_offset(self.tail.extent), KIND_LINK, &mut frame)?;
        self.ahead.pop_front();
        self.tail = Position {
            extent,
            at: 0,
            sequence: self.tail.sequence + 1,
            previous: hash,
        };
        self.is_reserved = true;
        self.is_link_fresh = true;
        self.marks.push_back(self.tail);
        Ok(())
    }

    fn write(
        &self,
        disk: &dyn Disk,
        offset: u64,
        kind: u32,
        frame: &mut Vec<u8>,
    ) -> Result<FrameHash> {
        let bytes = frame.len() as u64;
        frame[..4].copy_from_slice(&MAGIC);
        frame[4..8].copy_from_slice(&kind.to_le_bytes());
        frame[8..16].copy_from_slice(&self.life.to_le_bytes());
        frame[16..24].copy_from_slice(&self.tail.sequence.to_le_bytes());
        frame[24..32].copy_from_slice(&bytes.to_le_bytes());
        frame[32..HASH_OFFSET].copy_from_slice(&self.tail.previous);
        let hash = hash_of(self.pool, frame);
        frame[HASH_OFFSET..FRAME_HEADER_BYTES].copy_from_slice(&hash);
        frame.resize(bytes.next_multiple_of(SECTOR_BYTES) as usize, 0);
        let written = disk.write_at(frame, offset);
        frame.truncate(bytes as usize);
        written.map_err(IndexError::of_write)?;
        Ok(hash)
    }

    /// Bytes of the extents from the one that has this frame on.
    pub(super) fn bytes_from(&self, sequence: u64) -> u64 {
        let from = self.mark_of(sequence);
        self.marks
            .range(from..)
            .map(|mark| mark.extent.bytes())
            .sum()
    }

    /// How many extents there are, and how many of them hold only frames before this one.
    pub(super) fn extents_before(&self, sequence: u64) -> (usize, usize) {
        (self.marks.len(), self.mark_of(sequence))
    }

    /// The first frame of the extent that has this one.
    pub(super) fn start_for(&self, sequence: u64) -> Position {
        self.marks[self.mark_of(sequence)]
    }

    fn mark_of(&self, sequence: u64) -> usize {
        let behind = self.marks.partition_point(|mark| mark.sequence <= sequence);
        behind.saturating_sub(1)
    }

    /// Forgets the extents before the one that begins with this frame, and returns them.
    pub(super) fn forget_before(&mut self, sequence: u64) -> Vec<Extent> {
        let count = self.mark_of(sequence);
        self.marks.drain(..count).map(|mark| mark.extent).collect()
    }
}

/// Bytes of the log that a frame with a body of this length takes.
pub(super) fn frame_bytes(body: usize) -> usize {
    body.saturating_add(FRAME_HEADER_BYTES + SECTOR_BYTES as usize)
}

/// A unique number, from the randomness that the standard library keeps for its hash tables.
pub(super) fn unique_number() -> u64 {
    RandomState::new().hash_one(0)
}

/// The last sector of an extent.
fn link_offset(extent: Extent) -> u64 {
    extent.offset() + extent.bytes() - SECTOR_BYTES
}

/// The hash that a frame should have.
fn hash_of(pool: PoolId, frame: &[u8]) -> FrameHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&pool.0);
    hasher.update(&frame[..HASH_OFFSET]);
    hasher.update(&[0; HASH_BYTES]);
    hasher.update(&frame[FRAME_HEADER_BYTES..]);
    let mut hash = FrameHash::default();
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..HASH_BYTES]);
    hash
}

/// A log on the disk.
pub(super) struct Reader<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) pool: PoolId,
    pub(super) life: u64,
    pub(super) start: Position,
}

/// Gets the sequence number of a frame, its kind and its body.
pub(super) type Visit<'a> = dyn FnMut(u64, FrameKind, &[u8]) -> Result<()> + 'a;

/// The header of a frame that seems to be one.
struct Claimed {
    kind: u32,
    sequence: u64,
    bytes: u64,
    previous: FrameHash,
}

impl Reader<'_> {
    /// Visits the body of every frame but links with its sequence number, in order, and returns the log.
    ///
    /// # Errors
    /// [`IndexError::Damaged`] where a frame is missing that must have been there.
    pub(super) fn replay(&self, extent_pages: u64, visit: &mut Visit<'_>) -> Result<Log> {
        let mut tail = self.start;
        let mut marks = VecDeque::from([tail]);
        let mut frame = Vec::new();
        loop {
            let claimed = self.read(tail.offset(), tail.room(), &mut frame)?;
            if let Some(kind) = claimed.and_then(|claimed| claimed.frame_behind(&tail)) {
                visit(tail.sequence, kind, &frame[FRAME_HEADER_BYTES..])?;
                tail.advance(frame.len(), frame_hash(&frame));
                continue;
            }
            let link = self.read(link_offset(tail.extent), SECTOR_BYTES, &mut frame)?;
            if !link.is_some_and(|link| link.continues(&tail, KIND_LINK)) {
                break;
            }
            let body = &frame[FRAME_HEADER_BYTES..];
            let extent = decode_link(body).ok_or_else(|| self.damaged(&tail))?;
            tail = Position {
                extent,
                at: 0,
                sequence: tail.sequence + 1,
                previous: frame_hash(&frame),
            };
            marks.push_back(tail);
        }
        self.check_end(&tail)?;
        Ok(Log::at(self.pool, self.life, extent_pages, marks, tail))
    }

    /// Reads the frame that begins at an offset of the part; `None` if no frame of this life does.
    fn read(&self, offset: u64, room: u64, frame: &mut Vec<u8>) -> Result<Option<Claimed>> {
        if room < SECTOR_BYTES {
            return Ok(None);
        }
        frame.resize(SECTOR_BYTES as usize, 0);
        self.disk.read_at(frame, offset)?;
        let Some(claimed) = self.claimed(frame).filter(|claimed| claimed.bytes <= room) else {
            return Ok(None);
        };
        frame.resize(claimed.bytes as usize, 0);
        self.disk.read_at(frame, offset)?;
        let is_whole = hash_of(self.pool, frame) == frame_hash(frame);
        Ok(is_whole.then_some(claimed))
    }

    fn claimed(&self, sector: &[u8]) -> Option<Claimed> {
        let number = |at: usize| Some(u64::from_le_bytes(*sector.get(at..)?.first_chunk()?));
        let bytes = number(24)?;
        let is_ours = sector.starts_with(&MAGIC) && number(8)? == self.life;
        let mut previous = FrameHash::default();
        previous.copy_from_slice(sector.get(32..HASH_OFFSET)?);
        (is_ours && bytes >= FRAME_HEADER_BYTES as u64).then_some(Claimed {
            kind: u32::from_le_bytes(*sector.get(4..)?.first_chunk()?),
            sequence: number(16)?,
            bytes,
            previous,
        })
    }

    /// Checks that nothing follows the end of the log.
    fn check_end(&self, tail: &Position) -> Result<()> {
        let mut frame = Vec::new();
        let link = self.read(link_offset(tail.extent), SECTOR_BYTES, &mut frame)?;
        let mut is_followed = link.is_some_and(|link| link.sequence >= tail.sequence);
        let mut piece = Vec::new();
        let mut behind = *tail;
        while behind.room() > 0 && !is_followed {
            piece.resize(behind.room().min(PIECE_BYTES) as usize, 0);
            self.disk.read_at(&mut piece, behind.offset())?;
            for sector in piece.chunks_exact(SECTOR_BYTES as usize) {
                if self
                    .claimed(sector)
                    .is_some_and(|claimed| claimed.sequence > tail.sequence)
                {
                    let later = self.read(behind.offset(), behind.room(), &mut frame)?;
                    is_followed |= later.is_some_and(|claimed| claimed.sequence > tail.sequence);
                }
                behind.at += SECTOR_BYTES;
            }
        }
        if is_followed {
            return Err(self.damaged(tail));
        }
        Ok(())
    }

    fn damaged(&self, tail: &Position) -> IndexError {
        IndexError::Damaged(format!(
            "frame {} of its log, at byte {}, is missing",
            tail.sequence,
            tail.offset()
        ))
    }
}

impl Claimed {
    /// The kind of a frame that follows this place and is no link.
    fn frame_behind(&self, tail: &Position) -> Option<FrameKind> {
        let mut kinds = FrameKind::ALL.into_iter();
        kinds.find(|kind| self.continues(tail, kind.number()))
    }

    fn continues(&self, tail: &Position, kind: u32) -> bool {
        (self.kind, self.sequence) == (kind, tail.sequence) && self.previous == tail.previous
    }
}

fn frame_hash(frame: &[u8]) -> FrameHash {
    let mut hash = FrameHash::default();
    hash.copy_from_slice(&frame[HASH_OFFSET..FRAME_HEADER_BYTES]);
    hash
}

fn decode_link(body: &[u8]) -> Option<Extent> {
    let (start, pages) = body.split_first_chunk()?;
    let pages = u64::from_le_bytes(*pages.first_chunk()?);
    Extent::checked(u64::from_le_bytes(*start), pages)
        .filter(|_| body.len() + FRAME_HEADER_BYTES == LINK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_engine::simulated::{CrashKind, Op, SimulatedEngine};
    use onefold_engine::{Engine, Part};
    use std::io::ErrorKind;
    use std::sync::Arc;

    const POOL: PoolId = PoolId([8; 16]);
    const LIFE: u64 = 5;

    struct Written {
        engine: SimulatedEngine,
        disk: Arc<dyn Disk>,
        space: Space,
        log: Log,
        start: Position,
    }

    fn empty() -> Written {
        seeded(1)
    }

    fn seeded(seed: u64) -> Written {
        let engine = SimulatedEngine::new(seed);
        let disk = engine.create(Part::Index, 0).unwrap();
        let mut space = Space::behind(2);
        let log = Log::new(POOL, LIFE, 64, &mut space);
        let start = log.start_for(1);
        Written {
            engine,
            disk,
            space,
            log,
            start,
        }
    }

    impl Written {
        fn append(&mut self, body: &[u8]) {
            self.try_append(body).unwrap();
        }

        fn try_append(&mut self, body: &[u8]) -> Result<()> {
            let mut frame = vec![0; FRAME_HEADER_BYTES];
            frame.extend(body);
            let kind = FrameKind::Batch;
            self.log
                .append(&*self.disk, &mut self.space, kind, &mut frame)
        }

        fn fails_once(&mut self, op: Op, body: &[u8]) {
            let kind = ErrorKind::StorageFull;
            self.engine.fail_once(Part::Index, op, 1, kind);
            let error = self.try_append(body).unwrap_err();
            assert!(matches!(error, IndexError::NoRoom(_)), "{error}");
        }

        fn sync(&mut self) {
            self.disk.sync().unwrap();
            self.log.synced();
        }

        /// The content after the power has failed and the log was opened again.
        fn after_power_loss(self) -> Result<(Vec<Vec<u8>>, Written)> {
            let engine = self.engine.crash(CrashKind::PowerLoss);
            let disk = engine.open(Part::Index).unwrap();
            let mut written = Written {
                engine,
                disk,
                space: Space::behind(2),
                ..self
            };
            let (bodies, log) = written.read()?;
            assert!(log.extents().all(|extent| written.space.take_at(extent)));
            written.log = log;
            Ok((bodies, written))
        }

        fn read(&self) -> Result<(Vec<Vec<u8>>, Log)> {
            let reader = Reader {
                disk: &*self.disk,
                pool: POOL,
                life: LIFE,
                start: self.start,
            };
            let mut bodies = Vec::new();
            let log = reader.replay(64, &mut |_, _, body| {
                bodies.push(body.to_vec());
                Ok(())
            })?;
            Ok((bodies, log))
        }

        fn flip(&self, offset: u64) {
            let mut byte = [0];
            self.disk.read_at(&mut byte, offset).unwrap();
            byte[0] ^= 4;
            self.disk.write_at(&byte, offset).unwrap();
        }
    }

    #[test]
    fn frames_are_read_as_they_were_written_through_many_extents() {
        let mut written = empty();
        let mut random = fastrand::Rng::with_seed(3);
        let mut bodies = Vec::new();
        for _ in 0..60 {
            let len = *random.choice(&[0, 1, 448, 449, 30_000, 400_000]).unwrap();
            let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
            written.append(&body);
            bodies.push(body);
        }
        let (read, log) = written.read().unwrap();
        assert!(read == bodies);
        assert!(log.marks.len() > 5);
        assert_eq!(
            (&log.marks, log.tail),
            (&written.log.marks, written.log.tail)
        );
    }

    #[test]
    fn a_frame_that_a_crash_left_does_not_continue_another() {
        let mut written = empty();
        written.append(b"first");
        let before = written.log.tail;
        written.append(b"lost!");
        let behind = written.log.tail;
        written.append(b"left behind by a crash");
        // Recovered without the second frame, which another one replaces.
        written.log.tail = before;
        written.append(b"other");
        assert_eq!(written.log.tail.offset(), behind.offset());
        let (read, log) = written.read().unwrap();
        assert_eq!(read, [&b"first"[..], b"other"]);
        assert_eq!(log.tail, written.log.tail);
    }

    #[test]
    fn a_frame_that_is_missing_is_damage_unless_it_is_the_last() {
        for which in 0..4 {
            let mut written = empty();
            let mut offsets = Vec::new();
            for n in 0..4 {
                offsets.push(written.log.tail.offset());
                written.append(&[n; 700]);
            }
            written.flip(offsets[which] + 100);
            match written.read() {
                Ok((read, _)) => assert_eq!((which, read.len()), (3, 3)),
                Err(error) => {
                    assert!(
                        which < 3 && matches!(error, IndexError::Damaged(_)),
                        "{error}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_frame_that_is_missing_before_a_link_is_damage() {
        let mut written = empty();
        let first = written.log.tail.extent;
        let offset = written.log.tail.offset();
        written.append(&[1; 60_000]);
        written.append(&[2; 60_000]);
        assert_ne!(written.log.tail.extent, first);
        written.flip(offset + 5000);
        assert!(matches!(written.read(), Err(IndexError::Damaged(_))));
    }

    /// A body that is too large for the first extent.
    static LARGE: [u8; 70_000] = [9; 70_000];

    #[test]
    fn a_frame_that_found_no_room_does_not_hide_what_follows_a_link() {
        let mut was_whole = 0;
        for seed in 0..40 {
            let mut written = seeded(seed);
            written.append(b"first");
            written.sync();
            written.fails_once(Op::Write, b"failed");
            was_whole += usize::from(written.read().unwrap().0.len() == 2);
            written.append(&LARGE);
            written.sync();
            written.append(b"last");
            written.sync();
            let (read, _) = written.after_power_loss().unwrap();
            assert!(read == [&b"first"[..], &LARGE, b"last"], "seed {seed}");
        }
        assert!(was_whole > 0, "the write that failed left nothing");
    }

    #[test]
    fn a_frame_that_found_no_room_is_replaced_whatever_it_left() {
        for seed in 0..40 {
            let mut written = seeded(seed);
            written.append(b"first");
            written.sync();
            written.fails_once(Op::Write, &[7; 3000]);
            written.fails_once(Op::Write, &[8; 1000]);
            written.append(b"second");
            written.sync();
            written.append(b"third");
            let (read, _) = written.after_power_loss().unwrap();
            assert!(read[..2] == [b"first".to_vec(), b"second".to_vec()]);
            assert!(read.len() == 2 || read[2..] == [b"third"], "seed {seed}");
        }
    }

    #[test]
    fn the_extent_of_a_link_that_found_no_room_serves_nothing_else() {
        for seed in 0..40 {
            let mut written = seeded(seed);
            written.append(b"first");
            written.sync();
            written.fails_once(Op::Write, &LARGE);
            let named = written.log.ahead[0];
            let other = written.space.take(3);
            assert!(other.start >= named.start + named.pages);
            // A crash leaves the link or not; if it does, nothing is behind it yet.
            if seed % 2 == 0 {
                let (read, mut after) = written.after_power_loss().unwrap();
                assert_eq!(read, [b"first"]);
                after.append(b"second");
                assert_eq!(after.read().unwrap().0, [&b"first"[..], b"second"]);
                continue;
            }
            written.append(b"second");
            written.append(&LARGE);
            written.sync();
            assert_eq!(written.log.tail.extent, named);
            let (read, _) = written.after_power_loss().unwrap();
            assert!(read == [&b"first"[..], b"second", &LARGE], "seed {seed}");
        }
    }

    #[test]
    fn of_several_links_in_a_row_only_the_last_can_be_lost() {
        for seed in 0..200 {
            let mut written = seeded(seed);
            written.append(b"first");
            written.sync();
            let (disk, space) = (&*written.disk, &mut written.space);
            let small = written.log.reserve_ahead(disk, space, 0).unwrap();
            written.append(&LARGE);
            assert_eq!(written.log.marks.len(), 3);
            let (read, after) = written.after_power_loss().unwrap();
            assert!(read[0] == b"first" && read.len() < 3);
            // Were the first link lost and the second not, another link to the same extent would
            // make that one seem to be a frame that is missing.
            assert_eq!(after.log.marks[1].extent, small, "seed {seed}");
        }
    }

    #[test]
    fn what_is_secured_is_there_when_the_host_is_full() {
        let mut written = empty();
        written.append(b"first");
        let bytes = 2 * frame_bytes(LARGE.len());
        let secured = written
            .log
            .secure(&*written.disk, &mut written.space, bytes);
        secured.unwrap();
        let full = written.disk.allocated_bytes().unwrap();
        written.engine.set_capacity(Part::Index, Some(full));
        written.append(&LARGE);
        written.append(&LARGE);
        let secured = written
            .log
            .secure(&*written.disk, &mut written.space, bytes);
        assert!(matches!(secured, Err(IndexError::NoRoom(_))));
        let error = (0..)
            .find_map(|_| written.try_append(&LARGE).err())
            .unwrap();
        assert!(matches!(error, IndexError::NoRoom(_)), "{error}");
        let before = written.read().unwrap().0.len();
        written.engine.set_capacity(Part::Index, None);
        written.append(&LARGE);
        assert_eq!(written.read().unwrap().0.len(), before + 1);
    }

    #[test]
    fn a_failed_sync_between_links_is_no_want_of_room() {
        let mut written = empty();
        written.append(b"first");
        let (disk, space) = (&*written.disk, &mut written.space);
        written.log.reserve_ahead(disk, space, 0).unwrap();
        let kind = ErrorKind::StorageFull;
        written.engine.fail_once(Part::Index, Op::Sync, 1, kind);
        let error = written.try_append(&LARGE).unwrap_err();
        assert!(matches!(error, IndexError::Io(_)), "{error}");
    }
}
