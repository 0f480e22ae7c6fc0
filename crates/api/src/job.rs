//! Requests about background jobs, which only a daemon has.

use clap::Args;
use onefold_jobs::{JobCounts, JobKind, JobSelection, JobState, JobStatus, Maintenance};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::request::{Report, Request};
use crate::service::Service;

/// Selects the jobs to pause or resume.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, Args)]
pub struct SelectedJobs {
    /// The job [default: all].
    #[arg(value_enum)]
    pub job: Option<JobKind>,
    /// Only the finder of this volume.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
}

impl SelectedJobs {
    fn selection(&self) -> Result<JobSelection> {
        match (self.job, &self.volume) {
            (Some(JobKind::Rebuild), _) => Err(Error::usage(
                "the rebuild of the index cannot be paused: blocks are shared only after its end",
            )),
            (None, None) => Ok(JobSelection::All),
            (Some(kind), None) => Ok(JobSelection::Kind(kind)),
            (None | Some(JobKind::Finder), Some(volume)) => {
                Ok(JobSelection::FinderOf(volume.clone()))
            }
            (Some(_), Some(_)) => Err(Error::usage(
                "only the finder works for each volume by itself: omit --volume",
            )),
        }
    }
}

/// The present state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobStateName {
    /// There is nothing to do, or it is not time yet.
    Idle,
    /// Work is under way.
    Running,
    /// Work is under way and rests, so that guests' requests stay within the latency budget.
    Waiting,
    /// It waits to be resumed.
    Paused,
    /// It failed and will be retried.
    Failed,
}

impl JobStateName {
    /// Every state.
    pub const ALL: [Self; 5] = [
        Self::Idle,
        Self::Running,
        Self::Waiting,
        Self::Paused,
        Self::Failed,
    ];

    /// Its word in documents.
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

impl From<&JobState> for JobStateName {
    fn from(state: &JobState) -> Self {
        match state {
            JobState::Idle => Self::Idle,
            JobState::Running => Self::Running,
            JobState::WaitingForBudget => Self::Waiting,
            JobState::Paused => Self::Paused,
            JobState::Failed(_) => Self::Failed,
        }
    }
}

/// One job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobReply {
    /// Its kind.
    pub job: JobKind,
    /// The finder's volume; for a failed deletion, the deleted volume or snapshot.
    pub volume: Option<String>,
    /// Its present state.
    pub state: JobStateName,
    /// Why it failed.
    pub message: Option<String>,
    #[serde(flatten)]
    /// Its work since the daemon started.
    pub counts: JobCounts,
    /// Blocks left to scan, release or read.
    pub backlog_blocks: u64,
    /// Its recent rate, rests included.
    pub bytes_per_second: u64,
}

impl From<JobStatus> for JobReply {
    fn from(status: JobStatus) -> Self {
        let state = JobStateName::from(&status.state);
        let message = match status.state {
            JobState::Failed(message) => Some(message),
            _ => None,
        };
        Self {
            job: status.kind,
            volume: status.volume,
            state,
            message,
            counts: status.counts,
            backlog_blocks: status.backlog_blocks,
            bytes_per_second: status.bytes_per_second,
        }
    }
}

/// All jobs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobListReply {
    /// One entry for each job.
    pub jobs: Vec<JobReply>,
}

impl JobListReply {
    fn of(maintenance: &Maintenance) -> Result<Self> {
        let jobs = maintenance.jobs()?.into_iter();
        Ok(Self {
            jobs: jobs.map(JobReply::from).collect(),
        })
    }
}

/// Lists all jobs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, Args)]
pub struct JobList {}

impl Request for JobList {
    const PATH: &'static str = "/v1/job/list";
    type Reply = JobListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobListReply> {
        JobListReply::of(service.maintenance()?)
    }
}

/// Pauses jobs until they are resumed or the daemon restarts. Returns once they rest.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, Args)]
pub struct JobPause {
    #[command(flatten)]
    #[serde(flatten)]
    /// The jobs to pause.
    pub jobs: SelectedJobs,
}

impl Request for JobPause {
    const PATH: &'static str = "/v1/job/pause";
    type Reply = JobListReply;

    fn check(&self) -> Result<()> {
        self.jobs.selection().map(|_| ())
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobListReply> {
        let maintenance = service.maintenance()?;
        let paused = maintenance.pause(&self.jobs.selection()?);
        paused.map_err(|e| Error::failed(e.to_string()))?;
        JobListReply::of(maintenance)
    }
}

/// Resumes paused jobs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, Args)]
pub struct JobResume {
    #[command(flatten)]
    #[serde(flatten)]
    /// The jobs to resume.
    pub jobs: SelectedJobs,
}

impl Request for JobResume {
    const PATH: &'static str = "/v1/job/resume";
    type Reply = JobListReply;

    fn check(&self) -> Result<()> {
        self.jobs.selection().map(|_| ())
    }

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobListReply> {
        let maintenance = service.maintenance()?;
        let resumed = maintenance.resume(&self.jobs.selection()?);
        resumed.map_err(|e| Error::failed(e.to_string()))?;
        JobListReply::of(maintenance)
    }
}
