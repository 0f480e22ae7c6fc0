//! Requests that bypass the host's cache, without a thread for each: one thread submits them to the kernel, many at a
//! time, and collects their completions (io_uring(7)).
//!
//! A host may forbid this; then there is no ring, and the callers' threads wait for the device.
//!
//! Invariants:
//! - A buffer that the kernel uses belongs to the thread of the ring, which keeps it until the kernel has completed the
//!   request.
//! - When the ring is dropped, every request that was started has ended.

use super::aligned::AlignedBuffer;
use super::handoff::Handoff;
use super::sync::{Mutex, lock};
use crate::failure::explain;
use crate::{PreparedRead, PreparedWrite, ReadEnded, WriteEnded};
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The most requests that are prepared or in flight at a time.
const REQUESTS_MAX: usize = 128;

/// The longest request, in bytes. The transfer of a longer one outweighs the cost of a thread.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 10;

/// Threads that the kernel may use for the requests, where the file system cannot begin them without waiting: on ext4
/// while another write makes the file longer, or changes where it is. Enough to keep a disk's queue filled. The
/// kernel's own limit is four for each processor.
const KERNEL_THREADS_MAX: u32 = 16;

/// The pause after an error that no kernel is known to return.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Identifies completions of the alarm; other completions have the number of a request.
const WOKEN: u64 = u64::MAX;

/// The ring of one part.
pub(super) struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    file: File,
    /// The part's name in errors.
    name: String,
    buffers: Mutex<Buffers>,
    handoff: Handoff<Started>,
    /// Wakes the thread of the ring.
    alarm: OwnedFd,
}

/// Buffers that no request uses.
struct Buffers {
    free: Vec<Buffer>,
    /// The number of buffers, used and free.
    made: usize,
    alignment: usize,
}

struct Buffer {
    /// The number of the buffer and of its request, below [`REQUESTS_MAX`].
    number: usize,
    memory: AlignedBuffer,
}

/// A prepared request.
struct Prepared {
    /// Present until the request starts.
    buffer: Option<Buffer>,
    len: usize,
    offset: u64,
    shared: Arc<Shared>,
}

/// A request in flight.
struct Started {
    buffer: Buffer,
    len: usize,
    offset: u64,
    /// Bytes that the kernel has transferred.
    done: usize,
    ended: Ended,
}

/// Called when the request has ended.
enum Ended {
    Write(WriteEnded),
    Read(ReadEnded),
}

