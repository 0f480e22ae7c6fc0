//! An analysis from its inputs to its figures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::StudyError;
use crate::chunking::Chunking;
use crate::record::INPUTS_MAX;
use crate::redundancy::{Category, Redundancy};
use crate::runs::{RunLengths, run_lengths};
pub use crate::scan::Progress;
use crate::scan::{Sink, Totals, scan, window_bytes};
use crate::sorter::Sorter;
use crate::walk::Problem;

/// How an analysis is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// The ways to cut; each is counted for itself.
    pub chunkings: Vec<Chunking>,
    /// Memory for records, in bytes. What is needed besides does not depend on the inputs.
    pub memory_bytes: usize,
    /// Where records go that memory has no room for.
    pub temporary: PathBuf,
}

/// What an analysis has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Files that were read, those without content included.
    pub files: u64,
    /// Links and special files, which were not.
    pub skipped: u64,
    /// What could not be read, or changed meanwhile.
    pub problems: Vec<Problem>,
    /// All inputs were read to their ends.
    pub is_complete: bool,
    /// For each way to cut, in their order.
    pub chunkings: Vec<ChunkingReport>,
}

/// What was found with one way to cut.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkingReport {
    /// The way.
    pub chunking: Chunking,
    /// Of all inputs.
    pub total: Totals,
    /// By input.
    pub inputs: Vec<Totals>,
    /// How much is how often there.
    pub redundancy: Redundancy,
    /// By kind of file: what the name ends in.
    pub kinds: BTreeMap<String, Category>,
    /// By size of file: from two to the power of this on.
    pub sizes: BTreeMap<u32, Category>,
    /// Runs of unique chunks, and of redundant ones.
    pub runs: [RunLengths; 2],
}

/// Reads what is under `paths`, each an input, and counts what is redundant.
///
/// # Errors
///
/// Where there are more inputs than 65,536, or sizes of blocks without a common multiple up to 16 MiB,
/// and where the temporary file fails. What is wrong with a file is in the analysis.
pub fn analyze(
    paths: &[PathBuf],
    options: &Options,
    progress: &Progress,
) -> Result<Analysis, StudyError> {
    if paths.len() > INPUTS_MAX {
        return Err(StudyError::usage("more than 65,536 inputs"));
    }
    let window = window_bytes(&options.chunkings).ok_or_else(|| {
        StudyError::usage("blocks whose sizes have no common multiple up to 16 MiB")
    })?;
    let share = options.memory_bytes / options.chunkings.len().max(1);
    // Places take half as much as chunks.
    let (for_chunks, for_places) = (share / 3 * 2, share / 3);
    let sorter = |_| Sink::Sort(Sorter::new(for_chunks, &options.temporary));
    let sinks: Vec<Sink<'_>> = options.chunkings.iter().map(sorter).collect();
    let scanned = scan(paths, &options.chunkings, &sinks, window, progress)?;
    let spill_error =
        |error| StudyError::new("the temporary file of the analysis (see TMPDIR)", error);
    let mut chunkings = Vec::with_capacity(sinks.len());
    let found = options.chunkings.iter().zip(sinks).zip(scanned.totals);
    for ((chunking, sink), inputs) in found {
        let Sink::Sort(sorter) = sink else { continue };
        let places = Sorter::new(for_places, &options.temporary);
        let chunks = sorter.finish().map_err(spill_error)?;
        let redundancy = Redundancy::count(chunks, paths.len(), &places).map_err(spill_error)?;
        let places = places.finish().map_err(spill_error)?;
        let runs = run_lengths(places).map_err(spill_error)?;
        let (mut kinds, mut sizes) = (BTreeMap::new(), BTreeMap::new());
        for (category, share) in &redundancy.categories {
            let (kind, class) = scanned.kinds.describe(*category);
            kinds
                .entry(kind.to_owned())
                .or_insert_with(Category::default)
                .add(share);
            sizes
                .entry(class)
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
        });
    }
    Ok(Analysis {
        files: scanned.files,
        skipped: scanned.skipped,
        problems: scanned.problems,
        is_complete: !progress.is_stopping(),
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
