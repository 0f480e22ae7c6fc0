//! An analysis from its inputs to its figures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use onefold_image::Backing;
use onefold_sorter::Sorter;

use crate::AnalyzeError;
use crate::chunking::Chunking;
use crate::compression::{Compressibility, Sampler};
use crate::record::INPUTS_MAX;
use crate::redundancy::{Category, Redundancy};
use crate::runs::{RunLengths, run_lengths};
use crate::scan::{
    Category as Numbered, Cutting, Progress, Scanned, Sink, Totals, scan, window_bytes,
};
use crate::trace::{TraceOptions, TraceWriter, replay, trace_ways};
use crate::walk::{Problem, Survey, survey};

/// The inputs of an analysis.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Files, folders and devices; each path is an input.
    Paths {
        /// The paths.
        paths: &'a [PathBuf],
        /// If given, qcow2 images are read as the disks inside them.
        disks: Option<Backing>,
    },
    /// Traces; their inputs are numbered one after another.
    Traces(&'a [PathBuf]),
}

impl Source<'_> {
    /// The bytes that an analysis reads, for its progress. Unreadable files count as zero.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Paths { paths, disks } => survey(paths, disks).bytes,
            Self::Traces(traces) => {
                let bytes = |trace: &PathBuf| trace.metadata().map_or(0, |found| found.len());
                traces.iter().map(bytes).sum()
            }
        }
    }

    /// Passes the records of these chunks to the sinks.
    pub(crate) fn scan(
        &self,
        cutting: &Cutting<'_>,
        progress: &Progress,
    ) -> Result<Scanned, AnalyzeError> {
        match *self {
            Self::Paths { paths, .. } if paths.len() > INPUTS_MAX => {
                Err(AnalyzeError::usage("more than 65,536 inputs"))
            }
            Self::Paths { paths, disks } => scan(paths, disks, cutting, progress),
            Self::Traces(traces) => {
                let known = trace_ways(traces)?;
                if let Some(way) = cutting.chunkings.iter().find(|way| !known.contains(way)) {
                    return Err(AnalyzeError::usage(format!(
                        "the traces do not say how the data is cut as {way}"
                    )));
                }
                replay(traces, cutting.chunkings, cutting.sinks, progress)
            }
        }
    }
}

/// The options of an analysis.
#[derive(Debug, Clone)]
pub struct Options {
    /// The ways to cut; each is counted separately.
    pub chunkings: Vec<Chunking>,
    /// Memory for records, in bytes. Other memory does not depend on the inputs.
    pub memory_bytes: usize,
    /// The directory for records that do not fit in memory.
    pub temporary: PathBuf,
    /// If given, chunks and fingerprints are also written to a trace; only when reading paths.
    pub trace: Option<TraceOptions>,
}

/// The result of an analysis.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// The inputs.
    pub inputs: Vec<PathBuf>,
    /// Totals of the inputs.
    pub survey: Survey,
    /// Files that begin like qcow2 images and were read as plain files.
    pub unopened_disks: u64,
    /// Files that could not be read, or that changed while they were read.
    pub problems: Vec<Problem>,
    /// Whether all inputs were read to their ends.
    pub is_complete: bool,
    /// The reports, in the order of the ways to cut.
    pub chunkings: Vec<ChunkingReport>,
}

/// The result of one chunking method.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkingReport {
    /// The chunking method.
    pub chunking: Chunking,
    /// The totals of all inputs.
    pub total: Totals,
    /// The totals by input.
    pub inputs: Vec<Totals>,
    /// How often contents occur.
    pub redundancy: Redundancy,
    /// By kind of file, that is, by file name extension.
    pub kinds: BTreeMap<String, Category>,
    /// By size of file: the exponent of the power of two at or below it.
    pub sizes: BTreeMap<u32, Category>,
    /// Runs of unique chunks, and of redundant ones.
    pub runs: [RunLengths; 2],
    /// How well distinct chunks compress; `None` for whole files.
    pub compression: Option<Compressibility>,
}

/// Counts the redundancy of the inputs.
///
/// # Errors
///
/// If there are more than 65,536 inputs, or block sizes without a common multiple up to 16 MiB; if
/// a trace is not whole, or the temporary file or the trace cannot be written. Problems of single
/// files are in the analysis.
pub fn analyze(
    source: Source<'_>,
    options: &Options,
    progress: &Progress,
) -> Result<Analysis, AnalyzeError> {
    let window = window_bytes(&options.chunkings).ok_or_else(|| {
        AnalyzeError::usage("blocks whose sizes have no common multiple up to 16 MiB")
    })?;
    let share = options.memory_bytes / options.chunkings.len().max(1);
    // Places take half as much memory as chunks.
    let (for_chunks, for_places) = (share / 3 * 2, share / 3);
    let sink = |chunking: &Chunking| {
        let sampler = (*chunking != Chunking::WholeFile).then(Sampler::default);
        Sink::Sort(Sorter::new(for_chunks, &options.temporary), sampler)
    };
    let sinks: Vec<Sink<'_>> = options.chunkings.iter().map(sink).collect();
    let trace = match (&options.trace, source) {
        (None, _) => None,
        (Some(trace), Source::Paths { paths, .. }) => {
            Some(TraceWriter::create(trace, &options.chunkings, paths)?)
        }
        (Some(_), Source::Traces(_)) => {
            return Err(AnalyzeError::usage(
                "a trace is made of data, not of traces",
            ));
        }
    };
    let cutting = Cutting {
        chunkings: &options.chunkings,
        sinks: &sinks,
        window,
        trace: trace.as_ref(),
    };
    let scanned = source.scan(&cutting, progress)?;
    if let Some(trace) = trace {
        trace.finish(&scanned, &sinks)?;
    }
    let spill_error =
        |error| AnalyzeError::new("the temporary file of the analysis (see TMPDIR)", error);
    let mut chunkings = Vec::with_capacity(sinks.len());
    let found = options.chunkings.iter().zip(sinks).zip(scanned.totals);
    let count = scanned.inputs.len();
    for ((chunking, sink), inputs) in found {
        let Sink::Sort(sorter, sampler) = sink else {
            continue;
        };
        let places = Sorter::new(for_places, &options.temporary);
        let chunks = sorter.finish().map_err(spill_error)?;
        let redundancy = Redundancy::count(chunks, count, &places).map_err(spill_error)?;
        let places = places.finish().map_err(spill_error)?;
        let runs = run_lengths(places).map_err(spill_error)?;
        let (mut kinds, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        for (category, share) in &redundancy.categories {
            let category = Numbered(*category);
            kinds
                .entry(scanned.kinds.name(category).to_owned())
                .or_insert_with(Category::default)
                .add(share);
            sizes
                .entry(category.size_class())
                .or_insert_with(Category::default)
                .add(share);
        }
        let mut total = Totals::default();
        inputs.iter().for_each(|input| total.add(input));
        chunkings.push(ChunkingReport {
            chunking: *chunking,
            total,
            inputs,
            redundancy,
            kinds,
            sizes,
            runs,
            compression: sampler.map(Sampler::finish),
        });
    }
    Ok(Analysis {
        inputs: scanned.inputs,
        survey: scanned.survey,
        unopened_disks: scanned.unopened_disks,
        problems: scanned.problems,
        is_complete: scanned.is_complete,
        chunkings,
    })
}

impl Category {
    fn add(&mut self, other: &Self) {
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.stored_bytes += other.stored_bytes;
    }
}
