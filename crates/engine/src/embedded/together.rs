//! Concurrent reads of several ranges, for which one thread waits (io_uring(7)).
//!
//! Ranges with small gaps between them become one read, which discards the gaps' bytes: a device takes about as long
//! for a few blocks more as for none, and much longer for two reads than for one.
//!
//! A read that does not end as it should (an error, an interruption, the end of the file) is left to the caller, which
//! repeats it in the ordinary way and finds out why.
//!
//! Invariant: no read is in flight when [`read`] returns.

use super::aligned::AlignedBuffer;
use super::ring;
use crate::ReadRange;
use io_uring::{IoUring, opcode, types};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The most reads that one thread has in flight.
const READS_MAX: usize = 64;

/// Threads that the kernel may use for the reads of one thread, where the file system cannot begin them without waiting
/// for its own metadata. Each worker has such a ring.
const KERNEL_THREADS_MAX: u32 = 2;

/// The most bytes between two ranges of one read.
const GAP_BYTES_MAX: usize = 16 << 10;

/// The most ranges of one read. The kernel takes 1,024, gaps included.
const RANGES_MAX: usize = 256;

/// An alignment that every disk accepts.
const GAP_ALIGNMENT: usize = 4096;

thread_local! {
    /// The thread's own reader, from its first such read on; none if the host has no rings for us.
    static READER: RefCell<Option<Reader>> = RefCell::new(Reader::new().ok());
}

