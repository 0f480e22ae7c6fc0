//! The state of a job, and which jobs can be paused.

use onefold_store::{BatchReport, CollectReport, CountReport, ScrubReport};
use std::ops::AddAssign;

/// A kind of background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "api",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize)
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
pub enum JobKind {
    /// Finds duplicates in one volume and shares them.
    Finder,
    /// Releases references that volumes no longer hold, and frees blocks without references.
    Collector,
    /// Has the index count the references that writes in line have claimed.
    Counting,
    /// Reads snapshots for backups.
    Copying,
    /// Releases the blocks of deleted volumes and snapshots, and moves those that others need.
    Deletion,
    /// Rebuilds the index from the pool; other jobs wait for it. It cannot be paused.
    #[cfg_attr(feature = "api", value(hide = true))]
    Rebuild,
    /// Walks all maps to count what each volume and snapshot holds exclusively.
    Accounting,
    /// Reads stored blocks and finds those that have decayed.
    Scrub,
}

impl JobKind {
    /// Every kind.
    pub(crate) const ALL: [Self; 8] = [
        Self::Finder,
        Self::Collector,
        Self::Counting,
        Self::Copying,
        Self::Deletion,
        Self::Rebuild,
        Self::Accounting,
        Self::Scrub,
    ];

    /// The kind's word in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Finder => "finder",
            Self::Collector => "collector",
            Self::Counting => "counting",
            Self::Copying => "copying",
            Self::Deletion => "deletion",
            Self::Rebuild => "rebuild",
            Self::Accounting => "accounting",
            Self::Scrub => "scrub",
        }
    }
}

/// The present state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", serde(rename_all = "lowercase"))]
#[cfg_attr(feature = "openapi", schema(as = JobStateName))]
pub enum JobState {
    /// Nothing to do, or not due yet.
    Idle,
    /// A pass, or another piece of work, is in progress.
    Running,
    /// Work is in progress and rests, so that guests' requests stay within the latency budget.
    Waiting,
    /// Paused until it is resumed.
    Paused,
    /// Failed, and will be retried.
    Failed,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 5] = [
        Self::Idle,
        Self::Running,
        Self::Waiting,
        Self::Paused,
        Self::Failed,
    ];

    /// The state's word in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Failed => "failed",
        }
    }
}

/// Work done by a job since the daemon started, or by one `pool dedup`. Counts are blocks unless stated
/// otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCounts {
    /// Scanned for duplicates.
    pub scanned: u64,
    /// Scanned, and the first with their content.
    pub unique: u64,
    /// Scanned, found to be duplicates, and shared.
    pub duplicates: u64,
    /// Rewritten by a guest during the scan.
    pub moved: u64,
    /// Scanned with a fingerprint from the volume's hash cache, without reading the block.
    pub cached: u64,
    /// Rejected by verification: the fingerprint of another block, but not its bytes.
    pub rejected: u64,
    /// Left unshared because the index had no room.
    pub declined: u64,
    /// Bytes scanned for duplicates, or read for backups.
    pub bytes: u64,
    /// Completed passes over a volume, or over all maps.
    pub passes: u64,
    /// Claimed references that the index counts now.
    pub counted: u64,
    /// References released.
    pub released: u64,
    /// Freed, because no reference is left.
    pub freed: u64,
    /// Released or moved, because their volume or snapshot was deleted.
    pub deleted: u64,
    /// Quarantined, because the index does not have them as it should.
    pub quarantined: u64,
    /// Found to be bad.
    pub bad: u64,
}

impl AddAssign for JobCounts {
    fn add_assign(&mut self, other: Self) {
        self.scanned += other.scanned;
        self.unique += other.unique;
        self.duplicates += other.duplicates;
        self.moved += other.moved;
        self.cached += other.cached;
        self.rejected += other.rejected;
        self.declined += other.declined;
        self.bytes += other.bytes;
        self.passes += other.passes;
        self.counted += other.counted;
        self.released += other.released;
        self.freed += other.freed;
        self.deleted += other.deleted;
        self.quarantined += other.quarantined;
        self.bad += other.bad;
    }
}

impl JobCounts {
    pub(crate) fn add_batch(&mut self, report: &BatchReport) {
        self.scanned += report.scanned;
        self.unique += report.unique;
        self.duplicates += report.duplicates;
        self.moved += report.moved;
        self.cached += report.cached;
        self.rejected += report.rejected;
        self.declined += report.declined;
        self.bytes += report.bytes;
    }

    pub(crate) fn add_scrubbed(&mut self, report: &ScrubReport) {
        self.scanned += report.passed_blocks;
        self.bytes += report.bytes;
        self.bad += report.found_bad;
        self.passes += u64::from(report.is_over);
    }

    pub(crate) fn add_counted(&mut self, report: &CountReport) {
        self.counted += report.counted;
        self.quarantined += report.quarantined;
    }

    pub(crate) fn add_collected(&mut self, report: &CollectReport) {
        self.released += report.released;
        self.freed += report.freed;
        self.quarantined += report.quarantined;
    }
}

/// The state and the counts of a job.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "api", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = JobReply))]
pub struct JobStatus {
    /// The job's kind.
    #[cfg_attr(feature = "api", serde(rename = "job"))]
    pub kind: JobKind,
    /// The finder's volume; for a failed deletion, the deleted volume or snapshot.
    pub volume: Option<String>,
    /// The job's present state.
    pub state: JobState,
    /// Why it failed.
    pub message: Option<String>,
    /// The job's work since the daemon started.
    #[cfg_attr(feature = "api", serde(flatten))]
    pub counts: JobCounts,
    /// Blocks left to scan, release or read.
    pub backlog_blocks: u64,
    /// The job's recent rate, rests included.
    pub bytes_per_second: u64,
}

/// The jobs to pause or resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSelection {
    /// All jobs except a rebuild, which cannot be paused because nothing is shared before its end.
    All,
    /// All jobs of a kind, for every present and future store and volume. Never a rebuild.
    Kind(JobKind),
    /// The finder for one volume, in whichever store has it.
    FinderOf(String),
}

impl JobSelection {
    /// Whether the selection includes all jobs of this kind.
    pub(crate) fn covers(&self, kind: JobKind) -> bool {
        let is_selected = match self {
            Self::All => true,
            Self::Kind(selected) => *selected == kind,
            Self::FinderOf(_) => false,
        };
        is_selected && kind != JobKind::Rebuild
    }
}

/// Why a job cannot be paused or resumed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SteerError {
    /// The volume does not exist, or its dedup is off.
    #[error("there is no finder for volume '{0}': no such volume, or its dedup is off")]
    NoFinder(String),
    /// The finder is paused as a whole, so one volume's finder cannot be resumed.
    #[error(
        "the finder is paused for all volumes; resume it without naming a volume, then pause it \
         for those that are to stay as they are"
    )]
    FinderPaused,
}
