//! Reads every file once, cuts it in all ways, and keeps a record of each chunk.
//!
//! The unit of work is a file, or a part of a large one where all ways to cut let it be taken apart.
//! Workers take units from a queue that the walk fills; each reads through a window of a mebibyte or so,
//! so memory does not depend on what is read.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use fastcdc::v2020::FastCDC;
use onefold_index::{Fingerprint, Key};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::Serialize;

use crate::StudyError;
use crate::chunking::Chunking;
use crate::harnik::Sample;
use crate::record::{Chunk, POSITION_END};
use crate::sorter::Sorter;
use crate::walk::{Found, Met, Problem, Stamp, walk};

/// Bytes read at a time, about: a multiple of all sizes of fixed blocks.
const WINDOW_BYTES: usize = 1 << 20;

/// The longest window: sizes of blocks that have no common multiple up to it are not cut together.
pub(crate) const WINDOW_BYTES_MAX: usize = 16 << 20;

/// Parts into which large files are cut, about.
const PART_BYTES: u64 = 64 << 20;

/// Units that wait for a worker.
const QUEUE: usize = 64;

/// Records that a worker gathers before it hands them on.
const BATCH: usize = 4096;

/// Kinds of files that are told apart; what comes later is of the last.
const KINDS_MAX: usize = 2047;

/// What keeps the kinds and the classes of size of a category apart.
const SIZE_CLASS_BITS: u32 = 5;

/// How much is what, in one input cut in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// Chunks.
    pub chunks: u64,
    /// What they have, in bytes: what was read, and holes.
    pub bytes: u64,
    /// Chunks in which all is zero, those in holes included.
    pub zero_chunks: u64,
    /// What these have, in bytes.
    pub zero_bytes: u64,
}

/// How far a scan has come, and whether it is to go on.
#[derive(Debug, Default)]
pub struct Progress {
    done_bytes: AtomicU64,
    stops: AtomicBool,
}

impl Progress {
    /// Bytes that are done, holes included.
    #[must_use]
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Ends the scan soon: what was read by then is counted.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Whether it was told to.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }
}

/// Where the records of a way to cut go.
pub(crate) enum Sink<'a> {
    Sort(Sorter<(u128, u128)>),
    Count(&'a Sample),
}

impl Sink<'_> {
    fn add(&self, records: &mut Vec<(u128, u128)>) -> io::Result<()> {
        match self {
            Self::Sort(sorter) => sorter.add(records),
            Self::Count(sample) => {
                sample.count(records);
                Ok(())
            }
        }
    }
}

/// The kinds of files that were met.
#[derive(Default)]
pub(crate) struct Kinds {
    names: Vec<String>,
    numbers: HashMap<String, u16>,
}

impl Kinds {
    /// The category of a file of this name and size.
    fn category(&mut self, found: &Found) -> u16 {
        let name = kind_of(&found.path);
        let next = self.names.len();
        let kind = match self.numbers.get(&name) {
            Some(kind) => *kind,
            None if next < KINDS_MAX => {
                self.names.push(name.clone());
                self.numbers.insert(name, next as u16);
                next as u16
            }
            None => KINDS_MAX as u16,
        };
        let class = found.bytes.max(1).ilog2().min((1 << SIZE_CLASS_BITS) - 1);
        kind << SIZE_CLASS_BITS | class as u16
    }

    /// Kind of file, and the power of two at or below its size.
    pub(crate) fn describe(&self, category: u16) -> (&str, u32) {
        let kind = usize::from(category >> SIZE_CLASS_BITS);
        let class = u32::from(category) & ((1 << SIZE_CLASS_BITS) - 1);
        (self.names.get(kind).map_or("other", String::as_str), class)
    }
}

/// What follows the last dot among the last five characters of the name, as FS-C has it [Meister13
/// §2.4], in lower case.
fn kind_of(path: &std::path::Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('.') {
        Some((before, kind)) if !before.is_empty() && (1..=4).contains(&kind.chars().count()) => {
            kind.to_lowercase()
        }
        _ => String::new(),
    }
}