impl Ring {
    /// Starts a ring for a file that is open with O_DIRECT, and buffers of this alignment. Fails if the host has no
    /// rings for us.
    pub(super) fn start(file: &File, name: &str, alignment: usize) -> io::Result<Ring> {
        let shared = Arc::new(Shared {
            file: file.try_clone()?,
            name: name.to_owned(),
            buffers: Mutex::new(Buffers {
                free: Vec::new(),
                made: 0,
                alignment,
            }),
            handoff: Handoff::new(),
            alarm: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let (told, hears) = mpsc::sync_channel(1);
        let of_thread = Arc::clone(&shared);
        // Only the thread that made such a ring may use it.
        let work = move || match new(REQUESTS_MAX + 1, KERNEL_THREADS_MAX) {
            Ok(ring) => {
                let _ = told.send(Ok(()));
                RingThread::new(ring, of_thread).run();
            }
            Err(error) => drop(told.send(Err(error))),
        };
        let thread = thread::Builder::new()
            .name("data-ring".to_owned())
            .spawn(work)?;
        let started = hears.recv();
        started.map_err(|_| io::Error::other("the thread of the ring has ended"))??;
        Ok(Ring {
            shared,
            thread: Some(thread),
        })
    }

    /// Copies the bytes of a write. Returns nothing if the write is too long, or no buffer is free.
    pub(super) fn prepare_write(
        &self,
        bytes: &[u8],
        offset: u64,
    ) -> Option<Box<dyn PreparedWrite>> {
        if bytes.is_empty() || bytes.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let mut prepared = self.take(bytes.len(), offset)?;
        if let Some(buffer) = &mut prepared.buffer {
            buffer.memory.bytes()[..bytes.len()].copy_from_slice(bytes);
        }
        Some(prepared)
    }

    /// Prepares a read. Returns nothing if it is too long, or no buffer is free.
    pub(super) fn prepare_read(&self, offset: u64, len: usize) -> Option<Box<dyn PreparedRead>> {
        if len == 0 || len > REQUEST_BYTES_MAX {
            return None;
        }
        Some(self.take(len, offset)?)
    }

    fn take(&self, len: usize, offset: u64) -> Option<Box<Prepared>> {
        let buffer = lock(&self.shared.buffers).take()?;
        Some(Box::new(Prepared {
            buffer: Some(buffer),
            len,
            offset,
            shared: Arc::clone(&self.shared),
        }))
    }

    /// Makes the kernel receive all started requests.
    pub(super) fn submit(&self) {
        self.shared.wake();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.handoff.close();
        self.shared.wake();
        // A request's callback may drop the part on the thread of the ring, which ends next.
        if let Some(thread) = self
            .thread
            .take()
            .filter(|handle| handle.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    #[expect(
        clippy::host_endian_bytes,
        reason = "the kernel reads the number as this machine has it"
    )]
    fn wake(&self) {
        if self.handoff.is_taker_to_wake() {
            // Fails only if it would have to wait for the thread, which is awake then.
            let _ = retry_on_intr(|| rustix::io::write(&self.alarm, &1_u64.to_ne_bytes()));
        }
    }
}

impl Buffers {
    /// Takes the buffer that came back last: it is warm in the processor's cache.
    fn take(&mut self) -> Option<Buffer> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        if self.made == REQUESTS_MAX {
            return None;
        }
        let number = self.made;
        self.made += 1;
        let memory = AlignedBuffer::new(REQUEST_BYTES_MAX, self.alignment);
        Some(Buffer { number, memory })
    }
}

impl PreparedWrite for Prepared {
    fn start(self: Box<Self>, ended: WriteEnded) {
        self.begin(Ended::Write(ended));
    }
}

impl PreparedRead for Prepared {
    fn start(self: Box<Self>, ended: ReadEnded) {
        self.begin(Ended::Read(ended));
    }
}

impl Prepared {
    fn begin(mut self, ended: Ended) {
        if let Some(buffer) = self.buffer.take() {
            self.shared.handoff.put(Started {
                buffer,
                len: self.len,
                offset: self.offset,
                done: 0,
                ended,
            });
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            lock(&self.shared.buffers).free.push(buffer);
        }
    }
}

/// Creates a ring for the calling thread. Completions are collected until that thread wants them, where the kernel can
/// do that. The kernel starts at most `threads_max` threads for the ring: they count against the limits of the process.
pub(super) fn new(entries: usize, threads_max: u32) -> io::Result<IoUring> {
    let entries = entries as u32;
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let ring = builder
        .build(entries)
        .or_else(|error| match Errno::from_io_error(&error) {
            Some(Errno::INVAL) => IoUring::new(entries),
            _ => Err(error),
        })?;
    if let Err(error) = limit_kernel_threads(&ring, threads_max) {
        // Linux before 5.15 has no such limit.
        tracing::debug!("the kernel's threads for a ring are not limited: {error}");
    }
    Ok(ring)
}

/// Limits the kernel's threads, unless its own limits are lower: for requests whose time is bounded, and for others.
fn limit_kernel_threads(ring: &IoUring, threads_max: u32) -> io::Result<()> {
    // Zeros change nothing, and return the present limits.
    let mut limits = [0; 2];
    ring.submitter().register_iowq_max_workers(&mut limits)?;
    let mut lower = limits.map(|limit| limit.min(threads_max));
    ring.submitter().register_iowq_max_workers(&mut lower)
}

/// Submits new requests, and waits until `count` have completed, or fewer if it is interrupted.
pub(super) fn submit_and_wait(ring: &IoUring, count: usize) {
    if let Err(error) = ring.submit_and_wait(count)
        && !matches!(
            Errno::from_io_error(&error),
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)
        )
    {
        // The kernel uses the memory of in-flight requests, so the only choice is to try again.
        thread::sleep(RETRY_PAUSE);
    }
}

