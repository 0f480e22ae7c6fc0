//! Finds every file, has it cut, and adds up the results.
//!
//! The unit of work is a file, or a part of a large one if all ways to cut permit cutting parts
//! separately.
//! Workers take units from a queue that the walk fills.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use onefold_image::Backing;
use onefold_sorter::Sorter;
use serde::Serialize;

use crate::AnalyzeError;
use crate::chunking::Chunking;
use crate::compression::Sampler;
use crate::harnik::Sample;
use crate::record::{Chunk, POSITION_END};
use crate::trace::TraceWriter;
use crate::walk::{Met, Problem, Survey, walk};
use crate::worker::{Opened, Unit, Worker};

/// The approximate number of bytes read at a time: a multiple of all sizes of fixed blocks.
const WINDOW_BYTES: usize = 1 << 20;

/// The longest window: block sizes without a common multiple up to it cannot be cut together.
pub(crate) const WINDOW_BYTES_MAX: usize = 16 << 20;

/// The approximate size of the parts into which large files are cut.
const PART_BYTES: u64 = 64 << 20;

/// Units that wait for a worker.
const QUEUE: usize = 64;

/// Kinds of files that are counted separately; later kinds count as the last.
pub(crate) const KINDS_MAX: u16 = 2047;

/// Distinguishes the kinds and the classes of size of a category.
const SIZE_CLASS_BITS: u32 = 5;

/// The totals of one input with one chunking method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// The number of chunks.
    pub chunks: u64,
    /// The chunks' size, in bytes: data and holes.
    pub bytes: u64,
    /// Chunks of zeros, including chunks in holes.
    pub zero_chunks: u64,
    /// Size of the chunks of zeros, in bytes.
    pub zero_bytes: u64,
}

/// The progress of a scan, and whether it should continue.
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

    /// Ends the scan soon; the data read up to then is counted.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the scan was asked to end.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }
}

/// The destination of the records of a way to cut.
pub(crate) enum Sink<'a> {
    /// Sorts records, and takes a sample of their chunks if requested.
    Sort(Sorter<(u128, u128)>, Option<Sampler>),
    Count(&'a Sample),
}

impl Sink<'_> {
    pub(crate) fn sampler(&self) -> Option<&Sampler> {
        match self {
            Self::Sort(_, sampler) => sampler.as_ref(),
            Self::Count(_) => None,
        }
    }

    pub(crate) fn add(&self, records: &mut Vec<(u128, u128)>) -> io::Result<()> {
        match self {
            Self::Sort(sorter, _) => sorter.add(records),
            Self::Count(sample) => {
                sample.count(records);
                Ok(())
            }
        }
    }
}

/// Gathers a record in `batch`, which goes to the sink when it has `full` records.
pub(crate) fn add_to(
    sink: &Sink<'_>,
    batch: &mut Vec<(u128, u128)>,
    full: usize,
    chunk: &Chunk,
) -> io::Result<()> {
    batch.push(chunk.pack());
    if batch.len() < full {
        return Ok(());
    }
    sink.add(batch)
}

/// The kind of a file and the power of two at or below its size, as one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Category(pub(crate) u16);

impl Category {
    pub(crate) fn new(kind: u16, size_class: u32) -> Self {
        let class = size_class.min((1 << SIZE_CLASS_BITS) - 1);
        Self(kind << SIZE_CLASS_BITS | class as u16)
    }

    pub(crate) fn kind(self) -> u16 {
        self.0 >> SIZE_CLASS_BITS
    }

    pub(crate) fn size_class(self) -> u32 {
        u32::from(self.0) & ((1 << SIZE_CLASS_BITS) - 1)
    }
}

/// The kinds of files seen so far.
#[derive(Default)]
pub(crate) struct Kinds {
    names: Vec<String>,
    numbers: HashMap<String, u16>,
}

impl Kinds {
    pub(crate) fn number(&mut self, name: String) -> u16 {
        let next = self.names.len() as u16;
        match self.numbers.get(&name) {
            Some(kind) => *kind,
            None if next < KINDS_MAX => {
                self.names.push(name.clone());
                self.numbers.insert(name, next);
                next
            }
            None => KINDS_MAX,
        }
    }

    /// The names of the kinds, by number.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn name(&self, category: Category) -> &str {
        let name = self.names.get(usize::from(category.kind()));
        name.map_or("other", String::as_str)
    }
}

/// The text after the last dot among the last five characters of the name, as in FS-C [Meister13
/// §2.4], in lower case.
fn kind_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('.') {
        Some((before, kind)) if !before.is_empty() && (1..=4).contains(&kind.chars().count()) => {
            kind.to_lowercase()
        }
        _ => String::new(),
    }
}

