//! Traces: the chunks of a data set, in a file, so that they can be analysed elsewhere and again
//! without the data. Their format is `onefold_format::trace`.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use onefold_format::trace::{
    self, TRACE_HEADER_BYTES, TraceChunks, TraceContent, TraceEnd, TraceFrame, TraceRun,
};
use onefold_format::{FormatError, TEXT_BYTES_MAX};

use crate::AnalyzeError;
use crate::chunking::Chunking;
use crate::record::{Chunk, INPUTS_MAX, POSITION_END};
use crate::scan::{Category, KINDS_MAX, Progress, Scanned, Sink, Totals, add_to, sink_error};
use crate::walk::{Found, Problem, Survey};

/// The most fingerprints in a frame: the frame has 64 KiB of them.
const FINGERPRINTS_MAX: usize = 4096;

/// The most runs in a frame.
const RUNS_MAX: usize = 4096;

/// The most chunking methods in a trace: chunks refer to theirs by a byte.
const WAYS_MAX: usize = 1 << u8::BITS;

/// The most units of a sample in a frame.
const UNITS_MAX: usize = 4096;

/// The options of a trace to write.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// The file, which must not exist.
    pub path: PathBuf,
    /// Replaces paths by hashes with a key that is discarded. Kinds and sizes of files stay
    /// readable.
    pub hides_names: bool,
}

/// Writes a trace, from any number of threads.
pub(crate) struct TraceWriter {
    path: PathBuf,
    /// If present, names are hashed.
    key: Option<[u8; 32]>,
    out: Mutex<Out>,
}

struct Out {
    file: BufWriter<File>,
    position: u64,
    frame: Vec<u8>,
    kinds: usize,
}

impl TraceWriter {
    pub(crate) fn create(
        options: &TraceOptions,
        ways: &[Chunking],
        inputs: &[PathBuf],
    ) -> Result<Self, AnalyzeError> {
        if ways.len() > WAYS_MAX {
            return Err(AnalyzeError::usage(format!(
                "a trace can have {WAYS_MAX} ways to cut"
            )));
        }
        let path = options.path.clone();
        let failed = |error| cannot_write(&options.path, error);
        let file = File::create_new(&path).map_err(failed)?;
        let mut key = [0; 32];
        if options.hides_names {
            let mut random = File::open("/dev/urandom").map_err(failed)?;
            random.read_exact(&mut key).map_err(failed)?;
        }
        let writer = Self {
            key: options.hides_names.then_some(key),
            out: Mutex::new(Out {
                file: BufWriter::with_capacity(1 << 20, file),
                position: 0,
                frame: Vec::new(),
                kinds: 0,
            }),
            path,
        };
        let ways = ways.iter().map(Chunking::to_string).collect();
        writer.write(&TraceFrame::Start { ways }).map_err(failed)?;
        for input in inputs {
            let path = writer.name(input);
            writer.write(&TraceFrame::Input { path }).map_err(failed)?;
        }
        Ok(writer)
    }

    /// Writes a file that will be cut, and new kinds of files.
    pub(crate) fn file(
        &self,
        found: &Found,
        position: u64,
        input: u16,
        kinds: &[String],
    ) -> io::Result<()> {
        let known = std::mem::replace(&mut self.lock().kinds, kinds.len());
        for name in kinds.iter().skip(known) {
            self.write(&TraceFrame::Kind { name: name.clone() })?;
        }
        self.write(&TraceFrame::File {
            position,
            bytes: found.bytes,
            input,
            name: self.name(&found.path),
        })
    }