/// The thread of a ring, the only one from which the kernel accepts requests.
struct RingThread {
    ring: IoUring,
    shared: Arc<Shared>,
    /// Requests in flight, by number.
    under_way: Vec<Option<Started>>,
    count: usize,
    /// The kernel completes a request whenever the alarm is rung.
    is_alarm_watched: bool,
}

impl RingThread {
    fn new(ring: IoUring, shared: Arc<Shared>) -> RingThread {
        RingThread {
            ring,
            shared,
            under_way: (0..REQUESTS_MAX).map(|_| None).collect(),
            count: 0,
            is_alarm_watched: false,
        }
    }

    fn run(mut self) {
        let (mut new, mut ends) = (Vec::new(), Vec::new());
        loop {
            let is_closed = self.shared.handoff.take_before_sleep(&mut new);
            for started in new.drain(..) {
                self.begin(started);
            }
            if is_closed && self.count == 0 {
                return;
            }
            self.watch_alarm();
            submit_and_wait(&self.ring, 1);
            self.shared.handoff.awake();
            let completed = self.ring.completion();
            ends.extend(completed);
            for end in ends.drain(..) {
                match end.user_data() {
                    WOKEN => self.is_alarm_watched = cqueue::more(end.flags()),
                    number => self.note(number as usize, end.result()),
                }
            }
        }
    }