/// The result of a scan, besides the records.
#[derive(Default)]
pub(crate) struct Scanned {
    pub(crate) inputs: Vec<PathBuf>,
    /// The totals by chunking method and input.
    pub(crate) totals: Vec<Vec<Totals>>,
    pub(crate) kinds: Kinds,
    pub(crate) problems: Vec<Problem>,
    /// The files seen so far.
    pub(crate) survey: Survey,
    /// Files that begin like qcow2 images and were read as plain files.
    pub(crate) unopened_disks: u64,
    /// Whether everything was read to its end.
    pub(crate) is_complete: bool,
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

/// How the files under some paths are cut.
pub(crate) struct Cutting<'a> {
    pub(crate) chunkings: &'a [Chunking],
    /// The destinations of the records, one for each way to cut.
    pub(crate) sinks: &'a [Sink<'a>],
    /// Bytes that are read at a time.
    pub(crate) window: usize,
    pub(crate) trace: Option<&'a TraceWriter>,
}

/// Reads the files under `paths`; each path is an input.
pub(crate) fn scan(
    paths: &[PathBuf],
    disks: Option<Backing>,
    cutting: &Cutting<'_>,
    progress: &Progress,
) -> Result<Scanned, AnalyzeError> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let (units, waiting) = sync_channel::<Unit>(QUEUE);
    let waiting = Mutex::new(waiting);
    let problems = Mutex::new(Vec::new());
    let mut scanned = Scanned {
        inputs: paths.to_vec(),
        totals: vec![vec![Totals::default(); paths.len()]; cutting.chunkings.len()],
        ..Scanned::default()
    };
    let (walked, done) = thread::scope(|scope| {
        let work = || {
            let mut worker = Worker::new(cutting, paths.len());
            worker.work(&waiting, &problems, progress)?;
            Ok((worker.totals, worker.unopened_disks))
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let queue = |unit| !progress.is_stopping() && units.send(unit).is_ok();
        let walked = queue_all(paths, disks, cutting, &mut scanned, &problems, queue);
        drop(units);
        let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let done: Vec<Result<_, AnalyzeError>> = workers.into_iter().map(join).collect();
        (walked, done)
    });
    walked.map_err(sink_error)?;
    for done in done {
        let (totals, unopened_disks): (Vec<Vec<Totals>>, u64) = done?;
        scanned.unopened_disks += unopened_disks;
        for (sums, parts) in scanned.totals.iter_mut().zip(totals) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                sum.add(&part);
            }
        }
    }
    scanned.problems = problems
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    scanned.problems.sort_by(|a, b| a.path.cmp(&b.path));
    scanned.is_complete = !progress.is_stopping();
    Ok(scanned)
}

/// Walks, and queues a unit for each part of each file, until `queue` accepts no more.
fn queue_all(
    paths: &[PathBuf],
    disks: Option<Backing>,
    cutting: &Cutting<'_>,
    scanned: &mut Scanned,
    problems: &Mutex<Vec<Problem>>,
    mut queue: impl FnMut(Unit) -> bool,
) -> io::Result<()> {
    let can_be_taken_apart = cutting.chunkings.iter().all(|chunking| chunking.is_fixed());
    let mut position = 0;
    for (input, path) in (0..).zip(paths) {
        for met in walk(path, disks) {
            scanned.survey.count(&met);
            let found = match met {
                Met::File(found) => found,
                Met::Skipped => continue,
                Met::Problem(problem) => {
                    lock(problems).push(problem);
                    continue;
                }
            };
            let kind = scanned.kinds.number(kind_of(&found.path));
            let category = Category::new(kind, found.bytes.max(1).ilog2());
            let end = position + found.bytes + 1;
            if end > POSITION_END {
                lock(problems).push(Problem {
                    path: found.path,
                    what: "is beyond the 256 TiB that can be analysed together".to_owned(),
                });
                continue;
            }
            if let Some(trace) = cutting.trace {
                trace.file(&found, position, input, scanned.kinds.names())?;
            }
            let parts = parts(found.bytes, cutting.window, can_be_taken_apart);
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
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// The parts of a file of this size; an empty file has none.
fn parts(bytes: u64, window: usize, can_be_taken_apart: bool) -> Vec<Range<u64>> {
    let window = window as u64;
    let part = if can_be_taken_apart {
        window * (PART_BYTES / window).max(1)
    } else {
        u64::MAX
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

    pub(crate) fn add_chunks(&mut self, chunks: u64, bytes: u64, are_zero: bool) {
        self.chunks += chunks;
        self.bytes += bytes;
        if are_zero {
            self.zero_chunks += chunks;
            self.zero_bytes += bytes;
        }
    }
}

/// The temporary file, or the trace, cannot be written.
pub(crate) fn sink_error(error: io::Error) -> AnalyzeError {
    AnalyzeError::new(
        "the results cannot be kept, in the temporary file (see TMPDIR) or in the trace",
        error,
    )
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Its content only grows: a thread that panicked ends the whole scan.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
