//! Reads files through a window, cuts them in all ways, and keeps a record of each chunk.
//!
//! A window has about a mebibyte, so memory does not depend on the input.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use fastcdc::v2020::FastCDC;
use onefold_image::{Image, ImageError};
use onefold_index::{Fingerprint, Key, is_zero};

use crate::AnalyzeError;
use crate::chunking::Chunking;
use crate::compression::GROUP_BYTES;
use crate::record::{Chunk, pack_fingerprint};
use crate::scan::{Category, Cutting, Progress, Sink, Totals, add_to, lock, sink_error};
use crate::trace::Tracing;
use crate::walk::{Found, Problem, Stamp};

/// Records that a worker gathers before it passes them on.
const BATCH: usize = 4096;

/// A file, parts of which several workers may cut.
pub(crate) struct Opened {
    pub(crate) found: Found,
    pub(crate) input: u16,
    pub(crate) category: Category,
    /// The file's start in all files one after another.
    pub(crate) position: u64,
    /// Parts that no worker has taken yet.
    pub(crate) left: AtomicUsize,
    pub(crate) has_problem: AtomicBool,
}

pub(crate) struct Unit {
    pub(crate) opened: Arc<Opened>,
    pub(crate) range: Range<u64>,
}

/// The state of cutting a file with one method.
enum Cut {
    Fixed,
    /// The bytes since the end of the last chunk, and their position.
    Content {
        rest: Vec<u8>,
        at: u64,
    },
    WholeFile {
        hasher: Box<blake3::Hasher>,
        is_zero: bool,
    },
}

