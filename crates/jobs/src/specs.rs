//! The constants of each kind of job.

use crate::handle::JobSpec;
use crate::job::{JobCounts, JobKind, JobState, JobStatus};
use onefold_store::PoolStat;

pub(crate) static FINDER: JobSpec = JobSpec {
    kind: JobKind::Finder,
    name: "the finder",
    needs_index: true,
    is_always_listed: true,
    // Each volume counts its own backlog.
    backlog_blocks: |_| 0,
};

pub(crate) static COLLECTOR: JobSpec = JobSpec {
    kind: JobKind::Collector,
    name: "the collector",
    needs_index: false,
    is_always_listed: true,
    backlog_blocks: |stat| stat.pending_release_blocks,
};

pub(crate) static COUNTING: JobSpec = JobSpec {
    kind: JobKind::Counting,
    name: "the counting of claims",
    needs_index: true,
    is_always_listed: false,
    backlog_blocks: |stat| stat.claimed_blocks,
};

/// The deletions in progress are one job. The store keeps the failure of each deletion.
pub(crate) static DELETION: JobSpec = JobSpec {
    kind: JobKind::Deletion,
    name: "the deletion",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |stat| {
        let possible = stat
            .deletions
            .iter()
            .filter(|deletion| deletion.failure.is_none());
        let possible = possible.filter(|deletion| deletion.needed_by.is_empty());
        possible.map(|deletion| deletion.own_blocks).sum()
    },
};

pub(crate) static SCRUB: JobSpec = JobSpec {
    kind: JobKind::Scrub,
    name: "the scrub",
    needs_index: true,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

pub(crate) static REBUILD: JobSpec = JobSpec {
    kind: JobKind::Rebuild,
    name: "the rebuild of the index",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

pub(crate) static ACCOUNTING: JobSpec = JobSpec {
    kind: JobKind::Accounting,
    name: "the accounting",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

pub(crate) static COPYING: JobSpec = JobSpec {
    kind: JobKind::Copying,
    name: "the copying of snapshots",
    needs_index: false,
    is_always_listed: false,
    backlog_blocks: |_| 0,
};

/// A status line for each failed deletion.
pub(crate) fn failed_deletions(stat: &PoolStat) -> impl Iterator<Item = JobStatus> {
    stat.deletions.iter().filter_map(|deletion| {
        Some(JobStatus {
            kind: JobKind::Deletion,
            volume: Some(deletion.name.clone()),
            state: JobState::Failed,
            message: Some(deletion.failure.clone()?),
            counts: JobCounts::default(),
            backlog_blocks: deletion.own_blocks,
            bytes_per_second: 0,
        })
    })
}
