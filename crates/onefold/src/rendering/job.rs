//! Rendering of jobs.

use std::io::{self, Write};

use onefold_api::{JobListReply, size};

use super::word;
use crate::output::Render;

impl Render for JobListReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let volumes = self.jobs.iter().filter_map(|job| job.volume.as_ref());
        let width = volumes.map(String::len).max().unwrap_or(0).max(6);
        writeln!(
            out,
            "{:10}  {:width$}  {:7}  {:>12}  {:>12}  {:>12}  {:>12}",
            "JOB", "VOLUME", "STATE", "BACKLOG", "DONE", "DUPLICATES", "RATE"
        )?;
        for job in &self.jobs {
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
        Ok(())
    }
}
