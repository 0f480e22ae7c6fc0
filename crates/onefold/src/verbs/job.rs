//! What can be asked of background jobs, which only a daemon has.

use super::{Report, Service, Verb};
use crate::error::{Error, Result};
use crate::output::Document;
use crate::size;
use clap::ValueEnum;
use onefold_jobs::{JobCounts, JobKind, JobSelection, JobState, JobStatus, Maintenance};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};

/// A job that can be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum JobName {
    /// Looks for duplicates and shares them.
    Finder,
    /// Gives back what nothing names any more.
    Collector,
    /// Gives up what deleted volumes and snapshots hold.
    Deletion,
    /// Finds out what each volume holds alone.
    Accounting,
    /// Finds blocks that have decayed.
    Scrub,
}

/// Which jobs to pause or resume.
#[derive(Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Jobs {
    /// The job [default: all].
    #[arg(value_enum)]
    job: Option<JobName>,

    /// Only the finder of this volume.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
}

impl Jobs {
    /// Refuses what makes no sense whatever the pool.
    pub(crate) fn check(&self) -> Result<()> {
        self.selection().map(|_| ())
    }

    fn selection(&self) -> Result<JobSelection> {
        match (self.job, &self.volume) {
            (None, None) => Ok(JobSelection::All),
            (Some(JobName::Finder), None) => Ok(JobSelection::Finder),
            (Some(JobName::Collector), None) => Ok(JobSelection::Collector),
            (Some(JobName::Deletion), None) => Ok(JobSelection::Deletion),
            (Some(JobName::Scrub), None) => Ok(JobSelection::Scrub),
            (None | Some(JobName::Finder), Some(volume)) => {
                Ok(JobSelection::FinderOf(volume.clone()))
            }
            (Some(JobName::Accounting), None) => Ok(JobSelection::Accounting),
            (
                Some(JobName::Collector | JobName::Deletion | JobName::Accounting | JobName::Scrub),
                Some(_),
            ) => Err(Error::usage(
                "only the finder works for each volume by itself: omit --volume",
            )),
        }
    }
}

/// What a job, or `pool dedup`, has done; field names are a promise. Blocks, but for `bytes` and
/// `rounds`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(super) looked_at: u64,
    pub(super) unique: u64,
    pub(super) duplicates: u64,
    moved: u64,
    cached: u64,
    pub(super) rejected: u64,
    pub(super) declined: u64,
    pub(super) bytes: u64,
    rounds: u64,
    pub(super) released: u64,
    pub(super) freed: u64,
    deleted: u64,
    pub(super) quarantined: u64,
    bad: u64,
}

impl From<JobCounts> for Counts {
    fn from(counts: JobCounts) -> Self {
        Self {
            looked_at: counts.looked_at,
            unique: counts.unique,
            duplicates: counts.duplicates,
            moved: counts.moved,
            cached: counts.cached,
            rejected: counts.rejected,
            declined: counts.declined,
            bytes: counts.bytes,
            rounds: counts.rounds,
            released: counts.released,
            freed: counts.freed,
            deleted: counts.deleted,
            quarantined: counts.quarantined,
            bad: counts.bad,
        }
    }
}

/// One job.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    job: String,
    volume: Option<String>,
    state: String,
    /// Why it failed, if it did.
    message: Option<String>,
    #[serde(flatten)]
    counts: Counts,
    backlog_blocks: u64,
    bytes_per_second: u64,
}

impl From<JobStatus> for Job {
    fn from(status: JobStatus) -> Self {
        let job = match status.kind {
            JobKind::Finder => "finder",
            JobKind::Collector => "collector",
            JobKind::Deletion => "deletion",
            JobKind::Rebuild => "rebuild",
            JobKind::Accounting => "accounting",
            JobKind::Scrub => "scrub",
        };
        let (state, message) = match status.state {
            JobState::Idle => ("idle", None),
            JobState::Running => ("running", None),
            JobState::WaitingForBudget => ("waiting", None),
            JobState::Paused => ("paused", None),
            JobState::Failed(message) => ("failed", Some(message)),
        };
        Self {
            job: job.to_owned(),
            volume: status.volume,
            state: state.to_owned(),
            message,
            counts: status.counts.into(),
            backlog_blocks: status.backlog_blocks,
            bytes_per_second: status.bytes_per_second,
        }
    }
}

/// The document of all verbs about jobs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobsReply {
    jobs: Vec<Job>,
}

impl JobsReply {
    fn of(maintenance: &Maintenance) -> Result<Self> {
        let jobs = maintenance.jobs()?.into_iter();
        Ok(Self {
            jobs: jobs.map(Job::from).collect(),
        })
    }
}

impl Document for JobsReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let volumes = self.jobs.iter().filter_map(|job| job.volume.as_ref());
        let width = volumes.map(String::len).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "{:10}  {:width$}  {:7}  {:>12}  {:>12}  {:>12}  {:>12}",
            "JOB", "VOLUME", "STATE", "BACKLOG", "DONE", "DUPLICATES", "RATE"
        )?;
        for job in &self.jobs {
            let done = job.counts.looked_at + job.counts.released + job.counts.deleted;
            writeln!(
                out,
                "{:10}  {:width$}  {:7}  {:>12}  {:>12}  {:>12}  {:>10}/s",
                job.job,
                job.volume.as_deref().unwrap_or("-"),
                job.state,
                job.backlog_blocks,
                done,
                job.counts.duplicates,
                size::display(job.bytes_per_second)
            )?;
            if let Some(message) = &job.message {
                writeln!(out, "  {message}")?;
            }
        }
        Ok(())
    }
}

/// Describes all jobs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobList {}

impl Verb for JobList {
    const PATH: &'static str = "/v1/job/list";
    type Reply = JobsReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobsReply> {
        JobsReply::of(service.maintenance()?)
    }
}

/// Lets jobs rest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobPause {
    pub(crate) jobs: Jobs,
}

impl Verb for JobPause {
    const PATH: &'static str = "/v1/job/pause";
    type Reply = JobsReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobsReply> {
        let maintenance = service.maintenance()?;
        let paused = maintenance.pause(&self.jobs.selection()?);
        paused.map_err(|e| Error::failed(e.to_string()))?;
        JobsReply::of(maintenance)
    }
}

/// Lets jobs go on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobResume {
    pub(crate) jobs: Jobs,
}

impl Verb for JobResume {
    const PATH: &'static str = "/v1/job/resume";
    type Reply = JobsReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobsReply> {
        let maintenance = service.maintenance()?;
        let resumed = maintenance.resume(&self.jobs.selection()?);
        resumed.map_err(|e| Error::failed(e.to_string()))?;
        JobsReply::of(maintenance)
    }
}
