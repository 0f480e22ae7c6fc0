//! `onefold backup diff`

use super::{BackupName, RepositoryArgs};
use crate::context::Context;
use crate::output::Render;
use crate::rendering::diff::{Totals, heading, rows};
use onefold_api::{DiffContent, DiffExtent, Error, Result};
use onefold_backup::{BlockReader, Difference, Restore};
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

/// Number of runs that are compared at a time.
const RUNS_MAX: usize = 4096;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Args {
    /// Older state.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    since: BackupName,

    /// Newer state, whose content is listed: a backup of the same source.
    #[arg(value_name = "SOURCE@N|SOURCE@latest")]
    name: BackupName,

    #[command(flatten)]
    repository: RepositoryArgs,
}

#[derive(Debug, Serialize)]
struct Reply {
    since: String,
    name: String,
    since_size_bytes: u64,
    size_bytes: u64,
    /// Runs that differ, in ascending order.
    extents: Vec<DiffExtent>,
    data_bytes: u64,
    zero_bytes: u64,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let opened = args.repository.open(context)?;
    let (source, since) = args.since.find(&opened)?;
    let (other, number) = args.name.find(&opened)?;
    if source.id != other.id {
        return Err(Error::usage(format!(
            "'{}' and '{}' are not backups of one source",
            args.since.source(),
            args.name.source()
        )));
    }
    let name = |number| format!("{}@{number}", source.source.name);
    let blocks = BlockReader::new(Arc::clone(opened.repository()), 0);
    let open = |number| Restore::open(&blocks, &source, number, "backup diff").map_err(Error::from);
    let (before, now) = (open(since)?, open(number)?);
    let size_bytes = now.manifest().size_bytes;
    let mut reply = Reply {
        since: name(since),
        name: name(number),
        since_size_bytes: before.manifest().size_bytes,
        size_bytes,
        extents: Vec::new(),
        data_bytes: 0,
        zero_bytes: 0,
    };
    let mut at = 0;
    while at < size_bytes {
        let runs = now.differences(&before, &(at..size_bytes), RUNS_MAX);
        for run in runs? {
            reply.note(at, run.bytes, run.what);
            at += run.bytes;
        }
    }
    let totals = Totals::default().and(&reply.extents);
    (reply.data_bytes, reply.zero_bytes) = (totals.data_bytes, totals.zero_bytes);
    context.print(&reply)
}

impl Reply {
    fn note(&mut self, offset: u64, length: u64, difference: Difference) {
        let content = match difference {
            Difference::Same => return,
            Difference::Data => DiffContent::Data,
            Difference::Zeros => DiffContent::Zero,
        };
        match self.extents.last_mut() {
            // Join runs that were split only at the end of a comparison step.
            Some(last) if last.offset + last.length == offset && last.content == content => {
                last.length += length;
            }
            _ => self.extents.push(DiffExtent {
                offset,
                length,
                content,
            }),
        }
    }
}

impl Render for Reply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        heading(out)?;
        rows(&self.extents, out)?;
        let totals = Totals::default().and(&self.extents);
        totals.text(Some(&self.since), &self.name, out)
    }
}