/// Reads as many ranges as it can, and returns for each range whether it was read entirely. The kernel has to accept
/// the ranges as they are.
pub(super) fn read(file: &File, ranges: &mut [ReadRange<'_>]) -> Vec<bool> {
    let mut is_read = vec![false; ranges.len()];
    READER.with_borrow_mut(|reader| {
        if let Some(reader) = reader {
            reader.read(file, ranges, &mut is_read);
        }
    });
    is_read
}

/// A thread's ring, and its buffer for gaps.
struct Reader {
    ring: IoUring,
    /// Receives the bytes of gaps, which are not used.
    gap: AlignedBuffer,
}

/// The reads that some ranges are merged into.
struct Plan {
    reads: Vec<Read>,
    /// The ranges by their order in the file.
    order: Vec<usize>,
    /// Where the bytes go, in the same order, gaps included.
    memory: Vec<libc::iovec>,
}

/// A single read of the kernel.
struct Read {
    offset: u64,
    len: usize,
    /// The part of the plan's order with the ranges of this read.
    ranges: Range<usize>,
    /// The part of the plan's memory that this read fills.
    memory: Range<usize>,
}

impl Reader {
    fn new() -> io::Result<Reader> {
        Ok(Reader {
            ring: ring::new(READS_MAX, KERNEL_THREADS_MAX)?,
            gap: AlignedBuffer::new(GAP_BYTES_MAX, GAP_ALIGNMENT),
        })
    }

    fn read(&mut self, file: &File, ranges: &mut [ReadRange<'_>], is_read: &mut [bool]) {
        let plan = self.plan(ranges);
        for reads in plan.reads.chunks(READS_MAX) {
            self.read_some(file, reads, &plan.memory, |read| {
                for n in &plan.order[read.ranges.clone()] {
                    is_read[*n] = true;
                }
            });
        }
    }

    fn plan(&mut self, ranges: &mut [ReadRange<'_>]) -> Plan {
        let gap = self.gap.bytes();
        let mut reads: Vec<Read> = Vec::new();
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        let mut memory = Vec::with_capacity(2 * ranges.len());
        order.sort_unstable_by_key(|n| ranges[*n].offset);
        for (place, n) in order.iter().enumerate() {
            let ReadRange { buf, offset } = &mut ranges[*n];
            if let Some(last) = reads.last_mut()
                && last.ranges.len() < RANGES_MAX
                && let Some(between) = offset.checked_sub(last.offset + last.len as u64)
                && between <= GAP_BYTES_MAX as u64
            {
                if between > 0 {
                    memory.push(iovec(&mut gap[..between as usize]));
                }
                memory.push(iovec(buf));
                last.len += between as usize + buf.len();
                last.ranges.end = place + 1;
                last.memory.end = memory.len();
            } else {
                let first = memory.len();
                memory.push(iovec(buf));
                reads.push(Read {
                    offset: *offset,
                    len: buf.len(),
                    ranges: place..place + 1,
                    memory: first..memory.len(),
                });
            }
        }
        Plan {
            reads,
            order,
            memory,
        }
    }

    /// Makes these reads, which the ring has room for.
    fn read_some(
        &mut self,
        file: &File,
        reads: &[Read],
        memory: &[libc::iovec],
        mut done: impl FnMut(&Read),
    ) {
        let mut under_way = 0;
        for (number, read) in (0..).zip(reads) {
            let file = types::Fd(file.as_raw_fd());
            let memory = &memory[read.memory.clone()];
            let order = opcode::Readv::new(file, memory.as_ptr(), memory.len() as u32);
            let order = order.offset(read.offset).build().user_data(number);
            // SAFETY: the file and the memory of the ranges are the caller's for longer than this function
            // runs, which does not return before everything that was pushed has completed; the gap is on the
            // heap, and bytes without a meaning.
            if unsafe { self.ring.submission().push(&order) }.is_ok() {
                under_way += 1;
            }
            // The device begins while the next read is prepared. Reads that are not accepted now are submitted below.
            let _ = self.ring.submit();
        }
        while under_way > 0 {
            ring::submit_and_wait(&self.ring, under_way);
            for end in self.ring.completion() {
                let read = &reads[end.user_data() as usize];
                if usize::try_from(end.result()) == Ok(read.len) {
                    done(read);
                }
                under_way -= 1;
            }
        }
    }
}

fn iovec(buf: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Reads ranges of a file whose blocks differ. Returns whether each range was read, and checks the bytes of those
    /// that were.
    fn read_blocks(count: usize, wanted: &[Range<usize>]) -> Option<Vec<bool>> {
        const BLOCK: usize = 4096;
        let mut file = tempfile::tempfile().unwrap();
        for n in 0..count {
            file.write_all(&[n as u8; BLOCK]).unwrap();
        }
        if let Err(error) = Reader::new() {
            println!("SKIPPED: {error}");
            return None;
        }
        let mut buffers: Vec<_> = wanted
            .iter()
            .map(|range| vec![0xaa; range.len() * BLOCK])
            .collect();
        let mut ranges: Vec<_> = buffers
            .iter_mut()
            .zip(wanted)
            .map(|(buf, range)| ReadRange {
                buf,
                offset: (range.start * BLOCK) as u64,
            })
            .collect();
        let is_read = read(&file, &mut ranges);
        for ((buffer, range), is_read) in buffers.iter().zip(wanted).zip(&is_read) {
            let blocks = buffer.chunks(BLOCK).zip(range.clone());
            for (block, n) in blocks.filter(|_| *is_read) {
                assert!(block.iter().all(|byte| *byte == n as u8), "block {n}");
            }
        }
        Some(is_read)
    }

    #[test]
    fn all_that_the_file_has_is_read() {
        let every = |step: usize| (0..1400 / step).map(move |n| n * step..n * step + 1);
        let few = vec![7..9, 0..1, 2..3, 2..3, 50..51, 3..5, 4..7];
        // More than the kernel takes in one read, and more reads than the ring has room for.
        for wanted in [few, every(2).collect(), every(14).collect()] {
            let all = vec![true; wanted.len()];
            assert_eq!(read_blocks(1400, &wanted).unwrap_or(all.clone()), all);
        }
    }

    #[test]
    fn what_ends_beyond_the_file_is_left_to_the_caller() {
        let wanted = [40..41, 0..2, 3..5, 19..21];
        let expected = [false, true, true, false];
        let is_read = read_blocks(20, &wanted).unwrap_or(expected.to_vec());
        assert_eq!(is_read, expected);
    }

    #[test]
    fn only_what_is_close_is_read_at_once() {
        let Ok(mut reader) = Reader::new() else {
            return;
        };
        let mut plan = |far: usize| {
            let mut bytes = [0; 5];
            let offsets = [40, 0, 3, far as u64, 41];
            let ranges = bytes.chunks_mut(1).zip(offsets);
            let ranges = ranges.map(|(buf, offset)| ReadRange { buf, offset });
            let plan = reader.plan(&mut ranges.collect::<Vec<_>>());
            let reads = plan.reads.into_iter();
            reads
                .map(|read| (read.offset, read.len, plan.order[read.ranges].to_vec()))
                .collect::<Vec<_>>()
        };
        let far = 42 + GAP_BYTES_MAX;
        assert_eq!(plan(far), [(0, far + 1, vec![1, 2, 0, 4, 3])]);
        let apart = [(0, 42, vec![1, 2, 0, 4]), (far as u64 + 1, 1, vec![3])];
        assert_eq!(plan(far + 1), apart);
    }
}