/// What a scan leaves, besides the records.
pub(crate) struct Scanned {
    /// For each way to cut, for each input.
    pub(crate) totals: Vec<Vec<Totals>>,
    pub(crate) kinds: Kinds,
    pub(crate) problems: Vec<Problem>,
    /// Links and special files.
    pub(crate) skipped: u64,
    pub(crate) files: u64,
}

/// A file, of which several workers may have a part.
struct Opened {
    found: Found,
    input: u16,
    category: u16,
    /// Where it begins in all files one after another.
    position: u64,
    /// Parts that nobody has dealt with yet.
    left: AtomicUsize,
    has_problem: AtomicBool,
}

struct Unit {
    opened: Arc<Opened>,
    range: Range<u64>,
}

/// The window for these ways to cut: a common multiple of all fixed sizes, if there is a small one.
pub(crate) fn window_bytes(chunkings: &[Chunking]) -> Option<usize> {
    let common = chunkings.iter().try_fold(1_usize, |common, chunking| {
        let Chunking::Fixed { bytes } = chunking else {
            return Some(common);
        };
        let multiple = common.checked_mul(bytes / greatest_divisor(common, *bytes))?;
        (multiple <= WINDOW_BYTES_MAX).then_some(multiple)
    })?;
    Some(common * (WINDOW_BYTES / common).max(1))
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => greatest_divisor(b, a % b),
    }
}

/// Reads what is under `paths`; each is an input. `sinks` get the records, one for each way to cut.
pub(crate) fn scan(
    paths: &[PathBuf],
    chunkings: &[Chunking],
    sinks: &[Sink<'_>],
    window: usize,
    progress: &Progress,
) -> Result<Scanned, StudyError> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (units, waiting) = sync_channel::<Unit>(QUEUE);
    let waiting = Mutex::new(waiting);
    let problems = Mutex::new(Vec::new());
    let can_be_taken_apart = chunkings.iter().all(|chunking| chunking.is_fixed());
    let mut scanned = Scanned {
        totals: vec![vec![Totals::default(); paths.len()]; chunkings.len()],
        kinds: Kinds::default(),
        problems: Vec::new(),
        skipped: 0,
        files: 0,
    };
    let done: Vec<Result<Vec<Vec<Totals>>, StudyError>> = thread::scope(|scope| {
        let work = || {
            let mut worker = Worker::new(chunkings, sinks, window, paths.len());
            worker.work(&waiting, &problems, progress)?;
            Ok(worker.totals)
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut position = 0;
        let queue = |unit| !progress.is_stopping() && units.send(unit).is_ok();
        'walk: for (input, path) in (0..).zip(paths) {
            for met in walk(path) {
                let found = match met {
                    Met::File(found) => found,
                    Met::Skipped => {
                        scanned.skipped += 1;
                        continue;
                    }
                    Met::Problem(problem) => {
                        lock(&problems).push(problem);
                        continue;
                    }
                };
                scanned.files += 1;
                let category = scanned.kinds.category(&found);
                let parts = parts(found.bytes, window, can_be_taken_apart);
                let end = position + found.bytes + 1;
                if end > POSITION_END {
                    lock(&problems).push(Problem {
                        path: found.path,
                        what: "is beyond the 256 TiB that can be analysed together".to_owned(),
                    });
                    continue;
                }
                let opened = Arc::new(Opened {
                    input,
                    category,
                    position,
                    left: AtomicUsize::new(parts.len()),
                    has_problem: AtomicBool::new(false),
                    found,
                });
                position = end;
                for range in parts {
                    let opened = Arc::clone(&opened);
                    if !queue(Unit { opened, range }) {
                        break 'walk;
                    }
                }
            }
        }
        drop(units);
        let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().map(join).collect()
    });
    for totals in done {
        for (sums, parts) in scanned.totals.iter_mut().zip(totals?) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                sum.add(&part);
            }
        }
    }
    scanned.problems = problems
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    scanned.problems.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(scanned)
}

