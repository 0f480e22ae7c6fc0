//! Sorting more records than there is memory for: sorted runs go to a temporary file and are merged.
//!
//! Memory stays within the given bound: half for incoming records, half for records that are being
//! sorted and written; later, all of it for reading the runs back. If there are more runs than can be
//! read at once, they are merged into longer ones first, which takes the temporary space twice.
//!
//! May use: no other crate of onefold. Must not: know the meaning of the records.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The fewest bytes of a run that are read at a time: less would make a spinning disk seek all the
/// time.
const READ_BYTES_MIN: usize = 64 << 10;

/// The most bytes of a run that are read at a time: more is of no use.
const READ_BYTES_MAX: usize = 1 << 20;

/// Something of fixed size that can be sorted.
pub trait Record: Copy + Ord + Send {
    /// Bytes of a record in a temporary file.
    const BYTES: usize;

    /// Appends the record's bytes.
    fn put(&self, into: &mut Vec<u8>);

    /// Decodes a record.
    fn get(bytes: &[u8]) -> Self;
}

impl Record for u128 {
    const BYTES: usize = 16;

    fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        let mut own = [0; 16];
        own.copy_from_slice(bytes);
        u128::from_le_bytes(own)
    }
}

impl Record for (u128, u128) {
    const BYTES: usize = 32;

    fn put(&self, into: &mut Vec<u8>) {
        self.0.put(into);
        self.1.put(into);
    }

    fn get(bytes: &[u8]) -> Self {
        let (first, second) = bytes.split_at(16);
        (u128::get(first), u128::get(second))
    }
}

/// Takes records from any number of threads, and returns them in order.
pub struct Sorter<R> {
    /// Records that may be in memory, in each of two halves.
    half: usize,
    directory: PathBuf,
    incoming: Mutex<Vec<R>>,
    spilled: Mutex<Spilled<R>>,
}

struct Spilled<R> {
    file: Option<RunFile>,
    /// The memory of the half that was written last.
    spare: Vec<R>,
}

/// Sorted runs, one after another.
struct RunFile {
    file: Arc<File>,
    end: u64,
    /// The start of each run, and its number of records.
    runs: VecDeque<(u64, u64)>,
}

impl<R: Record> Sorter<R> {
    /// A sorter that uses this many bytes of memory, or memory for 2,048 records if that is more. Unnamed
    /// temporary files go to `directory`.
    #[must_use]
    pub fn new(memory_bytes: usize, directory: &Path) -> Self {
        Self {
            half: (memory_bytes / size_of::<R>() / 2).max(1024),
            directory: directory.to_owned(),
            incoming: Mutex::default(),
            spilled: Mutex::new(Spilled {
                file: None,
                spare: Vec::new(),
            }),
        }
    }

    /// Takes one record, if only one thread has any.
    ///
    /// # Errors
    ///
    /// Errors of [`Sorter::add`].
    pub fn push(&mut self, record: R) -> io::Result<()> {
        let incoming = self
            .incoming
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if incoming.len() + 1 < self.half && incoming.len() < incoming.capacity() {
            incoming.push(record);
            return Ok(());
        }
        self.add(&mut vec![record])
    }

    /// Takes all of `records`, and leaves their memory.
    ///
    /// # Errors
    ///
    /// If the temporary file cannot be created or written.
    pub fn add(&self, records: &mut Vec<R>) -> io::Result<()> {
        let mut rest = records.as_slice();
        while !rest.is_empty() {
            let mut incoming = lock(&self.incoming);
            let room = (self.half - incoming.len()).min(rest.len());
            let (now, later) = rest.split_at(room);
            // Reserve at once: growth by doubling would exceed the half on the way.
            if incoming.capacity() < self.half && incoming.len() + room > incoming.capacity() {
                let wanted = (incoming.capacity() * 2).clamp(incoming.len() + room, self.half);
                let more = wanted - incoming.len();
                incoming.reserve_exact(more);
            }
            incoming.extend_from_slice(now);
            rest = later;
            if incoming.len() == self.half {
                // The next caller waits here while a run is still being written, so that there are
                // never more than two halves.
                let mut spilled = lock(&self.spilled);
                let spare = std::mem::take(&mut spilled.spare);
                let mut full = std::mem::replace(&mut *incoming, spare);
                drop(incoming);
                full.sort_unstable();
                spilled.write(&full, &self.directory)?;
                full.clear();
                spilled.spare = full;
            }
        }
        records.clear();
        Ok(())
    }

    /// Returns all records in order.
    ///
    /// # Errors
    ///
    /// If the temporary file cannot be written or read.
    pub fn finish(self) -> io::Result<Sorted<R>> {
        let into_inner = PoisonError::into_inner;
        let mut rest = self.incoming.into_inner().unwrap_or_else(into_inner);
        let into_inner = PoisonError::into_inner;
        let mut spilled = self.spilled.into_inner().unwrap_or_else(into_inner);
        rest.sort_unstable();
        if spilled.file.is_none() {
            return Ok(Sorted(Source::Memory(rest.into_iter())));
        }
        if !rest.is_empty() {
            spilled.write(&rest, &self.directory)?;
        }
        let memory_bytes = self.half * 2 * size_of::<R>();
        drop(rest);
        spilled.spare = Vec::new();
        match spilled.file {
            None => Ok(Sorted(Source::Memory(Vec::new().into_iter()))),
            Some(file) => Ok(Sorted(Source::Runs(merge_all(
                file,
                memory_bytes,
                &self.directory,
            )?))),
        }
    }
}

impl<R: Record> Spilled<R> {
    fn write(&mut self, sorted: &[R], directory: &Path) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(RunFile::new(directory)?);
        }
        match &mut self.file {
            Some(file) => file.add_run(sorted.iter().map(|record| Ok(*record))),
            None => Ok(()),
        }
    }
}