pub(crate) struct Worker<'a> {
    chunkings: &'a [Chunking],
    sinks: &'a [Sink<'a>],
    key: Key,
    window: Vec<u8>,
    /// The totals by chunking method and input.
    pub(crate) totals: Vec<Vec<Totals>>,
    /// The gathered records of each way to cut.
    batches: Vec<Vec<(u128, u128)>>,
    fingerprints: Vec<Fingerprint>,
    /// Files that begin like qcow2 images and were read as plain files.
    pub(crate) unopened_disks: u64,
    scratch: Vec<u8>,
    tracing: Option<Tracing<'a>>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(cutting: &Cutting<'a>, inputs: usize) -> Self {
        let ways = cutting.chunkings.len();
        Self {
            chunkings: cutting.chunkings,
            sinks: cutting.sinks,
            key: fingerprint_key(),
            window: vec![0; cutting.window],
            totals: vec![vec![Totals::default(); inputs]; ways],
            batches: (0..ways).map(|_| Vec::with_capacity(BATCH)).collect(),
            fingerprints: Vec::new(),
            unopened_disks: 0,
            scratch: Vec::new(),
            tracing: cutting.trace.map(|trace| Tracing::new(trace, ways)),
        }
    }

    pub(crate) fn work(
        &mut self,
        waiting: &Mutex<Receiver<Unit>>,
        problems: &Mutex<Vec<Problem>>,
        progress: &Progress,
    ) -> Result<(), AnalyzeError> {
        let mut failure = None;
        loop {
            let unit = lock(waiting).recv();
            let Ok(unit) = unit else { break };
            if progress.is_stopping() {
                continue;
            }
            let opened = unit.opened.found.open().map_err(ReadError::Input);
            let read = opened.and_then(|mut image| self.read(&mut *image, &unit, progress));
            let read = match &mut self.tracing {
                Some(tracing) => read.and(tracing.end().map_err(ReadError::Records)),
                None => read,
            };
            let problem = match read {
                Ok(()) => None,
                Err(ReadError::Input(error)) => Some(error.to_string()),
                Err(ReadError::Records(error)) => {
                    // Empty the queue anyway: the walk may be waiting for a place in it.
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
            return Err(sink_error(error));
        }
        for (sink, batch) in self.sinks.iter().zip(&mut self.batches) {
            sink.add(batch).map_err(sink_error)?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        image: &mut dyn Image,
        unit: &Unit,
        progress: &Progress,
    ) -> Result<(), ReadError> {
        if let Some(tracing) = &mut self.tracing {
            let Opened {
                position, input, ..
            } = *unit.opened;
            let category = unit.opened.category;
            tracing.start(position + unit.range.start, input, category);
        }
        let mut cuts: Vec<Cut> = self.chunkings.iter().map(Cut::new).collect();
        let can_skip_holes = self.chunkings.iter().all(|chunking| chunking.is_fixed());
        let window_bytes = self.window.len() as u64;
        let Range { start, end } = unit.range;
        let mut data = start..start;
        let mut at = start;
        while at < end && !progress.is_stopping() {
            let mut wanted = window_bytes.min(end - at);
            if can_skip_holes && data.end <= at {
                let next = image.next_data(at).map_err(ReadError::Input)?;
                data = next.unwrap_or(end..u64::MAX);
            }
            if can_skip_holes && data.start >= at + wanted {
                // All windows before the one with data.
                let hole = data.start.min(end) - at;
                if hole < end - at {
                    wanted = hole / window_bytes * window_bytes;
                } else {
                    wanted = hole;
                }
                self.skip(&unit.opened, wanted)?;
            } else {
                let mut window = std::mem::take(&mut self.window);
                let bytes = &mut window[..wanted as usize];
                let read = image.read(at, bytes).map_err(ReadError::Input);
                let cut = read.and_then(|()| {
                    let is_unopened = at == 0 && unit.opened.found.is_unopened(bytes);
                    self.unopened_disks += u64::from(is_unopened);
                    let is_last = at + wanted == end;
                    self.cut(&mut cuts, &unit.opened, at, bytes, is_last)
                });
                self.window = window;
                cut?;
            }
            progress.add(wanted);
            at += wanted;
        }
        Ok(())
    }

    /// Counts windows that are a hole.
    fn skip(&mut self, opened: &Opened, bytes: u64) -> Result<(), ReadError> {
        for n in 0..self.chunkings.len() {
            if let Chunking::Fixed { bytes: size } = self.chunkings[n] {
                let size = size as u64;
                self.zeros(n, opened, bytes / size, size)?;
                self.zeros(
                    n,
                    opened,
                    u64::from(!bytes.is_multiple_of(size)),
                    bytes % size,
                )?;
            }
        }
        Ok(())
    }

    /// Cuts a window in all ways.
    fn cut(
        &mut self,
        cuts: &mut [Cut],
        opened: &Opened,
        at: u64,
        bytes: &[u8],
        is_last: bool,
    ) -> Result<(), ReadError> {
        for (n, cut) in cuts.iter_mut().enumerate() {
            match (cut, self.chunkings[n]) {
                (Cut::Fixed, Chunking::Fixed { bytes: size }) => {
                    self.cut_fixed(n, opened, at, bytes, size)?;
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
                        let len = at + bytes.len() as u64;
                        if *all_zero {
                            self.zeros(n, opened, 1, len)?;
                        } else {
                            let fingerprint = truncated(hasher);
                            self.keep(n, opened, 0, len, pack_fingerprint(fingerprint))?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Cuts fixed blocks. Consecutive nonzero blocks are fingerprinted together.
    fn cut_fixed(
        &mut self,
        n: usize,
        opened: &Opened,
        at: u64,
        bytes: &[u8],
        size: usize,
    ) -> Result<(), ReadError> {
        let whole = bytes.len() / size * size;
        let (blocks, tail) = bytes.split_at(whole);
        let mut start = 0;
        while start < whole {
            let is_zero_at = |at: usize| is_zero(&blocks[at..at + size]);
            let are_zero = is_zero_at(start);
            let mut end = start + size;
            while end < whole && is_zero_at(end) == are_zero {
                end += size;
            }
            if are_zero {
                self.zeros(n, opened, ((end - start) / size) as u64, size as u64)?;
                start = end;
                continue;
            }
            let mut found = std::mem::take(&mut self.fingerprints);
            found.clear();
            self.key.fingerprints(&blocks[start..end], size, &mut found);
            for (fingerprint, block) in found.iter().zip((start..end).step_by(size)) {
                let fingerprint = pack_fingerprint(*fingerprint);
                let following = Some(&bytes[block..]).filter(|_| size < GROUP_BYTES);
                let (at, chunk) = (at + block as u64, &bytes[block..block + size]);
                self.sample(n, opened, at, chunk, following, fingerprint);
                self.keep(n, opened, at, size as u64, fingerprint)?;
            }
            self.fingerprints = found;
            start = end;
        }
        match tail {
            [] => Ok(()),
            tail => self.add(n, opened, at + whole as u64, tail),
        }
    }

    /// Adds a chunk.
    fn add(&mut self, n: usize, opened: &Opened, at: u64, chunk: &[u8]) -> Result<(), ReadError> {
        let bytes = chunk.len() as u64;
        if is_zero(chunk) {
            return self.zeros(n, opened, 1, bytes);
        }
        let fingerprint = pack_fingerprint(self.key.fingerprint(chunk));
        self.sample(n, opened, at, chunk, None, fingerprint);
        self.keep(n, opened, at, bytes, fingerprint)
    }

    fn sample(
        &mut self,
        n: usize,
        opened: &Opened,
        at: u64,
        chunk: &[u8],
        following: Option<&[u8]>,
        fingerprint: u128,
    ) {
        if let Some(sampler) = self.sinks[n].sampler()
            && sampler.wants(fingerprint)
        {
            let position = opened.position + at;
            sampler.take(fingerprint, position, chunk, following, &mut self.scratch);
        }
    }

    fn zeros(
        &mut self,
        n: usize,
        opened: &Opened,
        count: u64,
        bytes: u64,
    ) -> Result<(), ReadError> {
        let totals = &mut self.totals[n][usize::from(opened.input)];
        totals.add_chunks(count, count * bytes, true);
        match &mut self.tracing {
            Some(tracing) => tracing.zeros(n, count, bytes).map_err(ReadError::Records),
            None => Ok(()),
        }
    }

    fn keep(
        &mut self,
        n: usize,
        opened: &Opened,
        at: u64,
        bytes: u64,
        fingerprint: u128,
    ) -> Result<(), ReadError> {
        let totals = &mut self.totals[n][usize::from(opened.input)];
        totals.add_chunks(1, bytes, false);
        let chunk = Chunk {
            fingerprint,
            position: opened.position + at,
            bytes,
            input: opened.input,
            category: opened.category.0,
        };
        let (sink, batch) = (&self.sinks[n], &mut self.batches[n]);
        add_to(sink, batch, BATCH, &chunk).map_err(ReadError::Records)?;
        match &mut self.tracing {
            Some(tracing) => tracing
                .data(n, bytes, fingerprint)
                .map_err(ReadError::Records),
            None => Ok(()),
        }
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
    /// An error of the file: it is listed, and the analysis continues.
    Input(ImageError),
    /// An error of the temporary file or the trace: the analysis ends.
    Records(io::Error),
}

/// The key of fingerprints, the same for all analyses, so that their results can be compared.
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