/// The parts of a file of this size; none of an empty one.
fn parts(bytes: u64, window: usize, can_be_taken_apart: bool) -> Vec<Range<u64>> {
    let window = window as u64;
    let part = match can_be_taken_apart {
        true => window * (PART_BYTES / window).max(1),
        false => u64::MAX,
    };
    let starts = (0..).map(|n| part.saturating_mul(n));
    let starts = starts.take_while(|start| *start < bytes);
    starts
        .map(|start| start..start.saturating_add(part).min(bytes))
        .collect()
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.zero_chunks += other.zero_chunks;
        self.zero_bytes += other.zero_bytes;
    }

    fn add_chunks(&mut self, chunks: u64, bytes: u64, are_zero: bool) {
        self.chunks += chunks;
        self.bytes += bytes;
        if are_zero {
            self.zero_chunks += chunks;
            self.zero_bytes += bytes;
        }
    }
}

/// What is under way of a file that is cut in one way.
enum Cut {
    Fixed,
    /// Bytes from the end of the last chunk on, where that is.
    Content {
        rest: Vec<u8>,
        at: u64,
    },
    WholeFile {
        hasher: Box<blake3::Hasher>,
        is_zero: bool,
    },
}

struct Worker<'a> {
    chunkings: &'a [Chunking],
    sinks: &'a [Sink<'a>],
    key: Key,
    window: Vec<u8>,
    /// For each way to cut, for each input.
    totals: Vec<Vec<Totals>>,
    /// For each way to cut.
    batches: Vec<Vec<(u128, u128)>>,
    fingerprints: Vec<Fingerprint>,
}

