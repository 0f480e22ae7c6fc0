//! What can be said of a job, and which jobs can be paused.

use onefold_store::{BatchReport, CollectReport, ScrubReport};

/// A kind of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Looks for duplicates in one volume and shares them.
    Finder,
    /// Releases references that volumes gave up, and frees blocks that have none left.
    Collector,
    /// Gives up what deleted volumes and snapshots hold, and moves what others need of it.
    Deletion,
    /// Reads the index anew from the pool; the others wait for it.
    Rebuild,
    /// Goes through all maps, to say what each volume and each snapshot holds alone.
    Accounting,
    /// Reads what is stored, and finds blocks that have decayed.
    Scrub,
}

/// What a job is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// There is nothing to do, or it is not time yet.
    Idle,
    /// A round, or another piece of work, is under way.
    Running,
    /// Work is under way and rests, so that guests' requests stay within the latency budget.
    WaitingForBudget,
    /// It was paused and waits to be resumed.
    Paused,
    /// It failed with this message and is going to be tried again.
    Failed(String),
}

/// What a job has done since the daemon was started. Blocks, unless it says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Looked at.
    pub looked_at: u64,
    /// Found to be the first of their content.
    pub unique: u64,
    /// Found to be there already, and shared.
    pub duplicates: u64,
    /// Rewritten by a guest while they were looked at.
    pub moved: u64,
    /// With a fingerprint from the volume's hash cache, so that they were not read.
    pub cached: u64,
    /// With the fingerprint, but not the bytes, of another block.
    pub rejected: u64,
    /// That the index had no room for.
    pub declined: u64,
    /// Bytes that were looked at for duplicates.
    pub bytes: u64,
    /// Times that the whole of a volume, or of all maps, was gone through.
    pub rounds: u64,
    /// References released.
    pub released: u64,
    /// Freed, because nothing names them any more.
    pub freed: u64,
    /// Given up or moved, because what held them was deleted.
    pub deleted: u64,
    /// Taken out of use, because the index does not know them as it should.
    pub quarantined: u64,
    /// Found to be bad.
    pub bad: u64,
}

impl JobCounts {
    pub(crate) fn add_batch(&mut self, report: &BatchReport) {
        self.looked_at += report.looked_at;
        self.unique += report.unique;
        self.duplicates += report.duplicates;
        self.moved += report.moved;
        self.cached += report.cached;
        self.rejected += report.rejected;
        self.declined += report.declined;
        self.bytes += report.bytes;
    }

    pub(crate) fn add_scrubbed(&mut self, report: &ScrubReport) {
        self.looked_at += report.passed_blocks;
        self.bytes += report.bytes;
        self.bad += report.found_bad;
        self.rounds += u64::from(report.is_over);
    }

    pub(crate) fn add_collected(&mut self, report: &CollectReport) {
        self.released += report.released;
        self.freed += report.freed;
        self.quarantined += report.quarantined;
    }
}

/// A job as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct JobStatus {
    /// What it does.
    pub kind: JobKind,
    /// For which volume, in the case of a finder; of a deletion that failed, what was deleted.
    pub volume: Option<String>,
    /// What it is doing.
    pub state: JobState,
    /// What it has done.
    pub counts: JobCounts,
    /// Blocks that it has yet to look at, to release, or to read.
    pub backlog_blocks: u64,
    /// Bytes that it got through each second of late, rests included.
    pub bytes_per_second: u64,
}

/// Jobs to be paused or resumed. A rebuild cannot be: nothing is shared before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSelection {
    /// The finder, the collector, deletions, the accounting and the scrub.
    All,
    /// The finder, for every volume that there is and will be.
    Finder,
    /// The finder for one volume.
    FinderOf(String),
    /// The collector.
    Collector,
    /// What deletions have left to do.
    Deletion,
    /// The accounting. It begins anew when it is resumed.
    Accounting,
    /// The scrub.
    Scrub,
}

/// Why a job cannot be paused or resumed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// Volumes without dedup have no finder, nor have those that do not exist.
    #[error("there is no finder for volume '{0}': no such volume, or its dedup is off")]
    NoFinder(String),
    /// One volume's finder is part of the finder as a whole.
    #[error(
        "the finder is paused for all volumes; resume it without naming a volume, then pause it \
         for those that are to stay as they are"
    )]
    FinderPaused,
}
