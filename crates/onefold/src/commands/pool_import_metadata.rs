//! `onefold pool import-metadata`

use crate::context::Context;
use crate::output::Render;
use crate::pool::restoration::Restoration;
use crate::pool::{self, Opening};
use crate::progress::Progress;
use crate::session::recovery_line;
use onefold_api::{Error, Result};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File that 'pool export-metadata' wrote.
    file: PathBuf,

    /// Location of the pool's blocks, if not in its directory.
    #[arg(long, value_name = "FILE|DEVICE")]
    data: Option<PathBuf>,

    /// Carry out the plan; without it, the plan is only printed.
    #[arg(long)]
    yes: bool,
}

/// The JSON document of `pool import-metadata`.
#[derive(Debug, Serialize)]
struct ImportReply {
    /// The consequences of the import, one sentence each.
    plan: Vec<String>,
    done: bool,
    volumes: Vec<String>,
    /// Whether the log still has everything that was committed since the export.
    is_complete: bool,
}

impl Render for ImportReply {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let mark = if self.done { "done" } else { "plan" };
        self.plan
            .iter()
            .try_for_each(|sentence| writeln!(out, "{mark}: {sentence}"))
    }
}

pub(super) fn run(context: &Context, args: Args) -> Result<ExitCode> {
    let place = context.pool()?;
    let pool = place.only_directory("'pool import-metadata'")?;
    let progress = Progress::bytes(&context.output, "reading the export");
    let restoration = Restoration::prepare(pool, args.file, args.data, &mut |done, all| {
        progress.set(done, all);
    })?;
    drop(progress);
    let mut reply = ImportReply {
        plan: restoration.plan(),
        done: false,
        volumes: restoration.export().volumes().to_vec(),
        is_complete: restoration.keeps_log(),
    };
    if !args.yes {
        context.output.document(&reply)?;
        return Err(Error::usage(
            "nothing was changed; --yes carries out this plan",
        ));
    }
    let progress = Progress::bytes(&context.output, "making the metadata");
    let _lock = restoration.carry_out(&mut |done, all| progress.set(done, all))?;
    drop(progress);
    let (store, recovery) = pool::open(place, Opening::default())?;
    if !recovery.clean {
        context.output.note(recovery_line(&recovery));
    }
    // If a new log is started, the plan says so already.
    for warning in recovery.warnings().iter().filter(|_| reply.is_complete) {
        context.output.warn(warning);
    }
    let progress = Progress::bytes(&context.output, "counting the index");
    let block_size = u64::from(store.block_size());
    let counted = store.index().rebuild_if_needed(&mut |done, all| {
        progress.set(done * block_size, all * block_size);
    });
    drop(progress);
    // If the rebuild is interrupted, the next process that opens the pool resumes it.
    counted.and(store.close())?;
    reply.done = true;
    context.print(&reply)
}
