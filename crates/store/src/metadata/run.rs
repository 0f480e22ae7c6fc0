//! Consecutive blocks of the pool.

use onefold_format::Pba;
use smallvec::SmallVec;

/// Consecutive blocks of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PbaRun {
    pub(crate) start: Pba,
    pub(crate) count: u64,
}

pub(crate) type PbaRuns = SmallVec<[PbaRun; 4]>;