impl<'a> Worker<'a> {
    fn new(chunkings: &'a [Chunking], sinks: &'a [Sink<'a>], window: usize, inputs: usize) -> Self {
        Self {
            chunkings,
            sinks,
            key: fingerprint_key(),
            window: vec![0; window],
            totals: vec![vec![Totals::default(); inputs]; chunkings.len()],
            batches: chunkings
                .iter()
                .map(|_| Vec::with_capacity(BATCH))
                .collect(),
            fingerprints: Vec::new(),
        }
    }

    fn work(
        &mut self,
        waiting: &Mutex<Receiver<Unit>>,
        problems: &Mutex<Vec<Problem>>,
        progress: &Progress,
    ) -> Result<(), StudyError> {
        let mut failure = None;
        loop {
            let unit = lock(waiting).recv();
            let Ok(unit) = unit else { break };
            if progress.is_stopping() {
                continue;
            }
            let read = File::open(&unit.opened.found.path)
                .map_err(ReadError::Input)
                .and_then(|file| self.read(&file, &unit, progress));
            let problem = match read {
                Ok(()) => None,
                Err(ReadError::Input(error)) => Some(error.to_string()),
                Err(ReadError::Records(error)) => {
                    // The queue is emptied all the same: the walk may be waiting for a place in it.
                    progress.stop();
                    failure = Some(error);
                    continue;
                }
            };
            let opened = &unit.opened;
            let is_last = opened.left.fetch_sub(1, Ordering::AcqRel) == 1;
            let problem = problem.or_else(|| {
                let has_changed = is_last && opened.has_changed() && !progress.is_stopping();
                has_changed.then(|| "changed while it was read".to_owned())
            });
            if let Some(what) = problem
                && !opened.has_problem.swap(true, Ordering::AcqRel)
            {
                lock(problems).push(Problem {
                    path: opened.found.path.clone(),
                    what,
                });
            }
        }
        if let Some(error) = failure {
            return Err(spill_error(error));
        }
        for (sink, batch) in self.sinks.iter().zip(&mut self.batches) {
            sink.add(batch).map_err(spill_error)?;
        }
        Ok(())
    }

    fn read(&mut self, file: &File, unit: &Unit, progress: &Progress) -> Result<(), ReadError> {
        let mut cuts: Vec<Cut> = self.chunkings.iter().map(Cut::new).collect();
        let can_skip_holes = self.chunkings.iter().all(|chunking| chunking.is_fixed());
        let mut data = unit.range.start..unit.range.start;
        let mut at = unit.range.start;
        while at < unit.range.end && !progress.is_stopping() {
            let wanted = (self.window.len() as u64).min(unit.range.end - at);
            if can_skip_holes && data.end <= at {
                data = next_data(file, at, unit.range.end).map_err(ReadError::Input)?;
            }
            if can_skip_holes && data.start >= at + wanted {
                self.skip(&unit.opened, wanted);
                at += wanted;
                progress.done_bytes.fetch_add(wanted, Ordering::Relaxed);
                continue;
            }
            let mut window = std::mem::take(&mut self.window);
            let got = read_at(file, &mut window[..wanted as usize], at);
            let cut = got.map_err(ReadError::Input).and_then(|got| {
                let is_last = at + wanted == unit.range.end || (got as u64) < wanted;
                self.cut(&mut cuts, &unit.opened, (at, &window[..got]), is_last)?;
                Ok(got as u64)
            });
            self.window = window;
            let got = cut?;
            progress.done_bytes.fetch_add(wanted, Ordering::Relaxed);
            at += wanted;
            if got < wanted {
                // It became shorter; whoever has its last part will see that.
                break;
            }
        }
        Ok(())
    }

    /// A window that is a hole.
    fn skip(&mut self, opened: &Opened, bytes: u64) {
        for (chunking, totals) in self.chunkings.iter().zip(&mut self.totals) {
            if let Chunking::Fixed { bytes: size } = chunking {
                let totals = &mut totals[usize::from(opened.input)];
                totals.add_chunks(bytes.div_ceil(*size as u64), bytes, true);
            }
        }
    }

    /// Cuts a window in all ways.
    fn cut(
        &mut self,
        cuts: &mut [Cut],
        opened: &Opened,
        (at, bytes): (u64, &[u8]),
        is_last: bool,
    ) -> Result<(), ReadError> {
        for (n, cut) in cuts.iter_mut().enumerate() {
            match (cut, self.chunkings[n]) {
                (Cut::Fixed, Chunking::Fixed { bytes: size }) => {
                    self.cut_fixed(n, opened, (at, bytes), size)?;
                }
                (Cut::Content { rest, at }, Chunking::Content { min, average, max }) => {
                    rest.extend_from_slice(bytes);
                    let mut used = 0;
                    {
                        let cutter = FastCDC::new(rest, min, average, max);
                        while used < rest.len() && (is_last || rest.len() - used >= max) {
                            let (_, end) = cutter.cut(used, rest.len() - used);
                            let chunk = &rest[used..end];
                            self.add(n, opened, *at + used as u64, chunk)?;
                            used = end;
                        }
                    }
                    rest.drain(..used);
                    *at += used as u64;
                }
                (
                    Cut::WholeFile {
                        hasher,
                        is_zero: all_zero,
                    },
                    _,
                ) => {
                    hasher.update(bytes);
                    *all_zero = *all_zero && is_zero(bytes);
                    if is_last {
                        let (len, all_zero) = (at + bytes.len() as u64, *all_zero);
                        let totals = &mut self.totals[n][usize::from(opened.input)];
                        totals.add_chunks(1, len, all_zero);
                        if !all_zero {
                            let fingerprint = truncated(hasher);
                            self.keep(n, opened, 0, len, fingerprint)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Consecutive blocks that are not zero are fingerprinted together.
    fn cut_fixed(
        &mut self,
        n: usize,
        opened: &Opened,
        (at, bytes): (u64, &[u8]),
        size: usize,
    ) -> Result<(), ReadError> {
        let whole = bytes.len() / size * size;
        let (blocks, tail) = bytes.split_at(whole);
        let mut zero_blocks = 0;
        let mut start = 0;
        while start < whole {
            if is_zero(&blocks[start..start + size]) {
                zero_blocks += 1;
                start += size;
                continue;
            }
            let mut end = start + size;
            while end < whole && !is_zero(&blocks[end..end + size]) {
                end += size;
            }
            let mut found = std::mem::take(&mut self.fingerprints);
            found.clear();
            self.key.fingerprints(&blocks[start..end], size, &mut found);
            for (fingerprint, block) in found.iter().zip((start..end).step_by(size)) {
                self.keep(n, opened, at + block as u64, size as u64, *fingerprint)?;
            }
            self.fingerprints = found;
            start = end;
        }
        let totals = &mut self.totals[n][usize::from(opened.input)];
        totals.add_chunks(zero_blocks, zero_blocks * size as u64, true);
        let blocks = (whole / size) as u64 - zero_blocks;
        totals.add_chunks(blocks, blocks * size as u64, false);
        if tail.is_empty() {
            return Ok(());
        }
        self.add(n, opened, at + whole as u64, tail)
    }

    /// One chunk.
    fn add(&mut self, n: usize, opened: &Opened, at: u64, chunk: &[u8]) -> Result<(), ReadError> {
        let (bytes, is_zero) = (chunk.len() as u64, is_zero(chunk));
        self.totals[n][usize::from(opened.input)].add_chunks(1, bytes, is_zero);
        if is_zero {
            return Ok(());
        }
        let fingerprint = self.key.fingerprint(chunk);
        self.keep(n, opened, at, bytes, fingerprint)
    }

    fn keep(
        &mut self,
        n: usize,
        opened: &Opened,
        at: u64,
        bytes: u64,
        fingerprint: Fingerprint,
    ) -> Result<(), ReadError> {
        let chunk = Chunk {
            fingerprint,
            position: opened.position + at,
            bytes,
            input: opened.input,
            category: opened.category,
        };
        let batch = &mut self.batches[n];
        batch.push(chunk.pack());
        if batch.len() == BATCH {
            self.sinks[n].add(batch).map_err(ReadError::Records)?;
        }
        Ok(())
    }
}

impl Cut {
    fn new(chunking: &Chunking) -> Self {
        match chunking {
            Chunking::Fixed { .. } => Self::Fixed,
            Chunking::Content { .. } => Self::Content {
                rest: Vec::new(),
                at: 0,
            },
            Chunking::WholeFile => Self::WholeFile {
                hasher: Box::new(blake3::Hasher::new()),
                is_zero: true,
            },
        }
    }
}

impl Opened {
    fn has_changed(&self) -> bool {
        let Some(before) = self.found.stamp else {
            return false;
        };
        let now = self.found.path.symlink_metadata();
        !now.is_ok_and(|now| now.is_symlink() || Stamp::of(&now) == before)
    }
}

enum ReadError {
    /// The file's: it is listed, and the analysis goes on.
    Input(io::Error),
    /// That of the temporary file: the analysis ends.
    Records(io::Error),
}

fn spill_error(error: io::Error) -> StudyError {
    StudyError::new("the temporary file of the analysis (see TMPDIR)", error)
}

/// The same for all analyses, so that what they find can be compared.
pub(crate) fn fingerprint_key() -> Key {
    Key::derive(&[0; 32], 0)
}

fn truncated(hasher: &blake3::Hasher) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    let bytes = fingerprint.0.len();
    fingerprint
        .0
        .copy_from_slice(&hasher.finalize().as_bytes()[..bytes]);
    fingerprint
}

/// Fills `buf` as far as the file goes.
pub(crate) fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match file.read_at(&mut buf[got..], at + got as u64) {
            Ok(0) => break,
            Ok(bytes) => got += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// The first range from `at` on that may hold data; an empty one at `end` where there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<Range<u64>> {
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(Errno::NXIO) => return Ok(end..end),
        // Devices and some file systems do not tell holes from data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(at..u64::MAX),
        Err(error) => return Err(error.into()),
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(data))?;
    Ok(data..hole)
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let mut words = bytes.chunks(64);
    words.all(|bytes| bytes.iter().fold(0, |any, byte| any | byte) == 0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in it is only ever added to: a thread that panicked ends the whole scan.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
