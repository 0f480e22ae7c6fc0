//! `onefold bench`

mod content;
mod nbd;
mod page;
mod place;
mod reply;

use self::content::Content;
use self::place::Place;
use self::reply::Reply;
use super::html::PageFile;
use crate::context::Context;
use crate::foreground::{random_seed, stop_when_interrupted, with_bar};
use crate::output::Output;
use crate::progress::Progress;
use onefold_api::size;
use onefold_api::{Error, Result};
use onefold_workload::{
    Load, LoadProgress, Mode, Pattern, Share, Target, WorkloadError, inspect, run as run_load,
    scaled,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Target of the load: a file, which is created if it does not exist, a block device,
    /// nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, or memory:SIZE, which measures the load
    /// generator itself.
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "clap prints it as it stands: brackets are for what may be left out"
    )]
    target: Place,

    /// Use only this much of the target, from its start. Also the size of a new file.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    size: Option<u64>,

    /// Requests to send: write, read or mixed:READ_PERCENT. If there are reads, the target is filled first.
    #[arg(long, value_name = "MODE", default_value = "write")]
    mode: Mode,

    /// Access pattern: sequential, uniform, nurand[:A] (TPC-C's hot spots) or zipf[:THETA].
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "clap prints it as it stands: brackets are for what may be left out"
    )]
    #[arg(long, value_name = "PATTERN", default_value = "sequential")]
    pattern: Pattern,

    /// Size of a request, in whole blocks. [default: one block]
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    request: Option<u64>,

    /// Number of concurrent jobs, each on its own part of the target.
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    jobs: u64,

    /// Stop after this many seconds, not counting the initial fill and the final verification.
    #[arg(long, value_name = "NUMBER")]
    seconds: Option<u64>,

    /// Stop after this many requests. Without --seconds and --requests, the load makes as many requests as
    /// fit into the target.
    #[arg(long, value_name = "NUMBER")]
    requests: Option<u64>,

    /// Requests per second of all jobs together. [default: unlimited]
    #[arg(long, value_name = "NUMBER", value_parser = parse_rate)]
    rate: Option<f64>,

    /// Distribution of duplicate contents: guests, dedis, paulo09, or a file from `analyze --distribution` or
    /// DEDISgen.
    #[arg(long, value_name = "NAME|FILE", default_value = "guests")]
    distribution: PathBuf,

    /// Block size, instead of the block size of the distribution.
    #[arg(long, value_parser = size::parse, value_name = "SIZE")]
    block_size: Option<u64>,

    /// Percentage of each block that is compressible.
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=100))]
    compressible: u8,

    /// Seed of contents and addresses. [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Run as instance K of N concurrent instances with the same seed. Contents that the instances share
    /// follow the distribution, too.
    #[arg(long, value_name = "K/N", default_value = "1/1", value_parser = parse_instance)]
    instance: Share,

    /// Do not verify the written data at the end.
    #[arg(long)]
    no_read_back: bool,

    /// Bypass the host's page cache (O_DIRECT); for files and devices only.
    #[arg(long)]
    direct: bool,

    /// Destroy the content of the target.
    #[arg(long)]
    yes: bool,

    /// Write a self-contained HTML page with plots to this new file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    let content = Content::load(&args.distribution, args.block_size)?;
    let block_bytes = content.distribution.block_bytes();
    let load = args.load(block_bytes)?;
    let bytes = args.target.bytes(args.size)?;
    let region = load.region(block_bytes, bytes).map_err(said)?;
    let page = args.html.as_deref().map(PageFile::create).transpose()?;
    let (target, is_new) = args.target.open(bytes, block_bytes, &load, args.direct)?;
    let target = &*target;
    let progress = Arc::new(LoadProgress::default());
    let stopping = Arc::clone(&progress);
    stop_when_interrupted(move || {
        let was_stopping = stopping.is_stopping();
        stopping.stop();
        was_stopping
    })?;
    if !(is_new || args.yes) {
        refuse_content(&context.output, target, region.bytes, &progress)?;
    }
    let scaled = scaled(&content.distribution, region, load.share);
    let bar = Progress::steps(&context.output, "benching");
    let work = || run_load(target, region, &scaled, &load, &progress);
    let report = with_bar(&bar, || progress.steps(), work).map_err(said)?;
    drop(bar);
    let is_complete = report.is_complete;
    if !is_complete {
        let words = "stopped: the figures cover only the work done so far";
        context.output.warn(words);
    }
    let reply = Reply::of(&report, &content, &scaled, region, &load, target);
    if let Some(file) = page {
        file.write(&page::page(&reply)?)?;
    }
    context.output.document(&reply)?;
    Ok(ExitCode::from(u8::from(!is_complete)))
}

impl Args {
    fn load(&self, block_bytes: u64) -> Result<Load> {
        let seed = match (self.seed, self.instance.count) {
            (Some(seed), _) => seed,
            (None, 1) => random_seed(),
            _ => {
                let message =
                    "instances have contents in common by their seed: give all the same --seed";
                return Err(Error::usage(message));
            }
        };
        Ok(Load {
            mode: self.mode,
            pattern: self.pattern,
            request_bytes: self.request.unwrap_or(block_bytes),
            jobs: self.jobs,
            time: self.seconds.map(Duration::from_secs),
            requests: self.requests,
            rate: self.rate,
            reads_back: !self.no_read_back,
            compressible_percent: self.compressible,
            seed,
            share: self.instance,
        })
    }
}

/// Fails if the target has content, which the load would overwrite.
fn refuse_content(
    output: &Output,
    target: &dyn Target,
    bytes: u64,
    progress: &LoadProgress,
) -> Result<()> {
    let bar = Progress::steps(output, "looking whether it is empty");
    let found = with_bar(
        &bar,
        || progress.steps(),
        || inspect(target, bytes, progress),
    );
    match found {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(Error::usage(format!(
            "{} holds {what}; nothing was changed; --yes writes over it",
            target.name()
        ))),
        Err(error) => Err(Error::io(
            format_args!("cannot look whether {} is empty", target.name()),
            &error,
        )),
    }
}

fn parse_rate(text: &str) -> std::result::Result<f64, String> {
    let rate: Option<f64> = text.parse().ok();
    let rate = rate.filter(|rate| (1e-3..=1e9).contains(rate));
    rate.ok_or_else(|| format!("'{text}' is no rate: from 0.001 to 1000000000 requests a second"))
}

fn parse_instance(text: &str) -> std::result::Result<Share, String> {
    let parts = text.split_once('/');
    let numbers = parts.and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    match numbers {
        Some((k, count)) if (1..=count).contains(&k) && count <= 1 << 16 => Ok(Share {
            index: k - 1,
            count,
        }),
        _ => Err(format!(
            "'{text}' is no instance: 2/4 is the second of four"
        )),
    }
}

fn said(error: WorkloadError) -> Error {
    match error {
        WorkloadError::Usage(message) => Error::usage(message),
        WorkloadError::Io(..) | WorkloadError::Mismatch(_) => Error::failed(error.to_string()),
    }
}
