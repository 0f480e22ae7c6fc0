//! `onefold analyze`

mod html;
mod reply;
mod tables;

use self::reply::{EstimateReply, Reply};
use super::{Context, parse_size};
use crate::error::{Error, Result};
use crate::output::Output;
use crate::progress::Progress as Bar;
use onefold_study::{
    Chunking, EstimateOptions, Options, Problem, Progress, StudyError, analyze, estimate, survey,
};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often the bar moves.
const BAR_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Files, folders with all that is in them, block devices, raw disk images. Each is an input; symbolic
    /// links below a folder are not followed.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// A way to cut the data: file, fixed:SIZE, content:AVERAGE or content:MIN,AVERAGE,MAX. Can be given
    /// several times; everything is read once.
    #[arg(long, value_name = "WAY", default_value = "fixed:4K")]
    chunking: Vec<Chunking>,

    /// The inputs are generations of one another: say what each adds to those before it.
    #[arg(long)]
    generations: bool,

    /// How it is found out.
    #[arg(long, value_enum, default_value = "exact")]
    method: Method,

    /// What Harnik's estimate may be off at most, in percent of the data.
    #[arg(long, value_name = "PERCENT", default_value = "1")]
    error: f64,

    /// With which probability it is not off by more, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "99.9")]
    confidence: f64,

    /// What Harnik's estimate draws follows from this number; with none, it is drawn as well.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Also write the figures as tables of comma-separated values into this new folder.
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,

    /// Also write a page with plots to this new file. It needs nothing else, and no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Memory for what is known of the chunks; what has no room goes to a temporary file.
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "256M")]
    memory: u64,
}

/// How redundancy is found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Method {
    /// All chunks are counted.
    Exact,
    /// Harnik's method: an estimate of what fixed blocks save, within a bound, in 16 MiB of memory.
    Harnik,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<ExitCode> {
    match args.method {
        Method::Exact => run_exact(context, args),
        Method::Harnik => run_harnik(context, args),
    }
}

fn run_exact(context: &Context, args: &Args) -> Result<ExitCode> {
    let mut chunkings: Vec<Chunking> = Vec::new();
    for chunking in &args.chunking {
        if !chunkings.contains(chunking) {
            chunkings.push(*chunking);
        }
    }
    let options = Options {
        chunkings,
        memory_bytes: usize::try_from(args.memory)
            .map_err(|_| Error::usage("more memory than this machine can address"))?,
        temporary: std::env::temp_dir(),
    };
    let found = survey(&args.paths);
    let progress = Arc::new(Progress::default());
    stop_when_interrupted(&progress)?;
    let analysis = with_bar(&context.output, &progress, found.bytes, || {
        analyze(&args.paths, &options, &progress)
    });
    let analysis = analysis.map_err(said)?;
    let code = warn(&context.output, &analysis.problems, analysis.is_complete);
    let reply = Reply::of(analysis, found, args);
    if let Some(folder) = &args.csv {
        tables::write(&reply, folder)?;
    }
    if let Some(file) = &args.html {
        html::write(&reply, file)?;
    }
    context.output.document(&reply)?;
    Ok(code)
}

fn run_harnik(context: &Context, args: &Args) -> Result<ExitCode> {
    let [Chunking::Fixed { bytes }] = args.chunking[..] else {
        let message =
            "Harnik's estimate is of fixed blocks of one size: --chunking fixed:SIZE, once";
        return Err(Error::usage(message));
    };
    if args.csv.is_some() || args.html.is_some() {
        return Err(Error::usage(
            "tables and pages are of exact figures: not with --method harnik",
        ));
    }
    let options = EstimateOptions {
        block_bytes: bytes,
        error: args.error / 100.0,
        confidence: args.confidence / 100.0,
        seed: args.seed.unwrap_or_else(random_seed),
    };
    let all = survey(&args.paths).bytes;
    let progress = Arc::new(Progress::default());
    stop_when_interrupted(&progress)?;
    let found = with_bar(&context.output, &progress, all, || {
        estimate(&args.paths, &options, &progress)
    });
    let found = found.map_err(said)?;
    let code = warn(&context.output, &found.problems, found.is_complete);
    context
        .output
        .document(&EstimateReply::of(found, &options))?;
    Ok(code)
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn said(error: StudyError) -> Error {
    match error {
        StudyError::Usage(message) => Error::usage(message),
        StudyError::Io(..) => Error::failed(error.to_string()),
    }
}

/// Names what was wrong with inputs. Returns the exit code that this makes.
fn warn(output: &Output, problems: &[Problem], is_complete: bool) -> ExitCode {
    for problem in problems {
        output.warn(format_args!("{:?}: {}", problem.path, problem.what));
    }
    if !is_complete {
        output.warn("stopped: what follows is of what was read by then");
    }
    ExitCode::from(u8::from(!problems.is_empty() || !is_complete))
}

/// The first SIGINT ends the reading, a second one the process.
fn stop_when_interrupted(progress: &Arc<Progress>) -> Result<()> {
    let failed = |e: io::Error| Error::io("cannot listen for signals", &e);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let interrupts = runtime.block_on(async { signal(SignalKind::interrupt()) });
    let mut interrupts = interrupts.map_err(failed)?;
    let progress = Arc::clone(progress);
    thread::spawn(move || {
        runtime.block_on(async {
            while interrupts.recv().await.is_some() {
                if progress.is_stopping() {
                    std::process::exit(130);
                }
                progress.stop();
            }
        });
    });
    Ok(())
}

fn with_bar<T>(output: &Output, progress: &Progress, all: u64, work: impl FnOnce() -> T) -> T {
    let bar = Bar::bytes(output, "analysing");
    let (done, ended) = channel::<()>();
    thread::scope(|scope| {
        let bar = &bar;
        scope.spawn(move || {
            while ended.recv_timeout(BAR_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                bar.set(progress.done_bytes().min(all), all);
            }
        });
        let result = work();
        drop(done);
        result
    })
}