impl RunFile {
    fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(tempfile::tempfile_in(directory)?),
            end: 0,
            runs: VecDeque::new(),
        })
    }

    fn add_run<R: Record>(
        &mut self,
        records: impl Iterator<Item = io::Result<R>>,
    ) -> io::Result<()> {
        let (start, mut count) = (self.end, 0);
        let mut out = BufWriter::with_capacity(READ_BYTES_MAX, &*self.file);
        let mut bytes = Vec::with_capacity(R::BYTES);
        for record in records {
            bytes.clear();
            record?.put(&mut bytes);
            out.write_all(&bytes)?;
            count += 1;
        }
        out.flush()?;
        self.end += count * R::BYTES as u64;
        self.runs.push_back((start, count));
        Ok(())
    }
}

/// Merges runs into longer ones until all remaining runs can be read concurrently.
fn merge_all<R: Record>(
    mut file: RunFile,
    memory_bytes: usize,
    directory: &Path,
) -> io::Result<Runs<R>> {
    let at_once = (memory_bytes / READ_BYTES_MIN).max(2);
    while file.runs.len() > at_once {
        let mut longer = RunFile::new(directory)?;
        while !file.runs.is_empty() {
            let count = file.runs.len().min(at_once);
            let some: Vec<(u64, u64)> = file.runs.drain(..count).collect();
            longer.add_run(Runs::<R>::new(&file.file, &some, memory_bytes)?)?;
        }
        file = longer;
    }
    let runs: Vec<(u64, u64)> = file.runs.into_iter().collect();
    Runs::new(&file.file, &runs, memory_bytes)
}

/// Records in order. An item is an error if the temporary file cannot be read.
pub struct Sorted<R>(Source<R>);

enum Source<R> {
    Memory(std::vec::IntoIter<R>),
    Runs(Runs<R>),
}

impl<R: Record> Iterator for Sorted<R> {
    type Item = io::Result<R>;

    fn next(&mut self) -> Option<io::Result<R>> {
        match &mut self.0 {
            Source::Memory(records) => records.next().map(Ok),
            Source::Runs(runs) => runs.next(),
        }
    }
}

/// Several runs, merged.
struct Runs<R> {
    readers: Vec<RunReader>,
    /// The next record of each run that has one.
    next: BinaryHeap<Reverse<(R, usize)>>,
}

struct RunReader {
    file: Arc<File>,
    at: u64,
    end: u64,
    bytes: Vec<u8>,
    used: usize,
    read_bytes: usize,
}

impl<R: Record> Runs<R> {
    fn new(file: &Arc<File>, runs: &[(u64, u64)], memory_bytes: usize) -> io::Result<Self> {
        let each = (memory_bytes / runs.len().max(1)).clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let read_bytes = each / R::BYTES * R::BYTES;
        let mut merged = Self {
            readers: Vec::with_capacity(runs.len()),
            next: BinaryHeap::with_capacity(runs.len()),
        };
        for (n, (start, count)) in runs.iter().enumerate() {
            merged.readers.push(RunReader {
                file: Arc::clone(file),
                at: *start,
                end: start + count * R::BYTES as u64,
                bytes: Vec::new(),
                used: 0,
                read_bytes,
            });
            merged.load(n)?;
        }
        Ok(merged)
    }

    fn load(&mut self, n: usize) -> io::Result<()> {
        if let Some(record) = self.readers[n].next()? {
            self.next.push(Reverse((record, n)));
        }
        Ok(())
    }
}

impl<R: Record> Iterator for Runs<R> {
    type Item = io::Result<R>;

    fn next(&mut self) -> Option<io::Result<R>> {
        let mut top = self.next.peek_mut()?;
        let Reverse((record, n)) = *top;
        match self.readers[n].next() {
            // Replaced in place, which is cheaper than removing one and adding another.
            Ok(Some(following)) => *top = Reverse((following, n)),
            Ok(None) => drop(std::collections::binary_heap::PeekMut::pop(top)),
            Err(error) => return Some(Err(error)),
        }
        Some(Ok(record))
    }
}

impl RunReader {
    fn next<R: Record>(&mut self) -> io::Result<Option<R>> {
        if self.used == self.bytes.len() {
            let len = (self.end - self.at).min(self.read_bytes as u64) as usize;
            if len == 0 {
                return Ok(None);
            }
            self.bytes.resize(len, 0);
            self.file.read_exact_at(&mut self.bytes, self.at)?;
            self.at += len as u64;
            self.used = 0;
        }
        let record = R::get(&self.bytes[self.used..self.used + R::BYTES]);
        self.used += R::BYTES;
        Ok(Some(record))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Ignores poisoning: a thread that panicked has ended the whole analysis.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "how tests fail")]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_in_order_however_little_memory_there_is() {
        for (count, memory_bytes) in [(0, 1 << 20), (1000, 1 << 20), (100_000, 0), (700_000, 0)] {
            let sorter = Sorter::new(memory_bytes, &std::env::temp_dir());
            let mut random = fastrand::Rng::with_seed(count);
            let mut all: Vec<(u128, u128)> = (0..count)
                .map(|n| (u128::from(random.u64(..50_000)), u128::from(n)))
                .collect();
            std::thread::scope(|scope| {
                for part in all.chunks(50_001) {
                    let sorter = &sorter;
                    scope.spawn(move || sorter.add(&mut part.to_vec()).unwrap());
                }
            });
            all.sort_unstable();
            let sorted = sorter.finish().unwrap().map(Result::unwrap);
            assert!(sorted.eq(all), "{count} records");
        }
    }
}
