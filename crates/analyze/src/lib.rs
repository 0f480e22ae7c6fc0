//! The savings of deduplication: reads data sets, cuts them into chunks, and counts.
//!
//! May use: `onefold-image`, `onefold-format` for traces, `onefold-sorter`, and the fingerprints of `onefold-index`.
//! May not use the store: an analysis needs no pool.
//!
//! An analysis reads every input once and cuts it in several ways at the same time. For each chunk
//! it keeps a record of 32 bytes: its fingerprint, its place, its length, and its input and file.
//! The records are sorted by fingerprint, in the given memory, and each group of equal ones is
//! counted. So an analysis is exact whatever the size of its inputs, and memory decides only
//! whether records go through a temporary file.
//!
//! | file | purpose |
//! | --- | --- |
//! | `walk.rs` | finds the files of a path |
//! | `chunking.rs` | the ways to cut |
//! | `scan.rs` | has all files cut, on all processors |
//! | `worker.rs` | reads, cuts, fingerprints |
//! | `compression.rs` | compresses a sample of distinct chunks |
//! | `redundancy.rs` | counts equal chunks |
//! | `runs.rs` | the lengths of runs of unique and of redundant data |
//! | `analysis.rs` | an analysis, from its inputs to its report |
//! | `advice.rs` | the cost of the data in a pool |
//! | `trace.rs` | the chunks of some data, in a file: writes it, and analyses it |
//! | `harnik.rs` | an estimate with a bound, in memory that does not depend on the data |

mod advice;
mod analysis;
mod chunking;
mod compression;
mod harnik;
mod record;
mod redundancy;
mod runs;
mod scan;
mod trace;
mod walk;
mod worker;

pub use advice::Advice;
pub use analysis::{Analysis, ChunkingReport, Options, Source, analyze};
pub use chunking::{Chunking, ChunkingError};
pub use compression::{Compressed, Compressibility};
pub use harnik::{Estimate, EstimateOptions, estimate};
pub use onefold_index::is_zero;
pub use redundancy::{Category, Copies, InputShare, Redundancy};
pub use runs::{RunClass, RunCount, RunLengths};
pub use scan::{Progress, Totals};
pub use trace::{TraceOptions, trace_ways};
pub use walk::{Problem, Survey, survey};

/// Why an analysis failed as a whole.
#[derive(Debug, thiserror::Error)]
pub enum AnalyzeError {
    /// Invalid options.
    #[error("{0}")]
    Usage(String),
    /// Something other than an input failed.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// A trace is damaged, or does not match the others.
    #[error("{0}")]
    Trace(String),
}

impl AnalyzeError {
    fn new(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io(what.into(), source)
    }

    fn usage(what: impl ToString) -> Self {
        Self::Usage(what.to_string())
    }
}
