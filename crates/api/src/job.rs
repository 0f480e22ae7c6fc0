//! Requests about background jobs, which only a daemon has.

use clap::Args;
use onefold_jobs::{JobKind, JobSelection, JobStatus, Maintenance};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::request::{Report, Request};
use crate::service::Service;

/// Selects the jobs to pause or resume.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SelectedJobs {
    /// The job to select [default: all].
    #[arg(value_enum)]
    pub job: Option<JobKind>,
    /// Select only the finder of this volume.
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

/// The list of all jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobListReply {
    /// The jobs, one entry each.
    pub jobs: Vec<JobStatus>,
}

impl JobListReply {
    fn of(maintenance: &Maintenance) -> Result<Self> {
        let jobs = maintenance.jobs()?;
        Ok(Self { jobs })
    }
}

/// Lists all jobs.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobList {}

impl Request for JobList {
    const PATH: &'static str = "/v1/job/list";
    type Reply = JobListReply;

    fn run(&self, service: &Service, _report: Report<'_>) -> Result<JobListReply> {
        JobListReply::of(service.maintenance()?)
    }
}

/// Pauses jobs until they are resumed or the daemon restarts. Returns once the jobs have stopped working.
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Debug, Clone, Serialize, Deserialize, Args)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
