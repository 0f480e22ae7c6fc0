//! The bytes of a part at one instant, sparse and cheap to copy.

use super::orders::SECTOR_BYTES;
use super::random::Random;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The unit in which an image is allocated and shared between copies.
pub(super) const CHUNK_BYTES: u64 = 4096;

type Chunk = [u8; CHUNK_BYTES as usize];

/// Contents and length. Copies share all chunks that neither has written since, and the map of an image that
/// neither has.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    chunks: Arc<BTreeMap<u64, Arc<Chunk>>>,
    /// Bytes from here on are beyond the end.
    pub(super) len: u64,
}

impl Image {
    /// Zeros, none of them allocated.
    pub(super) fn new(len: u64) -> Image {
        Image {
            chunks: Arc::default(),
            len,
        }
    }

    /// Fills `buf`; zeros where nothing is.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) {
        for (chunk, inside, piece) in pieces(offset, buf.len()) {
            let target = &mut buf[piece];
            match self.chunks.get(&chunk) {
                Some(bytes) => target.copy_from_slice(&bytes[inside..inside + target.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Writes, and grows where needed.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        let chunks = Arc::make_mut(&mut self.chunks);
        for (chunk, inside, piece) in pieces(offset, bytes.len()) {
            let source = &bytes[piece];
            if let Ok(whole) = Chunk::try_from(source) {
                chunks.insert(chunk, Arc::new(whole));
                continue;
            }
            let target = chunks.entry(chunk).or_insert_with(|| Arc::new([0; _]));
            Arc::make_mut(target)[inside..inside + source.len()].copy_from_slice(source);
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    /// Zeroes a range; whole chunks are given back.
    pub(super) fn punch(&mut self, range: Range<u64>) {
        for chunk in self.allocated_chunks(&range) {
            let start = chunk * CHUNK_BYTES;
            let from = range.start.saturating_sub(start).min(CHUNK_BYTES) as usize;
            let to = (range.end - start).min(CHUNK_BYTES) as usize;
            if to - from == CHUNK_BYTES as usize {
                Arc::make_mut(&mut self.chunks).remove(&chunk);
            } else if let Some(bytes) = Arc::make_mut(&mut self.chunks).get_mut(&chunk) {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
        }
    }

    /// The range that a discard zeroes if each sector is discarded or not by itself. Unallocated
    /// sectors are zeros either way.
    pub(super) fn torn_discard(&self, range: &Range<u64>, random: &mut Random) -> Vec<Range<u64>> {
        let mut kept = Vec::new();
        for chunk in self.allocated_chunks(range) {
            let start = chunk * CHUNK_BYTES;
            for at in (start..start + CHUNK_BYTES).step_by(SECTOR_BYTES as usize) {
                let end = at + SECTOR_BYTES;
                if at >= range.start && end <= range.end && random.coin() {
                    kept.push(at..end);
                }
            }
        }
        kept
    }

    /// Grows, and allocates the unallocated part of the range. Contents stay as they are.
    pub(super) fn reserve(&mut self, range: Range<u64>) {
        // Mostly all of them are there, and one walk past them is faster than a search for each.
        let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
        let mut missing = Vec::new();
        let mut next = chunks.start;
        for chunk in self.allocated_chunks(&range) {
            missing.extend(next..chunk);
            next = chunk + 1;
        }
        missing.extend(next..chunks.end);
        if !missing.is_empty() {
            let zeros = Arc::new([0; _]);
            let missing = missing.into_iter().map(|chunk| (chunk, zeros.clone()));
            Arc::make_mut(&mut self.chunks).extend(missing);
        }
        self.len = self.len.max(range.end);
    }

    /// Cuts, or grows without allocating.
    pub(super) fn set_len(&mut self, len: u64) {
        self.punch(len..self.len.max(len));
        self.len = len;
    }

    /// How many bytes writing the range would allocate.
    pub(super) fn missing_bytes(&self, range: Range<u64>) -> u64 {
        let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
        let all = chunks.end.saturating_sub(chunks.start);
        (all - self.allocated_chunks(&range).len() as u64) * CHUNK_BYTES
    }

    /// The image's size on the medium.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES
    }

    /// The end of the last byte that is allocated.
    pub(super) fn allocated_end(&self) -> u64 {
        let last = self.chunks.last_key_value();
        last.map_or(0, |(chunk, _)| (chunk + 1) * CHUNK_BYTES)
    }

    /// The first byte from `offset` on that is allocated.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let (chunk, _) = self.chunks.range(offset / CHUNK_BYTES..).next()?;
        Some(offset.max(chunk * CHUNK_BYTES))
    }

    /// The end of the allocated range that has the byte at `offset`.
    pub(super) fn data_end(&self, offset: u64) -> u64 {
        let next = offset / CHUNK_BYTES + 1;
        let follow = self.chunks.range(next..).zip(next..);
        let follow = follow.take_while(|((chunk, _), next)| *chunk == next);
        (next + follow.count() as u64) * CHUNK_BYTES
    }

    fn allocated_chunks(&self, range: &Range<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
        self.chunks.range(chunks).map(|(chunk, _)| *chunk).collect()
    }
}

/// Splits a range at chunks: (chunk, offset inside the chunk, range inside the caller's buffer).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let inside = (at % CHUNK_BYTES) as usize;
        let count = (CHUNK_BYTES as usize - inside).min(len - done);
        let piece = done..done + count;
        done += count;
        Some((at / CHUNK_BYTES, inside, piece))
    })
}
