//! Renders jobs.

use std::io::{self, Write};

use onefold_api::{JobListReply, size};
use onefold_jobs::{JobState, JobStatus};
use onefold_store::split_name;

use super::word;
use crate::output::Render;

impl Render for JobListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (idle, shown): (Vec<_>, Vec<_>) =
            self.jobs.iter().partition(|job| is_idle_snapshot(job));
        let volumes = shown.iter().filter_map(|job| job.volume.as_ref());
        let width = volumes.map(String::len).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "{:10}  {:width$}  {:7}  {:>12}  {:>12}  {:>12}  {:>12}",
            "JOB", "VOLUME", "STATE", "BACKLOG", "DONE", "DUPLICATES", "RATE"
        )?;
        for job in shown {
            let counts = &job.counts;
            let done = counts.scanned + counts.counted + counts.released + counts.deleted;
            writeln!(
                out,
                "{:10}  {:width$}  {:7}  {:>12}  {:>12}  {:>12}  {:>10}/s",
                word(job.kind),
                job.volume.as_deref().unwrap_or("-"),
                job.state.name(),
                job.backlog_blocks,
                done,
                job.counts.duplicates,
                size::display(job.bytes_per_second)
            )?;
            if let Some(message) = &job.message {
                writeln!(out, "  {message}")?;
            }
        }
        match idle.len() as u64 {
            0 => Ok(()),
            count => writeln!(
                out,
                "and {} of snapshots, idle",
                size::count(count, "finder")
            ),
        }
    }
}

/// Whether a job is the finder of a snapshot that has been scanned completely, which has nothing left to do.
fn is_idle_snapshot(job: &JobStatus) -> bool {
    let volume = job.volume.as_deref();
    let is_of_snapshot = volume.is_some_and(|name| split_name(name).1.is_some());
    is_of_snapshot
        && job.state == JobState::Idle
        && job.backlog_blocks == 0
        && job.message.is_none()
}