    /// Queues a request, or the rest of it, for the next [`submit_and_wait`].
    fn begin(&mut self, mut started: Started) {
        let number = started.buffer.number;
        let rest = &mut started.buffer.memory.bytes()[started.done..started.len];
        let file = types::Fd(self.shared.file.as_raw_fd());
        let (bytes, offset) = (rest.len() as u32, started.offset + started.done as u64);
        let entry = match started.ended {
            Ended::Write(_) => opcode::Write::new(file, rest.as_ptr(), bytes)
                .offset(offset)
                .build(),
            Ended::Read(_) => opcode::Read::new(file, rest.as_mut_ptr(), bytes)
                .offset(offset)
                .build(),
        };
        let entry = entry.user_data(number as u64);
        self.under_way[number] = Some(started);
        self.count += 1;
        // SAFETY: the file is open as long as `shared` is there. The bytes are on the heap and belong to
        // `under_way` until the completion of this number, however that moves.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.note(number, -Errno::AGAIN.raw_os_error());
        }
    }

    /// Requests a completion for every ring of the alarm, until the kernel drops the request. The alarm is never
    /// silenced: the kernel reacts to a new ring.
    fn watch_alarm(&mut self) {
        if self.is_alarm_watched {
            return;
        }
        let alarm = types::Fd(self.shared.alarm.as_raw_fd());
        let watch = opcode::PollAdd::new(alarm, libc::POLLIN as u32).multi(true);
        let watch = watch.build().user_data(WOKEN);
        // SAFETY: the alarm is open as long as `shared` is there; no memory is involved.
        self.is_alarm_watched = unsafe { self.ring.submission().push(&watch) }.is_ok();
    }

    /// Handles the kernel's completion of a request, or of a part of it.
    fn note(&mut self, number: usize, result: i32) {
        let Some(mut started) = self.under_way.get_mut(number).and_then(Option::take) else {
            return;
        };
        self.count -= 1;
        let result = match result {
            // A read ends early at the end of the file.
            0 => Err(io::ErrorKind::WriteZero.into()),
            1.. => {
                started.done += result as usize;
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(-result)),
        };
        let is_interrupted = |error: &io::Error| error.kind() == io::ErrorKind::Interrupted;
        if started.done < started.len && result.as_ref().err().is_none_or(is_interrupted) {
            return self.begin(started);
        }
        let Started {
            mut buffer,
            len,
            offset,
            ended,
            ..
        } = started;
        let bytes = &buffer.memory.bytes()[..len];
        let call = || match ended {
            Ended::Write(ended) => {
                let result = result.map_err(|cause| {
                    let doing = format!("writing {len} bytes at {offset} of {}", self.shared.name);
                    explain(doing, cause)
                });
                ended(result, bytes);
            }
            Ended::Read(ended) => ended(result.is_ok().then(|| vec![bytes.to_vec()])),
        };
        // Other requests are in flight: a defect in one callback must not end the thread.
        let _ = catch_unwind(AssertUnwindSafe(call));
        lock(&self.shared.buffers).free.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// The thread of a ring on a file of `bytes.len()` zeros, with a write of `bytes` in flight.
    fn under_way(file: &File, bytes: &[u8]) -> (RingThread, mpsc::Receiver<io::Result<()>>) {
        let shared = Arc::new(Shared {
            file: file.try_clone().unwrap(),
            name: "file".to_owned(),
            buffers: Mutex::new(Buffers {
                free: Vec::new(),
                made: 0,
                alignment: 4096,
            }),
            handoff: Handoff::new(),
            alarm: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        });
        let mut buffer = lock(&shared.buffers).take().unwrap();
        buffer.memory.bytes()[..bytes.len()].copy_from_slice(bytes);
        let (told, ends) = mpsc::channel();
        let mut thread = RingThread::new(new(8, 1).unwrap(), shared);
        thread.under_way[0] = Some(Started {
            buffer,
            len: bytes.len(),
            offset: 0,
            done: 0,
            ended: Ended::Write(Box::new(move |result, _| told.send(result).unwrap())),
        });
        thread.count = 1;
        (thread, ends)
    }

    /// Has the kernel do what is queued, and notes its completions.
    fn complete(thread: &mut RingThread) {
        submit_and_wait(&thread.ring, 1);
        let completed: Vec<_> = thread.ring.completion().collect();
        for end in completed {
            thread.note(end.user_data() as usize, end.result());
        }
    }

    #[test]
    fn the_rest_of_a_short_write_goes_where_it_belongs() {
        if new(8, 1).is_err() {
            println!("SKIPPED: no io_uring");
            return;
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let bytes: Vec<u8> = (0..8192_u32).map(|n| (n / 512 + 1) as u8).collect();
        let (mut thread, ends) = under_way(&file, &bytes);
        // The kernel claims to have written this much, and the file is as before.
        thread.note(0, 1536);
        assert!(ends.try_recv().is_err(), "the write has not ended");
        complete(&mut thread);
        ends.recv().unwrap().unwrap();
        let mut found = vec![0; 8192];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found[..1536].iter().all(|byte| *byte == 0));
        assert!(found[1536..] == bytes[1536..]);
    }

    #[test]
    fn the_rest_of_a_short_read_comes_from_where_it_is() {
        if new(8, 1).is_err() {
            println!("SKIPPED: no io_uring");
            return;
        }
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..8192_u32).map(|n| (n / 512 + 1) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        for is_longer in [false, true] {
            let (told, ends) = mpsc::channel();
            let (mut thread, _) = under_way(&file, &[0; 8192]);
            if let Some(started) = &mut thread.under_way[0] {
                started.ended = Ended::Read(Box::new(move |found| told.send(found).unwrap()));
                started.offset = if is_longer { 4096 } else { 0 };
            }
            // The kernel claims to have read this much, and the buffer is as before.
            thread.note(0, 1536);
            for _ in 0..1 + usize::from(is_longer) {
                assert!(ends.try_recv().is_err(), "the read has not ended");
                complete(&mut thread);
            }
            let found = ends.recv().unwrap();
            let whole = [&[0; 1536][..], &bytes[1536..]].concat();
            assert!(found == (!is_longer).then_some(vec![whole]));
        }
    }

    #[test]
    fn the_kernel_has_few_threads_for_a_ring() {
        let Ok(ring) = new(8, 3) else {
            println!("SKIPPED: no io_uring");
            return;
        };
        // Zeros ask for the present limits.
        let mut limits = [0; 2];
        match ring.submitter().register_iowq_max_workers(&mut limits) {
            Ok(()) => assert_eq!(limits, [3; 2]),
            Err(error) => println!("SKIPPED: {error}"),
        }
    }
}
