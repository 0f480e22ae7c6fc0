//! Pieces in which images move between a file, a socket and the store.
//!
//! Buffers are page-aligned, so that the store can pass them to a device directly, and they are reused,
//! because mapping fresh memory for each piece would cost as much as copying it.

use crate::error::Result;
use crate::limits::{TRANSFER_CHUNK_BYTES, TRANSFER_CHUNKS_MAX};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Alignment of buffers in memory.
const BUFFER_ALIGNMENT: usize = 4096;

/// A message in the stream of a transfer.
#[derive(Debug)]
pub enum Piece {
    /// Bytes of the image. Ranges without a piece read as zeros.
    Data(Chunk),
    /// The image is complete and has this size. A transfer that ends without this message was interrupted.
    End {
        /// Size of the image in bytes.
        image_bytes: u64,
    },
}

/// The sending end of a transfer. Sending waits while the receiver is behind.
pub type PieceSender = mpsc::Sender<Result<Piece>>;

/// The receiving end of a transfer.
pub type PieceReceiver = mpsc::Receiver<Result<Piece>>;

/// Creates both ends of a transfer.
pub fn transfer() -> (PieceSender, PieceReceiver) {
    mpsc::channel(TRANSFER_CHUNKS_MAX)
}

/// Part of an image: at most [`TRANSFER_CHUNK_BYTES`] at some offset.
#[derive(Debug)]
pub struct Chunk {
    /// Offset of the chunk's first byte in the image.
    pub offset: u64,
    memory: Vec<u8>,
    start: usize,
    len: usize,
    home: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Chunk {
    /// Sets the length. Bytes added keep the content of an earlier use and must be overwritten.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= TRANSFER_CHUNK_BYTES, "a chunk of {len} bytes");
        self.len = len;
    }

    /// Adds zeros until the length is a multiple of `unit`, a divisor of the chunk size.
    pub fn pad_to(&mut self, unit: usize) {
        let len = self.len;
        self.set_len(len.next_multiple_of(unit));
        if let Some(added) = self.as_mut().get_mut(len..) {
            added.fill(0);
        }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        self.memory
            .get(self.start..self.start + self.len)
            .unwrap_or_default()
    }
}

impl AsMut<[u8]> for Chunk {
    fn as_mut(&mut self) -> &mut [u8] {
        self.memory
            .get_mut(self.start..self.start + self.len)
            .unwrap_or_default()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.home
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(memory);
    }
}

/// Reusable buffers of one transfer. The transfer's channel bounds their number.
#[derive(Debug, Default)]
pub struct ChunkPool {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl ChunkPool {
    /// An empty chunk for the bytes at `offset`.
    pub fn take(&self, offset: u64) -> Chunk {
        let used_before = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let memory =
            used_before.unwrap_or_else(|| vec![0; TRANSFER_CHUNK_BYTES + BUFFER_ALIGNMENT]);
        // A vector that is not resized does not move its bytes, so the aligned start stays valid.
        let address = memory.as_ptr().addr();
        let start = address.next_multiple_of(BUFFER_ALIGNMENT) - address;
        Chunk {
            offset,
            memory,
            start,
            len: 0,
            home: Arc::clone(&self.free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_used_again() {
        let pool = ChunkPool::default();
        let mut first = pool.take(0);
        first.set_len(TRANSFER_CHUNK_BYTES);
        let address = first.as_ref().as_ptr().addr();
        assert_eq!(address % BUFFER_ALIGNMENT, 0);
        assert_eq!(first.as_ref().len(), TRANSFER_CHUNK_BYTES);
        drop(first);
        let mut second = pool.take(7);
        second.set_len(1);
        assert_eq!(second.as_ref().as_ptr().addr(), address);
        assert_eq!(second.offset, 7);
    }

    #[test]
    fn padding_is_zero_even_in_a_used_buffer() {
        let pool = ChunkPool::default();
        let mut dirty = pool.take(0);
        dirty.set_len(8192);
        dirty.as_mut().fill(0xff);
        drop(dirty);
        let mut chunk = pool.take(0);
        chunk.set_len(3);
        chunk.pad_to(4096);
        assert_eq!(chunk.as_ref()[..3], [0xff; 3]);
        assert_eq!(chunk.as_ref()[3..], [0; 4093]);
    }
}
