//! Page-aligned buffers under one limit.
//!
//! Two kinds: [`AlignedBuffer`] is memory that a connection owns for its life; [`PoolBuffer`] is
//! lent by the server's one [`BufferPool`] to a request that is large or has been handed over.
//!
//! Invariants:
//! - Bytes lent plus bytes kept for reuse never exceed the pool's limit.
//! - A [`Share`] never holds more than its maximum, so one client cannot take the whole pool.
//! - No caller waits for a buffer. A caller that gets none works through its connection's memory,
//!   piece by piece: slower, but no client can starve another, and no deadlock is possible.
//!
//! Memory comes from anonymous maps, not from the allocator: it is aligned, and it really goes back
//! to the system instead of staying in an arena.

use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use memmap2::{Advice, MmapMut};
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Alignment of all buffers, in bytes: the granularity of direct I/O, and the least page size.
pub(crate) const ALIGNMENT: usize = 4096;

/// The processor's large page. It lets a device handle a few large pieces instead of hundreds of
/// small ones: direct reads of 1 MiB were three times as fast.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory of fixed size, aligned to [`ALIGNMENT`]; in large pages if it consists of whole ones.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zeroed bytes, which cost nothing until they are touched.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        if len == 0 || !len.is_multiple_of(HUGE_PAGE_BYTES) {
            let map = MmapMut::map_anon(len.max(1))?;
            return Ok(Self { map, start: 0, len });
        }
        // Memory mapped beyond the aligned part is never touched, so it takes addresses only.
        let map = MmapMut::map_anon(len + HUGE_PAGE_BYTES)?;
        let start = map.as_ptr().addr().wrapping_neg() % HUGE_PAGE_BYTES;
        // Best effort: a system without large pages uses small ones.
        let _ = map.advise_range(Advice::HugePage, start, len);
        Ok(Self { map, start, len })
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

/// Buffers come in powers of two from 4 KiB to 32 MiB, so that they fit many requests.
const CLASSES: usize = 14;

/// Requests longer than this get whole large pages. One of 1 MiB, which is common, so takes twice
/// its length.
const SMALL_PAGES_MAX: usize = 512 << 10;

/// The buffers that all connections of a server share.
#[derive(Debug)]
pub(crate) struct BufferPool {
    bytes_max: usize,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Bytes of all buffers that exist: lent ones and those in `kept`.
    bytes: usize,
    /// The most that `bytes` has been.
    bytes_peak: usize,
    /// Returned buffers by class. The last one returned is lent first: it is warm in the cache.
    kept: [Vec<AlignedBuffer>; CLASSES],
}

impl BufferPool {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            state: Mutex::new(PoolState::default()),
        })
    }

    /// Lends a buffer of `len` bytes on the account of `share`; `None` if the pool or the share is
    /// exhausted, or the system is out of memory.
    pub(crate) fn take(self: &Arc<Self>, share: &Arc<Share>, len: usize) -> Option<PoolBuffer> {
        let class = class_of(len)?;
        let class_bytes = ALIGNMENT << class;
        if !share.charge(class_bytes) {
            return None;
        }
        match self.find_or_map(class, class_bytes) {
            Some(memory) => Some(PoolBuffer {
                memory: Some(memory),
                len,
                class,
                pool: Arc::clone(self),
                share: Arc::clone(share),
            }),
            None => {
                share.release(class_bytes);
                None
            }
        }
    }

    fn find_or_map(&self, class: usize, class_bytes: usize) -> Option<AlignedBuffer> {
        let mut evicted = Vec::new();
        {
            let mut state = lock(&self.state);
            if let Some(memory) = state.kept.get_mut(class).and_then(Vec::pop) {
                return Some(memory);
            }
            while state.bytes + class_bytes > self.bytes_max {
                let memory = state.kept.iter_mut().rev().find_map(Vec::pop)?;
                state.bytes -= memory.len();
                evicted.push(memory);
            }
            state.bytes += class_bytes;
            state.bytes_peak = state.bytes_peak.max(state.bytes);
        }
        // Unmap the evicted buffers before the new one is mapped: the limit applies to memory, not
        // to numbers.
        drop(evicted);
        match AlignedBuffer::new(class_bytes) {
            Ok(memory) => Some(memory),
            Err(error) => {
                tracing::warn!(%error, "no memory for a request buffer of {class_bytes} bytes");
                lock(&self.state).bytes -= class_bytes;
                None
            }
        }
    }

    fn put_back(&self, class: usize, memory: AlignedBuffer) {
        if let Some(kept) = lock(&self.state).kept.get_mut(class) {
            kept.push(memory);
        }
    }

    /// Bytes that are lent or kept.
    pub(crate) fn bytes(&self) -> usize {
        lock(&self.state).bytes
    }

    /// The most bytes that were ever lent and kept at once.
    pub(crate) fn bytes_peak(&self) -> usize {
        lock(&self.state).bytes_peak
    }
}

/// The smallest class that holds `len` bytes, and is made of large pages if it is large; `None`
/// above 32 MiB.
fn class_of(len: usize) -> Option<usize> {
    let len = if len > SMALL_PAGES_MAX {
        len.max(HUGE_PAGE_BYTES)
    } else {
        len
    };
    let pages = len.div_ceil(ALIGNMENT).max(1).checked_next_power_of_two()?;
    let class = pages.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

/// How much of the pool one connection holds, and may hold.
#[derive(Debug)]
pub(crate) struct Share {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl Share {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            bytes_max,
        })
    }

    fn charge(&self, bytes: usize) -> bool {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.bytes_max;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A buffer on loan; it goes back to its pool when dropped.
#[derive(Debug)]
pub(crate) struct PoolBuffer {
    /// Present until the drop.
    memory: Option<AlignedBuffer>,
    len: usize,
    class: usize,
    pool: Arc<BufferPool>,
    share: Arc<Share>,
}

impl Deref for PoolBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory
            .as_deref()
            .and_then(|memory| memory.get(..self.len))
            .unwrap_or_default()
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        self.memory
            .as_deref_mut()
            .and_then(|memory| memory.get_mut(..len))
            .unwrap_or_default()
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put_back(self.class, memory);
        }
        self.share.release(ALIGNMENT << self.class);
    }
}

#[cfg(test)]
mod tests {
    use super::{AlignedBuffer, HUGE_PAGE_BYTES, class_of};

    #[test]
    fn large_buffers_are_whole_large_pages() {
        for pages in [1, 2, 16] {
            let mut buffer = AlignedBuffer::new(pages * HUGE_PAGE_BYTES).unwrap();
            assert!(buffer.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
            assert_eq!(buffer.len(), pages * HUGE_PAGE_BYTES);
            buffer.fill(7);
        }
        assert_eq!(class_of(512 << 10), Some(7));
        assert_eq!(class_of((512 << 10) + 1), Some(9));
        assert_eq!(class_of(1 << 20), class_of(2 << 20));
        assert_eq!(class_of(32 << 20), Some(13));
        assert_eq!(class_of((32 << 20) + 1), None);
    }
}