    pub(crate) fn finish(self, scanned: &Scanned, sinks: &[Sink<'_>]) -> Result<(), AnalyzeError> {
        let failed = |error| cannot_write(&self.path, error);
        for (way, sink) in (0..).zip(sinks) {
            let Some(sampler) = sink.sampler() else {
                continue;
            };
            let (zero_bits, units) = sampler.units();
            for units in units.chunks(UNITS_MAX) {
                let units = units.to_vec();
                let frame = TraceFrame::Sample {
                    way,
                    zero_bits: zero_bits as u16,
                    units,
                };
                self.write(&frame).map_err(failed)?;
            }
        }
        for problem in &scanned.problems {
            let what = problem.what.chars().take(TEXT_BYTES_MAX / 4).collect();
            let path = self.name(&problem.path);
            self.write(&TraceFrame::Problem { path, what })
                .map_err(failed)?;
        }
        let survey = &scanned.survey;
        let end = TraceFrame::End(TraceEnd {
            files: survey.files,
            empty_files: survey.empty_files,
            bytes: survey.bytes,
            skipped: survey.skipped,
            unopened_disks: scanned.unopened_disks,
            is_complete: scanned.is_complete,
        });
        self.write(&end).map_err(failed)?;
        let mut out = self.lock();
        out.file.flush().map_err(failed)?;
        out.file.get_ref().sync_all().map_err(failed)
    }

    fn write(&self, frame: &TraceFrame) -> io::Result<()> {
        let mut out = self.lock();
        let out = &mut *out;
        out.frame.clear();
        frame.encode(out.position, &mut out.frame);
        out.file.write_all(&out.frame)?;
        out.position += out.frame.len() as u64;
        Ok(())
    }

    /// The hash of a path.
    fn name(&self, path: &Path) -> Vec<u8> {
        let bytes = path.as_os_str().as_bytes();
        match &self.key {
            Some(key) => blake3::keyed_hash(key, bytes).to_hex().as_bytes()[..32].to_vec(),
            None => bytes[..bytes.len().min(TEXT_BYTES_MAX)].to_vec(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Out> {
        // A thread that panicked has ended the whole analysis.
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cannot_write(path: &Path, error: io::Error) -> AnalyzeError {
    AnalyzeError::new(format!("cannot write the trace {path:?}"), error)
}

/// A worker's output for a trace: consecutive chunks of one file, for each chunking method.
pub(crate) struct Tracing<'a> {
    writer: &'a TraceWriter,
    ways: Vec<TraceChunks>,
    fingerprints: Vec<usize>,
}

impl<'a> Tracing<'a> {
    pub(crate) fn new(writer: &'a TraceWriter, ways: usize) -> Self {
        let chunks = |way| TraceChunks {
            way: way as u8,
            ..TraceChunks::default()
        };
        Self {
            writer,
            ways: (0..ways).map(chunks).collect(),
            fingerprints: vec![0; ways],
        }
    }

    /// Starts a file: the following chunks belong to it, from this position on.
    pub(crate) fn start(&mut self, position: u64, input: u16, category: Category) {
        for chunks in &mut self.ways {
            chunks.position = position;
            chunks.input = input;
            chunks.kind = category.kind();
            chunks.size_class = category.size_class() as u8;
        }
    }

    pub(crate) fn zeros(&mut self, way: usize, count: u64, bytes: u64) -> io::Result<()> {
        let runs = &mut self.ways[way].runs;
        match runs.last_mut() {
            _ if count == 0 => {}
            Some(TraceRun {
                bytes: known,
                content: TraceContent::Zeros(zeros),
            }) if *known == bytes => *zeros += count,
            _ => runs.push(TraceRun {
                bytes,
                content: TraceContent::Zeros(count),
            }),
        }
        self.flush_if_full(way)
    }

    pub(crate) fn data(&mut self, way: usize, bytes: u64, fingerprint: u128) -> io::Result<()> {
        let runs = &mut self.ways[way].runs;
        match runs.last_mut() {
            Some(TraceRun {
                bytes: known,
                content: TraceContent::Data(data),
            }) if *known == bytes => data.push(fingerprint),
            _ => runs.push(TraceRun {
                bytes,
                content: TraceContent::Data(vec![fingerprint]),
            }),
        }
        self.fingerprints[way] += 1;
        self.flush_if_full(way)
    }

    /// Ends the file begun with [`Tracing::start`].
    pub(crate) fn end(&mut self) -> io::Result<()> {
        (0..self.ways.len()).try_for_each(|way| self.flush(way))
    }

    fn flush_if_full(&mut self, way: usize) -> io::Result<()> {
        let is_full =
            self.fingerprints[way] >= FINGERPRINTS_MAX || self.ways[way].runs.len() >= RUNS_MAX;
        if is_full { self.flush(way) } else { Ok(()) }
    }

    fn flush(&mut self, way: usize) -> io::Result<()> {
        let chunks = &mut self.ways[way];
        if chunks.runs.is_empty() {
            return Ok(());
        }
        let following = TraceChunks {
            position: chunks.position + chunks.runs.iter().map(TraceRun::all_bytes).sum::<u64>(),
            runs: Vec::new(),
            ..*chunks
        };
        let chunks = std::mem::replace(chunks, following);
        self.fingerprints[way] = 0;
        self.writer.write(&TraceFrame::Chunks(chunks))
    }
}

/// The ways in which the data of these traces was cut, which must be the same for all.
///
/// # Errors
///
/// For files that are not traces, and for traces that were cut in different ways.
pub fn trace_ways(traces: &[PathBuf]) -> Result<Vec<Chunking>, AnalyzeError> {
    let mut known: Option<(Vec<Chunking>, &Path)> = None;
    for path in traces {
        let ways = TraceReader::open(path)?.ways;
        match &known {
            Some((first, of)) if *first != ways => {
                let shown = |ways: &[Chunking]| {
                    let texts: Vec<String> = ways.iter().map(Chunking::to_string).collect();
                    texts.join(" ")
                };
                return Err(AnalyzeError::usage(format!(
                    "{path:?} was cut as {}, but {of:?} as {}: traces are analysed together only \
                     if they were cut in the same ways",
                    shown(&ways),
                    shown(first)
                )));
            }
            Some(_) => {}
            None => known = Some((ways, path)),
        }
    }
    Ok(known.map(|(ways, _)| ways).unwrap_or_default())
}

/// Reads the frames of a trace, one after another.
pub(crate) struct TraceReader {
    path: PathBuf,
    file: BufReader<File>,
    position: u64,
    payload: Vec<u8>,
    has_ended: bool,
    ways: Vec<Chunking>,
}

impl TraceReader {
    pub(crate) fn open(path: &Path) -> Result<Self, AnalyzeError> {
        let file = File::open(path)
            .map_err(|error| AnalyzeError::new(format!("cannot open the trace {path:?}"), error))?;
        let mut reader = Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 20, file),
            position: 0,
            payload: Vec::new(),
            has_ended: false,
            ways: Vec::new(),
        };
        let Some(TraceFrame::Start { ways }) = reader.next()? else {
            return Err(reader.wrong("it does not begin with the frame that says how data was cut"));
        };
        let parsed: Result<Vec<Chunking>, _> = ways.iter().map(|way| way.parse()).collect();
        reader.ways = parsed.map_err(|error| reader.wrong(error))?;
        Ok(reader)
    }

    /// The next frame; `None` after the last one.
    pub(crate) fn next(&mut self) -> Result<Option<TraceFrame>, AnalyzeError> {
        if self.has_ended {
            return match self.file.read(&mut [0]) {
                Ok(0) => Ok(None),
                Ok(_) => Err(self.wrong("there is more after the frame that ends it")),
                Err(error) => Err(self.failed(error)),
            };
        }
        let mut header = [0; TRACE_HEADER_BYTES];
        self.fill(&mut header)?;
        let decoded = trace::decode_header(&header).map_err(|error| self.wrong(error))?;
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(decoded.payload_bytes, 0);
        self.fill(&mut payload)?;
        let frame = trace::decode(&header, &payload, self.position);
        let frame = frame.map_err(|error: FormatError| self.wrong(error))?;
        self.position += (TRACE_HEADER_BYTES + payload.len()) as u64;
        self.payload = payload;
        self.has_ended = matches!(frame, TraceFrame::End(_));
        Ok(Some(frame))
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), AnalyzeError> {
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.wrong("it is cut: the frame there is not whole"))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> AnalyzeError {
        AnalyzeError::Trace(format!(
            "trace {:?}, byte {}: {what}",
            self.path, self.position
        ))
    }

    fn failed(&self, error: io::Error) -> AnalyzeError {
        let Self { path, position, .. } = self;
        AnalyzeError::new(
            format!("cannot read trace {path:?} at byte {position}"),
            error,
        )
    }
}

/// Passes the chunks of `ways`, which are some of the traces' ways to cut, to `sinks`, as a scan of the
/// data would.
pub(crate) fn replay(
    traces: &[PathBuf],
    ways: &[Chunking],
    sinks: &[Sink<'_>],
    progress: &Progress,
) -> Result<Scanned, AnalyzeError> {
    let mut scanned = Scanned {
        totals: vec![Vec::new(); ways.len()],
        is_complete: true,
        ..Scanned::default()
    };
    let mut replaying = Replaying {
        ways,
        sinks,
        batches: vec![Vec::new(); ways.len()],
        first_position: 0,
    };
    for trace in traces {
        replaying.one(TraceReader::open(trace)?, &mut scanned, progress)?;
    }
    for (sink, batch) in sinks.iter().zip(&mut replaying.batches) {
        sink.add(batch).map_err(sink_error)?;
    }
    scanned.is_complete &= !progress.is_stopping();
    Ok(scanned)
}

/// Visits the fingerprints and sizes of the chunks that were cut in this way.
pub(crate) fn each_fingerprint(
    traces: &[PathBuf],
    way: Chunking,
    progress: &Progress,
    mut met: impl FnMut(u128, u64),
) -> Result<(), AnalyzeError> {
    for trace in traces {
        let mut reader = TraceReader::open(trace)?;
        let number = reader.ways.iter().position(|known| *known == way);
        while let Some(frame) = reader.next()? {
            if progress.is_stopping() {
                return Ok(());
            }
            let TraceFrame::Chunks(chunks) = frame else {
                continue;
            };
            if number != Some(usize::from(chunks.way)) {
                continue;
            }
            for run in &chunks.runs {
                if let TraceContent::Data(fingerprints) = &run.content {
                    fingerprints
                        .iter()
                        .for_each(|fingerprint| met(*fingerprint, run.bytes));
                }
            }
        }
    }
    Ok(())
}

/// Records that are gathered before they are passed on.
const BATCH: usize = 4096;

struct Replaying<'a> {
    ways: &'a [Chunking],
    sinks: &'a [Sink<'a>],
    batches: Vec<Vec<(u128, u128)>>,
    /// The start of the trace's positions.
    first_position: u64,
}

/// The tables of a trace that is being read.
struct Known {
    /// For each of the trace's ways to cut, its index among the requested ones.
    ways: Vec<Option<usize>>,
    first_input: usize,
    kinds: Vec<u16>,
    /// The end of the trace's files, in the positions of all traces.
    end: u64,
}

impl Replaying<'_> {
    fn one(
        &mut self,
        mut reader: TraceReader,
        scanned: &mut Scanned,
        progress: &Progress,
    ) -> Result<(), AnalyzeError> {
        let own_ways = reader.ways.iter();
        let way_of = |way: &Chunking| self.ways.iter().position(|known| known == way);
        let mut known = Known {
            ways: own_ways.map(way_of).collect(),
            first_input: scanned.inputs.len(),
            kinds: Vec::new(),
            end: self.first_position,
        };
        let mut done = 0;
        while let Some(frame) = reader.next()? {
            progress.add(reader.position - done);
            done = reader.position;
            if progress.is_stopping() {
                return Ok(());
            }
            match frame {
                TraceFrame::Chunks(chunks) => self
                    .chunks(&chunks, &known, scanned)
                    .map_err(|wrong| wrong.of(&reader))?,
                frame => self
                    .other(frame, &mut known, scanned)
                    .map_err(|wrong| wrong.of(&reader))?,
            }
        }
        self.first_position = known.end;
        Ok(())
    }

    /// Handles a frame without chunks.
    fn other(
        &mut self,
        frame: TraceFrame,
        known: &mut Known,
        scanned: &mut Scanned,
    ) -> Result<(), ReplayError> {
        match frame {
            TraceFrame::Start { .. } => return Err(ReplayError::Wrong("it begins a second time")),
            TraceFrame::Input { path } => {
                scanned.inputs.push(path_from(path));
                if scanned.inputs.len() > INPUTS_MAX {
                    return Err(ReplayError::Wrong("more than 65,536 inputs"));
                }
                let totals = scanned.totals.iter_mut();
                totals.for_each(|totals| totals.push(Totals::default()));
            }
            TraceFrame::Kind { name } => known.kinds.push(scanned.kinds.number(name)),
            TraceFrame::File {
                position, bytes, ..
            } => {
                let end = self.first_position + position + bytes + 1;
                if end > POSITION_END {
                    return Err(ReplayError::Wrong(
                        "beyond the 256 TiB that can be analysed together",
                    ));
                }
                known.end = known.end.max(end);
            }
            TraceFrame::Sample {
                way,
                zero_bits,
                units,
            } => {
                let way = known.ways.get(usize::from(way));
                let way = way.ok_or(ReplayError::Wrong(
                    "a sample of chunks that were cut in no way",
                ))?;
                if let Some(sampler) = way.and_then(|way| self.sinks[way].sampler()) {
                    sampler.take_units(zero_bits.into(), &units, self.first_position);
                }
            }
            TraceFrame::Problem { path, what } => scanned.problems.push(Problem {
                path: path_from(path),
                what,
            }),
            TraceFrame::End(found) => {
                scanned.survey.add(&Survey {
                    files: found.files,
                    empty_files: found.empty_files,
                    bytes: found.bytes,
                    skipped: found.skipped,
                });
                scanned.unopened_disks += found.unopened_disks;
                scanned.is_complete &= found.is_complete;
            }
            TraceFrame::Chunks(_) => {}
        }
        Ok(())
    }

    fn chunks(
        &mut self,
        chunks: &TraceChunks,
        known: &Known,
        scanned: &mut Scanned,
    ) -> Result<(), ReplayError> {
        let way = known.ways.get(usize::from(chunks.way));
        let way = way.ok_or(ReplayError::Wrong("chunks that were cut in no way"))?;
        let input = known.first_input + usize::from(chunks.input);
        let kind = match chunks.kind {
            KINDS_MAX => Some(&KINDS_MAX),
            kind => known.kinds.get(usize::from(kind)),
        };
        let (Some(kind), true) = (kind, input < scanned.inputs.len()) else {
            return Err(ReplayError::Wrong(
                "chunks of an unknown input or kind of file",
            ));
        };
        let category = Category::new(*kind, chunks.size_class.into());
        let all: u64 = chunks.runs.iter().map(TraceRun::all_bytes).sum();
        if self.first_position + chunks.position + all > known.end {
            return Err(ReplayError::Wrong("chunks beyond the files that there are"));
        }
        match *way {
            Some(way) => {
                let totals = &mut scanned.totals[way][input];
                self.add(way, input as u16, category, chunks, totals)
            }
            None => Ok(()),
        }
    }

    fn add(
        &mut self,
        way: usize,
        input: u16,
        category: Category,
        chunks: &TraceChunks,
        totals: &mut Totals,
    ) -> Result<(), ReplayError> {
        let mut position = self.first_position + chunks.position;
        for run in &chunks.runs {
            match &run.content {
                TraceContent::Zeros(count) => totals.add_chunks(*count, count * run.bytes, true),
                TraceContent::Data(fingerprints) => {
                    let count = fingerprints.len() as u64;
                    totals.add_chunks(count, count * run.bytes, false);
                    for (n, fingerprint) in (0..).zip(fingerprints) {
                        let chunk = Chunk {
                            fingerprint: *fingerprint,
                            position: position + n * run.bytes,
                            bytes: run.bytes,
                            input,
                            category: category.0,
                        };
                        add_to(&self.sinks[way], &mut self.batches[way], BATCH, &chunk)
                            .map_err(ReplayError::Sink)?;
                    }
                }
            }
            position += run.all_bytes();
        }
        Ok(())
    }
}

/// Why reading a trace ended early.
enum ReplayError {
    /// The trace is invalid, for this reason.
    Wrong(&'static str),
    /// A result cannot be stored.
    Sink(io::Error),
}
impl ReplayError {
    fn of(self, reader: &TraceReader) -> AnalyzeError {
        match self {
            Self::Wrong(what) => reader.wrong(what),
            Self::Sink(error) => sink_error(error),
        }
    }
}

fn path_from(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}
